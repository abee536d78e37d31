//! Certificates change under load: those of the controller, and external ones. Rows H14 to H17.

use std::time::Duration;

use portcullis_e2e::{Issuer, Release, eventually, eventually_within};
use serde_json::{Value, json};

use crate::certificates::Certificates;
use crate::newcomers::Newcomers;
use crate::stage::{Stage, assert_all, assert_denied};

/// The number of calls per second.
const CALLS: u32 = 100;
/// The longest wait for a rotation with the pauses of [`settings`].
const ROTATION: Duration = Duration::from_secs(240);
/// The time left of a certificate that expires soon, but not before it has reached the pods.
const SHORT: Duration = Duration::from_secs(40);
/// The time left of a certificate that is not about to expire.
const LONG: Duration = Duration::from_secs(100 * 24 * 3600);

/// Values of the chart with short pauses and this mode of certificates.
fn settings(mode: &str) -> Value {
    // The last pause is longer than pods take to get a change if their kubelet is made to update them.
    let flags = ["--webhook-pause=1s", "--revision-pause=500ms", "--ca-pause=5s", "--tls-pause=15s"];
    json!({ "controller": { "extraArgs": flags }, "certificates": { "mode": mode } })
}

/// How often the containers of the policy server were restarted, in total.
fn restarts(release: &Release<'_>) -> u64 {
    let pods = release.pods();
    let statuses = pods.iter().flat_map(|pod| pod["status"]["containerStatuses"].as_array().into_iter().flatten());
    statuses.map(|status| status["restartCount"].as_u64().unwrap()).sum()
}

/// The release with a policy that denies, before certificates change.
struct Scene {
    stage: Stage,
    /// A namespace for pods.
    shop: String,
    certificates: Certificates<'static>,
    /// The end of the certificate that all pods have loaded.
    taken: String,
    /// How often containers were restarted before the test.
    before: u64,
}

impl Scene {
    fn new(test: &'static str, mode: &str) -> Self {
        let stage = Stage::with(test, &settings(mode));
        let (release, shop) = (stage.release(), stage.namespace());
        let certificates = Certificates(release);
        release.apply_ready(&[release.cluster_policy(test).denying("not here")]);
        let taken = certificates.wait_taken("", || {});
        Self { stage, shop, certificates, taken, before: restarts(release) }
    }
}

/// Waits for an event about the external Secret, with these words in its note.
fn wait_event(certificates: Certificates<'_>, reason: &str, words: &str) {
    let (release, name) = (certificates.0, certificates.name("external"));
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", release.namespace());
    eventually(reason, || {
        let list = release.api().get(&path)?;
        let is_it = |event: &Value| {
            let note = event["note"].as_str().unwrap_or_default();
            event["reason"] == reason && event["regarding"]["name"] == *name && note.contains(words)
        };
        list["items"].as_array()?.iter().any(is_it).then_some(())
    })
}

#[test]
#[ignore = "starts a cluster"]
fn fault_h14_h15_a_certificate_that_ends_is_told_and_renewed_without_a_restart() {
    let issuer = Issuer::new("somebody else");
    let Scene { stage, shop, certificates, taken, before } = Scene::new("ending", "external");
    let release = stage.release();
    release.without_canary("API servers do not call a webhook whose certificate has ended");

    certificates.put(&issuer, SHORT);
    let taken = certificates.wait_taken(&taken, || {});
    wait_event(certificates, "CertificateExpiring", "has not been renewed");
    eventually("health checks that name the end", || {
        let ended = |(code, text): &(u16, String)| *code == 500 && text.contains("certificate failed: it ended at ");
        certificates.health().iter().all(ended).then_some(())
    });
    // The request is rejected by the policy if its webhook can still be called, and by its failurePolicy if not.
    let pod = release.create_pod(&shop, "one", &json!({}));
    assert!(
        !pod.is_ok() && (pod.stderr.contains("not here") || pod.stderr.contains("failed calling webhook")),
        "{pod:?}"
    );

    certificates.put(&issuer, LONG);
    certificates.wait_taken(&taken, || {});
    eventually("the policy's own denial", || {
        release.create_pod(&shop, "two", &json!({})).stderr.contains("not here").then_some(())
    });
    // For the denial, one pod with the new certificate was enough. The others get it when their kubelet updates them.
    eventually("health checks that are good again", || {
        certificates.health().iter().all(|(code, _)| *code == 200).then_some(())
    });
    assert_eq!(restarts(release), before);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_h16_h17_certificates_of_somebody_else_are_followed_under_load_and_given_up_again() {
    let issuer = Issuer::new("somebody else");
    let Scene { stage, shop, certificates, taken, before } = Scene::new("external", "external");
    let release = stage.release();
    let (load, newcomers) = (release.load(&shop, CALLS), Newcomers::start(release));

    // Certificate and authority change at the same time, and kubelets update the pods as early as possible.
    let old = certificates.text("tls", "ca.crt");
    certificates.put(&issuer, LONG - Duration::from_secs(60));
    let new = certificates.text("external", "ca.crt");
    let taken = certificates.wait_taken(&taken, || {
        // Webhooks are asked after the Secret.
        if certificates.text("tls", "ca.crt") == new {
            certificates.assert_trusted(&[&old, &new]);
        }
    });

    let good = certificates.text("tls", "tls.key");
    certificates.spoil("external", "tls.key", "noise");
    wait_event(certificates, "CertificateInvalid", "`tls.key` is not a private key");
    assert_eq!(certificates.text("tls", "tls.key"), good);
    certificates.put(&issuer, LONG - Duration::from_secs(120));
    let taken = certificates.wait_taken(&taken, || {});

    stage.set(&settings("own"));
    certificates.wait_taken(&taken, || {});
    certificates.assert_trusted(&[&new, &certificates.text("ca", "ca.crt")]);
    newcomers.end();
    assert_all(&load.end(), 403);
    assert_eq!(restarts(release), before);
    certificates.delete("external");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_h16_h17_the_controllers_certificate_and_authority_rotate_under_load() {
    let Scene { stage, shop, certificates, taken, before } = Scene::new("rotation", "own");
    let release = stage.release();
    let old = certificates.text("ca", "ca.crt");
    let (load, newcomers) = (release.load(&shop, CALLS), Newcomers::start(release));

    // A certificate with a wrong key may reach the pods for a moment. They keep the old pair, and load the next one.
    certificates.spoil("tls", "tls.key", "noise");
    let taken = certificates.wait_taken(&taken, || {});
    assert_eq!(certificates.text("ca", "ca.crt"), old);

    let leaf = certificates.text("tls", "tls.crt");
    certificates.delete("ca");
    certificates.wait_taken(&taken, || {
        // Webhooks are asked after the Secret.
        if certificates.text("tls", "tls.crt") != leaf {
            certificates.assert_trusted(&[&old, &certificates.text("ca", "ca.crt")]);
        }
    });
    let new = certificates.text("ca", "ca.crt");
    assert_ne!(new, old);
    eventually_within(ROTATION, "the new authority alone", || {
        certificates.bundles().iter().all(|bundle| *bundle == new).then_some(())
    });
    newcomers.end();
    assert_all(&load.end(), 403);
    assert_denied(&release.create_pod(&shop, "one", &json!({})), "not here");
    assert_eq!(restarts(release), before);
}
