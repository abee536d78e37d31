//! The effects of single settings.

use serde_json::json;

use crate::{args, container, everything, find, has, pods, render};

#[test]
fn a_claim_for_each_pod_makes_a_stateful_set() {
    let objects = render(&json!({ "volume": { "persistence": { "enabled": true, "size": "5Gi" } } }));
    assert!(!has(&objects, "Deployment", "portcullis-policy-server"));
    let spec = &find(&objects, "StatefulSet", "portcullis-policy-server")["spec"];
    let claim = &spec["volumeClaimTemplates"][0];
    // API servers add them, and what compares the rest with a server-side diff (Argo CD) would find a difference for ever.
    assert_eq!((&claim["apiVersion"], &claim["kind"]), (&json!("v1"), &json!("PersistentVolumeClaim")));
    assert_eq!(claim["metadata"]["name"], "volume");
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "5Gi");
    assert_eq!(spec["podManagementPolicy"], "Parallel");
    let volumes = spec["template"]["spec"]["volumes"].as_array().unwrap();
    assert!(!volumes.iter().any(|volume| volume["name"] == "volume"));
    let service = find(&objects, "Service", spec["serviceName"].as_str().unwrap());
    assert_eq!(service["spec"]["clusterIP"], "None");
}

#[test]
fn without_a_claim_the_volume_has_a_limit() {
    let objects = render(&json!({}));
    assert!(!has(&objects, "StatefulSet", "portcullis-policy-server"));
    let pod = &find(&objects, "Deployment", "portcullis-policy-server")["spec"]["template"]["spec"];
    let volume = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "volume").unwrap();
    assert_eq!(volume["emptyDir"]["sizeLimit"], "2Gi");
}

#[test]
fn an_autoscaler_is_the_only_one_who_says_how_many() {
    for (persistence, kind) in [(false, "Deployment"), (true, "StatefulSet")] {
        let objects = render(&json!({
            "autoscaling": { "enabled": true }, "volume": { "persistence": { "enabled": persistence } },
        }));
        let target = &find(&objects, "HorizontalPodAutoscaler", "portcullis-policy-server")["spec"]["scaleTargetRef"];
        assert_eq!(target["kind"], kind);
        assert!(find(&objects, kind, "portcullis-policy-server")["spec"]["replicas"].is_null());
    }
    let objects = render(&json!({}));
    assert!(!has(&objects, "HorizontalPodAutoscaler", "portcullis-policy-server"));
    assert_eq!(find(&objects, "Deployment", "portcullis-policy-server")["spec"]["replicas"], 3);
}

#[test]
fn each_account_has_the_annotations_that_are_given_for_it() {
    let (role, team) = (json!({ "eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/gate" }), json!({ "team": "123" }));
    let objects = render(&json!({
        "server": { "serviceAccountAnnotations": role }, "controller": { "serviceAccountAnnotations": team },
    }));
    let plain = render(&json!({}));
    for (name, annotations) in [("portcullis-policy-server", role), ("portcullis-controller", team)] {
        assert_eq!(find(&objects, "ServiceAccount", name)["metadata"]["annotations"], annotations, "{name}");
        assert!(find(&plain, "ServiceAccount", name)["metadata"]["annotations"].is_null(), "{name}");
    }
}

#[test]
fn webhooks_have_the_labels_that_are_given_for_them() {
    let labels = json!({ "admissions.enforcer/disabled": "true", "team": "" });
    let objects = render(&json!({ "webhooks": { "labels": labels } }));
    let flags = args(container(&objects, "controller"));
    let flags: Vec<_> = flags.into_iter().filter(|flag| flag.starts_with("--webhook-label")).collect();
    assert_eq!(flags, ["--webhook-label=admissions.enforcer/disabled=true", "--webhook-label=team="]);
    let plain = render(&json!({}));
    assert!(!args(container(&plain, "controller")).iter().any(|flag| flag.starts_with("--webhook-label")));
}

#[test]
fn maintenance_takes_one_pod_at_a_time() {
    let objects = render(&json!({}));
    for name in ["portcullis-policy-server", "portcullis-controller"] {
        let spec = &find(&objects, "PodDisruptionBudget", name)["spec"];
        assert_eq!(spec["maxUnavailable"], 1);
        assert_eq!(spec["selector"], find(&objects, "Deployment", name)["spec"]["selector"]);
    }
    let objects = render(&json!({ "disruptionBudget": { "enabled": false } }));
    assert!(!objects.iter().any(|object| object["kind"] == "PodDisruptionBudget"));
}

