use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{Method, Uri};
use kube::Client;
use serde_json::{Value, json};

use super::*;

/// What an API server was asked.
#[derive(Default)]
struct Seen {
    /// The paths of the writes, in the order in which they came.
    written: Vec<String>,
    /// How many writes are under way, and how many were at most.
    writing: [usize; 2],
}

/// A policy whose status says that it was or was not enforced.
fn policy(namespace: Option<&str>, name: &str, is_enforced: bool) -> Value {
    let enforced = json!({
        "type": "Enforced", "status": if is_enforced { "True" } else { "False" }, "reason": "Active", "message": "",
        "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    json!({
        "metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "7", "generation": 1},
        "spec": {}, "status": {"observedGeneration": 1, "conditions": [enforced]},
    })
}

/// An API server with these policies.
fn api_server(cluster: Vec<Value>, namespaced: Vec<Value>, seen: &Arc<Mutex<Seen>>) -> Client {
    let seen = Arc::clone(seen);
    let answer = move |method: Method, uri: Uri| async move {
        if method == Method::GET {
            let items = if uri.path().ends_with("/clusterpolicies") { cluster } else { namespaced };
            return json!({ "metadata": {}, "items": items }).to_string();
        }
        {
            let mut seen = seen.lock().expect("a lock");
            seen.written.push(uri.path().trim_start_matches("/apis/policies.portcullis.dev/v1alpha1/").to_owned());
            let [now, most] = seen.writing;
            seen.writing = [now + 1, most.max(now + 1)];
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        seen.lock().expect("a lock").writing[0] -= 1;
        policy(None, "written", true).to_string()
    };
    Client::new(Router::new().fallback(answer), "default")
}

#[tokio::test]
async fn many_at_once_are_told_those_of_the_cluster_first_and_those_that_were_not_enforced_not_at_all() {
    let seen = Arc::default();
    let mut cluster: Vec<_> = (0..20).map(|number| policy(None, &format!("c{number}"), true)).collect();
    cluster.push(policy(None, "broken", false));
    let mut others = policy(None, "others", true);
    others["spec"]["policyServer"] = json!("another");
    cluster.push(others);
    let client = api_server(cluster, vec![policy(Some("team"), "a", true)], &seen);
    let [namespace, policy_server, deployment] = ["portcullis", "default", "controller"].map(str::to_owned);
    let uninstall = Uninstall { client, namespace, policy_server, deployment };
    assert_eq!(uninstall.tell_all().await, 21);
    let seen = seen.lock().expect("a lock");
    let (cluster, namespaced) = seen.written.split_at(20);
    let is_told = |path: &String| path.starts_with("clusterpolicies/c") && path.ends_with("/status");
    assert!(cluster.iter().all(is_told), "{cluster:?}");
    assert_eq!(namespaced, ["namespaces/team/policies/a/status"]);
    assert_eq!(seen.writing, [0, AT_ONCE]);
}
