//! One request, hop by hop: which hosts may be asked, at which addresses, with which TLS settings, for how long.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::{AUTHORIZATION, LOCATION};
use http::{HeaderMap, Method};
use portcullis_contract::Reason;
use portcullis_util::lock;
use tokio::time::{Instant, timeout};
use url::{Host, Url};

use crate::hub::with_one_name_of_hub;
use crate::proxies::{Proxies, hosts_of_environment};
use crate::resolve::GuardedResolver;
use crate::tls::{self, Trust};
use crate::{FetchError, Guard, Receive, Sources, SourcesError, SourcesFile, WriteTime};

mod answer;

pub(crate) use answer::{failed, refused, slow};

/// Most redirects of one attempt.
const MAX_HOPS: usize = 5;
/// The time over which the rate of a body is measured.
const RATE_WINDOW: Duration = Duration::from_secs(10);
/// Most clients that are kept, one for each way of trusting servers.
const MAX_CLIENTS: usize = 32;

/// Limits of one attempt, and the hosts that it may ask.
#[derive(Debug, Clone)]
pub struct WebSettings {
    /// Longest time to the head of an answer, for each hop.
    pub header: Duration,
    /// Longest time of a whole attempt.
    pub total: Duration,
    /// Lowest accepted rate of a body, in bytes per second.
    pub lowest_rate: u64,
    /// A file of certificate authorities besides the system's; read again before each attempt. While it cannot be used, its last usable
    /// content counts.
    pub authorities: Option<PathBuf>,
    /// Hosts (`host` or `host:port`) that plain `http` is allowed for.
    pub plain_hosts: BTreeSet<String>,
    /// The addresses that are allowed; empty allows all. A pattern that ends in `*` is a prefix.
    pub allowed: Vec<String>,
    /// Which network addresses may be connected to.
    pub guard: Guard,
    /// `sources.yml`; read again before each attempt.
    pub sources: Option<SourcesFile>,
    /// The name server, if not the system's.
    pub name_server: Option<SocketAddr>,
    /// The `User-Agent`.
    pub user_agent: &'static str,
}

/// An HTTP client for sources.
pub struct Web {
    settings: WebSettings,
    resolver: GuardedResolver,
    clients: Mutex<Vec<(ClientKey, reqwest::Client)>>,
    /// The last usable content of `sources.yml`, or why there is none yet, and whether the file could be read at the last attempt.
    sources: Mutex<(Result<Arc<Sources>, SourcesError>, bool)>,
    /// The last usable content of the file of authorities, and whether the file could be used at the last attempt.
    authorities: Mutex<(Option<Vec<u8>>, bool)>,
}

/// The settings that a client was made with.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ClientKey {
    trust: Trust,
    proxies: Option<Proxies>,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// The HTTP method.
    pub method: Method,
    /// The address that is called.
    pub url: Url,
    /// Further headers. Credentials are not sent on to other hosts.
    pub headers: HeaderMap,
    /// A body, for pushes.
    pub body: Option<bytes::Bytes>,
    /// Where its redirects may lead.
    pub redirects: Redirects,
}

/// Where redirects may lead, except for the addresses that are closed to all requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirects {
    /// Addresses that modules may come from, because nothing but the address vouches for the content.
    Allowed,
    /// Any address: the answer is not a module, or its digest is known and checked. Registries keep their blobs on other hosts.
    Anywhere,
}

impl Request {
    /// A request `GET url`.
    pub fn get(url: Url) -> Self {
        Self { method: Method::GET, url, headers: HeaderMap::new(), body: None, redirects: Redirects::Allowed }
    }
}

/// `host` or `host:port` of an address.
pub fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// The repository in a path of a registry's API (OCI distribution specification 1.1, section "Endpoints").
fn repository_of(path: &str) -> Option<&str> {
    let path = path.strip_prefix("/v2/")?;
    ["/manifests/", "/blobs/", "/referrers/"].iter().find_map(|part| Some(&path[..path.rfind(part)?]))
}

/// An address as the lists of allowed addresses have it: without query and credentials.
pub fn address_of(url: &Url) -> String {
    format!("{}://{}{}", url.scheme(), host_of(url), url.path())
}

