//! Settings.

mod label;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use portcullis_contract::MAX_CHECK_TIME;
use portcullis_kubernetes::{Access, is_object_name};
use portcullis_process::{LogArgs, PolicyChecks, SettingError, parse_duration};

use crate::certificates::CertificateArgs;

/// Keeps the revisions of policies, the webhooks that call them, and the certificates of one policy server. Several may run; the one
/// that holds the Lease writes.
#[derive(Debug, Clone, Parser)]
#[command(name = "portcullis-controller", version)]
pub struct Args {
    /// The namespace of the installation.
    #[arg(long, env = "PORTCULLIS_NAMESPACE", value_name = "NAMESPACE")]
    pub namespace: String,

    /// The policy server. The controller handles the policies with this spec.policyServer.
    #[arg(long, env = "PORTCULLIS_POLICY_SERVER", value_name = "NAME", default_value = "default")]
    pub policy_server: String,

    /// The Service of the policy server, which webhooks call.
    #[arg(long, env = "PORTCULLIS_SERVICE", value_name = "NAME")]
    pub service: String,

    /// The Service's port.
    #[arg(long, env = "PORTCULLIS_SERVICE_PORT", value_name = "PORT", default_value_t = 443)]
    pub service_port: u16,

    /// A ClusterRole of the installation that owns the webhook configurations, so that they are deleted with it.
    #[arg(long, env = "PORTCULLIS_OWNER_CLUSTER_ROLE", value_name = "NAME")]
    pub owner_cluster_role: Option<String>,

    /// The name of this Pod, which identifies it as the holder of the Lease and in events. [default: the host's name]
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,

    /// The Lease that the leading controller holds. [default: portcullis-<policy server>-controller]
    #[arg(long, env = "PORTCULLIS_LEASE_NAME", value_name = "NAME")]
    pub lease_name: Option<String>,

    /// The name under which this program authenticates to the API server; webhooks accept markers from this user only.
    /// [default: asked from the API server]
    #[arg(long, env = "PORTCULLIS_USERNAME", value_name = "USER")]
    pub username: Option<String>,

    /// How long API servers may go on calling a webhook that was deleted. Its path is served for at least that long.
    #[arg(long, env = "PORTCULLIS_WEBHOOK_PAUSE", value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub webhook_pause: Duration,

    /// How long replicas may take to drop a deleted policy, before its revisions are deleted.
    #[arg(long, env = "PORTCULLIS_REVISION_PAUSE", value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub revision_pause: Duration,

    /// How long a policy may wait for its replicas before an event says so. The event is repeated after the same time.
    #[arg(long, env = "PORTCULLIS_WAITING_EVENT", value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    pub waiting_event: Duration,

    /// How long one evaluation may take if the policy does not say; must be the same as for the evaluators. The timeout of a mutating
    /// webhook is the sum of its policies' limits, as they are evaluated one after the other.
    #[arg(long, env = "PORTCULLIS_POLICY_TIMEOUT", value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub policy_timeout: Duration,

    /// How many policies one namespace may have. The oldest are accepted, and an accepted policy stays accepted. ClusterPolicies are not
    /// counted.
    #[arg(long, env = "PORTCULLIS_POLICIES_PER_NAMESPACE", value_name = "NUMBER", default_value_t = 100)]
    pub policies_per_namespace: usize,

    /// How many webhook configurations the policies of one namespace may have. Policies with the same rules, selectors and match
    /// conditions share one. ClusterPolicies are not counted.
    #[arg(long, env = "PORTCULLIS_WEBHOOKS_PER_NAMESPACE", value_name = "NUMBER", default_value_t = 20)]
    pub webhooks_per_namespace: usize,

    /// Registers one webhook for validating policies of the same API groups and versions. The evaluators judge the rest of their rules, object
    /// selector and match conditions for each policy, as the API server would. It counts for each policy from its next edit.
    #[arg(long, env = "PORTCULLIS_SHARED_WEBHOOKS")]
    pub shared_webhooks: bool,

    /// A label for every webhook configuration, beside the controller's own, which it cannot replace. For programs that change webhooks of
    /// others unless they have a certain label. May be repeated.
    #[arg(long = "webhook-label", env = "PORTCULLIS_WEBHOOK_LABEL", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = label::parse)]
    pub webhook_labels: Vec<(String, String)>,

