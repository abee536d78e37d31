//! `portcullis migrate kubewarden`: Kubewarden's manifests as Portcullis', and what became of each field.
//!
//! ```text
//!  FILE, DIR or - ─► documents ─► policy, server: pure ─► policies and values on standard output, fields on standard error
//! ```

mod policy;
mod server;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use portcullis_api::DecodeError;
use portcullis_api::SpecError;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::args::{MigrateArgs, ResultForm};
use crate::kind::{KUBEWARDEN, Kind, shown};

/// Largest file that is read, in bytes.
const LARGEST: u64 = 16 << 20;

/// The result for all documents.
#[derive(Debug, Default, Serialize)]
struct Migrated {
    /// Manifests of Portcullis.
    policies: Vec<Value>,
    /// Helm values, one for each PolicyServer.
    values: Vec<Value>,
    /// What became of the fields, in the order of the documents.
    fields: Vec<Field>,
    /// Objects that have no manifest here, with the reason.
    left: Vec<Left>,
}

/// What became of a field.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Field {
    /// Kind and name of the object.
    object: String,
    /// The field, like `spec.mode`, or what is noted, like `requests`.
    field: String,
    /// What became of it.
    #[serde(flatten)]
    outcome: Outcome,
}

/// What became of a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "became", content = "what")]
enum Outcome {
    /// It is as it was.
    Kept,
    /// It has this name now.
    Renamed(String),
    /// It was dropped, for this reason.
    Dropped(String),
    /// The installation or the manifest may need a change, as this means something else here. It stands beside what became of the field itself.
    Noted(String),
}

/// Why an object has no manifest.
#[derive(Debug, thiserror::Error)]
enum MigrateError {
    /// It belongs to another product, and needs no translation.
    #[error("it does not belong to {KUBEWARDEN}/v1; apply it unchanged")]
    Foreign,
    /// It is Kubewarden's, but neither a policy nor a PolicyServer.
    #[error("it is of no kind that has policies or settings")]
    OtherKind,
    /// A cluster would refuse the policy because of the type of a field.
    #[error("the policy would be refused: {0}")]
    Malformed(#[from] DecodeError),
    /// A cluster would refuse the policy because of what it says.
    #[error("the policy would be refused: {0}")]
    Refused(#[from] SpecError),
}

/// An object without a manifest.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Left {
    object: String,
    why: String,
}

/// The fields of one object, while it is translated.
struct Fields<'a> {
    object: String,
    fields: &'a mut Vec<Field>,
}

impl Fields<'_> {
    fn note(&mut self, field: impl Into<String>, outcome: Outcome) {
        self.fields.push(Field { object: self.object.clone(), field: field.into(), outcome });
    }
}

/// Reads, prints, and returns the exit status: 0; 1 if an object was left out; 2 if there is nothing to translate; 64 for a bad argument.
pub(crate) fn migrate(args: &MigrateArgs) -> ExitCode {
    let printed = documents(&args.path).and_then(|documents| {
        let migrated = Migrated::of(documents);
        ensure!(!migrated.is_empty(), "no manifests of Kubewarden in {}", shown(&args.path));
        match args.output {
            ResultForm::Json => crate::print(format!("{:#}\n", serde_json::to_value(&migrated)?).as_bytes())?,
            ResultForm::Text => {
                if let Some(problem) = migrated.other_output(args.values) {
                    anyhow::bail!("{}: {problem}", shown(&args.path));
                }
                migrated.account().lines().for_each(crate::note);
                migrated.beside(args.values).iter().for_each(|line| crate::note(line));
                crate::print(migrated.manifests(args.values)?.as_bytes())?;
            }
        }
        Ok(migrated.left.is_empty())
    });
    match printed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => crate::refuse(&error),
    }
}

/// The documents of a file, of the YAML and JSON files of a folder, or of standard input.
fn documents(path: &Path) -> anyhow::Result<Vec<Value>> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        files =
            fs::read_dir(path)?.flatten().map(|entry| entry.path()).filter(|path| crate::is_manifest(path)).collect();
        files.sort();
    }
    let mut documents = Vec::new();
    for file in files {
        let text = crate::read(&file, LARGEST)?;
        let read = portcullis_yaml::read_documents(text);
        documents.extend(read.with_context(|| format!("failed to read {}", file.display()))?);
    }
    Ok(documents)
}

