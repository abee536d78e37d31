//! External certificates, like those of cert-manager, and row H14.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_e2e::{
    Installation, InstallationOptions, Issuer, PodSetup, Program, eventually, eventually_within, never_lasting,
};
use serde_json::{Value, json};

use crate::secrets::{self, Secrets, bundles};
use crate::{ROTATION, cluster, denying, events, hurried};

/// Writes the Secret like cert-manager, with a certificate that has this much time left.
fn put(installation: &Installation<'_>, issuer: &Issuer, left: Duration) {
    let texts = issuer.issue(installation.namespace(), left);
    let data: serde_json::Map<String, Value> =
        texts.iter().map(|(key, text)| ((*key).to_owned(), STANDARD.encode(text).into())).collect();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": data,
        "metadata": { "name": secrets::name(installation, "external") },
    });
    let applied = installation.api().apply(&secrets::path(installation, "external"), "somebody-else", &secret);
    applied.unwrap().expect("the Secret");
}

fn external() -> PodSetup {
    hurried().flag(Program::Controller, "--certificates", "external")
}

#[test]
#[ignore = "starts a cluster"]
fn certificates_of_cert_manager_are_followed() {
    let installation = Installation::start(cluster(), InstallationOptions::named("external"));
    let (first, second) = (Issuer::new("the first one"), Issuer::new("the second one"));
    let month = Duration::from_secs(30 * 24 * 3600);
    put(&installation, &first, month);
    let controller = installation.start_controller_with(external());
    installation.add_replica();
    installation.wait_ready();
    let namespace = installation.make_namespace("shop");
    let (policy, text) = denying(&installation);
    installation.apply_ready(std::slice::from_ref(&policy));
    let create = || {
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "one" } });
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        installation.api().create(&path, &object).unwrap().body["message"].as_str().unwrap_or_default().to_owned()
    };
    assert!(create().contains(&text));
    let before = Secrets::of(&installation);
    assert_eq!(before.authority, "", "no authority is made");

    // Without a controller, webhooks cannot be made to trust another authority, so pods do not get its certificate.
    controller.stop(Program::Controller);
    put(&installation, &second, month);
    never_lasting(Duration::from_secs(2), "another certificate for the pods", || {
        Some(Secrets::of(&installation)).filter(|now| now.leaf != before.leaf)
    });
    controller.start(Program::Controller);
    let now = eventually("the pods' new certificate", || {
        // Webhooks are read after the Secret. It is written only once they trust both authorities, so they must trust both by now.
        let now = Some(Secrets::of(&installation)).filter(|now| now.leaf != before.leaf)?;
        let is_there = |bundle: &String| bundle.contains(&before.shown) && bundle.contains(&now.shown);
        assert!(bundles(&installation).iter().all(is_there), "both authorities are in every webhook");
        Some(now)
    });
    eventually_within(ROTATION, "the new authority alone", || {
        bundles(&installation).iter().all(|bundle| *bundle == now.shown).then_some(())
    });
    eventually("the policy's own denial", || create().contains(&text).then_some(()));
    installation.wait_for(&policy, "WebhookConfigured", "True");
    assert_eq!(Secrets::of(&installation), now, "nothing else is written");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_h14_a_certificate_near_its_end_is_told() {
    let installation = Installation::start(cluster(), InstallationOptions::named("ending"));
    let issuer = Issuer::new("somebody else");
    put(&installation, &issuer, Duration::from_secs(3600));
    let controller = installation.start_controller_with(external());
    let event = eventually("an event", || {
        events(&installation, &secrets::name(&installation, "external"), "CertificateExpiring").pop()
    });
    assert_eq!(
        (&event["type"], &event["reportingController"]),
        (&json!("Warning"), &json!("policies.portcullis.dev/controller"))
    );
    assert!(event["note"].as_str().unwrap().contains("has not been renewed"), "{event}");
    let series = "portcullis_controller_certificate_expiry_seconds{certificate=\"serving\"} ";
    let left = || {
        let (_, metrics) = controller.probe(Program::Controller, "/metrics")?;
        metrics.lines().find_map(|line| line.strip_prefix(series)?.parse::<i64>().ok())
    };
    let short = eventually("the time that is left", left);
    assert!((1..=3600).contains(&short), "{short}");

    // After the renewal, the metric is no longer low.
    put(&installation, &issuer, Duration::from_secs(100 * 24 * 3600));
    eventually("the renewed certificate", || left().filter(|left| *left > 3600));
}

#[test]
#[ignore = "starts a cluster"]
fn fault_h14_a_certificate_is_told_of_from_thirty_days_before_its_end_on() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let installation = Installation::start(cluster(), InstallationOptions::named("month"));
    let issuer = Issuer::new("somebody else");
    put(&installation, &issuer, 31 * DAY);
    installation.start_controller_with(external());
    let told = || events(&installation, &secrets::name(&installation, "external"), "CertificateExpiring").pop();
    eventually("the certificate for the pods", || (!Secrets::of(&installation).leaf.is_empty()).then_some(()));
    never_lasting(Duration::from_secs(5), "an event", told);
    put(&installation, &issuer, 29 * DAY);
    eventually("an event", told);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_h15_calls_fail_by_the_failure_policy_once_the_certificate_has_ended() {
    let installation = Installation::start(cluster(), InstallationOptions::named("ended"));
    installation.without_canary("API servers do not call a webhook whose certificate has ended");
    let (issuer, long) = (Issuer::new("somebody else"), Duration::from_secs(100 * 24 * 3600));
    put(&installation, &issuer, long);
    installation.start_controller_with(external());
    let pod = installation.add_replica();
    installation.wait_ready();
    let namespace = installation.make_namespace("shop");
    let (strict, text) = denying(&installation);
    let lenient = installation.cluster_policy("ended-lenient").denying("if it can").field("failurePolicy", "Ignore");
    installation.apply_ready(&[strict, lenient]);
    let create = || {
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "one" } });
        let path = format!("/api/v1/namespaces/{namespace}/configmaps?dryRun=All");
        let reply = installation.api().create(&path, &object).unwrap();
        (reply.code, reply.body["message"].as_str().unwrap_or_default().to_owned())
    };
    let health = || Some(pod.probe(Program::Evaluator, "/healthz/certificate")?.0);
    assert!(create().1.contains(&text) && installation.try_pod(&namespace).1.contains("if it can"));

    put(&installation, &issuer, Duration::from_secs(45));
    eventually("a health check that names the end", || (health()? == 500).then_some(()));
    // Connections that were opened before would go on.
    pod.kill(Program::Evaluator);
    let said = eventually("a call that meets the ended certificate", || {
        let (code, message) = create();
        assert!(code >= 500 && message.contains("failed calling webhook"), "{code} {message}");
        message.contains("certificate").then_some(message)
    });
    assert!(said.contains("expired"), "{said}");
    assert_eq!(installation.try_pod(&namespace).0, 201, "its webhook may be passed over");

    let before = pod.restarts(Program::Evaluator);
    put(&installation, &issuer, long);
    eventually("the policy's own denial", || create().1.contains(&text).then_some(()));
    eventually("the other policy's own denial", || {
        installation.try_pod(&namespace).1.contains("if it can").then_some(())
    });
    eventually("a health check that is good again", || (health()? == 200).then_some(()));
    assert_eq!(pod.restarts(Program::Evaluator), before);
}
