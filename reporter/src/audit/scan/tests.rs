//! Whole scans, with an API server and an evaluator that the test plays on the loopback.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, RawQuery};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get, post};
use portcullis_api::PolicyKey;
use portcullis_kubernetes::{Failures, Leadership};
use portcullis_process::ProbeServer;
use portcullis_util::lock;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use crate::audit::ask::Evaluator;
use crate::audit::budget::Budgets;
use crate::audit::memory::Memory;
use crate::audit::report::AuditFormat;
use crate::audit::rest::Reading;
use crate::audit::writer::Writer;
use crate::kubernetes::stub::{self, leads, refused};

mod pages;
mod slow_writes;

/// The number of objects in each of the two namespaces.
const OBJECTS: usize = 30;
/// The deadline of the slow policy, and what the evaluator says that each of its evaluations took, unless a test says otherwise.
const DEADLINE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_secs(3600);

/// The questions that the evaluator got: policy and object.
type Asked = Arc<Mutex<Vec<(String, String)>>>;

/// The names of the reports that were deleted.
type Deleted = Arc<Mutex<BTreeSet<String>>>;

/// What a scan says about each policy.
type Summaries = BTreeMap<String, AuditSummary>;

struct Stage {
    scanner: Scanner,
    served: Served,
    unloadable: Unloadable,
    asked: Asked,
    deleted: Deleted,
}

impl Stage {
    fn new(interval: Duration) -> Self {
        Self::with_slow(interval, json!({}))
    }

    /// With this in the `spec` of the slow policy.
    fn with_slow(interval: Duration, spec: Value) -> Self {
        Self::created(interval, [spec, json!({})], 3600)
    }

    /// With this in the `spec` of the slow policy and of the quick one, where all policies were made this many seconds ago.
    fn created(interval: Duration, specs: [Value; 2], ago: i64) -> Self {
        Self::taking(DEADLINE, interval, specs, ago)
    }

    /// The same, where each evaluation of the slow policy takes this time.
    fn taking(time: Duration, interval: Duration, specs: [Value; 2], ago: i64) -> Self {
        Self::listing(get(|| async { list(objects()) }), time, interval, specs, ago)
    }

    /// The same, with what answers lists of ConfigMaps.
    fn listing(config_maps: MethodRouter, time: Duration, interval: Duration, specs: [Value; 2], ago: i64) -> Self {
        portcullis_process::install_crypto();
        let (asked, deleted) = (Asked::default(), Deleted::default());
        let mut servers = ProbeServer::new();
        let mut serve = |routes| servers.port(([127, 0, 0, 1], 0).into(), routes).expect("binds");
        let api = api_server(specs, ago, Arc::clone(&deleted)).route("/api/v1/configmaps", config_maps);
        let (api, evaluator) = (serve(api), serve(evaluator(Arc::clone(&asked), time)));
        servers.start().expect("starts");
        let served = ["uid-all", "uid-slow", "uid-quick"].map(|uid| (PolicyKey::of(uid), 1)).into();
        Self { scanner: scanner(api, evaluator, interval), served, unloadable: Unloadable::new(), asked, deleted }
    }

    /// Makes the reporter lead, as long as the result is there, so that it writes reports.
    async fn lead(&mut self) -> JoinSet<()> {
        let (leadership, held) = leads(&stub::api_server(|_, _| refused(404))).await;
        let (client, metrics) = (self.scanner.client.clone(), self.scanner.metrics.clone());
        let failures = Failures::new("write audit reports", |_| ());
        self.scanner.worker.writer =
            Writer::new(client, AuditFormat::Openreports, "default".into(), leadership, metrics, failures);
        held
    }

    async fn scan(&mut self) -> Summaries {
        let summaries = self.scanned().await.found.into_iter().filter_map(|found| match found.news {
            News::Summary(summary) => Some((found.policy.to_string(), summary)),
            News::Unserved { .. } => None,
        });
        summaries.collect()
    }

    async fn scanned(&mut self) -> Scanned {
        self.scanner.scan(&self.served, &self.unloadable).await.expect("a scan")
    }

