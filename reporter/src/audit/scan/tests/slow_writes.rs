//! Scans while a webhook holds up the writes of reports in a namespace.

use axum::extract::Request;
use axum::http::{Method, StatusCode};

use super::*;
use crate::audit::slow_writes::SlowWrites;

/// What the webhook about reports in the namespace `a` does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Webhook {
    NeverAnswers,
    AsksToWait,
    Works,
}

/// An API server that has a report on an object of each namespace.
#[derive(Clone)]
struct Reports {
    webhook: Arc<Mutex<Webhook>>,
    /// The namespace of each write that was tried.
    writes: Arc<Mutex<Vec<String>>>,
}

impl Reports {
    fn client(&self) -> Client {
        let reports = self.clone();
        let answer = move |request: Request| {
            let reports = reports.clone();
            async move { reports.answer(request).await }
        };
        Client::new(Router::new().fallback(answer).into_service(), "default")
    }

    async fn answer(self, request: Request) -> (StatusCode, String) {
        let (parts, body) = request.into_parts();
        if parts.method == Method::GET {
            let is_of_namespaces = parts.uri.path().ends_with("/reports");
            let items = is_of_namespaces.then(|| ["a", "b"].map(report)).into_iter().flatten();
            let items: Vec<Value> = items.collect();
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items});
            return (StatusCode::OK, list.to_string());
        }
        let [.., namespace, _, _] = parts.uri.path().split('/').collect::<Vec<_>>()[..] else { panic!("{parts:?}") };
        lock(&self.writes).push(namespace.to_owned());
        let webhook = if namespace == "a" { *lock(&self.webhook) } else { Webhook::Works };
        match webhook {
            Webhook::NeverAnswers => std::future::pending().await,
            Webhook::AsksToWait => {
                let (_, mut status) = refused(429);
                status["details"] = json!({"retryAfterSeconds": 600});
                (StatusCode::TOO_MANY_REQUESTS, status.to_string())
            }
            Webhook::Works if parts.method == Method::DELETE => {
                (StatusCode::OK, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}).to_string())
            }
            Webhook::Works => {
                let body = axum::body::to_bytes(body, 1 << 20).await.expect("a report");
                (StatusCode::OK, String::from_utf8(body.into()).expect("JSON"))
            }
        }
    }

    /// How many writes there were in a namespace, whatever became of them.
    fn tried(&self, namespace: &str) -> usize {
        lock(&self.writes).iter().filter(|of| *of == namespace).count()
    }
}

/// An earlier report on the first object of a namespace, which another generation of the policy for all namespaces has rejected.
fn report(namespace: &str) -> Value {
    json!({
        "metadata": {"name": format!("portcullis-default-uid-{namespace}-00"), "namespace": namespace},
        "scope": {"apiVersion": "v1", "kind": "ConfigMap"},
        "results": [{"policy": "cluster/all", "result": "fail", "message": "no"}],
    })
}

/// Scans once with this webhook and once when it works. In the namespace `a`, each object needs a new report; in `b`, the only report has to go.
async fn scans_with(webhook: Webhook) {
    let specs = [json!({}), json!({})];
    let mut stage = Stage::taking(Duration::from_micros(200), INTERVAL, specs, 3600);
    let reports = Reports { webhook: Arc::new(Mutex::new(webhook)), writes: Arc::default() };
    let (leadership, _held) = leads(&stub::api_server(|_, _| refused(404))).await;
    let metrics = AuditMetrics::new(&Registry::new()).expect("registers");
    let failures = Failures::new("write audit reports", |_| ());
    let format = AuditFormat::Openreports;
    let mut writer = Writer::new(reports.client(), format, "default".into(), leadership, metrics, failures);
    // A tenth of it is for one namespace, which is enough for the others on a busy machine.
    writer.slow_writes = SlowWrites::within(Duration::from_secs(30));
    stage.scanner.worker.writer = writer;
    for is_slow in [true, false] {
        let scan = tokio::time::timeout(Duration::from_secs(300), stage.scan()).await;
        let found = scan.expect("a scan that does not wait for the webhook");
        let in_a = if is_slow { 1 } else { OBJECTS };
        assert_eq!((reports.tried("a"), reports.tried("b")), (in_a, 1), "{webhook:?}");
        let slow = &found["namespaced/a/slow"];
        // The figures do not depend on reports.
        assert_eq!((slow.checked, slow.errors), (OBJECTS as i64, OBJECTS as i64), "{webhook:?}");
        let told = slow.message.starts_with("not all reports could be written: writes in namespace a took ");
        assert_eq!((told, slow.message.is_empty()), (is_slow, !is_slow), "{webhook:?}: {}", slow.message);
        assert!(is_complete(&found["namespaced/b/quick"], OBJECTS), "{found:?}");
        // The verdicts are those of the first scan.
        assert_eq!(stage.asked("cluster/all").len(), if is_slow { 2 * OBJECTS } else { 0 });
        lock(&reports.writes).clear();
        *lock(&reports.webhook) = Webhook::Works;
    }
}

#[tokio::test]
async fn fault_c09_a_webhook_that_never_answers_about_reports_of_a_namespace_holds_up_those_of_others_for_a_limited_time()
 {
    scans_with(Webhook::NeverAnswers).await;
}

#[tokio::test]
async fn fault_c09_a_webhook_that_asks_to_wait_for_ten_minutes_holds_up_the_reports_of_others_for_a_limited_time() {
    scans_with(Webhook::AsksToWait).await;
}
