//! The policy to ask: one document of a manifest, prepared for a folder of its own. Pure.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use portcullis_api::{API_VERSION, PolicySpec, decode_manifest, without_nulls};
use portcullis_contract::{Capability, Mismatch, MismatchReason, PolicyId, is_granted};
use portcullis_yaml::ReadOtherwise;
use serde_json::{Value, json};

use super::request::Review;
use crate::document::{Document, documents, read_otherwise};
use crate::kind::{Kind, NoPolicy, objects, shown};
use crate::matching::{NamespaceLabels, matching};
use crate::module_source::Source;

/// The chosen policy.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) id: PolicyId,
    /// The manifest to load, as JSON: as the user wrote it, but with an absolute module path, not suspended, and with a `failurePolicy` that
    /// admits with a warning when the policy cannot be evaluated, which distinguishes that from a denial.
    pub(crate) manifest: String,
    /// The spec as the user wrote it.
    pub(crate) spec: Box<PolicySpec>,
    /// What a user should know of the scalars in its document that kubectl reads otherwise.
    pub(crate) read_otherwise: Vec<String>,
    /// Whether a module was named instead of a manifest.
    is_alone: bool,
}

/// What arguments add to the policy.
#[derive(Default)]
pub(crate) struct Given {
    /// Settings that replace the manifest's.
    pub settings: Option<Value>,
    /// Grants of host capabilities, in addition to the manifest's.
    pub capabilities: Vec<String>,
    /// Kinds of objects that may be read, instead of the manifest's; if empty, the manifest's count.
    pub kinds: Vec<Value>,
    /// Whether the policy answers as in mode `protect`, whatever its own.
    pub protect: bool,
}

impl Given {
    /// Adds what the metadata of a module file declares.
    ///
    /// # Errors
    /// When the module is not a file, or cannot be read.
    pub(super) fn add_declared(&mut self, module: &str) -> anyhow::Result<()> {
        let path = module.strip_prefix("file://").unwrap_or(module);
        ensure!(!path.contains("://"), "--allow-context-aware: {module} is not a file; pull it first");
        let bytes = std::fs::read(path).with_context(|| format!("failed to read {path}"))?;
        let (capabilities, kinds) = crate::registry::declared(&bytes)?;
        self.capabilities.extend(capabilities);
        self.kinds = kinds;
        Ok(())
    }
}

