//! The addresses of a cluster: each has a block of its own, so that every cluster can use the usual ports and need not look for
//! free ones.
//!
//! EndpointSlices refuse loopback addresses, and the API server publishes its own address in one. So a block is routed to the
//! loopback device: its addresses are not loopback addresses, and traffic to them never leaves the machine. This takes two
//! routes and no network interface. If this process may not make routes, loopback addresses are used, and no EndpointSlice
//! has the API server.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Output, Stdio};

use serde::{Deserialize, Serialize};

use crate::Error;

/// The port of every API server. Those of one cluster must share it: the EndpointSlice that they publish has one port for all
/// of their addresses.
pub(crate) const API_SERVER_PORT: u16 = 6443;

/// The prefix of the names of interfaces that lead to nodes; the number of the slot follows.
const INTERFACE: &str = "portcullis-";

/// The number of the host that answers DNS.
const DNS: u8 = 11;

/// The kernel's number for CAP_NET_ADMIN.
const NET_ADMIN: u32 = 12;

/// The addresses of one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Network {
    /// The number of its block, of 256.
    pub(crate) slot: u8,
    pub(crate) kind: Kind,
    /// The inode of the network namespace in which it was made. Routes of another namespace must not be touched: they end with
    /// it, or are removed by the next cluster that starts there.
    #[serde(default = "own_namespace")]
    pub(crate) namespace: u64,
    /// Whether that namespace has no interface but the loopback, as a test's own has.
    #[serde(default)]
    is_cut_off: bool,
}

/// The kind of its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// In blocks that are routed to the loopback device.
    Routed,
    /// Loopback addresses.
    Loopback,
}

impl Kind {
    /// The best kind that this process may use.
    pub(crate) fn possible() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        if has_capability(&status, NET_ADMIN) { Self::Routed } else { Self::Loopback }
    }
}

/// The inode of the network namespace of this process.
pub(crate) fn own_namespace() -> u64 {
    fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino())
}

/// Whether nothing that this process sends can leave the machine: its network namespace has only the loopback interface, and those to
/// nodes of this crate, which do not route any further.
pub(crate) fn is_cut_off() -> bool {
    fs::read_to_string("/proc/self/net/dev").is_ok_and(|devices| has_only_loopback(&devices))
}

/// Whether `/proc/self/net/dev` lists only the loopback and nodes, below two lines of headings.
fn has_only_loopback(devices: &str) -> bool {
    let mut names = devices.lines().skip(2).filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
    let has_loopback = names.clone().any(|name| name == "lo");
    has_loopback && names.all(|name| name == "lo" || name.starts_with(INTERFACE))
}

impl Network {
    /// A block for a cluster of this process.
    pub(crate) fn new(slot: u8, kind: Kind) -> Self {
        Self { slot, kind, namespace: own_namespace(), is_cut_off: is_cut_off() }
    }

    /// Whether it was made in another network namespace.
    pub(crate) fn is_elsewhere(self) -> bool {
        self.namespace != own_namespace()
    }

    /// Whether its routes are in the machine's network namespace, while this process is in another one: they can only be
    /// removed from the machine's. The routes of a test's own namespace are gone with it.
    pub(crate) fn is_out_of_reach(self) -> bool {
        self.kind == Kind::Routed && !self.is_cut_off && self.is_elsewhere()
    }

    /// The address of an API server, of other parts of the cluster, or of a process that stands in for a pod.
    pub(crate) fn host(self, number: u8) -> Ipv4Addr {
        match self.kind {
            // 198.18.0.0/15 is set aside for test networks (RFC 2544), and is in use less often than private blocks.
            Kind::Routed => Ipv4Addr::new(198, 18, self.slot, number),
            Kind::Loopback => Ipv4Addr::new(127, 18, self.slot, number),
        }
    }

