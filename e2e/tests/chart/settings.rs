//! Settings that Helm accepts and refuses.

use serde_json::{Value, json};

use portcullis_e2e::{Helm, LOADER_MEMORY, objects_of};

use crate::{args, container, containers, everything, find, helm, pods, refusal, render};

#[test]
fn helm_lint_has_nothing_to_say_of_the_chart() {
    let chart = Helm::chart().display().to_string();
    for values in [json!({}), everything()] {
        let lint = helm().run(None, ["lint", "--strict", &chart, "--values", "-"], &values.to_string());
        assert!(lint.is_ok(), "{}{}", lint.stdout, lint.stderr);
    }
}

#[test]
fn a_setting_that_cannot_be_is_refused_by_its_name() {
    for (values, named) in [
        (json!({ "policyServer": "Not_A_Name" }), "/policyServer"),
        (json!({ "policyServer": "a".repeat(41) }), "/policyServer"),
        (json!({ "replicas": 3 }), "replicas"),
        (json!({ "server": { "replicas": "three" } }), "/server/replicas"),
        (json!({ "server": { "replicas": null } }), "replicas"),
        (json!({ "server": { "terminationGracePeriodSeconds": 5 } }), "/server/terminationGracePeriodSeconds"),
        (json!({ "image": { "pullPolicy": "Sometimes" } }), "/image/pullPolicy"),
        (json!({ "image": { "digests": { "loader": "latest" } } }), "/image/digests/loader"),
        (json!({ "image": { "digests": { "loadr": format!("sha256:{}", "0".repeat(64)) } } }), "loadr"),
        (json!({ "logs": { "level": "warning" } }), "/logs/level"),
        (json!({ "logs": { "level": "info,portcullis_loader" } }), "/logs/level"),
        (json!({ "evaluator": { "policyTimeout": "2 seconds" } }), "/evaluator/policyTimeout"),
        (json!({ "evaluator": { "memoryLimit": "128MB" } }), "/evaluator/memoryLimit"),
        (json!({ "volume": { "sizeLimit": "large" } }), "/volume/sizeLimit"),
        (json!({ "volume": { "persistence": { "enable": true } } }), "enable"),
        (json!({ "disruptionBudget": { "maxUnavailable": "all" } }), "/disruptionBudget/maxUnavailable"),
        (json!({ "networkPolicy": { "egressPorts": [70000] } }), "/networkPolicy/egressPorts/0"),
        (json!({ "certificates": { "mode": "none" } }), "/certificates/mode"),
        (json!({ "webhooks": { "pathKeyAge": "monthly" } }), "/webhooks/pathKeyAge"),
        (json!({ "policyChecks": { "mode": "on" } }), "/policyChecks/mode"),
        // This is how YAML reads `off` without quotes.
        (json!({ "policyChecks": { "mode": false } }), "/policyChecks/mode"),
        (json!({ "audit": { "interval": "hourly" } }), "/audit/interval"),
        (json!({ "audit": { "format": "kyverno" } }), "/audit/format"),
        (
            json!({ "rbac": { "auditReads": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["delete"] }] } }),
            "/rbac/auditReads/0/verbs/0",
        ),
        (json!({ "certificates": { "issuerRef": { "nam": "x" } } }), "nam"),
        (json!({ "certificates": { "issuerRef": { "kind": "ClusterIssuer" } } }), "/certificates/issuerRef"),
        (json!({ "labels": { "team": 1 } }), "/labels/team"),
        (json!({ "autoscaling": { "enabled": true, "minReplicas": 20 } }), "autoscaling.minReplicas is 20"),
        (
            json!({ "rbac": { "contextAwareReads": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["delete"] }] } }),
            "/rbac/contextAwareReads/0/verbs/0",
        ),
    ] {
        let words = refusal(&values);
        assert!(words.contains(named), "{values}: {words}");
    }
}

#[test]
fn disks_without_room_for_modules_are_refused_and_the_others_are_told_to_the_programs() {
    for (values, named) in [
        (json!({ "volume": { "sizeLimit": "31Mi" } }), "volume.sizeLimit is 31Mi"),
        (json!({ "evaluator": { "privateSizeLimit": "1M" } }), "evaluator.privateSizeLimit is 1M"),
        (
            json!({ "volume": { "persistence": { "enabled": true, "size": "16Mi" } } }),
            "volume.persistence.size is 16Mi",
        ),
    ] {
        let words = refusal(&values);
        assert!(words.contains(named) && words.contains("want 32Mi at least"), "{values}: {words}");
    }
    let persistence = json!({ "enabled": true, "size": "3G" });
    for (volume, kind, size) in [
        (json!({ "sizeLimit": "1.5Gi" }), "Deployment", "1610612736"),
        (json!({ "sizeLimit": "1Mi", "persistence": persistence }), "StatefulSet", "3000000000"),
    ] {
        let objects = render(&json!({ "volume": volume, "evaluator": { "privateSizeLimit": "64Mi" } }));
        find(&objects, kind, "portcullis-policy-server");
        let loader = args(container(&objects, "loader"));
        assert!(loader.contains(&&*format!("--volume-size={size}")), "{loader:?}");
        let evaluator = args(container(&objects, "evaluator"));
        assert!(evaluator.contains(&"--private-size=67108864"), "{evaluator:?}");
    }
}

