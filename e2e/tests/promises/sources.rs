//! Modules that the loader may not fetch: because its login is wrong, or because the installation does not allow their source. Rows L06 and
//! L23.

use std::fs;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_e2e::{Pod, PodSetup, Policy, Program, Right, Source, condition, eventually, guest_with, never_lasting};
use serde_json::{Value, json};

use crate::checks::await_checks;
use crate::{installation, installation_with};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn digest(bytes: &[u8]) -> String {
    portcullis_contract::Digest::of(bytes).to_string()
}

/// Serves a module as `repository:v1`, and returns its address.
fn push(source: &Source, repository: &str, module: &[u8]) -> String {
    let layer = "application/vnd.wasm.content.layer.v1+wasm";
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": { "mediaType": "application/vnd.wasm.config.v1+json", "digest": digest(b"{}"), "size": 2 },
        "layers": [{ "mediaType": layer, "digest": digest(module), "size": module.len() }],
    });
    source.put(&format!("/v2/{repository}/blobs/{}", digest(module)), module);
    source.put(&manifest_path(repository), manifest.to_string());
    format!("registry://{}/{repository}:v1", source.host())
}

fn manifest_path(repository: &str) -> String {
    format!("/v2/{repository}/manifests/v1")
}

/// Writes the login of a user with this password into a folder, as a mounted pull secret, and returns what a client with it sends.
fn write_login(folder: &Path, host: &str, password: &str) -> String {
    let login = STANDARD.encode(format!("somebody:{password}"));
    fs::write(folder.join(".next"), json!({ "auths": { host: { "auth": login } } }).to_string()).expect("writes");
    fs::rename(folder.join(".next"), folder.join("config.json")).expect("renames");
    format!("Basic {login}")
}

/// How many downloads were refused to the loader of a pod.
fn refusals(pod: &Pod) -> u64 {
    let (_, text) = eventually("metrics", || pod.probe(Program::Loader, "/metrics").filter(|(code, _)| *code == 200));
    let of_login = |line: &&str| line.starts_with("portcullis_fetches_total{") && line.contains("Unauthorized");
    let counts = text.lines().filter(of_login).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    counts.sum()
}

