//! Finds the addresses of the API servers. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::EndpointSlice;

/// The name of the port in the EndpointSlices of the Service `kubernetes`.
const PORT: &str = "https";

/// The addresses of all API servers that are ready, each once.
pub(crate) fn api_servers(slices: &[EndpointSlice]) -> BTreeSet<SocketAddr> {
    let of = |slice: &EndpointSlice| {
        let ports = slice.ports.iter().flatten();
        let port = ports.filter(|port| port.name.as_deref().is_none_or(|name| name == PORT || name.is_empty()));
        let port = port.filter_map(|port| u16::try_from(port.port?).ok()).next();
        let endpoints = slice.endpoints.iter().flatten();
        let ready = endpoints.filter(|one| {
            // Absent means ready.
            one.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
        });
        let addresses = ready.flat_map(|one| &one.addresses).filter_map(|address| address.parse::<IpAddr>().ok());
        addresses.filter_map(|address| Some(SocketAddr::new(address, port?))).collect::<Vec<_>>()
    };
    slices.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(value: serde_json::Value) -> EndpointSlice {
        serde_json::from_value(value).expect("a slice")
    }

    #[test]
    fn every_ready_api_server_counts_once() {
        let two = slice(json!({
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": 6443}],
            "endpoints": [
                {"addresses": ["198.18.0.1"], "conditions": {"ready": true}},
                {"addresses": ["198.18.0.2"]},
                {"addresses": ["198.18.0.3"], "conditions": {"ready": false}},
            ],
        }));
        let six = slice(json!({
            "addressType": "IPv6",
            "ports": [{"port": 443}],
            "endpoints": [{"addresses": ["fd00::1"]}],
        }));
        let servers: Vec<_> = api_servers(&[two.clone(), two, six]).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["198.18.0.1:6443", "198.18.0.2:6443", "[fd00::1]:443"]);
    }

    #[test]
    fn a_slice_without_ports_or_with_names_leads_nowhere() {
        assert!(api_servers(&[]).is_empty());
        let slices = [
            slice(json!({"addressType": "IPv4", "endpoints": [{"addresses": ["198.18.0.1"]}]})),
            slice(json!({
                "addressType": "FQDN",
                "ports": [{"name": "https", "port": 6443}],
                "endpoints": [{"addresses": ["api.example"]}],
            })),
        ];
        assert!(api_servers(&slices).is_empty());
    }
}
