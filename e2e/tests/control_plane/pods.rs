//! Processes that stand in for pods have the rights of the pods, and services find them.

use portcullis_e2e::{StandIn, eventually};

use crate::{cluster, is_routed};

/// A service account that may read ConfigMaps, and the namespace around it, `NAMESPACE`.
const READER: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: NAMESPACE }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: reader, namespace: NAMESPACE }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: { name: reader, namespace: NAMESPACE }
rules: [{ apiGroups: [''], resources: [configmaps], verbs: [get, list] }]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: { name: reader, namespace: NAMESPACE }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader }
subjects: [{ kind: ServiceAccount, name: reader, namespace: NAMESPACE }]
";

/// Creates them in the cluster that the tests share.
fn make_reader(namespace: &str) {
    cluster().apply(&READER.replace("NAMESPACE", namespace)).expect("a service account");
}

#[test]
#[ignore = "starts a cluster"]
fn a_token_has_the_rights_of_its_account_until_its_pod_goes() {
    let cluster = cluster();
    make_reader("rights");
    let token = cluster.token_for_pod("rights", "reader", "reader-1");
    let kubeconfig = cluster.kubeconfig_for(&token);
    let reads = |what: &str| cluster.kubectl_as(&kubeconfig, ["get", what, "--namespace=rights"], "");

    reads("configmaps").expect("what the role allows");
    let refused = reads("secrets");
    assert!(refused.stderr.contains("Forbidden") && refused.stderr.contains("rights:reader"), "{refused:?}");

    let who = cluster.kubectl_as(&kubeconfig, ["auth", "whoami", "--output=json"], "").json("who it is");
    assert_eq!(who["status"]["userInfo"]["extra"]["authentication.kubernetes.io/pod-name"][0], "reader-1");

    cluster.kubectl(["delete", "pod", "reader-1", "--namespace=rights", "--force"]).expect("the pod goes");
    // An API server caches the result for a token for ten seconds.
    eventually("the end of the token", || reads("configmaps").stderr.contains("Unauthorized").then_some(()));
}

#[test]
#[ignore = "starts a cluster"]
fn a_second_token_of_a_pod_leaves_the_pod_alone() {
    let cluster = cluster();
    make_reader("twice");
    let uid = || {
        let get = ["get", "pod", "reader-1", "--namespace=twice", "--output=jsonpath={.metadata.uid}"];
        cluster.kubectl(get).expect("the pod").to_owned()
    };
    cluster.token_for_pod("twice", "reader", "reader-1");
    let first = uid();
    cluster.token_for_pod("twice", "reader", "reader-1");
    assert_eq!(uid(), first);
}

#[test]
#[ignore = "starts a cluster"]
fn a_service_has_the_address_of_a_ready_stand_in() {
    let cluster = cluster();
    if !is_routed(cluster) {
        return;
    }
    make_reader("market");
    cluster
        .kubectl(["create", "service", "clusterip", "till", "--namespace=market", "--tcp=443:8443"])
        .expect("a service");
    let address = cluster.pod_address();
    let labels = [("app", "till")];
    let pod = StandIn {
        namespace: "market",
        name: "till-1",
        service_account: "reader",
        labels: &labels,
        address: Some(address),
    };

    let ready = || {
        let get = [
            "get",
            "endpointslices",
            "--namespace=market",
            "--selector=kubernetes.io/service-name=till",
            "--output=json",
        ];
        let slices = cluster.kubectl(get).json("the addresses of the service");
        let endpoints = slices["items"][0]["endpoints"].as_array().cloned().unwrap_or_default();
        let ready = endpoints.iter().filter(|endpoint| endpoint["conditions"]["ready"] == true);
        ready.map(|endpoint| endpoint["addresses"][0].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    cluster.stand_in(&pod);
    eventually("the address of the pod", || (ready() == [address.to_string()]).then_some(()));
    cluster.stand_in(&StandIn { address: None, ..pod });
    eventually("no address", || ready().is_empty().then_some(()));
}
