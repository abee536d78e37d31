//! Settings of the broker.

use std::path::PathBuf;
use std::time::Duration;

use portcullis_broker::{Session, SessionError};
use portcullis_contract::Capability;
use portcullis_process::{PolicyChecks, SettingError, Switch, parse_duration};

/// Settings of the broker.
#[derive(Debug, Clone, clap::Args)]
pub struct BrokerArgs {
    /// The evaluator's --broker-socket. Without it, policies cannot use registries, name lookups or the API server.
    #[arg(long, env = "PORTCULLIS_BROKER_SOCKET", value_name = "PATH")]
    pub broker_socket: Option<PathBuf>,

    /// The user that the evaluator runs as. By default this program's own.
    #[arg(long, env = "PORTCULLIS_EVALUATOR_USER", value_name = "UID", requires = "broker_socket")]
    pub evaluator_user: Option<u32>,

    /// How long calls of policies to their host are answered after SIGTERM while the evaluator drains. Set it to at least the evaluator's
    /// --drain-delay plus its --grace. The loader ends earlier if the evaluator ends, and within seconds if the evaluator does not drain.
    #[arg(long, env = "PORTCULLIS_DRAIN_LIMIT", value_name = "TIME", default_value = "25s", value_parser = parse_duration)]
    pub drain_limit: Duration,

    /// A host capability that Policies, which belong to a namespace, may be granted by those who write them: *, a prefix like oci/*,
    /// or a path like net/v1/dns_lookup_host. May be given several times; without any they have none. ClusterPolicies are not limited.
    #[arg(long, env = "PORTCULLIS_NAMESPACED_CAPABILITY", value_name = "PATTERN", value_delimiter = ',')]
    pub namespaced_capability: Vec<String>,

    /// What happens to a policy that somebody applies and that cannot load until it is edited: the evaluator is asked by the API server, and
    /// this program tries the policy first. The controller registers the webhook for it; give it the same setting.
    #[arg(long, env = "PORTCULLIS_POLICY_CHECKS", value_enum, default_value = "off")]
    pub policy_checks: PolicyChecks,

    /// Whether the answer also counts the objects that exist and that the policy would deny. They are listed with this program's own
    /// rights, which it needs for each kind. Users who apply a policy see figures and one name.
    #[arg(long, env = "PORTCULLIS_CHECK_IMPACT", value_enum, default_value = "off")]
    pub check_impact: Switch,

    /// The controller's --shared-webhooks, so that checks advise nothing by which no webhook is saved.
    #[arg(long, env = "PORTCULLIS_SHARED_WEBHOOKS")]
    pub shared_webhooks: bool,

    /// Writes what policies ask their host for, and the answers, to this file, in the form of kwctl.
    #[arg(long, env = "PORTCULLIS_RECORD_CAPABILITIES", value_name = "FILE", requires = "broker_socket")]
    pub record_capabilities: Option<PathBuf>,

    /// Answers what policies ask their host for from this file, which was recorded before, and from nowhere else.
    #[arg(
        long,
        env = "PORTCULLIS_REPLAY_CAPABILITIES",
        value_name = "FILE",
        requires = "broker_socket",
        conflicts_with = "record_capabilities"
    )]
    pub replay_capabilities: Option<PathBuf>,
}

impl BrokerArgs {
    /// Whether calls are recorded, or answered from a recording.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub(crate) fn session(&self) -> Result<Session, SettingError> {
        let failed = |setting: &'static str| move |error: SessionError| SettingError::new(setting, error.to_string());
        match (&self.record_capabilities, &self.replay_capabilities) {
            (Some(path), _) => Session::record(path).map_err(failed("--record-capabilities")),
            (None, Some(path)) => Session::replay(path).map_err(failed("--replay-capabilities")),
            (None, None) => Ok(Session::Live),
        }
    }

    /// Checks the patterns of `--namespaced-capability`.
    ///
    /// # Errors
    /// When a pattern matches no capability.
    pub(crate) fn check(&self) -> Result<(), SettingError> {
        let checked = Capability::check_patterns(&self.namespaced_capability);
        checked.map_err(|error| SettingError::new("--namespaced-capability", error.to_string()))
    }
}
