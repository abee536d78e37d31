//! Resolves names to addresses, and checks each before a connection is made to it.

use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{ResolverBuilder, TokioResolver};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::{Guard, Range};

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
    name_server: Option<SocketAddr>,
    /// Whether answers are cached for a second at most, whatever their own lifetime.
    is_fresh: bool,
    /// The resolver, which is made within the runtime.
    inner: Arc<OnceLock<Option<TokioResolver>>>,
}

impl GuardedResolver {
    /// A resolver that asks `name_server`, or the system's name servers if it is `None`.
    pub(crate) fn new(guard: Arc<Guard>, name_server: Option<SocketAddr>) -> Self {
        Self { guard, own: Arc::default(), name_server, is_fresh: false, inner: Arc::default() }
    }

    /// A resolver of names that the installation itself set, whose answers are cached for a second at most.
    pub(crate) fn fresh(own: BTreeSet<String>, name_server: Option<SocketAddr>) -> Self {
        Self { own: Arc::new(own), is_fresh: true, ..Self::new(Arc::default(), name_server) }
    }

    /// The same resolver, which does not check the addresses of these names.
    pub(crate) fn with_own(&self, own: BTreeSet<String>) -> Self {
        Self { own: Arc::new(own), ..self.clone() }
    }

    fn build(&self) -> Option<TokioResolver> {
        let mut builder = resolver(self.name_server).ok()?;
        let options = builder.options_mut();
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.timeout = PATIENCE;
        // A name that does not exist now may exist at the next attempt.
        options.negative_max_ttl = Some(Duration::from_secs(1));
        if self.is_fresh {
            options.positive_max_ttl = Some(Duration::from_secs(1));
        }
        builder.build().ok()
    }

    /// The addresses of a name, with port 0.
    pub(crate) async fn look_up(&self, name: &str) -> Result<Vec<SocketAddr>, Box<dyn Error + Send + Sync>> {
        let no_server = || io::Error::other("the system names no name server");
        let resolver = self.inner.get_or_init(|| self.build()).as_ref().ok_or_else(no_server)?;
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

/// The builder of a resolver that asks `name_server`, or the system's name servers if it is `None`.
///
/// # Errors
/// When the system's configuration cannot be read.
pub fn resolver(name_server: Option<SocketAddr>) -> Result<ResolverBuilder<TokioRuntimeProvider>, NetError> {
    let Some(address) = name_server else { return TokioResolver::builder_tokio() };
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    for connection in &mut server.connections {
        connection.port = address.port();
    }
    let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
    Ok(TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()))
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
}
