//! Admission requests.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

/// A builder of an AdmissionReview. Its default is the creation of a pod of about 6 KB, the size of a real one.
#[derive(Debug, Clone)]
pub struct Review(Value);

impl Review {
    /// A user creates the pod `web` in the namespace `default`. Each review has a uid of its own.
    pub fn pod() -> Self {
        Self::of(realistic_pod())
    }

    /// A user creates the smallest pod, which is what the mutating guests of `guests/wat` expect.
    pub fn small_pod() -> Self {
        Self::of(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"containers": [{"name": "web", "image": "ghcr.io/team/web:1.0"}]},
        }))
    }

    fn of(object: Value) -> Self {
        let uid = new_uid();
        let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
        let resource = json!({"group": "", "version": "v1", "resource": "pods"});
        Self(json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": uid, "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
                "name": "web", "namespace": "default", "operation": "CREATE",
                "userInfo": {"username": "alice", "uid": "1000", "groups": ["developers", "system:authenticated"]},
                "object": object, "oldObject": null, "dryRun": false,
                "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
            },
        }))
    }

    /// Sets the value at a JSON pointer below `request`, for instance `/object/metadata/name`.
    ///
    /// # Panics
    /// When the parent of that place does not exist.
    #[must_use]
    pub fn with(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer begins with a slash");
        let parent = format!("/request{parent}");
        let place = self.0.pointer_mut(&parent).unwrap_or_else(|| panic!("no {parent} in the review"));
        place[key] = value.into();
        self
    }

    /// Sets a label of the object.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["request"]["object"]["metadata"]["labels"][key] = value.into();
        self
    }

    /// Makes the first container privileged.
    #[must_use]
    pub fn privileged(mut self) -> Self {
        self.0["request"]["object"]["spec"]["containers"][0]["securityContext"]["privileged"] = true.into();
        self
    }

    /// Makes it a deletion: it has an old object and no new one.
    #[must_use]
    pub fn deleting(mut self) -> Self {
        let request = &mut self.0["request"];
        request["operation"] = "DELETE".into();
        request["oldObject"] = request["object"].take();
        self
    }

    /// Its uid.
    pub fn uid(&self) -> &str {
        self.0["request"]["uid"].as_str().unwrap_or_default()
    }

    /// The object.
    pub fn object(&self) -> &Value {
        &self.0["request"]["object"]
    }

    /// The whole document.
    pub fn json(&self) -> &Value {
        &self.0
    }

    /// The body of a request.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.to_string().into_bytes()
    }
}

/// The body of a review that is sent many times, as another review of the same object each time: only its uid changes.
pub(crate) struct RenewedBody {
    bytes: Vec<u8>,
    uid: String,
    /// Where the uid begins.
    place: usize,
}

impl RenewedBody {
    pub(crate) fn new(review: &Review) -> Self {
        let (body, uid) = (review.0.to_string(), review.uid().to_owned());
        let place = body.find(&uid).expect("a review has its uid");
        Self { bytes: body.into_bytes(), uid, place }
    }

    /// Makes it another review.
    pub(crate) fn renew(&mut self) {
        self.uid = new_uid();
        self.bytes[self.place..][..self.uid.len()].copy_from_slice(self.uid.as_bytes());
    }

    pub(crate) fn uid(&self) -> &str {
        &self.uid
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes.clone()
    }
}

impl Default for Review {
    fn default() -> Self {
        Self::pod()
    }
}

fn new_uid() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("00000000-0000-4000-8000-{:012x}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn realistic_pod() -> Value {
    let env: Vec<Value> = (0..24)
        .map(|n| {
            json!({"name": format!("SETTING_{n}"),
                   "valueFrom": {"configMapKeyRef": {"name": "web-settings", "key": format!("setting-{n}")}}})
        })
        .collect();
    let probe = |path: &str| {
        json!({"httpGet": {"path": path, "port": "http", "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 1,
               "successThreshold": 1, "failureThreshold": 3})
    };
    let container = |name: &str| {
        json!({
            "name": name, "image": format!("ghcr.io/team/{name}:1.0"), "imagePullPolicy": "IfNotPresent",
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}], "env": env,
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
            "securityContext": {"allowPrivilegeEscalation": false, "runAsNonRoot": true,
                                "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}},
            "livenessProbe": probe("/livez"), "readinessProbe": probe("/readyz"),
            "volumeMounts": [{"name": "settings", "mountPath": "/etc/web", "readOnly": true}],
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web", "namespace": "default", "generateName": "web-",
            "labels": {"app.kubernetes.io/name": "web", "app.kubernetes.io/version": "1.0", "team": "storefront"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
        },
        "spec": {
            "containers": [container("web"), container("proxy")],
            "volumes": [{"name": "settings", "configMap": {"name": "web-settings", "defaultMode": 420}}],
            "serviceAccountName": "web", "automountServiceAccountToken": false, "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_size_of_a_real_one() {
        let bytes = Review::pod().bytes().len();
        assert!((5_000..8_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn changes_land_below_the_request() {
        let review = Review::pod().with("/object/metadata/name", "other").privileged().deleting();
        assert_eq!(review.json()["request"]["oldObject"]["metadata"]["name"], "other");
        assert_eq!(
            review.json()["request"]["oldObject"]["spec"]["containers"][0]["securityContext"]["privileged"],
            true
        );
        assert!(review.object().is_null());
    }

    #[test]
    fn a_renewed_body_differs_in_its_uid_alone() {
        let review = Review::pod();
        let mut body = RenewedBody::new(&review);
        assert_eq!(body.bytes(), review.bytes());
        body.renew();
        assert_ne!(body.uid(), review.uid());
        let mut renewed: Value = serde_json::from_slice(&body.bytes()).unwrap();
        assert_eq!(renewed["request"]["uid"], body.uid());
        renewed["request"]["uid"] = review.uid().into();
        assert_eq!(&renewed, review.json());
    }
}
