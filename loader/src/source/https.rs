//! Modules from web servers: bounded in size, time and redirects.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::header::{LOCATION, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use portcullis_contract::Reason;
use tokio::time::{Instant, timeout};
use url::Url;

use super::{Reference, Sink, Source, SourceError, tls};

/// Most redirects of one attempt.
const MAX_HOPS: usize = 5;
/// Over how long the rate of a body is measured.
const RATE_WINDOW: Duration = Duration::from_secs(10);
/// Longest wait that a source can ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// What one attempt may take.
#[derive(Debug, Clone)]
pub struct WebLimits {
    /// Longest time to the head of an answer, each hop by itself.
    pub header: Duration,
    /// Longest time of the whole attempt.
    pub total: Duration,
    /// Lowest accepted rate of a body, in bytes a second.
    pub lowest_rate: u64,
    /// A file of certificate authorities beside the system's; read again before each attempt.
    pub authorities: Option<PathBuf>,
    /// Hosts (`host` or `host:port`) that plain `http` is allowed for.
    pub plain_hosts: BTreeSet<String>,
    /// What addresses are allowed; empty allows all. A pattern that ends in `*` is a prefix.
    pub allowed: Vec<String>,
}

/// Brings modules over the web.
pub(crate) struct WebSource {
    limits: WebLimits,
    /// The client, with the bytes of the authorities that it was made with.
    client: Mutex<Option<(Option<Vec<u8>>, reqwest::Client)>>,
}

impl WebSource {
    /// A source; the first attempt makes its client.
    pub(crate) fn new(limits: WebLimits) -> Self {
        Self { limits, client: Mutex::new(None) }
    }

