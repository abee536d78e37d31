//! A builder of policy manifests.

use serde_json::{Value, json};

use crate::{guest, guest_with};

/// A builder of a manifest, with its module.
#[derive(Debug, Clone)]
pub struct Policy {
    manifest: Value,
    module: Option<Vec<u8>>,
}

impl Policy {
    /// A ClusterPolicy on pods, mode protect, failurePolicy Fail.
    pub fn cluster(name: &str) -> Self {
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["*"]});
        Self {
            manifest: json!({
                "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
                "spec": {"module": format!("modules/{name}.wasm"), "settings": {}, "rules": [rule]},
            }),
            module: None,
        }
    }

    /// A Policy in a namespace, otherwise the same as [`Policy::cluster`].
    pub fn namespaced(namespace: &str, name: &str) -> Self {
        let mut policy = Self::cluster(name);
        policy.manifest["kind"] = "Policy".into();
        policy.manifest["metadata"]["namespace"] = namespace.into();
        policy
    }

    /// Runs the guest of this file of `guests/wat`, written beside the manifest under the guest's name.
    #[must_use]
    pub fn guest(mut self, name: &str) -> Self {
        self.module = Some(guest(name));
        self.at(&format!("modules/{name}.wasm"))
    }

    /// Runs a template of `guests/wat` with this answer, written beside the manifest under the policy's name.
    #[must_use]
    pub fn answering(self, template: &str, answer: impl AsRef<[u8]>) -> Self {
        self.bytes(guest_with(template, answer.as_ref()))
    }

    /// Denies everything with this text (printable ASCII).
    #[must_use]
    pub fn denying(self, text: &str) -> Self {
        self.answering("deny_text", text)
    }

    /// Runs these bytes, written beside the manifest under the policy's name.
    #[must_use]
    pub fn bytes(mut self, module: impl Into<Vec<u8>>) -> Self {
        self.module = Some(module.into());
        let file = format!("modules/{}.wasm", self.name());
        self.at(&file)
    }

    /// Runs a module of `examples/modules`, written beside the manifest.
    ///
    /// # Panics
    /// When there is no such file.
    #[must_use]
    pub fn example(mut self, name: &str) -> Self {
        self.module = Some(portcullis_testkit::example(name));
        self.at(&format!("modules/{name}.wasm"))
    }

    /// Runs the module of this address or path, which the test provides.
    #[must_use]
    pub fn module(mut self, address: &str) -> Self {
        self.module = None;
        self.at(address)
    }

    /// Makes it a policy group of these members, whose modules the test provides. Its denials say `the group denies`.
    ///
    /// # Panics
    /// Never: a manifest has a spec.
    #[must_use]
    pub fn group_of(mut self, members: &Value, expression: &str) -> Self {
        self.module = None;
        let spec = self.manifest["spec"].as_object_mut().expect("it is an object");
        spec.shift_remove("module");
        spec.shift_remove("settings");
        self.spec("policies", members.clone()).spec("expression", expression).spec("message", "the group denies")
    }

    fn at(self, module: &str) -> Self {
        self.spec("module", module)
    }

    /// Sets a field of `spec`.
    #[must_use]
    pub fn spec(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.manifest["spec"][field] = value.into();
        self
    }

    /// Sets the settings.
    #[must_use]
    pub fn settings(self, settings: Value) -> Self {
        self.spec("settings", settings)
    }

    /// Sets the mode: `protect`, `warn` or `monitor`.
    #[must_use]
    pub fn mode(self, mode: &str) -> Self {
        self.spec("mode", mode)
    }

    /// Sets `failurePolicy: Ignore`.
    #[must_use]
    pub fn ignoring_failure(self) -> Self {
        self.spec("failurePolicy", "Ignore")
    }

    /// Makes it mutating, and so a member of a mutating match group.
    #[must_use]
    pub fn mutating(self) -> Self {
        self.spec("mutating", true)
    }

    /// Sets how long one evaluation may take, in seconds; the API server waits for the same time.
    #[must_use]
    pub fn timeout(self, seconds: u32) -> Self {
        self.spec("timeoutEvalSeconds", seconds).spec("timeoutSeconds", seconds.max(10))
    }

    /// Matches another resource than pods, so that it is in another match group.
    #[must_use]
    pub fn on(mut self, resource: &str) -> Self {
        self.manifest["spec"]["rules"][0]["resources"] = json!([resource]);
        self
    }

    /// The same policy under another name.
    #[must_use]
    pub fn renamed(&self, name: &str) -> Self {
        let mut policy = self.clone();
        policy.manifest["metadata"]["name"] = name.into();
        policy
    }

    /// `metadata.name`.
    pub fn name(&self) -> &str {
        self.manifest["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The id in paths: `cluster/<name>` or `namespaced/<namespace>/<name>`.
    pub fn id(&self) -> String {
        match self.manifest["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("namespaced/{namespace}/{}", self.name()),
            None => format!("cluster/{}", self.name()),
        }
    }

    /// The id of its match group, as the loader computes it.
    ///
    /// # Panics
    /// When the manifest is not valid.
    pub fn group(&self) -> String {
        let policy: portcullis_api::Policy = serde_json::from_value(self.manifest.clone()).expect("a manifest");
        portcullis_contract::group_id(&policy.match_part()).to_string()
    }

    /// The manifest, as JSON (which is YAML).
    pub fn json(&self) -> &Value {
        &self.manifest
    }

    /// The module to be written beside it: its path relative to the manifest, and its bytes.
    pub fn module_file(&self) -> Option<(&str, &[u8])> {
        Some((self.manifest["spec"]["module"].as_str()?, self.module.as_deref()?))
    }
}
