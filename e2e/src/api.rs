//! The API of a cluster as an administrator, for requests that are too frequent for kubectl.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::client::Client;
use crate::connection::{Answer, Question};
use crate::json::items;
use crate::kubectl::Output;
use crate::wait::eventually;

/// The annotation in which `kubectl apply` keeps the object as it was applied, so that the next one knows what to remove.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The API servers of a cluster, asked one after the other until one answers. Copies are cheap, and do not keep the cluster
/// alive: once it is gone, every request fails.
#[derive(Clone)]
pub struct Api {
    client: Arc<Client>,
    servers: Vec<SocketAddr>,
}

/// The answer of an API server.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The HTTP status.
    pub code: u16,
    /// The object, or a `Status` that says what is wrong; null if it was not JSON.
    pub body: Value,
    /// The warnings of the API server, as in the header: `299 - "…"`.
    pub warnings: Vec<String>,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        let body = serde_json::from_slice(&answer.body).unwrap_or_default();
        Self { code: answer.code, body, warnings: answer.warnings }
    }
}

impl Reply {
    /// Whether the request succeeded.
    pub fn is_ok(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// The object.
    ///
    /// # Panics
    /// When the request failed.
    pub fn expect(self, what: &str) -> Value {
        assert!(self.is_ok(), "{what}: {} {}", self.code, self.body["message"]);
        self.body
    }
}

impl Api {
    pub(crate) fn new(client: Arc<Client>, servers: Vec<SocketAddr>) -> Self {
        Self { client, servers }
    }

    /// The client and the addresses of the servers, for calls that are repeated often.
    pub(crate) fn parts(&self) -> (&Client, &[SocketAddr]) {
        (&self.client, &self.servers)
    }

    /// The same API through one server only; they are counted from 1.
    ///
    /// # Panics
    /// When there is no such server.
    #[must_use]
    pub fn at(&self, api_server: u8) -> Self {
        let server = self.servers[usize::from(api_server) - 1];
        Self { client: Arc::clone(&self.client), servers: vec![server] }
    }

    /// The object or list at a path like `/api/v1/namespaces/default`; `None` if it does not exist or no server answers.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.read(path).ok().filter(Reply::is_ok).map(|reply| reply.body)
    }

    /// The object at a path; `None` if it does not exist. Asks again until a server gives an answer, so that a test does not fail
    /// because the machine is slow.
    ///
    /// # Panics
    /// When there is no answer in time.
    pub fn find(&self, path: &str) -> Option<Value> {
        eventually(&format!("an answer about {path}"), || match self.read(path) {
            Ok(reply) if reply.is_ok() => Some(Some(reply.body)),
            // A path that is not served yet also gives a 404, but without a `Status`.
            Ok(reply) if reply.code == 404 && reply.body["kind"] == "Status" => Some(None),
            _ => None,
        })
    }

    /// The objects of the list at a path. Asks again until a server returns it.
    ///
    /// # Panics
    /// When there is no answer in time.
    pub fn list(&self, path: &str) -> Vec<Value> {
        eventually(&format!("the list {path}"), || {
            self.read(path).ok().filter(Reply::is_ok).map(|reply| items(reply.body))
        })
    }

    /// The object or list at a path, and the status of the answer.
    ///
    /// # Errors
    /// When no server answers.
    pub fn read(&self, path: &str) -> Result<Reply, String> {
        self.send("GET", path, "", "")
    }

    /// Creates an object in a collection.
    ///
    /// # Errors
    /// When no server answers.
    pub fn create(&self, path: &str, object: &Value) -> Result<Reply, String> {
        self.send("POST", path, "application/json", &object.to_string())
    }

    /// Posts any bytes as an object in JSON, for bodies that no client would send.
    ///
    /// # Errors
    /// When the first server does not answer.
    pub fn create_bytes(&self, path: &str, body: &[u8]) -> Result<Reply, String> {
        let question = Question { method: "POST", path, content_type: "application/json", body };
        let answer = self.client.send(self.servers[0], &question);
        answer.map(Reply::from).map_err(|error| format!("POST {path}: {error}"))
    }