    /// The objects that a policy was asked about since the last call, in this order.
    fn asked(&self, policy: &str) -> Vec<String> {
        let mut names = Vec::new();
        lock(&self.asked).retain(|(asked, name)| {
            let is_other = asked != policy;
            names.extend((!is_other).then(|| name.clone()));
            is_other
        });
        names
    }
}

fn scanner(api: SocketAddr, evaluator: SocketAddr, interval: Duration) -> Scanner {
    let url = format!("http://{api}").parse().expect("an address");
    let client = Client::try_from(kube::Config::new(url)).expect("a client");
    let metrics = AuditMetrics::new(&Registry::new()).expect("registers");
    let failures = || Failures::new("ask", |_| ());
    let format = AuditFormat::Openreports;
    // Nobody leads, so no report is written.
    let (_, leadership) = Leadership::new();
    let writer = Writer::new(client.clone(), format, "default".into(), leadership, metrics.clone(), failures());
    let worker = Worker {
        evaluator: Evaluator::new(evaluator, failures()).expect("a client"),
        budgets: Mutex::new(Budgets::new(interval)),
        memory: Memory::default(),
        reading: Reading::default(),
        writer,
        metrics: metrics.clone(),
        policy_server: "default".into(),
        format,
    };
    let site = Site { policy_server: "default".into(), namespace: "portcullis".into() };
    Scanner { client, site, metrics, failures: failures(), revision_failures: failures(), worker }
}

/// A policy for all namespaces, a slow one of the namespace `a`, and a quick one of the namespace `b`, both with this in their `spec`, each with
/// its collection. They were made this many seconds ago.
fn policies([slow, quick]: [Value; 2], ago: i64) -> [(&'static str, Value); 3] {
    let rules = json!([rule("configmaps")]);
    let created = to_second(Timestamp::from_second(Timestamp::now().as_second() - ago).expect("a time"));
    let policy = |namespace: Option<&str>, name: &str, mut spec: Value| {
        let asked = json!({"policies.portcullis.dev/audit-requested-at": "now"});
        let mut metadata = json!({"name": name, "namespace": namespace, "uid": format!("uid-{name}")});
        metadata["annotations"] = asked;
        metadata["generation"] = json!(1 + spec["rollbackTo"].as_i64().unwrap_or(0));
        metadata["creationTimestamp"] = json!(created);
        if spec["rules"].is_null() {
            spec["rules"] = rules.clone();
        }
        json!({"metadata": metadata, "spec": spec})
    };
    [
        ("clusterpolicies", policy(None, "all", json!({}))),
        ("policies", policy(Some("a"), "slow", slow)),
        ("policies", policy(Some("b"), "quick", quick)),
    ]
}

fn rule(resource: &str) -> Value {
    json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource], "operations": ["CREATE"]})
}

fn answer(body: &Value) -> impl IntoResponse + use<> {
    ([(CONTENT_TYPE, "application/json")], body.to_string())
}

fn list(items: Vec<Value>) -> impl IntoResponse + use<> {
    answer(&json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}))
}

