//! Which API server is called, and with which credentials.

use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::proxy::{ProxyError, set_proxy};

/// Longest time for a connection to an API server, and for sending a request.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Where the API server and the credentials come from.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Access {
    /// The kubeconfig file. Where absent: ~/.kube/config, and without that the Pod's own service account.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The named file cannot be used.
    #[error("failed to read the kubeconfig {file}: {source}; name another with --kubeconfig", file = file.display())]
    File {
        /// Its path.
        file: PathBuf,
        /// What is wrong with it.
        source: Box<kube::config::KubeconfigError>,
    },
    /// There is neither a kubeconfig nor a service account.
    #[error("found neither a kubeconfig nor a Pod's service account: {0}; name a file with --kubeconfig")]
    Nothing(#[from] Box<kube::config::InferConfigError>),
    /// The kubeconfig or the environment names a proxy by what is not an address.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// No client can be made from the configuration, for instance because of its certificates.
    #[error("failed to make a client of the API server: {0}")]
    Client(#[from] Box<kube::Error>),
}

impl Access {
    /// kube's client, without limits on answers.
    pub(crate) async fn unlimited_client(&self, program: &str) -> Result<Client, AccessError> {
        Ok(Client::try_from(self.config(program).await?).map_err(Box::new)?)
    }

    /// The configuration. `program` becomes the user agent.
    pub(crate) async fn config(&self, program: &str) -> Result<Config, AccessError> {
        let mut config = match &self.kubeconfig {
            // `KUBECONFIG` may list several files; kube merges them itself.
            Some(file) if !file.to_string_lossy().contains(':') => {
                let named = |source| AccessError::File { file: file.clone(), source: Box::new(source) };
                let read = Kubeconfig::read_from(file).map_err(named)?;
                let config = Config::from_custom_kubeconfig(read.clone(), &KubeConfigOptions::default()).await;
                let mut config = config.map_err(named)?;
                set_proxy(&mut config, &read, None)?;
                config
            }
            _ => {
                let mut config = Config::infer().await.map_err(Box::new)?;
                // A pod with a service account has no kubeconfig.
                if let Ok(read) = Kubeconfig::read() {
                    set_proxy(&mut config, &read, None)?;
                }
                config
            }
        };
        let agent = format!("{program}/{}", env!("CARGO_PKG_VERSION"));
        if let Ok(agent) = HeaderValue::from_str(&agent) {
            config.headers.push((USER_AGENT, agent));
        }
        config.connect_timeout = Some(CONNECT_LIMIT);
        config.write_timeout = Some(CONNECT_LIMIT);
        config.default_retry = false;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_not_there_is_named_with_the_next_step() {
        let access = Access { kubeconfig: Some(PathBuf::from("/home/me/nowhere")) };
        let error = access.config("portcullis-test").await.expect_err("no file").to_string();
        assert!(error.contains("/home/me/nowhere") && error.contains("--kubeconfig"), "{error}");
    }
}