    /// Whether a new ConfigMap is refused with this text; `None` if no server answers.
    pub fn denies_configmap(&self, namespace: &str, text: &str) -> Option<bool> {
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "generateName": "one-" } });
        let reply = self.create(&format!("/api/v1/namespaces/{namespace}/configmaps"), &object).ok()?;
        Some(reply.body["message"].as_str().is_some_and(|said| said.contains(text)))
    }

    /// Changes an object by a merge patch.
    ///
    /// # Errors
    /// When no server answers.
    pub fn patch(&self, path: &str, patch: &Value) -> Result<Reply, String> {
        self.send("PATCH", path, "application/merge-patch+json", &patch.to_string())
    }

    /// Server-side apply under the name of a field manager, which takes fields from others.
    ///
    /// # Errors
    /// When no server answers.
    pub fn apply(&self, path: &str, manager: &str, object: &Value) -> Result<Reply, String> {
        let path = format!("{path}?fieldManager={manager}&force=true");
        self.send("PATCH", &path, "application/apply-patch+yaml", &object.to_string())
    }

    /// `kubectl apply` of the object of this path. A process for each would take much of the time of all tests, so `apply`, which starts kubectl
    /// with the object as its input, is called only for what exists.
    ///
    /// # Panics
    /// When the API server refuses the object, or kubectl fails.
    pub(crate) fn put(&self, path: &str, object: &Value, apply: impl FnOnce(&str) -> Output) {
        if !self.create_as_kubectl(path, object) {
            apply(&object.to_string()).expect(path);
        }
    }

    /// Does what `kubectl apply` does with an object that does not exist yet: creates it at this path, with the annotation that a later
    /// `kubectl apply` needs. Returns whether it was created; if not, kubectl can change what is there, or wait for a busy server.
    ///
    /// # Panics
    /// When the API server refuses the object: another try might hide a wrong refusal.
    fn create_as_kubectl(&self, path: &str, object: &Value) -> bool {
        let (collection, _) = path.rsplit_once('/').expect("the path ends with the name");
        let query = "fieldManager=kubectl-client-side-apply&fieldValidation=Strict";
        // kubectl looks, too, before it creates: webhooks are not called for an object that is there.
        if !self.read(path).is_ok_and(|reply| reply.code == 404) {
            return false;
        }
        match self.create(&format!("{collection}?{query}"), &as_applied(object)) {
            Ok(reply) if !matches!(reply.code, 404 | 409 | 429 | 503 | 504) => {
                reply.expect(path);
                true
            }
            _ => false,
        }
    }

    /// `kubectl apply --server-side --force-conflicts` of an object, as JSON. Returns whether that succeeded.
    pub(crate) fn apply_as_kubectl(&self, path: &str, object: &str) -> bool {
        let path = format!("{path}?fieldManager=kubectl&force=true&fieldValidation=Strict");
        self.send("PATCH", &path, "application/apply-patch+yaml", object).is_ok_and(|reply| reply.is_ok())
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// When no server answers.
    pub fn delete(&self, path: &str, grace_seconds: Option<u32>) -> Result<Reply, String> {
        let options = serde_json::json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace_seconds,
            "propagationPolicy": "Background",
        });
        self.send("DELETE", path, "application/json", &options.to_string())
    }

    /// Deletes the objects of a collection, which may have a selector in its query. One request deletes them one after the other, and the API
    /// server ends it in the middle (504) when that takes too long: it is then asked for the rest.
    ///
    /// # Panics
    /// When no server answers, when it refuses, or when objects are left in the end.
    pub fn delete_collection(&self, path: &str) {
        eventually(&format!("the end of {path}"), || {
            let reply = self.delete(path, None).expect("an answer");
            (reply.code != 504).then(|| reply.expect("the end of a collection"))
        });
    }

    /// Tries to delete an object, in a dry run.
    ///
    /// # Errors
    /// When no server answers.
    pub fn try_delete(&self, path: &str) -> Result<Reply, String> {
        // A body with options would count instead of the query.
        self.send("DELETE", &format!("{path}?dryRun=All"), "", "")
    }

    /// The text at a path, for instance a log or what a pod answers through the API server, and the HTTP status.
    ///
    /// # Errors
    /// When no server answers.
    pub fn text(&self, path: &str) -> Result<(u16, String), String> {
        let answer = self.answer("GET", path, "", "")?;
        Ok((answer.code, String::from_utf8_lossy(&answer.body).into_owned()))
    }

    fn send(&self, method: &str, path: &str, content_type: &str, body: &str) -> Result<Reply, String> {
        self.answer(method, path, content_type, body).map(Reply::from)
    }

    fn answer(&self, method: &str, path: &str, content_type: &str, body: &str) -> Result<Answer, String> {
        let question = Question { method, path, content_type, body: body.as_bytes() };
        let mut problems = Vec::new();
        for server in &self.servers {
            match self.client.send(*server, &question) {
                Ok(answer) => return Ok(answer),
                Err(error) => problems.push(format!("{server}: {error}")),
            }
        }
        Err(format!("{method} {path}: {}", problems.join("; ")))
    }
}

/// The object with the annotation of `kubectl apply`.
fn as_applied(object: &Value) -> Value {
    let mut applied = object.clone();
    applied["metadata"]["annotations"][LAST_APPLIED] = object.to_string().into();
    applied
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_kept_in_an_annotation_beside_its_own() {
        let object = json!({ "kind": "Namespace", "metadata": { "name": "shop", "annotations": { "own": "yes" } } });
        let applied = as_applied(&object);
        let annotations = &applied["metadata"]["annotations"];
        assert_eq!(annotations["own"], "yes");
        assert_eq!(serde_json::from_str::<Value>(annotations[LAST_APPLIED].as_str().unwrap()).unwrap(), object);
    }

    #[test]
    #[should_panic(expected = "the pod: 409 \"it is there\"")]
    fn a_failure_shows_what_the_server_said() {
        Reply { code: 409, body: json!({ "message": "it is there" }), warnings: Vec::new() }.expect("the pod");
    }
}
