//! `net.cidr_*`.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Arguments, BuiltinError, Outcome};

/// Whether a network contains another network, or an address.
pub(super) fn cidr_contains(arguments: &Arguments) -> Outcome {
    let (network, other) = (network(arguments.text(0)?)?, network_or_address(arguments.text(1)?)?);
    Ok(network.contains(&other).into())
}

pub(super) fn cidr_intersects(arguments: &Arguments) -> Outcome {
    let (one, other) = (network(arguments.text(0)?)?, network(arguments.text(1)?)?);
    Ok((one.contains(&other) || other.contains(&one)).into())
}

pub(super) fn cidr_is_valid(arguments: &Arguments) -> Outcome {
    Ok(arguments.value(0)?.as_str().is_some_and(|text| network(text).is_ok()).into())
}

fn network(text: &str) -> Result<IpNet, BuiltinError> {
    text.parse().map_err(|_| BuiltinError::Form("an argument is not a network in CIDR notation"))
}

fn network_or_address(text: &str) -> Result<IpNet, BuiltinError> {
    text.parse::<IpAddr>().map(IpNet::from).or_else(|_| network(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::run;

    #[test]
    fn networks() {
        let is = |name, arguments| run(name, arguments).expect("networks") == json!(true);
        assert!(is("net.cidr_contains", json!(["10.0.0.0/8", "10.1.0.0/24"])));
        assert!(is("net.cidr_contains", json!(["10.0.0.0/8", "10.1.2.3"])));
        assert!(!is("net.cidr_contains", json!(["10.1.0.0/24", "10.0.0.0/8"])));
        assert!(!is("net.cidr_contains", json!(["10.0.0.0/8", "2001:db8::1"])));
        assert!(is("net.cidr_intersects", json!(["10.1.0.0/24", "10.0.0.0/8"])));
        assert!(!is("net.cidr_intersects", json!(["10.1.0.0/24", "10.1.1.0/24"])));
        assert!(is("net.cidr_is_valid", json!(["2001:db8::/32"])) && !is("net.cidr_is_valid", json!(["10.0.0.0/33"])));
        assert!(run("net.cidr_contains", json!(["10.0.0.0/8", "x"])).is_err());
    }
}
