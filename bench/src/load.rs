//! Callers, each of which has one connection and sends the next request as soon as it has an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::report::Samples;

/// A server of the webhook protocol.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// `https` or `http`.
    pub(crate) tls: bool,
    /// `host:port`.
    pub(crate) authority: String,
    /// The path, for instance `/validate/cluster/no-privileged`.
    pub(crate) path: String,
}

/// The results of callers.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// How long each answer took.
    pub(crate) latency: Samples,
    /// The number of calls without an AdmissionReview as answer.
    pub(crate) errors: usize,
    /// The duration of the load.
    pub(crate) time: Duration,
}

impl Load {
    /// How many answers came each second.
    pub(crate) fn per_second(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "far fewer calls than a float has exact integers")]
        let answers = self.latency.len() as f64;
        answers / self.time.as_secs_f64()
    }
}

impl Target {
    /// A target from a URL.
    pub(crate) fn parse(url: &str) -> anyhow::Result<Self> {
        let uri: http::Uri = url.parse().with_context(|| format!("{url} is no URL"))?;
        let authority = uri.authority().with_context(|| format!("{url} names no host"))?;
        let tls = uri.scheme_str() == Some("https");
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { tls, authority: format!("{}:{port}", authority.host()), path: uri.path().to_owned() })
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<Connection> {
        let stream =
            TcpStream::connect(&self.authority).await.with_context(|| format!("failed to reach {}", self.authority))?;
        stream.set_nodelay(true)?;
        let sender = if self.tls {
            let host = self.authority.rsplit_once(':').map_or("localhost", |(host, _)| host).to_owned();
            let connector = tokio_rustls::TlsConnector::from(Arc::new(trust::any()?));
            handshake(connector.connect(ServerName::try_from(host)?, stream).await?).await?
        } else {
            handshake(stream).await?
        };
        Ok(Connection { sender, host: self.authority.clone(), path: self.path.clone() })
    }

    /// Runs `callers` callers for `time`.
    pub(crate) async fn load(&self, callers: usize, time: Duration, body: &Bytes) -> anyhow::Result<Load> {
        self.load_until(callers, body, Arc::default(), Some(time)).await
    }

    /// Runs `callers` callers until `stop` is set or `longest` is over.
    pub(crate) async fn load_until(
        &self,
        callers: usize,
        body: &Bytes,
        stop: Arc<AtomicBool>,
        longest: Option<Duration>,
    ) -> anyhow::Result<Load> {
        let mut connections = Vec::new();
        for _ in 0..callers {
            connections.push(self.connect().await?);
        }
        let start = Instant::now();
        let tasks: Vec<_> = connections
            .into_iter()
            .map(|mut connection| {
                let (body, stop) = (body.clone(), Arc::clone(&stop));
                tokio::spawn(async move {
                    let mut load = Load::default();
                    while !stop.load(Ordering::Relaxed) && longest.is_none_or(|longest| start.elapsed() < longest) {
                        let begin = Instant::now();
                        match connection.ask(body.clone()).await {
                            Ok(_) => load.latency.push(begin.elapsed()),
                            Err(_) => {
                                load.errors += 1;
                                tokio::time::sleep(Duration::from_millis(10)).await;
                            }
                        }
                    }
                    load
                })
            })
            .collect();
        let mut all = Load::default();
        for task in tasks {
            let load = task.await?;
            all.latency.extend(load.latency);
            all.errors += load.errors;
        }
        all.time = start.elapsed();
        Ok(all)
    }
}

/// Whether a response is a verdict. Where a server could not get one, the code is 500 or more.
pub(crate) fn is_judged(response: &serde_json::Value) -> bool {
    response["status"]["code"].as_u64().is_none_or(|code| code < 500)
}

/// One open connection.
pub(crate) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    host: String,
    path: String,
}

impl Connection {
    /// Sends a review and returns the answer's `response`.
    pub(crate) async fn ask(&mut self, body: Bytes) -> anyhow::Result<serde_json::Value> {
        let request = http::Request::post(&self.path)
            .header(http::header::HOST, &self.host)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        anyhow::ensure!(status.is_success(), "status {status}: {}", String::from_utf8_lossy(&body));
        let mut review: serde_json::Value = serde_json::from_slice(&body)?;
        Ok(review["response"].take())
    }
}

async fn handshake<S>(stream: S) -> anyhow::Result<http1::SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Accepts any certificate: a benchmark measures servers on its own machine, which are often self-signed.
mod trust {
    use std::sync::Arc;

    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

    pub(super) fn any() -> Result<ClientConfig, Error> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Any(provider)))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }

    #[derive(Debug)]
    struct Any(Arc<CryptoProvider>);

    impl ServerCertVerifier for Any {
        fn verify_server_cert(
            &self,
            _end_entity: &CertificateDer<'_>,
            _intermediates: &[CertificateDer<'_>],
            _server_name: &ServerName<'_>,
            _ocsp_response: &[u8],
            _now: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_denial_is_a_verdict_and_a_failure_is_not() {
        assert!(is_judged(&json!({"allowed": true})));
        assert!(is_judged(&json!({"allowed": false, "auditAnnotations": {"generation": "1"}})));
        assert!(is_judged(&json!({"allowed": false, "status": {"message": "no", "code": 403}})));
        assert!(!is_judged(&json!({"allowed": false, "status": {"message": "policy a: Overloaded: …", "code": 503}})));
    }
}