impl Migrated {
    /// Translates the documents. Lists, as `kubectl get` prints them, are taken apart.
    fn of(documents: Vec<Value>) -> Self {
        let mut migrated = Self::default();
        for mut document in documents {
            match document.get_mut("items").map(Value::take) {
                Some(Value::Array(items)) => items.into_iter().for_each(|item| migrated.take(item)),
                _ => migrated.take(document),
            }
        }
        migrated
    }

    /// Whether there was no object at all.
    fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.values.is_empty() && self.left.is_empty()
    }

    fn take(&mut self, object: Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (kind, metadata) = (text(&object["kind"]), &object["metadata"]);
        let parts = [&object["kind"], &metadata["namespace"], &metadata["name"]].map(text);
        let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        let name = if parts.is_empty() { "an object without a kind".to_owned() } else { parts.join("/") };
        let shown = portcullis_contract::clean(&name, 400);
        let mut fields = Fields { object: shown.clone(), fields: &mut self.fields };
        let made = match kind.as_str() {
            _ if Kind::of(&object) != Kind::Kubewarden => Err(MigrateError::Foreign),
            "AdmissionPolicy" | "AdmissionPolicyGroup" => policy::policy(&object, "Policy", &mut fields),
            "ClusterAdmissionPolicy" | "ClusterAdmissionPolicyGroup" => {
                policy::policy(&object, "ClusterPolicy", &mut fields)
            }
            "PolicyServer" => return self.values.push(server::values(&object, &mut fields)),
            _ => Err(MigrateError::OtherKind),
        };
        match made {
            Ok(policy) => self.policies.push(policy),
            Err(error) => {
                self.left.push(Left { object: shown, why: portcullis_contract::clean(&error.to_string(), 1000) });
            }
        }
    }

    /// What became of each object and field, for people.
    fn account(&self) -> String {
        let mut text = String::new();
        for Field { object, field, outcome } in &self.fields {
            let _ = match outcome {
                Outcome::Kept => writeln!(text, "{object}: {field} kept"),
                Outcome::Renamed(to) => writeln!(text, "{object}: {field} is now {to}"),
                Outcome::Dropped(why) => writeln!(text, "{object}: {field} dropped: {why}"),
                Outcome::Noted(what) => writeln!(text, "{object}: note on {field}: {what}"),
            };
        }
        for Left { object, why } in &self.left {
            let _ = writeln!(text, "{object}: left out: {why}");
        }
        text
    }

    /// Why nothing would be printed, where the other form of the output has something.
    fn other_output(&self, values: bool) -> Option<String> {
        match (values, self.policies.len(), self.values.len()) {
            (false, 0, servers @ 1..) => Some(format!("it has {}: add --values", counted(servers, "PolicyServer"))),
            (true, policies @ 1.., 0) => {
                Some(format!("it has {} and no PolicyServer: leave out --values", counted(policies, "policy")))
            }
            _ => None,
        }
    }

    /// What a reader should know of the output, as lines: what the other form has, and which PolicyServer each document is for.
    fn beside(&self, values: bool) -> Vec<String> {
        let (policies, servers) = (self.policies.len(), self.values.len());
        let other = match values {
            false if servers > 0 => {
                Some(format!("it also has {}: --values prints the Helm values", counted(servers, "PolicyServer")))
            }
            true if policies > 0 => {
                Some(format!("it also has {}, printed without --values", counted(policies, "policy")))
            }
            _ => None,
        };
        let is_several = values && servers > 1;
        let names = self.values.iter().enumerate().filter(|_| is_several).map(|(number, values)| {
            let name = portcullis_contract::clean(values["policyServer"].as_str().unwrap_or_default(), 253);
            format!(
                "document {} of {servers}: the values of PolicyServer/{name}, for an installation of its own",
                number + 1
            )
        });
        names.chain(other).collect()
    }

    /// The policies, or the values, as YAML.
    fn manifests(&self, values: bool) -> anyhow::Result<String> {
        let chosen = if values { &self.values } else { &self.policies };
        let documents = chosen.iter().map(portcullis_yaml::write).collect::<Result<Vec<_>, _>>()?;
        Ok(documents.join("---\n"))
    }
}

/// `1 policy`, `2 policies`.
fn counted(number: usize, word: &str) -> String {
    match (number, word.strip_suffix('y')) {
        (1, _) => format!("1 {word}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {word}s"),
    }
}

