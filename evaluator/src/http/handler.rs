//! From an HTTP request to an HTTP response.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, EXPECT, RETRY_AFTER, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Body as _, Incoming};
use portcullis_contract::{GroupId, Reason};
use portcullis_process::telemetry::adopt_parent;
use portcullis_process::{Readiness, failpoint};
use tracing::{Instrument as _, debug_span};

use crate::admission::check::Checks;
use crate::admission::{Admission, Purpose, Target, answer_by};
use crate::http::body::{BodyError, BodyLimits, BodyOwner};
use crate::http::connection::ConnectionState;
use crate::http::media_type;
use crate::http::path_keys::AcceptedKeys;
use crate::http::route::{self, OpenPaths, Route, quoted};
use crate::http::under_way::UnderWay;
use crate::review::{RawReview, Review, ReviewError};
use crate::table::{MatchGroup, ServedPolicy, SharedTable, Table};
use crate::verdict::EvaluationError;
use crate::verdict::answer::{Answer, Envelope};

/// Answers the requests of the admission port.
pub(crate) struct Handler {
    /// What is served.
    pub(crate) table: SharedTable,
    /// Asks the policies.
    pub(crate) admission: Admission,
    /// Has the loader check policies that somebody applies; none where no loader can be reached.
    pub(crate) checks: Option<Arc<Checks>>,
    /// Limits on bodies.
    pub bodies: BodyLimits,
    /// Whether the process drains: then each answer asks its client to come back on another connection.
    pub readiness: Readiness,
    /// Which paths answer beside those of match groups.
    pub open: OpenPaths,
    /// The keys of the paths of match groups and checks; none where the paths have no codes, and a client needs only a group's id.
    pub keys: Option<Arc<AcceptedKeys>>,
    /// Counts the requests under way, except for checks.
    pub under_way: UnderWay,
}

/// What a request is for, as it was served when the request's head came.
enum Destination {
    /// A verdict of one policy.
    Policy(Arc<ServedPolicy>, Purpose),
    /// A verdict of one policy on a raw request.
    ValidateRaw(Arc<ServedPolicy>),
    /// The joined verdicts of a match group.
    Group(GroupId, Arc<MatchGroup>),
    /// The marker of a match group.
    Marker(GroupId),
    /// A check of a policy that somebody applies.
    Check(Arc<Checks>),
}

impl Destination {
    /// Which share the memory of the request's body counts in. It is known before the body is read.
    fn body_owner(&self) -> BodyOwner<'_> {
        match self {
            Self::Policy(policy, _) | Self::ValidateRaw(policy) => BodyOwner::Policy(policy.share.claimant()),
            Self::Group(_, group) => group.claimant().map_or(BodyOwner::Nobody, BodyOwner::Policy),
            Self::Marker(_) => BodyOwner::Nobody,
            Self::Check(_) => BodyOwner::Checks,
        }
    }
}

/// A request that policies are asked about, with what is needed to answer it if that fails.
struct PendingAnswer {
    target: Target,
    /// The request's uid as JSON text.
    uid: String,
    envelope: Envelope,
}

/// TRANSPORT of docs/design/faults.md, section 1: a plain HTTP error, for what could not be understood.
#[derive(Debug, PartialEq, Eq)]
struct HttpError {
    status: StatusCode,
    message: Cow<'static, str>,
    /// Whether the connection is closed, because what follows on it cannot be trusted or is not read.
    close: bool,
}

impl From<BodyError> for HttpError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge => {
                Self::closing(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than the limit of this server")
            }
            BodyError::TooSlow => Self::closing(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive"),
            BodyError::NoRoom => {
                let text = format!("{}: too many large bodies are under way; try again later", Reason::Overloaded);
                Self::closing(StatusCode::SERVICE_UNAVAILABLE, text)
            }
            BodyError::Broken => Self::closing(StatusCode::BAD_REQUEST, "the body ends early"),
        }
    }
}

impl HttpError {
    fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, message: message.into(), close: false }
    }

    fn closing(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { close: true, ..Self::new(status, message) }
    }
}

