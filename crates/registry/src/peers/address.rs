//! Where other loaders are, and which of them are asked.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// Most loaders that are asked for one thing.
const MOST: usize = 8;

/// Where other loaders are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerAddress {
    /// One loader, at this address.
    Address(SocketAddr),
    /// All addresses that this name has at the moment, like a headless Service's.
    Name {
        /// The host.
        host: String,
        /// The port of each.
        port: u16,
    },
}

/// A text that is not the address of a loader.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the address of a loader: want an address or a name with a port, like 10.0.0.7:8444 or siblings.portcullis.svc:8444"
)]
pub struct PeerAddressError(String);

impl FromStr for PeerAddress {
    type Err = PeerAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let wrong = || PeerAddressError(portcullis_contract::clean(text, 100));
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let is_name = host.len() <= 253 && host.bytes().all(is_inner) && host.bytes().any(|b| b.is_ascii_alphabetic());
        if is_name { Ok(Self::Name { host: host.to_owned(), port }) } else { Err(wrong()) }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// The loaders to ask, in this order: each once, without this one, and only a few. `start` says where to begin, so that not all
/// loaders ask the same one first.
pub(super) fn choose(found: Vec<SocketAddr>, own: &BTreeSet<SocketAddr>, start: u64) -> Vec<SocketAddr> {
    let unique: BTreeSet<SocketAddr> = found.into_iter().filter(|address| !own.contains(address)).collect();
    let mut others: Vec<SocketAddr> = unique.into_iter().collect();
    if let Ok(start) = usize::try_from(start % (others.len().max(1) as u64)) {
        others.rotate_left(start);
    }
    others.truncate(MOST);
    others
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u8) -> SocketAddr {
        ([10, 0, 0, number], 8444).into()
    }

    #[test]
    fn addresses_and_names_have_a_port() {
        assert_eq!("10.0.0.1:8444".parse(), Ok(PeerAddress::Address(at(1))));
        let name = PeerAddress::Name { host: "siblings.portcullis.svc.cluster.local".to_owned(), port: 8444 };
        assert_eq!("siblings.portcullis.svc.cluster.local:8444".parse(), Ok(name.clone()));
        assert_eq!(name.to_string().parse(), Ok(name));
        for wrong in ["", "siblings", "siblings:0", "siblings:70000", "a b:1", "10.0.0:1", ":1", "https://a:1"] {
            wrong.parse::<PeerAddress>().expect_err(wrong);
        }
    }

    #[test]
    fn a_loader_asks_a_few_others_and_never_itself() {
        let own = BTreeSet::from([at(2)]);
        assert_eq!(choose(vec![at(1), at(2), at(1), at(3)], &own, 0), [at(1), at(3)]);
        assert_eq!(choose(vec![at(1), at(2), at(3)], &own, 5), [at(3), at(1)]);
        assert_eq!(choose(vec![at(2)], &own, 7), []);
        assert_eq!(choose((1..100).map(at).collect(), &own, 3).len(), MOST);
    }
}