/// The ConfigMaps of both namespaces.
fn objects() -> Vec<Value> {
    let objects = ["a", "b"].into_iter().flat_map(|namespace| {
        (0..OBJECTS).map(move |number| {
            let name = format!("{namespace}-{number:02}");
            let uid = format!("uid-{name}");
            json!({"metadata": {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": "1"}})
        })
    });
    objects.collect()
}

/// An API server without the ConfigMaps.
fn api_server(specs: [Value; 2], ago: i64, deleted: Deleted) -> Router {
    let policies = policies(specs, ago);
    let policies = move |Path(plural): Path<String>| async move {
        list(policies.into_iter().filter(|(of, _)| *of == plural).map(|(_, policy)| policy).collect())
    };
    // The quick policy has a revision of its second generation, with the rules of the first, for ConfigMaps, and one of its fourth, for which
    // there was nothing to roll back to.
    let revision = |generation: i64, resource: &str, problem: Value| {
        let spec = json!({"rules": [rule(resource)]});
        let data = json!({"policy": {"uid": "uid-quick"}, "spec": spec, "problem": problem});
        json!({"metadata": {"name": format!("quick-dc-{generation}")}, "data": data})
    };
    let all_revisions = [revision(2, "configmaps", Value::Null), revision(4, "services", json!("gone"))];
    let revisions = move |RawQuery(query): RawQuery| async move {
        let is_it = |revision: &Value| {
            let name = revision["metadata"]["name"].as_str().unwrap_or_default();
            query
                .as_ref()
                .is_some_and(|query| query.split('&').any(|part| part.ends_with(&format!("metadata.name%3D{name}"))))
        };
        list(all_revisions.into_iter().filter(is_it).collect())
    };
    // The quick policy has rejected a ConfigMap and a Service before.
    let report = |name: &str, kind: &str| {
        let metadata = json!({"name": format!("portcullis-default-uid-{name}"), "namespace": "b"});
        let results = json!([{"policy": "namespaced/b/quick", "result": "fail", "message": "no"}]);
        json!({"metadata": metadata, "scope": {"apiVersion": "v1", "kind": kind}, "results": results})
    };
    let all_reports = vec![report("b-00", "ConfigMap"), report("web", "Service")];
    let found = all_reports.clone();
    let reports = move |Path(plural): Path<String>| async move {
        list(if plural == "reports" { all_reports } else { Vec::new() })
    };
    let read = move |Path(name): Path<String>| async move {
        answer(&found.into_iter().find(|report| report["metadata"]["name"] == *name).unwrap_or_default())
    };
    let delete = move |Path(name): Path<String>| async move {
        lock(&deleted).insert(name);
        answer(&json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    };
    let write = |body: String| async move { ([(CONTENT_TYPE, "application/json")], body) };
    let versions = json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []});
    let config_maps =
        json!({"name": "configmaps", "singularName": "", "namespaced": true, "kind": "ConfigMap", "verbs": ["list"]});
    let resources = json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [config_maps]});
    Router::new()
        .route("/apis/policies.portcullis.dev/v1alpha1/{plural}", get(policies))
        .route("/apis/openreports.io/v1alpha1/{plural}", get(reports))
        .route("/apis/openreports.io/v1alpha1/namespaces/b/reports/{name}", get(read).delete(delete).patch(write))
        .route("/apis/apps/v1/namespaces/portcullis/controllerrevisions", get(revisions))
        .route("/api", get(move || async move { answer(&versions) }))
        .route("/apis", get(|| async { answer(&json!({"kind": "APIGroupList", "groups": []})) }))
        .route("/api/v1", get(move || async move { answer(&resources) }))
}

/// Says of each evaluation of the slow policy that it ran to its deadline, after this time, and admits the object otherwise.
fn evaluator(asked: Asked, time: Duration) -> Router {
    let ask = move |Path(id): Path<String>, body: String| async move {
        let review: Value = serde_json::from_str(&body).expect("a review");
        let name = review["request"]["name"].as_str().unwrap_or_default().to_owned();
        lock(&asked).push((id.clone(), name));
        answer(&if id == "namespaced/a/slow" {
            json!({
                "outcome": "failed", "generation": 1, "message": "too late", "reason": "EvaluationTimedOut",
                "microseconds": time.as_micros(),
            })
        } else {
            json!({"outcome": "allowed", "generation": 1, "microseconds": 200})
        })
    };
    Router::new().route("/audit/{*id}", post(ask))
}

fn is_complete(summary: &AuditSummary, objects: usize) -> bool {
    summary.checked == i64::try_from(objects).unwrap() && summary.errors == 0 && summary.message.is_empty()
}

