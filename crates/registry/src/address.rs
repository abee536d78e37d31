//! Which addresses the client may connect to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Why an address does not belong to the public network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Range {
    /// This machine.
    Loopback,
    /// A link-local address, where clouds have their metadata service.
    LinkLocal,
    /// A private network.
    Private,
    /// Multicast, broadcast, unspecified, reserved, or a cloud's own services.
    Special,
}

/// A text that is neither a network nor a host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a network like 10.0.0.0/8, nor an address, nor a host name")]
pub struct AllowedError(String);

/// What the installation allows besides public addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// Addresses, as a network in CIDR form.
    Net(IpAddr, u8),
    /// Any address that this name resolves to.
    Host(String),
}

/// Judges addresses. Public addresses pass, others only if they are allowed.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    allowed: Vec<Allowed>,
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "a loopback address",
            Self::LinkLocal => "a link-local address, as those of cloud metadata",
            Self::Private => "an address of a private network",
            Self::Special => "an address of a special range",
        })
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(ip, bits) => write!(f, "{ip}/{bits}"),
            Self::Host(name) => f.write_str(name),
        }
    }
}

impl FromStr for Allowed {
    type Err = AllowedError;

    fn from_str(text: &str) -> Result<Self, AllowedError> {
        let wrong = || AllowedError(text.to_owned());
        if let Some((ip, bits)) = text.split_once('/') {
            let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
            let bits: u8 = bits.parse().map_err(|_| wrong())?;
            return if bits <= width(ip) { Ok(Self::Net(ip, bits)) } else { Err(wrong()) };
        }
        if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(Self::Net(ip, width(ip)));
        }
        let is_name =
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if is_name { Ok(Self::Host(text.to_ascii_lowercase())) } else { Err(wrong()) }
    }
}

impl Guard {
    /// A guard that lets these through, besides public addresses.
    pub fn new(allowed: Vec<Allowed>) -> Self {
        Self { allowed }
    }

    /// Checks whether `host` may be asked at `ip`, which it resolved to.
    ///
    /// # Errors
    /// The range of the address, if that is not allowed.
    pub fn judge(&self, host: &str, ip: IpAddr) -> Result<(), Range> {
        let ip = plain(ip);
        let Some(range) = range_of(ip) else { return Ok(()) };
        let is_allowed = self.allowed.iter().any(|allowed| match allowed {
            Allowed::Net(net, bits) => contains(*net, *bits, ip),
            Allowed::Host(name) => name.eq_ignore_ascii_case(host),
        });
        if is_allowed { Ok(()) } else { Err(range) }
    }
}

fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn contains(net: IpAddr, bits: u8, ip: IpAddr) -> bool {
    let same = |a: u128, b: u128, width: u8| {
        width == 0 || (a ^ b).checked_shr(u32::from(width - bits)) == Some(0) || bits == 0
    };
    match (net, ip) {
        (IpAddr::V4(net), IpAddr::V4(ip)) => same(u128::from(net.to_bits()), u128::from(ip.to_bits()), 32),
        (IpAddr::V6(net), IpAddr::V6(ip)) => same(net.to_bits(), ip.to_bits(), 128),
        _ => false,
    }
}

/// The IPv4 address inside an IPv6 one that routes to it: mapped, compatible, NAT64, 6to4.
fn plain(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    let segments = v6.segments();
    let v4 = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    match segments {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        _ => ip,
    }
}

/// The range that an address is in; `None` for a public address.
fn range_of(ip: IpAddr) -> Option<Range> {
    match ip {
        IpAddr::V4(ip) => range_of_v4(ip),
        IpAddr::V6(ip) => range_of_v6(ip),
    }
}

