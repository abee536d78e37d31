//! A policy with a history, and users with few rights.

use std::path::PathBuf;

use portcullis_e2e::Installation;
use serde_json::{Value, json};

use crate::cluster;

/// A Policy in a namespace of its own, at its fourth generation. The first and the third generation served.
pub(crate) struct Scene<'i> {
    pub(crate) installation: &'i Installation<'static>,
    pub(crate) namespace: String,
}

/// The digest of a generation.
fn digest(generation: i64) -> String {
    format!("sha256:{}", generation.to_string().repeat(64))
}

impl<'i> Scene<'i> {
    /// Creates the policy, and the revisions and status that the programs would have written.
    pub(crate) fn new(installation: &'i Installation<'static>, suffix: &str) -> Self {
        let scene = Self { installation, namespace: installation.make_namespace(suffix) };
        let created = installation.policy(&scene.namespace, "labels").at("registry://example.com/labels:v1");
        installation.apply(&created).expect("the policy");
        for version in ["v2", "v3", "v4"] {
            scene.edit(&json!({ "module": format!("registry://example.com/labels:{version}") }));
        }
        assert_eq!(scene.object()["metadata"]["generation"], 4);
        for (generation, version) in [(3, "v3"), (4, "v4")] {
            scene.put_revision(generation, version);
        }
        scene.put_status(4, &scene.failing());
        scene
    }

    pub(crate) fn path(&self) -> String {
        format!("/apis/policies.portcullis.dev/v1alpha1/namespaces/{}/policies/labels", self.namespace)
    }

    pub(crate) fn object(&self) -> Value {
        self.installation.api().get(&self.path()).expect("the policy")
    }

    /// Edits the spec, as a user would.
    pub(crate) fn edit(&self, spec: &Value) {
        let patched = self.installation.api().patch(&self.path(), &json!({ "spec": spec }));
        patched.expect("an API server answers").expect("an edit");
    }

    /// Creates the revision that the controller would keep of a generation.
    fn put_revision(&self, generation: i64, version: &str) {
        let object = self.object();
        let uid = object["metadata"]["uid"].as_str().unwrap();
        let key: String = uid.chars().filter(char::is_ascii_hexdigit).take(16).collect();
        let mut spec = object["spec"].clone();
        spec["module"] = format!("registry://example.com/labels:{version}").into();
        let revision = json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": generation,
            "metadata": { "name": format!("labels-{key}-{generation}") },
            "data": {
                "policy": { "kind": "Policy", "namespace": self.namespace, "name": "labels", "uid": uid },
                "generation": generation, "spec": spec,
            },
        });
        let path = format!("/apis/apps/v1/namespaces/{}/controllerrevisions", self.installation.namespace());
        self.installation.api().create(&path, &revision).expect("an API server answers").expect("a revision");
    }

    /// Writes a status, as the leader would.
    pub(crate) fn put_status(&self, generation: i64, status: &Value) {
        let mut status = status.clone();
        status["observedGeneration"] = generation.into();
        for condition in status["conditions"].as_array_mut().unwrap() {
            condition["observedGeneration"] = generation.into();
            condition["lastTransitionTime"] = "2026-01-01T00:00:00Z".into();
        }
        let object = json!({
            "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "Policy",
            "metadata": { "name": "labels", "namespace": self.namespace }, "status": status,
        });
        let path = format!("{}/status", self.path());
        let applied = self.installation.api().apply(&path, "portcullis-status", &object);
        applied.expect("an API server answers").expect("a status");
    }

    /// A status in which the fourth generation failed and the third answers.
    fn failing(&self) -> Value {
        json!({
            "conditions": [
                { "type": "Ready", "status": "False", "reason": "ServingPrevious", "message": "generation 3 answers" },
                { "type": "Degraded", "status": "True", "reason": "SettingsInvalid",
                  "message": "SettingsInvalid: the label \"Team Name\" is not allowed" },
                { "type": "Stalled", "status": "True", "reason": "SettingsInvalid", "message": "SettingsInvalid" },
            ],
            "summary": "0/1",
            "lastServed": { "generation": 3, "digest": digest(3) },
            "replicaCounts": { "expected": 1, "current": 0, "previous": 1, "pending": 0, "failed": 0, "unknown": 0 },
            "replicas": [{ "pod": "policy-server-1", "podUID": "u", "state": "Previous", "generation": 3,
                           "reason": "SettingsInvalid", "retryable": false, "since": "2026-01-01T00:00:00Z",
                           "message": "the label \"Team Name\" is not allowed" }],
            "replicasOmitted": 0,
            "history": [
                { "generation": 4, "time": "2026-01-01T04:00:00Z", "served": false, "reason": "SettingsInvalid" },
                { "generation": 3, "time": "2026-01-01T03:00:00Z", "served": true, "digest": digest(3) },
                { "generation": 2, "time": "2026-01-01T02:00:00Z", "served": false, "reason": "NotFound" },
                { "generation": 1, "time": "2026-01-01T01:00:00Z", "served": true, "digest": digest(1) },
            ],
        })
    }

    /// A status in which the newest generation answers.
    pub(crate) fn well(&self) -> Value {
        let mut status = self.failing();
        status["conditions"] = json!([
            { "type": "Ready", "status": "True", "reason": "Active", "message": "answers" },
            { "type": "Degraded", "status": "False", "reason": "AsExpected", "message": "" },
            { "type": "Stalled", "status": "False", "reason": "AsExpected", "message": "" },
        ]);
        status["replicas"] = json!([]);
        status["summary"] = "1/1".into();
        status
    }

    /// The kubeconfig of a user with these verbs on the policies of the namespace, and no other rights.
    pub(crate) fn user(&self, name: &str, verbs: &[&str]) -> PathBuf {
        let rules = json!([{ "apiGroups": ["policies.portcullis.dev"], "resources": ["policies"], "verbs": verbs }]);
        kubeconfig_of(&self.namespace, name, &rules)
    }
}

/// The kubeconfig of a user with a role of these rules in a namespace, and no other rights.
pub(crate) fn kubeconfig_of(namespace: &str, name: &str, rules: &Value) -> PathBuf {
    let metadata = json!({ "name": name, "namespace": namespace });
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata },
        { "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules },
        { "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
          "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": namespace }],
          "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name } },
    ]});
    cluster().apply(&objects.to_string()).expect("a user");
    let token = cluster().kubectl(["create", "token", name, "--namespace", namespace]);
    cluster().kubeconfig_for(token.expect("a token"))
}