#[test]
fn instances_that_have_no_room_in_the_container_are_refused() {
    let evaluator = |limit: &str, memory: &str, instances: u32| {
        let resources = json!({ "limits": { "memory": limit }, "requests": { "memory": "16Mi" } });
        json!({ "evaluator": { "resources": resources, "memoryLimit": memory, "instances": instances } })
    };
    for (limit, memory, instances) in
        [("1Gi", "128MiB", 128), ("820Mi", "128MiB", 128), ("6.5Gi", "1GiB", 128), ("64Mi", "4MiB", 8)]
    {
        assert!(!render(&evaluator(limit, memory, instances)).is_empty());
    }
    for (limit, memory, instances, least) in [
        ("512Mi", "128MiB", 128, "want 820Mi"),
        ("800M", "128MiB", 128, "want 820Mi"),
        ("1Gi", "256MiB", 128, "want 1639Mi"),
        ("1Gi", "128MiB", 1000, "want 2710Mi"),
        ("32Mi", "1MiB", 8, "want 46Mi"),
    ] {
        let words = refusal(&evaluator(limit, memory, instances));
        assert!(words.contains("evaluator.resources.limits.memory") && words.contains(least), "{words}");
    }
    // Without a memory limit, any number of instances is accepted.
    render(&json!({ "evaluator": { "resources": { "limits": null } } }));
}

#[test]
fn paths_of_policies_are_closed_unless_somebody_opens_them() {
    for (values, state) in [(json!({}), "off"), (json!({ "server": { "policyPaths": true } }), "on")] {
        let objects = render(&values);
        for program in ["evaluator", "loader"] {
            let flag = format!("--policy-paths={state}");
            assert!(args(container(&objects, program)).contains(&flag.as_str()), "{program} {values}");
        }
    }
    for name in ["audit", "validateRaw"] {
        let words = refusal(&json!({ "evaluator": { name: true } }));
        assert!(
            words.contains(&format!("evaluator.{name} is true")) && words.contains("server.policyPaths"),
            "{words}"
        );
    }
}

#[test]
fn names_of_clients_count_only_with_the_authorities_of_their_certificates() {
    let words = refusal(&json!({ "certificates": { "clientNames": ["kube-apiserver"] } }));
    assert!(words.contains("certificates.clientNames lists kube-apiserver"), "{words}");
    assert!(words.contains("set certificates.clientAuthorities"), "{words}");
    // Text that YAML would read as something else stays the text that it is.
    let mut values = everything();
    let names = ["kube-apiserver: one", "*.api #two"];
    values["certificates"]["clientNames"] = json!(names);
    values["logs"]["level"] = json!("info,[a: {b}]=debug");
    let objects = render(&values);
    let evaluator = args(container(&objects, "evaluator"));
    for flag in
        names.map(|name| format!("--client-name={name}")).iter().chain([&"--log-level=info,[a: {b}]=debug".into()])
    {
        assert!(evaluator.contains(&flag.as_str()), "{flag}: {evaluator:?}");
    }
}

#[test]
fn spans_go_to_the_collector_by_the_loader_and_its_headers_to_nobody_else() {
    const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let names = |container: &Value| -> Vec<String> {
        let env = container["env"].as_array().cloned().unwrap_or_default();
        env.iter()
            .filter_map(|one| one["name"].as_str().map(str::to_owned))
            .filter(|name| name.starts_with("OTEL_"))
            .collect()
    };
    let objects = render(&json!({}));
    for program in ["evaluator", "loader", "reporter"] {
        assert!(names(container(&objects, program)).is_empty(), "{program}");
    }
    assert!(!args(container(&objects, "evaluator")).contains(&"--export-traces"));

    let objects = render(&everything());
    let posts = [ENDPOINT, "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_RESOURCE_ATTRIBUTES"];
    for program in ["loader", "reporter", "controller"] {
        assert_eq!(names(container(&objects, program)), posts, "{program}");
    }
    let evaluator = ["OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"];
    assert_eq!(names(container(&objects, "evaluator")), evaluator);
    for flag in ["--export-traces", "--export-metrics", "--kubewarden-metrics"] {
        assert!(args(container(&objects, "evaluator")).contains(&flag), "{flag}");
    }
    // If egress ports are restricted, the pods that export may connect to the collector's port.
    let ports = |component: &str| {
        find(&objects, "NetworkPolicy", &format!("portcullis-{component}"))["spec"]["egress"].to_string()
    };
    assert!(["policy-server", "controller"].iter().all(|component| ports(component).contains("4318")));
    assert!(!ports("test").contains("4318"));
    let mut traces = everything();
    traces["telemetry"]["otlp"]["metrics"] = json!(false);
    let objects = render(&traces);
    assert!(names(container(&objects, "loader")).contains(&"OTEL_METRICS_EXPORTER".to_owned()));
    assert!(names(container(&objects, "reporter")).is_empty() && names(container(&objects, "controller")).is_empty());
    // If nothing is exported, no program gets the address.
    traces["telemetry"]["otlp"]["evaluator"] = json!(false);
    let objects = render(&traces);
    assert!(["evaluator", "loader", "reporter"].iter().all(|program| names(container(&objects, program)).is_empty()));
    assert!(!args(container(&objects, "evaluator")).contains(&"--export-traces"));
    assert!(!find(&objects, "NetworkPolicy", "portcullis-policy-server").to_string().contains("4318"));
    let said = refusal(&json!({"telemetry": {"otlp": {"endpoint": "collector:4318"}}}));
    assert!(said.contains("endpoint"), "{said}");
}

