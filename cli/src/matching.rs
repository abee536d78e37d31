//! Whether an API server would ask a policy about a request: its namespace, rules, selectors and match conditions. Pure.
//!
//! `eval` notes what it finds, and `test` compares it with what a test expects.

mod equivalent;

use std::collections::BTreeMap;

use portcullis_api::PolicySpec;
use portcullis_contract::{FailurePolicy, PolicyId, clean};
use portcullis_matching::{
    Asked, Conditions, Decision, Failing, LEFT_OUT, Labels, NAME_LABEL, SYSTEM, Selector, is_by_the_cluster,
    is_own_definition, labels, labels_of, rules,
};
use serde_json::{Value, json};

use equivalent::may_be_equivalent;

/// The namespace of an installation, if its operator has chosen no other.
const INSTALLATION: &str = "portcullis";

/// Whether the policy is asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Match {
    Yes,
    /// It is not, for this reason.
    No(String),
    /// It is not, as the API server itself denies the request, for this reason.
    Denied(String),
    /// Only an API server can judge this part of it.
    Unknown(String),
}

impl Match {
    /// What a reader of the policy's answer should know; nothing if the policy is asked.
    pub(crate) fn note(&self) -> Option<String> {
        match self {
            Self::Yes => None,
            Self::No(why) => Some(format!("an API server would not ask the policy: {why}")),
            Self::Denied(why) => Some(why.clone()),
            Self::Unknown(what) => Some(format!("only an API server can judge whether it asks the policy: {what}")),
        }
    }
}

/// The labels of the request's namespace, beside the one with its name.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NamespaceLabels<'a> {
    /// Those that a test names; it has no others.
    All(&'a BTreeMap<String, String>),
    NotKnown,
}

/// Whether the policy is asked about the request of an AdmissionReview. What is certain counts more than what is not.
pub(crate) fn matching(
    id: &PolicyId,
    spec: &PolicySpec,
    asked: &Asked,
    request: &Value,
    namespace_labels: NamespaceLabels<'_>,
) -> Match {
    let rules = of_rules(spec, asked);
    // The conditions may be about another form of the object.
    let is_other_form = matches!(rules, Match::Unknown(_));
    let parts = [
        of_namespace(id, asked, request),
        of_kind(asked, request),
        rules,
        of_objects(spec, request),
        of_namespaces(spec, asked, request, namespace_labels),
    ];
    let (mut unknown, mut no) = (None, None);
    for part in parts {
        match part {
            Match::Yes => {}
            Match::No(why) | Match::Denied(why) => no = no.or(Some(why)),
            Match::Unknown(what) => unknown = unknown.or(Some(what)),
        }
    }
    match (no, unknown) {
        (Some(why), _) => Match::No(why),
        (None, Some(what)) if is_other_form => Match::Unknown(what),
        (None, unknown) => match (Conditions::of(&spec.match_conditions).decide_request(request), unknown) {
            (Ok(Decision::Excluded), _) => Match::No("a match condition is false".to_owned()),
            (_, Some(what)) => Match::Unknown(what),
            (Ok(Decision::Matches), None) => Match::Yes,
            (Ok(Decision::Unknown(name)), None) => Match::Unknown(format!("match condition {name:?}")),
            (Err(failing), None) => failed(&failing, spec.failure_policy),
        },
    }
}

/// What an API server does where a match condition fails.
fn failed(failing: &Failing, policy: FailurePolicy) -> Match {
    let (name, missing) = (clean(&failing.condition, 300), clean(&failing.missing, 300));
    let what = format!("the condition `{name}` fails, as there is no `{missing}`");
    match policy {
        FailurePolicy::Fail => {
            Match::Denied(format!("{what}: with failurePolicy Fail an API server denies the request"))
        }
        FailurePolicy::Ignore => Match::No(format!("{what}, and failurePolicy is Ignore")),
    }
}

/// The namespaces that policies are not asked about.
fn of_namespace(id: &PolicyId, asked: &Asked, request: &Value) -> Match {
    // An API server takes its name for the namespace of the request.
    if let Some(own) = id.namespace().filter(|_| asked.is_namespace()) {
        return Match::No(format!("it is asked about objects in its namespace {own:?}, and about no Namespace itself"));
    }
    if let Some(own) = id.namespace().filter(|own| *own != asked.namespace) {
        return Match::No(format!(
            "it applies to its own namespace {own:?} only, and the request is for {:?}",
            asked.namespace
        ));
    }
    let name = if asked.is_namespace() { request["name"].as_str().unwrap_or_default() } else { &asked.namespace };
    // A Policy in a namespace of the system is there on purpose.
    if id.namespace().is_none() && SYSTEM.contains(&name) {
        return Match::No(format!("no ClusterPolicy is asked about objects in {name}"));
    }
    if name == INSTALLATION {
        return Match::Unknown(format!(
            "no policy is asked about objects in the installation's own namespace, which is {INSTALLATION} by default"
        ));
    }
    Match::Yes
}

/// The kinds of objects and requests that no policy is asked about, so that none can lock up the cluster.
fn of_kind(asked: &Asked, request: &Value) -> Match {
    let group = asked.group.as_str();
    if LEFT_OUT.contains(&group) {
        return Match::No(format!("no policy is asked about the API group {group}"));
    }
    let name = request["name"].as_str().unwrap_or_default();
    if is_own_definition(group, name) {
        return Match::No("no policy is asked about the definitions of Portcullis' own resources".to_owned());
    }
    if group == "coordination.k8s.io" && asked.namespace == "kube-node-lease" {
        return Match::No("no policy is asked about the Leases of nodes".to_owned());
    }
    if is_by_the_cluster(group, &asked.resource, &request["userInfo"]) {
        return Match::No(
            "no policy is asked about what kubelets and controllers of kube-system write to nodes, volumes and certificate signing requests, nor about the certificate signing requests of new nodes"
                .to_owned(),
        );
    }
    Match::Yes
}