    /// The Secret with the keys that the paths of webhooks are derived from; pods mount it. [default: portcullis-<policy server>-paths]
    #[arg(long, env = "PORTCULLIS_PATHS_SECRET", value_name = "NAME")]
    pub paths_secret: Option<String>,

    /// How long a key of webhook paths is used before it is replaced.
    #[arg(long, env = "PORTCULLIS_PATH_KEY_AGE", value_name = "TIME", default_value = "30d", value_parser = parse_duration)]
    pub path_key_age: Duration,

    /// Registers webhooks with paths without a secret code, which everyone who knows the policies can guess. Use it only to go back to a
    /// release that serves no other paths.
    #[arg(long, env = "PORTCULLIS_PLAIN_PATHS")]
    pub plain_paths: bool,

    /// What happens when somebody applies a policy that would not load; must be the same as for the loaders.
    #[arg(long, env = "PORTCULLIS_POLICY_CHECKS", value_name = "MODE", value_enum, default_value_t = PolicyChecks::Off)]
    pub policy_checks: PolicyChecks,

    /// How long API servers wait for the answer to such a check, at most 30s. Half of it is for the objects that exist.
    #[arg(long, env = "PORTCULLIS_POLICY_CHECKS_TIMEOUT", value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub policy_checks_timeout: Duration,

    /// How many writes to the API server may run at the same time.
    #[arg(long, env = "PORTCULLIS_PARALLEL_WRITES", value_name = "NUMBER", default_value_t = 16)]
    pub parallel_writes: usize,

    /// Uninstalls instead of running: deletes this Deployment of controllers, deletes the webhooks of the policy server, removes its
    /// finalizers from policies, deletes the Lease of the reporters, writes into the status of policies that nothing evaluates them, and exits.
    #[arg(long, env = "PORTCULLIS_UNINSTALL", value_name = "DEPLOYMENT")]
    pub uninstall: Option<String>,

    /// Checks instead of running whether the installation works, and exits. The file is the certificate authority (PEM) of the policy
    /// server.
    #[arg(long, env = "PORTCULLIS_CHECK", value_name = "FILE", conflicts_with = "uninstall")]
    pub check: Option<PathBuf>,

    /// The address of /livez, /readyz and /metrics.
    #[arg(long, env = "PORTCULLIS_PROBE_ADDRESS", value_name = "ADDRESS", default_value = "[::]:8084")]
    pub probe_address: SocketAddr,

    /// How to reach the API server.
    #[command(flatten)]
    pub access: Access,

    /// The certificates.
    #[command(flatten)]
    pub certificates: CertificateArgs,

    /// The logs.
    #[command(flatten)]
    pub log: LogArgs,
}

