//! Enforces NetworkPolicies by rules of a packet filter, since no component of the node does.
//!
//! Their meaning is that of the API: a pod that policies select accepts, or makes, only the connections that one of them
//! allows. Answers pass, and so does traffic from the pod's own node, like probes, which is not forwarded. A field that is not
//! supported here fails the test.

use serde_json::Value;

/// A direction of a pod's connections.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

impl Direction {
    /// Its name in `policyTypes`, the field with its rules, and the field with their peers.
    fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::In => ("Ingress", "ingress", "from"),
            Self::Out => ("Egress", "egress", "to"),
        }
    }

    /// The field of a packet with the address of the pod itself, and the field with its peer's.
    fn addresses(self) -> (&'static str, &'static str) {
        match self {
            Self::In => ("ip daddr", "ip saddr"),
            Self::Out => ("ip saddr", "ip daddr"),
        }
    }
}

/// Chains in the syntax of nft(8) that enforce these policies for these pods, at their present addresses.
pub(super) fn chains(policies: &[Value], pods: &[Value], namespaces: &[Value]) -> String {
    let all = Pods { pods, namespaces };
    // Connections are rejected and not dropped, so that nothing waits for them, and with a code that no program of a pod
    // causes.
    let refusal = "    reject with icmpx type admin-prohibited\n";
    let (mut forward, mut chains) = (String::new(), String::new());
    for pod in pods {
        let Some(address) = address(pod) else { continue };
        for direction in [Direction::Out, Direction::In] {
            let rules: Vec<String> = policies
                .iter()
                .filter(|policy| is_of(policy, direction) && selects_pod(policy, pod))
                .flat_map(|policy| allowed(policy, direction, pod, &all))
                .collect();
            if !policies.iter().any(|policy| is_of(policy, direction) && selects_pod(policy, pod)) {
                continue;
            }
            let name = format!("{}_{}", direction.words().1, address.replace('.', "_"));
            forward += &format!("    {} {address} jump {name}\n", direction.addresses().0);
            chains += &format!("  chain {name} {{\n{}{refusal}  }}\n", rules.concat());
        }
    }
    format!(
        "{chains}  chain forward {{\n    type filter hook forward priority 10;\n    ct state established,related accept\n{forward}  }}"
    )
}

struct Pods<'a> {
    pods: &'a [Value],
    namespaces: &'a [Value],
}

impl Pods<'_> {
    /// The addresses that a peer of a policy in this namespace selects.
    fn of_peer(&self, peer: &Value, namespace: &Value) -> Vec<&str> {
        understood(peer, &["podSelector", "namespaceSelector"]);
        let is_meant = |pod: &Value| {
            let home = &pod["metadata"]["namespace"];
            let is_there = match &peer["namespaceSelector"] {
                Value::Null => home == namespace,
                selector => {
                    let object = self.namespaces.iter().find(|object| object["metadata"]["name"] == *home);
                    object.is_some_and(|object| selects(selector, object))
                }
            };
            is_there && (peer["podSelector"].is_null() || selects(&peer["podSelector"], pod))
        };
        self.pods.iter().filter(|pod| is_meant(pod)).filter_map(address).collect()
    }
}

/// A line for each rule and port that allows connections.
fn allowed(policy: &Value, direction: Direction, pod: &Value, all: &Pods<'_>) -> Vec<String> {
    let (_, rules, peers) = direction.words();
    let mut lines = Vec::new();
    for rule in list(&policy["spec"][rules]) {
        understood(rule, &["ports", peers]);
        let from = match list(&rule[peers]) {
            [] => String::new(),
            peers => {
                let namespace = &policy["metadata"]["namespace"];
                let found: Vec<_> = peers.iter().flat_map(|peer| all.of_peer(peer, namespace)).collect();
                if found.is_empty() {
                    continue;
                }
                format!("{} {{ {} }} ", direction.addresses().1, found.join(", "))
            }
        };
        match list(&rule["ports"]) {
            [] => lines.push(format!("    {from}return\n")),
            ports => {
                // A port name that the pod does not have allows nothing.
                let matches = ports.iter().filter_map(|one| port(one, direction, pod));
                lines.extend(matches.map(|port| format!("    {from}{port} return\n")));
            }
        }
    }
    lines
}

/// The match for packets to a port; `None` if the pod does not have it.
fn port(port: &Value, direction: Direction, pod: &Value) -> Option<String> {
    understood(port, &["port", "protocol"]);
    let protocol = port["protocol"].as_str().unwrap_or("TCP");
    let number = match &port["port"] {
        Value::Null => return Some(format!("meta l4proto {}", protocol.to_lowercase())),
        Value::String(name) => {
            assert!(direction == Direction::In, "the name {name:?} of somebody else's port is not understood");
            let containers = list(&pod["spec"]["containers"]);
            let mut ports = containers.iter().flat_map(|container| list(&container["ports"]));
            ports.find(|one| one["name"] == *name && one["protocol"] == protocol)?["containerPort"].clone()
        }
        number => number.clone(),
    };
    Some(format!("{} dport {number}", protocol.to_lowercase()))
}

