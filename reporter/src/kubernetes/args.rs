//! Settings of the output to Kubernetes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use portcullis_kubernetes::is_object_name;
use portcullis_process::{SettingError, Switch, parse_duration};

use crate::audit::AuditFormat;

/// Where the reporter writes in Kubernetes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Kubernetes")]
pub struct KubernetesArgs {
    /// The namespace of the installation. With it, this pod's report is written there, and the status of policies by whichever
    /// reporter holds the Lease.
    #[arg(long, env = "PORTCULLIS_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,

    /// The name of the installation: policies with this `policyServer` are ours.
    #[arg(long, env = "PORTCULLIS_POLICY_SERVER", value_name = "NAME", default_value = "default")]
    pub policy_server: String,

    /// The uid of this pod; the variable POD_UID where absent.
    #[arg(long, env = "PORTCULLIS_POD_UID", value_name = "UID")]
    pub pod_uid: Option<String>,

    /// The node of this pod; the variable NODE_NAME where absent.
    #[arg(long, env = "PORTCULLIS_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,

    /// The Service whose ready pods are the expected replicas.
    #[arg(long, env = "PORTCULLIS_SERVICE", value_name = "NAME")]
    pub service: Option<String>,

    /// The Lease of the replica that writes status; portcullis-<policy server>-reporter where absent.
    #[arg(long, env = "PORTCULLIS_LEASE_NAME", value_name = "NAME")]
    pub lease_name: Option<String>,

    /// How to reach the API server; the file that KUBECONFIG names, or the pod's own account, where absent.
    #[arg(long, env = "PORTCULLIS_KUBECONFIG", value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,

    /// How often this pod's report is renewed when nothing changes.
    #[arg(long, env = "PORTCULLIS_HEARTBEAT", value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub heartbeat: Duration,

    /// A replica whose report was not renewed for so long is Unknown.
    #[arg(
        long,
        env = "PORTCULLIS_REPORT_LIFETIME",
        value_name = "TIME",
        default_value = "150s",
        value_parser = parse_duration
    )]
    pub report_lifetime: Duration,

    /// Most writes of status in a second, of all policies together.
    #[arg(long, env = "PORTCULLIS_STATUS_WRITES", value_name = "NUMBER", default_value = "120", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub status_writes: u32,

    /// Longest watch: a connection that has died without a word is noticed after this, and that of reports before a replica would count as Unknown.
    #[arg(
        long,
        env = "PORTCULLIS_WATCH_LIMIT",
        value_name = "TIME",
        default_value = "5m",
        value_parser = parse_duration
    )]
    pub watch_limit: Duration,

    /// Whether the objects that exist are audited: the reporter that holds the Lease asks its pod's evaluator what each policy says about
    /// them, and writes reports and a summary into the policy's status.
    #[arg(long, env = "PORTCULLIS_AUDIT_SCAN", value_name = "on|off", value_enum, default_value = "off")]
    pub audit: Switch,

    /// How often all objects are audited. Those that have not changed, under policies that have not changed, are not asked about again.
    #[arg(
        long,
        env = "PORTCULLIS_AUDIT_INTERVAL",
        value_name = "TIME",
        default_value = "1h",
        value_parser = parse_duration
    )]
    pub audit_interval: Duration,

    /// The format of the audit's reports.
    #[arg(long, env = "PORTCULLIS_AUDIT_FORMAT", value_name = "NAME", value_enum, default_value = "openreports")]
    pub audit_format: AuditFormat,
}

/// The pod and the installation of this reporter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) namespace: String,
    pub(crate) policy_server: String,
    pub(crate) pod: String,
    pub(crate) pod_uid: String,
    pub(crate) node: String,
}

/// Checked settings.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) identity: Identity,
    pub(crate) service: String,
    pub(crate) lease_name: String,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) heartbeat: Duration,
    pub(crate) report_lifetime: Duration,
    pub(crate) status_writes: u32,
    pub(crate) watch_limit: Duration,
    /// The settings of the audit; none where there is no audit.
    pub(crate) audit: Option<AuditSettings>,
}

/// Settings of the audit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AuditSettings {
    pub(crate) interval: Duration,
    pub(crate) format: AuditFormat,
}

impl Settings {
    /// After which time a silent watch of reports counts as dead. That is before the silence of pods is believed, as it may be due to the watch: a
    /// heartbeat may be about to come when the connection dies, so its time is taken off, and of the rest some is left for reading the reports again.
    pub(crate) fn reports_watch_limit(&self) -> Duration {
        self.watch_limit.min(self.report_lifetime.saturating_sub(self.heartbeat) / 4 * 3)
    }
}

