//! Faults during an audit of existing objects: rows C05 to C10 and Z23, and a policy that never ends.

use std::net::{Ipv4Addr, TcpListener};

use portcullis_e2e::{Canary, Installation, PodSetup, Policy, Program, Proxy, Rule, Usage, eventually, note};
use serde_json::{Value, json};

use crate::audit::{
    COUNTED, NO_TEAM, ReportKind, asked, counted, counted_namespaces, fill, found, install, labels,
    labels_of_namespaces, put_label, reported, scan, wait_exact, wait_exact_in,
};
use crate::{cluster, leading_pod};

/// A pod whose evaluator spends so little time on audits that a scan of a few dozen objects takes a while.
fn slow() -> PodSetup {
    PodSetup::default().flag(Program::Evaluator, "--audit-share", 2)
}

/// Starts a controller and these replicas, waits until all are ready, and starts a canary. Nothing of it is in a report: the
/// reporters may not list service accounts.
fn with(installation: &Installation<'_>, replicas: impl IntoIterator<Item = PodSetup>) -> Canary {
    installation.start_controller();
    for setup in replicas {
        installation.add_replica_with(setup);
    }
    installation.wait_ready();
    installation.own_canary()
}

/// The number of attempts to do something in the middle of a scan.
const ROUNDS: usize = 5;