fn range_of_v4(ip: Ipv4Addr) -> Option<Range> {
    let [a, b, c, _] = ip.octets();
    // A cloud's own services that have a public address.
    const CLOUD: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_special = a == 0
        || a >= 224
        || ip == CLOUD
        || (a == 192 && b == 0 && (c == 0 || c == 2))
        || (a == 198 && (b == 18 || b == 19 || (b == 51 && c == 100)))
        || (a == 203 && b == 0 && c == 113);
    if ip.is_loopback() {
        Some(Range::Loopback)
    } else if ip.is_link_local() {
        Some(Range::LinkLocal)
    } else if ip.is_private() || is_shared {
        Some(Range::Private)
    } else {
        is_special.then_some(Range::Special)
    }
}

fn range_of_v6(ip: Ipv6Addr) -> Option<Range> {
    let [first, second, ..] = ip.segments();
    if ip.is_loopback() {
        Some(Range::Loopback)
    } else if ip.is_unicast_link_local() || (first & 0xffc0) == 0xfec0 {
        Some(Range::LinkLocal)
    } else if ip.is_unique_local() {
        Some(Range::Private)
    } else {
        // Addresses outside global unicast, and those for documentation, discard, Teredo and other tunnels.
        let is_special = (first & 0xe000) != 0x2000 || (first == 0x2001 && (second < 0x200 || second == 0xdb8));
        is_special.then_some(Range::Special)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(allowed: &[&str], ip: &str) -> Option<Range> {
        let allowed = allowed.iter().map(|text| text.parse().expect(text)).collect();
        Guard::new(allowed).judge("registry.example", ip.parse().expect(ip)).err()
    }

    #[test]
    fn x05_what_is_not_public_is_refused_in_every_form() {
        for (ip, range) in [
            ("127.0.0.1", Range::Loopback),
            ("127.255.0.3", Range::Loopback),
            ("::1", Range::Loopback),
            ("::ffff:127.0.0.1", Range::Loopback),
            ("64:ff9b::7f00:1", Range::Loopback),
            ("2002:7f00:1::", Range::Loopback),
            ("169.254.169.254", Range::LinkLocal),
            ("::ffff:169.254.169.254", Range::LinkLocal),
            ("fe80::1", Range::LinkLocal),
            ("10.0.0.1", Range::Private),
            ("172.16.0.1", Range::Private),
            ("172.31.255.255", Range::Private),
            ("192.168.1.1", Range::Private),
            ("100.100.100.200", Range::Private),
            ("fd00:ec2::254", Range::Private),
            ("::ffff:10.0.0.1", Range::Private),
            ("0.0.0.0", Range::Special),
            ("::", Range::Special),
            ("224.0.0.1", Range::Special),
            ("255.255.255.255", Range::Special),
            ("168.63.129.16", Range::Special),
            ("ff02::1", Range::Special),
            ("2001::1", Range::Special),
        ] {
            assert_eq!(judge(&[], ip), Some(range), "{ip}");
        }
        for ip in ["1.1.1.1", "140.82.112.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert_eq!(judge(&[], ip), None, "{ip}");
        }
    }

    #[test]
    fn what_is_allowed_passes() {
        assert_eq!(judge(&["10.0.0.0/8"], "10.200.0.1"), None);
        assert_eq!(judge(&["10.0.0.0/8"], "::ffff:10.200.0.1"), None);
        assert_eq!(judge(&["10.0.0.0/8"], "192.168.0.1"), Some(Range::Private));
        assert_eq!(judge(&["127.0.0.1"], "127.0.0.1"), None);
        assert_eq!(judge(&["127.0.0.1"], "127.0.0.2"), Some(Range::Loopback));
        assert_eq!(judge(&["fd00::/8"], "fd12::1"), None);
        assert_eq!(judge(&["0.0.0.0/0"], "169.254.169.254"), None);
        assert_eq!(judge(&["registry.example"], "192.168.0.1"), None);
        assert_eq!(judge(&["other.example"], "192.168.0.1"), Some(Range::Private));
    }

    #[test]
    fn what_is_no_network_and_no_name_is_refused() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "a b", "https://a", "::/129"] {
            assert!(text.parse::<Allowed>().is_err(), "{text}");
        }
    }
}
