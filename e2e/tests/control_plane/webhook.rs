//! The API server calls a webhook at a process that stands in for a pod, by the name of its service.

use portcullis_e2e::{ReviewServer, StandIn, eventually};
use serde_json::json;

use crate::{cluster, is_routed};

/// A namespace, with a service account and a service.
const OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: gate }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: guard, namespace: gate }
---
apiVersion: v1
kind: Service
metadata: { name: guard, namespace: gate }
spec: { selector: { app: guard }, ports: [{ port: 443, targetPort: 8443 }] }
";

#[test]
#[ignore = "starts a cluster"]
fn a_stand_in_denies_through_the_api_server() {
    let cluster = cluster();
    if !is_routed(cluster) {
        return;
    }
    let address = cluster.pod_address();
    let server =
        ReviewServer::start((address, 8443).into(), "guard.gate.svc", |_, _| Err("the gate is closed".to_owned()));

    cluster.apply(OBJECTS).expect("a service");
    let labels = [("app", "guard")];
    let pod = StandIn {
        namespace: "gate",
        name: "guard-1",
        service_account: "guard",
        labels: &labels,
        address: Some(address),
    };
    cluster.stand_in(&pod);
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "gate" },
        "webhooks": [{
            "name": "gate.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"] }],
            // Other tests use the cluster too, also when this one has ended.
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "gate" } },
            "clientConfig": {
                "service": { "namespace": "gate", "name": "guard", "path": "/" },
                "caBundle": server.ca_bundle(),
            },
        }],
    });
    cluster.apply(&webhook.to_string()).expect("a webhook");

    eventually("a denied ConfigMap", || {
        let create = cluster.kubectl(["create", "configmap", "one", "--namespace=gate", "--dry-run=server"]);
        let denied = "admission webhook \"gate.example.com\" denied the request: the gate is closed";
        (!create.is_ok() && create.stderr.contains(denied)).then_some(())
    });
    cluster.kubectl(["create", "configmap", "one", "--namespace=default"]).expect("where the webhook has no say");
}
