//! The settings.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use portcullis_contract::{Capability, Signal};
use portcullis_process::telemetry::{OtlpSettings, Traces, is_off};
use portcullis_process::{LogArgs, SettingError, Switch, format_bytes, parse_bytes, parse_duration};

use crate::http::route::OpenPaths;
use crate::memory::Wanted;

/// Smallest folder of private copies, in bytes. The chart checks the same limit.
const LEAST_PRIVATE: u64 = 32 << 20;

/// Runs policies from a volume, swaps them live, and answers admission reviews.
#[derive(Debug, Clone, Parser)]
#[command(name = "portcullis-evaluator", version)]
pub struct Args {
    /// The folder that the loader publishes to. It is only read, and need not exist yet.
    #[arg(long, env = "PORTCULLIS_VOLUME", value_name = "PATH")]
    pub volume: PathBuf,

    /// The folder for private copies of the code that runs: for this program's user only, on a disk and not in memory. It is made if
    /// it does not exist.
    #[arg(long, env = "PORTCULLIS_PRIVATE_DIR", value_name = "PATH")]
    pub private_dir: PathBuf,

    /// The largest size of that folder; without it, the disk is the limit. A pod whose folder outgrows its limit is evicted, so a policy
    /// whose copy does not fit below this size fails to load, and what serves keeps serving.
    #[arg(long, env = "PORTCULLIS_PRIVATE_SIZE", value_name = "BYTES", value_parser = parse_bytes)]
    pub private_size: Option<u64>,

    /// Where admission reviews are answered.
    #[arg(long, env = "PORTCULLIS_ADDRESS", value_name = "ADDRESS", default_value = "[::]:8443")]
    pub address: SocketAddr,

    /// Where /livez, /readyz, /healthz/certificate and /metrics are served.
    #[arg(long, env = "PORTCULLIS_PROBE_ADDRESS", value_name = "ADDRESS", default_value = "[::]:8081")]
    pub probe_address: SocketAddr,

    /// Where loader and reporter read the state, the reporter asks about objects that exist (/audit/<policy>), and /healthz/policies is
    /// served; on the loopback only.
    #[arg(long, env = "PORTCULLIS_STATE_ADDRESS", value_name = "ADDRESS", default_value = "127.0.0.1:9081")]
    pub state_address: SocketAddr,

    /// The folder with tls.crt, which may be a chain, and tls.key. They are read again when they change.
    #[arg(long, env = "PORTCULLIS_TLS_DIR", value_name = "PATH", conflicts_with = "plain_http")]
    pub tls_dir: Option<PathBuf>,

    /// The folder with the file `keys`, with which the controller makes the paths of webhooks. Then only these paths are answered; requests
    /// to others are refused by their head alone. It is read again when it changes; until it can be read, no request is answered.
    #[arg(long, env = "PORTCULLIS_PATH_KEYS", value_name = "PATH")]
    pub path_keys: Option<PathBuf>,

    /// Serve without TLS, for use on this machine.
    #[arg(long, env = "PORTCULLIS_PLAIN_HTTP")]
    pub plain_http: bool,

    /// The file with the authorities of client certificates; with it, every client needs a certificate.
    #[arg(long, env = "PORTCULLIS_CLIENT_CA", value_name = "FILE", conflicts_with = "plain_http")]
    pub client_ca: Option<PathBuf>,

    /// With --client-ca: the name of a client that may send requests, as the common name or a DNS name of its certificate. May be given
    /// several times; without it, any client with a certificate may.
    #[arg(long, env = "PORTCULLIS_CLIENT_NAME", value_name = "NAME", requires = "client_ca")]
    pub client_name: Vec<String>,

    /// The time limit of evaluations, for policies that set none of their own.
    #[arg(long, env = "PORTCULLIS_POLICY_TIMEOUT", value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub policy_timeout: Duration,

    /// The memory limit of one policy instance.
    #[arg(long, env = "PORTCULLIS_MEMORY_LIMIT", value_name = "BYTES", default_value = "128MiB", value_parser = parse_bytes)]
    pub memory_limit: u64,

    /// The memory that this program may use in all; by default the container's limit, or half of the machine's memory where there is
    /// none. Instances and requests wait for memory rather than exceed it.
    #[arg(long, env = "PORTCULLIS_TOTAL_MEMORY", value_name = "BYTES", value_parser = parse_bytes)]
    pub total_memory: Option<u64>,

    /// The processors to plan threads and shares for; by default the container's CPU limit, or those of the machine where there is none.
    /// Set it on large nodes without a CPU limit, where this program should use few of them.
    #[arg(long, env = "PORTCULLIS_CORES", value_name = "N")]
    pub cores: Option<u16>,