impl From<ReviewError> for HttpError {
    fn from(error: ReviewError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl Handler {
    /// Answers one request. Never fails and never panics: this is the barrier around a request.
    pub(crate) async fn handle(
        &self,
        request: Request<Incoming>,
        connection: &ConnectionState,
    ) -> Response<Full<Bytes>> {
        let arrived = Instant::now();
        let (parts, body) = request.into_parts();
        let mut asked = None;
        let answering = AssertUnwindSafe(self.answer(&parts, body, arrived, connection, &mut asked)).catch_unwind();
        let answer = answering.await.unwrap_or_else(|_| {
            self.admission.metrics.panics.inc();
            self.after_panic(asked)
        });
        let mut response = match answer {
            Ok(json) => response(StatusCode::OK, json),
            Err(error) => refused(&error),
        };
        if self.readiness.is_draining() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn answer(
        &self,
        parts: &Parts,
        body: Incoming,
        arrived: Instant,
        connection: &ConnectionState,
        asked: &mut Option<PendingAnswer>,
    ) -> Result<Bytes, HttpError> {
        let Some(route) = self.open.route(parts.uri.path(), self.keys.as_deref()) else {
            // The head is enough, and no body is read. Its unread bytes could be taken for the next request, so the connection is closed.
            let close = !body.is_end_stream();
            return Err(HttpError { close, ..not_found() });
        };
        let (destination, timeout) = match self.understood(parts, &body, &route) {
            Ok(understood) => understood,
            Err(error) => {
                // A client that waits for "100 Continue" has sent no body that could be thrown away.
                if !body.is_end_stream() && !parts.headers.contains_key(EXPECT) {
                    self.bodies.discard(body).await;
                }
                return Err(error);
            }
        };
        let body = self.bodies.read(body, destination.body_owner(), connection, timeout).await?;
        connection.asking();
        failpoint::hit("evaluator.reading");
        let until = answer_by(arrived, timeout);
        match destination {
            Destination::Policy(policy, purpose) => {
                let review = Review::parse(&body.bytes)?;
                let span = debug_span!(
                    "admission", policy = %policy.id, uid = quoted(review.uid()), namespace = namespace(&review)
                );
                adopt_parent(&span, &parts.headers);
                let asking = self.admission.review(&policy, &review, until, purpose).instrument(span);
                let target = Target::Policy(Arc::clone(&policy));
                let asked = asked.insert(PendingAnswer::new(target, review.uid(), Envelope::Review));
                Ok(self.bounded(asked, asking, |error| self.admission.policy_refused(&policy, error)).await)
            }
            Destination::ValidateRaw(policy) => {
                let review = RawReview::parse(&body.bytes)?;
                let span = debug_span!("admission", policy = %policy.id, uid = quoted(review.uid()));
                adopt_parent(&span, &parts.headers);
                let asking = self.admission.raw(&policy, &review, until).instrument(span);
                let target = Target::Policy(Arc::clone(&policy));
                let asked = asked.insert(PendingAnswer::new(target, review.uid(), Envelope::Raw));
                Ok(self.bounded(asked, asking, |error| self.admission.policy_refused(&policy, error)).await)
            }
            Destination::Group(id, group) => {
                let review = Review::parse(&body.bytes)?;
                let span = debug_span!(
                    "admission", group = %id, uid = quoted(review.uid()), namespace = namespace(&review)
                );
                adopt_parent(&span, &parts.headers);
                let asking = self.admission.group(&group, &review, &body.bytes, until).instrument(span);
                let target = Target::Group(Arc::clone(&group), body.bytes.clone());
                let asked = asked.insert(PendingAnswer::new(target, review.uid(), Envelope::Review));
                let refused =
                    |error: &EvaluationError| self.admission.group_refused(&group, &review, &body.bytes, error);
                Ok(self.bounded(asked, asking, refused).await)
            }
            Destination::Marker(group) => {
                let review = Review::parse(&body.bytes)?;
                self.admission.metrics.markers.inc();
                // No policy runs, so the answer comes at once and needs no limit.
                Ok(Answer::marker(&group).body(review.uid(), Envelope::Review))
            }
            Destination::Check(checks) => {
                let review = Review::parse(&body.bytes)?;
                // Checks have a limit of their own.
                Ok(checks.answer(&review, arrived, timeout).await.body(review.uid(), Envelope::Review))
            }
        }
    }

    /// Runs `asking`, unless too many requests are under way: then `refused` gives the policies' answer to an overload. That work is
    /// charged to no share, so it must be cheap: the body is not parsed again.
    async fn bounded(
        &self,
        asked: &PendingAnswer,
        asking: impl Future<Output = Answer>,
        refused: impl FnOnce(&EvaluationError) -> Answer,
    ) -> Bytes {
        failpoint::hit("evaluator.understood");
        // A match group without policies asks nobody, so it needs no share.
        let entered = asked.target.claimant().map(|who| self.under_way.enter(who));
        if matches!(entered, Some(None)) {
            self.admission.metrics.overloaded.inc();
            let limit = self.under_way.limit();
            let text = format!("this policy or its namespace has its share of the {limit} requests of this replica");
            return refused(&EvaluationError::new(Reason::Overloaded, text)).body(&asked.uid, asked.envelope);
        }
        asking.await.body(&asked.uid, asked.envelope)
    }

    /// The answer to a request that ended with a panic: the one that its policies give to a failure, or an HTTP error where they are not known.
    fn after_panic(&self, asked: Option<PendingAnswer>) -> Result<Bytes, HttpError> {
        let error = EvaluationError::new(Reason::InternalError, "internal server error: a panic");
        let closed = || HttpError::closing(StatusCode::INTERNAL_SERVER_ERROR, "Something went wrong");
        let refused = |asked: &PendingAnswer| -> Result<Bytes, HttpError> {
            Ok(self.admission.refused(&asked.target, &error)?.body(&asked.uid, asked.envelope))
        };
        // What panicked may do so again here, where the members of a group are chosen once more.
        let caught = |asked: PendingAnswer| catch_unwind(AssertUnwindSafe(|| refused(&asked))).ok();
        asked.and_then(caught).unwrap_or_else(|| Err(closed()))
    }

    /// What is known before the body is read: what the request is for, and how long its sender waits.
    fn understood(
        &self,
        parts: &Parts,
        body: &Incoming,
        route: &Route<'_>,
    ) -> Result<(Destination, Option<Duration>), HttpError> {
        // Length and chunks together are how requests are smuggled, and hyper hides the length when there are chunks. API
        // servers always send a length, so chunks are refused altogether.
        if parts.headers.contains_key(TRANSFER_ENCODING) {
            let text = "Transfer-Encoding is not supported; send the body with Content-Length";
            return Err(HttpError::closing(StatusCode::BAD_REQUEST, text));
        }
        if parts.method != Method::POST {
            return Err(HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "only POST is allowed"));
        }
        let destination = destination(&self.table.load(), self.checks.as_ref(), route)?;
        if let Some(problem) = media_type::problem(&parts.headers) {
            return Err(HttpError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, problem));
        }
        let timeout = route::timeout(parts.uri.query().unwrap_or_default())
            .map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, error))?;
        if self.bodies.is_too_large(body) {
            return Err(BodyError::TooLarge.into());
        }
        Ok((destination, timeout))
    }
}

