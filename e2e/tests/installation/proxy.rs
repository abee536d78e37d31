//! A proxy forwards everything, except where a test gives it rules.

use std::time::Duration;

use portcullis_e2e::{Proxy, Rule, eventually, eventually_within};
use serde_json::json;

use crate::cluster;

#[test]
#[ignore = "starts a cluster"]
fn a_proxy_passes_on_and_does_what_rules_say() {
    let cluster = cluster();
    let proxy = Proxy::start(cluster);
    let server = format!("https://{}", proxy.address());
    cluster.kubectl(["create", "namespace", "proxied"]).expect("a namespace");
    cluster.kubectl(["create", "serviceaccount", "caller", "--namespace=proxied"]).expect("an account");
    let bind = ["create", "clusterrolebinding", "proxied", "--clusterrole=edit", "--serviceaccount=proxied:caller"];
    cluster.kubectl(bind).expect("rights");
    let token = cluster.token_for_pod("proxied", "caller", "caller-1");
    let kubeconfig = cluster.kubeconfig_for(&token);
    let kubectl = |limit: u64, args: &[&str]| {
        let all = args.iter().copied().chain(["--namespace=proxied", "--server", &server]);
        cluster.kubectl_within(Duration::from_secs(limit), &kubeconfig, all, "")
    };

    kubectl(60, &["create", "configmap", "one"]).expect("what is passed on");
    proxy.rule(Rule::on("POST", "/configmaps").times(1).answer(403, "not through here"));
    let refused = kubectl(60, &["create", "configmap", "two"]);
    assert!(refused.stderr.contains("not through here"), "{refused:?}");
    kubectl(60, &["create", "configmap", "two"]).expect("what is passed on again");
    assert_eq!(
        proxy.requests_of("POST", "/configmaps").iter().map(|one| one.status).collect::<Vec<_>>(),
        [Some(201), Some(403), Some(201)]
    );

    // The watch gets real events, then an injected one, and then its end.
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| kubectl(60, &["get", "configmaps", "--watch-only", "--output=name"]));
        eventually("the watch", || (proxy.watches("/configmaps") == 1).then_some(()));
        kubectl(60, &["create", "configmap", "three"]).expect("another");
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "nobody", "namespace": "proxied" } });
        assert_eq!(proxy.inject("/configmaps", &json!({ "type": "ADDED", "object": object })), 1);
        std::thread::sleep(Duration::from_secs(5));
        assert_eq!(proxy.cut("/configmaps"), 1);
        let seen = watching.join().unwrap();
        assert!(seen.stdout.contains("configmap/three\n") && seen.stdout.contains("configmap/nobody\n"), "{seen:?}");
    });

    proxy.rule(Rule::on("GET", "/configmaps/one").hang());
    let hung = kubectl(2, &["get", "configmap", "one"]);
    assert_eq!(hung.code, None, "{hung:?}");
    proxy.clear();
    proxy.close();
    assert!(!kubectl(30, &["get", "configmap", "one"]).is_ok());
    proxy.open();
    eventually_within(Duration::from_secs(30), "an open proxy", || {
        kubectl(30, &["get", "configmap", "one"]).is_ok().then_some(())
    });
}
