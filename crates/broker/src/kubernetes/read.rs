//! Parses what a guest asks of the API server.

use portcullis_contract::{Capability, ContextAwareResource};
use portcullis_kubernetes::{is_namespace_name, is_path_segment};
use serde::Deserialize;

use super::mask;
use crate::ProvideError;

/// The longest name, selector or mask, in bytes.
const LONGEST: usize = 4096;
/// The most masks of one call.
const MOST_MASKS: usize = 256;

/// A call of `kubernetes/*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Read {
    /// A list of objects.
    List(ListQuery),
    /// One object.
    Get(GetQuery),
    /// Whether a user may do something.
    Review(ReviewQuery),
}

/// Which objects are listed. There is one watch for each query.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ListQuery {
    /// Their kind.
    pub kind: ContextAwareResource,
    /// Their namespace; `None` for all namespaces.
    pub namespace: Option<String>,
    pub label_selector: Option<String>,
    pub field_selector: Option<String>,
    /// The fields that are kept; empty keeps all.
    pub masks: Vec<String>,
    /// Whether only the metadata is watched.
    pub metadata_only: bool,
}

impl ListQuery {
    /// Selects all objects of a kind, whole.
    pub(crate) fn whole(kind: ContextAwareResource) -> Self {
        let (masks, metadata_only) = (Vec::new(), false);
        Self { kind, namespace: None, label_selector: None, field_selector: None, masks, metadata_only }
    }

    /// Selects the metadata of all objects of a kind, to find out whether they can be watched.
    pub(crate) fn probe(kind: ContextAwareResource) -> Self {
        Self { metadata_only: true, ..Self::whole(kind) }
    }

    /// Whether it selects all objects of its kind, whole.
    pub(crate) fn is_whole(&self) -> bool {
        *self == Self::whole(self.kind.clone())
    }

    /// Whether its only purpose is to find out that the objects can be watched.
    pub(crate) fn is_probe(&self) -> bool {
        *self == Self::probe(self.kind.clone())
    }
}

/// Which object is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GetQuery {
    pub kind: ContextAwareResource,
    pub name: String,
    /// Its namespace; `None` for cluster-scoped objects.
    pub namespace: Option<String>,
    /// The fields that are kept; empty keeps all.
    pub masks: Vec<String>,
    pub disable_cache: bool,
}

/// A question about the rights of a user.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct ReviewQuery {
    /// The SDK for Go has another name for it, that of the API server.
    #[serde(alias = "spec")]
    pub subject_access_review: SubjectAccess,
    #[serde(default)]
    pub disable_cache: bool,
}

/// A user, and what they want to do.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct SubjectAccess {
    pub user: String,
    #[serde(default)]
    pub groups: Option<Vec<String>>,
    /// Here, too, the SDK for Go has the API server's name.
    #[serde(alias = "resourceAttributes")]
    pub resource_attributes: ResourceAttributes,
}

/// What a user wants to do with a resource.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct ResourceAttributes {
    #[serde(default)]
    pub group: Option<String>,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub namespace: Option<String>,
    pub resource: String,
    #[serde(default)]
    pub subresource: Option<String>,
    pub verb: String,
    #[serde(default)]
    pub version: Option<String>,
}

/// The fields of a list or get call as guests write them.
#[derive(Deserialize)]
struct Fields {
    api_version: String,
    kind: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    label_selector: Option<String>,
    #[serde(default)]
    field_selector: Option<String>,
    #[serde(default)]
    field_masks: Option<Vec<String>>,
    #[serde(default)]
    disable_cache: bool,
}

impl Fields {
    fn texts(&self) -> impl Iterator<Item = &String> {
        let optional = [&self.name, &self.namespace, &self.label_selector, &self.field_selector];
        let masks = self.field_masks.iter().flatten();
        optional.into_iter().flatten().chain([&self.api_version, &self.kind]).chain(masks)
    }
}