    /// Maximum number of policy instances at the same time.
    #[arg(long, env = "PORTCULLIS_INSTANCES", value_name = "N", default_value_t = 128)]
    pub instances: u32,

    /// How long this replica waits, after its first manifest and each further policy that is loaded, until it becomes ready without the rest: ten
    /// times that in all at most, three times where only policies of namespaces are missing, and once where they are of one namespace.
    #[arg(long, env = "PORTCULLIS_START_GATE", value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub start_gate: Duration,

    /// How often the volume is checked when no event comes.
    #[arg(long, env = "PORTCULLIS_POLL_INTERVAL", value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub poll_interval: Duration,

    /// For how long more than 5 % of a policy's evaluations must fail before an event reports it.
    #[arg(long, env = "PORTCULLIS_ERROR_WINDOW", value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    pub error_window: Duration,

    /// How long requests are still answered after the signal to end, until all clients know that this replica is not ready.
    #[arg(long, env = "PORTCULLIS_DRAIN_DELAY", value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub drain_delay: Duration,

    /// How long running requests may take after that.
    #[arg(long, env = "PORTCULLIS_GRACE", value_name = "TIME", default_value = "20s", value_parser = parse_duration)]
    pub grace: Duration,

    /// The largest body of a request.
    #[arg(long, env = "PORTCULLIS_MAX_BODY", value_name = "BYTES", default_value = "7MiB", value_parser = parse_bytes)]
    pub max_body: u64,

    /// Maximum number of connections. Beyond it one makes room: stalled ones go first, then those of clients that no review was
    /// answered for. One that is being answered stays; while all are, a new one is refused.
    #[arg(long, env = "PORTCULLIS_MAX_CONNECTIONS", value_name = "N", default_value_t = 4096)]
    pub max_connections: u32,

    /// Maximum number of requests under way. A policy, and all policies of a namespace, may have as many of them as remain free.
    /// Beyond that requests are answered at once as Overloaded, by each policy's failurePolicy.
    #[arg(long, env = "PORTCULLIS_MAX_REQUESTS", value_name = "N", default_value_t = 2048)]
    pub max_requests: u32,

    /// Whether paths that name a policy are open to every client: /validate/<policy> at --address, and /healthz/policies at
    /// --probe-address. API servers call match groups and do not need them. Where policies have several owners, any client that
    /// reaches the ports could ask any policy anything and learn which policies exist.
    #[arg(long, env = "PORTCULLIS_POLICY_PATHS", value_enum, default_value = "off")]
    pub policy_paths: Switch,

    /// Whether /audit/<policy> is open too. Needs --policy-paths on.
    #[arg(long, env = "PORTCULLIS_AUDIT", value_enum, default_value = "off")]
    pub audit: Switch,

    /// Whether /validate_raw/<policy> is open too. Needs --policy-paths on.
    #[arg(long, env = "PORTCULLIS_VALIDATE_RAW", value_enum, default_value = "off")]
    pub validate_raw: Switch,

    /// How much of one core's time the reporter's questions about objects that exist may take, in percent.
    #[arg(long, env = "PORTCULLIS_AUDIT_SHARE", value_name = "PERCENT", default_value_t = 25)]
    pub audit_share: u8,

    /// Also count evaluations under the names and labels of Kubewarden's metrics.
    #[arg(long, env = "PORTCULLIS_KUBEWARDEN_METRICS")]
    pub kubewarden_metrics: bool,

    /// The socket at which the loader connects, to provide what policies ask their host for: registries, name lookups, the API server.
    /// Without it those host capabilities fail. The folder must be this program's and the loader's alone.
    #[arg(long, env = "PORTCULLIS_BROKER_SOCKET", value_name = "PATH")]
    pub broker_socket: Option<PathBuf>,

    /// The user that the loader runs as; nobody else may connect. By default this program's own.
    #[arg(long, env = "PORTCULLIS_BROKER_USER", value_name = "UID", requires = "broker_socket")]
    pub broker_user: Option<u32>,

    /// Hand questions of policies about certificates to the loader too, which records what policies ask their host for, or answers it from a
    /// recording. Without it, this program answers them itself.
    #[arg(long, env = "PORTCULLIS_BROKER_CERTIFICATES", requires = "broker_socket")]
    pub broker_certificates: bool,

    /// A host capability that Policies, which belong to a namespace, may be granted by those who write them: *, a prefix like oci/*, or a path
    /// like cache/set. May be given several times; without any they have none. Give the loader the same. ClusterPolicies are not limited.
    #[arg(long, env = "PORTCULLIS_NAMESPACED_CAPABILITY", value_name = "PATTERN", value_delimiter = ',')]
    pub namespaced_capability: Vec<String>,

