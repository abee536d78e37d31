//! Objects of the cluster as data of policies in Rego, which cannot call their host (docs/design/policy-abi.md, section 7).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use portcullis_contract::{BROKER_MAX_REPLY, ContextAwareResource, ExecutionMode};
use serde::Serialize;
use serde_json::value::RawValue;

use super::objects::Key;
use crate::ProvideError;

/// What helps when there are too many objects. Rules in Rego have neither selectors nor field masks.
pub(super) const READ_LESS: &str = "remove kinds that the rules do not read from contextAwareResources, or judge by a module that selects \
                                    what it lists";
/// The most kinds that an error names.
const MOST_NAMED: usize = 4;

/// How the objects are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Form {
    /// `<plural>.<namespace>.<name>`, or `<plural>.<name>` where objects have no namespace.
    Opa,
    /// `namespace[<namespace>][<apiVersion>][<kind>][<name>]`, and `cluster[<apiVersion>][<kind>][<name>]`.
    Gatekeeper,
}

/// All objects of a kind.
pub(super) struct Listed<'a> {
    pub(super) kind: &'a ContextAwareResource,
    /// The kind's name in addresses, like `pods`.
    pub(super) plural: &'a str,
    pub(super) is_namespaced: bool,
    /// The objects, in the order of their keys.
    pub(super) objects: Vec<(Key, Arc<RawValue>)>,
}

type ByName<'a> = BTreeMap<&'a str, &'a RawValue>;
type ByNamespace<'a> = BTreeMap<&'a str, ByName<'a>>;
type ByKind<'a> = BTreeMap<&'a str, BTreeMap<&'a str, ByName<'a>>>;

/// The objects of one kind for mode `opa`.
#[derive(Serialize)]
#[serde(untagged)]
enum Plural<'a> {
    Cluster(ByName<'a>),
    Namespaced(ByNamespace<'a>),
}

/// The objects of all kinds for mode `gatekeeper`.
#[derive(Default, Serialize)]
struct Inventory<'a> {
    cluster: ByKind<'a>,
    namespace: BTreeMap<&'a str, ByKind<'a>>,
}

impl Form {
    /// The form for modules of this mode; `None` for modules that call their host.
    pub(crate) fn of(mode: ExecutionMode) -> Option<Self> {
        match mode {
            ExecutionMode::Opa => Some(Self::Opa),
            ExecutionMode::Gatekeeper => Some(Self::Gatekeeper),
            ExecutionMode::KubewardenWapc | ExecutionMode::Wasi => None,
        }
    }
}

impl Listed<'_> {
    fn by_name(&self) -> ByName<'_> {
        self.objects.iter().map(|((_, name), json)| (&**name, &**json)).collect()
    }

    fn by_namespace(&self) -> ByNamespace<'_> {
        let mut namespaces = ByNamespace::new();
        for ((namespace, name), json) in &self.objects {
            namespaces.entry(namespace).or_default().insert(name, json);
        }
        namespaces
    }
}

