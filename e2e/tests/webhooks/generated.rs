//! A thousand generated match parts: which of them an API server calls as webhooks of their own, and which the evaluator would ask if they
//! shared one webhook.
//!
//! The webhooks of the members are called at a closed port, so that the API server counts each call in a metric. The webhook with the rules of
//! all of them is called at a server of this test, which gives the AdmissionReview that an evaluator would get.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::mpsc::{self, Receiver};

use fastrand::Rng;
use futures::FutureExt as _;
use portcullis_contract::{FailurePolicy, MatchCondition, MatchPart, RuleWithOperations, WebhookKind};
use portcullis_e2e::{Api, Cluster, Options, ReviewServer, eventually, note};
use portcullis_matching::{AdmissionRequest, Decision, MemberMatcher, NoPause, rules, shared_part};
use serde_json::{Value, json};

/// The match parts of a round, which share a webhook.
const MEMBERS: usize = 200;
/// Groups and versions of the rules of each round, and resources that they name.
const ROUNDS: [(&[&str], &[&str], &[&str]); 5] = [
    (
        &[""],
        &["v1"],
        &["pods", "configmaps", "services", "namespaces", "nodes", "pods/status", "*", "*/*", "pods/*", "*/status"],
    ),
    (
        &["*"],
        &["*"],
        &["pods", "deployments", "namespaces", "configmaps", "*", "*/*", "horizontalpodautoscalers", "*/scale"],
    ),
    (&["apps"], &["v1"], &["deployments", "deployments/*", "deployments/scale", "replicasets", "*", "*/*"]),
    // A request in another version is converted to this one.
    (&["autoscaling"], &["v1"], &["horizontalpodautoscalers", "*", "*/*", "horizontalpodautoscalers/status"]),
    (
        &["", "apps", "autoscaling"],
        &["v1", "v2"],
        &["deployments", "pods", "horizontalpodautoscalers", "*", "*/*", "namespaces"],
    ),
];
/// Match conditions, of which some fail for some requests.
const CONDITIONS: [&str; 12] = [
    "request.operation == 'CREATE'",
    "request.operation in ['UPDATE', 'DELETE']",
    "request.userInfo.username == 'nobody'",
    "'system:masters' in request.userInfo.groups",
    "object != null && has(object.metadata.labels) && 'app' in object.metadata.labels",
    "object.metadata.labels['app'] == 'shop'",
    "oldObject == null",
    "object != null && object.metadata.name.startsWith('a')",
    "request.resource.resource == 'pods' || request.resource.version == 'v2'",
    "!has(request.subResource)",
    "has(request.namespace) && request.namespace == 'generated'",
    "request.kind.kind != 'ConfigMap' && has(request.dryRun) && request.dryRun",
];

/// Match conditions with the fields and types of a request that API servers know.
const TYPED: [&str; 6] = [
    "request.kind == request.requestKind && request.resource.group == request.requestResource.group",
    "request.requestSubResource == '' || size(request.userInfo.groups) - 1 > 2 || !request.dryRun",
    "has(request.userInfo.extra) && 'a' in request.userInfo.extra && request.userInfo.extra['a'][0] == 'b'",
    "has(request.userInfo.extra.a) && 'b' in request.userInfo.extra.a && request.userInfo.uid != ''",
    "request.name in object.metadata.labels || object.metadata.name in request.userInfo.groups",
    "object.metadata.a && object.metadata.generation - 1 in [1, 2] ? request.dryRun : request.operation < 'D'",
];
/// Match conditions that API servers refuse, as their types do not fit.
const REFUSED: [&str; 12] = [
    "request.kind == 'Pod'",
    "request.resource == 'pods'",
    "has(request.userinfo) && request.userinfo.username == 'me'",
    "request.dryRun == 'true'",
    "request.user == 'x'",
    "request.name == 1",
    "request['name'] == 'x'",
    "request.kind.startsWith('P')",
    "'username' in request.userInfo",
    "request.userInfo.groups['a'] == 'x'",
    "size(request.userInfo) == 1",
    "true ? request.dryRun : object.metadata.a",
];
/// Where webhooks are registered.
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

