//! The connections that network policies allow, and the addresses of Services and programs.

use serde_json::{Value, json};

use crate::{args, container, everything, find, pods, refusal, render};

/// The NetworkPolicies that select pods with these labels.
fn policies_for<'o>(objects: &'o [Value], labels: &Value) -> Vec<&'o Value> {
    let selects = |policy: &Value| {
        let wanted = policy["spec"]["podSelector"]["matchLabels"].as_object().unwrap();
        wanted.iter().all(|(label, value)| labels[label] == *value)
    };
    objects.iter().filter(|object| object["kind"] == "NetworkPolicy" && selects(object)).collect()
}

#[test]
fn every_pod_may_connect_to_what_it_needs_where_a_namespace_forbids_all_that_nobody_allows() {
    for values in [json!({}), everything()] {
        let objects = render(&values);
        let templates = objects.iter().filter_map(|object| match object["kind"].as_str()? {
            "Pod" => Some(object),
            "Deployment" | "StatefulSet" | "Job" => Some(&object["spec"]["template"]),
            _ => None,
        });
        let mut count = 0;
        for template in templates {
            count += 1;
            let labels = &template["metadata"]["labels"];
            let policies = policies_for(&objects, labels);
            assert_eq!(policies.len(), 1, "{labels}");
            let egress = policies[0]["spec"]["egress"].as_array().unwrap();
            // The pods that answer DNS listen on 5353 in OpenShift, on 8053 in Gardener, and on 1053 in vcluster.
            let dns = [53, 5353, 8053, 1053]
                .map(|port| ["UDP", "TCP"].map(|protocol| json!({ "port": port, "protocol": protocol })));
            assert_eq!(egress[0], json!({ "ports": dns.concat() }), "{labels}");
            let api_server = [json!({ "protocol": "TCP" }), json!({ "port": 6443, "protocol": "TCP" })];
            let ports =
                egress.iter().filter(|rule| rule["to"].is_null()).flat_map(|rule| rule["ports"].as_array().unwrap());
            assert!(ports.into_iter().any(|port| api_server.contains(port)), "{labels}: the API server");
        }
        assert_eq!(count, pods(&objects).len());
        assert_eq!(count, 4, "policy server, controller, and the two that ask and that uninstall");
        // The port of pods that `helm test` calls may be missing from the user's list.
        let test = find(&objects, "NetworkPolicy", "portcullis-test")["spec"]["egress"].to_string();
        assert!(test.contains(r#""ports":[{"port":8443}]"#), "{test}");
    }
}

#[test]
fn dns_is_asked_on_the_ports_that_an_operator_names_and_on_some_port_always() {
    let objects = render(&json!({ "networkPolicy": { "dnsPorts": [9053] } }));
    let ports = ["UDP", "TCP"].map(|protocol| json!({ "port": 9053, "protocol": protocol }));
    for policy in objects.iter().filter(|object| object["kind"] == "NetworkPolicy") {
        assert_eq!(policy["spec"]["egress"][0], json!({ "ports": ports }), "{}", policy["metadata"]["name"]);
    }
    // A rule without ports would be one for all ports.
    assert!(refusal(&json!({ "networkPolicy": { "dnsPorts": [] } })).contains("/networkPolicy/dnsPorts"));
}

#[test]
fn nobody_reads_metrics_until_somebody_is_named() {
    let rules = |values: &Value, component: &str| {
        let policy = find(&render(values), "NetworkPolicy", &format!("portcullis-{component}")).clone();
        policy["spec"]["ingress"].as_array().unwrap().clone()
    };
    assert!(rules(&json!({}), "controller").is_empty());
    assert_eq!(rules(&json!({}), "policy-server"), [json!({ "ports": [{ "port": "admission" }] })]);

    let prometheus = json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "monitoring" } } });
    let named = json!({ "networkPolicy": { "metricsFrom": [prometheus] } });
    let ports = |names: &[&str]| names.iter().map(|name| json!({ "port": name })).collect::<Vec<_>>();
    let metrics = |names: &[&str]| json!({ "ports": ports(names), "from": [prometheus] });
    assert_eq!(rules(&named, "controller"), [metrics(&["controller"])]);
    assert_eq!(rules(&named, "policy-server")[1..], [metrics(&["evaluator", "loader", "reporter"])]);
}

#[test]
fn who_calls_evaluators_can_be_asked_for_a_certificate() {
    let objects = render(&everything());
    let map = find(&objects, "ConfigMap", "portcullis-clients");
    assert_eq!(map["data"]["authorities.pem"], "-----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----\n");
    let evaluator = container(&objects, "evaluator");
    for flag in ["--client-ca=/clients/authorities.pem", "--client-name=kube-apiserver"] {
        assert!(args(evaluator).contains(&flag), "{flag}");
    }
    // A mounted folder follows changes of the ConfigMap; a file that is mounted with `subPath` does not.
    let mounts = evaluator["volumeMounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["name"] == "clients").unwrap();
    assert_eq!((&mount["mountPath"], &mount["subPath"]), (&json!("/clients"), &Value::Null));
    let objects = render(&json!({}));
    assert!(!container(&objects, "evaluator").to_string().contains("client"));
    assert!(!objects.iter().any(|object| object["metadata"]["name"] == "portcullis-clients"));
}

#[test]
fn programs_listen_on_addresses_of_both_families() {
    let objects = render(&everything());
    assert!(args(container(&objects, "evaluator")).contains(&"--address=[::]:8443"));
    let loader = container(&objects, "loader");
    assert!(args(loader).contains(&"--siblings-address=[::]:8444"));
    let own = loader["env"].as_array().unwrap().iter().find(|env| env["name"] == "PORTCULLIS_SIBLINGS_OWN_ADDRESS");
    assert_eq!(own.unwrap()["valueFrom"]["fieldRef"]["fieldPath"], "status.podIPs", "it has one of each family");
}

#[test]
fn the_service_has_the_families_of_addresses_that_are_asked_for() {
    let service = |values| find(&render(&values), "Service", "portcullis-policy-server")["spec"].clone();
    let both = service(json!({ "service": { "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"] } }));
    assert_eq!((&both["ipFamilyPolicy"], &both["ipFamilies"]), (&json!("RequireDualStack"), &json!(["IPv6", "IPv4"])));
    let usual = service(json!({}));
    assert!(usual["ipFamilyPolicy"].is_null() && usual["ipFamilies"].is_null(), "the cluster knows best");
    assert!(refusal(&json!({ "service": { "ipFamilies": ["IPv5"] } })).contains("/service/ipFamilies/0"));
}

#[test]
fn pods_in_the_network_of_their_node_make_room_before_the_next_one_comes() {
    let objects = render(&json!({ "server": { "hostNetwork": true } }));
    let spec = &find(&objects, "Deployment", "portcullis-policy-server")["spec"];
    let pod = &spec["template"]["spec"];
    assert_eq!((&pod["hostNetwork"], &pod["dnsPolicy"]), (&json!(true), &json!("ClusterFirstWithHostNet")));
    assert_eq!(spec["strategy"]["rollingUpdate"], json!({ "maxSurge": 0, "maxUnavailable": 1 }));
    // Only the pods of the policy server need it, because API servers call them.
    let others = pods(&objects).into_iter().filter(|(name, _)| *name != "portcullis-policy-server");
    assert!(others.into_iter().all(|(_, pod)| pod["hostNetwork"].is_null()));
    assert!(render(&json!({})).iter().all(|object| !object.to_string().contains("hostNetwork")));
}