    /// Spans go to the loader over the broker's socket; it posts them to the collector of its own OTEL_EXPORTER_OTLP_ENDPOINT. On by default
    /// where this program has an endpoint in its environment.
    #[arg(long, env = "PORTCULLIS_EXPORT_TRACES", requires = "broker_socket")]
    pub export_traces: bool,

    /// Hand metrics to the loader likewise, every OTEL_METRIC_EXPORT_INTERVAL milliseconds.
    #[arg(long, env = "PORTCULLIS_EXPORT_METRICS", requires = "broker_socket")]
    pub export_metrics: bool,

    /// Keep the right to files, connections and other programs. For debuggers and profilers.
    #[arg(long, env = "PORTCULLIS_NO_CONFINEMENT", hide = true)]
    pub no_confinement: bool,

    /// Logs.
    #[command(flatten)]
    pub log: LogArgs,
}

impl Args {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn check(&self) -> Result<(), SettingError> {
        let refuse = |setting: &str, problem: &str| Err(SettingError::new(setting, problem));
        if self.tls_dir.is_none() && !self.plain_http {
            return refuse("--tls-dir", "name the folder with tls.crt and tls.key, or say --plain-http");
        }
        if self.client_ca.is_some() && self.tls_dir.is_none() {
            return refuse("--client-ca", "clients show certificates under TLS only; name --tls-dir as well");
        }
        if !self.state_address.ip().is_loopback() {
            let problem = format!("{} is not on the loopback; the state is served there only", self.state_address);
            return refuse("--state-address", &problem);
        }
        if self.volume.is_file() {
            return refuse("--volume", &format!("{} is a file; name the loader's folder", self.volume.display()));
        }
        if self.private_dir.is_file() {
            return refuse("--private-dir", &format!("{} is a file; name a folder", self.private_dir.display()));
        }
        if self.private_dir.starts_with(&self.volume) {
            return refuse("--private-dir", "it is within the volume, which the loader writes; name another folder");
        }
        let policy_paths = [("--audit", self.audit), ("--validate-raw", self.validate_raw)];
        if let Some((setting, _)) = policy_paths.iter().find(|(_, switch)| switch.is_on() && !self.policy_paths.is_on())
        {
            return refuse(setting, "its paths name policies and are closed; set --policy-paths on as well");
        }
        Capability::check_patterns(&self.namespaced_capability)
            .map_err(|error| SettingError::new("--namespaced-capability", error.to_string()))?;
        let zero = [
            ("--policy-timeout", self.policy_timeout.is_zero()),
            ("--poll-interval", self.poll_interval.is_zero()),
            ("--grace", self.grace.is_zero()),
            ("--instances", self.instances == 0),
            ("--max-connections", self.max_connections == 0),
            ("--max-requests", self.max_requests == 0),
            ("--max-body", self.max_body == 0),
        ];
        if let Some((setting, _)) = zero.iter().find(|(_, is_zero)| *is_zero) {
            return refuse(setting, "want more than zero");
        }
        if self.private_size.is_some_and(|size| size < LEAST_PRIVATE) {
            return refuse("--private-size", "want at least 32MiB");
        }
        if self.error_window < Duration::from_secs(1) {
            return refuse("--error-window", "want at least 1s");
        }
        if !(2 << 20..=4 << 30).contains(&self.memory_limit) {
            return refuse(
                "--memory-limit",
                "want 2MiB, which policies may have from the start, to 4GiB, which is all that they can address",
            );
        }
        if self.cores.is_some_and(|cores| !(1..=1024).contains(&cores)) {
            return refuse("--cores", "want 1 to 1024");
        }
        if !(1..=100).contains(&self.audit_share) {
            return refuse("--audit-share", "want 1 to 100");
        }
        if self.max_body > 1 << 30 {
            return refuse("--max-body", "want at most 1GiB");
        }
        let least = self.wanted().least();
        if let Some(total) = self.total_memory.filter(|total| *total < least) {
            let least = least.next_multiple_of(1 << 20);
            let problem = format!(
                "{} is too little for {} instances of up to {}; want at least {}, or make --instances or --memory-limit smaller",
                format_bytes(total),
                self.instances,
                format_bytes(self.memory_limit),
                format_bytes(least)
            );
            return refuse("--total-memory", &problem);
        }
        Ok(())
    }

    /// The collection of spans; none if they are not exported.
    pub fn traces(&self) -> Option<Traces> {
        self.exports(Signal::Traces).then(|| Traces::new("portcullis-evaluator"))
    }

