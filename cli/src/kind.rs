//! The objects of a manifest: which are policies, and which are Kubewarden's. Pure.

use std::path::{Path, PathBuf};

use portcullis_api::API_VERSION;
use portcullis_api::kubernetes::GROUP;
use serde_json::Value;

/// The API group of Kubewarden's resources.
pub(crate) const KUBEWARDEN: &str = "policies.kubewarden.io";

/// What an object is. Other products have a ClusterPolicy too, so the API group decides.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A policy.
    Policy,
    /// A kind or a version that our API group does not have, with the text that says so.
    Unknown(String),
    /// One of Kubewarden's resources.
    Kubewarden,
    /// Something else.
    Other,
}

impl Kind {
    /// What this object is.
    pub(crate) fn of(object: &Value) -> Self {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        match (version.split_once('/').map(|(group, _)| group), kind) {
            (Some(GROUP), "Policy" | "ClusterPolicy") if version == API_VERSION => Self::Policy,
            (Some(GROUP), "Policy" | "ClusterPolicy") => {
                Self::Unknown(format!("apiVersion: it is {version:?}; want {API_VERSION}"))
            }
            // Pods write these, not users.
            (Some(GROUP), "ReplicaReport") => Self::Other,
            (Some(GROUP), _) => {
                Self::Unknown(format!("kind: {GROUP} has no {kind:?}; it has Policy and ClusterPolicy"))
            }
            (Some(KUBEWARDEN), _) => Self::Kubewarden,
            _ => Self::Other,
        }
    }
}

/// The objects of a document: the items of a list, as `kubectl get` prints several objects, or the document itself.
pub(crate) fn objects(document: Value) -> Vec<Value> {
    let is_list = |kind: &Value| matches!(kind.as_str(), Some("List" | "PolicyList" | "ClusterPolicyList"));
    match document {
        Value::Object(mut list) if list.get("kind").is_some_and(is_list) => match list.remove("items") {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        },
        object => vec![object],
    }
}

/// There is no policy in what the user named.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPolicy {
    /// Nor anything else that can help.
    #[error("no Policy or ClusterPolicy of {API_VERSION} in {named}")]
    Nothing {
        /// What the user named.
        named: String,
    },
    /// The user has just come from Kubewarden.
    #[error(
        "no Policy or ClusterPolicy of {API_VERSION} in {named}; it has manifests of Kubewarden: `portcullis migrate kubewarden {}` \
         translates them",
        path.display()
    )]
    Kubewarden {
        /// What the user named.
        named: String,
        /// A file or folder that has the manifests.
        path: PathBuf,
    },
}

impl NoPolicy {
    /// No policy is in these files and folders, and these files of them have manifests of Kubewarden.
    pub(crate) fn of(paths: &[PathBuf], kubewarden: &[PathBuf]) -> Self {
        let named = paths.iter().map(|path| shown(path)).collect::<Vec<_>>().join(", ");
        match (paths, kubewarden) {
            (_, []) => Self::Nothing { named },
            // `migrate` reads the files of one folder, and those of the folders in it.
            ([folder], [_, _, ..]) => Self::Kubewarden { named, path: folder.clone() },
            (_, [file, ..]) => Self::Kubewarden { named, path: file.clone() },
        }
    }
}

/// The name of a file or folder in a message, where `-` is standard input.
pub(crate) fn shown(path: &Path) -> String {
    if path.as_os_str() == "-" { "standard input".to_owned() } else { path.display().to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_api_group_decides_what_an_object_is() {
        let kind = |version: &str, kind: &str| Kind::of(&json!({"apiVersion": version, "kind": kind}));
        assert_eq!(kind(API_VERSION, "ClusterPolicy"), Kind::Policy);
        assert_eq!(kind(API_VERSION, "ReplicaReport"), Kind::Other);
        for version in ["kyverno.io/v1", "nvidia.com/v1", "v1", ""] {
            assert_eq!(kind(version, "ClusterPolicy"), Kind::Other, "{version}");
        }
        assert_eq!(kind("policies.kubewarden.io/v1", "ClusterAdmissionPolicy"), Kind::Kubewarden);
        let later = "apiVersion: it is \"policies.portcullis.dev/v7\"; want policies.portcullis.dev/v1alpha1";
        assert_eq!(kind("policies.portcullis.dev/v7", "Policy"), Kind::Unknown(later.to_owned()));
        assert!(matches!(kind(API_VERSION, "ClusterPolciy"), Kind::Unknown(why) if why.starts_with("kind: ")));
    }

    #[test]
    fn lists_are_taken_apart() {
        for kind in ["List", "PolicyList", "ClusterPolicyList"] {
            assert_eq!(objects(json!({"kind": kind, "items": [1, 2]})), [1, 2], "{kind}");
        }
        assert_eq!(objects(json!({"kind": "List"})), Vec::<Value>::new());
        let other = json!({"kind": "ConfigMap", "items": [1]});
        assert_eq!(objects(other.clone()), [other]);
    }

    #[test]
    fn manifests_of_kubewarden_are_told_with_how_to_translate_them() {
        let told = |paths: &[&str], kubewarden: &[&str]| {
            let [paths, kubewarden] =
                [paths, kubewarden].map(|paths| paths.iter().map(PathBuf::from).collect::<Vec<_>>());
            NoPolicy::of(&paths, &kubewarden).to_string()
        };
        assert_eq!(told(&["a", "-"], &[]), format!("no Policy or ClusterPolicy of {API_VERSION} in a, standard input"));
        let hint = |named: &str, path: &str| {
            format!(
                "no Policy or ClusterPolicy of {API_VERSION} in {named}; it has manifests of Kubewarden: `portcullis migrate kubewarden \
                 {path}` translates them"
            )
        };
        assert_eq!(told(&["kw.yaml"], &["kw.yaml"]), hint("kw.yaml", "kw.yaml"));
        assert_eq!(told(&["kw/"], &["kw/a.yaml", "kw/b.yaml"]), hint("kw/", "kw/"));
        assert_eq!(told(&["kw"], &["kw/a.yaml", "kw/b/c.yaml"]), hint("kw", "kw"));
        assert_eq!(told(&["kw", "more"], &["kw/a.yaml", "kw/b.yaml"]), hint("kw, more", "kw/a.yaml"));
    }
}