impl KubernetesArgs {
    /// The settings; none without a namespace, as there is then no output to Kubernetes. `variable` reads the environment.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub(crate) fn settings(
        &self,
        pod_name: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Settings>, SettingError> {
        let Some(namespace) = &self.namespace else { return Ok(None) };
        let given = |setting: &str, value: Option<&str>, name: &str| {
            let value = value.map(str::to_owned).or_else(|| variable(name)).filter(|value| !value.is_empty());
            value.ok_or_else(|| {
                SettingError::new(setting, format!("needed in Kubernetes: set it, or {name} from the downward API"))
            })
        };
        let pod = given("--pod-name", pod_name, "POD_NAME")?;
        let pod_uid = given("--pod-uid", self.pod_uid.as_deref(), "POD_UID")?;
        let node = self.node_name.clone().or_else(|| variable("NODE_NAME")).unwrap_or_default();
        let service = self.service.clone().filter(|service| !service.is_empty());
        let service = service.ok_or_else(|| {
            SettingError::new("--service", "needed in Kubernetes: its ready pods are the replicas that count")
        })?;
        let lease_name =
            self.lease_name.clone().unwrap_or_else(|| format!("portcullis-{}-reporter", self.policy_server));
        for (setting, name) in [
            ("--namespace", namespace),
            ("--policy-server", &self.policy_server),
            ("--pod-name", &pod),
            ("--service", &service),
            ("--lease-name", &lease_name),
        ] {
            if !is_object_name(name) {
                let problem = format!("{name:?} is not a valid object name: want lower-case letters, digits, - and .");
                return Err(SettingError::new(setting, problem));
            }
        }
        if self.heartbeat < Duration::from_millis(100) {
            return Err(SettingError::new("--heartbeat", "want at least 100ms"));
        }
        if self.report_lifetime < self.heartbeat * 2 {
            let problem = "want at least twice --heartbeat, so that one late renewal takes no replica away";
            return Err(SettingError::new("--report-lifetime", problem));
        }
        if self.audit_interval < Duration::from_secs(1) {
            return Err(SettingError::new("--audit-interval", "want at least 1s"));
        }
        let audit = AuditSettings { interval: self.audit_interval, format: self.audit_format };
        let identity = Identity {
            namespace: namespace.clone(),
            policy_server: self.policy_server.clone(),
            pod,
            pod_uid,
            node: portcullis_contract::clean(&node, 253),
        };
        Ok(Some(Settings {
            identity,
            service,
            lease_name,
            kubeconfig: self.kubeconfig.clone(),
            heartbeat: self.heartbeat,
            report_lifetime: self.report_lifetime,
            status_writes: self.status_writes,
            watch_limit: self.watch_limit.max(Duration::from_secs(6)),
            audit: self.audit.is_on().then_some(audit),
        }))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        kubernetes: KubernetesArgs,
    }

    pub(in crate::kubernetes) fn settings(arguments: &[&str]) -> Result<Option<Settings>, String> {
        let only = Only::try_parse_from(["reporter"].iter().chain(arguments)).expect("parses");
        let variable = |name: &str| (name == "POD_UID").then(|| "uid".to_owned());
        only.kubernetes.settings(Some("pod-a"), variable).map_err(|error| error.to_string())
    }

    #[test]
    fn without_a_namespace_there_is_no_such_output() {
        assert!(settings(&[]).expect("fine").is_none());
    }

    #[test]
    fn the_lease_is_named_after_the_installation() {
        let settings = settings(&["--namespace", "ns", "--service", "s", "--policy-server", "eu"]).expect("fine");
        let settings = settings.expect("wanted");
        assert_eq!(settings.lease_name, "portcullis-eu-reporter");
        assert_eq!((settings.identity.pod.as_str(), settings.identity.pod_uid.as_str()), ("pod-a", "uid"));
    }

    #[test]
    fn fault_r07_r27_the_times_are_those_of_the_rows_where_nothing_is_set() {
        let settings = settings(&["--namespace", "ns", "--service", "s"]).expect("fine").expect("wanted");
        assert_eq!(settings.watch_limit, Duration::from_secs(300));
        assert_eq!((settings.report_lifetime, settings.heartbeat), (Duration::from_secs(150), Duration::from_secs(60)));
        assert_eq!(settings.reports_watch_limit(), Duration::from_millis(67_500));
    }

    #[test]
    fn a_dead_watch_of_reports_is_noticed_before_the_silence_of_pods_is_believed() {
        for more in [
            &[][..],
            &["--watch-limit", "1h"],
            &["--report-lifetime", "120s"],
            &["--heartbeat", "10m", "--report-lifetime", "1h"],
            &["--watch-limit", "10s"],
        ] {
            let settings = settings(&[&["--namespace", "ns", "--service", "s"][..], more].concat());
            let settings = settings.expect("fine").expect("wanted");
            let limit = settings.reports_watch_limit();
            assert!(limit + settings.heartbeat < settings.report_lifetime, "{more:?}: {limit:?}");
            assert!(limit <= settings.watch_limit, "{more:?}: {limit:?}");
        }
    }

    #[test]
    fn there_is_an_audit_only_where_it_is_wanted() {
        let audit = |more: &[&str]| {
            let settings = settings(&[&["--namespace", "ns", "--service", "s"][..], more].concat());
            settings.expect("fine").expect("wanted").audit.map(|audit| (audit.interval.as_secs(), audit.format))
        };
        assert_eq!(audit(&[]), None);
        assert_eq!(audit(&["--audit", "on"]), Some((3600, AuditFormat::Openreports)));
        let other = ["--audit", "on", "--audit-interval", "10m", "--audit-format", "wgpolicy"];
        assert_eq!(audit(&other), Some((600, AuditFormat::Wgpolicy)));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let base = ["--namespace", "ns", "--service", "s"];
        let error = |more: &[&str]| settings(&[&base[..], more].concat()).map(|_| ()).expect_err("refused");
        assert!(error(&["--report-lifetime", "100s"]).starts_with("--report-lifetime: want at least twice"));
        assert!(error(&["--heartbeat", "1ms"]).starts_with("--heartbeat"));
        assert!(error(&["--audit-interval", "1ms"]).starts_with("--audit-interval: want at least 1s"));
        assert!(error(&["--lease-name", "../a"]).starts_with("--lease-name: \"../a\" is not a valid object name"));
        assert!(settings(&["--namespace", "ns"]).expect_err("refused").starts_with("--service: needed"));
    }
}
