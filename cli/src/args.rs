//! Arguments.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// WebAssembly policies for Kubernetes admission, on this machine: run them, ask them, see how they do.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "portcullis",
    version,
    after_help = "Examples:\n  \
        portcullis run examples                              # serve a folder of policies\n  \
        portcullis get --dir examples                        # how are they?\n  \
        portcullis describe no-privileged --dir examples     # why?\n  \
        portcullis eval policy.yaml pod.yaml                 # what would it say?"
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Serve a folder of policies, with no cluster.
    ///
    /// Starts loader, evaluator and reporter. The folder holds Policy and ClusterPolicy manifests (YAML or JSON). It is
    /// watched: an edit counts at once, and a policy that breaks goes on answering as it last worked. Ctrl-C stops everything.
    ///
    /// Volume, certificates, status and logs are kept in DIR/.portcullis. Other settings of the three programs can be given as
    /// environment variables, see `portcullis-loader --help`, `portcullis-evaluator --help` and `portcullis-reporter --help`.
    Run(RunArgs),
    /// List policies and their state.
    ///
    /// Reads what the reporter has written to DIR/.portcullis/status, while the pod runs and after.
    Get(GetArgs),
    /// Show one policy, or all, with conditions and events.
    ///
    /// The layout is that of `kubectl describe`. Reads what the reporter has written to DIR/.portcullis/status.
    Describe(DescribeArgs),
    /// Judge one request by one policy, offline.
    ///
    /// Starts the real loader and evaluator for this one question, without a pod and without a cluster. Compiled modules are
    /// kept in the user's cache folder.
    ///
    /// Exit status: 0 admitted, 1 rejected, 2 could not judge.
    Eval(EvalArgs),
    /// Print a completion script for a shell.
    #[command(after_help = "Examples:\n  \
        source <(portcullis completion bash)\n  \
        portcullis completion zsh > ~/.zfunc/_portcullis\n  \
        portcullis completion fish > ~/.config/fish/completions/portcullis.fish")]
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// Print the version.
    Version,
}

/// The arguments of `portcullis run`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis run examples\n  \
    portcullis run policies --plain-http --address 127.0.0.1:8080\n  \
    portcullis run policies --module-root ~/modules        # also modules from elsewhere\n  \
    portcullis run . --policies policies.yml               # a Kubewarden policies.yml\n  \
    portcullis run policies --address 127.0.0.1:0 --probe-address 127.0.0.1:0   # any free ports")]
pub struct RunArgs {
    /// The folder of policies.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// Where admission reviews are answered. Port 0 takes a free one.
    #[arg(long, env = "PORTCULLIS_ADDRESS", default_value = "127.0.0.1:8443")]
    pub address: SocketAddr,

    /// Where the evaluator's probes and metrics are served; the loader's and the reporter's are on the next two ports. Port 0
    /// takes free ones.
    #[arg(long, env = "PORTCULLIS_PROBE_ADDRESS", value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    pub probe_address: SocketAddr,

    /// Answer plain HTTP instead of TLS with a certificate of our own.
    #[arg(long, env = "PORTCULLIS_PLAIN_HTTP")]
    pub plain_http: bool,

    /// The folder for compiled modules and the manifest; DIR/.portcullis/volume where absent.
    #[arg(long, env = "PORTCULLIS_VOLUME", value_name = "PATH")]
    pub volume: Option<PathBuf>,

    /// A further folder that `file:` modules may lie in. May be given several times.
    #[arg(long = "module-root", env = "PORTCULLIS_MODULE_ROOT", value_name = "PATH", value_delimiter = ',')]
    pub module_roots: Vec<PathBuf>,

    /// A Kubewarden policies.yml to serve instead of manifests.
    #[arg(long, env = "PORTCULLIS_POLICIES", value_name = "FILE")]
    pub policies: Option<PathBuf>,

    /// How policies are shown: a live table, or a line for each change.
    #[arg(long, env = "PORTCULLIS_TABLE", value_enum, default_value = "auto")]
    pub table: TableMode,

    /// Print the logs of the three programs to standard error as well.
    #[arg(long)]
    pub logs: bool,
}

/// How policies are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TableMode {
    /// A live table on a terminal, lines elsewhere.
    Auto,
    /// A table that is redrawn in place.
    Live,
    /// A line for each change.
    Lines,
}

/// The arguments of `portcullis get`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis get\n  \
    portcullis get no-privileged --dir examples -o wide\n  \
    portcullis get namespaced/default/required-labels -o yaml")]
pub struct GetArgs {
    /// A policy: its id (cluster/NAME, namespaced/NAMESPACE/NAME), or its name if only one has it.
    #[arg(value_name = "POLICY")]
    pub policy: Option<String>,

    /// The folder of policies.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,

    /// The form of the output.
    #[arg(long, short, value_enum, default_value = "table")]
    pub output: OutputForm,
}

/// The form of a list of policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputForm {
    /// A table.
    Table,
    /// A table with all columns.
    Wide,
    /// JSON objects.
    Json,
    /// YAML objects.
    Yaml,
    /// Ids only.
    Name,
}

/// The arguments of `portcullis describe`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis describe no-privileged --dir examples\n  \
    portcullis describe                                # all policies")]
pub struct DescribeArgs {
    /// A policy: its id (cluster/NAME, namespaced/NAMESPACE/NAME), or its name if only one has it. All where absent.
    #[arg(value_name = "POLICY")]
    pub policy: Option<String>,

    /// The folder of policies.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

/// The arguments of `portcullis eval`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis eval examples/no-privileged.yaml examples/requests/pod-privileged.json\n  \
    kubectl get deployment shop -o yaml | portcullis eval policy.yaml -\n  \
    portcullis eval policies.yaml pod.yaml --policy no-privileged -o json")]
pub struct EvalArgs {
    /// A manifest with a Policy or ClusterPolicy. A relative module path starts at its folder.
    #[arg(value_name = "POLICY.yaml")]
    pub manifest: PathBuf,

    /// An AdmissionReview, its request alone, or a Kubernetes object, which is judged as if it were created; JSON or YAML,
    /// `-` for standard input.
    #[arg(value_name = "REQUEST.json")]
    pub request: PathBuf,

    /// Which policy, when the manifest has several: its name or id.
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,

    /// A further folder that `file:` modules may lie in. May be given several times.
    #[arg(long = "module-root", value_name = "PATH")]
    pub module_roots: Vec<PathBuf>,

    /// The form of the output.
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: EvalForm,
}

/// The form of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EvalForm {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}
