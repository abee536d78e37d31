//! Forbids privileged containers.
//!
//! Looks at containers, init containers and ephemeral containers of pods, and of the pod
//! templates inside the workload kinds, so that a Deployment is refused when it is applied
//! and not when its pods fail to appear. Has no settings.

use std::borrow::Cow;
use std::collections::BTreeMap;

use guest_kit::{Kind, Verdict};
use kubewarden_policy_sdk::settings::Validatable;
use kubewarden_policy_sdk::wapc_guest::CallResult;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Called by the host after it has made an instance.
#[unsafe(no_mangle)]
pub extern "C" fn wapc_init() {
    guest_kit::register::<Settings>(validate);
}

/// The policy has no settings. Any that are set are refused, as their author expects them to act.
#[derive(Deserialize)]
struct Settings(BTreeMap<String, IgnoredAny>);

impl Validatable for Settings {
    fn validate(&self) -> Result<(), String> {
        if self.0.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
        Err(format!("no-privileged has no settings, remove {}", names.join(", ")))
    }
}

fn validate(payload: &[u8]) -> CallResult {
    judge(payload)?.into_reply()
}

/// Parses the payload as that of a workload. If that fails, looks at the kind alone: an object
/// of another kind may use the same field names for something else, and is accepted.
fn judge(payload: &[u8]) -> serde_json::Result<Verdict> {
    match serde_json::from_slice::<Payload<Request>>(payload) {
        Ok(Payload { request }) if is_workload(&request.kind) => Ok(decide(&request)),
        Ok(_) => Ok(Verdict::Accept),
        Err(error) => match serde_json::from_slice::<Payload<KindOnly>>(payload) {
            Ok(Payload { request }) if !is_workload(&request.kind) => Ok(Verdict::Accept),
            _ => Err(error),
        },
    }
}

/// Names every privileged container of the object. A DELETE carries no object.
fn decide(request: &Request) -> Verdict {
    let mut privileged = Vec::new();
    if let Some(object) = &request.object {
        object.collect_privileged(&mut privileged);
    }
    if privileged.is_empty() {
        return Verdict::Accept;
    }
    Verdict::Deny(format!("privileged containers are not allowed: {}", privileged.join(", ")))
}

fn is_workload(kind: &Kind) -> bool {
    matches!(
        (kind.group.as_str(), kind.kind.as_str()),
        ("", "Pod" | "PodTemplate" | "ReplicationController")
            | ("apps", "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet")
            | ("batch", "CronJob" | "Job")
    )
}

#[derive(Deserialize)]
struct Payload<R> {
    request: R,
}

#[derive(Deserialize)]
struct KindOnly {
    kind: Kind,
}

#[derive(Deserialize)]
struct Request<'a> {
    kind: Kind,
    #[serde(borrow)]
    object: Option<Part<'a>>,
}

/// An object of any workload kind, or a part of one on the way to its containers: `spec`,
/// `spec.template.spec`, `spec.jobTemplate.spec.template.spec`, or `template.spec` are all
/// steps from one such part to the next. Anything may be absent, or null.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    #[serde(borrow)]
    spec: Option<Box<Part<'a>>>,
    #[serde(borrow)]
    template: Option<Box<Part<'a>>>,
    #[serde(borrow)]
    job_template: Option<Box<Part<'a>>>,
    #[serde(borrow)]
    containers: Option<Vec<Container<'a>>>,
    #[serde(borrow)]
    init_containers: Option<Vec<Container<'a>>>,
    #[serde(borrow)]
    ephemeral_containers: Option<Vec<Container<'a>>>,
}

impl Part<'_> {
    /// Adds the privileged containers of this part and of those below, each with its type.
    fn collect_privileged(&self, found: &mut Vec<String>) {
        for (sort, containers) in [
            ("container", &self.containers),
            ("init container", &self.init_containers),
            ("ephemeral container", &self.ephemeral_containers),
        ] {
            let privileged = containers.iter().flatten().filter(|container| container.is_privileged());
            found.extend(privileged.map(|container| format!("{sort} {}", container.name)));
        }
        for part in [&self.spec, &self.template, &self.job_template].into_iter().flatten() {
            part.collect_privileged(found);
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    security_context: Option<SecurityContext>,
}

impl Container<'_> {
    fn is_privileged(&self) -> bool {
        self.security_context.as_ref().is_some_and(|context| context.privileged == Some(true))
    }
}

