//! Certificates that the controller creates, and Secrets that it leaves alone.

use portcullis_e2e::{Installation, InstallationOptions, Program, eventually, never, never_lasting};
use std::time::Duration;

use crate::secrets::{self, Secrets};
use crate::{cluster, events, hurried, installation};

#[test]
#[ignore = "starts a cluster"]
fn an_installation_gets_its_certificates() {
    let installation = installation(cluster(), "made", 1, hurried());
    let made = Secrets::of(&installation);
    assert!(made.are_settled(), "{made:?}");
    let tls = installation.api().find(&secrets::path(&installation, "tls")).unwrap();
    assert_eq!(tls["type"], "kubernetes.io/tls");
    assert_eq!(tls["metadata"]["labels"]["app.kubernetes.io/managed-by"], "portcullis-controller");
    let ca = installation.api().find(&secrets::path(&installation, "ca")).unwrap();
    let key = secrets::text(&ca, "ca.key");
    assert!(key.contains("PRIVATE KEY") && !tls.to_string().contains("ca.key"), "the key of the authority stays there");

    let controller = &installation.pods()[0];
    let left = |which: &str| {
        let (_, metrics) = controller.probe(Program::Controller, "/metrics")?;
        let series = format!("portcullis_controller_certificate_expiry_seconds{{certificate=\"{which}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&*series)?.parse::<i64>().ok())
    };
    let day = 24 * 3600;
    let (ca, serving) = eventually("the times left", || Some((left("ca")?, left("serving")?)));
    assert!(ca > 364 * day && ca <= 365 * day, "{ca}");
    assert!(serving > 89 * day && serving <= 90 * day, "{serving}");

    // A deleted serving certificate is created again; nothing else changes.
    installation.api().delete(&secrets::path(&installation, "tls"), None).unwrap().expect("a deleted Secret");
    let again = eventually("another serving certificate", || {
        Some(Secrets::of(&installation)).filter(|now| now.are_settled() && now.leaf != made.leaf)
    });
    assert_eq!(again.authority, made.authority);

    // An unusable Secret is replaced, with an event, and the program neither ends nor logs the key.
    secrets::put(&installation, "ca", &[("ca.key", "noise")]);
    let replaced = eventually("another authority", || {
        Some(Secrets::of(&installation)).filter(|now| now.are_settled() && now.authority != made.authority)
    });
    assert_ne!(replaced.leaf, again.leaf);
    let event = eventually("an event", || {
        events(&installation, &secrets::name(&installation, "ca"), "CertificateInvalid").pop()
    });
    assert!(event["note"].as_str().unwrap().contains("`ca.key` is not a private key"), "{event:?}");
    assert_eq!(controller.restarts(Program::Controller), 0);
    let secret = key.lines().nth(1).unwrap();
    assert!(controller.program(Program::Controller).lines().iter().all(|line| !line.contains(secret)));
}

/// A Secret of that name that the controller did not create is not overwritten.
#[test]
#[ignore = "starts a cluster"]
fn a_secret_of_somebody_else_is_left_alone() {
    let installation = Installation::start(cluster(), InstallationOptions::named("strange").certified_by_the_test());
    let before = installation.api().find(&secrets::path(&installation, "tls")).unwrap();
    let controller = installation.start_controller_with(hurried());
    let event = eventually("an event", || {
        events(&installation, &secrets::name(&installation, "tls"), "CertificateInvalid").pop()
    });
    assert!(event["note"].as_str().unwrap().contains("somebody else made it"), "{event}");
    never_lasting(Duration::from_secs(2), "a change of the Secret", || {
        let now = installation.api().find(&secrets::path(&installation, "tls")).unwrap();
        (now["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]).then_some(now)
    });
    assert!(controller.program(Program::Controller).is_alive());
}

/// Two controllers that start at the same time create only one authority.
#[test]
#[ignore = "starts a cluster"]
fn two_controllers_make_one_authority() {
    let installation = Installation::start(cluster(), InstallationOptions::named("pair"));
    let controllers = [installation.start_controller_with(hurried()), installation.start_controller_with(hurried())];
    let made = eventually("certificates", || Some(Secrets::of(&installation)).filter(Secrets::are_settled));
    controllers[0].remove();
    never(Duration::from_secs(3), "another certificate", || {
        Some(Secrets::of(&installation)).filter(|now| *now != made)
    });
}