#[tokio::test]
async fn a_policy_that_runs_to_its_deadline_costs_the_others_a_few_evaluations_and_no_verdict() {
    let mut stage = Stage::new(INTERVAL);
    let found = stage.scan().await;
    assert!(is_complete(&found["cluster/all"], 2 * OBJECTS), "{found:?}");
    assert!(is_complete(&found["namespaced/b/quick"], OBJECTS), "{found:?}");
    let slow = &found["namespaced/a/slow"];
    let asked = stage.asked("namespaced/a/slow").len();
    // One more may be under way when the budget is used up.
    assert!((4..=5).contains(&asked), "{asked}");
    assert_eq!((slow.checked, slow.errors), (asked as i64, asked as i64));
    let words =
        [format!("{} objects were not audited (ConfigMap a/a-0", OBJECTS - asked), "the first scan after".into()];
    assert!(words.iter().all(|words| slow.message.contains(words)), "{}", slow.message);

    // A scan in the same period asks nobody: not the policy, and not the others about the objects on which it failed or was not asked.
    assert_eq!(stage.asked("cluster/all").len(), 2 * OBJECTS);
    let again = stage.scan().await;
    assert!(is_complete(&again["cluster/all"], 2 * OBJECTS) && is_complete(&again["namespaced/b/quick"], OBJECTS));
    assert_eq!((stage.asked("cluster/all"), stage.asked("namespaced/a/slow")), (Vec::new(), Vec::new()));
    assert!(again["namespaced/a/slow"].message.contains("not audited"));

    // A generation that serves instead has a new budget.
    stage.served.insert(PolicyKey::of("uid-slow"), 2);
    stage.scan().await;
    assert!(!stage.asked("namespaced/a/slow").is_empty());
}

#[tokio::test]
async fn who_has_asked_for_a_scan_of_a_policy_that_is_not_served_does_not_wait_for_another_one() {
    for is_old in [true, false] {
        let mut stage = Stage::created(INTERVAL, [json!({}), json!({})], if is_old { 3600 } else { 1 });
        let slow = PolicyKey::of("uid-slow");
        stage.served.remove(&slow);
        // A new one may be on its way, but not where it has failed.
        stage.unloadable.extend((!is_old).then_some((slow, 1)));
        is_told_of_slow(&mut stage).await;
    }
}

