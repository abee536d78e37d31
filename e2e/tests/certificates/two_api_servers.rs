//! Row W09: two API servers, one of which is late, or gone.

use std::time::Duration;

use portcullis_e2e::{Cluster, Component, Options, condition, eventually_within, never};

use crate::{Serving, denying, hurried, installation, serving};

#[test]
#[ignore = "starts a cluster"]
fn fault_w09_ready_means_that_both_api_servers_call() {
    Cluster::demand_own_network();
    let cluster = Cluster::start(&Options { api_servers: 2, ..Options::default() }).unwrap();
    let installation = installation(&cluster, "both", 1, hurried());
    let namespace = installation.make_namespace("shop");
    let (policy, text) = denying(&installation);
    let is_denied = |server| installation.api().at(server).denies_configmap(&namespace, &text).expect("an answer");
    for server in [1, 2] {
        assert!(!is_denied(server), "there is no policy yet");
    }

    // While the second one hangs it is unknown whether it calls webhooks, whatever the first one does.
    cluster.pause(Component::ApiServer(2));
    installation.apply(&policy).expect("the policy");
    never(Duration::from_secs(8), "a Ready policy", || {
        let object = installation.api().at(1).get(&policy.path()).unwrap_or_default();
        let ready = condition(&object, "Ready").cloned()?;
        (ready["status"] == "True").then_some(ready)
    });
    cluster.resume(Component::ApiServer(2));
    installation.wait_for(&policy, "Ready", "True");
    for server in [1, 2] {
        assert!(is_denied(server), "Ready was said, and API server {server} does not call");
    }
    drop(installation);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w09_an_api_server_that_is_gone_takes_no_status_away_and_is_not_waited_for() {
    Cluster::demand_own_network();
    let cluster = Cluster::start(&Options { api_servers: 2, ..Options::default() }).unwrap();
    let Serving { installation, namespace, policy, text } = serving(&cluster, "gone", 1, hurried());

    cluster.stop(Component::ApiServer(2));
    never(Duration::from_secs(8), "a status that is worse", || {
        let object = installation.api().at(1).get(&policy.path())?;
        let ready = condition(&object, "Ready").cloned()?;
        (ready["reason"] != "Active").then_some(ready)
    });
    // Another match group, whose webhook has to be proven at the API servers that there are.
    let second = installation.cluster_policy("gone-second").on(&["secrets"]).denying("no secrets");
    installation.apply(&second).expect("the policy");
    installation.wait_for(&second, "Ready", "True");

    cluster.start_again(Component::ApiServer(2));
    eventually_within(Duration::from_secs(180), "a denial by the one that came back", || {
        installation.api().at(2).denies_configmap(&namespace, &text)?.then_some(())
    });
    installation.wait_for(&policy, "Ready", "True");
    drop(installation);
}
