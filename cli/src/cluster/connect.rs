//! From the kubeconfig to a client.

use std::env;
use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use portcullis_contract::PolicyId;
use portcullis_process::SettingError;
use portcullis_util::causes;

use super::{Cluster, ClusterError};
use crate::args::SourceArgs;

/// Longest time for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest silence of the API server.
const SILENCE: Duration = Duration::from_secs(30);

impl Cluster {
    /// The cluster that the arguments or the environment name.
    ///
    /// # Errors
    /// When there is no kubeconfig, or it cannot be used. Nothing is asked of the API server.
    pub async fn connect(args: &SourceArgs) -> anyhow::Result<Self> {
        let mut config = config(args).await?;
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(SILENCE);
        // Commands have deadlines of their own, and a change that is sent twice is refused the second time.
        config.default_retry = false;
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        check_namespace("--namespace", &namespace)?;
        let client = Client::try_from(config).map_err(|error| ClusterError::Kubeconfig(causes(&error)))?;
        Ok(Self { client, server, namespace })
    }
}

/// Checks the name of a namespace, which becomes a part of a path.
///
/// # Errors
/// When it is not a valid name. `setting` says where it comes from.
pub fn check_namespace(setting: &str, namespace: &str) -> Result<(), SettingError> {
    match PolicyId::namespaced(namespace, "any") {
        Ok(_) => Ok(()),
        Err(_) => {
            let problem = format!("{:?} is not the name of a namespace", portcullis_contract::clean(namespace, 100));
            Err(SettingError::new(setting, problem))
        }
    }
}

/// The contexts of a kubeconfig; none if it cannot be read.
pub fn contexts(kubeconfig: Option<&Path>) -> Vec<String> {
    let read = kubeconfig.map_or_else(Kubeconfig::read, Kubeconfig::read_from);
    read.map(|read| read.contexts.into_iter().map(|context| context.name).collect()).unwrap_or_default()
}

async fn config(args: &SourceArgs) -> anyhow::Result<Config> {
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let kubeconfig = match &args.cluster.kubeconfig {
        Some(path) => Kubeconfig::read_from(path).map_err(|error| SettingError::new("--kubeconfig", causes(&error)))?,
        None if !is_set("KUBECONFIG") && !has_default() => {
            // A pod's own cluster has no context, and a write must not go to another cluster than the one that was named.
            if let Some(context) = &args.cluster.context {
                let problem = format!("there is no kubeconfig that has {:?}", portcullis_contract::clean(context, 300));
                return Err(SettingError::new("--context", problem).into());
            }
            return match Config::incluster() {
                Ok(config) if is_set("KUBERNETES_SERVICE_HOST") => Ok(config),
                _ => Err(ClusterError::NoKubeconfig.into()),
            };
        }
        None => Kubeconfig::read().map_err(|error| ClusterError::Kubeconfig(causes(&error)))?,
    };
    if let Some(context) = &args.cluster.context {
        let names: Vec<&str> = kubeconfig.contexts.iter().map(|context| context.name.as_str()).collect();
        if !names.contains(&context.as_str()) {
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let problem = format!("the kubeconfig has no context {context:?}; it has {known}");
            return Err(SettingError::new("--context", portcullis_contract::truncate(&problem, 1000)).into());
        }
    }
    let options = KubeConfigOptions { context: args.cluster.context.clone(), ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await;
    let mut config = config.map_err(|error| ClusterError::Kubeconfig(causes(&error)))?;
    let context = args.cluster.context.as_deref();
    portcullis_kubernetes::set_proxy(&mut config, &kubeconfig, context)
        .map_err(|error| ClusterError::Kubeconfig(error.to_string()))?;
    Ok(config)
}

fn has_default() -> bool {
    env::home_dir().is_some_and(|home| home.join(".kube/config").exists())
}