/// Sets the value at a path; mappings on the way are made if they do not exist.
fn put(into: &mut Value, path: &str, value: Value) {
    let mut at = into;
    for key in path.split('.') {
        let map = match at {
            Value::Object(map) => map,
            other => {
                *other = Value::Object(Map::new());
                other.as_object_mut().expect("it is one")
            }
        };
        at = map.entry(key).or_insert_with(|| json!({}));
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn migrated(text: &str) -> Migrated {
        Migrated::of(portcullis_yaml::read_documents(text).expect("YAML"))
    }

    #[test]
    fn an_output_without_content_is_no_success_and_several_documents_are_told_apart() {
        let server = |name: &str| {
            format!("apiVersion: policies.kubewarden.io/v1\nkind: PolicyServer\nmetadata: {{name: {name}}}\n---\n")
        };
        let policy = "apiVersion: policies.kubewarden.io/v1\nkind: ClusterAdmissionPolicy\nmetadata: {name: a}\nspec:\n  module: registry://a.example/b:v1\n  \
                      rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]\n";
        let (servers, both) = (server("x") + &server("y"), server("x") + policy);
        let other = |text: &str, values| migrated(text).other_output(values);
        assert_eq!(other(&servers, false).as_deref(), Some("it has 2 PolicyServers: add --values"));
        assert_eq!(other(policy, true).as_deref(), Some("it has 1 policy and no PolicyServer: leave out --values"));
        for (text, values) in [(servers.as_str(), true), (policy, false), (&both, true), (&both, false)] {
            assert_eq!(other(text, values), None, "{values}: {text}");
        }
        let own = "for an installation of its own";
        assert_eq!(
            migrated(&servers).beside(true),
            [
                format!("document 1 of 2: the values of PolicyServer/x, {own}"),
                format!("document 2 of 2: the values of PolicyServer/y, {own}"),
            ]
        );
        assert_eq!(migrated(&both).beside(false), ["it also has 1 PolicyServer: --values prints the Helm values"]);
        assert_eq!(migrated(&both).beside(true), ["it also has 1 policy, printed without --values"]);
        assert_eq!(migrated(policy).beside(false), Vec::<String>::new());
    }

    #[test]
    fn a_policy_of_a_cluster_with_what_became_of_its_fields() {
        let migrated = migrated(
            "
apiVersion: policies.kubewarden.io/v1
kind: ClusterAdmissionPolicy
metadata: {name: psp, uid: u, labels: {team: 'yes'}, annotations: {io.kubewarden.policy.severity: low}}
spec:
  policyServer: default
  module: registry://ghcr.io/kubewarden/policies/pod-privileged:v1.0.3
  rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
  mutating: false
  mode: monitor
  backgroundAudit: true
  settings: null
  namespaceSelector: {matchLabels: {a: b}}
  allowInsideAdmissionControllerNamespace: true
status: {policyStatus: active}
",
        );
        assert_eq!(migrated.left, []);
        let policy = &migrated.policies[0];
        assert_eq!((&policy["kind"], &policy["spec"]["mode"]), (&json!("ClusterPolicy"), &json!("monitor")));
        assert_eq!(policy["metadata"]["labels"], json!({"team": "yes"}));
        assert_eq!((policy["metadata"].get("uid"), policy.get("status")), (None, None));
        assert_eq!(policy["spec"]["namespaceSelector"], json!({"matchLabels": {"a": "b"}}));
        assert_eq!((policy["spec"].get("settings"), policy["spec"].get("backgroundAudit")), (None, None));
        let account = migrated.account();
        for line in [
            "ClusterAdmissionPolicy/psp: spec.module kept\n",
            "ClusterAdmissionPolicy/psp: spec.backgroundAudit dropped: ",
            "ClusterAdmissionPolicy/psp: spec.allowInsideAdmissionControllerNamespace dropped: ",
            "ClusterAdmissionPolicy/psp: host capabilities dropped: ",
            "ClusterAdmissionPolicy/psp: note on requests: no ClusterPolicy is asked about objects in kube-system, ",
        ] {
            assert!(account.contains(line), "{account}");
        }
    }

    #[test]
    fn a_group_is_a_policy_with_members() {
        let migrated = migrated(
            "
apiVersion: policies.kubewarden.io/v1
kind: ClusterAdmissionPolicyGroup
metadata: {name: g}
spec:
  rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
  policies:
    signed: {module: 'registry://ghcr.io/kubewarden/policies/verify-image-signatures:v0.2.8', settings: {signatures: []}}
    latest: {module: 'registry://ghcr.io/kubewarden/policies/trusted-repos:v0.1.12', settings: null}
  expression: signed() || !latest()
  message: the image is not trusted
",
        );
        assert_eq!(migrated.left, []);
        let policy = &migrated.policies[0];
        assert_eq!(
            (&policy["kind"], &policy["spec"]["expression"]),
            (&json!("ClusterPolicy"), &json!("signed() || !latest()"))
        );
        assert_eq!(policy["spec"]["policies"]["signed"]["settings"], json!({"signatures": []}));
        assert_eq!(policy["spec"]["policies"]["latest"].get("settings"), None);
    }

    #[test]
    fn notes_stand_beside_what_became_of_a_field() {
        let migrated = migrated(
            "
apiVersion: policies.kubewarden.io/v1
kind: AdmissionPolicy
metadata: {name: own, namespace: shop}
spec:
  module: registry://ghcr.io/kubewarden/policies/pod-privileged:v1.0.3
  rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
  mutating: false
  failurePolicy: Ignore
",
        );
        assert_eq!(migrated.policies[0]["spec"]["failurePolicy"], json!("Ignore"));
        let account = migrated.account();
        for line in [
            "AdmissionPolicy/shop/own: spec.failurePolicy kept\n",
            "AdmissionPolicy/shop/own: note on spec.failurePolicy: Kubewarden denies ",
            "AdmissionPolicy/shop/own: host capabilities dropped: ",
        ] {
            assert!(account.contains(line), "{account}");
        }
        assert!(!account.contains("note on requests"), "{account}");
        let field = serde_json::to_value(migrated.fields.last()).expect("JSON");
        assert_eq!((&field["field"], &field["became"]), (&json!("spec.failurePolicy"), &json!("noted")));
    }

    #[test]
    fn what_is_not_valid_is_left_out_and_named() {
        let migrated = migrated(
            "
apiVersion: v1
kind: List
items:
- {apiVersion: policies.kubewarden.io/v1, kind: AdmissionPolicyGroup, metadata: {name: g, namespace: n}, spec: {}}
- {apiVersion: policies.kubewarden.io/v1, kind: AdmissionPolicy, metadata: {name: a, namespace: n}, spec: {module: x}}
- {apiVersion: v1, kind: Namespace, metadata: {name: n}}
- {kind: ConfigMap}
- {a: b}
",
        );
        assert_eq!(migrated.policies, Vec::<Value>::new());
        let objects: Vec<&str> = migrated.left.iter().map(|left| left.object.as_str()).collect();
        assert_eq!(
            objects,
            ["AdmissionPolicyGroup/n/g", "AdmissionPolicy/n/a", "Namespace/n", "ConfigMap", "an object without a kind"]
        );
        assert!(migrated.left[0].why.contains("rules"), "{:?}", migrated.left);
        assert!(migrated.left[1].why.contains("rules"), "{:?}", migrated.left);
    }

    #[test]
    fn a_policy_server_is_values() {
        let migrated = migrated(
            "
apiVersion: policies.kubewarden.io/v1
kind: PolicyServer
metadata: {name: reserved}
spec:
  image: ghcr.io/kubewarden/policy-server:v1.36.0
  replicas: 2
  maxUnavailable: 1
  limits: {memory: 2Gi}
  requests: {cpu: 500m}
  imagePullSecret: logins
  insecureSources: [registry.internal:5000]
  sourceAuthorities: {'https://registry.internal': [PEM]}
  verificationConfig: required
  env: [{name: KUBEWARDEN_LOG_LEVEL, value: debug}]
",
        );
        assert_eq!(
            migrated.values,
            [json!({
                "policyServer": "reserved",
                "server": {"replicas": 2},
                "disruptionBudget": {"maxUnavailable": 1},
                "evaluator": {"resources": {"limits": {"memory": "2Gi"}, "requests": {"cpu": "500m"}}},
                "modules": {
                    "pullSecret": "logins",
                    "sources": {
                        "insecure_sources": ["registry.internal:5000"],
                        "source_authorities": {"https://registry.internal": [{"type": "Data", "data": "PEM"}]},
                    },
                },
            })]
        );
        let account = migrated.account();
        for line in [
            "PolicyServer/reserved: spec.replicas is now server.replicas\n",
            "PolicyServer/reserved: spec.image dropped: ",
            "PolicyServer/reserved: spec.verificationConfig dropped: put the content of ConfigMap required",
            "PolicyServer/reserved: spec.env dropped: ",
            "PolicyServer/reserved: note on spec.sigstoreTrustConfig: ",
        ] {
            assert!(account.contains(line), "{account}");
        }
    }
}