#[test]
fn api_servers_reach_the_evaluators_through_every_network_policy() {
    for values in [json!({}), everything()] {
        let objects = render(&values);
        let ingress = &find(&objects, "NetworkPolicy", "portcullis-policy-server")["spec"]["ingress"];
        let admission =
            ingress.as_array().unwrap().iter().find(|rule| rule["ports"] == json!([{ "port": "admission" }]));
        assert!(admission.unwrap()["from"].is_null(), "API servers have addresses that nobody knows beforehand");
    }
    let objects = render(&everything());
    let egress = find(&objects, "NetworkPolicy", "portcullis-controller")["spec"]["egress"].to_string();
    assert!(egress.contains("6443") && !egress.contains(r#"[{"protocol":"TCP"}]"#), "{egress}");
    assert!(
        !render(&json!({ "networkPolicy": { "enabled": false } })).iter().any(|one| one["kind"] == "NetworkPolicy")
    );
}

#[test]
fn the_controller_knows_who_makes_the_certificates() {
    for (mode, flag) in [
        ("own", "--certificates=own"),
        ("external", "--certificates=external"),
        ("cert-manager", "--certificates=external"),
    ] {
        let objects = render(&json!({ "certificates": { "mode": mode } }));
        assert!(args(container(&objects, "controller")).contains(&flag), "{mode}");
        assert_eq!(has(&objects, "Certificate", "portcullis-policy-server"), mode == "cert-manager");
    }
}

#[test]
fn cert_manager_writes_the_secret_that_the_controller_reads_for_the_names_that_api_servers_call() {
    let objects = render(&json!({ "certificates": { "mode": "cert-manager" } }));
    let spec = &find(&objects, "Certificate", "portcullis-policy-server")["spec"];
    assert_eq!(spec["secretName"], "portcullis-default-external");
    let rights = find(&objects, "Role", "portcullis-controller")["rules"].as_array().unwrap().clone();
    let names = json!(["portcullis-default-external"]);
    let right = rights.iter().find(|rule| rule["resourceNames"] == names).unwrap();
    assert_eq!(right["verbs"], json!(["get"]));
    let own = render(&json!({}));
    assert!(!find(&own, "Role", "portcullis-controller").to_string().contains("external"));
    assert_eq!(spec["dnsNames"][0], "portcullis-policy-server.gate.svc");
    assert!(has(&objects, "Issuer", spec["issuerRef"]["name"].as_str().unwrap()));

    let issuer = json!({ "kind": "ClusterIssuer", "name": "internal" });
    let objects = render(&json!({ "certificates": { "mode": "cert-manager", "issuerRef": issuer } }));
    assert_eq!(find(&objects, "Certificate", "portcullis-policy-server")["spec"]["issuerRef"], issuer);
    assert!(!objects.iter().any(|object| object["kind"] == "Issuer"));
}

#[test]
fn the_authority_that_cert_manager_keeps_outlives_what_it_signs() {
    let objects = render(&json!({ "certificates": { "mode": "cert-manager" } }));
    let hours = |name| {
        let duration = &find(&objects, "Certificate", name)["spec"]["duration"];
        duration.as_str().and_then(|text| text.strip_suffix('h')).unwrap().parse::<u32>().unwrap()
    };
    // The authority is renewed after two thirds of its lifetime. A certificate that it signed just before must not outlive it.
    assert!(hours("portcullis-policy-server") < hours("portcullis-authority") / 3);
}

#[test]
fn classes_of_the_system_have_the_quota_that_some_clouds_ask_for() {
    let quota = |values| render(&values).into_iter().find(|object| object["kind"] == "ResourceQuota");
    let both =
        ["server", "controller"].map(|who| (who.to_owned(), json!({ "priorityClassName": "system-cluster-critical" })));
    let found = quota(both.into_iter().collect()).unwrap();
    let scope = &found["spec"]["scopeSelector"]["matchExpressions"];
    assert_eq!(
        *scope,
        json!([{ "scopeName": "PriorityClass", "operator": "In", "values": ["system-cluster-critical"] }])
    );
    assert!(quota(json!({ "server": { "priorityClassName": "high" } })).is_none());
    assert!(quota(json!({})).is_none());
}

#[test]
fn pods_run_on_linux_beside_what_else_is_asked_of_nodes() {
    let more = json!({ "nodeSelector": { "kubernetes.io/arch": "arm64" } });
    for (name, pod) in pods(&render(&json!({ "server": more, "controller": more }))) {
        let wanted = json!({ "kubernetes.io/arch": "arm64", "kubernetes.io/os": "linux" });
        assert_eq!(pod["nodeSelector"], wanted, "{name}");
    }
}

#[test]
fn definitions_come_with_the_chart_and_stay_when_it_goes() {
    let definitions = |values| {
        let objects = render(&values);
        objects.into_iter().filter(|object| object["kind"] == "CustomResourceDefinition").collect::<Vec<_>>()
    };
    let kept = definitions(json!({}));
    assert_eq!(kept.len(), 3);
    let leader = render(&json!({})).into_iter().filter(|object| {
        object["metadata"]["name"].as_str().is_some_and(|name| name.ends_with("-leader"))
            && object["kind"].as_str().is_some_and(|kind| kind.starts_with("ValidatingAdmissionPolicy"))
    });
    let stays: Vec<_> = kept.iter().cloned().chain(leader).collect();
    assert_eq!(stays.len(), 5);
    for object in &stays {
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations["helm.sh/resource-policy"], "keep");
        assert_eq!(annotations["argocd.argoproj.io/sync-options"], "Prune=false,Delete=false");
        assert_eq!(annotations["kustomize.toolkit.fluxcd.io/prune"], "disabled");
    }
    for definition in definitions(json!({ "crds": { "keep": false } })) {
        assert!(definition["metadata"]["annotations"]["helm.sh/resource-policy"].is_null());
    }
    assert!(definitions(json!({ "crds": { "install": false } })).is_empty());
}

#[test]
fn helm_test_asks_the_installation_with_an_account_that_may_do_nothing_else() {
    let objects = render(&json!({}));
    for kind in ["ServiceAccount", "Role", "RoleBinding", "Pod"] {
        let annotations = &find(&objects, kind, "portcullis-test")["metadata"]["annotations"];
        assert_eq!(annotations["helm.sh/hook"], "test", "{kind}");
    }
    assert!(!find(&objects, "Role", "portcullis-test")["rules"].to_string().contains("secrets"));
    let volumes = &find(&objects, "Pod", "portcullis-test")["spec"]["volumes"];
    let authority = volumes.as_array().unwrap().iter().find(|volume| volume["name"] == "authority").unwrap();
    assert_eq!(
        authority["secret"]["items"],
        json!([{ "key": "ca.crt", "path": "ca.crt" }]),
        "the key is none of its business"
    );
    assert!(args(container(&objects, "test")).contains(&"--check=/authority/ca.crt"));
}

#[test]
fn policies_are_checked_when_they_are_applied_only_if_a_value_says_so() {
    for (values, mode, timeout) in [
        (json!({}), "off", "10s"),
        (json!({ "policyChecks": { "mode": "warn" } }), "warn", "10s"),
        (json!({ "policyChecks": { "mode": "deny", "timeout": "30s" } }), "deny", "30s"),
    ] {
        let objects = render(&values);
        let checks = |name: &str| {
            let flags = args(container(&objects, name)).into_iter();
            flags.filter(|flag| flag.contains("checks")).map(str::to_owned).collect::<Vec<_>>()
        };
        let (mode, timeout) = (format!("--policy-checks={mode}"), format!("--policy-checks-timeout={timeout}"));
        assert_eq!(checks("controller"), [mode.clone(), timeout]);
        assert_eq!(checks("loader"), [mode]);
        for program in ["evaluator", "reporter"] {
            assert_eq!(checks(program), Vec::<String>::new(), "{program}");
        }
    }
}

#[test]
fn objects_that_exist_are_audited_only_if_a_value_says_so() {
    for (values, wanted) in [
        (json!({}), vec!["--audit=off"]),
        (
            json!({ "audit": { "enabled": true } }),
            vec!["--audit=on", "--audit-interval=1h", "--audit-format=openreports"],
        ),
        (everything(), vec!["--audit=on", "--audit-interval=30m", "--audit-format=wgpolicy"]),
    ] {
        let objects = render(&values);
        let flags: Vec<_> =
            args(container(&objects, "reporter")).into_iter().filter(|flag| flag.contains("audit")).collect();
        assert_eq!(flags, wanted);
    }
}

#[test]
fn objects_that_exist_are_counted_only_if_a_value_says_so() {
    for (impact, flag) in [(false, "--check-impact=off"), (true, "--check-impact=on")] {
        let objects = render(&json!({ "policyChecks": { "impact": impact } }));
        assert!(args(container(&objects, "loader")).contains(&flag), "{flag}");
    }
}

#[test]
fn who_registers_webhooks_and_who_advises_about_them_know_whether_they_are_shared() {
    for shares in [false, true] {
        let objects = render(&json!({ "controller": { "sharedWebhooks": shares } }));
        for name in ["controller", "loader"] {
            assert_eq!(args(container(&objects, name)).contains(&"--shared-webhooks"), shares, "{name}");
        }
    }
}

#[test]
fn siblings_find_each_other_by_a_headless_service_and_have_certificates_of_their_own() {
    let objects = render(&json!({ "siblings": { "enabled": true } }));
    let service = &find(&objects, "Service", "portcullis-siblings")["spec"];
    assert_eq!((&service["clusterIP"], &service["publishNotReadyAddresses"]), (&json!("None"), &json!(true)));
    let loader = container(&objects, "loader");
    assert!(args(loader).contains(&"--siblings=portcullis-siblings.gate.svc:8444"));
    assert!(args(container(&objects, "controller")).contains(&"--siblings"));
    let pod = &find(&objects, "Deployment", "portcullis-policy-server")["spec"]["template"]["spec"];
    let volume = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "siblings").unwrap();
    assert_eq!(volume["secret"]["secretName"], "portcullis-default-siblings");
    for container in crate::containers(pod) {
        let has = container["volumeMounts"].to_string().contains("/siblings");
        assert_eq!(has, container["name"] == "loader", "{}", container["name"]);
    }
    let objects = render(&json!({}));
    assert!(!has(&objects, "Service", "portcullis-siblings"));
    assert!(!container(&objects, "loader").to_string().contains("8444"));
}