impl Chosen {
    /// A policy of a module alone: it is asked about everything, and may change objects.
    pub(super) fn alone(module: &str, given: Given) -> anyhow::Result<Self> {
        let rule = json!({"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]});
        let document = json!({
            "apiVersion": API_VERSION,
            "kind": "ClusterPolicy",
            "metadata": {"name": crate::registry::policy_name(module)},
            "spec": {"module": module, "rules": [rule], "mutating": true},
        });
        Ok(Self { is_alone: true, ..Self::of(document, Path::new("/"), given)? })
    }

    /// The policy `wanted` of a manifest in `folder`, or its only one. `file` is how the user named the manifest.
    pub(crate) fn from(
        text: &[u8],
        file: &Path,
        folder: &Path,
        wanted: Option<&str>,
        given: Given,
    ) -> anyhow::Result<Self> {
        let named = || format!("failed to take a policy from {}", file.display());
        let documents = documents(file, text).context("failed to decode it as YAML or JSON").with_context(named)?;
        let (mut found, mut kubewarden) = (Vec::new(), Vec::new());
        for Document { value, otherwise, .. } in documents {
            for object in objects(value) {
                match Kind::of(&object) {
                    Kind::Policy | Kind::Unknown(_) => found.push((object, otherwise.clone())),
                    Kind::Kubewarden => kubewarden = vec![file.to_owned()],
                    Kind::Other => {}
                }
            }
        }
        ensure!(!found.is_empty(), NoPolicy::of(&[file.to_owned()], &kubewarden));
        let (document, otherwise) = one_of(found, wanted).with_context(named)?;
        let chosen = Self::of(document, folder, given).with_context(named)?;
        Ok(Self { read_otherwise: notes_on(file, &otherwise), ..chosen })
    }

    /// The policy of one document of a manifest in `folder`.
    ///
    /// # Errors
    /// When the document breaks a rule of the schema.
    pub(crate) fn of(mut document: Value, folder: &Path, given: Given) -> anyhow::Result<Self> {
        without_nulls(&mut document);
        let policy = decode_manifest(document.clone())?;
        let id = policy.check()?;
        let spec = document.get_mut("spec").and_then(Value::as_object_mut);
        let spec = spec.context("spec: want a mapping")?;
        // A folder has no revisions to go back to ([`Self::rollback`]).
        spec.shift_remove("rollbackTo");
        spec.insert("suspend".to_owned(), Value::from(false));
        spec.insert("failurePolicy".to_owned(), Value::from("Ignore"));
        if given.protect {
            spec.insert("mode".to_owned(), Value::from("protect"));
        }
        // Each member of a policy group has a module and grants of its own.
        let members = spec.get_mut("policies").and_then(Value::as_object_mut);
        let parts: Vec<_> = match members {
            Some(_) if given.settings.is_some() => {
                bail!("it is a policy group, whose members have settings of their own: write them into the manifest")
            }
            Some(members) => members.values_mut().filter_map(Value::as_object_mut).collect(),
            None => vec![spec],
        };
        for part in parts {
            if let Some(path) = part.get("module").and_then(Value::as_str).and_then(|module| absolute(module, folder)) {
                part.insert("module".to_owned(), Value::from(path));
            }
            if let Some(settings) = &given.settings {
                part.insert("settings".to_owned(), settings.clone());
            }
            if !given.capabilities.is_empty() {
                let granted = part.entry("hostCapabilities").or_insert_with(|| Value::Array(Vec::new()));
                granted
                    .as_array_mut()
                    .context("hostCapabilities: want a list")?
                    .extend(given.capabilities.iter().map(String::as_str).map(Value::from));
            }
            if !given.kinds.is_empty() {
                part.insert("contextAwareResources".to_owned(), Value::Array(given.kinds.clone()));
            }
        }
        // Metadata that a cluster added does not matter here, and its creation time would be taken for the policy's.
        if let Some(metadata) = document.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|name, _| ["name", "namespace"].contains(&name.as_str()));
        }
        Ok(Self {
            id,
            manifest: document.to_string(),
            spec: Box::new(policy.spec),
            read_otherwise: Vec::new(),
            is_alone: false,
        })
    }

    /// Whether the policy, or a member of a policy group, may ask the cluster: for objects, or what a user may do. Objects take
    /// `contextAwareResources`, and the question about users only a grant.
    pub(crate) fn asks_cluster(&self) -> bool {
        let can_i = |patterns: &[String]| is_granted(patterns, Capability::CanI.path());
        let asks = |member: &Value| {
            let list = |field: &str| member[field].as_array().cloned().unwrap_or_default();
            let patterns: Vec<_> =
                list("hostCapabilities").iter().filter_map(Value::as_str).map(str::to_owned).collect();
            !list("contextAwareResources").is_empty() || can_i(&patterns)
        };
        !self.spec.context_aware_resources.is_empty()
            || can_i(&self.spec.host_capabilities)
            || self.spec.policies.as_ref().is_some_and(|members| members.values().any(asks))
    }

    /// The differences between module and manifest that a user can do something about. Without a manifest, rules and `mutating` were not written
    /// by the user.
    pub(crate) fn differences(&self, found: Vec<Mismatch>) -> impl Iterator<Item = String> {
        let invented = [MismatchReason::MutatingDiffers, MismatchReason::RulesDiffer, MismatchReason::RawPolicy];
        let is_alone = self.is_alone;
        found.into_iter().filter(move |one| !is_alone || !invented.contains(&one.reason)).map(|one| one.message)
    }