async fn is_told_of_slow(stage: &mut Stage) {
    let scanned = stage.scanned().await;
    assert_eq!((scanned.found.len(), scanned.is_awaited), (3, false));
    for found in scanned.found {
        match (found.policy.as_str(), found.news) {
            ("namespaced/a/slow", News::Unserved { request, .. }) => assert_eq!(request, "now"),
            (policy @ ("cluster/all" | "namespaced/b/quick"), News::Summary(summary)) => {
                assert_eq!((summary.generation, summary.handled_request.as_str()), (1, "now"), "{policy}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(stage.asked("namespaced/a/slow").is_empty());
}

#[tokio::test]
async fn who_has_asked_for_a_scan_of_a_policy_that_may_be_on_its_way_waits_for_the_next_one() {
    let mut stage = Stage::created(INTERVAL, [json!({}), json!({})], 1);
    let slow = PolicyKey::of("uid-slow");
    stage.served.remove(&slow);
    let scanned = stage.scanned().await;
    let told: Vec<_> = scanned.found.iter().map(|found| found.policy.to_string()).collect();
    assert_eq!((told, scanned.is_awaited), (vec!["cluster/all".to_owned(), "namespaced/b/quick".to_owned()], true));
    stage.served.insert(slow, 1);
    let scanned = stage.scanned().await;
    assert_eq!((scanned.found.len(), scanned.is_awaited), (3, false));
}

#[tokio::test]
async fn after_a_scan_there_is_a_rest_in_proportion_to_it() {
    let mut stage = Stage::new(INTERVAL);
    let begin = Instant::now();
    stage.scan().await;
    let rest = stage.scanner.worker.reading.rest(INTERVAL, Instant::now());
    assert!(Duration::ZERO < rest && rest <= begin.elapsed() * 9, "{rest:?}");
}

#[tokio::test]
async fn a_policy_that_may_ask_a_registry_is_asked_about_all_its_objects_in_each_scan() {
    let specs = [json!({}), json!({"hostCapabilities": ["oci/*"]})];
    let mut stage = Stage::created(INTERVAL, specs, 3600);
    for scan in 0..2 {
        let found = stage.scan().await;
        assert!(is_complete(&found["namespaced/b/quick"], OBJECTS), "{found:?}");
        assert_eq!(stage.asked("namespaced/b/quick").len(), OBJECTS);
        // The verdicts of others about the same objects hold.
        assert_eq!(stage.asked("cluster/all").len(), if scan == 0 { 2 * OBJECTS } else { 0 });
    }
}

#[tokio::test]
async fn what_a_slow_policy_that_may_ask_a_registry_has_said_outlives_an_edit_when_it_cannot_be_asked_any_more() {
    let mut stage = Stage::with_slow(INTERVAL, json!({"hostCapabilities": ["oci/*"]}));
    let found = |summaries: &Summaries| {
        let slow = &summaries["namespaced/a/slow"];
        let left_out = slow.message.split_once(" (").map(|(words, _)| words.to_owned());
        (slow.checked, slow.errors, left_out)
    };
    let first = found(&stage.scan().await);
    let asked = stage.asked("namespaced/a/slow").len() as i64;
    let left_out = format!("{} objects were not audited", OBJECTS as i64 - asked);
    assert_eq!(first, (asked, asked, Some(left_out)));
    assert_eq!(found(&stage.scan().await), first);
    // Another policy that matches the same objects has been edited.
    stage.served.insert(PolicyKey::of("uid-all"), 2);
    assert_eq!(found(&stage.scan().await), first);
    assert_eq!(stage.asked("namespaced/a/slow"), Vec::<String>::new());
    assert_eq!(stage.asked("cluster/all").len(), 4 * OBJECTS, "the edited one is asked again");
}

#[tokio::test]
async fn a_policy_whose_budget_ends_in_the_second_scan_of_a_period_keeps_what_it_said_in_the_first() {
    let specs = [json!({"hostCapabilities": ["oci/*"]}), json!({})];
    let mut stage = Stage::taking(Duration::from_millis(700), INTERVAL, specs, 3600);
    for (scan, least, most) in [(1, OBJECTS, OBJECTS), (2, 1, OBJECTS - 1), (3, 0, 0)] {
        let found = stage.scan().await;
        let slow = &found["namespaced/a/slow"];
        assert_eq!((slow.checked, slow.errors, slow.message.as_str()), (OBJECTS as i64, OBJECTS as i64, ""), "{scan}");
        let asked = stage.asked("namespaced/a/slow").len();
        assert!((least..=most).contains(&asked), "scan {scan}: {asked}");
    }
}

#[tokio::test]
async fn over_the_periods_a_slow_policy_is_asked_about_all_its_objects() {
    asked_once_about_each(json!({})).await;
}

#[tokio::test]
async fn over_the_periods_a_slow_policy_that_reads_other_objects_is_asked_about_all_its_objects_and_then_once_more() {
    let mut stage =
        asked_once_about_each(json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "Pod"}]})).await;
    // Once a period was enough, be it the last one or the next, what the policy said of the first objects may be old.
    stage.scan().await;
    stage.scan().await;
    assert!(stage.asked("namespaced/a/slow").contains(&"a-00".to_owned()));
}

/// A stage on which the slow policy, with this in its `spec`, was asked about each object, in scans of which each is a period of its own.
async fn asked_once_about_each(slow: Value) -> Stage {
    let mut stage = Stage::with_slow(Duration::ZERO, slow);
    let mut judged = BTreeSet::new();
    for _ in 0..OBJECTS {
        let found = stage.scan().await;
        let asked = stage.asked("namespaced/a/slow");
        assert!((1..=5).contains(&asked.len()), "{asked:?}");
        assert!(asked.iter().all(|name| judged.insert(name.clone())), "asked twice: {asked:?}");
        if judged.len() == OBJECTS {
            let slow = &found["namespaced/a/slow"];
            assert_eq!((slow.errors, slow.message.as_str()), (OBJECTS as i64, ""));
            assert_eq!(stage.asked("cluster/all").len(), 2 * OBJECTS, "it was asked once about each object");
            return stage;
        }
    }
    panic!("only {judged:?}");
}