fn pick<T: Clone>(random: &mut Rng, list: &[T]) -> T {
    list[random.usize(..list.len())].clone()
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|&word| word.to_owned()).collect()
}

fn rule(random: &mut Rng, (groups, versions, resources): (&[&str], &[&str], &[&str])) -> RuleWithOperations {
    let operations: [&[&str]; 6] =
        [&["CREATE"], &["UPDATE"], &["DELETE"], &["CREATE", "UPDATE"], &["*"], &["DELETE", "CREATE"]];
    RuleWithOperations {
        api_groups: words(groups),
        api_versions: words(versions),
        resources: vec![pick(random, resources).to_owned()],
        operations: words(pick(random, &operations)),
        scope: pick(random, &[None, None, Some("*"), Some("Namespaced"), Some("Cluster")]).map(str::to_owned),
    }
}

fn selector(random: &mut Rng) -> Option<Value> {
    let expression = |operator: &str, values: &[&str]| {
        Some(json!({ "matchExpressions": [{ "key": "app", "operator": operator, "values": values }] }))
    };
    match random.u8(..8) {
        0 => Some(json!({ "matchLabels": { "app": "shop" } })),
        1 => expression("In", &["shop", "bank"]),
        2 => expression("NotIn", &["shop"]),
        3 => expression("Exists", &[]),
        4 => expression("DoesNotExist", &[]),
        _ => None,
    }
}

/// A match part that may share a webhook.
fn part(random: &mut Rng, round: (&[&str], &[&str], &[&str])) -> MatchPart {
    let conditions = (0..random.usize(..3))
        .map(|number| MatchCondition { name: format!("c{number}"), expression: pick(random, &CONDITIONS).to_owned() });
    let match_conditions = conditions.collect();
    let part = MatchPart {
        kind: WebhookKind::Validating,
        namespace: None,
        rules: (0..random.usize(1..3)).map(|_| rule(random, round)).collect(),
        match_policy: None,
        object_selector: selector(random),
        namespace_selector: Some(namespaces()),
        match_conditions,
        failure_policy: FailurePolicy::Ignore,
        side_effects: None,
    };
    assert!(shared_part(&part).is_some(), "{part:?}");
    part
}

/// The namespaces of this test, so that what the cluster itself does calls no webhook.
fn namespaces() -> Value {
    let key = "kubernetes.io/metadata.name";
    json!({ "matchExpressions": [{ "key": key, "operator": "In", "values": ["generated", "default", "another"] }] })
}

/// The webhook of one match part, at a port where nobody listens.
fn webhook(name: &str, part: &MatchPart) -> Value {
    json!({
        "name": name,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "rules": part.rules,
        "namespaceSelector": namespaces(),
        "objectSelector": part.object_selector.clone().unwrap_or_else(|| json!({})),
        "matchConditions": part.match_conditions,
        "clientConfig": { "url": "https://127.0.0.1:9/" },
    })
}

/// How often the API server failed to call each webhook.
fn calls(api: &Api) -> BTreeMap<String, u64> {
    let (_, text) = api.text("/metrics").expect("metrics");
    let counts = text.lines().filter_map(|line| {
        let (labels, count) = line.strip_prefix("apiserver_admission_webhook_fail_open_count{")?.rsplit_once("} ")?;
        let name = labels.split_once("name=\"")?.1.split('"').next()?;
        Some((name.to_owned(), count.parse::<f64>().ok()? as u64))
    });
    counts.collect()
}

/// One request without an effect: what it does, the method, the path and the body.
type Attempt = (&'static str, &'static str, String, Value);