    /// Why the address may not be asked at all.
    fn check(&self, url: &Url) -> Result<(), SourceError> {
        let refused = |text: String| Err(SourceError::new(Reason::SourceNotAllowed, text));
        let host = Reference::Web(url.clone()).host().unwrap_or_default();
        match url.scheme() {
            "https" => {}
            "http" if self.limits.plain_hosts.contains(&host) => {}
            "http" => {
                return refused(format!("plain http is refused: use https, or allow it with --allow-http-host {host}"));
            }
            other => return refused(format!("the scheme {other:?} is not known")),
        }
        let address = format!("{}://{host}{}", url.scheme(), url.path());
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => address.starts_with(prefix),
            None => address == *pattern,
        };
        if !self.limits.allowed.is_empty() && !self.limits.allowed.iter().any(matches) {
            return refused(format!("{host} is not on the installation's list (--allow-source)"));
        }
        Ok(())
    }

    fn client(&self) -> Result<reqwest::Client, SourceError> {
        let authorities = self.limits.authorities.as_deref().map(tls::read_authorities).transpose()?;
        let mut current = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((with, client)) = &*current
            && *with == authorities
        {
            return Ok(client.clone());
        }
        let client = reqwest::Client::builder()
            .user_agent(concat!("portcullis-loader/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(tls::config(authorities.as_deref())?)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .connect_timeout(self.limits.header)
            .pool_idle_timeout(Duration::from_secs(30))
            .build()
            .map_err(|error| {
                let text = format!("failed to set up the client: {}", error.without_url());
                SourceError::new(Reason::TLSFailed, text)
            })?;
        *current = Some((authorities, client.clone()));
        Ok(client)
    }

    async fn attempt(&self, url: &Url, sink: &mut Sink) -> Result<(), SourceError> {
        self.check(url)?;
        let client = self.client()?;
        let mut url = url.clone();
        for _ in 0..=MAX_HOPS {
            let host = Reference::Web(url.clone()).host().unwrap_or_default();
            let answer = timeout(self.limits.header, client.get(url.clone()).send()).await;
            let answer = answer.map_err(|_| slow(&host, "no answer", self.limits.header))?;
            let answer = answer.map_err(|error| failed(&host, error, Phase::Head))?;
            let status = answer.status();
            if status.is_success() {
                return self.body(&host, answer, sink).await;
            }
            if !status.is_redirection() {
                return Err(refused(&host, status, answer.headers()));
            }
            url = self.redirected(&url, answer.headers())?;
        }
        let text = format!("more than {MAX_HOPS} redirects, the last to {}", url.host_str().unwrap_or_default());
        Err(SourceError::new(Reason::RedirectRefused, text))
    }

    fn redirected(&self, from: &Url, headers: &HeaderMap) -> Result<Url, SourceError> {
        let refused = |text: String| SourceError::new(Reason::RedirectRefused, text);
        let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
        let to = location.and_then(|location| from.join(location).ok());
        let to = to.ok_or_else(|| refused("a redirect without a usable address".to_owned()))?;
        let host = to.host_str().unwrap_or_default();
        if from.scheme() == "https" && to.scheme() != "https" {
            return Err(refused(format!("a redirect from https to {}://{host}", to.scheme())));
        }
        if !to.username().is_empty() || to.password().is_some() {
            return Err(refused(format!("a redirect to {host} with credentials")));
        }
        self.check(&to).map_err(|error| refused(format!("a redirect to {host}: {}", error.message)))?;
        Ok(to)
    }

    async fn body(&self, host: &str, mut answer: reqwest::Response, sink: &mut Sink) -> Result<(), SourceError> {
        if let Some(length) = answer.content_length() {
            sink.expect(length)?;
        }
        let (mut window, mut in_window) = (Instant::now(), 0_u64);
        loop {
            let piece = timeout(RATE_WINDOW, answer.chunk()).await;
            let piece = piece.map_err(|_| slow(host, "the body stopped", RATE_WINDOW))?;
            let Some(piece) = piece.map_err(|error| failed(host, error, Phase::Body))? else { return Ok(()) };
            in_window += piece.len() as u64;
            if window.elapsed() >= RATE_WINDOW {
                if in_window < self.limits.lowest_rate * RATE_WINDOW.as_secs() {
                    let text = format!("{host} sends less than {} bytes a second", self.limits.lowest_rate);
                    return Err(SourceError::new(Reason::RegistryTimeout, text));
                }
                (window, in_window) = (Instant::now(), 0);
            }
            sink.write(&piece).await?;
        }
    }
}

impl Source for WebSource {
    fn fetch<'a>(&'a self, module: &'a Reference, sink: &'a mut Sink) -> BoxFuture<'a, Result<(), SourceError>> {
        async move {
            let Reference::Web(url) = module else {
                return Err(SourceError::new(Reason::SourceNotAllowed, "the module is no web address"));
            };
            let host = module.host().unwrap_or_default();
            let attempt = timeout(self.limits.total, self.attempt(url, sink)).await;
            attempt.map_err(|_| slow(&host, "the module did not come whole", self.limits.total))?
        }
        .boxed()
    }
}

enum Phase {
    Head,
    Body,
}

fn slow(host: &str, what: &str, after: Duration) -> SourceError {
    SourceError::new(Reason::RegistryTimeout, format!("{host}: {what} for {} s", after.as_secs_f64()))
}

/// A transport error, by its kind.
fn failed(host: &str, error: reqwest::Error, phase: Phase) -> SourceError {
    // The URL may hold a query that is nobody's business.
    let error = error.without_url();
    if let Some(cause) = tls::find(&error) {
        let text = format!("{host}: {}: {cause}", tls::explain(cause));
        return SourceError::new(Reason::TLSFailed, text);
    }
    let cause = innermost(&error);
    match phase {
        _ if error.is_timeout() => SourceError::new(Reason::RegistryTimeout, format!("{host}: no connection in time")),
        Phase::Head => SourceError::new(Reason::RegistryUnreachable, format!("failed to reach {host}: {cause}")),
        Phase::Body => SourceError::new(Reason::BlobTruncated, format!("{host}: the body ended early: {cause}")),
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// An answer that is no module.
fn refused(host: &str, status: StatusCode, headers: &HeaderMap) -> SourceError {
    let retry_after = headers.get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?));
    let (reason, text) = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            (Reason::Unauthorized, "refuses to give the module")
        }
        StatusCode::NOT_FOUND | StatusCode::GONE => (Reason::NotFound, "has no such module"),
        StatusCode::TOO_MANY_REQUESTS => (Reason::RegistryThrottled, "asks to come back later"),
        StatusCode::REQUEST_TIMEOUT => (Reason::RegistryTimeout, "waited in vain for the request"),
        _ if status.is_server_error() && retry_after.is_some() => {
            (Reason::RegistryThrottled, "asks to come back later")
        }
        _ if status.is_server_error() => (Reason::RegistryServerError, "has a fault of its own"),
        _ => (Reason::NotFound, "gives no module"),
    };
    let mut error = SourceError::new(reason, format!("{host} {text} (status {})", status.as_u16()));
    error.retry_after = retry_after;
    error
}

