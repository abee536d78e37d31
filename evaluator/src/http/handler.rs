//! From an HTTP request to an HTTP response.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use http::header::{ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, EXPECT, RETRY_AFTER, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Body as _, Incoming};
use portcullis_contract::{GroupId, Reason};
use portcullis_process::Readiness;

use crate::admission::{Asker, Call, Purpose, Target};
use crate::http::body::{BodyError, BodyLimits};
use crate::http::connection::Place;
use crate::http::path_keys::AcceptedKeys;
use crate::http::route::{self, OpenPaths, Route, quoted};
use crate::review::{RawReview, Review, ReviewError};
use crate::table::{Record, SharedTable, Table};
use crate::verdict::EvaluationError;
use crate::verdict::answer::{Answer, Envelope};

/// Answers the requests of the admission port.
pub(crate) struct Handler {
    /// What is served.
    pub table: SharedTable,
    /// Asks the policies.
    pub asker: Asker,
    /// For bodies.
    pub bodies: BodyLimits,
    /// Tells each client to come back on another connection while the process drains.
    pub readiness: Readiness,
    /// The paths of policies that answer.
    pub open: OpenPaths,
    /// The keys by which paths of match groups are made; nothing where whoever knows a group may ask it.
    pub keys: Option<Arc<AcceptedKeys>>,
    /// Requests under way.
    pub under_way: UnderWay,
}

/// Counts requests up to a bound.
pub(crate) struct UnderWay {
    count: AtomicUsize,
    limit: usize,
}

/// One of them, until it is dropped.
struct Entered<'a>(&'a UnderWay);

/// TRANSPORT of docs/design/faults.md, section 1: a plain HTTP error, for what could not be understood.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    status: StatusCode,
    message: Cow<'static, str>,
    /// Whether what follows on the connection cannot be trusted or is not read.
    close: bool,
}

impl UnderWay {
    /// At most `limit`.
    pub(crate) fn new(limit: usize) -> Self {
        Self { count: AtomicUsize::new(0), limit }
    }

    fn enter(&self) -> Option<Entered<'_>> {
        let entered = Entered(self);
        (self.count.fetch_add(1, Ordering::Relaxed) < self.limit).then_some(entered)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Refusal {
    fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, message: message.into(), close: false }
    }

    fn closing(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { close: true, ..Self::new(status, message) }
    }
}

impl From<ReviewError> for Refusal {
    fn from(error: ReviewError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl Handler {
    /// Answers one request. Never fails and never panics: a panic below becomes an answer.
    pub(crate) async fn handle(&self, request: Request<Incoming>, place: &Place) -> Response<Full<Bytes>> {
        let arrived = Instant::now();
        let (parts, body) = request.into_parts();
        let mut response = match AssertUnwindSafe(self.answer(&parts, body, arrived, place)).catch_unwind().await {
            Ok(Ok(json)) => response(StatusCode::OK, json),
            Ok(Err(refusal)) => refused(&refusal),
            Err(_) => {
                self.asker.metrics.panics.inc();
                refused(&Refusal::closing(StatusCode::INTERNAL_SERVER_ERROR, "Something went wrong"))
            }
        };
        if self.readiness.is_draining() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn answer(&self, parts: &Parts, body: Incoming, arrived: Instant, place: &Place) -> Result<Bytes, Refusal> {
        let Some(route) = self.open.route(parts.uri.path(), self.keys.as_deref()) else {
            // The head is enough, and nothing of a body is read. What is not read cannot be told from a next request.
            let close = !body.is_end_stream();
            return Err(Refusal { close, ..Refusal::new(StatusCode::NOT_FOUND, "not found") });
        };
        let timeout = match self.understood(parts, &body, &route) {
            Ok(timeout) => timeout,
            Err(refusal) => {
                // Who waits for "100 Continue" has sent nothing that could be thrown away.
                if !body.is_end_stream() && !parts.headers.contains_key(EXPECT) {
                    self.bodies.discard(body).await;
                }
                return Err(refusal);
            }
        };
        let body = self.bodies.read(body, place, timeout).await.map_err(|error| match error {
            BodyError::TooLarge => too_large(),
            BodyError::TooSlow => Refusal::closing(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive"),
            BodyError::NoRoom => {
                let text = format!("{}: too many large bodies are under way; try again later", Reason::Overloaded);
                Refusal::closing(StatusCode::SERVICE_UNAVAILABLE, text)
            }
            BodyError::Broken => Refusal::closing(StatusCode::BAD_REQUEST, "the body ends early"),
        })?;
        place.asking();
        // Taken once, now: the answer is wholly of this table.
        let table = self.table.load_full();
        let call = Call { arrived, timeout };
        match &route {
            Route::Validate(id) => self.policy(policy(&table, id)?, &body.bytes, call, Purpose::Admission).await,
            Route::Audit(id) => self.policy(policy(&table, id)?, &body.bytes, call, Purpose::Audit).await,
            Route::ValidateRaw(id) => {
                let record = policy(&table, id)?;
                let review = RawReview::parse(&body.bytes)?;
                let target = Target::Policy(record);
                let answer = self.bounded(target, self.asker.raw(record, &review, call)).await;
                Ok(answer.body(review.uid(), Envelope::Raw))
            }
            Route::Admit(id) => {
                let group = table.groups.get(id.as_ref()).ok_or_else(|| unknown("group", id))?;
                let review = Review::parse(&body.bytes)?;
                let target = Target::Group(&group.members);
                let answer = self.bounded(target, self.asker.group(group, &review, call)).await;
                Ok(answer.body(review.uid(), Envelope::Review))
            }
            Route::Marker(id) => {
                let group = marked(&table, id)?;
                let review = Review::parse(&body.bytes)?;
                self.asker.metrics.markers.inc();
                // No policy runs, so nothing is waited for and no bound is needed.
                Ok(Answer::marker(group).body(review.uid(), Envelope::Review))
            }
        }
    }

    async fn policy(&self, record: &Arc<Record>, body: &[u8], call: Call, purpose: Purpose) -> Result<Bytes, Refusal> {
        let review = Review::parse(body)?;
        let target = Target::Policy(record);
        let answer = self.bounded(target, self.asker.review(record, &review, call, purpose)).await;
        Ok(answer.body(review.uid(), Envelope::Review))
    }

    /// Asks, unless too many requests are under way: then the policies' answer for that comes early.
    async fn bounded(&self, target: Target<'_>, asking: impl Future<Output = Answer>) -> Answer {
        let Some(_entered) = self.under_way.enter() else {
            self.asker.metrics.overloaded.inc();
            let limit = self.under_way.limit;
            let text = format!("{limit} requests, the limit of this replica, are under way already");
            return self.asker.refused(target, &EvaluationError::new(Reason::Overloaded, text));
        };
        self.asker.guarded(target, asking).await
    }

    /// What can be said before the body is read. Gives the caller's own time limit.
    fn understood(&self, parts: &Parts, body: &Incoming, route: &Route<'_>) -> Result<Option<Duration>, Refusal> {
        // Length and chunks together are how requests are smuggled, and hyper hides the length when there are chunks. The
        // API server always sends a length, so no chunks are taken at all.
        if parts.headers.contains_key(TRANSFER_ENCODING) {
            let text = "Transfer-Encoding is not taken; send the body with Content-Length";
            return Err(Refusal::closing(StatusCode::BAD_REQUEST, text));
        }
        if parts.method != Method::POST {
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "only POST is taken here"));
        }
        self.known(route)?;
        media_type(&parts.headers)?;
        let timeout = route::timeout(parts.uri.query().unwrap_or_default())
            .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error))?;
        if self.bodies.is_too_large(body) {
            return Err(too_large());
        }
        Ok(timeout)
    }

