//! Arguments of the commands that work with modules and registries.

use std::path::PathBuf;

use clap::Args;

use crate::args::ResultForm;

/// How registries are asked.
#[derive(Debug, Clone, Args)]
pub struct AccessArgs {
    /// The folder with a Docker config.json, for logins. By default that of Docker itself.
    #[arg(long, env = "DOCKER_CONFIG", value_name = "DIR")]
    pub docker_config: Option<PathBuf>,

    /// Certificate authorities (PEM) that a registry may have, beside the system's.
    #[arg(long, env = "PORTCULLIS_SOURCE_CA", value_name = "FILE")]
    pub source_ca: Option<PathBuf>,

    /// A sources.yml: insecure hosts, authorities of hosts, proxies.
    #[arg(long, env = "PORTCULLIS_SOURCES", value_name = "FILE")]
    pub sources: Option<PathBuf>,

    /// A host (host or host:port) that plain http is allowed for. May be given several times.
    #[arg(long, env = "PORTCULLIS_ALLOW_HTTP_HOST", value_name = "HOST", value_delimiter = ',')]
    pub allow_http_host: Vec<String>,
}

/// The arguments of `portcullis pull`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    portcullis pull registry://ghcr.io/kubewarden/policies/safe-labels:v1.0.0\n  \
    portcullis pull https://example.com/policy.wasm --output-file policy.wasm")]
pub struct PullArgs {
    /// The module: registry://host/repository:tag, or https://…
    #[arg(value_name = "MODULE")]
    pub module: String,

    /// Where to write it. By default the last part of its name, with .wasm.
    #[arg(long, short = 'f', value_name = "FILE")]
    pub output_file: Option<PathBuf>,

    /// Registries.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// The arguments of `portcullis push`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  portcullis push policy.wasm registry://registry.example/policies/mine:v1")]
pub struct PushArgs {
    /// The module's file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Where it goes: registry://host/repository:tag
    #[arg(value_name = "IMAGE")]
    pub image: String,

    /// Registries.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// The arguments of `portcullis inspect`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    portcullis inspect policy.wasm\n  \
    portcullis inspect registry://ghcr.io/kubewarden/policies/safe-labels:v1.0.0 --manifest > policy.yaml")]
pub struct InspectArgs {
    /// The module: a file, registry://host/repository:tag, or https://…
    #[arg(value_name = "MODULE")]
    pub module: String,

    /// Print a ClusterPolicy that is ready to apply, made from the module's metadata.
    #[arg(long)]
    pub manifest: bool,

    /// The form of the answer.
    #[arg(long, short, value_enum, default_value = "text", conflicts_with = "manifest")]
    pub output: ResultForm,

    /// Registries.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// The arguments of `portcullis verify`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    portcullis verify registry://registry.example/policies/mine:v1 --key cosign.pub\n  \
    portcullis verify registry://registry.example/policies/mine:v1 --verification verification.yml")]
pub struct VerifyArgs {
    /// The artifact: registry://host/repository:tag
    #[arg(value_name = "IMAGE")]
    pub image: String,

    /// A public key (PEM) that must have signed it.
    #[arg(long, value_name = "FILE", required_unless_present = "verification", conflicts_with = "verification")]
    pub key: Option<PathBuf>,

    /// A verification.yml that says who must have signed it.
    #[arg(long, value_name = "FILE")]
    pub verification: Option<PathBuf>,

    /// Registries.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// The arguments of `portcullis save`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    portcullis save policies --output-file modules.tar\n  \
    portcullis save registry://ghcr.io/kubewarden/policies/safe-labels:v1.0.0 --output-file modules.tar")]
pub struct SaveArgs {
    /// Artifacts (registry://host/repository:tag), or files or folders of policies that name some.
    #[arg(value_name = "MODULE|FILE|DIR", required = true)]
    pub items: Vec<String>,

    /// The archive.
    #[arg(long, short = 'f', value_name = "FILE")]
    pub output_file: PathBuf,

    /// Registries.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// The arguments of `portcullis load`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  portcullis load modules.tar registry.example:5000/mirror")]
pub struct LoadArgs {
    /// The archive.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The registry, with a prefix before the repositories or without: host[:port][/prefix]
    #[arg(value_name = "REGISTRY")]
    pub registry: String,

    /// Registries.
    #[command(flatten)]
    pub access: AccessArgs,
}
