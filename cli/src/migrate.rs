//! `portcullis migrate kubewarden`: Kubewarden's manifests as Portcullis', and what became of each field.
//!
//! ```text
//!  FILE, DIR or - ─► documents ─► policy, server: pure ─► policies and values on standard output, fields on standard error
//! ```

mod env;
mod policy;
mod server;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use portcullis_api::DecodeError;
use portcullis_api::SpecError;
use portcullis_contract::PolicyId;
use portcullis_yaml::{ReadError, ReadOtherwise};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::args::{MigrateArgs, ResultForm};
use crate::document::{self, Document};
use crate::files::{Found, Unread, each, names};
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
    /// The policies. A policy and a group of Kubewarden may have one name, and both become the same kind here.
    #[serde(skip)]
    ids: HashSet<PolicyId>,
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
    /// kubectl makes something else of it than the text that it is here, so the policy in the cluster may be another one.
    ReadOtherwise(String),
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
    /// It would replace another policy. Usually a policy and a group have one name, or an object is there twice.
    #[error("another object has this kind, namespace and name (it is {0} too); rename one")]
    Double(PolicyId),
    /// A file of a folder is neither YAML nor JSON. Usually it is a template.
    #[error("failed to read it: {0}; a template must be rendered first")]
    Unreadable(ReadError),
    /// A file or a folder in a folder cannot be read. Usually the right to read it is missing.
    #[error("{0}; whether it has objects of Kubewarden is not known")]
    NotRead(String),
}

/// An object without a manifest.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Left {
    /// The file it is in; none where `object` is the file or folder itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    object: String,
    why: String,
    /// Whether it belongs to another product.
    #[serde(skip)]
    is_foreign: bool,
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

impl Field {
    /// A scalar of a file that kubectl gives to a cluster as something else.
    fn read_otherwise(file: &Path, one: &ReadOtherwise) -> Self {
        let (scalar, meant) = (document::scalar(one), one.meant);
        let instead = if one.word.is_some() { format!("`{meant}`") } else { "it in decimal, without `_`".to_owned() };
        let what = format!(
            "kubectl reads {scalar} as {meant}, and here it is the text: write {instead}, or quote it if it is a text"
        );
        Self {
            object: portcullis_contract::clean(&shown(file), 400),
            field: format!("line {}", one.line),
            outcome: Outcome::ReadOtherwise(what),
        }
    }
}

/// Reads, prints, and returns the exit status: 0; 1 if an object was left out or a value may be another one in the cluster; 2 if there is
/// nothing to translate; 64 for a bad argument.
pub(crate) fn migrate(args: &MigrateArgs) -> ExitCode {
    let printed = Migrated::read(&args.path).and_then(|migrated| {
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
        Ok(migrated.status())
    });
    printed.map_or_else(|error| crate::refuse(&error), ExitCode::from)
}

/// What was read.
struct Documents {
    /// Each with the name of its file.
    documents: Vec<(String, Value)>,
    /// The scalars in documents of Kubewarden that kubectl reads otherwise.
    otherwise: Vec<Field>,
    /// The files and folders in a folder that cannot be read, and the files that name Kubewarden's API group and are neither YAML nor JSON.
    left: Vec<Left>,
}

/// The documents of a file, of the YAML and JSON files of a folder and of the folders in it, or of standard input.
fn documents(path: &Path) -> anyhow::Result<Documents> {
    let mut read = Documents { documents: Vec::new(), otherwise: Vec::new(), left: Vec::new() };
    let unread = each(&[path.to_owned()], LARGEST, |Found { path: file, is_named }, text| {
        // A folder may hold other files than manifests of Kubewarden, such as templates.
        if !is_named && !names(&text, KUBEWARDEN) {
            return Ok(());
        }
        match document::documents(&file, &text) {
            Ok(documents) => {
                let (objects, others): (Vec<_>, Vec<_>) =
                    documents.into_iter().partition(|one| is_named || is_object(&one.value));
                objects.into_iter().for_each(|one| read.take(&file, one));
                others.iter().for_each(|one| crate::note(&passed_over(&file, one.line)));
            }
            Err(error) if is_named => {
                return Err(error).with_context(|| format!("failed to read {}", file.display()));
            }
            Err(error) => read.left.push(Left::new(None, &shown(&file), &MigrateError::Unreadable(error))),
        }
        Ok(())
    })?;
    let not_read = |Unread { path, why, .. }: Unread| Left::new(None, &shown(&path), &MigrateError::NotRead(why));
    read.left.extend(unread.into_iter().map(not_read));
    Ok(read)
}