#[derive(Deserialize)]
struct SecurityContext {
    privileged: Option<bool>,
}

#[cfg(test)]
mod tests {
    use guest_kit::check_settings;
    use serde_json::{Value, json};

    use super::*;

    fn judge_object(group: &str, kind: &str, object: Value) -> Verdict {
        let payload = json!({
            "request": {"uid": "1", "kind": {"group": group, "version": "v1", "kind": kind}, "object": object},
            "settings": {},
        });
        judge(payload.to_string().as_bytes()).unwrap()
    }

    fn denied(containers: &str) -> Verdict {
        Verdict::Deny(format!("privileged containers are not allowed: {containers}"))
    }

    fn privileged_pod_spec() -> Value {
        json!({"containers": [{"name": "app", "securityContext": {"privileged": true}}]})
    }

    #[test]
    fn accepts_a_pod_without_privileged_containers() {
        let pod = json!({"spec": {
            "containers": [
                {"name": "a"},
                {"name": "b", "securityContext": null},
                {"name": "c", "securityContext": {"privileged": false}},
                {"name": "d", "securityContext": {"privileged": null, "runAsUser": 0}},
            ],
            "initContainers": null,
        }});
        assert_eq!(judge_object("", "Pod", pod), Verdict::Accept);
    }

    #[test]
    fn names_each_privileged_container_of_a_pod() {
        let privileged = json!({"privileged": true});
        let pod = json!({"spec": {
            "containers": [
                {"name": "app", "securityContext": privileged},
                {"name": "proxy"},
                {"name": "q\u{22}uote", "securityContext": privileged},
            ],
            "initContainers": [{"name": "setup", "securityContext": privileged}],
            "ephemeralContainers": [{"name": "debug", "securityContext": privileged}],
        }});
        assert_eq!(
            judge_object("", "Pod", pod),
            denied("container app, container q\"uote, init container setup, ephemeral container debug"),
        );
    }

    #[test]
    fn looks_into_the_pod_template_of_each_workload_kind() {
        let template = json!({"template": {"spec": privileged_pod_spec()}});
        for (group, kind) in [
            ("", "ReplicationController"),
            ("apps", "DaemonSet"),
            ("apps", "Deployment"),
            ("apps", "ReplicaSet"),
            ("apps", "StatefulSet"),
            ("batch", "Job"),
        ] {
            let object = json!({"spec": template});
            assert_eq!(judge_object(group, kind, object), denied("container app"), "{kind}");
        }
        assert_eq!(judge_object("", "PodTemplate", template.clone()), denied("container app"),);
        assert_eq!(
            judge_object("batch", "CronJob", json!({"spec": {"jobTemplate": {"spec": template}}})),
            denied("container app"),
        );
    }

    #[test]
    fn accepts_a_delete() {
        let payload = json!({
            "request": {"uid": "1", "operation": "DELETE", "kind": {"group": "", "version": "v1", "kind": "Pod"},
                        "oldObject": {"spec": privileged_pod_spec()}},
            "settings": {},
        });
        assert_eq!(judge(payload.to_string().as_bytes()).unwrap(), Verdict::Accept);
    }

    #[test]
    fn leaves_other_kinds_alone_whatever_their_fields_hold() {
        for object in [
            json!({"spec": privileged_pod_spec()}),
            json!({"spec": "text", "template": 7}),
            json!({"spec": {"containers": 3}}),
        ] {
            assert_eq!(judge_object("example.com", "Pod", object), Verdict::Accept);
        }
    }

    #[test]
    fn fails_on_a_pod_that_it_cannot_read() {
        let payload = br#"{"request":{"kind":{"group":"","kind":"Pod"},"object":{"spec":{"containers":3}}}}"#;
        assert!(judge(payload).is_err());
    }

    #[test]
    fn refuses_unknown_settings() {
        assert_eq!(check_settings::<Settings>(b"{}"), Ok(()));
        assert_eq!(
            check_settings::<Settings>(br#"{"allow":["x"],"also":1}"#),
            Err("no-privileged has no settings, remove allow, also".to_owned()),
        );
    }
}