impl PendingAnswer {
    fn new(target: Target, uid: &str, envelope: Envelope) -> Self {
        Self { target, uid: uid.to_owned(), envelope }
    }
}

/// Looks a route up, once for a request, so that the whole answer comes from one table.
fn destination(table: &Table, checks: Option<&Arc<Checks>>, route: &Route<'_>) -> Result<Destination, HttpError> {
    // A check does not depend on what is served.
    if table.manifest_number == 0 && *route != Route::Check {
        let text = format!("{}: the loader has not said yet what to serve", Reason::AwaitingManifest);
        return Err(HttpError::new(StatusCode::SERVICE_UNAVAILABLE, text));
    }
    let policy = |id: &str| table.policies.get(id).cloned().ok_or_else(|| unknown("policy", id));
    let group = |id: &str| table.groups.get_key_value(id).ok_or_else(|| unknown("group", id));
    Ok(match route {
        Route::Validate(id) => Destination::Policy(policy(id)?, Purpose::Admission),
        Route::Audit(id) => Destination::Policy(policy(id)?, Purpose::Audit),
        Route::ValidateRaw(id) => Destination::ValidateRaw(policy(id)?),
        Route::Admit(id) => group(id).map(|(id, group)| Destination::Group(id.clone(), Arc::clone(group)))?,
        // A match group without members is a tombstone, whose webhook needs no proof.
        Route::Marker(id) => match group(id)? {
            (id, group) if !group.members.is_empty() => Destination::Marker(id.clone()),
            _ => return Err(unknown("group", id)),
        },
        Route::Check => Destination::Check(checks.cloned().ok_or_else(not_found)?),
    })
}

/// The namespace of a request for its span, cleaned and cut; none for objects without one.
fn namespace(review: &Review<'_>) -> Option<String> {
    review.namespace().map(quoted)
}

fn not_found() -> HttpError {
    HttpError::new(StatusCode::NOT_FOUND, "not found")
}

fn unknown(what: &str, id: &str) -> HttpError {
    HttpError::new(StatusCode::NOT_FOUND, format!("unknown {what}: {}", quoted(id)))
}

fn response(status: StatusCode, json: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(json.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn refused(error: &HttpError) -> Response<Full<Bytes>> {
    let json = serde_json::json!({"message": error.message, "status": error.status.as_u16()});
    let mut response = response(error.status, json.to_string());
    let headers = response.headers_mut();
    match error.status {
        StatusCode::METHOD_NOT_ALLOWED => headers.insert(ALLOW, HeaderValue::from_static("POST")),
        StatusCode::SERVICE_UNAVAILABLE => headers.insert(RETRY_AFTER, HeaderValue::from_static("1")),
        _ => None,
    };
    if error.close {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::last_call::LastCall;
    use crate::capability::BrokerLink;
    use crate::metrics::Metrics;

    #[test]
    fn a_check_waits_for_no_manifest_and_needs_a_way_to_a_loader() {
        let metrics = Metrics::new().expect("registers");
        let checks = Checks::new(BrokerLink::new(&metrics, false), LastCall::default(), &metrics);
        let status = |table: &Table, checks: Option<&Arc<Checks>>, route: Route<'_>| {
            destination(table, checks, &route).err().map(|error| error.status.as_u16())
        };
        let (nothing, empty) = (Table::default(), Table { manifest_number: 1, ..Table::default() });
        for table in [&nothing, &empty] {
            assert_eq!(status(table, Some(&checks), Route::Check), None);
            assert_eq!(status(table, None, Route::Check), Some(404));
        }
        let group = || Route::Admit("0123456789abcdef".into());
        assert_eq!(status(&nothing, Some(&checks), group()), Some(503));
        assert_eq!(status(&empty, Some(&checks), group()), Some(404));
        assert_eq!(status(&empty, Some(&checks), Route::Validate("check/7".into())), Some(404));
    }
}
