//! Arguments.

mod audit;
mod impact;
mod limits;
mod policies;
mod registry;
mod signer;
mod test;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub use audit::AuditArgs;
pub use impact::ImpactArgs;
pub use limits::LimitArgs;
pub use policies::{
    ClusterArgs, DescribeArgs, DiffArgs, GetArgs, HistoryArgs, OutputForm, ResultForm, RollbackArgs, ScopeArgs,
    SourceArgs, TargetArgs,
};
pub use registry::{
    AccessArgs, InspectArgs, LoadArgs, LoaderArgs, PullArgs, PushArgs, RegistryArgs, SaveArgs, VerifyArgs,
};
pub use signer::SignatureArgs;
pub use test::{TestArgs, TestForm};

/// WebAssembly policies for Kubernetes admission: run them, try them, see their state, roll them back.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "portcullis",
    version,
    after_help = "Examples:\n  \
        portcullis run examples                              # serve a folder of policies\n  \
        portcullis get --dir examples                        # how are they?\n  \
        portcullis describe no-privileged --dir examples     # why?\n  \
        portcullis get -A --context staging                  # how are those of a cluster?\n  \
        portcullis rollback no-privileged                    # serve again what worked\n  \
        portcullis eval policy.yaml pod.yaml                 # what would it say?\n  \
        portcullis check policies/                           # would they load?\n  \
        portcullis test tests/                               # do they decide as their tests expect?\n  \
        portcullis impact policy.yaml                        # what would it deny of what is there?\n  \
        portcullis audit                                     # what do those of the cluster deny?"
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
    /// watched: edits and rebuilt modules take effect immediately; a broken policy keeps serving its last good version. Ctrl-C
    /// stops everything.
    ///
    /// Volume, certificates, status and logs are kept in DIR/.portcullis. Other settings of the three programs can be given as
    /// environment variables, see `portcullis-loader --help`, `portcullis-evaluator --help` and `portcullis-reporter --help`.
    ///
    /// Exit status: 0 after Ctrl-C; 1 when a program is missing or does not start, or when a second Ctrl-C stopped it at once; 64 for a bad
    /// argument.
    Run(RunArgs),
    /// List policies and their state.
    ///
    /// Reads the cluster of the kubeconfig, or a folder (--dir, or the current one if `portcullis run` has served it). In a folder it
    /// shows what the reporter has written, also after `portcullis run` has ended.
    Get(GetArgs),
    /// Show one policy, or all, with conditions, replicas, history and events.
    ///
    /// In the manner of `kubectl describe`. The right to read the policy is enough. Events need a right of their own; the output
    /// says so where they cannot be read.
    Describe(DescribeArgs),
    /// List the newest generations of a policy: their modules, and whether they served.
    ///
    /// The right to read the policy is enough: its status keeps the newest ten.
    History(HistoryArgs),
    /// Compare two generations of a policy in a cluster.
    ///
    /// Reads the revisions in the installation's namespace, which takes the right to get controllerrevisions there.
    Diff(DiffArgs),
    /// Serve an earlier generation of a policy again.
    ///
    /// Sets spec.rollbackTo, waits until the policy is Ready, and shows the progress meanwhile. The spec stays as it is and
    /// takes effect again after `--undo`.
    Rollback(RollbackArgs),
    /// Evaluate one request by one policy, offline.
    ///
    /// Starts the real loader and evaluator for this one request, without a pod and without a cluster. Manifest and module are
    /// read again each time. Compiled modules, and nothing else, are kept in the user's cache folder: 64 of them in
    /// XDG_CACHE_HOME/portcullis/artifacts or ~/.cache/portcullis/artifacts, 256 MiB at most.
    ///
    /// What the policy logs goes to standard error; PORTCULLIS_LOG_LEVEL=debug shows more of it. A policy in mode warn or monitor is
    /// asked a second time, as if it were in mode protect, and logs twice. A policy logs about 100 lines or 64 KiB at most; how many more
    /// there were is said at the end.
    ///
    /// Exit status: 0 admitted, 1 rejected, 2 could not be evaluated; 64 for a bad argument.
    Eval(EvalArgs),
    /// Check policies before anybody applies them, offline or in a pipeline.
    ///
    /// Reads the Policy and ClusterPolicy manifests of files and folders, and has the real loader and evaluator load them, without a cluster:
    /// the schema, the module (that it is there, signed as wanted, and compiles), its settings, the expression of a policy group, the syntax
    /// of match conditions. What a module declares and its policy does not grant is a warning.
    ///
    /// Exit status: 0 all would load, 1 one would not, 2 unknown, for instance because a registry cannot be reached; 64 for a bad
    /// argument.
    Check(CheckArgs),
    /// Test what policies answer, offline or in a pipeline.
    ///
    /// Reads the PolicyTests of files and folders, has the real loader and evaluator load their policies, without a cluster, and compares the
    /// answers with what is expected. A policy is asked as in mode protect, and also while it is suspended. A request that an API server would
    /// not ask the policy about, by its rules, selectors and match conditions, fails its case, unless that expects `matched: false`.
    ///
    /// Exit status: 0 all cases passed, 1 one failed, 2 one could not be evaluated, or a file or a folder in a folder cannot be
    /// read; 64 for a bad argument.
    Test(TestArgs),
    /// Say what a policy would do to the objects that are in a cluster already.
    ///
    /// Reads the objects that the policy's rules and selectors name, page by page with your own rights, and has the real loader and evaluator
    /// evaluate each as if it were created now. Nothing is written, and the policy need not be in the cluster.
    ///
    /// Exit status: 0 nothing would be denied, 1 something would be, 2 it could not be found out; 64 for a bad argument.
    Impact(ImpactArgs),
    /// Show which objects of a cluster its policies reject today, as the background audit has found.
    ///
    /// Without POLICY, shows the figures of each policy, from its status. With POLICY, also lists the objects and what the policy says about
    /// them, from reports (OpenReports); this needs the right to list reports. Unlike `impact`, it evaluates nothing.
    ///
    /// Exit status: 0 no object is rejected, 1 at least one is, 2 unknown, for instance because the audit is off; 64 for a bad argument.
    /// With --now and without --wait, 0 says only that the scan has been asked for.
    Audit(AuditArgs),
    /// Translate manifests of Kubewarden, and say what became of each field.
    ///
    /// Policies come as YAML on standard output, ready to apply, and what became of each field on standard error. With --values it is the
    /// Helm values of each PolicyServer instead of the policies.
    ///
    /// Exit status: 0; 1 when an object was left out, for instance because an API server would refuse it, or a file or a folder in a
    /// folder that cannot be read, or when kubectl reads a value as something else, such as `yes`; 2 when there is nothing to translate;
    /// 64 for a bad argument.
    Migrate(MigrateArgs),
    /// Fetch a module from a registry or a web address to a file.
    Pull(PullArgs),
    /// Push a module to a registry, with its metadata.
    ///
    /// Prints the name with the digest that the registry now knows it by.
    Push(PushArgs),
    /// Show what a module is: metadata, digest, imports, exports, rules.
    ///
    /// With --manifest it prints a policy that is made from the metadata.
    Inspect(InspectArgs),
    /// Check who signed a module in a registry.
    Verify(VerifyArgs),
    /// Write modules from registries into one archive, for a place without network.
    ///
    /// The archive is an OCI image layout, and also holds the signatures of the modules.
    Save(SaveArgs),
    /// Push the modules of an archive to a registry.
    Load(LoadArgs),
    /// Print a completion script for a shell.
    ///
    /// In bash, fish, zsh and kubectl it completes commands, options and their values, and the names of policies of the folder or cluster that
    /// the command line names; in elvish and PowerShell commands and options. Completion waits at most one second for
    /// names; PORTCULLIS_COMPLETION_TIMEOUT=5s is for clusters that take longer.
    #[command(after_help = "Examples:\n  \
        source <(portcullis completion bash)                 # in ~/.bashrc\n  \
        source <(portcullis completion zsh)                  # in ~/.zshrc, below compinit\n  \
        portcullis completion zsh > ~/.zfunc/_portcullis     # or in a folder of fpath\n  \
        portcullis completion fish > ~/.config/fish/completions/portcullis.fish\n  \
        portcullis completion kubectl > ~/bin/kubectl_complete-portcullis\n  \
    chmod +x ~/bin/kubectl_complete-portcullis")]
    Completion {
        /// The shell; or kubectl, for `kubectl portcullis`.
        shell: CompletionFor,
    },
    /// Print the possible completions of the last of these words.
    #[command(name = "__complete", hide = true)]
    Complete {
        /// The words behind the name of the program.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Print the version.
    Version,
}

