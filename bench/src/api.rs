//! The API of a benchmark's cluster, for requests that are too many or too frequent for a connection each.

use anyhow::Context as _;
use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use portcullis_e2e::{Cluster, condition};
use serde_json::Value;

/// A client with the rights of an administrator.
pub(crate) async fn client(cluster: &Cluster) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig())?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// One call of the API.
pub(crate) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    media_type: &str,
    body: &Value,
) -> anyhow::Result<Value> {
    let request = Request::builder().method(method).uri(path).header("content-type", media_type);
    let request = request.body(serde_json::to_vec(body)?)?;
    client.request(request).await.with_context(|| format!("failed to write {path}"))
}

/// Whether the object of a policy says that its newest generation is Ready.
pub(crate) fn is_ready(object: &Value) -> bool {
    condition(object, "Ready").is_some_and(|ready| {
        ready["status"] == "True" && ready["observedGeneration"] == object["metadata"]["generation"]
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_ready_at_its_newest_generation() {
        let object = |observed: i64| {
            let condition = json!({"type": "Ready", "status": "True", "observedGeneration": observed});
            json!({"metadata": {"generation": 2}, "status": {"conditions": [condition]}})
        };
        assert!(is_ready(&object(2)) && !is_ready(&object(1)) && !is_ready(&json!({})));
    }
}