    fn known(&self, route: &Route<'_>) -> Result<(), Refusal> {
        let table = self.table.load();
        if table.manifest_number == 0 {
            let text = format!("{}: the loader has not said yet what to serve", Reason::AwaitingManifest);
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text));
        }
        match route {
            Route::Validate(id) | Route::Audit(id) | Route::ValidateRaw(id) => policy(&table, id).map(|_| ()),
            Route::Admit(id) if table.groups.contains_key(id.as_ref()) => Ok(()),
            Route::Admit(id) => Err(unknown("group", id)),
            Route::Marker(id) => marked(&table, id).map(|_| ()),
        }
    }
}

fn policy<'t>(table: &'t Table, id: &str) -> Result<&'t Arc<Record>, Refusal> {
    table.policies.get(id).ok_or_else(|| unknown("policy", id))
}

/// The group of a marker. One without members is on its way out, and nothing about it is to be proven.
fn marked<'t>(table: &'t Table, id: &str) -> Result<&'t GroupId, Refusal> {
    let known = table.groups.get_key_value(id).filter(|(_, group)| !group.members.is_empty());
    known.map(|(id, _)| id).ok_or_else(|| unknown("group", id))
}

fn unknown(what: &str, id: &str) -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, format!("unknown {what}: {}", quoted(id)))
}

fn too_large() -> Refusal {
    Refusal::closing(StatusCode::PAYLOAD_TOO_LARGE, "the body is above the limit of this server")
}

/// JSON and nothing else, not compressed.
fn media_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let unsupported = |text| Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    if headers.get_all(CONTENT_ENCODING).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return unsupported("compressed bodies are not taken");
    }
    let essence = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()?.split(';').next());
    match essence {
        Some(essence) if essence.trim().eq_ignore_ascii_case("application/json") => Ok(()),
        _ => unsupported("the content type must be application/json"),
    }
}

fn response(status: StatusCode, json: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(json.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn refused(refusal: &Refusal) -> Response<Full<Bytes>> {
    let json = serde_json::json!({"message": refusal.message, "status": refusal.status.as_u16()});
    let mut response = response(refusal.status, json.to_string());
    let headers = response.headers_mut();
    match refusal.status {
        StatusCode::METHOD_NOT_ALLOWED => headers.insert(ALLOW, HeaderValue::from_static("POST")),
        StatusCode::SERVICE_UNAVAILABLE => headers.insert(RETRY_AFTER, HeaderValue::from_static("1")),
        _ => None,
    };
    if refusal.close {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(headers: &[(http::HeaderName, &str)]) -> Option<u16> {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().expect("a value"))).collect();
        media_type(&headers).err().map(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn json_and_nothing_else() {
        for good in ["application/json", "Application/JSON", "application/json; charset=utf-8"] {
            assert_eq!(media(&[(CONTENT_TYPE, good)]), None, "{good}");
        }
        for bad in ["", "text/plain", "application/jsonx", "application/json-patch+json", "*/*"] {
            assert_eq!(media(&[(CONTENT_TYPE, bad)]), Some(415), "{bad}");
        }
        assert_eq!(media(&[]), Some(415));
    }

    #[test]
    fn compressed_bodies_are_not_taken() {
        let json = (CONTENT_TYPE, "application/json");
        assert_eq!(media(&[json.clone(), (CONTENT_ENCODING, "gzip")]), Some(415));
        assert_eq!(media(&[json, (CONTENT_ENCODING, "identity")]), None);
    }

    #[test]
    fn requests_under_way_are_counted_to_the_bound() {
        let under_way = UnderWay::new(1);
        let first = under_way.enter();
        assert!(first.is_some());
        assert!(under_way.enter().is_none());
        drop(first);
        assert!(under_way.enter().is_some());
    }
}
