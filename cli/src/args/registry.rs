//! Arguments of the commands that work with modules and registries.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use portcullis_process::SettingError;
use portcullis_registry::{Allowed, DockerConfig, Sources};

use super::ResultForm;
use super::signer::SignerArgs;
use crate::program::allowed_addresses;

/// How registries are reached.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Registries")]
pub struct AccessArgs {
    /// The folder with a Docker config.json, for logins. By default that of Docker itself, which `docker login` writes.
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

impl AccessArgs {
    /// Checks the files that the arguments name.
    pub(crate) fn check(&self) -> Result<(), SettingError> {
        if let Some(file) = self.source_ca.as_ref().filter(|file| !file.is_file()) {
            return Err(SettingError::new("--source-ca", format!("there is no file {}", file.display())));
        }
        if let Some(path) = &self.sources {
            Sources::read(path).map_err(|error| SettingError::new("--sources", error.to_string()))?;
        }
        if let Some(host) = self.allow_http_host.iter().find(|host| host.contains('/')) {
            let text =
                format!("{host:?} is not a host: want host or host:port, as it is written in the module's address");
            return Err(SettingError::new("--allow-http-host", text));
        }
        Ok(())
    }

    /// Where logins are: in the folder that was named, here or for the loader, otherwise in Docker's own folder if there is one.
    pub(crate) fn docker(&self) -> Option<DockerConfig> {
        self.docker_folder().map(DockerConfig::new)
    }

    fn docker_folder(&self) -> Option<PathBuf> {
        let of_loader = || std::env::var_os("PORTCULLIS_DOCKER_CONFIG").map(PathBuf::from);
        let own = || std::env::home_dir().map(|home| home.join(".docker"));
        let own = || own().filter(|folder| folder.join("config.json").exists());
        self.docker_config.clone().or_else(of_loader).or_else(own)
    }
}

/// Which addresses a loader may ask, and how.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Registries")]
pub struct LoaderArgs {
    /// A network, address or host that modules may come from although it is not public (10.0.0.0/8, registry.internal), beside
    /// this machine itself. May be given several times.
    #[arg(long, env = "PORTCULLIS_ALLOW_PRIVATE", value_name = "NETWORK", value_delimiter = ',')]
    pub allow_private: Vec<Allowed>,

    /// How the loader asks registries.
    #[command(flatten)]
    pub access: AccessArgs,
}

impl LoaderArgs {
    /// The same as arguments of a loader. Of private addresses, it may ask only this machine and those that are allowed.
    pub(crate) fn for_loader(&self) -> Vec<OsString> {
        let access = &self.access;
        let folders = [("--docker-config", access.docker_folder())];
        let files = [("--source-ca", access.source_ca.clone()), ("--sources", access.sources.clone())];
        let paths = folders.into_iter().chain(files).filter_map(|(flag, path)| Some((flag, path?.into_os_string())));
        let hosts = access.allow_http_host.iter().map(|host| ("--allow-http-host", OsString::from(host)));
        let private = [("--allow-private", OsString::from(allowed_addresses(&self.allow_private)))];
        paths.chain(hosts).chain(private).flat_map(|(flag, value)| [flag.into(), value]).collect()
    }
}

/// What all commands that work with modules and registries take.
#[derive(Debug, Clone, Args)]
pub struct RegistryArgs {
    /// The form of the answer.
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: ResultForm,

    /// Registries.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// The arguments of `portcullis pull`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    portcullis pull registry://ghcr.io/kubewarden/policies/safe-labels:v1.0.0\n  \
    portcullis pull https://example.com/policy.wasm --output-file policy.wasm\n\n\
Exit status: 0; 1 when the module cannot be fetched; 64 for a bad argument.")]
pub struct PullArgs {
    /// The module: registry://host/repository:tag, or https://…
    #[arg(value_name = "MODULE")]
    pub module: String,

    /// Where to write it. By default the last part of its name, with .wasm.
    #[arg(long, short = 'f', value_name = "FILE")]
    pub output_file: Option<PathBuf>,

