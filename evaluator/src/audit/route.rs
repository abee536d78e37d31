//! `POST /audit/<policy>` on the state port: what the head and the body of a question must be, and the wait for its answer.
//!
//! The port's thread reads and waits, and evaluates nothing: probes of other programs are answered there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use portcullis_contract::{AUDIT_PATH, AuditAnswer};
use portcullis_process::Readiness;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::audit::PATIENCE;
use crate::audit::refusal::Refusal;
use crate::audit::worker::{Asked, Job, Jobs};
use crate::http::body::discard;
use crate::http::media_type;
use crate::http::route::quoted;
use crate::metrics::Metrics;
use crate::table::{ServedPolicy, SharedTable};

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The unit that the memory for bodies is counted in, in bytes.
const STEP: usize = 4 << 10;

/// What the route needs.
pub(crate) struct Audits {
    table: SharedTable,
    readiness: Readiness,
    jobs: Jobs,
    /// The largest body.
    largest: usize,
    /// The memory for all bodies of a queue together, in units of [`STEP`]: as much as one body of the largest size.
    room: Asked<Arc<Semaphore>>,
    metrics: Metrics,
}

/// The route.
pub(crate) fn routes(audits: Audits) -> Router {
    Router::new().route(&format!("{AUDIT_PATH}{{*id}}"), post(ask)).with_state(Arc::new(audits))
}

impl Audits {
    /// Audits of what `table` serves, by bodies of at most `largest` bytes.
    pub(crate) fn new(table: SharedTable, readiness: Readiness, jobs: Jobs, largest: usize, metrics: &Metrics) -> Self {
        let room = || Arc::new(Semaphore::new(largest.div_ceil(STEP).max(1)));
        let room = Asked { stored: room(), checked: room() };
        Self { table, readiness, jobs, largest, room, metrics: metrics.clone() }
    }

    async fn answer(&self, id: &str, headers: &HeaderMap, body: &mut Body) -> Result<AuditAnswer, Refusal> {
        if self.readiness.is_draining() {
            return Err(Refusal::Draining);
        }
        let policy = self.policy(id)?;
        if let Some(problem) = media_type::problem(headers) {
            return Err(Refusal::MediaType(problem));
        }
        let announced = body.size_hint();
        let largest = u64::try_from(self.largest).unwrap_or(u64::MAX);
        if announced.lower() > largest {
            return Err(Refusal::TooLarge);
        }
        let place = self.jobs.of(&policy.id).try_reserve().map_err(|_| Refusal::TooMany)?;
        let bytes = usize::try_from(announced.upper().unwrap_or(largest)).unwrap_or(self.largest).min(self.largest);
        let steps = u32::try_from(bytes.div_ceil(STEP)).unwrap_or(u32::MAX);
        let room = Arc::clone(self.room.of(&policy.id)).try_acquire_many_owned(steps).map_err(|_| Refusal::TooMany)?;
        let body = timeout(BODY_TIMEOUT, self.read(body)).await.map_err(|_| Refusal::TooSlow)??;
        let (sender, answer) = oneshot::channel();
        place.send(Job { policy, body, answer: sender, room, arrived: Instant::now() });
        match timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            // The worker ends only with the process.
            Ok(Err(_)) => Err(Refusal::Draining),
            Err(_) => Err(Refusal::TooLate),
        }
    }

    /// The policy with this id. It may also be one that is only checked: no request of an API server reaches it, but the loader asks it here.
    fn policy(&self, id: &str) -> Result<Arc<ServedPolicy>, Refusal> {
        let table = self.table.load();
        if table.manifest_number == 0 {
            return Err(Refusal::Awaiting);
        }
        let policy = table.policies.get(id).or_else(|| table.checks.get(id));
        policy.cloned().ok_or_else(|| Refusal::Unknown(quoted(id)))
    }

    async fn read(&self, body: &mut Body) -> Result<Bytes, Refusal> {
        let mut all = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(piece) = frame.map_err(|_| Refusal::Broken)?.into_data() else { continue };
            if all.len() + piece.len() > self.largest {
                return Err(Refusal::TooLarge);
            }
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }

    fn count(&self, result: &Result<AuditAnswer, Refusal>) {
        let outcome = match result {
            Ok(answer) => answer.verdict.outcome.as_str(),
            Err(refusal) if refusal.status() == StatusCode::SERVICE_UNAVAILABLE => "postponed",
            Err(_) => "refused",
        };
        self.metrics.audits.with_label_values(&[outcome]).inc();
    }
}

async fn ask(
    State(audits): State<Arc<Audits>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    mut body: Body,
) -> Response {
    let result = audits.answer(&id, &headers, &mut body).await;
    audits.count(&result);
    match result {
        Ok(answer) => {
            let json = serde_json::to_string(&answer).expect("its keys are texts");
            ([(CONTENT_TYPE, "application/json")], json).into_response()
        }
        Err(refusal) => {
            if !body.is_end_stream() {
                discard(&mut body, audits.largest).await;
            }
            let (status, text) = (refusal.status(), format!("{refusal}\n"));
            if let Refusal::Contended(refusal) = refusal {
                let json = serde_json::to_string(&refusal).expect("its keys are texts");
                return (status, [(RETRY_AFTER, "1"), (CONTENT_TYPE, "application/json")], json).into_response();
            }
            if status == StatusCode::SERVICE_UNAVAILABLE {
                return (status, [(RETRY_AFTER, "1")], text).into_response();
            }
            (status, text).into_response()
        }
    }
}
