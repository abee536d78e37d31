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
    let parts = [
        of_namespace(id, asked, request),
        of_kind(asked, request),
        of_rules(spec, asked),
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
        // The conditions may be about another form of the object.
        (None, Some(what)) => Match::Unknown(what),
        (None, None) => match Conditions::of(&spec.match_conditions).decide_request(request) {
            Ok(Decision::Matches) => Match::Yes,
            Ok(Decision::Excluded) => Match::No("a match condition is false".to_owned()),
            Ok(Decision::Unknown(name)) => Match::Unknown(format!("match condition {name:?}")),
            Err(failing) => failed(&failing, spec.failure_policy),
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
            "no policy is asked about what kubelets and controllers of kube-system write to nodes and volumes"
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
mod tests {
    use portcullis_matching::about;

    use super::*;

    fn found(id: &str, spec: &Value, request: &Value, namespace_labels: &[(&str, &str)]) -> Match {
        let mut whole = json!({"module": "a.wasm", "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods", "namespaces"], "operations": ["CREATE"]},
        ]});
        whole.as_object_mut().expect("a mapping").extend(spec.as_object().expect("a mapping").clone());
        let spec: PolicySpec = serde_json::from_value(whole).expect("a spec");
        let labels = namespace_labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        decided(id, &spec, request, NamespaceLabels::All(&labels))
    }

    fn decided(id: &str, spec: &PolicySpec, request: &Value, labels: NamespaceLabels<'_>) -> Match {
        let text = |field: &str| request["resource"][field].as_str().unwrap_or_default().to_owned();
        let asked = Asked {
            group: text("group"),
            version: text("version"),
            resource: text("resource"),
            subresource: String::new(),
            operation: request["operation"].as_str().unwrap_or_default().to_owned(),
            namespace: request["namespace"].as_str().unwrap_or_default().to_owned(),
        };
        matching(&id.parse().expect("an id"), spec, &asked, request, labels)
    }

    fn pod(operation: &str) -> Value {
        json!({
            "uid": "1", "operation": operation, "namespace": "shop", "name": "web",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "userInfo": {"username": "ada", "groups": []},
            "object": {"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": {"hostNetwork": true}},
        })
    }

    /// The request to create an object with these metadata, as it is made from a file.
    fn from_file(group: &str, kind: &str, resource: &str, metadata: &Value) -> Value {
        let asked = Asked {
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            subresource: String::new(),
            operation: "CREATE".to_owned(),
            namespace: if resource == "namespaces" { "" } else { "shop" }.to_owned(),
        };
        let name = metadata["name"].as_str().unwrap_or_default();
        let review = about("portcullis-eval", &asked, kind, name, &json!({"metadata": metadata}).to_string());
        serde_json::from_slice::<Value>(&review).expect("JSON")["request"].take()
    }

    #[test]
    fn each_part_of_a_policy_can_leave_a_request_out() {
        let of = |id: &str, spec: Value, labels: &[(&str, &str)]| found(id, &spec, &pod("CREATE"), labels);
        let app = |value: &str| json!({"objectSelector": {"matchLabels": {"app": value}}});
        let team = json!({"namespaceSelector": {"matchLabels": {"team": "a"}}});
        let named = json!({"namespaceSelector": {"matchLabels": {NAME_LABEL: "shop"}}});
        let condition = |text: &str| json!({"matchConditions": [{"name": "c", "expression": text}]});
        for (id, spec, labels) in [
            ("cluster/a", json!({}), &[][..]),
            ("namespaced/shop/a", json!({}), &[]),
            ("cluster/a", app("web"), &[]),
            ("cluster/a", team.clone(), &[("team", "a")]),
            ("cluster/a", named, &[]),
            ("cluster/a", condition("object.spec.hostNetwork && request.userInfo.username == 'ada'"), &[]),
        ] {
            assert_eq!(of(id, spec.clone(), labels), Match::Yes, "{id} {spec}");
        }
        for (id, spec, word) in [
            ("namespaced/other/a", json!({}), "its own namespace \"other\" only"),
            ("cluster/a", json!({"rules": []}), "no rule matches CREATE of v1/pods"),
            ("cluster/a", app("db"), "objectSelector"),
            ("cluster/a", team, "namespaceSelector"),
            ("cluster/a", condition("request.userInfo.username != 'ada'"), "match condition"),
        ] {
            let Match::No(why) = of(id, spec.clone(), &[]) else { panic!("{id} {spec}") };
            assert!(why.contains(word), "{word:?} in {why}");
        }
        assert!(matches!(found("cluster/a", &json!({}), &pod("DELETE"), &[]), Match::No(_)));
        let only_there = condition("authorizer.group('').resource('pods').check('get').allowed()");
        assert_eq!(of("cluster/a", only_there, &[]), Match::Unknown("match condition \"c\"".to_owned()));

        // An API server adds labels to what was made from a file.
        let named = |name: &str| json!({"objectSelector": {"matchLabels": {NAME_LABEL: name}}});
        let namespace = from_file("", "Namespace", "namespaces", &json!({"name": "shop"}));
        assert_eq!(found("cluster/a", &named("shop"), &namespace, &[]), Match::Yes);
        assert!(matches!(found("cluster/a", &named("other"), &namespace, &[]), Match::No(_)));
        let generated = from_file("", "Namespace", "namespaces", &json!({"generateName": "shop-"}));
        assert!(matches!(found("cluster/a", &named("shop-1"), &generated, &[]), Match::Unknown(_)));
        let job = |metadata: Value| {
            let rule =
                json!({"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["*"]});
            let spec = json!({"rules": [rule], "objectSelector": {"matchLabels": {"app": "web"}}});
            found("cluster/a", &spec, &from_file("batch", "Job", "jobs", &metadata), &[])
        };
        let copied = job(json!({"name": "web"}));
        assert!(matches!(&copied, Match::Unknown(what) if what.contains("adds labels")), "{copied:?}");
        assert!(matches!(job(json!({"name": "web", "labels": {"app": "db"}})), Match::No(_)), "it has its own");
    }

    #[test]
    fn a_namespace_is_selected_by_its_own_labels_and_other_cluster_scoped_objects_always_are() {
        let spec = json!({"namespaceSelector": {"matchLabels": {"team": "a"}}, "rules": [
            {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]},
        ]});
        let request = |resource: &str, team: &str| {
            json!({
                "operation": "CREATE", "name": "x", "resource": {"group": "", "version": "v1", "resource": resource},
                "object": {"metadata": {"name": "x", "labels": {"team": team}}},
            })
        };
        assert_eq!(found("cluster/a", &spec, &request("namespaces", "a"), &[]), Match::Yes);
        assert!(matches!(found("cluster/a", &spec, &request("namespaces", "b"), &[]), Match::No(_)));
        assert_eq!(found("cluster/a", &spec, &request("nodes", "b"), &[]), Match::Yes);

        // A deletion brings the stored one only.
        let mut deletion = request("namespaces", "b");
        deletion["operation"] = json!("DELETE");
        deletion["oldObject"] = json!({"metadata": {"name": "x", "labels": {"team": "a"}}});
        deletion["object"] = Value::Null;
        assert_eq!(found("cluster/a", &spec, &deletion, &[]), Match::Yes);
    }

    #[test]
    fn what_no_policy_is_asked_about_is_left_out() {
        let everything = json!({"rules": [
            {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]},
        ]});
        let request = |group: &str, resource: &str, namespace: &str, name: &str| {
            json!({
                "operation": "CREATE", "name": name, "namespace": namespace,
                "resource": {"group": group, "version": "v1", "resource": resource},
                "userInfo": {"groups": ["system:nodes"]}, "object": {"metadata": {"name": name}},
            })
        };
        for (id, asked, word) in [
            ("cluster/a", request("", "pods", "kube-system", "x"), "in kube-system"),
            ("cluster/a", request("", "pods", "kube-node-lease", "x"), "in kube-node-lease"),
            ("cluster/a", request("", "namespaces", "", "kube-system"), "in kube-system"),
            ("cluster/a", request("authorization.k8s.io", "subjectaccessreviews", "", ""), "authorization.k8s.io"),
            ("cluster/a", request("policies.portcullis.dev", "clusterpolicies", "", "x"), "policies.portcullis.dev"),
            (
                "cluster/a",
                request("apiextensions.k8s.io", "customresourcedefinitions", "", "x.policies.portcullis.dev"),
                "own resources",
            ),
            ("cluster/a", request("", "nodes", "", "x"), "kubelets"),
            (
                "namespaced/kube-node-lease/a",
                request("coordination.k8s.io", "leases", "kube-node-lease", "x"),
                "Leases",
            ),
        ] {
            let Match::No(why) = found(id, &everything, &asked, &[]) else { panic!("{id} {asked}") };
            assert!(why.contains(word), "{word:?} in {why}");
        }
        let mut namespace = request("", "namespaces", "shop", "shop");
        for given in ["shop", ""] {
            namespace["namespace"] = json!(given);
            let own = found("namespaced/shop/a", &everything, &namespace, &[]);
            assert!(matches!(&own, Match::No(why) if why.ends_with("about no Namespace itself")), "{own:?}");
        }
        let own = found("namespaced/kube-system/a", &everything, &request("", "pods", "kube-system", "x"), &[]);
        assert_eq!(own, Match::Yes, "a Policy there is asked");
        let installation = found("cluster/a", &everything, &request("", "pods", INSTALLATION, "x"), &[]);
        assert!(matches!(installation, Match::Unknown(_)), "{installation:?}");
    }

    #[test]
    fn the_same_resource_in_another_version_or_group_may_be_asked_about() {
        let rules = json!([
            {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments", "*/scale"], "operations": ["CREATE"]},
            {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["*"], "operations": ["CREATE"]},
        ]);
        let request = |group: &str, version: &str, resource: &str, operation: &str| {
            json!({
                "operation": operation, "namespace": "shop", "name": "x",
                "resource": {"group": group, "version": version, "resource": resource},
                "object": {"metadata": {"name": "x"}},
            })
        };
        for (asked, may_be) in [
            (request("apps", "v1beta1", "deployments", "CREATE"), true),
            (request("extensions", "v1beta1", "deployments", "CREATE"), false),
            (request("batch", "v2", "jobs", "CREATE"), true),
            (request("apps", "v1beta1", "deployments", "DELETE"), false),
            (request("", "v1", "pods", "CREATE"), false),
            (request("networking.k8s.io", "v1", "deployments", "CREATE"), false),
        ] {
            let of = |policy: &str| found("cluster/a", &json!({"rules": rules, "matchPolicy": policy}), &asked, &[]);
            let equivalent = of("Equivalent");
            assert_eq!(matches!(equivalent, Match::Unknown(_)), may_be, "{asked}: {equivalent:?}");
            assert!(matches!(of("Exact"), Match::No(_)), "{asked}");
            let default = found("cluster/a", &json!({"rules": rules}), &asked, &[]);
            assert_eq!(default, equivalent, "{asked}");
        }
        // What leaves it out for certain counts more.
        let selecting = json!({"rules": rules, "objectSelector": {"matchLabels": {"app": "web"}}});
        let asked = request("apps", "v1beta1", "deployments", "CREATE");
        assert!(
            matches!(found("cluster/a", &selecting, &asked, &[]), Match::No(why) if why.contains("objectSelector"))
        );
    }

    #[test]
    fn a_condition_that_fails_denies_or_skips_as_the_failure_policy_says() {
        let of = |text: &str, policy: &str| {
            let condition = json!([{"name": "x", "expression": text}]);
            let mut asked = pod("CREATE");
            asked["object"]["metadata"] = json!({"name": "web"});
            found("cluster/a", &json!({"matchConditions": condition, "failurePolicy": policy}), &asked, &[])
        };
        let (bare, guarded) = ("object.metadata.labels.app == 'web'", "has(object.metadata.labels)");
        let what = "the condition `x` fails, as there is no `labels`";
        let denied = format!("{what}: with failurePolicy Fail an API server denies the request");
        assert_eq!(of(bare, "Fail"), Match::Denied(denied));
        assert_eq!(of(bare, "Ignore"), Match::No(format!("{what}, and failurePolicy is Ignore")));
        for policy in ["Fail", "Ignore"] {
            let found = of(&format!("{guarded} && {bare}"), policy);
            assert_eq!(found, Match::No("a match condition is false".to_owned()), "{policy}");
        }
    }

    #[test]
    fn a_namespace_whose_labels_are_not_known_is_judged_by_its_name() {
        let of = |selector: Value| {
            let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["*"]}]);
            let spec = json!({"module": "a.wasm", "rules": rules, "namespaceSelector": selector});
            let spec: PolicySpec = serde_json::from_value(spec).expect("a spec");
            decided("cluster/a", &spec, &pod("CREATE"), NamespaceLabels::NotKnown)
        };
        let name = |operator: &str| json!({"key": NAME_LABEL, "operator": operator, "values": ["shop"]});
        assert_eq!(of(json!({})), Match::Yes);
        assert_eq!(of(json!({"matchExpressions": [name("In")]})), Match::Yes);
        assert!(matches!(of(json!({"matchExpressions": [name("NotIn")]})), Match::No(_)));
        assert!(matches!(of(json!({"matchLabels": {"team": "a"}})), Match::Unknown(what) if what.contains("shop")));
        let both = json!({"matchLabels": {"team": "a"}, "matchExpressions": [name("NotIn")]});
        assert!(matches!(of(both), Match::No(_)), "its name leaves it out, whatever its team");
    }
}