#[test]
fn who_connects_to_a_collector_can_be_given_its_authority() {
    let objects = render(&everything());
    for (program, name, path) in [
        ("loader", "authorities", "/authorities"),
        ("reporter", "authorities", "/authorities"),
        ("controller", "collector", "/collector"),
    ] {
        let is_it = |container: &Value| container["name"] == program;
        let (_, pod) = pods(&objects).into_iter().find(|(_, pod)| containers(pod).iter().any(is_it)).unwrap();
        let mounts = container(&objects, program)["volumeMounts"].as_array().unwrap();
        assert!(
            mounts.iter().any(|mount| mount["name"] == name && mount["mountPath"] == path),
            "{program}: {mounts:?}"
        );
        let volumes = pod["volumes"].as_array().unwrap();
        assert_eq!(volumes.iter().filter(|volume| volume["name"] == name).count(), 1, "{program}: {volumes:?}");
    }
}

#[test]
fn the_loader_gives_large_pieces_of_memory_back_to_the_system() {
    let objects = render(&json!({}));
    let env = container(&objects, "loader")["env"].as_array().expect("variables");
    let (name, value) = LOADER_MEMORY;
    assert!(env.contains(&json!({ "name": name, "value": value })), "{env:?}");
}

/// The variables of a container.
fn variables(objects: &[Value], program: &str) -> Vec<Value> {
    container(objects, program)["env"].as_array().cloned().unwrap_or_default()
}

#[test]
fn no_variable_stands_twice_and_those_that_tell_a_program_its_pod_are_the_charts() {
    let mut values = everything();
    values["loader"]["extraEnv"] = json!([]);
    let (mut taken, mut refused) = (Vec::new(), Vec::new());
    let objects = render(&values);
    for program in ["evaluator", "loader", "reporter", "controller"] {
        for variable in variables(&objects, program) {
            let name = variable["name"].as_str().unwrap().to_owned();
            let mut values = values.clone();
            values[program]["extraEnv"] = json!([{ "name": name, "value": "mine" }]);
            let rendered = helm().template("portcullis", crate::NAMESPACE, &values);
            if variable["valueFrom"]["fieldRef"].is_null() {
                assert!(rendered.is_ok(), "{program} {name}: {}", rendered.stderr);
                let env = variables(&objects_of(&rendered.stdout), program);
                let found: Vec<_> = env.iter().filter(|one| one["name"] == name).collect();
                assert!(found.len() == 1 && found[0]["value"] == "mine", "{program}: {env:?}");
                taken.push(format!("{program} {name}"));
            } else {
                let words = format!("{program}.extraEnv sets {name}, which each pod gets from Kubernetes");
                assert!(!rendered.is_ok() && rendered.stderr.contains(&words), "{words}: {}", rendered.stderr);
                refused.push(format!("{program} {name}"));
            }
        }
    }
    for of_telemetry in ["evaluator OTEL_TRACES_SAMPLER", "loader OTEL_EXPORTER_OTLP_ENDPOINT"] {
        assert!(taken.iter().any(|one| one == of_telemetry), "{taken:?}");
    }
    assert!(taken.contains(&format!("loader {}", LOADER_MEMORY.0)), "{taken:?}");
    let of_the_pod = [
        "evaluator POD_NAME",
        "loader POD_NAME",
        "loader PORTCULLIS_SIBLINGS_OWN_ADDRESS",
        "reporter POD_NAME",
        "reporter POD_UID",
        "reporter NODE_NAME",
        "controller POD_NAME",
    ];
    assert_eq!(refused, of_the_pod);
}

