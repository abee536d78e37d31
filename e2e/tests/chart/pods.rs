//! The pods of the chart, and what they may do.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{args, container, containers, everything, find, pods, render};

/// The folder in which clients of an API server look for a token.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

fn both() -> [Vec<Value>; 2] {
    [render(&json!({})), render(&everything())]
}

#[test]
fn tokens_are_mounted_where_the_api_server_is_talked_to_and_never_into_the_evaluator() {
    for objects in both() {
        for (name, pod) in pods(&objects) {
            assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
            for container in containers(pod) {
                let mounts = container["volumeMounts"].as_array().unwrap();
                let has = mounts.iter().any(|mount| mount["mountPath"] == TOKEN);
                assert_eq!(has, container["name"] != "evaluator", "{name} {}", container["name"]);
            }
            let volumes = pod["volumes"].as_array().unwrap();
            let tokens: Vec<_> =
                volumes.iter().filter(|volume| volume.to_string().contains("serviceAccountToken")).collect();
            assert_eq!(tokens.len(), 1, "{name}");
            let seconds = tokens[0]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"].as_u64();
            assert!(seconds.unwrap() <= 3607, "{name}: tokens are short-lived");
        }
        for account in objects.iter().filter(|object| object["kind"] == "ServiceAccount") {
            assert_eq!(account["automountServiceAccountToken"], false, "{}", account["metadata"]["name"]);
        }
    }
}

#[test]
fn every_container_is_as_the_strictest_pod_security_wants_it() {
    for objects in both() {
        for (name, pod) in pods(&objects) {
            let security = &pod["securityContext"];
            assert_eq!(security["runAsNonRoot"], true, "{name}");
            assert_eq!(security["seccompProfile"], json!({ "type": "RuntimeDefault" }), "{name}");
            assert_eq!(security["fsGroup"], 65530, "{name}");
            for field in ["hostNetwork", "hostPID", "hostIPC", "initContainers", "ephemeralContainers"] {
                assert!(pod[field].is_null(), "{name} {field}");
            }
            for container in containers(pod) {
                let security = &container["securityContext"];
                let who = format!("{name} {}", container["name"]);
                assert_eq!(security["allowPrivilegeEscalation"], false, "{who}");
                assert_eq!(security["readOnlyRootFilesystem"], true, "{who}");
                assert_eq!(security["capabilities"], json!({ "drop": ["ALL"] }), "{who}");
                assert!(security["runAsUser"].as_u64().unwrap() > 65530, "{who}");
                assert!(container["resources"]["requests"]["memory"].is_string(), "{who}");
                assert!(container["resources"]["limits"]["memory"].is_string(), "{who}");
            }
        }
    }
}

#[test]
fn the_containers_of_a_policy_server_have_users_of_their_own_and_one_group() {
    let objects = render(&json!({}));
    let user = |name: &str| container(&objects, name)["securityContext"]["runAsUser"].as_u64().unwrap();
    let users = ["loader", "evaluator", "reporter", "controller"].map(user);
    assert_eq!(users, [65531, 65532, 65533, 65534]);
    assert_eq!(users.iter().collect::<BTreeSet<_>>().len(), 4);
    let pod = &find(&objects, "Deployment", "portcullis-policy-server")["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsGroup"], 65530);
}

#[test]
fn the_evaluator_reads_the_volume_and_writes_a_folder_of_its_own_on_disk() {
    for objects in both() {
        let mounts = |name: &str| container(&objects, name)["volumeMounts"].as_array().unwrap().clone();
        let mount = |name: &str, volume: &str| mounts(name).into_iter().find(|mount| mount["name"] == volume);
        assert_eq!(mount("evaluator", "volume").unwrap()["readOnly"], true);
        assert!(mount("loader", "volume").unwrap()["readOnly"].is_null());
        assert!(mount("reporter", "volume").is_none());
        for other in ["loader", "reporter"] {
            assert!(mount(other, "private").is_none() && mount(other, "tls").is_none(), "{other}");
        }
        let (_, pod) = pods(&objects).into_iter().find(|(name, _)| *name == "portcullis-policy-server").unwrap();
        let volume = |name: &str| pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == name);
        let private = &volume("private").unwrap()["emptyDir"];
        assert!(private["sizeLimit"].is_string() && private["medium"].is_null());
        // The evaluator creates this folder itself, because it must own it.
        assert!(args(container(&objects, "evaluator")).contains(&"--private-dir=/private/copies"));
    }
}

#[test]
fn a_pod_starts_before_its_certificate_is_there() {
    for objects in both() {
        let (_, pod) = pods(&objects).into_iter().find(|(name, _)| *name == "portcullis-policy-server").unwrap();
        let tls = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "tls").unwrap();
        assert_eq!(tls["secret"]["optional"], true);
    }
}