impl Args {
    /// Checks what clap cannot check.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn check(&self) -> Result<(), SettingError> {
        let names = [
            ("--namespace", Some(&self.namespace)),
            ("--policy-server", Some(&self.policy_server)),
            ("--service", Some(&self.service)),
            ("--lease-name", self.lease_name.as_ref()),
            ("--uninstall", self.uninstall.as_ref()),
            ("--paths-secret", self.paths_secret.as_ref()),
        ];
        for (setting, name) in names {
            if let Some(name) = name.filter(|name| !is_object_name(name)) {
                let problem =
                    format!("{name:?} is not a valid name of an object: want lower-case letters, digits, - and .");
                return Err(SettingError::new(setting, problem));
            }
        }
        if self.policy_server.len() > 63 || self.policy_server.contains('.') {
            return Err(SettingError::new("--policy-server", "want at most 63 lower-case letters, digits and -"));
        }
        if self.service_port == 0 {
            return Err(SettingError::new("--service-port", "want the port of the Service, not 0"));
        }
        if self.policies_per_namespace == 0 {
            return Err(SettingError::new("--policies-per-namespace", "want 1 or more"));
        }
        if self.webhooks_per_namespace == 0 {
            return Err(SettingError::new("--webhooks-per-namespace", "want 1 or more"));
        }
        if !(1..=256).contains(&self.parallel_writes) {
            return Err(SettingError::new("--parallel-writes", "want 1 to 256"));
        }
        if !(Duration::from_secs(1)..=MAX_CHECK_TIME).contains(&self.policy_checks_timeout) {
            let problem = "want 1s to 30s: API servers wait for no webhook longer";
            return Err(SettingError::new("--policy-checks-timeout", problem));
        }
        let certificates = &self.certificates;
        let others = [
            ("--ca-secret", certificates.ca_secret(&self.policy_server)),
            ("--tls-secret", certificates.tls_secret(&self.policy_server)),
            ("--siblings-ca-secret", certificates.siblings_ca_secret(&self.policy_server)),
            ("--siblings-secret", certificates.siblings_secret(&self.policy_server)),
        ];
        if let Some((other, _)) = others.iter().find(|(_, name)| *name == self.paths_secret()) {
            let problem = format!("is also the Secret of {other}: choose another name");
            return Err(SettingError::new("--paths-secret", problem));
        }
        let pauses = certificates.tls_pause.saturating_mul(2);
        if self.path_key_age <= pauses {
            let problem = format!("is too short: replacing a key takes {pauses:?} (twice --tls-pause)");
            return Err(SettingError::new("--path-key-age", problem));
        }
        self.certificates.rules(&self.policy_server, &self.namespace, &self.service)?;
        self.certificates.siblings_rules(&self.policy_server, &self.namespace).map(drop)
    }

    /// The name of this Pod.
    pub fn pod_name(&self) -> String {
        let host = || {
            let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            format!("{}-{}", name.trim(), std::process::id())
        };
        portcullis_contract::clean(&self.pod_name.clone().unwrap_or_else(host), 253)
    }

    /// The name of the Secret of the keys of webhook paths.
    pub fn paths_secret(&self) -> String {
        self.paths_secret.clone().unwrap_or_else(|| format!("portcullis-{}-paths", self.policy_server))
    }

    /// The name of the Lease.
    pub fn lease_name(&self) -> String {
        self.lease_name.clone().unwrap_or_else(|| format!("portcullis-{}-controller", self.policy_server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arguments: &[&str]) -> String {
        let base = ["portcullis-controller", "--namespace", "portcullis", "--service", "policy-server"];
        let args = Args::try_parse_from(base.iter().chain(arguments)).expect("parses");
        args.check().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn policies_are_checked_only_if_a_setting_says_so() {
        let parse = |arguments: &[&str]| {
            let base = ["portcullis-controller", "--namespace", "portcullis", "--service", "policy-server"];
            Args::try_parse_from(base.iter().chain(arguments)).map(|args| args.policy_checks).ok()
        };
        assert_eq!(parse(&[]), Some(PolicyChecks::Off));
        assert_eq!(parse(&["--policy-checks", "warn"]), Some(PolicyChecks::Warn));
        assert_eq!(parse(&["--policy-checks=deny"]), Some(PolicyChecks::Deny));
        assert_eq!(parse(&["--policy-checks", "on"]), None);
    }

    #[test]
    fn webhooks_may_have_more_labels() {
        let parse = |arguments: &[&str]| {
            let base = ["portcullis-controller", "--namespace", "portcullis", "--service", "policy-server"];
            Args::try_parse_from(base.iter().chain(arguments)).map(|args| args.webhook_labels)
        };
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            parse(&["--webhook-label=admissions.enforcer/disabled=true", "--webhook-label=team=a"]).expect("labels"),
            [pair("admissions.enforcer/disabled", "true"), pair("team", "a")]
        );
        let refusal = parse(&["--webhook-label=team=no spaces"]).expect_err("no label").to_string();
        assert!(refusal.contains("--webhook-label") && refusal.contains("no value of a label"), "{refusal}");
    }

    #[test]
    fn a_bad_setting_is_named() {
        assert_eq!(check(&[]), "");
        assert!(check(&["--policy-server", "a.b"]).starts_with("--policy-server: want at most 63"));
        assert!(check(&["--lease-name", "No"]).starts_with("--lease-name: \"No\" is not a valid name"));
        assert!(check(&["--policies-per-namespace", "0"]).starts_with("--policies-per-namespace: want 1"));
        for timeout in ["900ms", "31s"] {
            assert!(
                check(&["--policy-checks-timeout", timeout]).starts_with("--policy-checks-timeout: want 1s to 30s")
            );
        }
        assert_eq!(check(&["--policy-checks-timeout", "30s"]), "");
        assert!(check(&["--webhooks-per-namespace", "0"]).starts_with("--webhooks-per-namespace: want 1"));
        assert!(check(&["--path-key-age", "10m"]).starts_with("--path-key-age: is too short"));
        assert!(
            check(&["--paths-secret", "portcullis-default-ca"])
                .starts_with("--paths-secret: is also the Secret of --ca")
        );
        assert!(check(&["--parallel-writes", "0"]).starts_with("--parallel-writes: want 1 to 256"));
    }
}
