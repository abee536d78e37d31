//! Rows Z12 and Z15: paths of webhooks contain a code that strangers do not know, and its key changes under load.

use std::collections::BTreeSet;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use portcullis_e2e::{Cluster, Installation, PodSetup, Program, eventually, eventually_within};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::load::Load;
use crate::secrets::{bundles, name, path, put, text};
use crate::{ROTATION, Serving, cluster, events, hurried, serving};

/// The variable that makes the controller register paths without a code, like earlier releases.
const PLAIN: (&str, &str) = ("PORTCULLIS_PLAIN_PATHS", "true");

/// The lines of the Secret of keys, and the paths of all webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Paths {
    keys: Vec<String>,
    registered: BTreeSet<String>,
}

impl Paths {
    fn of(installation: &Installation<'_>) -> Self {
        let secret = installation.api().find(&path(installation, "paths")).unwrap_or_default();
        let webhooks = installation.webhooks();
        let entries = webhooks.iter().flat_map(|webhook| webhook["webhooks"].as_array().into_iter().flatten());
        let registered =
            entries.filter_map(|entry| entry["clientConfig"]["service"]["path"].as_str().map(str::to_owned));
        Self { keys: text(&secret, "keys").lines().map(str::to_owned).collect(), registered: registered.collect() }
    }

    /// The key, if no change is under way and every webhook has a path of its form.
    fn settled(&self) -> Option<&str> {
        let [only] = self.keys.as_slice() else { return None };
        let key = only.strip_prefix("current ")?;
        let segments = if key == "plain" { 3 } else { 4 };
        let is_moved = |path: &String| path.split('/').count() == segments;
        (!self.registered.is_empty() && self.registered.iter().all(is_moved)).then_some(key)
    }

    /// The texts that must stay secret.
    fn secrets(&self) -> impl Iterator<Item = &str> {
        let keys = self.keys.iter().filter_map(|line| line.split(' ').nth(1));
        let codes = self.registered.iter().filter_map(|path| path.split('/').nth(3));
        keys.chain(codes).filter(|text| *text != "plain")
    }
}

/// Waits until no change is under way and the key is no longer this one.
fn settled(installation: &Installation<'_>, other_than: &str) -> (String, Paths) {
    eventually_within(ROTATION, "another key alone, and webhooks with its paths", || {
        let paths = Paths::of(installation);
        let key = paths.settled().filter(|key| *key != other_than)?.to_owned();
        Some((key, paths))
    })
}

/// The status of a POST of an empty JSON object to the first replica. It is sent again if the machine was too busy for an answer.
fn ask(installation: &Installation<'_>, path: &str) -> u16 {
    eventually("an answer of a replica", || try_to_ask(installation, path).ok())
}

fn try_to_ask(installation: &Installation<'_>, path: &str) -> io::Result<u16> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundles(installation)[0].as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let service = installation.webhooks()[0]["webhooks"][0]["clientConfig"]["service"]["name"].clone();
    let host = format!("{}.{}.svc", service.as_str().unwrap(), installation.namespace());
    let name = ServerName::try_from(host.clone()).unwrap();
    let connection = ClientConnection::new(Arc::new(builder.with_no_client_auth()), name).unwrap();
    let stream = TcpStream::connect(SocketAddr::from((installation.replicas()[0].address(), 8443)))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut stream = StreamOwned::new(connection, stream);
    let head = "Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    write!(stream, "POST {path} HTTP/1.1\r\nHost: {host}\r\n{head}")?;
    let mut status = [0; 12];
    stream.read_exact(&mut status)?;
    Ok(str::from_utf8(&status[9..]).unwrap().parse().unwrap())
}

/// Asserts that objects, events, logs and metrics do not contain a key or the code of a path.
fn assert_not_revealed(installation: &Installation<'_>, policy: &str, paths: &Paths) {
    let events = format!("/apis/events.k8s.io/v1/namespaces/{}/events", installation.namespace());
    let mut said = vec![installation.api().find(policy).unwrap().to_string()];
    said.extend(installation.api().list(&events).iter().map(ToString::to_string));
    said.extend(installation.reports().iter().map(ToString::to_string));
    said.extend(installation.revisions().iter().map(ToString::to_string));
    for pod in installation.pods() {
        for program in [Program::Controller, Program::Evaluator, Program::Loader, Program::Reporter] {
            if pod.has(program) {
                said.extend(pod.program(program).lines());
                said.extend(pod.probe(program, "/metrics").map(|(_, text)| text));
            }
        }
    }
    for secret in paths.secrets() {
        assert!(!said.iter().any(|text| text.contains(secret)), "a key or a code is exposed");
    }
}