    /// What a user should know where the content of another generation is served.
    pub(crate) fn rollback(&self) -> Option<String> {
        let to = self.spec.rollback_to?;
        Some(format!(
            "spec.rollbackTo: a cluster serves the content of generation {to}, and this is about the content of the manifest"
        ))
    }

    /// What a user should know about the verdict: why an API server would not have asked the policy, or may not have.
    pub(super) fn notes(&self, review: &Review) -> Vec<String> {
        let mut notes = Vec::new();
        if self.spec.suspend {
            notes.push("the policy is suspended; it was evaluated as if it were not".to_owned());
        }
        notes.extend(self.rollback());
        notes.extend(self.read_otherwise.iter().cloned());
        // A module alone has no rules of its own.
        let Some(asked) = review.asked.as_ref().filter(|_| !self.is_alone) else { return notes };
        let request = serde_json::from_slice::<Value>(&review.bytes).unwrap_or_default()["request"].take();
        notes.extend(matching(&self.id, &self.spec, asked, &request, NamespaceLabels::NotKnown).note());
        notes
    }
}

/// The names of the policies of a manifest; none if it cannot be decoded.
pub(crate) fn names(file: &Path, text: &[u8]) -> Vec<String> {
    let documents = documents(file, text).unwrap_or_default().into_iter();
    let objects = documents.flat_map(|document| objects(document.value));
    objects.filter(|object| Kind::of(object) == Kind::Policy).map(|object| name_of(&object).to_owned()).collect()
}

/// What a user should know of the scalars of a file that kubectl reads otherwise.
pub(crate) fn notes_on(file: &Path, otherwise: &[ReadOtherwise]) -> Vec<String> {
    otherwise.iter().map(|one| format!("{}: {}", shown(file), read_otherwise(one))).collect()
}

/// The policy `wanted` of these, or the only one, with what belongs to it.
fn one_of<T>(mut policies: Vec<(Value, T)>, wanted: Option<&str>) -> anyhow::Result<(Value, T)> {
    let names = policies.iter().map(|(policy, _)| name_of(policy)).collect::<Vec<_>>().join(", ");
    let names = portcullis_contract::clean(&names, 1000);
    if let Some(wanted) = wanted {
        policies.retain(|(policy, _)| name_of(policy) == wanted || id_of(policy) == wanted);
    }
    match policies.len() {
        1 => {}
        0 => bail!("it has no policy {:?}; it has {names}", wanted.unwrap_or_default()),
        _ => bail!("it has several policies: {names}; name one with --policy, or in a test with policyName"),
    }
    let (policy, its) = policies.remove(0);
    if let Kind::Unknown(why) = Kind::of(&policy) {
        bail!(why);
    }
    Ok((policy, its))
}

fn name_of(policy: &Value) -> &str {
    policy["metadata"]["name"].as_str().unwrap_or_default()
}

fn id_of(policy: &Value) -> String {
    let name = name_of(policy);
    match policy["kind"].as_str() {
        Some("Policy") => {
            format!("namespaced/{}/{name}", policy["metadata"]["namespace"].as_str().unwrap_or("default"))
        }
        _ => format!("cluster/{name}"),
    }
}

