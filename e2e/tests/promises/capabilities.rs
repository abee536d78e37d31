//! Policies that read objects of the cluster and ask for the rights of users, with a real API server.

use std::thread;
use std::time::{Duration, Instant};

use portcullis_e2e::{
    Installation, PodSetup, Program, Proxy, Rule, condition, eventually, eventually_within, one_round_in_time,
};
use portcullis_testkit::Bound;
use serde_json::{Value, json};

use crate::installation;
use crate::reads::{
    KIND, answers, asks, assert_stays_refused, assert_waits_for_objects, count, grant, has_context, has_webhook,
    judges, kinds, known, limit_range, list_of, listed, raw, try_config_map, unavailable, wait_for_context,
    wait_for_refusal, wait_for_verdict,
};

/// How long a watch must have failed until its objects are reported as stale.
const STALE: Duration = Duration::from_secs(60);
/// The longest wait until objects are reported as stale.
const OLD: Duration = Duration::from_secs(300);
/// How long a watch without changes has not failed until it counts as working, and its objects are no longer old.
const SETTLED: Duration = Duration::from_secs(50);
/// How soon they must be no longer old where some have changed.
const AT_ONCE: Bound =
    Bound { limit: Duration::from_secs(4 + 10), reason: "the longest pause between two tries, and ten seconds" };

/// Whether each of these texts is in one of the answers, and each of these values is an answer.
fn has(answers: &[String], texts: &[&str], values: &[&Value]) -> bool {
    texts.iter().all(|text| answers.iter().any(|answer| answer.contains(text)))
        && values.iter().all(|value| count(answers, value) > 0)
}

/// Waits until the answers [`have`](has) these texts and values.
fn wait_for(
    installation: &Installation<'_>,
    (namespace, policy): (&str, &str),
    what: &str,
    texts: &[&str],
    values: &[&Value],
) {
    let mut last = Vec::new();
    eventually(what, || {
        let answers = answers(installation, namespace, policy);
        if answers != last {
            eprintln!("{answers:#?}");
        }
        last = answers;
        has(&last, texts, values).then_some(())
    });
}

