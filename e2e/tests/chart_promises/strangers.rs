//! Clients that ask a loader for modules, but are not loaders of the installation: row H18.

use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use portcullis_e2e::{Issuer, Release};

use crate::certificates::Certificates;
use crate::stage::own_cluster;
use crate::tls::{Identity, connect};

/// The lifetime of the test's own certificate.
const HOUR: Duration = Duration::from_secs(3600);

/// Asserts that loaders of a release with siblings only answer clients with the certificate of the installation's loaders. In an existing
/// cluster, pods cannot be reached, and nothing is tried.
pub(crate) fn are_refused(release: &Release<'static>) {
    if own_cluster("fault_h18").is_none() {
        return;
    }
    let certificates = Certificates(release);
    let pair = |kind| Some((certificates.text(kind, "tls.crt"), certificates.text(kind, "tls.key")));
    let name = format!("siblings.{0}.{0}.portcullis", release.namespace());
    let known = ask(release, &name, pair("siblings")).expect("an answer to a loader");
    assert!(known.contains(" 404 "), "{known}");

    let [(_, certificate), (_, key), _] = Issuer::new("somebody else").issue_for(&name, HOUR);
    for (who, identity) in [
        ("nobody", None),
        ("an evaluator", pair("tls")),
        ("somebody of another authority with the right name", Some((certificate, key))),
    ] {
        let refused = ask(release, &name, identity).expect_err(who).to_string();
        assert!(
            ["alert", "reset", "pipe"].iter().any(|word| refused.to_lowercase().contains(word)),
            "{who}: {refused}"
        );
    }
}

/// The first line of a loader's answer to a request for a module that it does not have.
fn ask(release: &Release<'static>, name: &str, identity: Option<Identity>) -> io::Result<String> {
    let bundle = Certificates(release).text("siblings", "ca.crt");
    let mut stream = connect(&release.pods()[0], 8444, name, &bundle, identity.as_ref())?;
    let question = format!("GET /v1/modules/sha256:{:064} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 0);
    stream.write_all(question.as_bytes())?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if answer.is_empty() => Err(error),
        _ => Ok(String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()),
    }
}
