//! The API server calls a webhook in a process that stands in for a pod, by the name of its service.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_e2e::{StandIn, eventually};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

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

/// Denies every AdmissionReview with this message.
fn refuse(listener: TcpListener, config: Arc<ServerConfig>, why: &'static str) {
    for socket in listener.incoming().map_while(Result::ok) {
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        let mut stream = BufReader::new(StreamOwned::new(connection, socket));
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        if length == 0 || stream.read_exact(&mut body).is_err() {
            continue;
        }
        let review: Value = serde_json::from_slice(&body).unwrap();
        let answer = json!({
            "apiVersion": review["apiVersion"],
            "kind": review["kind"],
            "response": { "uid": review["request"]["uid"], "allowed": false, "status": { "message": why } },
        })
        .to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}", answer.len());
        write!(stream.get_mut(), "{head}\r\nConnection: close\r\n\r\n{answer}").ok();
        stream.get_mut().conn.send_close_notify();
        stream.get_mut().flush().ok();
    }
}

#[test]
#[ignore = "starts a cluster"]
fn a_stand_in_denies_through_the_api_server() {
    let cluster = cluster();
    if !is_routed(&cluster) {
        return;
    }
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["guard.gate.svc".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let address = cluster.pod_address();
    let listener = TcpListener::bind((address, 8443)).unwrap();
    thread::spawn(move || refuse(listener, Arc::new(config), "the gate is closed"));

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
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "gate" } },
            "clientConfig": {
                "service": { "namespace": "gate", "name": "guard", "path": "/" },
                "caBundle": STANDARD.encode(cert.pem()),
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