impl Read {
    /// Parses the payload of a call.
    ///
    /// # Errors
    /// When it does not have the form of such a call, a part of it is too long, or a name in it would lead to another address: kube puts names
    /// into addresses as they are.
    pub(crate) fn parse(capability: Capability, payload: &[u8]) -> Result<Self, ProvideError> {
        if capability == Capability::CanI {
            return serde_json::from_slice(payload).map(Self::Review).map_err(ProvideError::failed);
        }
        let fields: Fields = serde_json::from_slice(payload).map_err(ProvideError::failed)?;
        let mut masks = fields.field_masks.clone().unwrap_or_default();
        if masks.len() > MOST_MASKS || fields.texts().any(|text| text.len() > LONGEST) {
            let text = format!("want texts of at most {LONGEST} bytes and at most {MOST_MASKS} field_masks");
            return Err(ProvideError::failed(text));
        }
        if masks.iter().any(|mask| mask.split('.').count() > mask::MOST_LEVELS) {
            return Err(ProvideError::failed(format!("want field_masks of at most {} levels", mask::MOST_LEVELS)));
        }
        // Two policies that want the same fields share a watch.
        masks.sort();
        masks.dedup();
        let kind = ContextAwareResource { api_version: fields.api_version, kind: fields.kind };
        let not_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
        let namespace = not_empty(fields.namespace).map(namespace).transpose()?;
        if capability == Capability::GetResource {
            let name = not_empty(fields.name).ok_or_else(|| ProvideError::failed("missing field `name`"))?;
            let (name, disable_cache) = (object_name(name)?, fields.disable_cache);
            return Ok(Self::Get(GetQuery { kind, name, namespace, masks, disable_cache }));
        }
        let namespace = match (capability, namespace) {
            (Capability::ListByNamespace, None) => return Err(ProvideError::failed("missing field `namespace`")),
            (Capability::ListByNamespace, some) => some,
            _ => None,
        };
        let (label_selector, field_selector) = (not_empty(fields.label_selector), not_empty(fields.field_selector));
        let metadata_only = mask::is_of_metadata(&masks);
        Ok(Self::List(ListQuery { kind, namespace, label_selector, field_selector, masks, metadata_only }))
    }

    /// The kind that is read; `None` for a question about rights.
    pub(crate) fn kind(&self) -> Option<&ContextAwareResource> {
        match self {
            Self::List(list) => Some(&list.kind),
            Self::Get(get) => Some(&get.kind),
            Self::Review(_) => None,
        }
    }

    /// The namespace that a question about rights names: empty for all namespaces and for cluster-scoped resources.
    pub(crate) fn namespace_of_review(&self) -> Option<&str> {
        match self {
            Self::Review(review) => {
                Some(review.subject_access_review.resource_attributes.namespace.as_deref().unwrap_or_default())
            }
            Self::List(_) | Self::Get(_) => None,
        }
    }

    /// Whether the answer must not come from the cache of answers. Lists are answered from their watches instead.
    pub(crate) fn skips_cache(&self) -> bool {
        match self {
            Self::List(_) => true,
            Self::Get(get) => get.disable_cache,
            Self::Review(review) => review.disable_cache,
        }
    }
}

fn namespace(name: String) -> Result<String, ProvideError> {
    let want = "want at most 63 lower-case letters, digits and '-'";
    let refused = || ProvideError::failed(format!("{name:?} is not the name of a namespace: {want}"));
    if is_namespace_name(&name) { Ok(name) } else { Err(refused()) }
}

