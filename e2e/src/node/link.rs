//! The link between the network of the control plane and that of the node: the only way into the node and out of it. Its outer end
//! vanishes with the inner one, which ends with the node.

use std::process::{Command, Stdio};

use super::spawn;
use crate::Error;
use crate::network::{Network, ip, said};

/// The inner end.
const INSIDE: &str = "eth0";

/// Makes the link to the node whose first process this is, with routes on both sides.
pub(crate) fn make(network: Network, node: u32) -> Result<(), Error> {
    // The link of a node that has just ended may still be there.
    remove(network)?;
    let (outside, process) = (network.interface(), node.to_string());
    outer(&["link", "add", &outside, "type", "veth", "peer", "name", INSIDE, "netns", &process])?;
    for args in inner_steps(network) {
        inner(node, &args)?;
    }
    outer(&["link", "set", &outside, "up"])?;
    for args in outer_steps(network) {
        outer(&args.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Removes the link, if it is there.
pub(crate) fn remove(network: Network) -> Result<(), Error> {
    if network.is_elsewhere() {
        return Ok(());
    }
    let outside = network.interface();
    let removed = ip(&["link", "del", &outside])?;
    if !removed.status.success() && ip(&["link", "show", &outside])?.status.success() {
        return Err(Error::Route { action: format!("remove the interface {outside}"), output: said(&removed) });
    }
    Ok(())
}

/// There are routes to the control plane only. Services have a route too, because a process of the node needs one before
/// kube-proxy's rules choose an endpoint.
fn inner_steps(network: Network) -> Vec<Vec<String>> {
    let words = |text: String| text.split(' ').map(str::to_owned).collect();
    vec![
        words("link set lo up".to_owned()),
        words(format!("address add {}/32 dev {INSIDE}", network.node())),
        words(format!("link set {INSIDE} up")),
        words(format!("route add {} dev {INSIDE}", network.hosts())),
        words(format!("route add {} dev {INSIDE}", network.services())),
    ]
}

/// API servers talk to the node and to pods from an address for which these have a route back.
fn outer_steps(network: Network) -> Vec<Vec<String>> {
    let words = |text: String| text.split(' ').map(str::to_owned).collect();
    let (node, own, outside) = (network.node(), network.host(1), network.interface());
    vec![
        words(format!("route add {node}/32 dev {outside} src {own}")),
        words(format!("route add {} via {node} dev {outside} src {own}", network.pods())),
    ]
}

fn outer(args: &[&str]) -> Result<(), Error> {
    let output = ip(args)?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Route {
        action: format!("link the node to the control plane (ip {})", args.join(" ")),
        output: said(&output),
    })
}

fn inner(node: u32, args: &[String]) -> Result<(), Error> {
    let mut command: Command = spawn::enter(node);
    let failed = |output| Error::Route { action: format!("set up the node's network (ip {})", args.join(" ")), output };
    let output = command.arg("ip").args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(failed(said(&output))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Kind;

    #[test]
    fn both_sides_know_the_way_to_the_other_and_none_else() {
        let network = Network::new(3, Kind::Routed);
        let text = |steps: Vec<Vec<String>>| steps.iter().map(|step| step.join(" ")).collect::<Vec<_>>();
        let inner = text(inner_steps(network));
        assert!(inner.contains(&"route add 198.18.3.0/24 dev eth0".to_owned()), "{inner:?}");
        assert!(!inner.iter().any(|step| step.contains("default")), "{inner:?}");
        assert_eq!(
            text(outer_steps(network)),
            [
                "route add 198.19.3.254/32 dev portcullis-3 src 198.18.3.1",
                "route add 198.19.3.128/25 via 198.19.3.254 dev portcullis-3 src 198.18.3.1",
            ],
        );
    }
}
