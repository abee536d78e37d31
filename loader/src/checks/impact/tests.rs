use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use portcullis_contract::{AuditAnswer, AuditOutcome};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use super::*;
use crate::checks::served::tests::served;
use crate::input::Applied;

/// A limit for what comes by itself.
const LONG: Duration = Duration::from_secs(60);

/// The figures of a check that found this many denied objects.
pub(in crate::checks) fn figures_of(denied: u64) -> ImpactFigures {
    ImpactFigures {
        checked_at: Timestamp::UNIX_EPOCH,
        evaluated: 1000,
        total: None,
        denied,
        changed: 0,
        failed: 0,
        namespaces: 1,
        examples: Vec::new(),
        sample: false,
        complete: true,
    }
}

#[test]
fn secrets_are_never_read() {
    let named =
        |group: &str, name: &str| Resource { group: group.to_owned(), name: name.to_owned(), ..Resource::namespaces() };
    assert!(is_secret(&named("", "secrets")));
    assert!(!is_secret(&named("", "configmaps")) && !is_secret(&named("example.com", "secrets")));
}

#[test]
fn a_list_goes_on_where_it_ended() {
    let first = params("", 20, "");
    assert_eq!((first.limit, first.label_selector, first.continue_token), (Some(20), None, None));
    let second = params("a=b", 20, "token");
    assert_eq!(second.label_selector.as_deref(), Some("a=b"));
    assert_eq!(second.continue_token.as_deref(), Some("token"));
}

/// What is known of a cluster with these pods.
fn discovery(pods: Vec<Value>) -> Discovery {
    let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods}).to_string();
    let answer = get(async move || ([(CONTENT_TYPE, "application/json")], list));
    let routes = Router::new().route("/api/v1/pods", answer);
    Discovery::of(Client::new(routes.into_service(), "default"), served("Current"))
}

/// A policy about pods with these match conditions.
fn subject(conditions: Value) -> Subject {
    let object = json!({
        "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "a"},
        "spec": {"module": "https://example.com/a.wasm", "matchConditions": conditions, "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
        ]},
    });
    let applied = Applied::read(&object.to_string()).expect("a policy");
    Subject {
        id: applied.id.clone(),
        fingerprint: applied.fingerprint,
        mode: applied.mode(),
        reads_cluster: false,
        is_suspended: false,
        part: applied.part,
    }
}

/// An evaluator that has no time for the first trial, ever, and says that the others deny. It tells when it was asked about the first.
async fn evaluator() -> (SocketAddr, watch::Receiver<bool>) {
    let (asked, was_asked) = watch::channel(false);
    let asked = Arc::new(asked);
    let verdict = AuditVerdict { outcome: AuditOutcome::Denied, generation: 1, message: None, reason: None };
    let denied = serde_json::to_string(&AuditAnswer { verdict, microseconds: 1 }).expect("json");
    let answer = async move |Path(number): Path<u64>| {
        if number == 1 {
            asked.send_replace(true);
            return (StatusCode::SERVICE_UNAVAILABLE, String::new());
        }
        (StatusCode::OK, denied)
    };
    let routes = Router::new().route("/audit/check/{number}", post(answer));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (address, was_asked)
}

#[tokio::test]
async fn a_trial_that_is_never_judged_keeps_no_other_from_its_figures() {
    portcullis_process::install_crypto();
    let (evaluator, mut was_asked) = evaluator().await;
    let impact = Arc::new(Impact::new(evaluator, "portcullis").expect("a client"));
    let discovery = Arc::new(discovery(vec![json!({"metadata": {"name": "web", "namespace": "team"}})]));
    let subject = subject(json!([]));
    let look = |number| {
        let (impact, discovery, subject) = (Arc::clone(&impact), Arc::clone(&discovery), subject.clone());
        let trial = PolicyId::check(None, number).expect("an id");
        async move { impact.look(&trial, &subject, &discovery, Instant::now() + 10 * LONG).await }
    };
    let first = tokio::spawn(look(1));
    timeout(LONG, was_asked.wait_for(|asked| *asked)).await.expect("in time").expect("it is asked");
    let found = timeout(LONG, look(2)).await.expect("it does not wait for the first");
    let figures = found.figures.expect("figures");
    assert_eq!((figures.evaluated, figures.denied, figures.complete), (1, 1, true));
    assert!(!first.is_finished());
    first.abort();
}

#[tokio::test]
async fn match_conditions_that_take_long_are_evaluated_for_a_part_of_the_objects_so_that_others_have_their_figures() {
    const PODS: usize = 200;
    portcullis_process::install_crypto();
    let (evaluator, _was_asked) = evaluator().await;
    let impact = Impact::new(evaluator, "portcullis").expect("a client");
    let numbers: Vec<_> = (0..50).collect();
    let pod = |n| json!({"metadata": {"name": format!("web-{n}"), "namespace": "team"}, "spec": {"n": numbers}});
    let discovery = discovery((0..PODS).map(pod).collect());
    let costly = "object.spec.n.all(a, object.spec.n.all(b, a >= 0 && b >= 0))";
    let subject = subject(json!([{"name": "costly", "expression": costly}]));
    let trial = PolicyId::check(None, 2).expect("an id");
    let looking = impact.look(&trial, &subject, &discovery, Instant::now() + 10 * LONG);
    let found = timeout(LONG, looking).await.expect("it ends");
    let figures = found.figures.expect("figures");
    assert!(0 < figures.evaluated && figures.evaluated < PODS as u64, "{figures:?}");
    assert_eq!((figures.denied, figures.total, figures.complete), (figures.evaluated, Some(PODS as u64), false));
    assert!(found.warnings.iter().any(|text| text.contains("match conditions take too long")), "{:?}", found.warnings);
}