/// Requests of all sorts, to what is in the cluster and to what is not.
fn attempts() -> Vec<Attempt> {
    const NAMESPACE: &str = "/api/v1/namespaces/generated";
    let object = |version: &str, kind: &str, name: &str, labels: Value| json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name, "labels": labels } });
    let with = |mut object: Value, spec: Value| {
        object["spec"] = spec;
        object
    };
    let pod = |name: &str, labels: Value| {
        with(
            object("v1", "Pod", name, labels),
            json!({ "containers": [{ "name": "main", "image": "example.invalid/none" }] }),
        )
    };
    let template = json!({ "metadata": { "labels": { "x": "y" } }, "spec": pod("x", json!({}))["spec"] });
    let deployment = json!({ "replicas": 0, "selector": { "matchLabels": { "x": "y" } }, "template": template });
    let scaler = json!({ "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "adeploy" }, "maxReplicas": 3 });
    let (shop, bank) = (json!({ "app": "shop" }), json!({ "app": "bank" }));
    let label = |labels: Value| json!({ "metadata": { "labels": labels } });
    let create = |what, path: String, body| (what, "create", path, body);
    vec![
        create("a pod of the shop", format!("{NAMESPACE}/pods"), pod("a1", shop.clone())),
        create("a pod of the bank", format!("{NAMESPACE}/pods"), pod("b1", bank.clone())),
        create("a pod without labels", format!("{NAMESPACE}/pods"), pod("c1", json!({}))),
        create("a ConfigMap", format!("{NAMESPACE}/configmaps"), object("v1", "ConfigMap", "amap2", json!({}))),
        create(
            "a ConfigMap elsewhere",
            "/api/v1/namespaces/default/configmaps".into(),
            object("v1", "ConfigMap", "other", shop.clone()),
        ),
        create("a Namespace", "/api/v1/namespaces".into(), object("v1", "Namespace", "another", shop.clone())),
        create(
            "a Deployment",
            "/apis/apps/v1/namespaces/generated/deployments".into(),
            with(object("apps/v1", "Deployment", "b", bank.clone()), deployment),
        ),
        create(
            "a scaler in v2",
            "/apis/autoscaling/v2/namespaces/generated/horizontalpodautoscalers".into(),
            with(object("autoscaling/v2", "HorizontalPodAutoscaler", "a2", shop.clone()), scaler.clone()),
        ),
        create(
            "a scaler in v1",
            "/apis/autoscaling/v1/namespaces/generated/horizontalpodautoscalers".into(),
            with(object("autoscaling/v1", "HorizontalPodAutoscaler", "a1", json!({})), scaler),
        ),
        ("an edit of a ConfigMap", "patch", format!("{NAMESPACE}/configmaps/amap"), json!({ "data": { "x": "y" } })),
        ("another label of a ConfigMap", "patch", format!("{NAMESPACE}/configmaps/amap"), label(bank.clone())),
        (
            "the status of a pod",
            "patch",
            format!("{NAMESPACE}/pods/apod/status"),
            json!({ "status": { "reason": "Tried" } }),
        ),
        ("no label of a pod", "patch", format!("{NAMESPACE}/pods/apod"), label(json!({ "app": null }))),
        ("a label of the Namespace", "patch", NAMESPACE.to_owned(), label(json!({ "app": "shop" }))),
        (
            "the scale of a Deployment",
            "patch",
            "/apis/apps/v1/namespaces/generated/deployments/adeploy/scale".into(),
            json!({ "spec": { "replicas": 1 } }),
        ),
        ("the end of a ConfigMap", "delete", format!("{NAMESPACE}/configmaps/amap"), Value::Null),
        (
            "the end of a Deployment",
            "delete",
            "/apis/apps/v1/namespaces/generated/deployments/adeploy".into(),
            Value::Null,
        ),
    ]
}

/// Makes a request as a dry run. Each is one that the API server takes.
fn attempt(api: &Api, (what, how, path, body): &Attempt) {
    let dry = format!("{path}?dryRun=All");
    let reply = match *how {
        "create" => api.create(&dry, body),
        "patch" => api.patch(&dry, body),
        _ => api.try_delete(path),
    };
    reply.expect("an answer").expect(what);
}

/// What exists before the requests.
fn fill(api: &Api) {
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "generated" } });
    api.create("/api/v1/namespaces", &namespace).expect("an answer").expect("a namespace");
    for (_, how, path, body) in attempts().iter().filter(|(_, how, ..)| *how == "create") {
        let (mut object, path) = (body.clone(), path.clone());
        let name = match body["kind"].as_str() {
            Some("Pod") => "apod",
            Some("ConfigMap") => "amap",
            Some("Deployment") => "adeploy",
            _ => continue,
        };
        object["metadata"]["name"] = json!(name);
        // A pod needs the namespace's ServiceAccount, which comes soon. What exists already is from an object of the same kind.
        eventually(&format!("{how} {name}"), || {
            let reply = api.create(&path, &object).ok()?;
            (reply.is_ok() || reply.code == 409).then_some(())
        });
    }
}

