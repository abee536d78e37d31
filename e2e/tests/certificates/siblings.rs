//! Loaders that give modules to each other, with certificates of an authority that certifies only loaders.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use portcullis_e2e::{Installation, PodSetup, Program, eventually, eventually_within};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::secrets::{self, Secrets};
use crate::{ROTATION, cluster, denying, hurried, installation};

/// A controller that certifies loaders too.
fn helping() -> PodSetup {
    hurried().env(Program::Controller, "PORTCULLIS_SIBLINGS", "true")
}

/// Asks a loader for a module that it does not have, as a client with the certificate of the Secret `kind` that trusts the authority of the
/// loaders. Returns the first line of the answer, or the error.
fn ask(installation: &Installation<'_>, loader: Ipv4Addr, kind: &str) -> Result<String, String> {
    let secret = installation.api().find(&secrets::path(installation, kind)).unwrap();
    let mut roots = RootCertStore::empty();
    let authority = Secrets::of_siblings(installation).shown;
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let chain = CertificateDer::from_pem_slice(secrets::text(&secret, "tls.crt").as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(secrets::text(&secret, "tls.key").as_bytes()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let config = builder.with_client_auth_cert(vec![chain], key).unwrap();
    let name = format!("siblings.{}.{}.portcullis", installation.policy_server(), installation.namespace());
    let connection = ClientConnection::new(Arc::new(config), ServerName::try_from(name).unwrap()).unwrap();
    let stream = TcpStream::connect(SocketAddr::from((loader, 8444))).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    let request = format!("GET /v1/modules/sha256:{:064} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 0);
    stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        Err(error) if answer.is_empty() => Err(error.to_string()),
        _ => answer.lines().next().map(str::to_owned).ok_or_else(|| "nothing".to_owned()),
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w12_loaders_have_an_authority_of_their_own_that_is_replaced_with_overlap() {
    let installation = installation(cluster(), "apart", 0, helping());
    let made = eventually("certificates for loaders", || {
        Some(Secrets::of_siblings(&installation)).filter(Secrets::are_settled)
    });
    let webhooks =
        eventually("certificates for webhooks", || Some(Secrets::of(&installation)).filter(Secrets::are_settled));
    assert!(made.authority != webhooks.authority && made.leaf != webhooks.leaf);
    for which in ["ca", "serving", "siblings-ca", "siblings"] {
        let series = format!("portcullis_controller_certificate_expiry_seconds{{certificate=\"{which}\"}} ");
        eventually(&series, || {
            let (_, metrics) = installation.pods()[0].probe(Program::Controller, "/metrics")?;
            metrics.contains(&series).then_some(())
        });
    }

    installation.api().delete(&secrets::path(&installation, "siblings-ca"), None).unwrap().expect("a deleted Secret");
    let during = eventually("another authority that loaders trust beside the old one", || {
        let now = Secrets::of_siblings(&installation);
        let is_shown = !now.authority.is_empty() && now.shown.contains(&now.authority);
        (now.previous == made.authority && is_shown && now.shown.contains(&made.authority)).then_some(now)
    });
    assert_eq!(during.leaf, made.leaf, "the old certificate stays until every loader can trust the new authority");
    let after = eventually_within(ROTATION, "the new authority alone", || {
        Some(Secrets::of_siblings(&installation)).filter(|now| now.are_settled() && now.authority != made.authority)
    });
    assert!(after.authority == during.authority && after.leaf != made.leaf);
    assert_eq!(Secrets::of(&installation), webhooks, "nothing of it touches the webhooks");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_k05_a_new_pod_gets_its_modules_from_another_while_their_source_is_away() {
    let installation = installation(cluster(), "siblings", 0, helping());
    installation.without_canary("one of the replicas can load nothing, and would answer a canary by its failurePolicy");
    // This pod may start before the certificates exist.
    let first = installation.add_replica_with(PodSetup::default().with_siblings(&[]));
    let (policy, _) = denying(&installation);
    installation.apply_ready(std::slice::from_ref(&policy));
    installation.source().close();
    let second = installation.add_replica_with(PodSetup::default().with_siblings(&[first.address()]));
    let health = format!("/healthz/policies/cluster/{}", policy.name());
    let serves =
        |pod: &portcullis_e2e::Pod| pod.loopback(Program::Evaluator, &health).is_some_and(|(code, _)| code == 200);
    eventually("the second pod to serve the policy", || serves(&second).then_some(()));

    // Both sides refuse certificates of another authority.
    eventually("an answer to a loader", || {
        ask(&installation, first.address(), "siblings").ok().map(|line| assert!(line.contains(" 404 "), "{line}"))
    });
    eventually("a refusal of the webhooks' certificate, which is no client's", || {
        // On a busy machine the connection may time out first.
        let refused = ask(&installation, first.address(), "tls").expect_err("nobody else is answered");
        ["alert", "reset", "pipe"].iter().any(|word| refused.to_lowercase().contains(word)).then_some(())
    });
    let setup = PodSetup::default().with_siblings(&[first.address(), second.address()]);
    let strange = second.folder().join("tls").display().to_string();
    let third = installation.add_replica_with(setup.flag(Program::Loader, "--siblings-tls-dir", strange));
    let cannot = eventually("the third pod's loader to fail", || {
        let (_, state) =
            third.loopback(Program::Loader, &format!("/healthz/sources/{}", installation.source().host()))?;
        (!state.is_empty() && state.contains("RegistryUnreachable")).then_some(state)
    });
    assert!(!serves(&third), "{cannot}");
    installation.source().open();
    eventually("the third pod to serve the policy", || serves(&third).then_some(()));
}
