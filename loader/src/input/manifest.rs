//! From a document in a folder to a policy: manifests of Policy and ClusterPolicy objects.

use std::path::Path;

use portcullis_api::{API_VERSION, Kind, Policy};
use portcullis_contract::{Digest, FailurePolicy, Mode, PolicyId, Reason, group_id};
use portcullis_registry::signature::Requirement;
use portcullis_yaml::{Document, MAX_DEPTH};
use serde_json::Value;

use super::decode::decode;
use super::policy_group::policy_group;
use super::settings::settings;
use crate::content::{Body, DesiredPolicy, Head, hash};
use crate::declared::resources;
use crate::problem::Problem;
use crate::source::Reference;

/// Most resources of a policy that are compared with its module's metadata.
const MAX_RESOURCES: usize = 64;

/// What a document turned out to be.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    /// A policy, perhaps with a problem.
    Policy(Box<DesiredPolicy>),
    /// It is not a policy, but was perhaps meant to be one: the text says why.
    Problem(String),
    /// Something else, which is ignored.
    Other,
}

/// Reads one document of the file `file` (its name in the folder), which lies in `folder`.
pub(crate) fn entry(document: Document, file: &str, folder: &Path) -> Entry {
    let Document { line, value, too_deep } = document;
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let Some(api_version) = text(&value, "apiVersion") else {
        return if matches!(text(&value, "kind").as_deref(), Some("Policy" | "ClusterPolicy")) {
            Entry::Problem(format!("line {line}: apiVersion is missing: want {API_VERSION}"))
        } else {
            Entry::Other
        };
    };
    if api_version != API_VERSION {
        let group = API_VERSION.split('/').next().unwrap_or(API_VERSION);
        return if api_version.split('/').next() == Some(group) {
            let shown = portcullis_contract::clean(&api_version, 100);
            Entry::Problem(format!("line {line}: apiVersion {shown} is not known: want {API_VERSION}"))
        } else {
            Entry::Other
        };
    }
    let kind = match kind(&value) {
        Ok(kind) => kind,
        Err(problem) => return Entry::Problem(format!("line {line}: {problem}")),
    };
    let metadata = &value["metadata"];
    let name = text(metadata, "name").unwrap_or_default();
    let id = match kind {
        Kind::ClusterPolicy => PolicyId::cluster(&name),
        Kind::Policy => PolicyId::namespaced(text(metadata, "namespace").as_deref().unwrap_or("default"), &name),
    };
    let id = match id {
        Ok(id) => id,
        Err(_) => {
            return Entry::Problem(format!(
                "line {line}: metadata.name or metadata.namespace is missing or no DNS name of at most 63 characters"
            ));
        }
    };
    let created = text(metadata, "creationTimestamp").and_then(|time| time.parse().ok());
    let raw_hash = Digest::of(value.to_string().as_bytes());
    let (head, body) = content(value, too_deep.as_deref(), folder);
    let hash = match (&head, &body) {
        (Some(head), Ok(body)) => hash(head, body),
        _ => raw_hash,
    };
    Entry::Policy(Box::new(DesiredPolicy { id, file: file.to_owned(), created, hash, head, body, object: None }))
}

/// An object is not a policy.
#[derive(Debug, thiserror::Error)]
#[error("kind {0} is neither Policy nor ClusterPolicy")]
pub(super) struct KindError(String);

/// The kind of a policy.
///
/// # Errors
/// When it is neither Policy nor ClusterPolicy.
pub(super) fn kind(object: &Value) -> Result<Kind, KindError> {
    match object.get("kind").and_then(Value::as_str) {
        Some("Policy") => Ok(Kind::Policy),
        Some("ClusterPolicy") => Ok(Kind::ClusterPolicy),
        other => {
            let shown = portcullis_contract::clean(other.unwrap_or("(absent)"), 100);
            Err(KindError(shown))
        }
    }
}

fn content(mut value: Value, too_deep: Option<&[String]>, folder: &Path) -> (Option<Head>, Result<Body, Problem>) {
    portcullis_api::without_nulls(&mut value);
    // Settings are taken out first, so that no error text of the decoder can quote them.
    let taken = value.get_mut("spec").and_then(Value::as_object_mut).and_then(|spec| spec.shift_remove("settings"));
    let lenient = lenient_head(&value);
    let policy: Policy = match decode(value) {
        Ok(policy) => policy,
        Err(problem) => return (lenient, Err(problem)),
    };
    let (head, body) = judge(policy, taken, too_deep, Origin::Folder(folder));
    (Some(head), body)
}