/// What a completion script is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompletionFor {
    /// Bash.
    Bash,
    /// Elvish.
    Elvish,
    /// Fish.
    Fish,
    /// PowerShell.
    Powershell,
    /// Zsh.
    Zsh,
    /// The script `kubectl_complete-portcullis`, which kubectl looks for on PATH.
    Kubectl,
}

impl CompletionFor {
    /// The shell; `None` for kubectl.
    pub fn shell(self) -> Option<Shell> {
        match self {
            Self::Bash => Some(Shell::Bash),
            Self::Elvish => Some(Shell::Elvish),
            Self::Fish => Some(Shell::Fish),
            Self::Powershell => Some(Shell::PowerShell),
            Self::Zsh => Some(Shell::Zsh),
            Self::Kubectl => None,
        }
    }
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

    /// The folder for compiled modules and the manifest; default: DIR/.portcullis/volume.
    #[arg(long, env = "PORTCULLIS_VOLUME", value_name = "PATH")]
    pub volume: Option<PathBuf>,

    /// A further folder that `file:` modules may lie in. May be given several times.
    #[arg(long = "module-root", env = "PORTCULLIS_MODULE_ROOT", value_name = "PATH", value_delimiter = ',')]
    pub module_roots: Vec<PathBuf>,

    /// A Kubewarden policies.yml to serve instead of manifests.
    #[arg(long, env = "PORTCULLIS_POLICIES", value_name = "FILE")]
    pub policies: Option<PathBuf>,

