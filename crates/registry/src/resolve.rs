//! Resolves names to addresses, and checks each before a connection is made to it.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::parse_resolv_conf;
use portcullis_util::lock;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::{Guard, Range};

/// The file that names the system's name servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Longest wait for one answer of a name server.
const PATIENCE: Duration = Duration::from_secs(3);

/// A host that was not asked because of its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{ip} is {range}")]
pub(crate) struct RefusedAddress {
    pub(crate) ip: IpAddr,
    pub(crate) range: Range,
}

/// A name that has no usable address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unresolved {
    /// The name server answers that the name does not exist.
    #[error("the name {0} is not known to the name server; is it spelled right?")]
    Unknown(String),
    /// The name server does not answer, or fails.
    #[error("the name {0} cannot be looked up now: {1}")]
    Failing(String, String),
}

/// Resolves names, and returns only addresses that may be connected to. The client connects to exactly these addresses, so
/// that an answer cannot change between check and connection.
#[derive(Clone)]
pub(crate) struct GuardedResolver {
    guard: Arc<Guard>,
    /// Names that the installation itself set, for instance its proxies.
    own: Arc<BTreeSet<String>>,
    inner: Arc<CurrentResolver>,
}

/// A resolver that is made again when the system names other name servers: a machine may have none yet when the program starts, and others
/// once it is in another network.
pub struct CurrentResolver {
    name_server: Option<SocketAddr>,
    file: PathBuf,
    options: fn(&mut ResolverOpts),
    /// The newest resolver, and the content of the file that it was made from.
    made: Mutex<Option<(Vec<u8>, TokioResolver)>>,
}

impl GuardedResolver {
    /// A resolver that asks `name_server`, or the system's name servers if it is `None`.
    pub(crate) fn new(guard: Arc<Guard>, name_server: Option<SocketAddr>) -> Self {
        Self { guard, own: Arc::default(), inner: Arc::new(CurrentResolver::new(name_server, options)) }
    }

    /// A resolver of names that the installation itself set, whose answers are cached for a second at most, whatever their own lifetime.
    pub(crate) fn fresh(own: BTreeSet<String>, name_server: Option<SocketAddr>) -> Self {
        let inner = CurrentResolver::new(name_server, |all| {
            options(all);
            all.positive_max_ttl = Some(Duration::from_secs(1));
        });
        Self { guard: Arc::default(), own: Arc::new(own), inner: Arc::new(inner) }
    }

    /// The same resolver, which does not check the addresses of these names.
    pub(crate) fn with_own(&self, own: BTreeSet<String>) -> Self {
        Self { own: Arc::new(own), ..self.clone() }
    }

    /// The addresses of a name, with port 0.
    pub(crate) async fn look_up(&self, name: &str) -> Result<Vec<SocketAddr>, Box<dyn Error + Send + Sync>> {
        let resolver = self.inner.get().map_err(|error| format!("no name server can be asked: {error}"))?;
        let found = resolver.lookup_ip(name).await.map_err(|error| match error.is_no_records_found() {
            true => Unresolved::Unknown(name.to_owned()),
            false => Unresolved::Failing(name.to_owned(), error.to_string()),
        })?;
        let found: Vec<IpAddr> = found.iter().collect();
        Ok(admit(&self.guard, name, &found, self.own.contains(name))?)
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.clone();
        Box::pin(async move {
            let addresses = resolver.look_up(name.as_str()).await?;
            let addresses: Addrs = Box::new(addresses.into_iter());
            Ok(addresses)
        })
    }
}

impl CurrentResolver {
    /// A resolver that asks `name_server`, or the system's name servers if it is `None`. `options` sets what shall differ from the system's
    /// settings.
    pub fn new(name_server: Option<SocketAddr>, options: fn(&mut ResolverOpts)) -> Self {
        Self { name_server, file: RESOLV_CONF.into(), options, made: Mutex::default() }
    }

    /// The resolver for now. It must be called within the runtime.
    ///
    /// # Errors
    /// When the system names no name server now.
    pub fn get(&self) -> Result<TokioResolver, NetError> {
        let content = if self.name_server.is_some() { Vec::new() } else { fs::read(&self.file)? };
        let mut made = lock(&self.made);
        if let Some((_, resolver)) = made.as_ref().filter(|(of, _)| *of == content) {
            return Ok(resolver.clone());
        }
        let (config, system) = match self.name_server {
            Some(address) => (only(address), ResolverOpts::default()),
            None => parse_resolv_conf(&content)?,
        };
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = system;
        (self.options)(builder.options_mut());
        let resolver = builder.build()?;
        *made = Some((content, resolver.clone()));
        Ok(resolver)
    }
}

/// The configuration of a resolver that asks one name server.
fn only(address: SocketAddr) -> ResolverConfig {
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    for connection in &mut server.connections {
        connection.port = address.port();
    }
    ResolverConfig::from_parts(None, Vec::new(), vec![server])
}

/// What differs from the system's settings for the names of sources.
fn options(options: &mut ResolverOpts) {
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.timeout = PATIENCE;
    // A name that does not exist now may exist at the next attempt.
    options.negative_max_ttl = Some(Duration::from_secs(1));
}

/// The addresses that may be connected to; an error if there are none.
fn admit(guard: &Guard, name: &str, found: &[IpAddr], is_own: bool) -> Result<Vec<SocketAddr>, RefusedAddress> {
    let (mut admitted, mut refused) = (Vec::new(), None);
    for &ip in found {
        match guard.judge(name, ip) {
            Err(range) if !is_own => refused = refused.or(Some(RefusedAddress { ip, range })),
            _ => admitted.push(SocketAddr::new(ip, 0)),
        }
    }
    match refused {
        Some(refused) if admitted.is_empty() => Err(refused),
        _ => Ok(admitted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x05_a_name_leads_nowhere_but_to_allowed_addresses() {
        let guard = Guard::default();
        let (public, inside): (IpAddr, IpAddr) = ([1, 1, 1, 1].into(), [10, 0, 0, 1].into());
        assert_eq!(admit(&guard, "a", &[inside, public], false), Ok(vec![SocketAddr::new(public, 0)]));
        let refused = RefusedAddress { ip: inside, range: Range::Private };
        assert_eq!(admit(&guard, "a", &[inside], false), Err(refused));
        assert_eq!(admit(&guard, "proxy", &[inside], true), Ok(vec![SocketAddr::new(inside, 0)]));
        assert_eq!(admit(&guard, "a", &[], false), Ok(Vec::new()));
    }

    #[tokio::test]
    async fn the_name_servers_are_those_that_the_system_names_now() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("resolv.conf");
        let current = CurrentResolver { file: file.clone(), ..CurrentResolver::new(None, options) };
        // The attempts show which content of the file the resolver was made from.
        let attempts = || current.get().ok().map(|resolver| resolver.options().attempts);
        assert_eq!(attempts(), None, "there is no file yet");
        for wanted in [7, 9] {
            fs::write(&file, "# not connected\n").expect("writes");
            assert_eq!(attempts(), None);
            fs::write(&file, format!("nameserver 192.0.2.1\noptions attempts:{wanted}\n")).expect("writes");
            assert_eq!([attempts(), attempts()], [Some(wanted); 2]);
        }
        let given = CurrentResolver { file, ..CurrentResolver::new(Some(([192, 0, 2, 3], 53).into()), options) };
        let attempts = given.get().expect("a resolver").options().attempts;
        assert_eq!(attempts, ResolverOpts::default().attempts, "the system's file is not read");
    }
}
