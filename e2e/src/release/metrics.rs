//! The metrics of the programs, through an API server.

use serde_json::Value;

use super::Release;
use crate::Output;

impl Release<'_> {
    /// The metrics that a pod serves at a port; `None` if they cannot be had at present.
    pub fn metrics(&self, pod: &Value, port: u64) -> Option<String> {
        let name = pod["metadata"]["name"].as_str()?;
        let path = format!("/api/v1/namespaces/{}/pods/{name}:{port}/proxy/metrics", self.name);
        Some(self.kubectl(["get", "--raw", &path])).filter(Output::is_ok).map(|output| output.stdout)
    }
}

/// The ports of a pod at which its programs serve probes and metrics: each has the name of its container.
pub fn probe_ports(pod: &Value) -> Vec<u64> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let port_of = |container: Value| {
        let ports = list(&container["ports"]);
        ports.iter().find(|port| port["name"] == container["name"])?["containerPort"].as_u64()
    };
    list(&pod["spec"]["containers"]).into_iter().filter_map(port_of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_probe_port_has_the_name_of_its_container() {
        let container = |name: &str, ports: Value| json!({ "name": name, "ports": ports });
        let port = |name: &str, number: u16| json!({ "name": name, "containerPort": number });
        let containers = [
            container("evaluator", json!([port("admission", 8443), port("evaluator", 8081)])),
            container("loader", json!([port("loader", 8082)])),
            container("other", Value::Null),
        ];
        assert_eq!(probe_ports(&json!({ "spec": { "containers": containers } })), [8081, 8082]);
    }
}