#[tokio::test]
async fn where_the_namespaces_cannot_be_listed_a_policy_that_selects_by_them_is_not_said_to_reject_nothing() {
    let selector = json!({"namespaceSelector": {"matchLabels": {"env": "prod"}}});
    let mut stage = Stage::with_slow(INTERVAL, selector);
    let found = stage.scan().await;
    assert!(is_complete(&found["cluster/all"], 2 * OBJECTS), "{found:?}");
    let selecting = &found["namespaced/a/slow"];
    assert_eq!((selecting.checked, selecting.unreadable.as_slice()), (0, &["namespaces".to_owned()][..]));
    let words = format!("the evaluator could not be asked about {OBJECTS} objects");
    assert!(selecting.message.contains(&words), "{}", selecting.message);
    assert!(stage.asked("namespaced/a/slow").is_empty());
}

/// The spec of a policy that is rolled back, with rules of its own about Services. Only in generation 2 has it a revision with content.
fn rolled_back(to: i64) -> Value {
    json!({"rollbackTo": to, "rules": [rule("services")]})
}

#[tokio::test]
async fn a_policy_that_is_rolled_back_is_asked_about_the_objects_of_the_rules_that_are_in_force() {
    for serving in [1, 2] {
        let mut stage = Stage::created(INTERVAL, [json!({}), rolled_back(1)], 3600);
        stage.served.insert(PolicyKey::of("uid-quick"), serving);
        let found = stage.scan().await;
        assert!(is_complete(&found["namespaced/b/quick"], OBJECTS), "{serving}: {found:?}");
    }
    let mut stage = Stage::created(INTERVAL, [json!({}), rolled_back(2)], 3600);
    let found = stage.scan().await;
    let (rolled_back, other) = (&found["namespaced/b/quick"], &found["cluster/all"]);
    assert!(rolled_back.message.contains("generation 1, which serves, has no revision"), "{rolled_back:?}");
    assert_eq!(rolled_back.generation, 0);
    assert!(is_complete(other, 2 * OBJECTS), "{other:?}");
}

#[tokio::test]
async fn the_reports_of_a_policy_that_is_rolled_back_stay_where_its_rules_are_unknown() {
    // By the rules of generation 1 it is asked about ConfigMaps, and admits them.
    let all = ["portcullis-default-uid-b-00", "portcullis-default-uid-web"].map(str::to_owned);
    for (to, deleted) in [(2, BTreeSet::new()), (1, BTreeSet::from(all))] {
        let mut stage = Stage::created(INTERVAL, [json!({}), rolled_back(to)], 3600);
        let _held = stage.lead().await;
        stage.scan().await;
        assert_eq!(*lock(&stage.deleted), deleted, "{to}");
    }
}

#[tokio::test]
async fn a_policy_with_nothing_to_roll_back_to_is_asked_by_the_rules_that_serve_and_the_reports_of_others_do_not_stay()
{
    // Generation 3 has no revision, and that of generation 4 has no content.
    for to in [2, 3] {
        for serving in [Some(2), None] {
            let mut stage = Stage::created(INTERVAL, [json!({}), rolled_back(to)], 3600);
            let quick = PolicyKey::of("uid-quick");
            stage.served.remove(&quick);
            stage.served.extend(serving.map(|serving| (quick, serving)));
            let _held = stage.lead().await;
            let found = stage.scan().await;
            assert!(lock(&stage.deleted).contains("portcullis-default-uid-web"), "{to} {serving:?}");
            match (serving, found.get("namespaced/b/quick")) {
                (Some(_), Some(quick)) => assert!(is_complete(quick, OBJECTS), "{to}: {quick:?}"),
                (None, None) => {}
                other => panic!("{to}: {other:?}"),
            }
        }
    }
}