#[test]
fn a_pod_waits_for_the_keys_of_webhook_paths_and_its_evaluator_alone_reads_them() {
    for objects in both() {
        let (_, pod) = pods(&objects).into_iter().find(|(name, _)| *name == "portcullis-policy-server").unwrap();
        let paths = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "paths").unwrap();
        let secret = &paths["secret"];
        assert!(secret["secretName"].as_str().unwrap().ends_with("-paths") && secret["optional"].is_null(), "{secret}");
        assert!(args(container(&objects, "evaluator")).contains(&"--path-keys=/paths"));
        for container in containers(pod) {
            let mounts = container["volumeMounts"].as_array().unwrap();
            let mount = mounts.iter().find(|mount| mount["name"] == "paths");
            assert_eq!(mount.is_some(), container["name"] == "evaluator", "{}", container["name"]);
            assert!(mount.is_none_or(|mount| mount["readOnly"] == true));
        }
    }
}

#[test]
fn every_container_is_probed_at_its_own_port_and_a_start_waits_for_livez_alone() {
    for objects in both() {
        for (name, port) in [("evaluator", 8081), ("loader", 8082), ("reporter", 8083), ("controller", 8084)] {
            let container = container(&objects, name);
            let ports = container["ports"].as_array().unwrap();
            let own = ports.iter().find(|port| port["name"] == name).unwrap();
            assert_eq!(own["containerPort"], port, "{name}");
            for (probe, path) in
                [("startupProbe", "/livez"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")]
            {
                let get = &container[probe]["httpGet"];
                assert_eq!((&get["path"], &get["port"]), (&json!(path), &json!(name)), "{name} {probe}");
            }
            let startup = &container["startupProbe"];
            let seconds = startup["periodSeconds"].as_u64().unwrap() * startup["failureThreshold"].as_u64().unwrap();
            assert!(seconds >= 30, "{name} may take {seconds} s to start");
        }
    }
}

#[test]
fn a_pod_has_longer_to_end_than_it_drains() {
    let spec = &find(&render(&json!({})), "Deployment", "portcullis-policy-server")["spec"]["template"]["spec"].clone();
    // 5 s until clients know that the pod ends, and 20 s for running requests.
    let seconds = spec["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(seconds > 25);
    // The loader answers what policies ask for as long as the evaluator needs.
    let args = spec["containers"][1]["args"].as_array().unwrap().iter().filter_map(|arg| arg.as_str());
    let limits: Vec<_> = args.filter_map(|arg| arg.strip_prefix("--drain-limit=")).collect();
    assert_eq!(limits, [format!("{}s", seconds - 1)]);
}

#[test]
fn a_rollout_never_has_fewer_policy_servers_than_asked_for() {
    let objects = render(&json!({}));
    let rolling = &find(&objects, "Deployment", "portcullis-policy-server")["spec"]["strategy"]["rollingUpdate"];
    assert_eq!((&rolling["maxSurge"], &rolling["maxUnavailable"]), (&json!(1), &json!(0)));
}

#[test]
fn pods_are_spread_over_nodes_and_zones() {
    let objects = render(&json!({}));
    for name in ["portcullis-policy-server", "portcullis-controller"] {
        let deployment = find(&objects, "Deployment", name);
        let template = &deployment["spec"]["template"];
        let spread = template["spec"]["topologySpreadConstraints"].as_array().unwrap();
        let keys: Vec<_> = spread.iter().map(|one| one["topologyKey"].as_str().unwrap()).collect();
        assert_eq!(keys, ["kubernetes.io/hostname", "topology.kubernetes.io/zone"], "{name}");
        for selector in spread.iter().map(|one| &one["labelSelector"]).chain([&deployment["spec"]["selector"]]) {
            for (label, value) in selector["matchLabels"].as_object().unwrap() {
                assert_eq!(&template["metadata"]["labels"][label], value, "{name} {label}");
            }
        }
    }
}

#[test]
fn only_the_spread_over_nodes_can_be_made_a_must_as_nodes_may_have_no_zone() {
    for otherwise in ["ScheduleAnyway", "DoNotSchedule"] {
        let objects = render(&json!({ "server": { "whenUnspreadable": otherwise } }));
        for name in ["portcullis-policy-server", "portcullis-controller"] {
            let spread = &find(&objects, "Deployment", name)["spec"]["template"]["spec"]["topologySpreadConstraints"];
            let found: Vec<_> = spread.as_array().unwrap().iter().map(|one| &one["whenUnsatisfiable"]).collect();
            assert_eq!(found, [otherwise, "ScheduleAnyway"], "{name}: nodes, then zones");
            // Without this, nodes with taints that keep these pods out count as nodes without a pod: two pods never fit on the others.
            let taints = spread.as_array().unwrap().iter().map(|one| &one["nodeTaintsPolicy"]);
            assert!(taints.into_iter().all(|policy| policy == "Honor"), "{name}");
        }
    }
}

#[test]
fn no_variable_of_another_service_is_taken_for_a_setting() {
    for (name, pod) in pods(&render(&json!({}))) {
        assert_eq!(pod["enableServiceLinks"], false, "{name}");
    }
}