/// A controller that replaces the key of paths every minute. A change takes two of its pauses.
fn quick() -> PodSetup {
    hurried().flag(Program::Controller, "--path-key-age", "60s")
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z15_the_key_of_paths_changes_under_load() {
    Cluster::require_own_network();
    let Serving { installation, namespace, policy, text } = serving(cluster(), "paths", 2, quick());
    let load = Load::start(&installation, &namespace, &text);
    let (mut key, mut before) = settled(&installation, "plain");
    assert_eq!(before.registered.len(), 2, "they had a code from the beginning: {before:?}");
    for change in 0..3 {
        eventually_within(ROTATION, "another key beside this one", || {
            (Paths::of(&installation).keys.len() == 2).then_some(())
        });
        if change == 1 {
            installation.add_replica();
        }
        let (next, after) = settled(&installation, &key);
        assert!(after.registered.is_disjoint(&before.registered), "every path is another one");
        (key, before) = (next, after);
    }
    installation.wait_for(&policy, "WebhookConfigured", "True");
    load.go_on(300);
    load.finish();
    assert_not_revealed(&installation, &policy.path(), &Paths::of(&installation));
    for replica in installation.replicas() {
        assert_eq!(replica.restarts(Program::Evaluator), 0);
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z12_z15_an_installation_without_codes_gets_them_and_gives_them_up_under_load() {
    Cluster::require_own_network();
    let (name, value) = PLAIN;
    let Serving { installation, namespace, policy, text } =
        serving(cluster(), "coded", 2, hurried().env(Program::Controller, name, value));
    let load = Load::start(&installation, &namespace, &text);
    let before = Paths::of(&installation);
    assert_eq!(before.settled(), Some("plain"), "{before:?}");
    assert!(before.registered.iter().all(|path| ask(&installation, path) != 404));
    let pods = installation.pods();
    let controller = pods.iter().find(|pod| pod.has(Program::Controller)).unwrap();
    let restart = |value: Option<&str>| {
        controller.stop(Program::Controller);
        controller.program(Program::Controller).set_env(name, value);
        controller.start(Program::Controller);
    };

    restart(None);
    let (_, coded) = settled(&installation, "plain");
    installation.wait_for(&policy, "WebhookConfigured", "True");
    // This takes a moment: the Secret is mounted, and evaluators read the files once a second.
    eventually("the paths without a code to be closed", || {
        before.registered.iter().all(|path| ask(&installation, path) == 404).then_some(())
    });
    for path in &coded.registered {
        assert_eq!(ask(&installation, path), 400, "an empty review of somebody who knows the path");
        let (strange, _) = path.rsplit_once('/').unwrap();
        assert_eq!(ask(&installation, strange), 404);
        assert_eq!(ask(&installation, &format!("{strange}/{}", "0".repeat(64))), 404);
    }

    restart(Some(value));
    eventually_within(ROTATION, "paths without a code", || {
        (Paths::of(&installation).settled() == Some("plain")).then_some(())
    });
    assert_eq!(Paths::of(&installation).registered, before.registered);
    load.go_on(300);
    load.finish();
    installation.wait_for(&policy, "WebhookConfigured", "True");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z15_a_deleted_secret_of_keys_comes_again_with_the_key_of_before() {
    Cluster::require_own_network();
    let Serving { installation, namespace, text, .. } = serving(cluster(), "lost-keys", 2, hurried());
    let (key, _) = settled(&installation, "plain");
    let load = Load::start(&installation, &namespace, &text);
    load.go_on(100);
    installation.api().delete(&path(&installation, "paths"), None).unwrap().expect("a deleted Secret");
    eventually("the earlier key, and another one", || {
        let keys = Paths::of(&installation).keys;
        (keys.len() == 2 && keys[0] == format!("current {key}")).then_some(())
    });
    settled(&installation, &key);
    load.go_on(300);
    load.finish();
}

/// A backup that is restored, or a tool that applies an old version. The kubelets of this test mount the strange key at once, so calls may
/// fail until the controller has stored the earlier key again. The load begins after that.
#[test]
#[ignore = "starts a cluster"]
fn fault_z15_a_key_that_somebody_else_stores_is_introduced_like_any_other() {
    Cluster::require_own_network();
    let Serving { installation, namespace, text, .. } = serving(cluster(), "strange-key", 2, hurried());
    let (key, before) = settled(&installation, "plain");
    let strange = "5a".repeat(32);
    put(&installation, "paths", &[("keys", &format!("current {strange}\n"))]);
    eventually("the earlier key, and the strange one as the next", || {
        let paths = Paths::of(&installation);
        assert_eq!(paths.registered, before.registered, "webhooks stay where they are");
        (paths.keys == [format!("current {key}"), format!("next {strange}")]).then_some(())
    });
    eventually("an event", || events(&installation, &name(&installation, "paths"), "PathKeysReplaced").pop());
    eventually("replicas that accept both", || {
        let accepts_both = |report: &serde_json::Value| report["spec"]["pathKeys"].as_array().map(Vec::len) == Some(2);
        installation.reports().iter().all(accepts_both).then_some(())
    });
    let load = Load::start(&installation, &namespace, &text);
    let (next, after) = settled(&installation, &key);
    assert_eq!(next, strange);
    assert!(after.registered.is_disjoint(&before.registered), "every path is another one");
    load.go_on(300);
    load.finish();
}