    /// Also count evaluations under the names and labels of Kubewarden's metrics.
    #[arg(long, env = "PORTCULLIS_KUBEWARDEN_METRICS")]
    pub kubewarden_metrics: bool,

    /// How policies are shown: a live table, or a line for each change.
    #[arg(long, env = "PORTCULLIS_TABLE", value_enum, default_value = "auto")]
    pub table: TableMode,

    /// Print the logs of the three programs to standard error as well.
    #[arg(long)]
    pub logs: bool,

    /// Which addresses the loader may ask, and how.
    #[command(flatten)]
    pub loader: LoaderArgs,
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

/// The arguments of `portcullis eval`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis eval examples/no-privileged.yaml examples/requests/pod-privileged.json\n  \
    kubectl get deployment shop -o yaml | portcullis eval policy.yaml -\n  \
    portcullis eval policies.yaml pod.yaml --policy no-privileged -o json\n  \
    portcullis eval registry://ghcr.io/kubewarden/policies/safe-labels:v1.0.0 pod.yaml \\\n      \
        --settings-json '{\"denied_labels\": [\"owner\"]}'\n  \
    portcullis eval policy.wasm question.json --raw")]
pub struct EvalArgs {
    /// A manifest with a Policy or ClusterPolicy, whose relative module path starts at its folder; or a module: a .wasm file, or
    /// an address (registry://, https://, file://). A module alone is asked about every request and may change objects.
    #[arg(value_name = "POLICY")]
    pub policy_file: PathBuf,

    /// An AdmissionReview, its request alone, or a Kubernetes object, which is evaluated as if it were created; JSON or YAML,
    /// `-` for standard input.
    #[arg(value_name = "REQUEST.json")]
    pub request: PathBuf,

    /// The policy's settings, as JSON, instead of those of the manifest.
    #[arg(long, value_name = "JSON", conflicts_with = "settings_path")]
    pub settings_json: Option<String>,

    /// A file with the policy's settings, JSON or YAML, instead of those of the manifest.
    #[arg(long, value_name = "FILE")]
    pub settings_path: Option<PathBuf>,

    /// Give the request to the policy as it is: any JSON, for policies about other things than admission requests.
    #[arg(long)]
    pub raw: bool,

    /// Which policy, when the manifest has several: its name or id.
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,

    /// The form of the output.
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: EvalForm,

    /// What the policy may ask its host for.
    #[command(flatten)]
    pub host: HostArgs,

    /// Where modules come from, and what loading one may take.
    #[command(flatten)]
    pub modules: ModuleArgs,
}

/// What a policy may ask its host for, and where the answers come from.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Host capabilities")]
pub struct HostArgs {
    /// Grant this host capability, beside those of the manifest: a path like net/v1/dns_lookup_host, a prefix like oci/*, or *. May be
    /// given several times.
    #[arg(long = "host-capability", value_name = "PATTERN")]
    pub host_capabilities: Vec<String>,

    /// Grant what the metadata of a module file declares: the kinds of objects that it reads, and the host capabilities. Review them
    /// with `portcullis inspect` first. Objects are read by your kubeconfig.
    #[arg(long)]
    pub allow_context_aware: bool,