#[test]
fn variables_that_the_chart_does_not_set_are_added_whatever_they_are_called() {
    let own = json!([
        { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
        { "name": "OTEL_METRICS_EXPORTER", "value": "none" },
    ]);
    let objects = render(&json!({ "evaluator": { "extraEnv": own } }));
    assert_eq!(container(&objects, "evaluator")["env"], own, "nothing is exported, so the chart sets none");
    assert!(container(&render(&json!({})), "evaluator")["env"].is_null());
    // A variable that others refer to comes before them.
    let mut values = everything();
    values["controller"]["extraEnv"] = json!([{ "name": "WHO", "value": "$(POD_NAME)" }]);
    let objects = render(&values);
    let env = variables(&objects, "controller");
    assert!(env[0]["name"] == "POD_NAME" && env.last().is_some_and(|last| last["name"] == "WHO"), "{env:?}");
    // One that is taken from the user may be one that the chart does not set with these values.
    values["controller"]["extraEnv"] = json!([{ "name": "OTEL_METRICS_EXPORTER", "value": "mine" }]);
    let objects = render(&values);
    let env = variables(&objects, "controller");
    assert_eq!(env.iter().filter(|one| one["name"] == "OTEL_METRICS_EXPORTER").count(), 1, "{env:?}");
}

#[test]
fn paths_of_webhooks_have_a_code_unless_somebody_goes_back_to_a_release_without() {
    let flags = |values: serde_json::Value| {
        let objects = render(&values);
        let flags = args(container(&objects, "controller"));
        flags.iter().filter(|flag| flag.contains("path")).map(|flag| (*flag).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(flags(json!({})), ["--path-key-age=30d"]);
    let back = json!({ "webhooks": { "secretPaths": false, "pathKeyAge": "7d" } });
    assert_eq!(flags(back), ["--path-key-age=7d", "--plain-paths"]);
}

#[test]
fn images_are_named_by_registry_program_and_the_version_of_the_chart() {
    let version = env!("CARGO_PKG_VERSION");
    let objects = render(&json!({}));
    for name in ["loader", "evaluator", "reporter", "controller"] {
        assert_eq!(container(&objects, name)["image"], format!("localhost/portcullis/{name}:{version}"));
    }
    let objects = render(&everything());
    let registry = "registry.example.com:5000/portcullis";
    assert_eq!(container(&objects, "evaluator")["image"], format!("{registry}/evaluator:v9"));
    assert_eq!(container(&objects, "loader")["image"], format!("{registry}/loader@sha256:{}", "0".repeat(64)));
}

#[test]
fn every_pod_may_pull_its_images_with_the_given_logins() {
    for (name, pod) in pods(&render(&everything())) {
        assert_eq!(pod["imagePullSecrets"], json!([{ "name": "images" }]), "{name}");
    }
}

#[test]
fn what_the_loader_is_told_in_files_is_mounted_as_a_folder_that_follows_changes() {
    let objects = render(&everything());
    let config = find(&objects, "ConfigMap", "portcullis-loader");
    assert!(config["data"]["sources.yml"].as_str().unwrap().contains("https_proxy: http://proxy:3128"));
    assert!(config["data"]["verification.yml"].as_str().unwrap().contains("kind: pubKey"));
    assert!(config["data"]["authorities.pem"].as_str().unwrap().starts_with("-----BEGIN CERTIFICATE-----\nAAAA\n"));
    let loader = container(&objects, "loader");
    for flag in [
        "--sources=/config/sources.yml",
        "--verification=/config/verification.yml",
        "--source-ca=/config/authorities.pem",
        "--docker-config=/logins",
        "--allow-source=registry://ghcr.io/*",
        "--allow-private=10.0.0.0/8",
        "--allow-http-host=registry.internal:5000",
        "--keep-newest=4",
    ] {
        assert!(args(loader).contains(&flag), "{flag}: {:?}", args(loader));
    }
    // A file that is mounted with `subPath` would never change.
    assert!(!loader["volumeMounts"].to_string().contains("subPath"));
    assert!(!render(&json!({})).iter().any(|object| object["kind"] == "ConfigMap"));
}

#[test]
fn logins_for_modules_reach_the_loader_and_nobody_else() {
    let objects = render(&everything());
    for (name, pod) in pods(&objects) {
        for container in crate::containers(pod) {
            let has = container["volumeMounts"].to_string().contains("\"logins\"");
            assert_eq!(has, container["name"] == "loader", "{name} {}", container["name"]);
        }
    }
    let (_, pod) = pods(&objects).into_iter().find(|(name, _)| *name == "portcullis-policy-server").unwrap();
    let logins = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "logins").unwrap();
    assert_eq!((&logins["secret"]["secretName"], &logins["secret"]["optional"]), (&json!("registries"), &json!(true)));
}
