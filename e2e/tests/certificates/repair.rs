//! Row W03: a webhook with a wrong CA bundle.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_e2e::{Installation, Program, Reply, eventually};
use serde_json::json;

use crate::secrets::{Secrets, bundles};
use crate::{Serving, cluster, hurried, serving};

/// Gives every entry of the installation's webhooks this `caBundle`.
fn spoil(installation: &Installation<'_>, bundle: &str) {
    for webhook in installation.webhooks() {
        let name = webhook["metadata"]["name"].as_str().unwrap();
        let mut entries = webhook["webhooks"].clone();
        for entry in entries.as_array_mut().unwrap() {
            entry["clientConfig"]["caBundle"] = STANDARD.encode(bundle).into();
        }
        let path = format!("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{name}");
        installation.api().patch(&path, &json!({ "webhooks": entries })).unwrap().expect("a spoiled webhook");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w03_a_wrong_bundle_is_repaired() {
    let Serving { installation, namespace, policy, text } = serving(cluster(), "spoiled", 1, hurried());
    // Its own webhook is not spoiled.
    let canary = installation.own_canary();
    let authority = Secrets::of(&installation).authority;
    let create = || -> Reply {
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "one" } });
        installation.api().create(&format!("/api/v1/namespaces/{namespace}/configmaps"), &object).unwrap()
    };
    let says = |reply: &Reply, words: &str| reply.body["message"].as_str().is_some_and(|said| said.contains(words));
    assert!(says(&create(), &text));

    let other = rcgen::generate_simple_self_signed(vec!["nobody".to_owned()]).unwrap().cert.pem();
    let repaired = || {
        eventually("the right bundle", || {
            bundles(&installation).iter().all(|bundle| *bundle == authority).then_some(())
        });
        eventually("the policy's own denial", || says(&create(), &text).then_some(()));
        installation.wait_for(&policy, "Ready", "True");
    };

    spoil(&installation, &other);
    repaired();
    eventually("an event", || installation.events(&policy, "WebhookRepaired").pop());

    // Until it is repaired, requests are rejected by the failurePolicy, which is Fail.
    let controller = installation.pods()[0].clone();
    for wrong in [other.as_str(), ""] {
        controller.stop(Program::Controller);
        spoil(&installation, wrong);
        eventually("a call that fails", || {
            let reply = create();
            assert!(!reply.is_ok(), "nothing passes: {reply:?}");
            says(&reply, "failed calling webhook").then_some(())
        });
        controller.start(Program::Controller);
        repaired();
    }
    canary.end();
}