fn message(audit: &Value) -> &str {
    audit["message"].as_str().unwrap_or_default()
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c05_the_leader_dies_in_the_middle_of_a_scan_and_another_one_completes_it() {
    let installation = install("audit-killed", "openreports");
    let namespace = installation.make_namespace("a");
    fill(&installation, &namespace, 60, |number| number % 2 == 0);
    let canary = with(&installation, [slow(), slow()]);
    let replicas = installation.replicas();
    let is_proven = (0..ROUNDS).any(|round| {
        let policy = labels(&installation, &format!("audit-killed-{round}"));
        let is_over = || installation.object(&policy).is_some_and(|object| object["status"]["audit"]["checked"] == 60);
        let leader = leading_pod(&installation);
        let pod = replicas.iter().find(|pod| pod.name() == leader).expect("a pod that leads");
        let before = asked(pod);
        installation.apply_ready(std::slice::from_ref(&policy));
        eventually("the middle of a scan", || (asked(pod) >= before + 5 || is_over()).then_some(()));
        pod.stop(Program::Reporter);
        // On a busy machine, the scan may be over by now.
        let is_proof = !is_over();
        wait_exact(&installation, &policy, std::slice::from_ref(&namespace));
        if is_proof {
            assert_ne!(leading_pod(&installation), leader);
        }
        pod.start(Program::Reporter);
        installation.wait_ready();
        is_proof
    });
    assert!(is_proven, "in none of {ROUNDS} rounds the reporter was killed in the middle of a scan");
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c06_a_list_that_expires_is_begun_again() {
    let installation = install("audit-expired", "openreports");
    let namespace = installation.make_namespace("a");
    // They take more than one page of the largest size: the list that is begun again has such pages from the start.
    fill(&installation, &namespace, 220, |number| number % 4 == 0);
    let proxy = Proxy::start(cluster());
    let expired = "The provided continue parameter is too old to display a consistent list result.";
    // Only the second page of ConfigMaps has expired, not one of other kinds.
    proxy.rule(Rule::on("GET", "/configmaps?").times(1));
    proxy.rule(Rule::on("GET", "/configmaps?").times(1).answer(410, expired));
    let canary = with(&installation, [PodSetup::default().through(Program::Reporter, proxy.address())]);
    let policy = labels(&installation, "audit-expired-labels");
    installation.apply_ready(std::slice::from_ref(&policy));
    let audit = wait_exact(&installation, &policy, &[namespace]);
    assert_eq!(message(&audit), "", "{audit}");
    let mut pages = proxy.requests_of("GET", "continue=");
    pages.retain(|page| page.path.contains("/configmaps?"));
    assert!(pages.len() >= 2 && pages[0].status == Some(410), "{pages:?}");
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c07_objects_that_vanish_during_a_scan_leave_no_report() {
    let is_proven = (0..ROUNDS).any(vanish_during_a_scan);
    assert!(
        is_proven,
        "in none of {ROUNDS} rounds objects vanished after they were listed and before they were audited"
    );
}

/// Asserts that objects which vanish before a scan comes to them leave no report. False if the scan came to them first, as it may on a busy
/// machine: that proves nothing.
fn vanish_during_a_scan(round: usize) -> bool {
    let installation = install(&format!("audit-vanished-{round}"), "openreports");
    let namespaces = [installation.make_namespace("a")];
    fill(&installation, &namespaces[0], 40, |_| true);
    let config_maps = format!("/api/v1/namespaces/{}/configmaps", namespaces[0]);
    for number in 20..40 {
        put_label(&installation, &format!("{config_maps}/object-{number:03}"), "vanishes", "yes");
    }
    let canary = with(&installation, [slow()]);
    let policy = labels(&installation, &format!("audit-vanished-labels-{round}"));
    installation.apply_ready(std::slice::from_ref(&policy));
    let [pod] = installation.replicas().try_into().ok().expect("one replica");
    eventually("the beginning of a scan", || (asked(&pod) >= 2).then_some(()));
    // These objects have been listed, but not audited yet.
    let vanishing = format!("{config_maps}?labelSelector=vanishes");
    installation.api().delete(&vanishing, None).expect("an API server answers").expect("a deletion");
    let audited = asked(&pod);
    if audited >= 20 {
        note(&format!("{audited} objects were audited before the others were gone"));
        canary.end();
        return false;
    }
    let audit = found(&installation, &policy, "the end of the scan", |audit| audit["generation"] == 1);
    assert_eq!(
        (&audit["checked"], &audit["errors"], message(&audit)),
        (&json!(40), &json!(0), ""),
        "{audited} were audited before the others were gone: {audit}"
    );
    scan(&installation, &policy);
    wait_exact(&installation, &policy, &namespaces);
    assert_eq!(counted(&installation, &namespaces).1, 20);
    canary.end();
    true
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c08_without_the_definitions_of_reports_the_figures_are_right_and_the_status_says_what_is_missing() {
    // No other test installs the older kinds of reports in this cluster.
    let installation = install("audit-undefined", "wgpolicy");
    allow_older_reports(&installation);
    let namespaces = ["a", "b", "c"].map(|suffix| installation.make_namespace(suffix));
    let [namespace, labelled, _] = &namespaces;
    put_label(&installation, &format!("/api/v1/namespaces/{labelled}"), "team", "shop");
    fill(&installation, namespace, 20, |number| number < 7);
    let canary = with(&installation, [PodSetup::default()]);
    let policy = labels(&installation, "audit-undefined-labels");
    let of_namespaces = labels_of_namespaces(&installation, "audit-undefined-namespaces");
    installation.apply_ready(&[policy.clone(), of_namespaces.clone()]);
    let audit = found(&installation, &policy, "its figures, and what is missing", |audit| {
        let words = ["policyreports.wgpolicyk8s.io", "CustomResourceDefinitions"];
        audit["checked"] == 20 && words.iter().all(|words| message(audit).contains(words))
    });
    assert_eq!((&audit["violations"], &audit["errors"]), (&json!(7), &json!(0)), "{audit}");
    // The policy itself works.
    let denied = installation.create_pod(namespace, "other", &json!({}));
    assert!(denied.is_ok(), "{denied:?}");
    installation.wait_for(&policy, "Ready", "True");

    // Once they are installed, the next scan writes reports of both kinds.
    cluster().install_policy_reports();
    eventually("a scan after which nothing is missing", || {
        message(&scan(&installation, &policy)).is_empty().then_some(())
    });
    let config_maps = counted(&installation, &namespaces);
    wait_exact_in(&installation, ReportKind::PolicyReport, &policy, NO_TEAM, &config_maps, &namespaces);
    let all = counted_namespaces(&installation);
    assert_eq!((all.0.len(), all.1), (2, 3));
    wait_exact_in(&installation, ReportKind::ClusterPolicyReport, &of_namespaces, NO_TEAM, &all, &namespaces);
    // Objects that get the label lose their reports.
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/object-000");
    put_label(&installation, &path, "team", "shop");
    put_label(&installation, &format!("/api/v1/namespaces/{namespace}"), "team", "shop");
    scan(&installation, &policy);
    let config_maps = counted(&installation, &namespaces);
    assert_eq!(config_maps.0.len(), 6);
    wait_exact_in(&installation, ReportKind::PolicyReport, &policy, NO_TEAM, &config_maps, &namespaces);
    let all = counted_namespaces(&installation);
    wait_exact_in(&installation, ReportKind::ClusterPolicyReport, &of_namespaces, NO_TEAM, &all, &namespaces);
    canary.end();
}

/// Grants the rights that the chart would grant for the older kinds of reports.
fn allow_older_reports(installation: &Installation<'_>) {
    let name = format!("{}-older-reports", installation.policy_server());
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": name },
        "rules": [{
            "apiGroups": ["wgpolicyk8s.io"], "resources": ["policyreports", "clusterpolicyreports"],
            "verbs": ["get", "list", "create", "update", "patch", "delete"],
        }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{
            "kind": "ServiceAccount", "name": portcullis_e2e::POLICY_SERVER_ACCOUNT, "namespace": installation.namespace(),
        }],
    });
    for object in [role, binding] {
        installation.cluster().apply(&object.to_string()).expect("a right");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c09_a_namespace_without_room_for_reports_costs_no_other_its_reports() {
    let installation = install("audit-quota", "openreports");
    let namespaces = ["full", "free"].map(|suffix| installation.make_namespace(suffix));
    for namespace in &namespaces {
        fill(&installation, namespace, 10, |number| number < 4);
    }
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "reports", "namespace": namespaces[0] },
        "spec": { "hard": { "count/reports.openreports.io": "1" } },
    });
    let path = format!("/api/v1/namespaces/{}/resourcequotas/reports", namespaces[0]);
    let delete_quota =
        || installation.api().delete(&path, None).expect("an API server answers").expect("the deletion of a quota");
    eventually("a quota that counts", || {
        installation.cluster().apply(&quota.to_string()).expect("a quota");
        let status = &installation.api().get(&path)?["status"];
        // The controller of quotas looks for new kinds every 30 seconds. One that it has seen before it knew the kind counts minutes later.
        let is_too_early = status["hard"].is_object() && status["used"].is_null();
        if is_too_early {
            delete_quota();
        }
        (!status["used"].is_null()).then_some(())
    });
    let canary = with(&installation, [PodSetup::default()]);
    let policy = labels(&installation, "audit-quota-labels");
    installation.apply_ready(std::slice::from_ref(&policy));
    let audit = found(&installation, &policy, "its figures, and the quota", |audit| {
        audit["checked"] == 20 && message(audit).contains("quota")
    });
    assert_eq!((&audit["violations"], &audit["errors"]), (&json!(8), &json!(0)), "{audit}");
    let id = format!("cluster/{}", policy.name());
    let of = |namespace: &String| reported(&installation, &id, std::slice::from_ref(namespace)).len();
    eventually("the reports that there is room for", || {
        ((of(&namespaces[0]), of(&namespaces[1])) == (1, 4)).then_some(())
    });

    // Without the quota, the remaining reports are written.
    delete_quota();
    let complete = || {
        scan(&installation, &policy);
        (of(&namespaces[0]) == 4).then_some(())
    };
    eventually("all reports", complete);
    wait_exact(&installation, &policy, &namespaces);
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c09_a_webhook_that_never_answers_about_reports_of_a_namespace_costs_no_other_its_reports() {
    const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let installation = install("audit-silent", "openreports");
    // Objects of the first one come first.
    let namespaces = ["a", "b"].map(|suffix| installation.make_namespace(suffix));
    for namespace in &namespaces {
        fill(&installation, namespace, 10, |number| number < 4);
    }
    let report = json!({ "apiVersion": "openreports.io/v1alpha1", "kind": "Report", "metadata": { "name": "probe" } });
    let path = format!("/apis/openreports.io/v1alpha1/namespaces/{}/reports?dryRun=All&timeout=1s", namespaces[0]);
    let can_write = || installation.api().create(&path, &report).expect("an API server answers").is_ok();
    eventually("a report that could be written", || can_write().then_some(()));
    // The kernel accepts its connections, and nobody reads from them.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "audit-silent" },
        "webhooks": [{
            "name": "silent.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 30,
            "clientConfig": { "url": format!("https://{}/", silent.local_addr().expect("it listens")) },
            "rules": [{
                "apiGroups": ["openreports.io"], "apiVersions": ["*"], "operations": ["*"], "resources": ["reports"],
            }],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespaces[0] } },
        }],
    });
    installation.cluster().apply(&webhook.to_string()).expect("a webhook");
    eventually("a webhook that is called", || (!can_write()).then_some(()));

    let canary = with(&installation, [PodSetup::default()]);
    let policy = labels(&installation, "audit-silent-labels");
    installation.apply_ready(std::slice::from_ref(&policy));
    let told = format!("not all reports could be written: writes in namespace {} took ", namespaces[0]);
    let audit = found(&installation, &policy, "its figures, and the slow namespace", |audit| {
        audit["checked"] == 20 && message(audit).contains(&told)
    });
    assert_eq!((&audit["violations"], &audit["errors"]), (&json!(8), &json!(0)), "{audit}");
    let id = format!("cluster/{}", policy.name());
    let written = namespaces.each_ref().map(|namespace| reported(&installation, &id, std::slice::from_ref(namespace)));
    assert_eq!(written.map(|reports| reports.len()), [0, 4]);

    // Without the webhook, the next scan writes the others.
    installation.api().delete(&format!("{CONFIGURATIONS}/audit-silent"), None).expect("an answer").expect("a deletion");
    eventually("a report that could be written", || can_write().then_some(()));
    let audit = scan(&installation, &policy);
    assert_eq!(message(&audit), "", "{audit}");
    wait_exact(&installation, &policy, &namespaces);
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c10_a_kind_that_may_not_be_listed_is_named_and_the_others_are_audited() {
    let installation = install("audit-forbidden", "openreports");
    let namespaces = [installation.make_namespace("a")];
    fill(&installation, &namespaces[0], 20, |number| number < 5);
    let canary = with(&installation, [PodSetup::default()]);
    let both: Policy = labels(&installation, "audit-forbidden-both").on(&["configmaps", "services"]);
    let other = labels(&installation, "audit-forbidden-other");
    installation.apply_ready(&[both.clone(), other.clone()]);
    let audit = found(&installation, &both, "its figures", |audit| audit["checked"] == 20);
    assert_eq!((&audit["violations"], &audit["unreadable"]), (&json!(5), &json!(["services"])), "{audit}");
    assert!(message(&audit).contains("could not be listed"), "{audit}");
    // A policy that is not about this kind is not affected.
    let audit = wait_exact(&installation, &other, &namespaces);
    assert_eq!((message(&audit), &audit["unreadable"]), ("", &Value::Null), "{audit}");
    wait_exact(&installation, &both, &namespaces);
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn promise_an_endless_policy_of_a_namespace_costs_others_no_verdict_and_says_which_objects_are_left_out() {
    let installation = install("audit-endless", "openreports");
    let namespaces = ["a", "b"].map(|suffix| installation.make_namespace(suffix));
    for namespace in &namespaces {
        fill(&installation, namespace, 20, |number| number < 5);
    }
    let canary = with(&installation, [PodSetup::default().flag(Program::Evaluator, "--audit-share", 100)]);
    let endless = installation.policy(&namespaces[0], "endless").guest("endless_loop").on(&["configmaps"]);
    let endless = endless.field("objectSelector", json!({ "matchLabels": { COUNTED: "yes" } }));
    let endless = endless.field("failurePolicy", "Ignore");
    let others = labels(&installation, "audit-endless-labels");
    installation.apply_ready(&[endless.clone(), others.clone()]);
    let audit = wait_exact(&installation, &others, &namespaces);
    assert_eq!(message(&audit), "", "{audit}");
    let audit = found(&installation, &endless, "what was left out", |audit| {
        ["objects were not audited (ConfigMap ", "asks about them"].iter().all(|words| message(audit).contains(words))
    });
    assert_eq!((&audit["violations"], &audit["errors"]), (&json!(0), &audit["checked"]), "{audit}");
    assert!(audit["checked"].as_i64().is_some_and(|checked| checked < 20), "{audit}");
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z23_objects_that_take_much_memory_when_they_are_decoded_are_audited() {
    /// How many objects there are. Each has 700 KiB of small fields, and takes about 18 MiB when it is decoded.
    const OBJECTS: usize = 20;
    const FIELDS: usize = 60_000;
    /// The memory limit of the chart.
    const LIMIT: u64 = 256 << 20;
    let installation = install("audit-nested", "openreports");
    let namespace = installation.make_namespace("a");
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let fields: Vec<_> = (0..FIELDS).map(|number| format!(r#""{number}":"""#)).collect();
    for number in 0..OBJECTS {
        let object = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"object-{number:03}","labels":{{"{COUNTED}":"yes"}}}},"data":{{{}}}}}"#,
            fields.join(",")
        );
        installation.api().create_bytes(&path, object.as_bytes()).expect("an API server answers").expect("a ConfigMap");
    }
    let canary = with(&installation, [PodSetup::default()]);
    let policy = labels(&installation, "audit-nested-labels");
    installation.apply_ready(std::slice::from_ref(&policy));
    let audit = wait_exact(&installation, &policy, &[namespace]);
    assert_eq!((&audit["checked"], message(&audit)), (&json!(OBJECTS), ""), "{audit}");
    let [pod] = installation.replicas().try_into().ok().expect("one replica");
    let usage = Usage::of(pod.program(Program::Reporter).pid().expect("it runs"));
    note(&format!("an audit of small fields: the reporter has {usage}"));
    assert!(usage.peak < LIMIT, "{usage}");
    // Other tests use the same API server, whose memory they fill as well.
    installation.api().delete_collection(&path);
    canary.end();
}
