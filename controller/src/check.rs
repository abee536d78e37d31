//! Checks whether a fresh installation works: both Leases are renewed, and an evaluator answers at the Service with the certificate that
//! webhooks trust.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// How long to repeat each question until its answer is good. A fresh installation needs some of this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two tries.
const PACE: Duration = Duration::from_secs(2);
/// How long one connection may take.
const CALL: Duration = Duration::from_secs(5);

/// What is to be checked.
pub(crate) struct Check {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// The Leases of controller and reporters.
    pub(crate) leases: [String; 2],
    /// The Service and its port.
    pub(crate) service: String,
    pub(crate) port: u16,
    /// The file with the authority of its certificate (PEM).
    pub(crate) authority: PathBuf,
}

impl Check {
    /// Checks everything.
    ///
    /// # Errors
    /// The first thing that does not work, and what to look at.
    pub(crate) async fn run(&self) -> Result<()> {
        for lease in &self.leases {
            self.is_renewed(lease).await?;
            tracing::info!(lease, "is held and renewed");
        }
        self.answers().await?;
        tracing::info!(service = self.service, "an evaluator answers, with the certificate that webhooks trust");
        Ok(())
    }

    /// Waits until a Lease changes: one whose holder has died still names it.
    async fn is_renewed(&self, name: &str) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let start = Instant::now();
        let (mut before, mut last) = (None, format!("Lease {name} was not renewed"));
        while start.elapsed() < PATIENCE {
            match leases.get(name).await {
                Ok(lease) => {
                    let spec = lease.spec.unwrap_or_default();
                    let holder = spec.holder_identity.unwrap_or_default();
                    let now = (holder.clone(), spec.renew_time);
                    if !holder.is_empty() && before.as_ref().is_some_and(|before| *before != now) {
                        return Ok(());
                    }
                    last = format!("Lease {name} is not renewed; its last holder is {holder:?}");
                    before = Some(now);
                }
                Err(error) => last = format!("Lease {name}: {error}"),
            }
            tokio::time::sleep(PACE).await;
        }
        bail!("{last}: look at the pods of the namespace {}", self.namespace)
    }

    async fn answers(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            match self.answer().await {
                Ok(()) => return Ok(()),
                Err(error) if start.elapsed() > PATIENCE => {
                    return Err(error.context(format!("the Service {} does not answer as it should", self.service)));
                }
                Err(error) => tracing::debug!(error = format!("{error:#}"), "asking again"),
            }
            tokio::time::sleep(PACE).await;
        }
    }

    async fn answer(&self) -> Result<()> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        let service = services.get(&self.service).await.context("failed to read the Service")?;
        // API servers call this address too, without asking a name server.
        let address = service.spec.and_then(|spec| spec.cluster_ip).and_then(|address| address.parse::<IpAddr>().ok());
        let address = SocketAddr::new(address.context("it has no address")?, self.port);
        let (name, authority) = (format!("{}.{}.svc", self.service, self.namespace), self.authority.clone());
        let asked = tokio::task::spawn_blocking(move || ask(address, &name, &authority));
        asked.await.context("the task that asks ended early")?
    }
}

/// Asks once. Any HTTP response over a trusted TLS connection will do, as the path does not exist. So will the TLS alert that a client
/// certificate is required, since the server has shown its own certificate before.
fn ask(address: SocketAddr, host: &str, authority: &Path) -> Result<()> {
    let mut roots = RootCertStore::empty();
    let file = || format!("failed to read the authority {}", authority.display());
    for certificate in CertificateDer::pem_file_iter(authority).with_context(file)? {
        roots.add(certificate.with_context(file)?).with_context(file)?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = builder.with_safe_default_protocol_versions()?.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).context("the Service's name is not a DNS name")?;

    let stream = TcpStream::connect_timeout(&address, CALL).context("failed to connect")?;
    stream.set_read_timeout(Some(CALL))?;
    stream.set_write_timeout(Some(CALL))?;
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name)?, stream);
    write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").context("failed to agree on TLS")?;
    let mut head = [0; 9];
    match stream.read_exact(&mut head) {
        Err(error) if wants_certificate(&error) => return Ok(()),
        read => read.context("failed to read an answer")?,
    }
    ensure!(&head == b"HTTP/1.1 ", "the server there does not speak HTTP");
    Ok(())
}

fn wants_certificate(error: &io::Error) -> bool {
    let alert = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(alert, Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::{fs, thread};

    use rustls::pki_types::PrivateKeyDer;
    use rustls::server::WebPkiClientVerifier;
    use rustls::{ServerConfig, ServerConnection};

    use super::*;

    /// Starts a server that refuses clients without a certificate. Returns its address and its own certificate.
    fn strict_server() -> (SocketAddr, String) {
        let made = rcgen::generate_simple_self_signed(["a.b.svc".to_owned()]).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).expect("a key");
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(clients.build().expect("clients"))
            .with_single_cert(vec![made.cert.der().clone()], key)
            .expect("a configuration");
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            let config = Arc::new(config);
            for mut stream in listener.incoming().flatten() {
                let mut connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
                // The handshake ends with an alert to the client, which then hangs up.
                connection.complete_io(&mut stream).ok();
                io::copy(&mut stream, &mut io::sink()).ok();
            }
        });
        (address, made.cert.pem())
    }

    #[test]
    fn an_evaluator_that_answers_clients_with_a_certificate_only_is_known_by_its_own() {
        let (address, authority) = strict_server();
        let other = rcgen::generate_simple_self_signed(["a.b.svc".to_owned()]).expect("a certificate").cert.pem();
        let ask = |authority: &str| {
            let file = std::env::temp_dir().join(format!("portcullis-check-{}.pem", std::process::id()));
            fs::write(&file, authority).expect("writes");
            let asked = ask(address, "a.b.svc", &file);
            fs::remove_file(&file).expect("removes");
            asked
        };
        ask(&authority).expect("it has shown its certificate");
        ask(&other).expect_err("it is somebody else");
    }

    #[test]
    fn without_an_authority_nobody_is_trusted() {
        let folder = std::env::temp_dir();
        let error = ask(SocketAddr::from(([127, 0, 0, 1], 1)), "a.b.svc", &folder.join("no-such-file.pem"));
        let text = format!("{:#}", error.expect_err("there is no authority"));
        assert!(text.starts_with("failed to read the authority"), "{text}");
    }
}
