//! Arguments of the commands that look at policies, of a cluster or of a folder.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

/// The place and namespace of policies.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct SourceArgs {
    /// A folder that `portcullis run` serves, instead of a cluster. Without --dir, --namespace, --context and --kubeconfig: the
    /// current folder if `portcullis run` has served it, otherwise the cluster.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["context", "kubeconfig"])]
    pub dir: Option<PathBuf>,

    /// The namespace of Policies; default: that of the context, or `default` if it has none.
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,

    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// How a cluster is reached.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ClusterArgs {
    /// The context of the kubeconfig; default: the current context.
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,

    /// The kubeconfig; default: the files of the variable KUBECONFIG, or ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// Which policies, and where they are.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ScopeArgs {
    /// A policy: policy/NAME, clusterpolicy/NAME, its id (cluster/NAME, namespaced/NAMESPACE/NAME), or its name if only one has
    /// it. Without one: all ClusterPolicies, and the Policies of the namespace.
    #[arg(value_name = "POLICY")]
    pub policy: Option<String>,

    /// The place of the policies.
    #[command(flatten)]
    pub source: SourceArgs,

    /// Policies of all namespaces.
    #[arg(long, short = 'A', conflicts_with_all = ["namespace", "policy"])]
    pub all_namespaces: bool,
}

/// One policy, and where it is.
#[derive(Debug, Clone, clap::Args)]
pub struct TargetArgs {
    /// A policy: policy/NAME, clusterpolicy/NAME, its id (cluster/NAME, namespaced/NAMESPACE/NAME), or its name if only one has
    /// it.
    #[arg(value_name = "POLICY")]
    pub policy: String,

    /// The source of policies.
    #[command(flatten)]
    pub source: SourceArgs,
}

/// The arguments of `portcullis get`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis get\n  \
    portcullis get -A -o wide\n  \
    portcullis get required-labels -n team-a -o yaml\n  \
    portcullis get no-privileged --dir examples\n\n\
Exit status: 0; 1 when something cannot be read; 64 for a bad argument.")]
pub struct GetArgs {
    /// Which policies, and where they are.
    #[command(flatten)]
    pub scope: ScopeArgs,

    /// The form of the output.
    #[arg(long, short, value_enum, default_value = "table")]
    pub output: OutputForm,
}

/// The form of a list.
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
    portcullis describe no-privileged\n  \
    portcullis describe policy/required-labels -n team-a\n  \
    portcullis describe --dir examples                 # all policies\n\n\
Exit status: 0; 1 when something cannot be read; 64 for a bad argument.")]
pub struct DescribeArgs {
    /// Which policies, and where they are.
    #[command(flatten)]
    pub scope: ScopeArgs,
}

/// The arguments of `portcullis history`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis history no-privileged\n  \
    portcullis history required-labels -n team-a -o json\n\n\
Exit status: 0; 1 when something cannot be read; 64 for a bad argument.")]
pub struct HistoryArgs {
    /// The policy, and where it is.
    #[command(flatten)]
    pub target: TargetArgs,

    /// The form of the output; `name` gives numbers of generations only.
    #[arg(long, short, value_enum, default_value = "table")]
    pub output: OutputForm,
}

/// The arguments of `portcullis diff`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis diff no-privileged 3 4\n  \
    portcullis diff required-labels -n team-a          # the last one that served, and the newest\n  \
    portcullis diff no-privileged 3 --installation-namespace portcullis-system\n\n\
Exit status: 0, also when there are differences; 1 when something cannot be read; 64 for a bad argument.")]
// It works with a cluster only.
#[command(mut_arg("dir", |dir| dir.hide(true)))]
pub struct DiffArgs {
    /// The policy, and where it is.
    #[command(flatten)]
    pub target: TargetArgs,

    /// The older generation; default: the last one that served before B.
    #[arg(value_name = "A")]
    pub from: Option<i64>,

    /// The newer generation; default: the newest one.
    #[arg(value_name = "B")]
    pub to: Option<i64>,

    /// The namespace of the installation, where revisions are kept.
    #[arg(long, value_name = "NAMESPACE", default_value = "portcullis", env = "PORTCULLIS_INSTALLATION_NAMESPACE")]
    pub installation_namespace: String,
}

/// The arguments of `portcullis rollback`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis rollback no-privileged                  # to the last generation that served before\n  \
    portcullis rollback required-labels -n team-a --to 3\n  \
    portcullis rollback no-privileged --dry-run\n  \
    portcullis rollback no-privileged --undo           # the spec takes effect again\n\n\
Exit status: 0 when the policy is Ready (or changed, with --no-wait); 1 when it is refused or not Ready in time; 64 for a bad argument.")]
// It works with a cluster only.
#[command(mut_arg("dir", |dir| dir.hide(true)))]
pub struct RollbackArgs {
    /// The policy, and where it is.
    #[command(flatten)]
    pub target: TargetArgs,

    /// The generation to serve again; default: the last one that served before the current one. `portcullis history` lists
    /// them.
    #[arg(long, value_name = "GENERATION", conflicts_with = "undo")]
    pub to: Option<i64>,

    /// End a rollback: remove spec.rollbackTo.
    #[arg(long)]
    pub undo: bool,

    /// Ask the API server whether it would take the change, and change nothing.
    #[arg(long)]
    pub dry_run: bool,

    /// Do not wait until the policy is Ready.
    #[arg(long)]
    pub no_wait: bool,

    /// Longest time to wait.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = portcullis_process::parse_duration)]
    pub timeout: Duration,

    /// The namespace of the installation, where revisions are kept. Users who may read them there see before the change
    /// when a revision is gone.
    #[arg(long, value_name = "NAMESPACE", default_value = "portcullis", env = "PORTCULLIS_INSTALLATION_NAMESPACE")]
    pub installation_namespace: String,

    /// The form of the result.
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: ResultForm,
}

/// The form of the result of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ResultForm {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}
