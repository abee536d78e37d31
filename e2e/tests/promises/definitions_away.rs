//! The definition of policies is removed and installed again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_e2e::{Api, Cluster, IN_TIME, Installation, InstallationOptions, Options, Program, eventually};
use serde_json::{Value, json};

use crate::away::PROGRAMS;
use crate::reads::try_config_map;
use crate::{assert_denied, try_pod};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The definition of policies of the whole cluster.
const NAME: &str = "clusterpolicies.policies.portcullis.dev";

/// The definition without what the API server adds.
fn definition(api: &Api) -> Option<Value> {
    let found = api.find(&format!("{DEFINITIONS}/{NAME}"))?;
    Some(json!({
        "apiVersion": found["apiVersion"], "kind": found["kind"], "metadata": { "name": NAME }, "spec": found["spec"],
    }))
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r12_policies_end_with_their_definition_while_others_answer_and_both_answer_once_it_is_back() {
    // The test needs a cluster of its own, because it removes a definition.
    let cluster = Cluster::start(&Options::default()).unwrap();
    let installation = Installation::start(&cluster, InstallationOptions::named("defined")).with(2);
    let shop = installation.make_namespace("shop");
    let api = installation.api();
    let controller = installation.pods().into_iter().find(|pod| pod.has(Program::Controller)).unwrap();
    let wide = installation.cluster_policy("defined-wide").on(&["configmaps"]).denying("by the cluster's");
    let narrow = installation.policy(&shop, "narrow").denying("by the namespace's");
    installation.apply_ready(&[wide.clone(), narrow.clone()]);
    assert!(!installation.create_config_map(&shop, "before").is_ok());

    // The policy of the namespace, whose definition stays, denies every pod meanwhile.
    let found = definition(&api).unwrap();
    let away_and_back = || {
        api.delete(&format!("{DEFINITIONS}/{NAME}"), None).unwrap().expect("the end of the definition");
        eventually("the end of the definition", || api.find(&format!("{DEFINITIONS}/{NAME}")).is_none().then_some(()));
        // Removing a definition removes its policies, so no webhook may be left that calls them.
        eventually("the end of its webhook", || (installation.webhooks().len() == 1).then_some(()));
        assert!(installation.create_config_map(&shop, "meanwhile").is_ok());
        // A controller that starts without the definition waits for it.
        controller.kill(Program::Controller);
        eventually("a restart", || (controller.restarts(Program::Controller) > 0).then_some(()));
        thread::sleep(Duration::from_secs(5));
        for pod in installation.pods() {
            for program in PROGRAMS.into_iter().chain([Program::Controller]).filter(|program| pod.has(*program)) {
                eventually("readiness", || pod.probe(program, "/readyz").filter(|(code, _)| *code == 200));
            }
        }
        api.create(DEFINITIONS, &found).unwrap().expect("the definition");
        eventually("the policy again", || installation.apply(&wide).is_ok().then_some(()));
        installation.wait_for(&wide, "Ready", "True");
    };
    let (done, mut turn) = (AtomicBool::new(false), 0);
    let heard = thread::scope(|scope| {
        let acting = scope.spawn(away_and_back);
        let heard = installation.listener().hear(IN_TIME, &done, || {
            turn += 1;
            if turn % 2 == 0 {
                let (code, message) = try_pod(&installation, &shop);
                assert!(code == 403 && message.contains("narrow: by the namespace's"), "{code} {message}");
            } else {
                // A ConfigMap is denied or not, by whether its policy is there. Its webhook never calls for one that is gone.
                let (code, message) = try_config_map(&installation, &shop, "asked");
                let is_denied = code == 403 && message.contains("defined-wide: by the cluster's");
                assert!(code == 201 || is_denied, "{code} {message}");
            }
            done.store(acting.is_finished(), Ordering::SeqCst);
        });
        acting.join().expect("the definition went and came back");
        heard
    });
    heard.in_time();
    assert_denied(&installation.create_config_map(&shop, "after"), "policy cluster/defined-wide: by the cluster's");
    installation.wait_for(&narrow, "Ready", "True");
}
