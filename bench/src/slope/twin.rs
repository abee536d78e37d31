//! The same rules in other forms, made from the manifest of a ClusterPolicy, with its match part. Pure.

use serde_json::{Value, json};

/// The label of everything that the benchmark creates besides policies, as `name=value` in selectors.
pub(super) const LABEL: (&str, &str) = ("portcullis-bench", "slope");
/// The message with which the module and its twins in CEL deny a pod.
pub(super) const DENIAL: &str = "privileged containers are not allowed";

/// The group of the API with webhooks and admission policies.
const VERSION: &str = "admissionregistration.k8s.io/v1";
/// How many webhooks one configuration has: with their certificates, they stay far below the largest object that etcd
/// accepts.
const TOGETHER: usize = 100;
/// How long an API server waits for a webhook, in seconds: the longest that it allows, because very many are called at
/// once.
const TIMEOUT: u32 = 30;

/// The ValidatingAdmissionPolicy with the rule of the module `no-privileged`, for pods.
pub(super) fn admission_policy(policy: &Value) -> Value {
    let spec = &policy["spec"];
    json!({
        "apiVersion": VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": metadata(name(policy)),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent", "resourceRules": spec["rules"],
                "namespaceSelector": spec["namespaceSelector"], "objectSelector": spec["objectSelector"],
            },
            "validations": [{"expression": expression(), "message": DENIAL}],
        },
    })
}

/// The binding that makes that policy deny.
pub(super) fn binding(policy: &Value) -> Value {
    json!({
        "apiVersion": VERSION, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata(name(policy)),
        "spec": {"policyName": name(policy), "validationActions": ["Deny"]},
    })
}

/// A webhook for each policy, at the policy's own path of this service.
pub(super) fn webhooks(policies: &[Value], service: &Value, authority: &Value) -> Vec<Value> {
    let entry = |policy: &Value| {
        let spec = &policy["spec"];
        let mut service = service.clone();
        service["path"] = format!("/validate/cluster/{}", name(policy)).into();
        json!({
            "name": format!("{}.each.bench.portcullis.dev", name(policy)),
            "clientConfig": {"service": service, "caBundle": authority},
            "rules": spec["rules"], "matchPolicy": "Equivalent",
            "namespaceSelector": spec["namespaceSelector"], "objectSelector": spec["objectSelector"],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": TIMEOUT,
        })
    };
    let configuration = |(number, policies): (usize, &[Value])| {
        let entries: Vec<Value> = policies.iter().map(entry).collect();
        json!({
            "apiVersion": VERSION, "kind": "ValidatingWebhookConfiguration",
            "metadata": metadata(&format!("slope-each-{number}")), "webhooks": entries,
        })
    };
    policies.chunks(TOGETHER).enumerate().map(configuration).collect()
}

/// The parts of an existing webhook configuration from which it can be created again.
pub(super) fn once_more(found: &Value) -> Value {
    let metadata = &found["metadata"];
    json!({
        "apiVersion": VERSION, "kind": "ValidatingWebhookConfiguration",
        "metadata": {
            "name": metadata["name"], "labels": metadata["labels"], "ownerReferences": metadata["ownerReferences"],
        },
        "webhooks": found["webhooks"],
    })
}

fn name(policy: &Value) -> &str {
    policy["metadata"]["name"].as_str().unwrap_or_default()
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "labels": {LABEL.0: LABEL.1}})
}

/// The module's check in CEL: no container of any kind is privileged.
fn expression() -> String {
    let context = "c.securityContext";
    let is_ordinary = format!("c, !has({context}) || !has({context}.privileged) || !{context}.privileged");
    let optional = |sort: &str| format!("(!has(object.spec.{sort}) || object.spec.{sort}.all({is_ordinary}))");
    let (init, ephemeral) = (optional("initContainers"), optional("ephemeralContainers"));
    format!("object.spec.containers.all({is_ordinary}) && {init} && {ephemeral}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str) -> Value {
        json!({
            "metadata": {"name": name},
            "spec": {
                "policyServer": "slope", "module": "https://nowhere.invalid/none.wasm",
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
                "namespaceSelector": {"matchLabels": {"a": "b"}},
                "objectSelector": {"matchExpressions": [{"key": "slope-part-0", "operator": "DoesNotExist"}]},
            },
        })
    }

    #[test]
    fn a_twin_in_cel_has_the_match_part_of_its_policy() {
        let (policy, twin) = (policy("slope-3"), admission_policy(&policy("slope-3")));
        let constraints = &twin["spec"]["matchConstraints"];
        assert_eq!(constraints["resourceRules"], policy["spec"]["rules"]);
        assert_eq!(constraints["namespaceSelector"], policy["spec"]["namespaceSelector"]);
        assert_eq!(constraints["objectSelector"], policy["spec"]["objectSelector"]);
        assert_eq!(twin["metadata"], json!({"name": "slope-3", "labels": {"portcullis-bench": "slope"}}));
        let binding = binding(&policy);
        assert_eq!(binding["spec"], json!({"policyName": "slope-3", "validationActions": ["Deny"]}));
    }

    #[test]
    fn the_rule_in_cel_looks_at_each_sort_of_containers() {
        let ordinary = "c, !has(c.securityContext) || !has(c.securityContext.privileged) \
                        || !c.securityContext.privileged";
        let expected = format!(
            "object.spec.containers.all({ordinary}) \
             && (!has(object.spec.initContainers) || object.spec.initContainers.all({ordinary})) \
             && (!has(object.spec.ephemeralContainers) || object.spec.ephemeralContainers.all({ordinary}))"
        );
        assert_eq!(expression(), expected);
    }

    #[test]
    fn webhooks_by_hand_have_a_path_each_and_share_configurations() {
        let policies: Vec<Value> = (0..101).map(|number| policy(&format!("slope-{number}"))).collect();
        let made = webhooks(&policies, &json!({"namespace": "slope", "name": "server", "port": 443}), &json!("UEVN"));
        let counts: Vec<_> = made.iter().map(|one| one["webhooks"].as_array().map_or(0, Vec::len)).collect();
        assert_eq!(counts, [100, 1]);
        let last = &made[1]["webhooks"][0];
        assert_eq!(last["name"], "slope-100.each.bench.portcullis.dev");
        assert_eq!(
            last["clientConfig"],
            json!({
                "service": {"namespace": "slope", "name": "server", "port": 443, "path": "/validate/cluster/slope-100"},
                "caBundle": "UEVN",
            })
        );
        assert_eq!(last["objectSelector"], policies[100]["spec"]["objectSelector"]);
        assert_ne!(made[0]["metadata"]["name"], made[1]["metadata"]["name"]);
    }

    #[test]
    fn a_configuration_made_once_more_has_no_traces_of_the_first() {
        let found = json!({
            "metadata": {
                "name": "portcullis-slope-1", "labels": {"a": "b"}, "uid": "u", "resourceVersion": "7",
                "ownerReferences": [{"uid": "o"}],
            },
            "webhooks": [{"name": "one"}],
        });
        let made = once_more(&found);
        assert_eq!(
            made["metadata"],
            json!({"name": "portcullis-slope-1", "labels": {"a": "b"}, "ownerReferences": [{"uid": "o"}]})
        );
        assert_eq!(made["webhooks"], found["webhooks"]);
    }
}
