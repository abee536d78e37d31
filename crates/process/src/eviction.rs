//! Which connection is closed when a port has more than its limit. Pure; each port defines its priorities.
//!
//! One peer cannot take all connections: among those with the lowest priority, the ones of the peer that has the most of
//! them go first. But a peer is not limited while no other needs the room, since an installation may see all of its callers
//! at one address.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};

/// The length of the IPv6 prefix that one customer gets: a host with one address of such a network can use all of them.
const IPV6_NETWORK: u128 = u128::MAX << 64;

/// Where a connection comes from, for fairness between callers: an IPv4 address, or a /64 network of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(IpAddr);

impl Peer {
    /// The peer of an address. An IPv4 address that came over a socket for both families counts as IPv4.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & IPV6_NETWORK)),
            address => address,
        })
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(network) => write!(f, "{network}/64"),
        }
    }
}

/// A connection that may be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<K, S, M> {
    /// The caller's key for the connection.
    pub key: K,
    /// Where it comes from.
    pub peer: Peer,
    /// Connections with a lower priority go first, wherever they come from.
    pub priority: S,
    /// Among connections of one peer and priority, those with a lower rank go first.
    pub rank: M,
}

/// The keys of all candidates, in the order in which their connections go.
pub fn first_to_go<K, S, M>(mut candidates: Vec<Candidate<K, S, M>>) -> Vec<K>
where
    K: Copy + Ord,
    S: Copy + Ord,
    M: Copy + Ord,
{
    // A peer's best connection of a priority gets the number 0, the next best the number 1, and so on. The highest number
    // belongs to the peer that has the most of them.
    candidates.sort_unstable_by_key(|one| (one.peer, one.priority, Reverse((one.rank, one.key))));
    let mut number = 0_usize;
    let mut before = None;
    let mut order: Vec<_> = candidates
        .into_iter()
        .map(|one| {
            let group = Some((one.peer, one.priority));
            number = if before == group { number + 1 } else { 0 };
            before = group;
            (one.priority, Reverse(number), one.rank, one.key)
        })
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(_, _, _, key)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Peer {
        Peer::of(text.parse().expect("an address"))
    }

    /// The keys of the candidates, which are given as: the peer's last byte, priority, rank.
    fn order(candidates: &[(u8, u8, u32)]) -> Vec<usize> {
        let candidate = |(key, (peer, priority, rank)): (usize, &(u8, u8, u32))| Candidate {
            key,
            peer: Peer::of([10, 0, 0, *peer].into()),
            priority: *priority,
            rank: *rank,
        };
        first_to_go(candidates.iter().enumerate().map(candidate).collect())
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:1"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("10.0.0.1"), peer("10.0.0.2"));
        assert_eq!(peer("2001:db8::1").to_string(), "2001:db8::/64");
        assert_eq!(peer("10.0.0.1").to_string(), "10.0.0.1");
    }

    #[test]
    fn of_one_source_the_least_merit_goes_first() {
        assert_eq!(order(&[(1, 0, 5), (1, 0, 3), (1, 0, 4)]), [1, 2, 0]);
    }

    #[test]
    fn a_lower_standing_goes_first_whatever_its_source() {
        assert_eq!(order(&[(1, 1, 0), (1, 1, 1), (2, 0, 9)]), [2, 0, 1]);
    }

    #[test]
    fn the_source_with_most_connections_gives_way_to_the_others() {
        // Peer 1 has four, peer 2 has one that is worse than all of them, peer 3 has two.
        let found = order(&[(1, 0, 10), (1, 0, 11), (1, 0, 12), (1, 0, 13), (2, 0, 0), (3, 0, 1), (3, 0, 2)]);
        assert_eq!(found, [0, 1, 5, 2, 4, 6, 3]);
    }

    #[test]
    fn connections_of_another_standing_do_not_count_against_a_source() {
        // Peer 1 has many good connections and one bad one, peer 2 has two bad ones.
        assert_eq!(order(&[(1, 1, 0), (1, 1, 1), (1, 1, 2), (1, 0, 0), (2, 0, 5), (2, 0, 6)])[..2], [4, 3]);
    }

    #[test]
    fn of_equals_the_first_comer_goes_first() {
        assert_eq!(order(&[(1, 0, 0), (1, 0, 0), (1, 0, 0)]), [0, 1, 2]);
    }
}
