//! AdmissionPolicy, ClusterAdmissionPolicy and the groups of both. Pure.

use portcullis_api::{API_VERSION, decode_manifest};
use portcullis_contract::PolicyId;
use serde_json::{Map, Value, json};

use super::{Fields, MigrateError, Outcome};

/// Fields that mean the same on both sides.
const KEPT: &[&str] = &[
    "policyServer",
    "mode",
    "module",
    "settings",
    "rules",
    "failurePolicy",
    "mutating",
    "matchPolicy",
    "matchConditions",
    "objectSelector",
    "sideEffects",
    "timeoutSeconds",
    "timeoutEvalSeconds",
    "message",
    "namespaceSelector",
    "contextAwareResources",
    "policies",
    "expression",
];
/// The label of every namespace with its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// The namespaces that webhooks of ClusterPolicies never call for, beside the installation's own.
const SYSTEM: [&str; 2] = ["kube-system", "kube-node-lease"];
/// Kubernetes' own resources without a namespace, by API group. No rule of a Policy may name them.
const CLUSTER_SCOPED: [(&str, &[&str]); 4] = [
    ("", &["namespaces", "nodes", "persistentvolumes"]),
    ("rbac.authorization.k8s.io", &["clusterroles", "clusterrolebindings"]),
    ("apiextensions.k8s.io", &["customresourcedefinitions"]),
    ("storage.k8s.io", &["storageclasses"]),
];
/// The annotation that `kubectl apply` writes for itself.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Translates a policy, and gives it its id. The error says why a cluster would refuse it.
pub(super) fn policy(object: &Value, kind: &str, fields: &mut Fields<'_>) -> Result<(PolicyId, Value), MigrateError> {
    let mut spec = Map::new();
    for (name, value) in object["spec"].as_object().into_iter().flatten() {
        let outcome = outcome(name, value);
        if outcome == Outcome::Kept && !value.is_null() {
            spec.insert(name.clone(), value.clone());
        }
        fields.note(format!("spec.{}", portcullis_contract::clean(name, 100)), outcome);
    }
    for member in spec.get_mut("policies").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        member.as_object_mut().into_iter().for_each(|member| member.retain(|_, value| !value.is_null()));
    }
    if kind == "Policy" {
        let rules = spec.get_mut("rules").and_then(Value::as_array_mut);
        for (field, why) in rules.map(drop_unmatched).unwrap_or_default() {
            fields.note(field, Outcome::Dropped(why));
        }
    }
    let mut metadata = object["metadata"].as_object().cloned().unwrap_or_default();
    metadata.retain(|name, _| ["name", "namespace", "labels", "annotations"].contains(&name.as_str()));
    disown(&mut metadata, fields);
    fields.note("host capabilities", Outcome::Dropped(why_no_capabilities(kind).to_owned()));
    for (field, note) in notes(kind, &Value::Object(spec.clone())) {
        fields.note(field, Outcome::Noted(note));
    }
    let policy = json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec});
    let id = decode_manifest(policy.clone())?.check()?;
    Ok((id, policy))
}

