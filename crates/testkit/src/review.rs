//! The review that benchmarks send: the creation of a pod of about 6 KB with three containers, as an API server sends it.

use serde_json::{Value, json};

/// The bytes of an AdmissionReview. `privileged` decides whether a policy against privileged containers denies it.
pub fn pod_review(privileged: bool) -> Vec<u8> {
    let container = |name: &str, privileged: bool| {
        let environment: Vec<Value> = (0..12)
            .map(|i| json!({"name": format!("SETTING_{i}"), "value": format!("value-of-setting-{i}-of-{name}")}))
            .collect();
        json!({
            "name": name, "image": format!("registry.example.com/team/{name}:v1.2.3"), "imagePullPolicy": "IfNotPresent",
            "args": ["--listen=:8080", "--log-level=info"], "env": environment,
            "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
            "resources": {"limits": {"memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
            "livenessProbe": {"httpGet": {"path": "/livez", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 1},
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10},
            "securityContext": {"privileged": privileged, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "volumeMounts": [{"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "token", "readOnly": true}],
        })
    };
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "shop-7c9d8f6b5d-abcde", "namespace": "team-a", "generateName": "shop-7c9d8f6b5d-",
            "labels": {"app": "shop", "team": "a", "pod-template-hash": "7c9d8f6b5d"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "shop-7c9d8f6b5d", "controller": true,
                                 "uid": "6b0b3e4e-6f9e-4d0e-9b61-1d7f0a7fbb1e", "blockOwnerDeletion": true}],
        },
        "spec": {
            "containers": [container("front", false), container("back", privileged), container("sidecar", false)],
            "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {},
            "serviceAccountName": "shop", "terminationGracePeriodSeconds": 30,
            "tolerations": [{"effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}],
            "volumes": [{"name": "token", "projected": {"defaultMode": 420, "sources": [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}]}}],
        },
    });
    let review = json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"}, "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "shop-7c9d8f6b5d-abcde", "namespace": "team-a", "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller", "uid": "f7b1b6f0-1f3b-4d0e-9b61-1d7f0a7fbb1e",
                         "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"]},
            "object": object, "oldObject": null, "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    });
    review.to_string().into_bytes()
}
