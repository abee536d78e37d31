//! Row W09: two API servers, one of which hangs or is stopped.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_e2e::{
    Cluster, ClusterGuard, Component, ExclusiveCluster, Installation, Options, Policy, condition, eventually,
    eventually_within, never,
};
use serde_json::{Value, json};

use crate::{Serving, hurried, installation, serving};

/// How long a policy must not become Ready.
const LOOK: Duration = Duration::from_secs(8);
/// How long its webhook must have existed in that time.
const PROOF: Duration = Duration::from_secs(2);
/// How long the policy is watched if its webhook is not created.
const LONGEST: Duration = Duration::from_secs(60);
/// The number of attempts: on a busy machine, an API server that hangs may be taken out of the list before there is a webhook.
const ROUNDS: usize = 5;

/// A cluster with two API servers, both of which are in the list of published addresses.
fn cluster() -> ClusterGuard<'static> {
    static CLUSTER: ExclusiveCluster = ExclusiveCluster::new(|| Options { api_servers: 2, ..Options::default() });
    let cluster = CLUSTER.lock();
    // The second one may have hung in the test before.
    eventually("both API servers in the list", || are_both_published(&cluster).then_some(()));
    cluster
}

/// Whether both API servers are in the list of published addresses, which Ready is about. One that hangs is taken out of the list by the
/// other after at least five seconds, and comes back only when it runs again.
fn are_both_published(cluster: &Cluster) -> bool {
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let slice = cluster.api().at(1).find(slice).expect("the addresses of the API servers");
    let endpoints = slice["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    endpoints.iter().filter_map(|endpoint| endpoint["addresses"].as_array()).map(Vec::len).sum::<usize>() == 2
}

fn is_ready(object: &Value) -> bool {
    condition(object, "Ready").is_some_and(|ready| {
        ready["status"] == "True" && ready["observedGeneration"] == object["metadata"]["generation"]
    })
}

/// Asserts that a policy is not Ready while the second API server hangs. Returns false if that proves nothing, because the API server was
/// taken out of the list before the policy's webhook had existed for a while.
fn stays_unready(installation: &Installation<'_>, policy: &Policy) -> bool {
    let (start, mut registered) = (Instant::now(), None);
    loop {
        let object = installation.api().at(1).find(&policy.path()).expect("the policy");
        // The list is read after the policy: an API server that is still in it was in it when the policy became Ready.
        let are_both = are_both_published(installation.cluster());
        assert!(
            !(are_both && is_ready(&object)),
            "it is Ready, and one of two API servers hangs: {:#}",
            object["status"]
        );
        if registered.is_none() && !installation.webhooks().is_empty() {
            registered = Some(Instant::now());
        }
        let is_proof = registered.is_some_and(|since: Instant| since.elapsed() > PROOF);
        let is_over = start.elapsed() > if is_proof { LOOK } else { LONGEST };
        if is_over || !are_both {
            return is_proof;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w09_ready_means_that_both_api_servers_call() {
    Cluster::require_own_network();
    let cluster = cluster();
    let installation = installation(&cluster, "both", 1, hurried());
    let namespace = installation.make_namespace("shop");
    // Its calls go through the first API server, which always answers.
    let canary = installation.own_canary();
    let is_proven = (0..ROUNDS).any(|round| {
        let text = format!("not in round {round}");
        // The condition differs in each round, so that each policy has a webhook of its own.
        let conditions = json!([{ "name": "round", "expression": format!("'{round}' != ''") }]);
        let policy = installation.cluster_policy(&format!("both-{round}")).on(&["configmaps"]).denying(&text);
        let policy = policy.field("matchConditions", conditions);
        let is_denied = |server| installation.api().at(server).denies_configmap(&namespace, &text).expect("an answer");
        for server in [1, 2] {
            assert!(!is_denied(server), "there is no policy yet");
        }
        eventually("both API servers in the list", || are_both_published(&cluster).then_some(()));

        // While the second API server hangs, it is unknown whether it calls webhooks, whatever the first one does.
        cluster.pause(Component::ApiServer(2));
        installation.apply(&policy).expect("the policy");
        let is_proof = stays_unready(&installation, &policy);
        cluster.resume(Component::ApiServer(2));
        let are_both = Cell::new(true);
        installation.wait_for_object(&policy, "Ready", |object| {
            let is_ready = is_ready(object);
            are_both.set(are_both.get() && (is_ready || are_both_published(&cluster)));
            is_ready
        });
        assert!(is_denied(1), "Ready was said, and the first API server does not call");
        if is_proof && are_both.get() {
            assert!(is_denied(2), "Ready was said, and the second API server does not call");
            return true;
        }
        installation.api().delete(&policy.path(), None).unwrap().expect("the deletion");
        eventually("the end of the policy", || installation.object(&policy).is_none().then_some(()));
        eventually("the end of its webhook", || installation.webhooks().is_empty().then_some(()));
        eventually("silence of both API servers", || (!is_denied(1) && !is_denied(2)).then_some(()));
        false
    });
    assert!(
        is_proven,
        "in none of {ROUNDS} rounds the second API server hung for long enough and was still in the list"
    );
    canary.end();
    drop(installation);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w09_an_api_server_that_is_gone_takes_no_status_away_and_is_not_waited_for() {
    Cluster::require_own_network();
    let cluster = cluster();
    let Serving { installation, namespace, policy, text } = serving(&cluster, "gone", 1, hurried());
    let canary = installation.own_canary();

    cluster.stop(Component::ApiServer(2));
    never(Duration::from_secs(8), "a status that is worse", || {
        let object = installation.api().at(1).find(&policy.path())?;
        let ready = condition(&object, "Ready").cloned()?;
        (ready["reason"] != "Active").then_some(ready)
    });
    // Another match group, whose webhook has to be proven only at the API server that is left.
    let second = installation.cluster_policy("gone-second").on(&["secrets"]).denying("no secrets");
    installation.apply(&second).expect("the policy");
    installation.wait_for(&second, "Ready", "True");

    cluster.start_again(Component::ApiServer(2));
    eventually_within(Duration::from_secs(300), "a denial by the one that came back", || {
        installation.api().at(2).denies_configmap(&namespace, &text)?.then_some(())
    });
    installation.wait_for(&policy, "Ready", "True");
    canary.end();
    drop(installation);
}
