//! Section 9: a certificate that expires.

use std::time::Duration;

use portcullis_tests::{Authority, Client, Program, Review, eventually};

use crate::http::{DENIES, Server};

#[test]
fn fault_h15_a_certificate_that_ends_is_named_and_renewed_without_a_restart() {
    let server = Server::start();
    let address = server.pod.admission();
    let identity = |time| Authority::shared().ending_after(time, &[&address.ip().to_string()]);
    let health = || server.pod.probe(Program::Evaluator, "/healthz/certificate").expect("the probe port answers");
    let kept = Client::tls(address);
    assert!(!kept.ask(DENIES, &Review::pod()).verdict().allowed);
    assert!(health().status == 200 && health().body.starts_with("[+]certificate ok: it ends at "), "{:?}", health());

    server.folder.identify(&identity(Duration::from_secs(4)));
    eventually("the certificate to end", || (health().status == 500).then_some(()));
    assert!(health().body.starts_with("[-]certificate failed: it ended at "), "{:?}", health());
    let left = || server.pod.metric("portcullis_certificate_seconds_left");
    eventually("the metric to say so", || (left() <= 0.0).then_some(()));
    // New clients now refuse it, like an API server, for which the webhook's failurePolicy then applies.
    // A certificate is valid through the second in which it ends.
    eventually("a certificate that is refused because it has expired", || {
        let error = Client::tls(address).try_ask(DENIES, &Review::pod()).err()?;
        error.to_lowercase().contains("expired").then_some(())
    });
    // Existing connections still work, and the replica is neither restarted nor taken out of its Service.
    assert!(!kept.ask(DENIES, &Review::pod()).verdict().allowed);
    for path in ["/livez", "/readyz"] {
        // If the machine stands still, a program seems dead for a moment.
        eventually(path, || server.pod.probe(Program::Evaluator, path).ok().filter(|answer| answer.status == 200));
    }

    server.folder.identify(&identity(Duration::from_secs(3600)));
    eventually("the renewed certificate", || Client::tls(address).try_ask(DENIES, &Review::pod()).ok());
    assert_eq!(health().status, 200);
    server.finish();
}