    /// The address of a source of modules. Only processes of this machine ask it, so it is on the loopback.
    pub(crate) fn source(self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, 19, self.slot, number)
    }

    /// The block of all addresses that [`Network::host`] returns.
    pub(crate) fn hosts(self) -> String {
        format!("{}/24", self.host(0))
    }

    /// The block of the addresses of services. They work only on a node, as there is no kube-proxy elsewhere; the API server connects
    /// to endpoints itself.
    pub(crate) fn services(self) -> String {
        format!("198.19.{}.0/25", self.slot)
    }

    /// The block of the addresses of the node and of its pods.
    pub(crate) fn pods(self) -> String {
        format!("198.19.{}.128/25", self.slot)
    }

    /// The first and the last address of a pod.
    pub(crate) fn pod_range(self) -> (Ipv4Addr, Ipv4Addr) {
        (Ipv4Addr::new(198, 19, self.slot, 130), Ipv4Addr::new(198, 19, self.slot, 253))
    }

    /// The address of the node.
    pub(crate) fn node(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 19, self.slot, 254)
    }

    /// The address of the cluster's DNS, outside of the node.
    pub(crate) fn dns(self) -> Ipv4Addr {
        self.host(DNS)
    }

    /// The interface that leads to the node.
    pub(crate) fn interface(self) -> String {
        format!("{INTERFACE}{}", self.slot)
    }

    /// The address of the service `kubernetes`: the first.
    pub(crate) fn kubernetes_service(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 19, self.slot, 1)
    }

    /// The blocks to route. The block of services is included, so that a connection to a service is refused at once.
    fn routes(self) -> Vec<String> {
        match self.kind {
            Kind::Routed => vec![self.hosts(), self.services()],
            Kind::Loopback => Vec::new(),
        }
    }

    /// Whether these addresses are in use on this machine, for instance by a cluster of another cache folder.
    pub(crate) fn is_taken(self) -> Result<bool, Error> {
        match self.kind {
            Kind::Routed => {
                for block in [self.hosts(), self.services(), self.pods()] {
                    let output = ip(&["-json", "route", "show", "table", "all", "root", &block])?;
                    if output.status.success() && routes_listed(&output.stdout) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Kind::Loopback => Ok(TcpListener::bind((self.host(1), API_SERVER_PORT)).is_err()),
        }
    }

    /// Makes the routes, which must not exist.
    pub(crate) fn up(self) -> Result<(), Error> {
        for route in self.routes() {
            let output = ip(&["route", "add", "local", &route, "dev", "lo"])?;
            if !output.status.success() {
                return Err(Error::Route { action: format!("route {route} to the loopback"), output: said(&output) });
            }
        }
        Ok(())
    }

    /// Removes the routes that exist.
    pub(crate) fn down(self) -> Result<(), Error> {
        if self.is_elsewhere() {
            return Ok(());
        }
        for route in self.routes() {
            let removed = ip(&["route", "del", "local", &route, "dev", "lo"])?;
            if !removed.status.success() && self.has_route(&route)? {
                return Err(Error::Route { action: format!("remove the route of {route}"), output: said(&removed) });
            }
        }
        Ok(())
    }

    fn has_route(self, route: &str) -> Result<bool, Error> {
        Ok(routes_listed(&ip(&["-json", "route", "show", "table", "local", "exact", route, "dev", "lo"])?.stdout))
    }
}

pub(crate) fn ip(args: &[&str]) -> Result<Output, Error> {
    Command::new("ip").args(args).stdin(Stdio::null()).output().map_err(|source| Error::Start {
        program: "ip".to_owned(),
        next: "install iproute2",
        source,
    })
}

/// Whether `ip -json route show` listed any route.
fn routes_listed(json: &[u8]) -> bool {
    serde_json::from_slice::<Vec<serde_json::Value>>(json).is_ok_and(|routes| !routes.is_empty())
}

/// The standard error of a program.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// Whether the effective set of `/proc/PID/status` has this capability.
fn has_capability(status: &str, number: u32) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> number & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_two_clusters_have_nothing_in_common() {
        let network = |slot| Network::new(slot, Kind::Routed);
        assert_eq!(network(3).routes(), ["198.18.3.0/24", "198.19.3.0/25"]);
        assert_eq!(network(4).routes(), ["198.18.4.0/24", "198.19.4.0/25"]);
        assert_eq!(network(3).host(1).to_string(), "198.18.3.1");
    }

    #[test]
    fn without_routes_hosts_are_on_the_loopback() {
        let network = Network::new(3, Kind::Loopback);
        assert!(network.host(1).is_loopback());
        assert_eq!(network.routes(), Vec::<String>::new());
    }

    #[test]
    fn a_capability_is_a_bit_of_the_effective_set() {
        assert!(has_capability("CapPrm:\t0000\nCapEff:\t000001fffeffffff\n", NET_ADMIN));
        assert!(!has_capability("CapPrm:\t1000\nCapEff:\t0000000000000000\n", NET_ADMIN));
        assert!(!has_capability("", NET_ADMIN));
    }

    #[test]
    fn a_namespace_with_an_interface_is_not_cut_off() {
        let headings = "Inter-|   Receive\n face |bytes\n";
        assert!(has_only_loopback(&format!("{headings}    lo: 1 2 3\n")));
        assert!(!has_only_loopback(&format!("{headings}    lo: 1 2 3\n  eth0: 1 2 3\n")));
        assert!(!has_only_loopback(headings));
        assert!(has_only_loopback(&format!("{headings}    lo: 1 2 3\nportcullis-0: 1 2 3\n")));
    }

    #[test]
    fn routes_of_another_namespace_are_left_alone() {
        let of_machine = Network { namespace: 1, is_cut_off: false, ..Network::new(3, Kind::Routed) };
        let of_test = Network { is_cut_off: true, ..of_machine };
        assert!(of_machine.is_out_of_reach() && !of_test.is_out_of_reach());
        assert!(!Network::new(3, Kind::Routed).is_out_of_reach());
        of_machine.down().unwrap();
    }

    #[test]
    fn an_empty_list_is_no_route() {
        assert!(!routes_listed(b"[]"));
        assert!(!routes_listed(b""));
        assert!(routes_listed(br#"[{"type":"local"}]"#));
    }
}
