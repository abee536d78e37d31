//! Arguments of `portcullis impact`.

use std::path::PathBuf;

use super::{ClusterArgs, EvalForm, ModuleArgs};

/// The arguments of `portcullis impact`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis impact policy.yaml\n  \
    portcullis impact policy.yaml -n team-a --show 100\n  \
    portcullis impact policies.yaml --policy no-privileged --context staging -o json\n  \
    helm template chart/ --show-only templates/policy.yaml | portcullis impact -")]
pub struct ImpactArgs {
    /// A manifest with a Policy or ClusterPolicy, whose relative module path starts at its folder; `-` for standard input.
    #[arg(value_name = "POLICY.yaml")]
    pub policy_file: PathBuf,

    /// Which policy, when the manifest has several: its name or id.
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,

    /// Only objects of this namespace.
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,

    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// The namespace of the installation, whose objects no policy is asked about.
    #[arg(long, value_name = "NAMESPACE", default_value = "portcullis", env = "PORTCULLIS_INSTALLATION_NAMESPACE")]
    pub installation_namespace: String,

    /// How many objects are shown of those that would be denied or changed, or could not be evaluated. All are counted.
    #[arg(long, value_name = "NUMBER", default_value = "20")]
    pub show: usize,

    /// The form of the output.
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: EvalForm,

    /// Grant this host capability, beside those of the manifest: a path like net/v1/dns_lookup_host, a prefix like oci/*, or *. May be
    /// given several times.
    #[arg(long = "host-capability", value_name = "PATTERN")]
    pub host_capabilities: Vec<String>,

    /// Where modules come from, and what loading one may take.
    #[command(flatten)]
    pub modules: ModuleArgs,
}