#[test]
#[ignore = "starts a cluster"]
fn a_policy_reads_objects_and_sees_what_changes() {
    let installation = installation("reads", 1);
    let shop = installation.make_namespace("shop");
    limit_range(&installation, &shop, "first", &shop);
    let list = json!({
        "api_version": "v1", "kind": KIND, "label_selector": format!("for={shop}"), "field_masks": ["metadata.name", "spec.limits.max"],
    });
    let in_shop = |more: &Value| {
        let mut payload = json!({"api_version": "v1", "kind": KIND, "namespace": shop});
        payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        payload
    };
    let calls = json!([
        raw("kubernetes/list_resources_all", &list),
        raw("kubernetes/list_resources_by_namespace", &in_shop(&json!({"field_masks": ["metadata.name"]}))),
        raw(
            "kubernetes/get_resource",
            &in_shop(&json!({"name": "first", "disable_cache": true, "field_masks": ["metadata.labels"]}))
        ),
        raw(
            "kubernetes/can_i",
            &json!({"disable_cache": true, "subject_access_review": {
                "user": "system:admin", "groups": ["system:masters"], "resource_attributes": {"resource": "secrets", "verb": "get"},
            }})
        ),
    ]);
    installation.apply_ready(&[asks(&installation, &shop, "reads", &calls)]);
    let path = |name: &str| format!("/api/v1/namespaces/{shop}/limitranges/{name}");
    let limits = json!({"spec": {"limits": [{"max": {"cpu": "4"}}]}});
    let list_of = |names: &[&str], more: &Value| {
        list_of(&names.iter().map(|name| listed(&installation, &path(name), more)).collect::<Vec<_>>())
    };
    let (labelled, all) = (list_of(&["first"], &limits), list_of(&["first"], &json!({})));
    let single = known(&installation, &path("first"));
    assert!(single["metadata"]["managedFields"].is_array(), "{single}");
    let asked = (shop.as_str(), "reads");
    wait_for(&installation, asked, "all answers", &[r#"{"allowed":true"#], &[&labelled, &all, &single]);
    limit_range(&installation, &shop, "second", &shop);
    limit_range(&installation, &shop, "third", "mail");
    // A label selects the first two of them.
    let labelled = list_of(&["first", "second"], &limits);
    let all = list_of(&["first", "second", "third"], &json!({}));
    wait_for(&installation, asked, "what was made", &[], &[&labelled, &all]);
    let again = answers(&installation, &shop, "reads");
    assert!(has(&again, &[], &[&labelled, &all]), "a label selects: {again:?}");
    installation.api().delete(&path("first"), None).unwrap();
    let missing = ["Cannot find v1/LimitRange named 'first' inside of namespace"];
    wait_for(&installation, asked, "what was deleted", &missing, &[]);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_b05_reads_that_the_api_server_refuses() {
    let installation = installation("refused", 1);
    let canary = installation.own_canary();
    let shop = installation.make_namespace("shop");
    limit_range(&installation, &shop, "first", &shop);
    let list = |kind: &str| {
        let (selector, masks) = (format!("for={shop}"), ["metadata.name"]);
        let query = json!({"api_version": "v1", "kind": kind, "field_masks": masks, "label_selector": selector});
        raw("kubernetes/list_resources_all", &query)
    };
    let calls = json!([list("Service"), list("Nothing"), list("Secret"), list(KIND)]);
    let policy = asks(&installation, &shop, "refused", &calls);
    installation.apply_ready(std::slice::from_ref(&policy));
    // The policy was enforced, and still gets requests after an edit to kinds that cannot be read.
    let more = policy.field("contextAwareResources", kinds(&[KIND, "Service", "Nothing"]));
    installation.apply(&more).expect("the policy");
    wait_for_context(&installation, &more, "False", "ContextForbidden", "resources: [services]");
    installation.wait_for(&more, "Ready", "False");
    let first = format!("/api/v1/namespaces/{shop}/limitranges/first");
    wait_for(
        &installation,
        (&shop, "refused"),
        "an answer to each",
        &[
            "failed to list v1/Service: the API server refused with 403",
            "Cannot find resource v1/Nothing",
            "Policy has not been granted access to Kubernetes v1/Secret resources",
        ],
        &[&list_of(&[listed(&installation, &first, &json!({}))])],
    );
    // Whatever the policy makes of it, the audit log says that a capability failed.
    eventually("the annotation", || {
        let told = unavailable(&installation, "refused");
        told.iter()
            .any(|text| text.starts_with("kubernetes/list_resources_all: ") && text.contains("v1/Nothing"))
            .then_some(())
    });
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_b06_the_api_server_is_away() {
    let installation = installation("away", 0);
    let proxy = Proxy::start(installation.cluster());
    let setup = PodSetup::default().through(Program::Loader, proxy.address());
    installation.add_replica_with(setup).wait_ready();
    let canary = installation.own_canary();
    let shop = installation.make_namespace("shop");
    limit_range(&installation, &shop, "first", &shop);
    let kind = json!({
        "api_version": "v1", "kind": KIND, "field_masks": ["metadata.name"], "label_selector": format!("for={shop}"),
    });
    let get = json!({"api_version": "v1", "kind": KIND, "name": "first", "namespace": shop, "disable_cache": true});
    let calls = json!([raw("kubernetes/list_resources_all", &kind), raw("kubernetes/get_resource", &get)]);
    let policy = asks(&installation, &shop, "away", &calls);
    installation.apply_ready(std::slice::from_ref(&policy));
    let in_list =
        |name: &str| listed(&installation, &format!("/api/v1/namespaces/{shop}/limitranges/{name}"), &json!({}));
    let known = list_of(&[in_list("first")]);
    let (asked, single) = ((shop.as_str(), "away"), [r#""limits":[{"#]);
    wait_for(&installation, asked, "both answers", &single, &[&known]);
    // The policy lists only metadata, so only metadata is requested.
    let lists = eventually("lists and watches, those of the policy and those before its first call", || {
        let lists = proxy.requests_of("GET", "/api/v1/limitranges?");
        (lists.len() >= 4).then_some(lists)
    });
    assert!(lists.iter().all(|list| list.accept.contains("as=PartialObjectMetadata")), "{lists:?}");
    let closed = Instant::now();
    proxy.close();
    let away = ["failed to reach the API server"];
    wait_for(&installation, asked, "the list from memory, and the cause", &away, &[&known]);
    // Each call gets both, also after a minute, when the list counts as old.
    let assert_both = || {
        let answers = answers(&installation, &shop, "away");
        assert!(has(&answers, &away, &[&known]), "{:?} after the API server went: {answers:?}", closed.elapsed());
    };
    eventually_within(OLD, "ContextSynced=False, ContextStale", || {
        assert_both();
        let is_old = |object: &Value| has_context(object, "False", "ContextStale", "v1/LimitRange: known as of 20");
        installation.object(&policy).filter(is_old)
    });
    assert!(closed.elapsed() >= STALE, "old after {:?}", closed.elapsed());
    assert_both();
    eventually("the annotation", || {
        let told = unavailable(&installation, "away");
        told.iter().any(|text| text.starts_with("kubernetes/get_resource: ")).then_some(())
    });
    limit_range(&installation, &shop, "second", &shop);
    proxy.open();
    let both = list_of(&[in_list("first"), in_list("second")]);
    wait_for(&installation, asked, "what was made meanwhile", &single, &[&both]);
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn rules_in_rego_judge_by_the_objects_of_the_cluster() {
    let installation = installation("rego", 1);
    let [shop, mail] = ["shop", "mail"].map(|name| installation.make_namespace(name));
    let kinds = ["LimitRange", "Namespace"];
    let label = json!({"exemptLabel": "exempt"});
    let policies = [
        judges(&installation, &shop, "limits-required", "limits-required", &kinds).field("settings", label),
        judges(&installation, &mail, "unique-names", "unique-names", &kinds),
    ];
    installation.apply_ready(&policies);
    // Mode opa, with namespaced and cluster-scoped objects.
    let no_range = format!("namespace {shop} has no LimitRange");
    wait_for_verdict(&installation, &shop, "a", Some(&no_range));
    assert!(!try_config_map(&installation, &shop, "a").1.contains("is not known"));
    limit_range(&installation, &shop, "taken", &shop);
    wait_for_verdict(&installation, &shop, "a", None);
    // Mode gatekeeper, with the same kinds of objects.
    let taken = format!("LimitRange {shop}/taken has this name");
    wait_for_verdict(&installation, &mail, "taken", Some(&taken));
    wait_for_verdict(&installation, &mail, "free", None);
    wait_for_verdict(&installation, &mail, &shop, Some(&format!("Namespace {shop} has this name")));
    // Both see changes of the objects.
    installation.api().delete(&format!("/api/v1/namespaces/{shop}/limitranges/taken"), None).unwrap();
    wait_for_verdict(&installation, &shop, "a", Some(&no_range));
    wait_for_verdict(&installation, &mail, "taken", None);
    let exempt = json!({"metadata": {"labels": {"exempt": "yes"}}});
    installation.api().patch(&format!("/api/v1/namespaces/{shop}"), &exempt).unwrap();
    wait_for_verdict(&installation, &shop, "a", None);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_b07_objects_for_rego_that_the_api_server_refuses_or_are_too_many() {
    let installation = installation("rego-refused", 1);
    let canary = installation.own_canary();
    let cases = [
        ("rego-forbidden", "Service", "failed to list v1/Service: the API server refused with 403"),
        ("rego-unknown", "Nothing", "Cannot find resource v1/Nothing"),
        ("rego-large", "PodTemplate", "remove kinds that the rules do not read from contextAwareResources"),
    ];
    let cases = cases.map(|(name, kind, text)| (installation.make_namespace(name), name, kind, text));
    let templates = format!("/api/v1/namespaces/{}/podtemplates", cases[2].0);
    for number in 0..9 {
        let container = json!({
            "name": "main", "image": "example.invalid/none", "env": [{"name": "LARGE", "value": "x".repeat(1 << 20)}],
        });
        let object = json!({
            "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": format!("large-{number}")},
            "template": {"metadata": {"labels": {"app": "large"}}, "spec": {"containers": [container]}},
        });
        assert_eq!(installation.api().create(&templates, &object).unwrap().code, 201);
    }
    let policies: Vec<_> = cases
        .iter()
        .map(|(namespace, name, _, _)| judges(&installation, namespace, name, "unique-names", &["LimitRange"]))
        .collect();
    installation.apply_ready(&policies);
    for (policy, (_, _, kind, _)) in policies.into_iter().zip(&cases) {
        let more = policy.field("contextAwareResources", kinds(&["LimitRange", kind]));
        installation.apply(&more).expect("the policy");
    }
    for (namespace, _, _, text) in &cases {
        // Until the new generation is there, the one before it judges.
        wait_for_verdict(&installation, namespace, "a", Some(text));
        assert_stays_refused(&installation, namespace, "a", text);
    }
    eventually("the sum of the objects", || {
        let (code, message) = try_config_map(&installation, &cases[2].0, "a");
        (code == 503 && message.contains("the limit is 8388608 (v1/PodTemplate 9")).then_some(())
    });
    // With fewer objects, the policy judges again.
    installation.api().delete(&format!("{templates}/large-0"), None).unwrap();
    installation.api().delete(&format!("{templates}/large-1"), None).unwrap();
    wait_for_verdict(&installation, &cases[2].0, "a", None);
    // So does the one whose kind was refused, with the right to read it.
    grant(&installation, "", "services");
    wait_for_verdict(&installation, &cases[0].0, "a", None);
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_b08_the_api_server_is_away_when_rego_needs_objects() {
    let installation = installation("rego-away", 0);
    installation.without_canary("the loader of the only replica is killed, and until it is back no replica is ready");
    let proxy = Proxy::start(installation.cluster());
    let setup = PodSetup::default().through(Program::Loader, proxy.address());
    let pod = installation.add_replica_with(setup);
    pod.wait_ready();
    let shop = installation.make_namespace("shop");
    let policy = judges(&installation, &shop, "rego-away", "limits-required", &["LimitRange", "Namespace"]);
    installation.apply_ready(std::slice::from_ref(&policy));
    let no_range = format!("namespace {shop} has no LimitRange");
    // Before the first list, no objects are known, so the policy does not judge.
    proxy.close();
    pod.kill(Program::Loader);
    let missing = "objects of the cluster are missing";
    wait_for_refusal(&installation, &shop, "a", missing);
    wait_for_context(&installation, &policy, "False", "ContextNotSynced", "v1/LimitRange");
    installation.wait_ready();
    wait_for_refusal(&installation, &shop, "a", missing);
    assert_stays_refused(&installation, &shop, "a", missing);
    proxy.open();
    wait_for_refusal(&installation, &shop, "a", &no_range);
    assert_stays_refused(&installation, &shop, "a", &no_range);
    // While the API server is unreachable again, the policy judges by the known objects.
    proxy.close();
    for _ in 0..3 {
        thread::sleep(Duration::from_secs(1));
        assert_stays_refused(&installation, &shop, "a", &no_range);
    }
    limit_range(&installation, &shop, "made-meanwhile", &shop);
    proxy.open();
    wait_for_verdict(&installation, &shop, "a", None);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_b09_policies_wait_for_what_they_read_and_say_what_to_grant() {
    let installation = installation("context", 0);
    let proxy = Proxy::start(installation.cluster());
    let setup = PodSetup::default().through(Program::Loader, proxy.address());
    installation.add_replica_with(setup).wait_ready();
    let canary = installation.own_canary();
    let [shop, mail, post] = ["shop", "mail", "post"].map(|name| installation.make_namespace(name));
    let list = raw("kubernetes/list_resources_all", &json!({"api_version": "v1", "kind": "Namespace"}));
    let policies = [
        judges(&installation, &shop, "context-rego", "unique-names", &["Namespace"]),
        asks(&installation, &mail, "context-calls", &json!([list]))
            .field("contextAwareResources", kinds(&["Namespace"])),
    ];
    // While the API server does not answer the list, the policies are loaded but not registered.
    proxy.rule(Rule::on("GET", "/api/v1/namespaces").answer(503, "not now"));
    for policy in &policies {
        installation.apply(policy).expect("the policy");
        wait_for_context(&installation, policy, "False", "ContextNotSynced", "the API server refused with 503");
    }
    for (policy, namespace) in policies.iter().zip([&shop, &mail]) {
        assert_waits_for_objects(&installation, policy, namespace);
    }
    proxy.clear();
    for policy in &policies {
        installation.wait_for(policy, "Ready", "True");
        installation.wait_for(policy, "ContextSynced", "True");
    }
    wait_for_verdict(&installation, &shop, &mail, Some(&format!("Namespace {mail} has this name")));
    assert!(has_webhook(&installation, &shop) && has_webhook(&installation, &mail));
    // One watch is of all objects for rules in Rego, the other is a probe for guests that make calls.
    eventually("two watches", || (proxy.watches("/api/v1/namespaces") == 2).then_some(()));

    // If the API server refuses a kind, the status names it and the rule, and granting the rule is enough.
    let policy = judges(&installation, &post, "context-forbidden", "unique-names", &["Endpoints"]);
    installation.apply(&policy).expect("the policy");
    let rule = r#"v1/Endpoints: grant {apiGroups: [""], resources: [endpoints], verbs: [get, list, watch]}"#;
    wait_for_context(&installation, &policy, "False", "ContextForbidden", rule);
    assert_waits_for_objects(&installation, &policy, &post);
    installation.wait_for(&policy, "Stalled", "True");
    grant(&installation, "", "endpoints");
    installation.wait_for(&policy, "Ready", "True");
    let object = installation
        .wait_for_object(&policy, "what served last", |object| object["status"]["lastServed"]["generation"] == 1);
    assert_eq!(object["metadata"]["generation"], 1);

    // The watch ends once neither the current manifest nor the previous one needs it.
    eventually("one watch", || (proxy.watches("/api/v1/endpoints") == 1).then_some(()));
    installation.api().delete(&policy.path(), None).unwrap();
    eventually("the end of the policy", || installation.object(&policy).is_none().then_some(()));
    for (is_suspended, reason) in [(true, "Suspended"), (false, "Active")] {
        let other = policies[0].clone().field("suspend", is_suspended);
        installation.apply(&other).expect("the policy");
        installation.wait_for_object(&other, reason, |object| {
            condition(object, "Ready").is_some_and(|ready| ready["reason"] == reason)
        });
    }
    eventually("the end of the watch", || (proxy.watches("/api/v1/endpoints") == 0).then_some(()));
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_b09_a_policy_waits_for_a_kind_that_is_not_installed_yet() {
    let installation = installation("context-unknown", 1);
    let canary = installation.own_canary();
    let shop = installation.make_namespace("shop");
    let read = json!([
        { "apiVersion": "v1", "kind": "Namespace" },
        { "apiVersion": "context.example.com/v1", "kind": "Gadget" },
    ]);
    let policy = judges(&installation, &shop, "context-unknown", "unique-names", &[]);
    let policy = policy.field("contextAwareResources", read);
    installation.apply(&policy).expect("the policy");
    let cause = "context.example.com/v1/Gadget: Cannot find resource context.example.com/v1/Gadget; install its \
                 CustomResourceDefinition";
    wait_for_context(&installation, &policy, "False", "ContextKindUnknown", cause);
    assert_waits_for_objects(&installation, &policy, &shop);
    installation.wait_for(&policy, "Stalled", "True");

    // Once the kind is there, the right to read it is missing.
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "gadgets.context.example.com" },
        "spec": {
            "group": "context.example.com", "scope": "Cluster", "names": { "plural": "gadgets", "kind": "Gadget" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": { "type": "object" } } }],
        },
    });
    installation.cluster().apply(&definition.to_string()).expect("a definition");
    let rule = r#"grant {apiGroups: ["context.example.com"], resources: [gadgets], verbs: [get, list, watch]}"#;
    wait_for_context(&installation, &policy, "False", "ContextForbidden", rule);
    assert_waits_for_objects(&installation, &policy, &shop);

    grant(&installation, "context.example.com", "gadgets");
    let object = installation.wait_for(&policy, "Ready", "True");
    assert_eq!(object["metadata"]["generation"], 1, "nobody has edited it");
    wait_for_context(&installation, &policy, "True", "AsExpected", "");
    wait_for_verdict(&installation, &shop, &shop, Some(&format!("Namespace {shop} has this name")));
    wait_for_verdict(&installation, &shop, "free", None);
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_b10_objects_are_old_while_the_api_server_is_away() {
    let installation = installation("context-stale", 0);
    let proxy = Proxy::start(installation.cluster());
    let setup = PodSetup::default().through(Program::Loader, proxy.address());
    let pod = installation.add_replica_with(setup);
    pod.wait_ready();
    let canary = installation.own_canary();
    let shop = installation.make_namespace("shop");
    let policy = judges(&installation, &shop, "context-stale", "limits-required", &["LimitRange", "Namespace"]);
    installation.apply_ready(std::slice::from_ref(&policy));
    let no_range = format!("namespace {shop} has no LimitRange");
    wait_for_verdict(&installation, &shop, "a", Some(&no_range));
    let close_until_old = || {
        let closed = Instant::now();
        proxy.close();
        let object = eventually_within(OLD, "ContextSynced=False, ContextStale", || {
            let object = installation.object(&policy)?;
            let ready = condition(&object, "Ready").expect("it was Ready");
            assert_eq!(ready["status"], "True", "a policy that knows its objects stays Ready: {ready}");
            has_context(&object, "False", "ContextStale", "v1/LimitRange: known as of 20").then_some(object)
        });
        assert!(closed.elapsed() >= STALE, "old after {:?}", closed.elapsed());
        object
    };
    let synced = || installation.object(&policy).filter(|object| has_context(object, "True", "AsExpected", ""));

    let object = close_until_old();
    let replica = &object["status"]["replicas"][0];
    assert_eq!((&replica["state"], &replica["reason"]), (&json!("Current"), &json!("ContextStale")), "{replica}");
    let message = replica["message"].as_str().unwrap_or_default();
    assert!(message.contains("v1/LimitRange: known as of 20"), "{message}");
    let (_, message) = try_config_map(&installation, &shop, "a");
    assert!(message.contains(&no_range), "what is known counts: {message}");
    proxy.open();
    installation.assert_recovers("ContextSynced=True", synced);

    // Where an object of each kind has changed meanwhile, the watch need not go on for a while first. On a busy machine that while is no
    // shorter, and the bound is longer, so both are checked.
    one_round_in_time(|round| {
        close_until_old();
        limit_range(&installation, &shop, &format!("made-meanwhile-{round}"), &shop);
        installation.make_namespace(&format!("meanwhile-{round}"));
        let opened = installation.moment();
        proxy.open();
        eventually("ContextSynced=True", synced);
        let now = installation.moment();
        let took = opened.until(&now);
        if took >= SETTLED {
            return Err(format!("it took {took:?}, as long as where nothing changes"));
        }
        AT_ONCE.check("ContextSynced=True where objects have changed", &opened, &now)
    });
    wait_for_verdict(&installation, &shop, "a", None);
    canary.end();
}