/// Seconds, or a date of HTTP.
fn retry_after(value: &str) -> Option<Duration> {
    let wait = match value.trim().parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = jiff::fmt::rfc2822::parse(value.trim()).ok()?.timestamp();
            Duration::try_from(date.duration_since(Timestamp::now())).unwrap_or_default()
        }
    };
    Some(wait.min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(change: impl FnOnce(&mut WebLimits)) -> WebSource {
        let mut limits = WebLimits {
            header: Duration::from_secs(1),
            total: Duration::from_secs(1),
            lowest_rate: 1024,
            authorities: None,
            plain_hosts: BTreeSet::new(),
            allowed: Vec::new(),
        };
        change(&mut limits);
        WebSource::new(limits)
    }

    fn check(source: &WebSource, url: &str) -> Result<(), Reason> {
        source.check(&Url::parse(url).expect("a URL")).map_err(|error| error.reason)
    }

    #[test]
    fn plain_http_only_where_it_is_allowed() {
        let source = source(|limits| limits.plain_hosts = BTreeSet::from(["127.0.0.1:8080".into()]));
        assert_eq!(check(&source, "http://127.0.0.1:8080/a"), Ok(()));
        assert_eq!(check(&source, "http://127.0.0.1:8081/a"), Err(Reason::SourceNotAllowed));
        assert_eq!(check(&source, "https://example.com/a"), Ok(()));
    }

    #[test]
    fn l23_a_list_of_sources_limits_them() {
        let source = source(|limits| limits.allowed = vec!["https://example.com/policies/*".into()]);
        assert_eq!(check(&source, "https://example.com/policies/a.wasm?x=1"), Ok(()));
        assert_eq!(check(&source, "https://example.com.evil.org/policies/a"), Err(Reason::SourceNotAllowed));
        assert_eq!(check(&source, "https://example.com/other"), Err(Reason::SourceNotAllowed));
    }

    #[test]
    fn l15_redirects_to_less_are_refused() {
        let source = source(|limits| limits.plain_hosts = BTreeSet::from(["a".into()]));
        let redirected = |from: &str, to: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, http::HeaderValue::from_static(to));
            source.redirected(&Url::parse(from).expect("a URL"), &headers).map(|url| url.to_string())
        };
        assert_eq!(redirected("https://a/b/c", "../d").as_deref(), Ok("https://a/d"));
        for to in ["http://a/b", "ftp://a/b", "https://u:p@a/b", "http://"] {
            assert_eq!(redirected("https://a/b", to).expect_err(to).reason, Reason::RedirectRefused);
        }
    }

    #[test]
    fn statuses_have_their_reasons() {
        let reason =
            |status: u16| refused("h", StatusCode::from_u16(status).expect("a status"), &HeaderMap::new()).reason;
        for (status, expected) in [
            (401, Reason::Unauthorized),
            (403, Reason::Unauthorized),
            (404, Reason::NotFound),
            (429, Reason::RegistryThrottled),
            (500, Reason::RegistryServerError),
            (502, Reason::RegistryServerError),
            (503, Reason::RegistryServerError),
            (504, Reason::RegistryServerError),
        ] {
            assert_eq!(reason(status), expected, "{status}");
        }
    }

    #[test]
    fn l05_retry_after_is_seconds_or_a_date() {
        assert_eq!(retry_after("7"), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("999999999"), Some(LONGEST_RETRY_AFTER));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert_eq!(retry_after("soon"), None);
    }
}
