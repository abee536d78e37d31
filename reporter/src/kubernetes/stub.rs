//! An API server that a test plays, without a connection.

use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use kube::Client;
use portcullis_kubernetes::{Failures, Leadership, LeaseSettings, hold_lease};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// An API server that gives the Lease to every candidate, and answers any other call with a code and an object.
pub(crate) fn api_server(answer: impl Fn(&Method, Value) -> (u16, Value) + Clone + Send + Sync + 'static) -> Client {
    let answer = move |request: Request| async move {
        let (parts, body) = request.into_parts();
        let body = to_bytes(body, 1 << 20).await.expect("a body");
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (code, answer) = match (parts.uri.path().contains("/leases"), &parts.method) {
            (true, &Method::GET) => (200, json!({"metadata": {"name": "l"}})),
            (true, _) => (200, body),
            (false, method) => answer(method, body),
        };
        (StatusCode::from_u16(code).expect("a code"), answer.to_string())
    };
    Client::new(Router::new().fallback(answer).into_service(), "default")
}

/// The answer of an API server that refuses a call.
pub(crate) fn refused(code: u16) -> (u16, Value) {
    (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": code}))
}

/// Takes the Lease, and keeps it as long as the task in the second value is there.
pub(crate) async fn leads(client: &Client) -> (Leadership, JoinSet<()>) {
    let (sender, mut leadership) = Leadership::new();
    let settings = LeaseSettings { namespace: "n".into(), name: "l".into(), identity: "i".into() };
    let failures = Failures::new("hold the Lease", |_| ());
    let mut held = JoinSet::new();
    held.spawn(hold_lease(client.clone(), settings, sender, failures, std::future::pending()));
    timeout(Duration::from_secs(60), leadership.held()).await.expect("it leads soon");
    (leadership, held)
}