    /// A recording of what the policy asks its host for.
    #[command(flatten)]
    pub recording: RecordArgs,
}

/// A recording of what policies ask their host for, and of the answers.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Host capabilities")]
pub struct RecordArgs {
    /// Write what the policy asks its host for, and the answers, to this file, in the form of kwctl.
    #[arg(long = "record-host-capabilities-interactions", value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Answer what the policy asks its host for from this file, which this command or kwctl recorded, and from nowhere else.
    #[arg(long = "replay-host-capabilities-interactions", value_name = "FILE", conflicts_with = "record")]
    pub replay: Option<PathBuf>,
}

impl RecordArgs {
    /// The same for a loader.
    pub(crate) fn for_loader(&self) -> Vec<OsString> {
        let files = [("--record-capabilities", &self.record), ("--replay-capabilities", &self.replay)];
        let given = files.into_iter().filter_map(|(flag, file)| Some([flag.into(), file.clone()?.into()]));
        given.flatten().collect()
    }

    /// The same for an evaluator. For a recording, it passes on to the loader even the calls that it could answer itself, so that the recording
    /// has all calls in order.
    pub(crate) fn for_evaluator(&self) -> Vec<OsString> {
        let is_recorded = self.record.is_some() || self.replay.is_some();
        is_recorded.then(|| OsString::from("--broker-certificates")).into_iter().collect()
    }
}

/// Where modules come from, and what loading one may take.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Modules")]
pub struct ModuleArgs {
    /// A further folder that `file:` modules may lie in. May be given several times.
    #[arg(long = "module-root", value_name = "PATH")]
    pub module_roots: Vec<PathBuf>,

    /// What loading a module may take.
    #[command(flatten)]
    pub limits: LimitArgs,

    /// Which addresses the loader may ask, and how.
    #[command(flatten)]
    pub loader: LoaderArgs,

    /// Whose signatures modules need.
    #[command(flatten)]
    pub signatures: SignatureArgs,
}

impl ModuleArgs {
    /// The same for a loader.
    pub(crate) fn for_loader(&self) -> Vec<OsString> {
        [self.loader.for_loader(), self.limits.for_loader(), self.signatures.for_loader()].concat()
    }
}

/// The arguments of `portcullis check`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis check policies/\n  \
    kubectl kustomize overlays/prod | portcullis check -\n  \
    portcullis check policies/ -o sarif > portcullis.sarif")]
pub struct CheckArgs {
    /// Files, folders with YAML and JSON files, which are searched with all folders in them, or `-` for standard input. In folders, files
    /// that do not name the API group are left alone.
    #[arg(value_name = "FILE|DIR|-", required = true)]
    pub paths: Vec<PathBuf>,

    /// The form of the output.
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: CheckForm,

    /// Let warnings fail the check, with exit status 1.
    #[arg(long)]
    pub strict: bool,

    /// Where modules come from, and what loading one may take.
    #[command(flatten)]
    pub modules: ModuleArgs,
}

/// The form of a check's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CheckForm {
    /// For people: a line for each finding, `FILE:LINE: POLICY: …`.
    Text,
    /// One JSON object.
    Json,
    /// SARIF 2.1.0, which code hosts show beside the lines.
    Sarif,
    /// JUnit's XML, with a test case for each policy.
    Junit,
}

/// The arguments of `portcullis migrate`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis migrate kubewarden policies/ > portcullis.yaml\n  \
    kubectl get -A -o yaml \\\n    \
        admissionpolicies,clusteradmissionpolicies,admissionpolicygroups,clusteradmissionpolicygroups \\\n    \
        > theirs.yaml\n  \
    portcullis migrate kubewarden theirs.yaml | kubectl apply -f -\n  \
    kubectl get policyservers -o yaml | portcullis migrate kubewarden - --values > values.yaml")]
pub struct MigrateArgs {
    /// The product that the manifests are written for.
    #[arg(value_name = "FROM")]
    pub from: MigrateFrom,

    /// A file, a folder with YAML and JSON files, which is searched with all folders in it, or `-` for standard input. In a folder, files that
    /// do not name Kubewarden's API group are left alone.
    #[arg(value_name = "FILE|DIR|-")]
    pub path: PathBuf,

    /// Print Helm values of PolicyServers instead of policies.
    #[arg(long)]
    pub values: bool,

    /// The form of the output. JSON has policies, values and fields in one object.
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: ResultForm,
}

/// A product whose manifests can be translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MigrateFrom {
    /// Kubewarden.
    Kubewarden,
}

/// The form of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EvalForm {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}