fn object_name(name: String) -> Result<String, ProvideError> {
    let want = "want neither '/', '\\', '%', '?', '#' nor white space in it";
    let refused = || ProvideError::failed(format!("{name:?} is not the name of an object: {want}"));
    if is_path_segment(&name) { Ok(name) } else { Err(refused()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(capability: Capability, payload: &str) -> Result<Read, String> {
        Read::parse(capability, payload.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn lists_differ_by_what_they_select() {
        let list = |payload| match parse(Capability::ListAll, payload) {
            Ok(Read::List(list)) => list,
            other => panic!("{other:?}"),
        };
        let pods =
            list(r#"{"api_version": "v1", "kind": "Pod", "label_selector": null, "field_masks": ["b", "a", "a"]}"#);
        assert_eq!(
            pods,
            list(r#"{"api_version": "v1", "kind": "Pod", "label_selector": "", "field_masks": ["a", "b"]}"#)
        );
        assert_eq!(pods.masks, ["a", "b"]);
        assert!(!pods.metadata_only);
        assert!(list(r#"{"api_version": "v1", "kind": "Pod", "field_masks": ["metadata.name"]}"#).metadata_only);
        assert_eq!(pods.namespace, None);
    }

    #[test]
    fn questions_about_rights_have_the_names_of_either_sdk() {
        let rust = r#"{"subject_access_review": {"user": "alice", "groups": ["team"], "resource_attributes":
            {"namespace": "team", "verb": "get", "group": "", "resource": "pods"}}, "disable_cache": true}"#;
        let go = r#"{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"resourceAttributes":
            {"namespace": "team", "verb": "get", "group": "", "resource": "pods"}, "user": "alice", "groups": ["team"]},
            "disable_cache": true}"#;
        let review = parse(Capability::CanI, rust).expect("a question");
        assert_eq!(review.namespace_of_review(), Some("team"));
        assert_eq!(parse(Capability::CanI, go), Ok(review));
    }

    /// What is asked for by this name in this namespace, and the list of the namespace.
    fn named(name: &str, namespace: &str) -> [Result<Read, String>; 2] {
        let fields = json!({"api_version": "v1", "kind": "Pod", "name": name, "namespace": namespace}).to_string();
        [Capability::GetResource, Capability::ListByNamespace].map(|capability| parse(capability, &fields))
    }

    #[test]
    fn a_name_that_leads_to_another_address_is_refused() {
        for name in [
            "prod/secrets/db",
            "prod/pods?watch=true",
            "../secrets/db",
            ".",
            "..",
            "a?b",
            "a#b",
            "a%2fb",
            "a\\b",
            "a b",
            "a\nb",
        ] {
            let [get, list] = named(name, "prod");
            let error = get.expect_err(name);
            assert!(error.contains("is not the name of an object: want neither '/'"), "{error}");
            assert!(list.is_ok(), "a list has no name");
            for read in named("a", name) {
                let error = read.expect_err(name);
                assert!(error.contains("is not the name of a namespace: want at most 63"), "{error}");
            }
        }
        let error = named("a", "prod/secrets?x=")[1].clone().expect_err("refused");
        assert!(error.contains(r#""prod/secrets?x=" is not"#), "{error}");
        for name in ["a", "pod-a.eu", "system:node", "Case_y"] {
            assert!(matches!(&named(name, "prod")[0], Ok(Read::Get(get)) if get.name == name), "{name}");
        }
    }

    #[test]
    fn what_is_missing_or_too_long_is_said() {
        let error = parse(Capability::ListByNamespace, r#"{"api_version": "v1", "kind": "Pod"}"#).expect_err("refused");
        assert!(error.contains("namespace"), "{error}");
        let error = parse(Capability::GetResource, r#"{"api_version": "v1", "kind": "Pod"}"#).expect_err("refused");
        assert!(error.contains("name"), "{error}");
        let long = format!(r#"{{"api_version": "v1", "kind": "{}"}}"#, "a".repeat(LONGEST + 1));
        assert!(parse(Capability::ListAll, &long).is_err());
        let deep = |levels: usize| {
            let mask = vec!["a"; levels].join(".");
            parse(Capability::ListAll, &format!(r#"{{"api_version": "v1", "kind": "Pod", "field_masks": ["{mask}"]}}"#))
        };
        assert!(deep(mask::MOST_LEVELS).is_ok());
        let error = deep(mask::MOST_LEVELS + 1).expect_err("refused");
        assert!(error.ends_with("want field_masks of at most 64 levels"), "{error}");
    }
}