impl Web {
    /// A client with these settings. The first attempt makes its first HTTP client.
    pub fn new(settings: WebSettings) -> Self {
        let resolver = GuardedResolver::new(Arc::new(settings.guard.clone()), settings.name_server);
        let first = settings.sources.as_ref().map_or_else(|| Ok(Arc::default()), SourcesFile::first);
        // Who made the settings has said what is wrong with a file that cannot be used yet.
        let could_be_read = first.is_ok();
        let sources = Mutex::new((first, could_be_read));
        Self { settings, resolver, clients: Mutex::default(), sources, authorities: Mutex::default() }
    }

    /// The settings.
    pub fn settings(&self) -> &WebSettings {
        &self.settings
    }

    /// The current content of `sources.yml`. While the file cannot be read, the last content stays in use, at first that of the settings.
    ///
    /// # Errors
    /// `SourceNotAllowed` while the file could never be used: it is not known what it allows.
    pub fn sources(&self) -> Result<Arc<Sources>, FetchError> {
        let Some(file) = &self.settings.sources else { return Ok(Arc::default()) };
        let read = Sources::read(file.path());
        let mut known = lock(&self.sources);
        match read {
            Ok(sources) => {
                if !known.0.as_ref().is_ok_and(|known| **known == sources) {
                    known.0 = Ok(Arc::new(sources));
                }
                known.1 = true;
            }
            Err(error) => {
                if std::mem::replace(&mut known.1, false) {
                    tracing::warn!(%error, "the file of sources cannot be used; what it said before still counts");
                }
                if let Err(known) = &mut known.0 {
                    *known = error;
                }
            }
        }
        known.0.clone().map_err(|error| {
            let text = format!("--sources: {error}; nothing is fetched until this file can be used");
            FetchError::new(Reason::SourceNotAllowed, text)
        })
    }

    /// The authorities besides the system's, as PEM. While the file cannot be used, its last content stays in use.
    ///
    /// # Errors
    /// `TLSFailed` while the file could never be used.
    fn authorities(&self) -> Result<Option<Vec<u8>>, FetchError> {
        let Some(path) = &self.settings.authorities else { return Ok(None) };
        let read = tls::read_authorities(path);
        let mut known = lock(&self.authorities);
        let checked = read.and_then(|pem| {
            if known.0.as_ref() != Some(&pem) {
                tls::certificates_of(&pem)?;
            }
            Ok(pem)
        });
        match (checked, &known.0) {
            (Ok(pem), _) => *known = (Some(pem), true),
            (Err(error), None) => return Err(error),
            (Err(error), Some(_)) => {
                if std::mem::replace(&mut known.1, false) {
                    let problem = error.message;
                    tracing::warn!(problem, "the file of authorities cannot be used; what it held before still counts");
                }
            }
        }
        Ok(known.0.clone())
    }

    /// Whether a host may be asked over plain HTTP.
    pub fn is_plain(&self, host: &str) -> bool {
        self.settings.plain_hosts.contains(host) || self.sources().is_ok_and(|sources| sources.insecure.contains(host))
    }

    /// Checks whether modules may come from this address (`https://host/path`, `registry://host/repository`).
    ///
    /// # Errors
    /// `SourceNotAllowed`.
    pub fn check_allowed(&self, address: &str, host: &str) -> Result<(), FetchError> {
        let sources = self.sources()?;
        let address = with_one_name_of_hub(address);
        let matches = |pattern: &String| {
            let pattern = with_one_name_of_hub(pattern);
            match pattern.strip_suffix('*') {
                Some(prefix) => address.starts_with(prefix),
                None => address == pattern,
            }
        };
        for (patterns, setting) in [(&self.settings.allowed, "--allow-source"), (&sources.allowed, "sources.yml")] {
            if !patterns.is_empty() && !patterns.iter().any(matches) {
                let text = format!("{host} is not on the installation's list ({setting})");
                return Err(FetchError::new(Reason::SourceNotAllowed, text));
            }
        }
        Ok(())
    }