/// Removes from the rules of an AdmissionPolicy what Kubewarden never matches, as it sets each scope to Namespaced and a Policy with it
/// would be refused. If no rule would be left, those rules stay as they are. Returns each removed field with the reason.
fn drop_unmatched(rules: &mut Vec<Value>) -> Vec<(String, String)> {
    let mut dropped = Vec::new();
    let has_others = !rules.iter().all(is_all_of_cluster);
    let mut number = 0..;
    rules.retain_mut(|rule| {
        let place = format!("spec.rules[{}]", number.next().unwrap_or_default());
        if is_all_of_cluster(rule) {
            let names: Vec<_> = rule["resources"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            if has_others {
                dropped.push((place, never(&names.join(", "))));
            }
            return !has_others;
        }
        dropped.extend(drop_scope(rule, &place));
        dropped.extend(drop_cluster_scoped(rule, &place));
        true
    });
    dropped
}

/// Removes the scope of a rule, if it is not Namespaced.
fn drop_scope(rule: &mut Value, place: &str) -> Option<(String, String)> {
    let is_other = rule["scope"].as_str().is_some_and(|scope| scope != "Namespaced");
    rule.as_object_mut().filter(|_| is_other)?.shift_remove("scope");
    let why = "Kubewarden sets it to Namespaced whatever it says, and a Policy allows no other scope";
    Some((format!("{place}.scope"), why.to_owned()))
}

/// Removes the resources of a rule that have no namespace.
fn drop_cluster_scoped(rule: &mut Value, place: &str) -> Vec<(String, String)> {
    let whole = rule.clone();
    let Some(resources) = rule.get_mut("resources").and_then(Value::as_array_mut) else { return Vec::new() };
    let dropped = resources.extract_if(.., |one| is_of_cluster(&whole, one));
    dropped.map(|one| (format!("{place}.resources"), never(one.as_str().unwrap_or_default()))).collect()
}

/// Why a resource without a namespace, or several, is dropped.
fn never(name: &str) -> String {
    let name = portcullis_contract::clean(name, 100);
    format!("Kubewarden sets the scope of each rule to Namespaced, so no rule ever matches {name}")
}

/// Whether all resources of a rule have no namespace; false without any.
fn is_all_of_cluster(rule: &Value) -> bool {
    let resources = rule["resources"].as_array().filter(|resources| !resources.is_empty());
    resources.is_some_and(|resources| resources.iter().all(|one| is_of_cluster(rule, one)))
}

/// Whether a resource of a rule is one of Kubernetes without a namespace. Another API group may have one of the same name that is in namespaces.
fn is_of_cluster(rule: &Value, resource: &Value) -> bool {
    let groups: Vec<&str> = rule["apiGroups"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let is_of_kubernetes = |group: &&str| *group != "*" && (!group.contains('.') || group.ends_with(".k8s.io"));
    let name = resource.as_str().and_then(|resource| resource.split('/').next()).unwrap_or_default();
    let known = |(group, names): &(&str, &[&str])| groups.contains(group) && names.contains(&name);
    groups.iter().all(is_of_kubernetes) && CLUSTER_SCOPED.iter().any(known)
}

/// Removes the labels and annotations by which others know what is theirs: they tell of the old policy, and not of the new one beside it.
fn disown(metadata: &mut Map<String, Value>, fields: &mut Fields<'_>) {
    for section in ["labels", "annotations"] {
        let Some(marks) = metadata.get_mut(section).and_then(Value::as_object_mut) else { continue };
        marks.shift_remove(LAST_APPLIED);
        marks.retain(|name, value| {
            let Some(why) = owned(name, value) else { return true };
            let name = portcullis_contract::clean(name, 100);
            fields.note(format!("metadata.{section}.{name}"), Outcome::Dropped(why.to_owned()));
            false
        });
        if marks.is_empty() {
            metadata.shift_remove(section);
        }
    }
}

/// Why a label or an annotation is not that of the new policy, if it says to what the old one belongs.
fn owned(name: &str, value: &Value) -> Option<&'static str> {
    match name {
        "app.kubernetes.io/managed-by" if value == "Helm" => {
            Some("Helm installed the old policy, and did not install this one")
        }
        "meta.helm.sh/release-name" | "meta.helm.sh/release-namespace" => {
            Some("it names the release of Helm that the old policy belongs to, and this one does not")
        }
        "app.kubernetes.io/instance" | "argocd.argoproj.io/instance" => {
            Some("Argo CD may know by it what belongs to an application: that of the old policy would delete this one")
        }
        "argocd.argoproj.io/tracking-id" | "argocd.argoproj.io/installation-id" => {
            Some("Argo CD knows by it what belongs to an application: that of the old policy would delete this one")
        }
        _ if name.ends_with(".toolkit.fluxcd.io/name") || name.ends_with(".toolkit.fluxcd.io/namespace") => {
            Some("it names what of Flux the old policy belongs to, and this one does not")
        }
        _ => None,
    }
}

fn why_no_capabilities(kind: &str) -> &'static str {
    match kind {
        "ClusterPolicy" => {
            "Kubewarden grants all of them to policies of the cluster, and Portcullis those that `hostCapabilities` lists: see \
             `portcullis inspect MODULE`"
        }
        _ => {
            "Kubewarden grants all of them to policies of a namespace, unless namespacedPoliciesCapabilities of the PolicyServer says \
             otherwise, and Portcullis those that the policy lists in `hostCapabilities` and the operator allows by \
             `capabilities.namespaced` of the chart: see `portcullis inspect MODULE`"
        }
    }
}