    /// The form of the answer, and how registries are reached.
    #[command(flatten)]
    pub common: RegistryArgs,
}

/// The arguments of `portcullis push`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    portcullis push policy.wasm registry://registry.example/policies/mine:v1\n  \
    portcullis push policy.wasm registry://127.0.0.1:5000/mine:v1 --allow-http-host 127.0.0.1:5000\n\n\
Exit status: 0; 1 when the registry does not take it; 64 for a bad argument.")]
pub struct PushArgs {
    /// The module's file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Where it goes: registry://host/repository:tag
    #[arg(value_name = "IMAGE")]
    pub image: String,

    /// The form of the answer, and how registries are reached.
    #[command(flatten)]
    pub common: RegistryArgs,
}

/// The arguments of `portcullis inspect`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    portcullis inspect policy.wasm\n  \
    portcullis inspect registry://ghcr.io/kubewarden/policies/safe-labels:v1.0.0 \\\n      \
    --manifest > policy.yaml\n\n\
Exit status: 0; 1 when the module cannot be fetched or is not valid; 64 for a bad argument.")]
pub struct InspectArgs {
    /// The module: a file, registry://host/repository:tag, or https://…
    #[arg(value_name = "MODULE", value_hint = ValueHint::AnyPath)]
    pub module: String,

    /// Print a ClusterPolicy, made from the module's metadata: ready to apply if the module has an address, and for `run` and `eval` if it
    /// is a file.
    #[arg(long, conflicts_with = "output")]
    pub manifest: bool,

    /// The form of the answer, and how registries are reached.
    #[command(flatten)]
    pub common: RegistryArgs,
}

/// The arguments of `portcullis verify`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    portcullis verify registry://registry.example/policies/mine:v1 --key cosign.pub\n  \
    portcullis verify registry://registry.example/policies/mine:v1 \\\n      \
    --verification verification.yml --trust-root trusted_root.json\n  \
    portcullis verify registry://registry.example/policies/mine:v1 \\\n      \
    --github-owner organization --trust-root trusted_root.json\n\n\
Exit status: 0 when it is signed as wanted; 1 when it is not, or that cannot be known; 64 for a bad argument.")]
pub struct VerifyArgs {
    /// The artifact: registry://host/repository:tag
    #[arg(value_name = "IMAGE")]
    pub image: String,

    /// The form of the answer, and how registries are reached. Before the signers, whose heading holds for all that follows.
    #[command(flatten)]
    pub common: RegistryArgs,

    /// The required signer.
    #[command(flatten)]
    pub signer: SignerArgs,
}

/// The arguments of `portcullis save`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    portcullis save policies --output-file modules.tar\n  \
    portcullis save registry://ghcr.io/kubewarden/policies/safe-labels:v1.0.0 -f modules.tar\n\n\
Exit status: 0; 1 when a module cannot be fetched, or a file or a folder in a folder cannot be read or used; 64 for a bad argument.")]
pub struct SaveArgs {
    /// Artifacts (registry://host/repository:tag), or files or folders of policies that name some.
    #[arg(value_name = "MODULE|FILE|DIR", required = true, value_hint = ValueHint::AnyPath)]
    pub items: Vec<String>,

    /// The archive.
    #[arg(long, short = 'f', value_name = "FILE")]
    pub output_file: PathBuf,

    /// The form of the answer, and how registries are reached.
    #[command(flatten)]
    pub common: RegistryArgs,
}

/// The arguments of `portcullis load`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    portcullis load modules.tar registry.example:5000/mirror\n\n\
Exit status: 0; 1 when the archive is damaged or the registry does not take it; 64 for a bad argument.")]
pub struct LoadArgs {
    /// The archive.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The registry, with a prefix before the repositories or without: host[:port][/prefix]
    #[arg(value_name = "REGISTRY")]
    pub registry: String,

    /// The form of the answer, and how registries are reached.
    #[command(flatten)]
    pub common: RegistryArgs,
}