    /// Checks whether modules may come from the target of a redirect, either as a web address or as a repository of a
    /// registry.
    fn check_redirect(&self, to: &Url) -> Result<(), FetchError> {
        let host = host_of(to);
        let as_repository = || repository_of(to.path()).map(|repository| format!("registry://{host}/{repository}"));
        let allowed = self.check_allowed(&address_of(to), &host).or_else(|refused| match as_repository() {
            Some(address) => self.check_allowed(&address, &host),
            None => Err(refused),
        });
        allowed.map_err(|refused| {
            FetchError::new(refused.reason, format!("a redirect leads to {host}: {}", refused.message))
        })
    }

    /// Checks whether the address may be asked at all, as far as its text shows.
    ///
    /// # Errors
    /// `SourceNotAllowed`.
    pub fn check(&self, url: &Url) -> Result<(), FetchError> {
        let refused = |text: String| Err(FetchError::new(Reason::SourceNotAllowed, text));
        let host = host_of(url);
        match url.scheme() {
            "https" => {}
            "http" if self.is_plain(&host) => {}
            "http" => {
                return refused(format!("plain http is refused: use https, or allow it with --allow-http-host {host}"));
            }
            other => return refused(format!("the scheme {other:?} is not known")),
        }
        let ip = match url.host() {
            Some(Host::Ipv4(ip)) => ip.into(),
            Some(Host::Ipv6(ip)) => ip.into(),
            Some(Host::Domain(_)) => return Ok(()),
            None => return refused("the address has no host".to_owned()),
        };
        match self.settings.guard.judge(url.host_str().unwrap_or_default(), ip) {
            Ok(()) => Ok(()),
            Err(range) => {
                refused(format!("{host} is {range}: the installation can allow it with --allow-private {ip}"))
            }
        }
    }

    /// Sends a request and follows redirects. Any other answer is returned as it is.
    ///
    /// # Errors
    /// When no address may be asked, or none answers.
    pub async fn send(&self, request: &Request) -> Result<reqwest::Response, FetchError> {
        self.check(&request.url)?;
        let (mut url, mut headers) = (request.url.clone(), request.headers.clone());
        for number in 0..=MAX_HOPS {
            let host = host_of(&url);
            let client = self.client(&host)?;
            let mut builder = client.request(request.method.clone(), url.clone()).headers(headers.clone());
            if let Some(body) = &request.body {
                builder = builder.body(body.clone());
            }
            let answer = timeout(self.settings.header, builder.send()).await;
            let answer = answer.map_err(|_| slow(&host, "no answer", self.settings.header))?;
            let answer = answer.map_err(|error| failed(&host, error, false, number > 0))?;
            // 304 and similar statuses do not name a target.
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            if request.body.is_some() {
                return Err(FetchError::new(
                    Reason::RedirectRefused,
                    format!("{host} redirects a request that has a body"),
                ));
            }
            let next = self.redirected(&url, answer.headers())?;
            if request.redirects == Redirects::Allowed {
                self.check_redirect(&next)?;
            }
            if host_of(&next) != host {
                headers.remove(AUTHORIZATION);
            }
            url = next;
        }
        let text = format!("more than {MAX_HOPS} redirects, the last to {}", url.host_str().unwrap_or_default());
        Err(FetchError::new(Reason::RedirectRefused, text))
    }

    /// Sends `GET url`, and writes the body into `receive`.
    ///
    /// # Errors
    /// When the answer is not complete or not a success.
    pub async fn get(&self, url: &Url, receive: &mut impl Receive) -> Result<(), FetchError> {
        let answer = self.send(&Request::get(url.clone())).await?;
        let host = host_of(url);
        if !answer.status().is_success() {
            return Err(refused(&host, answer.status(), answer.headers()));
        }
        self.body(&host, answer, receive).await
    }