/// The origin of a spec.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin<'a> {
    /// A file of this folder.
    Folder(&'a Path),
    /// A revision of an API server.
    Cluster,
}

/// What a policy asks for, given the policy without its settings, and the settings. `too_deep` is the path of what was left out because it
/// is nested too deeply.
pub(super) fn judge(
    policy: Policy,
    taken: Option<Value>,
    too_deep: Option<&[String]>,
    origin: Origin<'_>,
) -> (Head, Result<Body, Problem>) {
    let is_settings = |path: &&[String]| path.len() > 1 && path[0] == "spec" && path[1] == "settings";
    let (deep_settings, deep_elsewhere) = (too_deep.filter(is_settings), too_deep.filter(|path| !is_settings(path)));
    let part = policy.match_part();
    let head = Head {
        mode: policy.spec.mode,
        failure_policy: policy.spec.failure_policy,
        suspend: policy.spec.suspend,
        group: Some((group_id(&part), part.kind)),
    };
    let body = (|| {
        let invalid = |message: String| Problem::new(Reason::SpecInvalid, message);
        if let Some(path) = deep_elsewhere {
            return Err(invalid(format!("{} is nested deeper than {MAX_DEPTH} levels", path.join("."))));
        }
        policy.check().map_err(|error| invalid(error.to_string()))?;
        let spec = policy.spec;
        let signatures = spec.signatures.map(Requirement::from_value).transpose();
        let signatures = signatures.map_err(|error| invalid(format!("spec.signatures: {error}")))?;
        // In a cluster, the revision already holds the content of the generation to go back to.
        if spec.rollback_to.is_some() && matches!(origin, Origin::Folder(_)) {
            return Err(invalid("spec.rollbackTo: a folder keeps no revisions; restore the file instead".to_owned()));
        }
        portcullis_contract::Capability::check_patterns(&spec.host_capabilities)
            .map_err(|text| invalid(format!("spec.{text}")))?;
        let reference = |module: &str| {
            let reference = match origin {
                Origin::Folder(folder) => Reference::parse(module, folder)?,
                Origin::Cluster => address(module)?,
            };
            match &signatures {
                Some(signatures) => reference.signed(signatures.clone()),
                None => Ok(reference),
            }
        };
        let settings = settings(taken, deep_settings.is_some())?;
        let body = match (spec.module, spec.policies) {
            (Some(module), _) => {
                let reference = reference(&module)?;
                Body {
                    host_capabilities: spec.host_capabilities,
                    context_aware_resources: spec.context_aware_resources,
                    ..Body::module(module, Some(reference), settings)
                }
            }
            (None, members) => {
                let expression = spec.expression.unwrap_or_default();
                policy_group(members.unwrap_or_default(), expression, reference)
                    .map_err(|problem| problem.below("spec."))?
            }
        };
        let pairs = spec.rules.iter().flat_map(|rule| resources(&rule.api_groups, &rule.resources));
        Ok(Body {
            mutating: spec.mutating,
            resources: pairs.take(MAX_RESOURCES).collect(),
            message: spec.message,
            timeout_eval_seconds: spec.timeout_eval_seconds,
            ..body
        })
    })();
    (head, body)
}

/// The address of a module in a cluster, where users have no folder of their own.
fn address(module: &str) -> Result<Reference, Problem> {
    match Reference::parse(module, Path::new("/"))? {
        Reference::File(_) => Err(Problem::new(
            Reason::SourceNotAllowed,
            "module: files are for policies in a folder: in a cluster want an address like https://example.com/policy.wasm",
        )),
        reference => Ok(reference),
    }
}

