//! Settings for the network: which hosts the loader asks, and with which logins.

use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use portcullis_process::SettingError;
use portcullis_registry::signature::{Requirement, TrustRoot};
use portcullis_registry::{Allowed, DockerConfig, Guard, SourcesFile};

/// Registries, logins and addresses.
#[derive(Debug, Clone, Args)]
pub struct RegistryArgs {
    /// A folder with a Docker config.json (or .dockerconfigjson): logins for registries. Read again for each login.
    #[arg(long, env = "PORTCULLIS_DOCKER_CONFIG", value_name = "DIR")]
    pub docker_config: Option<PathBuf>,

    /// A sources.yml: insecure hosts, authorities of hosts, proxies, allowed addresses. Read again before each attempt.
    #[arg(long, env = "PORTCULLIS_SOURCES", value_name = "FILE")]
    pub sources: Option<PathBuf>,

    /// A verification.yml, which names the required signers of every module. Read again for each module. What cannot be checked is not loaded.
    #[arg(long, env = "PORTCULLIS_VERIFICATION", value_name = "FILE")]
    pub verification: Option<PathBuf>,

    /// A trusted_root.json of Sigstore: authorities and logs that vouch for signers without a key of their own (genericIssuer,
    /// githubAction). Read again for each module. Without it, modules that such signers must have signed are not loaded.
    #[arg(long, env = "PORTCULLIS_TRUST_ROOT", value_name = "FILE")]
    pub trust_root: Option<PathBuf>,

    /// A network, address or host that sources may have although it is not public (10.0.0.0/8, registry.internal). May be
    /// given several times. Loopback, link-local, private and special addresses are refused otherwise, at every redirect too.
    /// Through a proxy only names are known, so that only addresses in place of names are checked.
    #[arg(long, env = "PORTCULLIS_ALLOW_PRIVATE", value_name = "NETWORK", value_delimiter = ',')]
    pub allow_private: Vec<Allowed>,

    /// The name server that sources are looked up at, instead of the system's.
    #[arg(long, env = "PORTCULLIS_NAME_SERVER", value_name = "ADDRESS")]
    pub name_server: Option<SocketAddr>,

    /// Maximum number of attempts per second at one host.
    #[arg(long, env = "PORTCULLIS_FETCH_ATTEMPTS", value_name = "N", default_value_t = 10)]
    pub fetch_attempts: u32,
}

impl RegistryArgs {
    /// Which addresses may be connected to.
    pub(super) fn guard(&self) -> Guard {
        Guard::new(self.allow_private.clone())
    }

    /// The logins. The folder need not exist yet: a Secret may be mounted later.
    pub(super) fn docker(&self) -> Option<DockerConfig> {
        self.docker_config.clone().map(DockerConfig::new)
    }

    /// The `sources.yml` with what it says now.
    pub(super) fn sources(&self, is_restarted: bool) -> Result<Option<SourcesFile>, SettingError> {
        let Some(path) = self.sources.as_deref() else { return Ok(None) };
        let read = SourcesFile::read(path).or_else(|error| {
            unusable("--sources", path, &error, is_restarted)?;
            Ok(SourcesFile::unusable(path, error))
        });
        read.map(Some)
    }

    /// Checks the other settings against this machine.
    pub(super) fn check(&self, is_restarted: bool) -> Result<(), SettingError> {
        if let Some(path) = &self.verification {
            Requirement::read(path)
                .map(drop)
                .or_else(|error| unusable("--verification", path, &error, is_restarted))?;
        }
        if let Some(path) = &self.trust_root {
            TrustRoot::read(path).map(drop).or_else(|error| unusable("--trust-root", path, &error, is_restarted))?;
        }
        if self.fetch_attempts == 0 {
            return Err(SettingError::new("--fetch-attempts", "want at least 1"));
        }
        Ok(())
    }
}

/// What happens at the start with a file that cannot be used. It is read again for each module, as it may change at any time, and no module is
/// loaded without it. So a loader starts with it where nobody waits for an answer: otherwise a mistake in a ConfigMap, which a running loader
/// bears, would keep its pod from becoming ready again after a restart. A program that started the loader for somebody gets the error, and so
/// does everybody if there is no such file, which is a mistake in the flag.
fn unusable(setting: &str, path: &Path, error: &dyn Error, is_restarted: bool) -> Result<(), SettingError> {
    if !is_restarted || !path.exists() {
        return Err(SettingError::new(setting, error.to_string()));
    }
    tracing::error!(setting, %error, "a file of settings cannot be used: no module that depends on it is loaded until it can");
    Ok(())
}
