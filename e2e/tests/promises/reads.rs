//! What the tests of policies that read objects of the cluster share.

use std::sync::atomic::{AtomicUsize, Ordering};

use portcullis_e2e::{Installation, POLICY_SERVER_ACCOUNT, Policy, condition, eventually, rego};
use serde_json::{Value, json};

/// The calls that must be refused after the first one.
const CALLS: usize = 20;

/// The kind that most of these policies read.
pub(crate) const KIND: &str = "LimitRange";

pub(crate) fn raw(capability: &str, payload: &Value) -> Value {
    let (namespace, operation) = capability.split_once('/').unwrap();
    json!({"raw": {"namespace": namespace, "operation": operation, "payload": payload}})
}

pub(crate) fn kinds(kinds: &[&str]) -> Value {
    kinds.iter().map(|kind| json!({"apiVersion": "v1", "kind": kind})).collect()
}

/// A policy for one namespace that makes these calls and denies. It may read limit ranges.
pub(crate) fn asks(installation: &Installation<'_>, namespace: &str, name: &str, calls: &Value) -> Policy {
    installation
        .cluster_policy(name)
        .example("host-capabilities")
        .field("hostCapabilities", json!(["kubernetes/*"]))
        .field("contextAwareResources", kinds(&[KIND]))
        .field("timeoutEvalSeconds", 20)
        .field("settings", json!({ "calls": calls }))
        .field("namespaceSelector", json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}}))
        .on(&["configmaps"])
}

/// Has a policy of [`asks`] make its calls and deny. Returns the answers that it got, from the audit log: the denial has no room for all of
/// them.
pub(crate) fn answers(installation: &Installation<'_>, namespace: &str, policy: &str) -> Vec<String> {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let name = format!("asked-{}", ASKED.fetch_add(1, Ordering::Relaxed));
    let (code, message) = try_config_map(installation, namespace, &name);
    assert!(code >= 400, "{code} {message}");
    let is_it = |event: &Value| {
        let object = &event["objectRef"];
        event["stage"] == "ResponseComplete" && object["namespace"] == namespace && object["name"] == name.as_str()
    };
    let event = eventually("the request in the audit log", || {
        installation.cluster().audit_events(&name).into_iter().find(is_it)
    });
    let annotations = event["annotations"].as_object().cloned().unwrap_or_default();
    let call = |number: usize| {
        let suffix = format!("/cluster.{policy}.call-{number}");
        annotations.iter().find(|(key, _)| key.ends_with(&suffix))?.1.as_str().map(str::to_owned)
    };
    (0..).map_while(call).collect()
}

/// How many of the answers are this value.
pub(crate) fn count(answers: &[String], value: &Value) -> usize {
    answers.iter().filter(|answer| serde_json::from_str::<Value>(answer).is_ok_and(|answer| answer == *value)).count()
}

/// The type and the metadata of the object at a path, which policies get whatever fields they name.
pub(crate) fn known(installation: &Installation<'_>, path: &str) -> Value {
    let object = installation.api().find(path).expect("an object");
    json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": object["metadata"]})
}

/// The same as in lists, with more fields.
pub(crate) fn listed(installation: &Installation<'_>, path: &str, more: &Value) -> Value {
    let mut known = known(installation, path);
    known["metadata"].as_object_mut().unwrap().shift_remove("managedFields");
    known.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    known
}

/// A list of these objects, of which there must be one.
pub(crate) fn list_of(items: &[Value]) -> Value {
    let kind = format!("{}List", items[0]["kind"].as_str().unwrap());
    json!({"apiVersion": items[0]["apiVersion"], "kind": kind, "metadata": {}, "items": items})
}

/// Waits until the condition `ContextSynced` has this status and reason, and these words in its message.
pub(crate) fn wait_for_context(
    installation: &Installation<'_>,
    policy: &Policy,
    status: &str,
    reason: &str,
    words: &str,
) {
    let what = format!("ContextSynced={status}, {reason}, {words}");
    installation.wait_for_object(policy, &what, |object| has_context(object, status, reason, words));
}

/// Whether the condition `ContextSynced` of the newest generation has this status and reason, and these words in its message.
pub(crate) fn has_context(object: &Value, status: &str, reason: &str, words: &str) -> bool {
    condition(object, "ContextSynced").is_some_and(|found| {
        found["status"] == status
            && found["reason"] == reason
            && found["observedGeneration"] == object["metadata"]["generation"]
            && found["message"].as_str().is_some_and(|message| message.contains(words))
    })
}

pub(crate) fn limit_range(installation: &Installation<'_>, namespace: &str, name: &str, label: &str) {
    let object = json!({
        "apiVersion": "v1", "kind": KIND, "metadata": {"name": name, "labels": {"for": label}},
        "spec": {"limits": [{"type": "Pod", "max": {"cpu": "4"}}]},
    });
    let created = installation.api().create(&format!("/api/v1/namespaces/{namespace}/limitranges"), &object).unwrap();
    assert_eq!(created.code, 201, "{created:?}");
}