/// What acts at once, read from a manifest that does not decode as a whole: a mistake elsewhere in the file must not switch a policy on
/// that was switched off. The match group is not known without the rules.
fn lenient_head(value: &Value) -> Option<Head> {
    let spec = value.get("spec")?.as_object()?;
    let field = |name: &str| spec.get(name).cloned().unwrap_or(Value::Null);
    let mode = serde_json::from_value::<Option<Mode>>(field("mode")).ok()?;
    let failure_policy = serde_json::from_value::<Option<FailurePolicy>>(field("failurePolicy")).ok()?;
    let suspend = serde_json::from_value::<Option<bool>>(field("suspend")).ok()?;
    Some(Head {
        mode: mode.unwrap_or_default(),
        failure_policy: failure_policy.unwrap_or_default(),
        suspend: suspend.unwrap_or_default(),
        group: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GOOD: &str = "
apiVersion: policies.portcullis.dev/v1alpha1
kind: ClusterPolicy
metadata: {name: a}
spec:
  module: modules/a.wasm
  settings: {z: 9007199254740993, a: null, e: ''}
  rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
";

    fn read(text: &str) -> Entry {
        entry(portcullis_yaml::documents(text).expect("reads").remove(0), "a.yaml", Path::new("/policies"))
    }

    fn policy(text: &str) -> DesiredPolicy {
        match read(text) {
            Entry::Policy(policy) => *policy,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn s06_settings_come_through_unchanged() {
        let policy = policy(GOOD);
        assert_eq!(policy.id.as_str(), "cluster/a");
        let body = policy.body.expect("a body");
        assert_eq!(body.settings.get(), r#"{"z":9007199254740993,"a":null,"e":""}"#);
        assert_eq!(body.reference, Some(Reference::File("/policies/modules/a.wasm".into())));
    }

    #[test]
    fn form_and_comments_make_no_difference_and_content_does() {
        let spaced = GOOD.replace("metadata: {name: a}", "# a comment\nmetadata:\n    name: 'a'");
        assert_eq!(policy(&spaced).hash, policy(GOOD).hash);
        assert_ne!(policy(&GOOD.replace("CREATE", "UPDATE")).hash, policy(GOOD).hash);
        assert_ne!(policy(&GOOD.replace("e: ''", "e: x")).hash, policy(GOOD).hash);
    }

    #[test]
    fn a_broken_rule_is_named_and_the_mode_still_acts() {
        let policy = policy(&GOOD.replace("spec:", "spec:\n  mode: monitor\n  timeoutSeconds: 99"));
        assert_eq!(policy.head.map(|head| head.mode), Some(Mode::Monitor));
        assert_eq!(
            policy.body.expect_err("a problem"),
            Problem::new(Reason::SpecInvalid, "spec.timeoutSeconds: want 1 to 30")
        );
    }

    #[test]
    fn a_misspelt_field_is_named_and_the_mode_still_acts() {
        let policy = policy(&GOOD.replace("spec:", "spec:\n  mode: monitor\n  setings: {}"));
        assert_eq!(policy.head.map(|head| head.mode), Some(Mode::Monitor));
        assert!(policy.body.expect_err("a problem").message.contains("setings"));
    }

    #[test]
    fn s04_no_text_quotes_settings() {
        let policy = policy(&GOOD.replace("{z: 9007199254740993, a: null, e: ''}", "hunter2"));
        assert!(!policy.body.expect_err("a problem").message.contains("hunter2"));
    }

    #[test]
    fn documents_of_others_are_ignored_and_near_misses_told() {
        assert!(matches!(read("apiVersion: v1\nkind: ConfigMap\n"), Entry::Other));
        assert!(matches!(read("a: 1\n"), Entry::Other));
        assert!(matches!(read("kind: Policy\n"), Entry::Problem(_)));
        assert!(matches!(read(&GOOD.replace("v1alpha1", "v2")), Entry::Problem(_)));
        assert!(matches!(read(&GOOD.replace("ClusterPolicy", "Polic")), Entry::Problem(_)));
        assert!(matches!(read(&GOOD.replace("name: a", "name: A")), Entry::Problem(_)));
    }

    #[test]
    fn what_this_release_cannot_do_is_refused_and_not_dropped() {
        for (field, word) in
            [("signatures: {}", "signatures"), ("rollbackTo: 3", "rollbackTo"), ("hostCapabilities: [oci]", "oci")]
        {
            let problem = policy(&GOOD.replace("spec:", &format!("spec:\n  {field}"))).body.expect_err(field);
            assert!(problem.reason == Reason::SpecInvalid && problem.message.contains(word), "{problem:?}");
        }
    }

    #[test]
    fn json_and_yaml_are_the_same() {
        let value = json!({"apiVersion": API_VERSION, "kind": "ClusterPolicy", "metadata": {"name": "a"}, "spec": {
            "module": "modules/a.wasm", "settings": {"z": 9_007_199_254_740_993_u64, "a": null, "e": ""},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]}});
        let documents = portcullis_yaml::json_documents(&value.to_string()).expect("reads");
        let Entry::Policy(other) = entry(documents[0].clone(), "a.json", Path::new("/policies")) else { panic!() };
        assert_eq!(other.hash, policy(GOOD).hash);
    }
}
