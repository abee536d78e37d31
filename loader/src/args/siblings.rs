//! Settings about the other loaders of the installation.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use portcullis_process::SettingError;
use portcullis_registry::{PEER_NAME, PeerAddress, PeerKeys, Peers};

use super::Input;

/// Other loaders of the installation.
#[derive(Debug, Clone, Args)]
pub struct SiblingArgs {
    /// Other loaders that are asked for a module while its registry is unreachable: an address with a port, or a name with a port,
    /// like that of a headless Service, which is looked up each time. May be given several times.
    #[arg(
        long,
        env = "PORTCULLIS_SIBLINGS",
        value_name = "PLACE",
        value_delimiter = ',',
        requires = "siblings_tls_dir"
    )]
    pub siblings: Vec<PeerAddress>,

    /// The address at which other loaders may ask this one for modules; none by default.
    #[arg(long, env = "PORTCULLIS_SIBLINGS_ADDRESS", value_name = "ADDRESS", requires = "siblings_tls_dir")]
    pub siblings_address: Option<SocketAddr>,

    /// This pod's own address, which is left out when others are asked. May be given several times.
    #[arg(long, env = "PORTCULLIS_SIBLINGS_OWN_ADDRESS", value_name = "IP", value_delimiter = ',')]
    pub siblings_own_address: Vec<IpAddr>,

    /// A folder with tls.crt, tls.key and ca.crt, of an authority that issues certificates to loaders only. Read again for each connection;
    /// the files may come later.
    #[arg(long, env = "PORTCULLIS_SIBLINGS_TLS_DIR", value_name = "DIR")]
    pub siblings_tls_dir: Option<PathBuf>,

    /// The DNS name in the certificates of all loaders. [default: siblings.<policy server>.<namespace>.portcullis in a cluster,
    /// portcullis-sibling elsewhere]
    #[arg(long, env = "PORTCULLIS_SIBLINGS_NAME", value_name = "NAME")]
    pub siblings_name: Option<String>,
}

/// The settings, checked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Siblings {
    /// The other loaders to ask for modules; `None` if none are configured.
    pub(crate) peers: Option<Peers>,
    /// The address to listen at, and the certificates for it; `None` if other loaders may not ask this one.
    pub(crate) port: Option<(SocketAddr, PeerKeys)>,
}

impl SiblingArgs {
    /// Checks the settings. The certificates need not exist yet.
    pub(crate) fn siblings(&self, input: &Input, name_server: Option<SocketAddr>) -> Result<Siblings, SettingError> {
        let Some(folder) = &self.siblings_tls_dir else { return Ok(Siblings::default()) };
        let name = match (&self.siblings_name, input) {
            (Some(name), _) => name.clone(),
            (None, Input::Cluster(installation)) => {
                portcullis_kubernetes::siblings_name(&installation.policy_server, &installation.namespace)
            }
            (None, Input::Folder(_)) => PEER_NAME.to_owned(),
        };
        let keys = PeerKeys::new(folder.clone(), &name)
            .map_err(|error| SettingError::new("--siblings-name", error.to_string()))?;
        let peers = (!self.siblings.is_empty())
            .then(|| Peers::new(self.siblings.clone(), self.own(), keys.clone(), name_server));
        Ok(Siblings { peers, port: self.siblings_address.map(|address| (address, keys)) })
    }

    /// The addresses of this loader, which it must not ask for modules.
    fn own(&self) -> BTreeSet<SocketAddr> {
        let Some(address) = self.siblings_address else { return BTreeSet::new() };
        self.siblings_own_address.iter().map(|ip| SocketAddr::new(*ip, address.port())).chain([address]).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::input::Directory;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        siblings: SiblingArgs,
    }

    fn siblings(args: &[&str]) -> Result<Siblings, String> {
        let args = ["portcullis-loader"].iter().chain(args);
        let only = Only::try_parse_from(args).map_err(|error| error.to_string())?;
        let folder = Input::Folder(Directory::Manifests("/policies".into()));
        only.siblings.siblings(&folder, None).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_asked_or_served_by_default_and_certificates_may_come_later() {
        let none = siblings(&[]).expect("good");
        assert!(none.peers.is_none() && none.port.is_none());
        let both = ["--siblings", "a.svc:8444,10.0.0.1:8444", "--siblings-address", "0.0.0.0:8444"];
        let both = siblings(&[&both[..], &["--siblings-tls-dir", "/nowhere/yet"]].concat()).expect("good");
        assert!(both.peers.is_some() && both.port.is_some_and(|(_, keys)| keys.name() == PEER_NAME));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (args, named) in [
            (&["--siblings", "a.svc", "--siblings-tls-dir", "/a"][..], "a.svc"),
            (&["--siblings", "a.svc:1"], "--siblings-tls-dir"),
            (&["--siblings-tls-dir", "/a", "--siblings-name", "a b"], "--siblings-name"),
        ] {
            let error = siblings(args).expect_err(named);
            assert!(error.contains(named), "{error}");
        }
    }
}