    /// Whether a kind of telemetry is exported: by its flag, or because the environment has an endpoint for it, as for programs that connect
    /// to it themselves.
    pub(crate) fn exports(&self, signal: Signal) -> bool {
        let settings = OtlpSettings::from_env();
        let is_wanted = match signal {
            Signal::Traces => self.export_traces || matches!(settings.traces, Ok(Some(_))),
            Signal::Metrics => self.export_metrics || matches!(settings.metrics, Ok(Some(_))),
        };
        self.broker_socket.is_some() && is_wanted && !is_off(signal)
    }

    /// Which paths are open beside those of match groups. That of checks is open where a loader can answer.
    pub(crate) fn open_paths(&self) -> OpenPaths {
        OpenPaths {
            validate: self.policy_paths.is_on(),
            audit: self.audit.is_on(),
            validate_raw: self.validate_raw.is_on(),
            check: self.broker_socket.is_some(),
        }
    }

    /// What the memory must be enough for.
    pub(crate) fn wanted(&self) -> Wanted {
        Wanted { instances: self.instances.into(), memory_limit: self.memory_limit, max_body: self.max_body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arguments: &[&str]) -> String {
        let base = ["portcullis-evaluator", "--volume", "volume", "--private-dir", "private"];
        match Args::try_parse_from(base.iter().chain(arguments)) {
            Ok(args) => args.check().err().map(|error| error.to_string()).unwrap_or_default(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_setting_that_cannot_be_used_is_named() {
        assert_eq!(check(&["--plain-http"]), "");
        assert_eq!(check(&["--tls-dir", "tls", "--client-ca", "ca.pem"]), "");
        assert_eq!(check(&["--tls-dir", "tls", "--client-ca", "ca.pem", "--client-name", "a"]), "");
        for (arguments, setting) in [
            (&[] as &[&str], "--tls-dir: "),
            (&["--tls-dir", "tls", "--client-name", "a"], "error: the following required arguments were not provided:"),
            (&["--plain-http", "--state-address", "0.0.0.0:1"], "--state-address: 0.0.0.0:1 is not on"),
            (&["--plain-http", "--policy-timeout", "0s"], "--policy-timeout: want more"),
            (&["--plain-http", "--instances", "0"], "--instances: want more"),
            (&["--plain-http", "--memory-limit", "5GiB"], "--memory-limit: want"),
            (&["--plain-http", "--memory-limit", "1MiB"], "--memory-limit: want"),
            (
                &["--plain-http", "--total-memory", "512MiB"],
                "--total-memory: 512MiB is too little for 128 instances of up to ",
            ),
            (&["--plain-http", "--total-memory", "1GiB"], ""),
            (&["--plain-http", "--audit", "on"], "--audit: its paths name policies"),
            (&["--plain-http", "--validate-raw", "on"], "--validate-raw: its paths name policies"),
            (&["--plain-http", "--policy-paths", "on", "--audit", "on", "--validate-raw", "on"], ""),
            (&["--plain-http", "--audit-share", "0"], "--audit-share: want 1 to 100"),
            (&["--plain-http", "--audit-share", "101"], "--audit-share: want 1 to 100"),
            (&["--plain-http", "--audit-share", "100"], ""),
            (&["--plain-http", "--private-size", "31MiB"], "--private-size: want at least 32MiB"),
            (
                &["--plain-http", "--namespaced-capability", "cache"],
                "--namespaced-capability: hostCapabilities: \"cache\" is none of",
            ),
            (&["--plain-http", "--namespaced-capability", "cache/*,oci/v1/verify"], ""),
            (&["--plain-http", "--cores", "0"], "--cores: want 1 to 1024"),
            (&["--plain-http", "--tls-dir", "tls"], "error: the argument '--"),
            (&["--plain-http", "--max-body", "7MB"], "error: invalid value '7MB'"),
        ] {
            assert!(check(arguments).starts_with(setting), "{arguments:?}: {}", check(arguments));
        }
    }

    #[test]
    fn fault_v15_the_volume_is_checked_as_often_as_the_row_says_where_nothing_is_set() {
        let args = ["portcullis-evaluator", "--volume", "volume", "--private-dir", "private", "--plain-http"];
        let args = Args::try_parse_from(args).expect("parses");
        assert_eq!(args.poll_interval, Duration::from_secs(5));
    }

    #[test]
    fn private_copies_do_not_lie_where_others_write() {
        let args = ["portcullis-evaluator", "--volume", "v", "--private-dir", "v/private", "--plain-http"];
        let error = Args::try_parse_from(args).expect("parses").check().expect_err("refused");
        assert!(error.to_string().starts_with("--private-dir: it is within"));
    }
}