/// Whether a policy applies to this direction.
fn is_of(policy: &Value, direction: Direction) -> bool {
    let types = list(&policy["spec"]["policyTypes"]);
    assert!(!types.is_empty(), "a NetworkPolicy without policyTypes is not understood");
    types.iter().any(|one| one == direction.words().0)
}

fn selects_pod(policy: &Value, pod: &Value) -> bool {
    policy["metadata"]["namespace"] == pod["metadata"]["namespace"] && selects(&policy["spec"]["podSelector"], pod)
}

fn selects(selector: &Value, object: &Value) -> bool {
    understood(selector, &["matchLabels"]);
    let labels = selector["matchLabels"].as_object();
    labels.is_none_or(|labels| labels.iter().all(|(name, value)| object["metadata"]["labels"][name] == *value))
}

/// The address of a pod, unless it has ended or uses the node's network.
fn address(pod: &Value) -> Option<&str> {
    let has_ended = ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
    pod["status"]["podIP"].as_str().filter(|_| !has_ended && pod["spec"]["hostNetwork"] != true)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Fails if an object has other fields than these.
fn understood(object: &Value, fields: &[&str]) {
    let others: Vec<_> =
        object.as_object().into_iter().flatten().filter(|(name, _)| !fields.contains(&name.as_str())).collect();
    assert!(others.is_empty(), "of a NetworkPolicy this is not understood: {others:?}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(namespace: &str, app: &str, address: &str) -> Value {
        json!({
            "metadata": { "namespace": namespace, "labels": { "app": app } },
            "spec": { "containers": [{ "ports": [{ "name": "web", "containerPort": 8443, "protocol": "TCP" }] }] },
            "status": { "podIP": address },
        })
    }

    /// The chains for one policy, which selects one server among several pods.
    fn chains_of(spec: Value) -> String {
        let pods = [pod("one", "server", "10.0.0.1"), pod("one", "other", "10.0.0.2"), pod("two", "other", "10.0.0.3")];
        let namespaces = ["one", "two"].map(|name| json!({ "metadata": { "name": name, "labels": { "name": name } } }));
        let mut policy = json!({ "metadata": { "namespace": "one" }, "spec": spec });
        policy["spec"]["podSelector"] = json!({ "matchLabels": { "app": "server" } });
        chains(&[policy], &pods, &namespaces)
    }

    fn lines(chains: &str, word: &str) -> Vec<String> {
        chains.lines().map(str::trim).filter(|line| line.ends_with(word)).map(str::to_owned).collect()
    }

    #[test]
    fn a_pod_that_nobody_selects_is_left_alone() {
        let chains = chains_of(json!({ "policyTypes": ["Ingress"], "ingress": [] }));
        assert_eq!(lines(&chains, "jump ingress_10_0_0_1"), ["ip daddr 10.0.0.1 jump ingress_10_0_0_1"]);
        assert!(!chains.contains("10.0.0.2") && !chains.contains("10.0.0.3"), "{chains}");
        assert_eq!(lines(&chains, "return"), <[&str; 0]>::default());
        assert!(chains.contains("reject"), "{chains}");
    }

    #[test]
    fn a_named_port_is_the_pods_own() {
        let rule = |name: &str| json!({ "policyTypes": ["Ingress"], "ingress": [{ "ports": [{ "port": name }] }] });
        assert_eq!(lines(&chains_of(rule("web")), "return"), ["tcp dport 8443 return"]);
        assert_eq!(lines(&chains_of(rule("other")), "return"), <[&str; 0]>::default());
    }

    #[test]
    fn peers_are_of_the_policys_namespace_unless_it_says_which() {
        let rule = |peer: Value| json!({ "policyTypes": ["Egress"], "egress": [{ "to": [peer] }] });
        let other = json!({ "matchLabels": { "app": "other" } });
        let two = json!({ "matchLabels": { "name": "two" } });
        for (peer, expected) in [
            (json!({ "podSelector": other }), "ip daddr { 10.0.0.2 } return"),
            (json!({ "podSelector": other, "namespaceSelector": two }), "ip daddr { 10.0.0.3 } return"),
            (json!({ "namespaceSelector": {} }), "ip daddr { 10.0.0.1, 10.0.0.2, 10.0.0.3 } return"),
        ] {
            assert_eq!(lines(&chains_of(rule(peer)), "return"), [expected]);
        }
        // A selector that matches no pod must not mean all pods.
        let nobody = json!({ "podSelector": { "matchLabels": { "app": "nobody" } } });
        assert_eq!(lines(&chains_of(rule(nobody)), "return"), <[&str; 0]>::default());
    }

    #[test]
    fn a_protocol_without_a_port_means_all_of_its_ports() {
        let chains = chains_of(json!({ "policyTypes": ["Egress"], "egress": [
            { "ports": [{ "port": 53, "protocol": "UDP" }] }, { "ports": [{ "protocol": "TCP" }] }, {},
        ] }));
        assert_eq!(lines(&chains, "return"), ["udp dport 53 return", "meta l4proto tcp return", "return"]);
    }

    #[test]
    #[should_panic(expected = "not understood")]
    fn what_is_not_understood_is_not_passed_over() {
        chains_of(
            json!({ "policyTypes": ["Egress"], "egress": [{ "to": [{ "ipBlock": { "cidr": "10.0.0.0/8" } }] }] }),
        );
    }
}
