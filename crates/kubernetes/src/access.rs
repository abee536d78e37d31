//! Clients of an API server.

use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Longest time for a connection to an API server, and for sending a request.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Longest silence while an answer is awaited. Only watches are silent for longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Where the API server is and who asks.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Access {
    /// The kubeconfig file. Where absent: ~/.kube/config, and without that the Pod's own service account.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// Clients with the same identity.
#[derive(Clone)]
pub struct Clients {
    /// For lists and watches, which may be silent for long. What reads them has a time limit of its own.
    pub watches: Client,
    /// For everything else: an answer that does not come is an error.
    pub calls: Client,
    /// What both were made from, for clients of other addresses.
    pub config: Config,
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A configuration can hold credentials.
        f.debug_struct("Clients").field("server", &self.config.cluster_url).finish_non_exhaustive()
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The named file cannot be used.
    #[error("failed to read the kubeconfig {file}: {source}; name another with --kubeconfig", file = file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        source: Box<kube::config::KubeconfigError>,
    },
    /// Neither a kubeconfig nor a service account.
    #[error("found neither a kubeconfig nor a Pod's service account: {0}; name a file with --kubeconfig")]
    Nothing(#[from] Box<kube::config::InferConfigError>),
    /// The client cannot be made, for instance because of its certificates.
    #[error("failed to make a client of the API server: {0}")]
    Client(#[from] Box<kube::Error>),
}

impl Access {
    /// Reads the configuration. `program` is told to the API server as user agent.
    ///
    /// # Errors
    /// When there is none or it cannot be used.
    pub async fn config(&self, program: &str) -> Result<Config, AccessError> {
        let mut config = match &self.kubeconfig {
            // `KUBECONFIG` may list several files; the client merges them itself.
            Some(file) if !file.to_string_lossy().contains(':') => {
                let named = |source| AccessError::File { file: file.clone(), source: Box::new(source) };
                let read = Kubeconfig::read_from(file).map_err(named)?;
                Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.map_err(named)?
            }
            _ => Config::infer().await.map_err(Box::new)?,
        };
        let agent = format!("{program}/{}", env!("CARGO_PKG_VERSION"));
        if let Ok(agent) = HeaderValue::from_str(&agent) {
            config.headers.push((USER_AGENT, agent));
        }
        config.connect_timeout = Some(CONNECT_LIMIT);
        config.write_timeout = Some(CONNECT_LIMIT);
        Ok(config)
    }

    /// The clients.
    ///
    /// # Errors
    /// When there is no configuration, or no client can be made of it.
    pub async fn clients(&self, program: &str) -> Result<Clients, AccessError> {
        let config = self.config(program).await?;
        Ok(Clients {
            watches: Client::try_from(config.clone()).map_err(Box::new)?,
            calls: calls(config.clone())?,
            config,
        })
    }
}

/// A client for everything but lists and watches.
///
/// # Errors
/// When no client can be made of the configuration.
fn calls(mut config: Config) -> Result<Client, AccessError> {
    config.read_timeout = Some(ANSWER_LIMIT);
    config.reset_reader_on_write = true;
    // Those who call decide when to try again.
    config.default_retry = false;
    Ok(Client::try_from(config).map_err(Box::new)?)
}

impl Clients {
    /// A client with the same identity for one API server among several, by its address; the name in its certificate stays the one
    /// of the configuration.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub fn at(&self, url: http::Uri) -> Result<Client, AccessError> {
        let mut config = self.config.clone();
        config.tls_server_name = config
            .tls_server_name
            .or_else(|| config.cluster_url.host().map(|host| host.trim_matches(['[', ']']).to_owned()));
        config.cluster_url = url;
        calls(config)
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