/// What the evaluator decides for each member on a review that API servers send.
fn decisions(review: &Value, members: &[MemberMatcher]) -> Vec<Decision> {
    let request = &review["request"];
    let raw = |object: &Value| (!object.is_null()).then(|| object.to_string().into());
    let (object, old) = (raw(&request["object"]), raw(&request["oldObject"]));
    let mut rest = request.clone();
    for field in ["uid", "object", "oldObject", "options"] {
        rest.as_object_mut().expect("an object").remove(field);
    }
    let request = AdmissionRequest::new(object, old, rest.to_string().into());
    let decided = |member: &MemberMatcher| member.decide(&request, &mut NoPause).now_or_never();
    members.iter().map(|member| decided(member).expect("nothing waits")).collect()
}

/// Registers the webhooks of a round, and waits until the API server calls them.
fn register(api: &Api, round: usize, parts: &[MatchPart], server: &ReviewServer) -> BTreeMap<String, u64> {
    let together = rules::union(parts.iter().flat_map(|part| &part.rules));
    let fence = MatchPart {
        rules: vec![RuleWithOperations {
            api_groups: words(&[""]),
            api_versions: words(&["v1"]),
            resources: words(&["configmaps"]),
            operations: words(&["CREATE"]),
            scope: None,
        }],
        object_selector: None,
        match_conditions: Vec::new(),
        ..parts[0].clone()
    };
    let mut webhooks = vec![webhook(&name(round, "fence"), &fence)];
    webhooks.push(json!({
        "name": name(round, "together"),
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "rules": together,
        "namespaceSelector": namespaces(),
        "clientConfig": { "url": format!("https://{}/{round}", server.address()), "caBundle": server.ca_bundle() },
    }));
    webhooks.extend(parts.iter().enumerate().map(|(number, part)| webhook(&name(round, &format!("m{number}")), part)));
    if round > 0 {
        api.delete(&format!("{WEBHOOKS}/generated"), None).expect("an answer").expect("the deletion");
    }
    api.create(WEBHOOKS, &configuration(&webhooks)).expect("an answer").expect("a webhook configuration");
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "fence" } });
    eventually("a call of the new webhooks", || {
        api.create("/api/v1/namespaces/generated/configmaps?dryRun=All", &map).ok()?;
        let counts = calls(api);
        counts.contains_key(&name(round, "fence")).then_some(counts)
    })
}

fn configuration(webhooks: &[Value]) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "generated" }, "webhooks": webhooks,
    })
}