    /// Reads the body of an answer, which must not come too slowly.
    ///
    /// # Errors
    /// When it ends early, is too slow, or the receiver does not accept it.
    pub async fn body(
        &self,
        host: &str,
        mut answer: reqwest::Response,
        receive: &mut impl Receive,
    ) -> Result<(), FetchError> {
        if let Some(length) = answer.content_length() {
            receive.expect(length)?;
        }
        let written = receive.write_time();
        let (mut window, mut before, mut in_window) = (Instant::now(), written.so_far(), 0_u64);
        loop {
            let piece = timeout(RATE_WINDOW, answer.chunk()).await;
            let piece = piece.map_err(|_| slow(host, "the body stopped", RATE_WINDOW))?;
            let Some(piece) = piece.map_err(|error| failed(host, error, true, false))? else { return Ok(()) };
            in_window += piece.len() as u64;
            if window.elapsed().saturating_sub(written.so_far() - before) >= RATE_WINDOW {
                if in_window < self.settings.lowest_rate * RATE_WINDOW.as_secs() {
                    let text = format!("{host} sends less than {} bytes a second", self.settings.lowest_rate);
                    return Err(FetchError::new(Reason::RegistryTimeout, text));
                }
                (window, before, in_window) = (Instant::now(), written.so_far(), 0);
            }
            receive.write(&piece).await?;
        }
    }

    /// Runs an attempt within its time limit.
    ///
    /// # Errors
    /// The attempt's own error, or `RegistryTimeout`.
    pub async fn in_time<T>(
        &self,
        host: &str,
        attempt: impl Future<Output = Result<T, FetchError>>,
    ) -> Result<T, FetchError> {
        let total = self.settings.total;
        timeout(total, attempt).await.unwrap_or_else(|_| Err(not_whole(host, total)))
    }

    /// As [`Self::in_time`], but the time in which the receiver writes what has come does not count.
    ///
    /// # Errors
    /// The attempt's own error, or `RegistryTimeout`.
    pub async fn write_in_time<T>(
        &self,
        host: &str,
        written: &WriteTime,
        attempt: impl Future<Output = Result<T, FetchError>>,
    ) -> Result<T, FetchError> {
        let total = self.settings.total;
        written.timeout(total, attempt).await.unwrap_or_else(|| Err(not_whole(host, total)))
    }

    fn redirected(&self, from: &Url, headers: &HeaderMap) -> Result<Url, FetchError> {
        let refused = |text: String| FetchError::new(Reason::RedirectRefused, text);
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

    /// The client for a host.
    fn client(&self, host: &str) -> Result<reqwest::Client, FetchError> {
        let sources = self.sources()?;
        let trust = match sources.authorities.get(host) {
            _ if sources.insecure.contains(host) => Trust::Anybody,
            Some(authorities) => Trust::Only(authorities.clone()),
            None => Trust::System(self.authorities()?),
        };
        let key = ClientKey { trust, proxies: sources.proxies.clone() };
        let mut clients = lock(&self.clients);
        if let Some((_, client)) = clients.iter().find(|(with, _)| *with == key) {
            return Ok(client.clone());
        }
        let client = self.build(&key)?;
        if clients.len() >= MAX_CLIENTS {
            clients.remove(0);
        }
        clients.push((key, client.clone()));
        Ok(client)
    }

    fn build(&self, key: &ClientKey) -> Result<reqwest::Client, FetchError> {
        let failed = |error: reqwest::Error| {
            let text = format!("failed to set up the client: {}", error.without_url());
            FetchError::new(Reason::TLSFailed, text)
        };
        let mut builder = reqwest::Client::builder()
            .user_agent(self.settings.user_agent)
            .tls_backend_preconfigured(tls::config(&key.trust)?)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .connect_timeout(self.settings.header)
            .pool_idle_timeout(Duration::from_secs(30));
        let mut own = hosts_of_environment();
        if let Some(proxies) = &key.proxies {
            builder =
                proxies.for_client().map_err(failed)?.into_iter().fold(builder.no_proxy(), |b, proxy| b.proxy(proxy));
            own.extend(proxies.hosts());
        }
        builder.dns_resolver(Arc::new(self.resolver.with_own(own))).build().map_err(failed)
    }
}

fn not_whole(host: &str, total: Duration) -> FetchError {
    slow(host, "the module did not come whole", total)
}

#[cfg(test)]
mod tests;
