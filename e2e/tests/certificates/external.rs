//! Certificates that somebody else makes, as cert-manager does, and row H14.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portcullis_e2e::{Installation, InstallationOptions, PodSetup, Program, SERVICE, eventually, eventually_within};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use serde_json::json;

use crate::secrets::{self, Secrets, bundles};
use crate::{ROTATION, cluster, denying, events, hurried};

/// What cert-manager writes: a certificate that has this much time left of three times as much, by an authority of its own.
fn issued(namespace: &str, left: Duration) -> [(&'static str, String); 3] {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "somebody else");
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let mut params = CertificateParams::new(vec![format!("{SERVICE}.{namespace}.svc")]).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    params.not_before = date_time_ymd(1970, 1, 1) + (now - 2 * left - Duration::from_secs(60));
    params.not_after = date_time_ymd(1970, 1, 1) + now + left;
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    [("tls.crt", certificate), ("tls.key", key.serialize_pem()), ("ca.crt", authority)]
}

fn put(installation: &Installation<'_>, left: Duration) {
    let texts = issued(installation.namespace(), left);
    let texts: Vec<_> = texts.iter().map(|(key, text)| (*key, text.as_str())).collect();
    secrets::put(installation, "tls", &texts);
}

fn external() -> PodSetup {
    hurried().flag(Program::Controller, "--certificates", "external")
}

#[test]
#[ignore = "starts a cluster"]
fn certificates_of_cert_manager_are_followed() {
    let installation = Installation::start(cluster(), InstallationOptions::named("external").certified_by_the_test());
    installation.start_controller_with(external());
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

    put(&installation, Duration::from_secs(30 * 24 * 3600));
    let now = Secrets::of(&installation);
    eventually("both authorities in every webhook", || {
        let is_there = |bundle: &String| bundle.contains(&before.shown) && bundle.contains(&now.shown);
        bundles(&installation).iter().all(is_there).then_some(())
    });
    eventually_within(ROTATION, "the new authority alone", || {
        bundles(&installation).iter().all(|bundle| *bundle == now.shown).then_some(())
    });
    eventually("the policy's own denial", || create().contains(&text).then_some(()));
    installation.wait_for(&policy, "WebhookConfigured", "True");
    assert_eq!(Secrets::of(&installation), now, "nothing is written");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_h14_a_certificate_near_its_end_is_told() {
    let installation = Installation::start(cluster(), InstallationOptions::named("ending").certified_by_the_test());
    put(&installation, Duration::from_secs(3600));
    let controller = installation.start_controller_with(external());
    let event = eventually("an event", || {
        events(&installation, &secrets::name(&installation, "tls"), "CertificateExpiring").pop()
    });
    assert_eq!(
        (&event["type"], &event["reportingController"]),
        (&json!("Warning"), &json!("policies.portcullis.dev/controller"))
    );
    assert!(event["note"].as_str().unwrap().contains("was not renewed"), "{event}");
    let series = "portcullis_controller_certificate_expiry_seconds{certificate=\"serving\"} ";
    let (_, metrics) = controller.probe(Program::Controller, "/metrics").unwrap();
    let left = metrics.lines().find_map(|line| line.strip_prefix(series)?.parse::<i64>().ok()).unwrap();
    assert!((1..=3600).contains(&left), "{left}");

    // Renewed, nothing is told any more.
    put(&installation, Duration::from_secs(100 * 24 * 3600));
    eventually("the renewed certificate", || {
        let (_, metrics) = controller.probe(Program::Controller, "/metrics")?;
        let left = metrics.lines().find_map(|line| line.strip_prefix(series)?.parse::<i64>().ok())?;
        (left > 3600).then_some(())
    });
}
