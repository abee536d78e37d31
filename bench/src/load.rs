//! Callers, each of which has one connection and sends the next request as soon as it has an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::join;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::report::Samples;

/// A server of the webhook protocol, which is asked over TLS.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// `host:port`.
    pub(crate) authority: String,
    /// The path, for instance `/validate/cluster/no-privileged`.
    pub(crate) path: String,
}

/// The results of callers.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// How long verdicts took.
    pub(crate) judged: Samples,
    /// How long refusals took.
    pub(crate) refused: Samples,
    /// How long other answers without a verdict took.
    pub(crate) failed: Samples,
    /// The number of calls without an AdmissionReview as answer.
    pub(crate) errors: usize,
    /// The duration of the load.
    pub(crate) time: Duration,
}

/// The meaning of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is a verdict.
    Judged,
    /// There is no verdict for now, for instance since the server has too many requests: code 503.
    Refused,
    /// There is no verdict for another reason, for instance since the policy's time was over: any other code from 500 on.
    Failed,
}

impl Outcome {
    /// The meaning of an answer's `response`.
    pub(crate) fn of(response: &Value) -> Self {
        match response["status"]["code"].as_u64() {
            Some(503) => Self::Refused,
            Some(500..) => Self::Failed,
            _ => Self::Judged,
        }
    }
}

impl Load {
    /// Adds a call.
    pub(crate) fn add(&mut self, answer: &anyhow::Result<Value>, took: Duration) {
        match answer.as_ref().map(Outcome::of) {
            Ok(Outcome::Judged) => self.judged.push(took),
            Ok(Outcome::Refused) => self.refused.push(took),
            Ok(Outcome::Failed) => self.failed.push(took),
            Err(_) => self.errors += 1,
        }
    }

    /// The number of answers of any kind.
    pub(crate) fn answers(&self) -> usize {
        self.judged.len() + self.refused.len() + self.failed.len()
    }

    /// The number of calls without a verdict.
    pub(crate) fn unjudged(&self) -> usize {
        self.refused.len() + self.failed.len() + self.errors
    }

    /// How many verdicts came each second.
    pub(crate) fn judged_per_second(&self) -> f64 {
        self.per_second(self.judged.len())
    }

    /// How many calls there were each second.
    pub(crate) fn sent_per_second(&self) -> f64 {
        self.per_second(self.answers() + self.errors)
    }

    fn per_second(&self, calls: usize) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "far fewer calls than a float has exact integers")]
        let calls = calls as f64;
        calls / self.time.as_secs_f64()
    }
}

impl Target {
    /// Opens a connection, with a task that reads and writes.
    pub(crate) async fn connect(&self) -> anyhow::Result<Connection> {
        let (connection, transport) = self.open().await?;
        tokio::spawn(transport);
        Ok(connection)
    }

    /// Opens a connection. The transport reads and writes, and ends with the connection.
    async fn open(&self) -> anyhow::Result<(Connection, impl Future<Output = ()> + Send + 'static)> {
        let stream =
            TcpStream::connect(&self.authority).await.with_context(|| format!("failed to reach {}", self.authority))?;
        stream.set_nodelay(true)?;
        let host = self.authority.rsplit_once(':').map_or("localhost", |(host, _)| host).to_owned();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(trust::any()?));
        let stream = connector.connect(ServerName::try_from(host)?, stream).await?;
        let (sender, transport) = http1::handshake(TokioIo::new(stream)).await?;
        let connection = Connection { sender, host: self.authority.clone(), path: self.path.clone() };
        // A request on a closed connection fails, and its error says why.
        Ok((connection, transport.map(drop)))
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
        let (target, body) = (self.clone(), body.clone());
        // All callers share one thread: none waits for another thread to wake up, and the server has more of the processors.
        let thread = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(target.callers(callers, &body, &stop, longest))
        });
        thread.await?
    }

    async fn callers(
        &self,
        callers: usize,
        body: &Bytes,
        stop: &Arc<AtomicBool>,
        longest: Option<Duration>,
    ) -> anyhow::Result<Load> {
        let mut connections = Vec::new();
        for _ in 0..callers {
            connections.push(self.open().await?);
        }
        let start = Instant::now();
        let tasks: Vec<_> = connections
            .into_iter()
            .map(|(mut connection, transport)| {
                let (body, stop) = (body.clone(), Arc::clone(stop));
                let calls = async move {
                    let mut load = Load::default();
                    while !stop.load(Ordering::Relaxed) && longest.is_none_or(|longest| start.elapsed() < longest) {
                        let begin = Instant::now();
                        let answer = connection.ask(body.clone()).await;
                        load.add(&answer, begin.elapsed());
                        if answer.is_err() {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                    }
                    load
                };
                // Both in one task, so that an answer is one step.
                tokio::spawn(async move { join(calls, transport).await.0 })
            })
            .collect();
        let mut all = Load::default();
        for task in tasks {
            let load = task.await?;
            all.judged.extend(load.judged);
            all.refused.extend(load.refused);
            all.failed.extend(load.failed);
            all.errors += load.errors;
        }
        all.time = start.elapsed();
        Ok(all)
    }
}

/// One open connection.
pub(crate) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    host: String,
    path: String,
}

impl Connection {
    /// Sends a review and returns the answer's `response`.
    pub(crate) async fn ask(&mut self, body: Bytes) -> anyhow::Result<Value> {
        let request = http::Request::post(&self.path)
            .header(http::header::HOST, &self.host)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        anyhow::ensure!(status.is_success(), "status {status}: {}", String::from_utf8_lossy(&body));
        let mut review: Value = serde_json::from_slice(&body)?;
        Ok(review["response"].take())
    }

    /// Whether the server has not closed it.
    pub(crate) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }
}

/// Accepts any certificate: a benchmark measures servers on its own machine, which are often self-signed.
pub(crate) mod trust {
    use std::sync::Arc;

    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

    pub(crate) fn any() -> Result<ClientConfig, Error> {
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
        let code = |code: u16| Outcome::of(&json!({"allowed": false, "status": {"message": "no", "code": code}}));
        assert_eq!([code(403), code(500), code(503)], [Outcome::Judged, Outcome::Failed, Outcome::Refused]);
        assert_eq!(Outcome::of(&json!({"allowed": true})), Outcome::Judged);
        assert_eq!(Outcome::of(&json!({"allowed": false, "auditAnnotations": {}})), Outcome::Judged);
    }

    #[test]
    fn calls_are_counted_by_their_outcome() {
        let mut load = Load { time: Duration::from_secs(2), ..Load::default() };
        let codes = [None, None, Some(403), Some(500), Some(503), Some(503)];
        for code in codes {
            load.add(&Ok(json!({"status": {"code": code}})), Duration::from_millis(1));
        }
        load.add(&Err(anyhow::anyhow!("no answer")), Duration::ZERO);
        assert_eq!((load.judged.len(), load.refused.len(), load.failed.len(), load.errors), (3, 2, 1, 1));
        assert_eq!((load.answers(), load.unjudged()), (6, 4));
        assert_eq!((load.judged_per_second(), load.sent_per_second()), (1.5, 3.5));
    }
}