/// The absolute path of a module that is named by a path; `None` for an address.
fn absolute(module: &str, folder: &Path) -> Option<String> {
    let Source::Path(path) = Source::of(module) else { return None };
    folder.join(path).to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use portcullis_contract::Mode;
    use portcullis_matching::Asked;

    use super::*;

    const TWO: &str = "
apiVersion: v1
kind: ConfigMap
---
apiVersion: policies.portcullis.dev/v1alpha1
kind: ClusterPolicy
metadata: {name: a, creationTimestamp: '2026-01-01T00:00:00Z', resourceVersion: '7'}
spec:
  module: modules/a.wasm
  settings: {large: 9007199254740993, empty: null}
  rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
  suspend: true
  mode: monitor
---
apiVersion: policies.portcullis.dev/v1alpha1
kind: Policy
metadata: {name: b, namespace: team}
spec:
  module: https://example.com/b.wasm
  rules: [{apiGroups: [''], apiVersions: [v1], resources: ['*/*'], operations: ['*']}]
";

    fn of(text: &str, wanted: Option<&str>, given: Given) -> Result<Chosen, String> {
        Chosen::from(text.as_bytes(), Path::new("a.yaml"), Path::new("/home/me"), wanted, given)
            .map_err(|error| format!("{error:#}"))
    }

    fn chosen(wanted: Option<&str>) -> Result<Chosen, String> {
        of(TWO, wanted, Given::default())
    }

    #[test]
    fn a_policy_is_made_ready_and_its_settings_stay() {
        let chosen = chosen(Some("a")).expect("is there");
        assert_eq!((chosen.id.as_str(), chosen.spec.mode), ("cluster/a", Mode::Monitor));
        let document: Value = serde_json::from_str(&chosen.manifest).expect("JSON");
        assert_eq!(document["spec"]["module"].as_str(), Some("/home/me/modules/a.wasm"));
        assert_eq!(document["spec"]["suspend"].as_bool(), Some(false));
        assert_eq!(document["spec"]["failurePolicy"].as_str(), Some("Ignore"));
        assert_eq!(document["spec"]["settings"]["large"].as_u64(), Some(9_007_199_254_740_993));
        assert!(document["spec"]["settings"].get("empty").is_some_and(Value::is_null));
        assert_eq!(document["metadata"].as_object().map(serde_json::Map::len), Some(1));
        assert_eq!(document["spec"]["mode"], "monitor");
        let given = Given { protect: true, ..Given::default() };
        let chosen = of(TWO, Some("a"), given).expect("is there");
        let document: Value = serde_json::from_str(&chosen.manifest).expect("JSON");
        assert_eq!((document["spec"]["mode"].as_str(), chosen.spec.mode), (Some("protect"), Mode::Monitor));
    }

    fn settings(settings: Value) -> Given {
        Given { settings: Some(settings), ..Given::default() }
    }

    #[test]
    fn one_of_several_is_named_by_name_or_id() {
        assert_eq!(chosen(Some("namespaced/team/b")).expect("is there").id.as_str(), "namespaced/team/b");
        let from = "failed to take a policy from a.yaml: it has";
        assert_eq!(
            chosen(None).expect_err("two"),
            format!("{from} several policies: a, b; name one with --policy, or in a test with policyName")
        );
        assert_eq!(chosen(Some("c")).expect_err("none"), format!("{from} no policy \"c\"; it has a, b"));
    }

    #[test]
    fn policies_are_found_in_lists_and_those_of_other_products_are_not_ours() {
        let documents = portcullis_yaml::read_documents(TWO).expect("YAML");
        let foreign = json!({"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicy", "metadata": {"name": "a"}});
        for kind in ["List", "PolicyList", "ClusterPolicyList"] {
            let list = json!({"apiVersion": "v1", "kind": kind, "items": documents}).to_string();
            let text = format!("{foreign}\n---\n{list}");
            assert_eq!(of(&text, Some("a"), Given::default()).expect("is there").id.as_str(), "cluster/a", "{kind}");
        }
        let refused = |text: &str| of(text, None, Given::default()).expect_err("refused");
        let none = "no Policy or ClusterPolicy of policies.portcullis.dev/v1alpha1 in a.yaml";
        assert_eq!(refused("kind: ConfigMap"), none);
        assert_eq!(refused(&foreign.to_string()), none);
        let hint = "; it has manifests of Kubewarden: `portcullis migrate kubewarden a.yaml` translates them";
        let theirs = "{apiVersion: policies.kubewarden.io/v1, kind: AdmissionPolicy}";
        assert_eq!(refused(theirs), format!("{none}{hint}"));
        assert_eq!(
            refused("{apiVersion: policies.portcullis.dev/v1, kind: Policy}"),
            "failed to take a policy from a.yaml: apiVersion: it is \"policies.portcullis.dev/v1\"; want \
             policies.portcullis.dev/v1alpha1"
        );
    }

    #[test]
    fn what_kubectl_reads_otherwise_in_the_policy_is_noted() {
        let text = TWO.replace("settings: {large:", "settings: {team: no, mode: 0644, large:");
        let review = Review::from(b"{apiVersion: v1, kind: Pod, metadata: {namespace: x}}").expect("a request");
        let chosen = of(&text, Some("a"), Given::default()).expect("is there");
        let told = [
            "a.yaml: line 10: kubectl reads `no` as false: quote it if it is a text".to_owned(),
            "a.yaml: line 10: kubectl reads a plain scalar as a number: quote it if it is a text".to_owned(),
        ];
        assert_eq!(chosen.read_otherwise, told);
        assert_eq!(chosen.notes(&review)[1..], told, "beside that it is suspended");
        assert_eq!(of(&text, Some("b"), Given::default()).expect("is there").read_otherwise, Vec::<String>::new());
    }

    #[test]
    fn a_module_alone_is_asked_about_everything_with_the_settings_that_are_given() {
        let chosen =
            Chosen::alone("registry://example.com/Safe_Labels:v1", settings(json!({"a": 1}))).expect("a policy");
        assert_eq!((chosen.id.as_str(), chosen.spec.mode), ("cluster/safe-labels", Mode::Protect));
        let document: Value = serde_json::from_str(&chosen.manifest).expect("JSON");
        assert_eq!(document["spec"]["module"], "registry://example.com/Safe_Labels:v1");
        assert_eq!(document["spec"]["settings"], json!({"a": 1}));
        let review = Review::from(br#"{"apiVersion":"v1","kind":"Pod"}"#).expect("a request");
        assert_eq!(chosen.notes(&review), Vec::<String>::new());
        let found = [MismatchReason::MutatingDiffers, MismatchReason::CapabilityNotGranted];
        let found = || found.map(|reason| Mismatch::new(reason, reason.as_str())).to_vec();
        assert_eq!(chosen.differences(found()).collect::<Vec<_>>(), ["CapabilityNotGranted"]);
        let named = self::chosen(Some("b")).expect("a policy");
        assert_eq!(named.differences(found()).count(), 2);
        let with = |given: Value| of(TWO, Some("b"), settings(given));
        let document: Value = serde_json::from_str(&with(json!({"b": 2})).expect("a policy").manifest).expect("JSON");
        assert_eq!(document["spec"]["settings"], json!({"b": 2}));
    }

    #[test]
    fn a_group_asks_the_cluster_if_a_member_does() {
        let asks = |spec: Value| {
            let mut document = json!({
                "apiVersion": API_VERSION, "kind": "ClusterPolicy", "metadata": {"name": "a"},
                "spec": {"rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]},
            });
            let wanted = document["spec"].as_object_mut().expect("a mapping");
            wanted.extend(spec.as_object().expect("a mapping").clone());
            Chosen::of(document, Path::new("/"), Given::default()).expect("a policy").asks_cluster()
        };
        let kinds = json!([{"apiVersion": "v1", "kind": "Namespace"}]);
        let module = "https://example.com/a.wasm";
        let group = |member: Value| json!({"policies": {"x": {"module": module}, "y": member}, "expression": "x() && y()", "message": "no"});
        assert!(asks(json!({"module": module, "contextAwareResources": kinds})));
        assert!(!asks(json!({"module": module, "contextAwareResources": []})));
        assert!(asks(group(json!({"module": module, "contextAwareResources": kinds}))));
        assert!(!asks(group(json!({"module": module}))));
        for (pattern, is_asked) in [("kubernetes/can_i", true), ("kubernetes/*", true), ("*", true), ("oci/*", false)] {
            let part = json!({"module": module, "hostCapabilities": [pattern]});
            assert_eq!((asks(part.clone()), asks(group(part))), (is_asked, is_asked), "{pattern}");
        }
    }

    #[test]
    fn what_a_cluster_or_a_template_wrote_is_read() {
        let written = TWO.replace("  suspend: true\n", "  suspend:\n  hostCapabilities:\n  rollbackTo: 3\n");
        let chosen = of(&written, Some("a"), Given::default()).expect("a policy");
        let document: Value = serde_json::from_str(&chosen.manifest).expect("JSON");
        assert!(document["spec"].get("rollbackTo").is_none() && document["spec"].get("hostCapabilities").is_none());
        let review = Review::from(b"{apiVersion: v1, kind: Pod}").expect("a request");
        assert!(chosen.notes(&review)[0].starts_with("spec.rollbackTo: a cluster serves the content of generation 3"));
        let slip =
            TWO.replace("  suspend: true\n", "  mutating: 'true'\n").replace("large:", "password: hunter2, large:");
        let told = of(&slip, Some("a"), Given::default()).expect_err("a slip");
        assert!(told.contains("a.yaml: spec.mutating: invalid type: ") && !told.contains("hunter2"), "{told}");
    }

    #[test]
    fn only_paths_are_made_absolute() {
        let absolute = |module: &str| absolute(module, Path::new("/home/me"));
        assert_eq!(absolute("./a").as_deref(), Some("/home/me/./a"));
        assert_eq!(absolute("file:a.wasm").as_deref(), Some("/home/me/a.wasm"));
        assert_eq!(absolute(" a.wasm ").as_deref(), Some("/home/me/a.wasm"), "spaces are no part of it");
        assert_eq!(absolute("/opt/a.wasm").as_deref(), Some("/opt/a.wasm"));
        for address in ["https://example.com/a.wasm", "file:///opt/a.wasm", "registry://example.com/a:v1", "a"] {
            assert_eq!(absolute(address), None, "{address}");
        }
    }

    #[test]
    fn a_request_that_no_rule_matches_is_told() {
        let asked = |resource: &str, subresource: &str, namespace: &str| Review {
            bytes: Vec::new(),
            is_raw: false,
            notes: Vec::new(),
            otherwise: Vec::new(),
            asked: Some(Asked {
                group: String::new(),
                version: "v1".into(),
                resource: resource.into(),
                subresource: subresource.into(),
                operation: "CREATE".into(),
                namespace: namespace.into(),
            }),
        };
        let (a, b) = (chosen(Some("a")).expect("is there"), chosen(Some("b")).expect("is there"));
        assert_eq!(a.notes(&asked("pods", "", "x")).len(), 1, "suspended");
        assert_eq!(a.notes(&asked("pods", "status", "x")).len(), 2, "and no match");
        assert!(b.notes(&asked("pods", "", "team")).is_empty());
        assert!(b.notes(&asked("pods", "", "x"))[0].contains("its own namespace \"team\" only"));
        let system = b"{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: kube-system}}";
        let notes = a.notes(&Review::from(system).expect("a request"));
        assert!(notes[1].starts_with("an API server would not ask the policy: "), "{notes:?}");
        let mut spec: Value = serde_json::from_str(&a.manifest).expect("JSON");
        spec["spec"]["namespaceSelector"] = json!({"matchLabels": {"team": "a"}});
        let selecting = Chosen::of(spec, Path::new("/"), Given::default()).expect("a policy");
        let notes = selecting.notes(&asked("pods", "", "x"));
        assert!(notes[0].starts_with("only an API server can judge whether it asks the policy: "), "{notes:?}");
    }
}