/// Where the same manifest means something else here.
fn notes(kind: &str, spec: &Value) -> Vec<(&'static str, String)> {
    let mut notes = Vec::new();
    if kind == "ClusterPolicy" {
        let left_out = "no ClusterPolicy is asked about objects in kube-system, kube-node-lease and the installation's own namespace, nor \
                        about TokenReviews, SubjectAccessReviews, and what kubelets and controllers of kube-system write to nodes, \
                        volumes and certificate signing requests, nor about the certificate signing requests of new nodes; \
                        Kubewarden leaves out only its own namespace";
        notes.push(("requests", left_out.to_owned()));
        let named = system_namespaces(&spec["namespaceSelector"]);
        if !named.is_empty() {
            let never = format!(
                "it names {}, and no ClusterPolicy is ever asked about objects there: this policy no longer judges them; write a Policy \
                 in that namespace",
                named.join(" and ")
            );
            notes.push(("spec.namespaceSelector", never));
        }
    }
    // A policy in mode monitor denies nothing in either case.
    if spec["failurePolicy"] == "Ignore" && spec["mode"] != "monitor" {
        let admitted = "Kubewarden denies what the policy could not judge (an error, a timeout, a policy that does not initialise), \
                        whatever failurePolicy says; here it counts for these as well, and Ignore admits the request with a warning: \
                        write Fail if it is to be denied";
        notes.push(("spec.failurePolicy", admitted.to_owned()));
    }
    notes
}

/// The namespaces of the system that a selector wants the policy to be asked about, by their names.
fn system_namespaces(selector: &Value) -> Vec<&'static str> {
    let expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    let expressions = expressions.filter(|one| one["key"] == NAMESPACE_NAME && one["operator"] == "In");
    let named = expressions.flat_map(|one| one["values"].as_array().into_iter().flatten());
    let named: Vec<&Value> = named.chain([&selector["matchLabels"][NAMESPACE_NAME]]).collect();
    SYSTEM.into_iter().filter(|name| named.iter().any(|value| *value == name)).collect()
}

fn outcome(field: &str, value: &Value) -> Outcome {
    let why = match field {
        name if KEPT.contains(&name) => return Outcome::Kept,
        "backgroundAudit" if *value != true && !value.is_null() => return Outcome::Kept,
        "backgroundAudit" => {
            "true is the default: audits ask the policy, where `audit.enabled` of the chart turns them on"
        }
        "allowInsideAdmissionControllerNamespace" => {
            "no policy is asked about the installation's own namespace, so that a policy cannot keep Portcullis from starting"
        }
        _ => "there is no such field",
    };
    Outcome::Dropped(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(kind: &str, spec: &Value) -> Vec<&'static str> {
        notes(kind, spec).into_iter().map(|(field, _)| field).collect()
    }

    fn names(operator: &str, values: &[&str]) -> Value {
        json!({"namespaceSelector": {"matchExpressions": [{"key": NAMESPACE_NAME, "operator": operator, "values": values}]}})
    }

    #[test]
    fn a_policy_of_the_cluster_is_not_asked_about_the_system() {
        assert_eq!(noted("ClusterPolicy", &json!({})), ["requests"]);
        assert_eq!(noted("Policy", &json!({})), Vec::<&str>::new());
        assert_eq!(noted("ClusterPolicy", &names("NotIn", &["kube-system"])), ["requests"]);
        assert_eq!(noted("ClusterPolicy", &names("In", &["shop"])), ["requests"]);
        let both = ["requests", "spec.namespaceSelector"];
        assert_eq!(noted("ClusterPolicy", &names("In", &["shop", "kube-system"])), both);
        assert_eq!(
            noted("ClusterPolicy", &json!({"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: "kube-system"}}})),
            both
        );
        let notes = notes("ClusterPolicy", &names("In", &["kube-node-lease", "kube-system"]));
        assert!(notes[1].1.starts_with("it names kube-system and kube-node-lease, and no ClusterPolicy"), "{notes:?}");
    }

    #[test]
    fn ignore_admits_what_kubewarden_denies() {
        for (spec, is_noted) in [
            (json!({"failurePolicy": "Ignore"}), true),
            (json!({"failurePolicy": "Ignore", "mode": "protect"}), true),
            (json!({"failurePolicy": "Ignore", "mode": "monitor"}), false),
            (json!({"failurePolicy": "Fail"}), false),
            (json!({}), false),
        ] {
            assert_eq!(noted("Policy", &spec).contains(&"spec.failurePolicy"), is_noted, "{spec}");
        }
    }

    #[test]
    fn a_policy_that_was_not_audited_is_not_audited_here() {
        assert_eq!(outcome("backgroundAudit", &json!(false)), Outcome::Kept);
        for default in [json!(true), json!(null)] {
            assert!(matches!(outcome("backgroundAudit", &default), Outcome::Dropped(_)), "{default}");
        }
    }

    #[test]
    fn capabilities_of_a_policy_need_its_author_and_the_operator() {
        let why = why_no_capabilities("Policy");
        assert!(why.contains("`hostCapabilities`") && why.contains("`capabilities.namespaced`"), "{why}");
        assert!(!why_no_capabilities("ClusterPolicy").contains("capabilities.namespaced"));
    }
}
