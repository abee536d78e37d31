//! A builder of policies, with their modules.

use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::Digest;
use serde_json::{Value, json};

use crate::api::{Api, Reply};
use crate::json::merge;
use crate::source::Source;
use crate::wait::LIMIT;
use crate::{example, guest, guest_with};

/// How long an evaluation may take, in seconds, if a test is not about that: the programs are debug builds, and share the machine. Three
/// mutating policies of one webhook fit into half a minute.
const EVALUATION: u32 = 9;
/// How long an API server waits for a webhook, in seconds: the longest that it allows.
const WEBHOOK: u32 = 30;

/// A builder of a policy. Its defaults are the creation of pods, mode protect, failurePolicy Fail, a module that accepts everything,
/// and time limits for a busy machine.
#[derive(Debug, Clone)]
pub struct Policy {
    manifest: Value,
    module: Option<Vec<u8>>,
}

impl Policy {
    pub(crate) fn cluster(name: &str, policy_server: &str) -> Self {
        let rule = json!({ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"] });
        let selector = json!({ "matchLabels": { "portcullis-test": policy_server } });
        let manifest = json!({
            "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": { "name": name },
            "spec": {
                "policyServer": policy_server, "rules": [rule], "namespaceSelector": selector,
                "timeoutSeconds": WEBHOOK, "timeoutEvalSeconds": EVALUATION,
            },
        });
        Self { manifest, module: Some(guest("always_accept")) }
    }

    pub(crate) fn namespaced(namespace: &str, name: &str, policy_server: &str) -> Self {
        let kind = json!({
            "kind": "Policy", "metadata": { "namespace": namespace }, "spec": { "namespaceSelector": null },
        });
        Self::cluster(name, policy_server).with(&kind)
    }

    /// Runs the guest of this file of `guests/wat`.
    #[must_use]
    pub fn guest(self, name: &str) -> Self {
        self.module_of(guest(name))
    }

    /// Runs a template of `guests/wat` with this answer.
    #[must_use]
    pub fn answering(self, template: &str, answer: impl AsRef<[u8]>) -> Self {
        self.module_of(guest_with(template, answer.as_ref()))
    }

    /// Denies everything with this text (printable ASCII).
    #[must_use]
    pub fn denying(self, text: &str) -> Self {
        self.answering("deny_text", text)
    }

    /// Runs a built module of `examples/modules`.
    #[must_use]
    pub fn example(self, name: &str) -> Self {
        self.module_of(example(name))
    }

    /// Runs these bytes, whatever they are.
    #[must_use]
    pub fn module_of(self, bytes: impl Into<Vec<u8>>) -> Self {
        Self { module: Some(bytes.into()), ..self }
    }

    /// Uses this module address as it is; no module is added to the source.
    #[must_use]
    pub fn at(self, url: &str) -> Self {
        Self { module: None, ..self }.with(&json!({ "spec": { "module": url } }))
    }

    /// Sets a field of the spec.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.manifest["spec"][name] = value.into();
        self
    }

    /// Merges fields into the manifest; null removes one.
    #[must_use]
    pub fn with(mut self, patch: &Value) -> Self {
        merge(&mut self.manifest, patch);
        self
    }

    /// Makes it apply to the creation of these resources of the core group, instead of pods.
    #[must_use]
    pub fn on(self, resources: &[&str]) -> Self {
        let rule = json!({
            "apiGroups": [""], "apiVersions": ["v1"], "resources": resources, "operations": ["CREATE"],
        });
        self.field("rules", json!([rule]))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.manifest["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Its namespace, if it has one.
    pub fn namespace(&self) -> Option<&str> {
        self.manifest["metadata"]["namespace"].as_str()
    }

    /// Kind and name in kubectl's form: `clusterpolicies.policies.portcullis.dev/NAME`.
    pub fn reference(&self) -> String {
        format!("{}.policies.portcullis.dev/{}", self.plural(), self.name())
    }

    fn plural(&self) -> &'static str {
        if self.namespace().is_some() { "policies" } else { "clusterpolicies" }
    }

    /// Its path in the API.
    pub fn path(&self) -> String {
        let group = "/apis/policies.portcullis.dev/v1alpha1";
        match self.namespace() {
            Some(namespace) => format!("{group}/namespaces/{namespace}/policies/{}", self.name()),
            None => format!("{group}/clusterpolicies/{}", self.name()),
        }
    }

    /// Waits until a condition has this status for the newest generation, and returns the object.
    ///
    /// # Panics
    /// When the time is up; shows the object's status.
    pub fn wait_for(&self, api: &Api, kind: &str, status: &str) -> Value {
        self.wait_until(api, &format!("{kind}={status}"), |object| {
            condition(object, kind).is_some_and(|found| {
                found["status"] == status && found["observedGeneration"] == object["metadata"]["generation"]
            })
        })
    }

    /// Waits until the object fulfils a condition, and returns it.
    ///
    /// # Panics
    /// When the time is up; shows the object's status.
    pub fn wait_until(&self, api: &Api, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let found = api.get(&self.path());
            if let Some(object) = found.as_ref().filter(|object| is(object)) {
                return object.clone();
            }
            let object = found.unwrap_or_default();
            assert!(
                start.elapsed() < LIMIT,
                "waited in vain for {what} of {}: its generation is {}, its status\n{}",
                self.name(),
                object["metadata"]["generation"],
                portcullis_yaml::write(&object["status"]).unwrap_or_default(),
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The API server's answer to a dry run of this policy.
    ///
    /// # Panics
    /// When no API server answers.
    pub fn dry_run(&self, api: &Api, source: &Source) -> Reply {
        let path = self.path();
        let collection = path.strip_suffix(&format!("/{}", self.name())).expect("the path ends with the name");
        let reply = api.create(&format!("{collection}?dryRun=All"), &self.manifest(source));
        reply.expect("an API server answers")
    }

    /// The complete manifest. Its module is added to the source first; the address depends only on the module's bytes.
    pub fn manifest(&self, source: &Source) -> Value {
        let mut manifest = self.manifest.clone();
        if let Some(module) = &self.module {
            let path = format!("/{}.wasm", &Digest::of(module).hex()[..16]);
            source.put(&path, module.clone());
            manifest["spec"]["module"] = source.url(&path).into();
        }
        manifest
    }
}

/// A condition of an object, by its type.
pub fn condition<'o>(object: &'o Value, kind: &str) -> Option<&'o Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespaced_policy_has_no_namespace_selector() {
        let policy = Policy::namespaced("shop", "labels", "one");
        assert_eq!(policy.manifest["spec"].get("namespaceSelector"), None);
        assert_eq!(policy.path(), "/apis/policies.portcullis.dev/v1alpha1/namespaces/shop/policies/labels");
        assert_eq!(policy.reference(), "policies.policies.portcullis.dev/labels");
    }
}