#[test]
#[ignore = "starts a cluster"]
fn fault_l06_a_refused_login_is_one_event_and_is_over_with_the_right_secret() {
    let installation = installation("private", 0);
    let (source, folder) = (installation.source(), tempfile::tempdir().expect("a folder"));
    let host = source.host();
    source.demand("/v2/private/", &write_login(folder.path(), &host, "right"));
    write_login(folder.path(), &host, "wrong");
    for _ in 0..2 {
        // Without a change of the login, a retry takes minutes.
        let setup = PodSetup::default().flag(Program::Loader, "--retry-outside", "10m");
        installation.add_replica_with(setup.flag(Program::Loader, "--docker-config", folder.path().display()));
    }
    installation.wait_ready();
    let shop = installation.make_namespace("shop");
    let updated = installation.cluster_policy("private-updated").denying("generation one");
    installation.apply_ready(std::slice::from_ref(&updated));
    let canary = installation.canary(&shop, Right::Denied("generation one".to_owned()));

    // Both deny with the same words as before.
    let address = push(source, "private", &guest_with("deny_text", b"generation one"));
    let policies = [installation.cluster_policy("private-new").on(&["configmaps"]), updated].map(|it| it.at(&address));
    let states = [("Error", "failed"), ("ServingPrevious", "previous")];
    for policy in &policies {
        installation.apply(policy).expect("the policy");
    }
    for (policy, (reason, count)) in policies.iter().zip(states) {
        installation.wait_for_object(policy, "both replicas to fail", |object| {
            let is = |kind: &str, reason: &str| condition(object, kind).is_some_and(|found| found["reason"] == reason);
            is("Ready", reason) && is("Degraded", "Unauthorized") && object["status"]["replicaCounts"][count] == 2
        });
    }
    // An event of the failure, and where an older generation goes on serving, one that says so.
    let expected = [&["Unauthorized"][..], &["ServingPrevious", "Unauthorized"]];
    let warnings = |policy: &Policy| {
        let warnings = installation.all_events(policy).into_iter().filter(|event| event["type"] == "Warning");
        let of = |event: Value| (event["reason"].as_str().unwrap_or_default().to_owned(), event["series"].clone());
        let mut reasons: Vec<_> = warnings.map(of).collect();
        reasons.sort_by(|one, other| one.0.cmp(&other.0));
        reasons
    };
    // An event that was repeated would have a series.
    let are_these = |policy: &Policy, reasons: &[&str]| {
        let found = warnings(policy);
        found.iter().map(|(reason, _)| reason).eq(reasons) && found.iter().all(|(_, series)| series.is_null())
    };
    let others = || {
        let found = policies.iter().zip(expected).find(|(policy, reasons)| !are_these(policy, reasons));
        found.map(|(policy, _)| (policy.name(), warnings(policy)))
    };
    eventually("the events", || others().is_none().then_some(()));

    // Another wrong password is tried by both, and is no further event.
    let refused = || installation.replicas().iter().map(|pod| refusals(pod)).collect::<Vec<_>>();
    let before = refused();
    write_login(folder.path(), &host, "wrong as well");
    eventually("further attempts of both", || {
        refused().iter().zip(&before).all(|(now, before)| now > before).then_some(())
    });
    never_lasting(Duration::from_secs(5), "another event", others);

    write_login(folder.path(), &host, "right");
    installation.assert_recovers("both policies, with the right login,", || {
        let is_ready = |policy: &Policy| {
            let object = installation.object(policy)?;
            let ready = condition(&object, "Ready")?;
            let is_newest = ready["observedGeneration"] == object["metadata"]["generation"];
            (is_newest && ready["status"] == "True" && object["status"]["summary"] == "2/2").then_some(())
        };
        policies.iter().all(|policy| is_ready(policy).is_some()).then_some(())
    });
    assert_eq!(others(), None, "of the right login, there is no warning");
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_l23_a_source_that_is_not_allowed_is_refused_at_apply() {
    let name = "listed";
    let installation = installation_with(name, 0, "deny");
    let source = installation.source();
    let list = format!("https://{}/*", source.host());
    installation.add_replica_with(PodSetup::default().flag(Program::Loader, "--allow-source", list));
    installation.wait_ready();
    await_checks(&installation, name);
    let canary = installation.own_canary();
    let good = installation.cluster_policy("listed-good").denying("as before");
    installation.apply_ready(std::slice::from_ref(&good));
    source.put("/m.wasm", guest_with("deny_text", b"never"));

    let host = source.host();
    let refused = [
        ("plain-http", format!("http://{host}/m.wasm")),
        ("other-scheme", format!("ftp://{host}/m.wasm")),
        ("scheme-not-listed", format!("registry://{host}/m:v1")),
        ("host-not-listed", "https://modules.example/m.wasm".to_owned()),
        // No file is below a root in a cluster, whatever links there are.
        ("system", "file:///etc/passwd".to_owned()),
        ("dots", "file:../outside/m.wasm".to_owned()),
        ("dots-in-path", "file:///modules/../outside/m.wasm".to_owned()),
        ("link", "file:///proc/self/root/etc/passwd".to_owned()),
        ("relative", "../m.wasm".to_owned()),
    ];
    for (name, address) in &refused {
        let policy = installation.cluster_policy(&format!("listed-{name}")).at(address);
        // An edit of a policy that serves is refused like a new one.
        for policy in [policy, good.clone().at(address)] {
            let output = installation.apply(&policy);
            let is_refused = !output.is_ok() && output.stderr.contains("denied the request: SourceNotAllowed: ");
            assert!(is_refused, "{name}, as {}: {output:?}", policy.name());
        }
        assert_eq!(installation.object(&installation.cluster_policy(&format!("listed-{name}"))), None, "{name}");
    }
    let object = installation.object(&good).expect("the policy");
    assert_eq!((&object["metadata"]["generation"], &object["status"]["summary"]), (&json!(1), &json!("1/1")));
    assert!(source.requests("/m.wasm").is_empty(), "nothing was fetched");
    canary.end();
}
