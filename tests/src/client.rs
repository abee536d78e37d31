//! An HTTP client like that of the API server: TLS with the certificate authority of the tests, HTTP/1.1, keep-alive.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use reqwest::Method;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::{Answer, Authority, Identity, Review};

/// A client with a pool of connections. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
}

fn runtime() -> &'static Runtime {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all().thread_name("clients").build().expect("a runtime")
    });
    &RUNTIME
}

impl Client {
    /// A client of `address` over TLS that trusts [`Authority::shared`].
    pub fn tls(address: SocketAddr) -> Self {
        Self::trusting(address, &Authority::shared().pem)
    }

    /// A client of `address` over TLS that trusts the certificates of a PEM bundle.
    ///
    /// # Panics
    /// When the bundle has no certificate.
    pub fn trusting(address: SocketAddr, bundle: &str) -> Self {
        Self::build(Self::common_trusting(bundle), format!("https://{address}"))
    }

    /// A client of `address` over TLS that presents a certificate.
    ///
    /// # Panics
    /// When certificate and key do not belong together.
    pub fn with_identity(address: SocketAddr, identity: &Identity) -> Self {
        let pem = format!("{}{}", identity.certificate, identity.key);
        let identity = reqwest::Identity::from_pem(pem.as_bytes()).expect("a pair");
        let builder = Self::common_trusting(&Authority::shared().pem).identity(identity);
        Self::build(builder, format!("https://{address}"))
    }

    /// A client of `address` over plain HTTP.
    pub fn plain(address: SocketAddr) -> Self {
        Self::build(Self::common().tls_certs_only([]), format!("http://{address}"))
    }

    fn common() -> reqwest::ClientBuilder {
        // It fails if a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        reqwest::Client::builder().no_proxy().http1_only().tcp_nodelay(true).timeout(Duration::from_secs(60))
    }

    fn common_trusting(bundle: &str) -> reqwest::ClientBuilder {
        let authorities = reqwest::Certificate::from_pem_bundle(bundle.as_bytes()).expect("a PEM bundle");
        Self::common().tls_certs_only(authorities)
    }

    fn build(builder: reqwest::ClientBuilder, base: String) -> Self {
        Self { http: builder.build().expect("an HTTP client"), base }
    }

    /// Sends a request. An error is a failure of transport: no connection, a reset, no answer within 60 s.
    ///
    /// # Errors
    /// The error and its causes, as text.
    pub async fn send(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Answer, String> {
        let start = Instant::now();
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let response = request.send().await.map_err(|error| causes(&error))?;
        let status = response.status().as_u16();
        let text = |value: &reqwest::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers: BTreeMap<_, _> =
            response.headers().iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
        let body = response.bytes().await.map_err(|error| causes(&error))?;
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(Answer { status, headers, body, elapsed: start.elapsed() })
    }

    /// Sends `GET path`.
    ///
    /// # Errors
    /// The same as those of [`Client::send`].
    pub fn get(&self, path: &str) -> Result<Answer, String> {
        runtime().block_on(self.send(Method::GET, path, None))
    }

    /// Sends `POST path` with any body, with the content type of JSON.
    ///
    /// # Errors
    /// The same as those of [`Client::send`].
    pub fn post(&self, path: &str, body: impl Into<Vec<u8>>) -> Result<Answer, String> {
        runtime().block_on(self.send(Method::POST, path, Some(body.into())))
    }

    /// Sends a review to policy `id`.
    ///
    /// # Errors
    /// The same as those of [`Client::send`].
    pub fn try_ask(&self, id: &str, review: &Review) -> Result<Answer, String> {
        self.post(&format!("/validate/{id}"), review.bytes())
    }

    /// Sends a review to policy `id`.
    ///
    /// # Panics
    /// When the request fails in transport.
    pub fn ask(&self, id: &str, review: &Review) -> Answer {
        self.try_ask(id, review).unwrap_or_else(|error| panic!("{id} does not answer: {error}"))
    }

    /// Sends `count` requests to policy `id` at the same moment, and waits for all answers.
    pub fn ask_at_once(&self, count: usize, id: &str, review: &Review) -> Vec<Result<Answer, String>> {
        self.post_at_once(count, &format!("/validate/{id}"), review)
    }

    /// The same with any path, such as that of a match group.
    pub fn post_at_once(&self, count: usize, path: &str, review: &Review) -> Vec<Result<Answer, String>> {
        let (path, body) = (path.to_owned(), review.bytes());
        runtime().block_on(async {
            let mut calls = JoinSet::new();
            for _ in 0..count {
                let (client, path, body) = (self.clone(), path.clone(), body.clone());
                calls.spawn(async move { client.send(Method::POST, &path, Some(body)).await });
            }
            calls.join_all().await
        })
    }

    /// Asks policy `id` from `callers` callers, each sending one request after the other, until `done` returns true. Passes
    /// every answer to `check`, which panics if it is wrong. Returns the number of answers.
    ///
    /// # Panics
    /// When `check` does.
    pub fn ask_until(
        &self,
        callers: usize,
        id: &str,
        review: &Review,
        check: impl Fn(Result<Answer, String>) + Sync,
        done: impl Fn() -> bool + Sync,
    ) -> usize {
        std::thread::scope(|scope| {
            let caller = || {
                let mut count = 0;
                while !done() {
                    check(self.try_ask(id, review));
                    count += 1;
                }
                count
            };
            let callers: Vec<_> = (0..callers).map(|_| scope.spawn(caller)).collect();
            callers.into_iter().map(|caller| caller.join().expect("every answer is right")).sum()
        })
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
