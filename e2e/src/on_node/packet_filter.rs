//! Temporary rules of the node's packet filter, which cut a pod off from API servers or enforce NetworkPolicies.

use std::net::{IpAddr, SocketAddr};

use crate::Cluster;

/// A table of rules, which is removed when this is dropped.
#[must_use = "the rules end with it"]
pub struct Rules<'c> {
    cluster: &'c Cluster,
    table: String,
}

impl Cluster {
    /// Puts chains and sets, in the syntax of nft(8), into a table of this name on the node. An existing table is replaced.
    ///
    /// # Panics
    /// When there is no node, or the rules are not valid.
    pub fn filter_packets(&self, table: &str, chains: &str) -> Rules<'_> {
        let rules = Rules { cluster: self, table: format!("inet portcullis-{table}") };
        // It is created first, in the same transaction, as a table that does not exist cannot be deleted.
        let text = format!("table {0}; delete table {0}; table {0} {{\n{chains}\n}}", rules.table);
        self.run_on_node(["nft", &text]).expect("rules of the packet filter");
        rules
    }

    /// Cuts the network between pods with these addresses and every API server: packets are dropped silently. API servers still reach the
    /// pods' own ports, as they do when they call webhooks.
    ///
    /// # Panics
    /// When there is no node.
    pub fn cut_from_api_servers(&self, pods: &[IpAddr]) -> Rules<'_> {
        self.filter_packets("cut", &cut(pods, &self.api_servers()))
    }
}

impl Drop for Rules<'_> {
    fn drop(&mut self) {
        // The rules may be gone with the node.
        let words: Vec<_> = ["nft", "delete", "table"].into_iter().chain(self.table.split(' ')).collect();
        let _ = self.cluster.run_on_node(words);
    }
}

/// By the time packets are forwarded, kube-proxy has replaced the service's address with that of an API server.
fn cut(pods: &[IpAddr], servers: &[SocketAddr]) -> String {
    let mut rules = String::new();
    for pod in pods {
        for server in servers {
            let (address, port) = (server.ip(), server.port());
            rules += &format!("    ip saddr {pod} ip daddr {address} tcp dport {port} drop\n");
            rules += &format!("    ip saddr {address} tcp sport {port} ip daddr {pod} drop\n");
        }
    }
    format!("  chain forward {{\n    type filter hook forward priority 0;\n{rules}  }}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_is_cut_both_ways_and_nothing_else_is() {
        let text = cut(&["198.19.0.131".parse().unwrap()], &["198.18.0.1:6443".parse().unwrap()]);
        let drops: Vec<&str> = text.lines().filter(|line| line.ends_with("drop")).map(str::trim).collect();
        assert_eq!(
            drops,
            [
                "ip saddr 198.19.0.131 ip daddr 198.18.0.1 tcp dport 6443 drop",
                "ip saddr 198.18.0.1 tcp sport 6443 ip daddr 198.19.0.131 drop",
            ]
        );
    }
}
