//! Settings of the broker.

use std::path::PathBuf;

use portcullis_contract::Capability;
use portcullis_process::SettingError;

/// Settings of the broker.
#[derive(Debug, Clone, clap::Args)]
pub struct BrokerArgs {
    /// The evaluator's --broker-socket. Without it, policies cannot use registries, name lookups or the API server.
    #[arg(long, env = "PORTCULLIS_BROKER_SOCKET", value_name = "PATH")]
    pub broker_socket: Option<PathBuf>,

    /// The user that the evaluator runs as. By default this program's own.
    #[arg(long, env = "PORTCULLIS_EVALUATOR_USER", value_name = "UID", requires = "broker_socket")]
    pub evaluator_user: Option<u32>,

    /// A host capability that Policies, which belong to a namespace, may be granted by those who write them: *, a prefix like oci/*,
    /// or a path like net/v1/dns_lookup_host. May be given several times; without any they have none. ClusterPolicies are not limited.
    #[arg(long, env = "PORTCULLIS_NAMESPACED_CAPABILITY", value_name = "PATTERN", value_delimiter = ',')]
    pub namespaced_capability: Vec<String>,
}

impl BrokerArgs {
    /// Checks the patterns.
    ///
    /// # Errors
    /// For one that names no capability.
    pub(crate) fn check(&self) -> Result<(), SettingError> {
        let checked = Capability::check_patterns(&self.namespaced_capability);
        checked.map_err(|error| SettingError::new("--namespaced-capability", error.to_string()))
    }
}