/// A policy in Rego for ConfigMaps of one namespace, which gets the objects of these kinds.
pub(crate) fn judges(
    installation: &Installation<'_>,
    namespace: &str,
    name: &str,
    module: &str,
    kinds: &[&str],
) -> Policy {
    installation
        .cluster_policy(name)
        .module_of(rego(module))
        .field("contextAwareResources", self::kinds(kinds))
        .field("timeoutEvalSeconds", 20)
        .field("namespaceSelector", json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}}))
        .on(&["configmaps"])
}

/// Creates a ConfigMap in a dry run. Returns status and message of the answer.
pub(crate) fn try_config_map(installation: &Installation<'_>, namespace: &str, name: &str) -> (u16, String) {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let path = format!("/api/v1/namespaces/{namespace}/configmaps?dryRun=All");
    let reply = installation.api().create(&path, &object).unwrap();
    (reply.code, reply.body["message"].as_str().unwrap_or_default().to_owned())
}

/// Waits until a ConfigMap with this name is refused with `text`, or admitted if `text` is `None`.
pub(crate) fn wait_for_verdict(installation: &Installation<'_>, namespace: &str, name: &str, text: Option<&str>) {
    let mut last = String::new();
    eventually(&format!("{name} in {namespace}: {text:?}"), || {
        let (code, message) = try_config_map(installation, namespace, name);
        if message != last {
            eprintln!("{code} {message}");
        }
        last = message;
        match text {
            Some(text) => last.contains(text),
            None => code == 201,
        }
        .then_some(())
    });
}

/// Asserts that a ConfigMap with this name is refused with `text`, call after call.
pub(crate) fn assert_stays_refused(installation: &Installation<'_>, namespace: &str, name: &str, text: &str) {
    for call in 1..=CALLS {
        let (code, message) = try_config_map(installation, namespace, name);
        assert!(code >= 400 && message.contains(text), "call {call} of {CALLS}: {code} {message}");
    }
}

/// Waits until a ConfigMap with this name is refused with `text`. Until then it must be refused too, whatever the cause.
pub(crate) fn wait_for_refusal(installation: &Installation<'_>, namespace: &str, name: &str, text: &str) {
    eventually(&format!("{name} in {namespace}: {text}"), || {
        let (code, message) = try_config_map(installation, namespace, name);
        assert!(code >= 400, "{name} in {namespace} is admitted before it is refused with {text}");
        message.contains(text).then_some(())
    });
}

/// Waits until a policy is loaded and not Ready, because what it reads has not come, and asserts that nothing is asked of it: it has no
/// webhook, and a ConfigMap is admitted that has the name of its namespace, which the rules would refuse.
pub(crate) fn assert_waits_for_objects(installation: &Installation<'_>, policy: &Policy, namespace: &str) {
    installation.wait_for_object(policy, "a policy that is loaded and waits for what it reads", |object| {
        let says = |kind, status: &str, reason: &str| {
            condition(object, kind).is_some_and(|one| one["status"] == status && one["reason"] == reason)
        };
        says("WebhookConfigured", "False", "WaitingForReplicas")
            && says("Ready", "False", "ContextNotSynced")
            && object["status"]["summary"] == "1/1"
    });
    assert!(!has_webhook(installation, namespace), "{} has a webhook", policy.name());
    let (code, message) = try_config_map(installation, namespace, namespace);
    assert_eq!(code, 201, "a policy without its objects rejects nothing: {message}");
}

/// The annotations about unavailable capabilities that the audit log has for calls of this policy.
pub(crate) fn unavailable(installation: &Installation<'_>, policy: &str) -> Vec<String> {
    let suffix = format!("/cluster.{policy}.capability-unavailable");
    let of_event = |event: Value| {
        let annotations = event["annotations"].as_object()?;
        let (_, text) = annotations.iter().find(|(key, _)| key.ends_with(&suffix))?;
        text.as_str().map(str::to_owned)
    };
    installation.cluster().audit_events(&suffix).into_iter().filter_map(of_event).collect()
}

/// Whether a webhook selects this namespace by its name.
pub(crate) fn has_webhook(installation: &Installation<'_>, namespace: &str) -> bool {
    installation.webhooks().iter().any(|webhook| webhook.to_string().contains(&format!("\"{namespace}\"")))
}

/// Gives the policy servers the right to read a resource.
pub(crate) fn grant(installation: &Installation<'_>, group: &str, resource: &str) {
    let name = format!("{}-reads-{resource}", installation.namespace());
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
        "rules": [{"apiGroups": [group], "resources": [resource], "verbs": ["get", "list", "watch"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{
            "kind": "ServiceAccount", "name": POLICY_SERVER_ACCOUNT, "namespace": installation.namespace(),
        }],
    });
    for object in [role, binding] {
        installation.cluster().apply(&object.to_string()).expect("the right");
    }
}