/// Checks that match parts share a webhook only if the API server takes them.
fn compare_what_is_refused(api: &Api, random: &mut Rng) {
    let plain = MatchPart { object_selector: None, match_conditions: Vec::new(), ..part(random, ROUNDS[0]) };
    let with = |text: &&str| MatchPart {
        match_conditions: vec![MatchCondition { name: "c".to_owned(), expression: (*text).to_owned() }],
        ..plain.clone()
    };
    let selecting = |selector: Value| MatchPart { object_selector: Some(selector), ..plain.clone() };
    let selectors = [("shop-", "app"), ("shop", "a/b/c"), ("shop", "A/b"), ("a/b", "app")];
    let selectors = selectors.map(|(value, key)| selecting(json!({ "matchLabels": { key: value } })));
    let exists = json!({ "matchExpressions": [{ "key": "app", "operator": "Exists", "values": ["shop"] }] });
    let good = TYPED.iter().chain(&CONDITIONS).map(with).map(|part| (part, true));
    let bad = REFUSED.iter().map(with).chain(selectors).chain([selecting(exists)]).map(|part| (part, false));
    for (part, is_taken) in good.chain(bad) {
        let configuration = configuration(&[webhook(&name(0, "typed"), &part)]);
        let reply = api.create(&format!("{WEBHOOKS}?dryRun=All"), &configuration).expect("an answer");
        assert_eq!(reply.is_ok(), is_taken, "{part:?}: {:?}", reply.body);
        assert_eq!(shared_part(&part).is_some(), is_taken, "{part:?}");
    }
}

fn name(round: usize, webhook: &str) -> String {
    format!("{webhook}.r{round}.generated.example.com")
}

/// The last review of a round that has come.
fn last(reviews: &Receiver<(String, Value)>, round: usize) -> Option<Value> {
    reviews.try_iter().filter(|(path, _)| *path == format!("/{round}")).map(|(_, review)| review).last()
}

#[test]
#[ignore = "starts a cluster"]
fn a_thousand_generated_policies_are_asked_about_what_api_servers_would_call_them_for() {
    // One of its own: what other tests do would call the webhooks too.
    Cluster::require_own_network();
    let cluster = Cluster::start(&Options::default()).unwrap();
    let (api, seed) = (cluster.api(), std::env::var("PORTCULLIS_TEST_SEED").ok().and_then(|seed| seed.parse().ok()));
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    note(&format!("PORTCULLIS_TEST_SEED={seed} repeats this"));
    let mut random = Rng::with_seed(seed);
    let (sender, reviews) = mpsc::channel();
    let server = ReviewServer::start((Ipv4Addr::LOCALHOST, 0).into(), "127.0.0.1", move |path, review| {
        // The test may have ended.
        let _ = sender.send((path.to_owned(), review.clone()));
        Ok(())
    });
    fill(&api);
    compare_what_is_refused(&api, &mut random);
    let (mut asked, mut decided, mut failed) = (0, 0, 0);
    for (round, what) in ROUNDS.into_iter().enumerate() {
        let parts: Vec<_> = (0..MEMBERS).map(|_| part(&mut random, what)).collect();
        let matchers = parts.iter().map(|part| MemberMatcher::of(&part.shared().1).expect("it may share a webhook"));
        let matchers: Vec<_> = matchers.collect();
        let mut before = register(&api, round, &parts, &server);
        for request in attempts() {
            last(&reviews, round);
            attempt(&api, &request);
            let after = calls(&api);
            let count = |counts: &BTreeMap<String, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
            let is_called = |number: usize| {
                let name = name(round, &format!("m{number}"));
                count(&after, &name) > count(&before, &name)
            };
            let called: BTreeSet<_> = (0..MEMBERS).filter(|number| is_called(*number)).collect();
            let decisions = last(&reviews, round).map(|review| decisions(&review, &matchers));
            // Without a call of the webhook of all, none of them would be asked.
            let decisions = decisions.unwrap_or_else(|| vec![Decision::Excluded; MEMBERS]);
            for (number, decision) in decisions.iter().enumerate() {
                // A condition that fails counts as false under `failurePolicy: Ignore`.
                assert_eq!(
                    *decision == Decision::Matches,
                    called.contains(&number),
                    "round {round}, {}: {decision:?} for {:#?}",
                    request.0,
                    parts[number]
                );
                failed += usize::from(matches!(decision, Decision::Unknown(_)));
            }
            asked += called.len();
            decided += decisions.len();
            before = after;
        }
    }
    note(&format!("{decided} decisions, {asked} calls, {failed} conditions that fail"));
    assert!(asked > decided / 50 && failed > 0, "{asked} of {decided}");
}