/// The document, as JSON.
///
/// # Errors
/// When the form cannot hold all of the kinds.
pub(super) fn render(form: Form, kinds: &[Listed<'_>]) -> Result<Bytes, ProvideError> {
    let json = match form {
        Form::Opa => serde_json::to_vec(&opa(kinds)?),
        Form::Gatekeeper => serde_json::to_vec(&gatekeeper(kinds)),
    };
    json.map(Bytes::from).map_err(ProvideError::failed)
}

fn opa<'a>(kinds: &'a [Listed<'_>]) -> Result<BTreeMap<&'a str, Plural<'a>>, ProvideError> {
    let mut plurals = BTreeMap::new();
    for listed in kinds {
        let objects = match listed.is_namespaced {
            true => Plural::Namespaced(listed.by_namespace()),
            false => Plural::Cluster(listed.by_name()),
        };
        if plurals.insert(listed.plural, objects).is_some() {
            return Err(ProvideError::failed(format!(
                "two kinds of contextAwareResources are `{}`, and data.kubernetes has room for one: remove one of them",
                listed.plural
            )));
        }
    }
    Ok(plurals)
}

fn gatekeeper<'a>(kinds: &'a [Listed<'_>]) -> Inventory<'a> {
    let mut inventory = Inventory::default();
    for listed in kinds {
        let ContextAwareResource { api_version, kind } = listed.kind;
        if listed.is_namespaced {
            for (namespace, objects) in listed.by_namespace() {
                let kinds = inventory.namespace.entry(namespace).or_default();
                kinds.entry(api_version).or_default().insert(kind, objects);
            }
        } else {
            inventory.cluster.entry(api_version).or_default().insert(kind, listed.by_name());
        }
    }
    inventory
}

/// Checks that a document of `total` bytes fits in a reply; `sizes` are the sizes of its kinds.
///
/// # Errors
/// When it is too large. The error names the largest kinds.
pub(super) fn check_size(sizes: &[(&ContextAwareResource, usize)], total: usize) -> Result<(), ProvideError> {
    if total <= BROKER_MAX_REPLY {
        return Ok(());
    }
    let mut largest = sizes.to_vec();
    largest.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let named = largest.iter().take(MOST_NAMED);
    let named = named.map(|(kind, bytes)| format!("{}/{} {bytes}", kind.api_version, kind.kind));
    Err(ProvideError::failed(format!(
        "the objects of contextAwareResources have {total} bytes, the limit is {BROKER_MAX_REPLY} ({}); {READ_LESS}",
        named.collect::<Vec<_>>().join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn kind(api_version: &str, kind: &str) -> ContextAwareResource {
        ContextAwareResource { api_version: api_version.to_owned(), kind: kind.to_owned() }
    }

    /// Objects with only a number in them, in the order of the keys.
    fn objects(keys: &[(&str, &str)]) -> Vec<(Key, Arc<RawValue>)> {
        let object = |(number, (namespace, name)): (usize, &(&str, &str))| {
            let json = RawValue::from_string(format!("{{\"n\":{number}}}")).expect("JSON");
            ((str::to_owned(namespace), str::to_owned(name)), json.into())
        };
        keys.iter().enumerate().map(object).collect()
    }

    fn document(form: Form, kinds: &[Listed<'_>]) -> Value {
        serde_json::from_slice(&render(form, kinds).expect("a document")).expect("JSON")
    }

    #[test]
    fn objects_lie_where_rules_of_each_mode_look_for_them() {
        let (pod, ingress, namespace) =
            (kind("v1", "Pod"), kind("networking.k8s.io/v1", "Ingress"), kind("v1", "Namespace"));
        let pods = objects(&[("a", "x"), ("a", "y"), ("b", "x\"")]);
        let listed = [
            Listed { kind: &pod, plural: "pods", is_namespaced: true, objects: pods },
            Listed { kind: &ingress, plural: "ingresses", is_namespaced: true, objects: objects(&[("a", "x")]) },
            Listed {
                kind: &namespace,
                plural: "namespaces",
                is_namespaced: false,
                objects: objects(&[("", "a"), ("", "b")]),
            },
        ];
        assert_eq!(
            document(Form::Opa, &listed),
            json!({
                "pods": {"a": {"x": {"n": 0}, "y": {"n": 1}}, "b": {"x\"": {"n": 2}}},
                "ingresses": {"a": {"x": {"n": 0}}},
                "namespaces": {"a": {"n": 0}, "b": {"n": 1}},
            })
        );
        assert_eq!(
            document(Form::Gatekeeper, &listed),
            json!({
                "cluster": {"v1": {"Namespace": {"a": {"n": 0}, "b": {"n": 1}}}},
                "namespace": {
                    "a": {
                        "networking.k8s.io/v1": {"Ingress": {"x": {"n": 0}}},
                        "v1": {"Pod": {"x": {"n": 0}, "y": {"n": 1}}},
                    },
                    "b": {"v1": {"Pod": {"x\"": {"n": 2}}}},
                },
            })
        );
    }

    #[test]
    fn a_kind_without_objects_is_empty_and_not_absent() {
        let (pod, node) = (kind("v1", "Pod"), kind("v1", "Node"));
        let listed = [
            Listed { kind: &pod, plural: "pods", is_namespaced: true, objects: Vec::new() },
            Listed { kind: &node, plural: "nodes", is_namespaced: false, objects: Vec::new() },
        ];
        assert_eq!(document(Form::Opa, &listed), json!({"pods": {}, "nodes": {}}));
        assert_eq!(document(Form::Gatekeeper, &listed), json!({"cluster": {"v1": {"Node": {}}}, "namespace": {}}));
        assert_eq!(document(Form::Gatekeeper, &[]), json!({"cluster": {}, "namespace": {}}));
    }

    #[test]
    fn no_kind_hides_another() {
        let (core, metrics) = (kind("v1", "Pod"), kind("metrics.k8s.io/v1beta1", "PodMetrics"));
        let listed = [&core, &metrics].map(|kind| Listed {
            kind,
            plural: "pods",
            is_namespaced: true,
            objects: objects(&[("a", "x")]),
        });
        let error = render(Form::Opa, &listed).expect_err("refused").to_string();
        assert!(error.contains("two kinds of contextAwareResources are `pods`"), "{error}");
        assert_eq!(document(Form::Gatekeeper, &listed)["namespace"]["a"].as_object().map(|kinds| kinds.len()), Some(2));
    }

    #[test]
    fn too_many_objects_are_told_by_their_kinds_and_sizes() {
        let (pod, secret) = (kind("v1", "Pod"), kind("v1", "Secret"));
        let sizes = [(&secret, 20), (&pod, 9 << 20)];
        assert_eq!(check_size(&sizes, BROKER_MAX_REPLY), Ok(()));
        let error = check_size(&sizes, BROKER_MAX_REPLY + 1).expect_err("refused").to_string();
        assert!(
            error.contains("8388609 bytes, the limit is 8388608 (v1/Pod 9437184, v1/Secret 20); remove"),
            "{error}"
        );
    }
}