impl Documents {
    fn take(&mut self, file: &Path, Document { value, otherwise, .. }: Document) {
        if has_kubewarden(&value) {
            self.otherwise.extend(otherwise.iter().map(|one| Field::read_otherwise(file, one)));
        }
        self.documents.push((shown(file), value));
    }
}

/// Whether a document of a folder may be an object, or a list of objects, of a cluster. Values of Helm, JSON patches and kustomizations are not.
fn is_object(document: &Value) -> bool {
    let is_kustomization =
        document["apiVersion"].as_str().is_some_and(|version| version.starts_with("kustomize.config.k8s.io/"));
    has_kubewarden(document) || (document["kind"].is_string() && !is_kustomization)
}

/// The note that a document of a folder is not looked at.
fn passed_over(file: &Path, line: usize) -> String {
    let why = "it is not a Kubernetes object; if it is a patch, a kustomization or Helm values, render the manifests first with \
               `kubectl kustomize` or `helm template`";
    portcullis_contract::clean(&format!("left out {}, line {line}: {why}", shown(file)), 1000)
}

/// Whether a document is an object of Kubewarden, or a list with one.
fn has_kubewarden(document: &Value) -> bool {
    let mut objects = document["items"].as_array().into_iter().flatten().chain([document]);
    objects.any(|object| Kind::of(object) == Kind::Kubewarden)
}

impl Left {
    fn new(file: Option<&str>, object: &str, error: &MigrateError) -> Self {
        Self {
            file: file.map(|file| portcullis_contract::clean(file, 400)),
            object: portcullis_contract::clean(object, 400),
            why: portcullis_contract::clean(&error.to_string(), 1000),
            is_foreign: matches!(error, MigrateError::Foreign),
        }
    }
}

impl Migrated {
    /// Translates what is in a file, in a folder, or on standard input.
    ///
    /// # Errors
    /// When it cannot be read, or has nothing of Kubewarden.
    fn read(path: &Path) -> anyhow::Result<Self> {
        let Documents { documents, otherwise, left } = documents(path)?;
        let mut migrated = Self::of(documents);
        migrated.fields.extend(otherwise);
        migrated.left.extend(left);
        ensure!(!migrated.is_empty(), "no manifests of Kubewarden in {}", shown(path));
        Ok(migrated)
    }

    /// The exit status, in each form of the output.
    fn status(&self) -> u8 {
        let is_other = |field: &Field| matches!(field.outcome, Outcome::ReadOtherwise(_));
        u8::from(!self.left.is_empty() || self.fields.iter().any(is_other))
    }

    /// Translates the documents, each with the name of its file. Lists, as `kubectl get` prints them, are taken apart.
    fn of(documents: Vec<(String, Value)>) -> Self {
        let mut migrated = Self::default();
        for (file, mut document) in documents {
            match document.get_mut("items").map(Value::take) {
                Some(Value::Array(items)) => items.into_iter().for_each(|item| migrated.take(&file, item)),
                _ => migrated.take(&file, document),
            }
        }
        migrated
    }

    /// Whether there was no object of Kubewarden, nor anything that may be one.
    fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.values.is_empty() && self.left.iter().all(|left| left.is_foreign)
    }

    fn take(&mut self, file: &str, object: Value) {
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
            Ok((id, _)) if self.ids.contains(&id) => {
                self.left.push(Left::new(Some(file), &shown, &MigrateError::Double(id)));
            }
            Ok((id, policy)) => {
                self.ids.insert(id);
                self.policies.push(policy);
            }
            Err(error) => self.left.push(Left::new(Some(file), &shown, &error)),
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
                Outcome::Noted(what) | Outcome::ReadOtherwise(what) => {
                    writeln!(text, "{object}: note on {field}: {what}")
                }
            };
        }
        for Left { file, object, why, .. } in &self.left {
            let place = file.as_ref().map(|file| format!("{file}: ")).unwrap_or_default();
            let _ = writeln!(text, "{place}{object}: left out: {why}");
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
mod tests;