fn of_rules(spec: &PolicySpec, asked: &Asked) -> Match {
    if rules::matches(&spec.rules, asked) {
        return Match::Yes;
    }
    let Asked { group, version, resource, subresource, operation, .. } = asked;
    let slash = |part: &str| if part.is_empty() { String::new() } else { format!("/{part}") };
    let group = if group.is_empty() { String::new() } else { format!("{group}/") };
    let is_exact = spec.match_policy.as_deref() == Some("Exact");
    if !is_exact && spec.rules.iter().any(|rule| may_be_equivalent(rule, asked)) {
        return Match::Unknown(format!(
            "no rule matches {group}{version}/{resource}, and matchPolicy is Equivalent: the policy is asked if that is another version of \
             what a rule names"
        ));
    }
    Match::No(format!("no rule matches {operation} of {group}{version}/{resource}{}", slash(subresource)))
}

fn of_objects(spec: &PolicySpec, request: &Value) -> Match {
    let objects = [&request["object"], &request["oldObject"]];
    match spec.object_selector.as_ref().map(Selector::parse).transpose() {
        Err(problem) => Match::Unknown(format!("spec.objectSelector ({problem})")),
        Ok(Some(selector)) if !selector.is_empty() => {
            let with_metadata = objects.into_iter().filter(|object| object["metadata"].is_object());
            let all: Vec<_> = with_metadata.map(|object| labels_of(request, object)).collect();
            if all.iter().any(|(_, may_have_more)| *may_have_more) {
                return Match::Unknown(
                    "spec.objectSelector, as an API server adds labels to an object of this kind".to_owned(),
                );
            }
            match all.iter().any(|(labels, _)| selector.selects(labels)) {
                true => Match::Yes,
                false => Match::No("spec.objectSelector does not select the object".to_owned()),
            }
        }
        Ok(_) => Match::Yes,
    }
}

fn of_namespaces(spec: &PolicySpec, asked: &Asked, request: &Value, given: NamespaceLabels<'_>) -> Match {
    let Some(value) = &spec.namespace_selector else { return Match::Yes };
    let selector = match Selector::parse(value) {
        Ok(selector) => selector,
        Err(problem) => return Match::Unknown(format!("spec.namespaceSelector ({problem})")),
    };
    let none = BTreeMap::new();
    let labels = match given {
        NamespaceLabels::All(labels) => labels,
        NamespaceLabels::NotKnown => &none,
    };
    let Some(labels) = namespace(asked, request, labels) else { return Match::Yes };
    let is_known = matches!(given, NamespaceLabels::All(_)) || asked.is_namespace();
    match (selector.selects(&labels), is_known) {
        (true, true) => Match::Yes,
        (false, true) => {
            let hint = if matches!(given, NamespaceLabels::All(_)) { " (see namespaceLabels)" } else { "" };
            Match::No(format!("spec.namespaceSelector does not select the namespace{hint}"))
        }
        (_, false) => {
            let (by_name, is_all) = only_name(value);
            match (Selector::parse(&by_name).is_ok_and(|selector| selector.selects(&labels)), is_all) {
                (false, _) => Match::No(format!("spec.namespaceSelector does not select {:?}", asked.namespace)),
                (true, true) => Match::Yes,
                (true, false) => Match::Unknown(format!(
                    "spec.namespaceSelector, as the labels of the namespace {:?} are not known here",
                    asked.namespace
                )),
            }
        }
    }
}

/// The part of a selector that is about the name of a namespace, and whether that is all of it.
fn only_name(selector: &Value) -> (Value, bool) {
    let labels = selector["matchLabels"].as_object().cloned().unwrap_or_default();
    let expressions = selector["matchExpressions"].as_array().cloned().unwrap_or_default();
    let all = labels.len() + expressions.len();
    let labels: serde_json::Map<_, _> = labels.into_iter().filter(|(key, _)| key == NAME_LABEL).collect();
    let expressions: Vec<_> = expressions.into_iter().filter(|one| one["key"] == NAME_LABEL).collect();
    let is_all = labels.len() + expressions.len() == all;
    (json!({"matchLabels": labels, "matchExpressions": expressions}), is_all)
}

/// The labels that a namespace selector looks at: those of the request's namespace, or of the Namespace itself if it is about one. `None` for
/// other cluster-scoped objects, which all namespace selectors let through.
fn namespace(asked: &Asked, request: &Value, given: &BTreeMap<String, String>) -> Option<Labels> {
    let (name, mut of_namespace) = if asked.is_namespace() {
        // As in an API server: of a deletion and of a subresource, those of the stored Namespace count.
        let is_new = asked.subresource.is_empty() && ["CREATE", "UPDATE"].contains(&asked.operation.as_str());
        let object = if is_new { "object" } else { "oldObject" };
        (request["name"].as_str().unwrap_or_default(), labels(&request[object]["metadata"]))
    } else {
        (asked.namespace.as_str(), Labels::new())
    };
    if name.is_empty() {
        return None;
    }
    of_namespace.insert(NAME_LABEL.to_owned(), name.to_owned());
    of_namespace.extend(given.clone());
    Some(of_namespace)
}

#[cfg(test)]
mod tests;
