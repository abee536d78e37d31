//! A client of the API server whose answers have limits of time and size.
//!
//! It is kube's client, with a layer for what kube lacks: kube reads answers, and lines of a watch, of any length, and waits for
//! them for ever; it never reads a changed kubeconfig or certificate again; and it drops the header `Retry-After`.

use std::convert::identity;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt as _;
use http::header::{ACCEPT, CONTENT_LENGTH, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody};
use kube::client::Body;
use kube::core::Status;
use kube::core::response::StatusDetails;
use kube::{Client, Config};
use portcullis_util::lock;
use tokio::sync::Semaphore;
use tower::BoxError;

use crate::access::{Access, AccessError};
use crate::error::{ANSWER_LIMIT, AnswerTooLarge, LONGEST_LINE, LineTooLong, TimedOut, printable};

/// Largest answer, in bytes.
const LARGEST_ANSWER: usize = 128 << 20;
/// Largest refusal whose text is read, in bytes.
const LARGEST_REFUSAL: usize = 64 << 10;
/// Shortest time between two readings of the credentials.
const RENEWAL_PAUSE: Duration = Duration::from_secs(5);

/// What is asked for where objects come without anything but their metadata.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Empty details of a `Status`.
const NO_DETAILS: StatusDetails = StatusDetails {
    name: String::new(),
    group: String::new(),
    kind: String::new(),
    uid: String::new(),
    causes: Vec::new(),
    retry_after_seconds: 0,
};

/// The API server.
#[derive(Clone)]
pub struct ApiServer {
    /// The client for all calls. Answers have limits of time and size, and nothing is tried again: callers decide that.
    pub client: Client,
    /// The configuration, for clients of other addresses with the same identity.
    pub config: Config,
    connection: Arc<Connection>,
}

/// How much memory answers may take. Programs that read objects of tenants, who decide how large these are, have narrower limits than the
/// default.
#[derive(Debug, Clone)]
pub struct AnswerLimits {
    /// The largest answer, in bytes. It takes twice as much until it is decoded.
    pub largest: usize,
    /// How many answers may be read at the same time, from the moment when they begin to arrive. Watches do not count.
    pub at_once: Arc<Semaphore>,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Only the address is shown, as a configuration can hold credentials.
        f.debug_struct("ApiServer").field("url", &self.config.cluster_url).finish_non_exhaustive()
    }
}

/// The body of an answer.
pub(crate) type Answer = UnsyncBoxBody<Bytes, BoxError>;

/// The API server, and how to reach it.
struct Connection {
    access: Access,
    program: String,
    /// kube's client, and when its credentials were read.
    current: Mutex<(Client, Instant)>,
}

impl Access {
    /// Reads the configuration and makes a client. `program` is its user agent.
    ///
    /// # Errors
    /// When there is no configuration, or no client can be made of it. Not when the API server cannot be reached.
    pub async fn connect(&self, program: &str) -> Result<ApiServer, AccessError> {
        let config = self.config(program).await?;
        let current = Mutex::new((self.unlimited_client(program).await?, Instant::now()));
        let connection = Arc::new(Connection { access: self.clone(), program: program.to_owned(), current });
        let client = connection.client(AnswerLimits::default(), config.default_namespace.clone(), identity);
        Ok(ApiServer { client, config, connection })
    }
}

impl ApiServer {
    /// A client over the same connections with other limits.
    pub fn client_within(&self, limits: AnswerLimits) -> Client {
        self.connection.client(limits, self.config.default_namespace.clone(), identity)
    }

    /// The same for lists and watches whose objects come without anything but their metadata. Their kind is `PartialObjectMetadata`.
    pub fn metadata_client_within(&self, limits: AnswerLimits) -> Client {
        self.connection.client(limits, self.config.default_namespace.clone(), ask_for_metadata)
    }
}

impl Default for AnswerLimits {
    fn default() -> Self {
        Self { largest: LARGEST_ANSWER, at_once: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)) }
    }
}

/// Asks for objects without anything but their metadata.
/// See <https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches>.
fn ask_for_metadata(mut request: Request<Body>) -> Request<Body> {
    let kind = if is_watch(request.uri()) { METADATA } else { METADATA_LIST };
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static(kind));
    request
}

impl Connection {
    /// A client whose requests are changed by `change` before they are sent.
    fn client(
        self: &Arc<Self>,
        limits: AnswerLimits,
        default_namespace: String,
        change: fn(Request<Body>) -> Request<Body>,
    ) -> Client {
        let connection = Arc::clone(self);
        let service = tower::service_fn(move |request| {
            let (connection, limits) = (Arc::clone(&connection), limits.clone());
            async move { connection.send(change(request), &limits).await }
        });
        Client::new(service, default_namespace)
    }

    async fn send(&self, request: Request<Body>, limits: &AnswerLimits) -> Result<Response<Answer>, BoxError> {
        let is_watch = is_watch(request.uri());
        let client = lock(&self.current).0.clone();
        let answered = async {
            let response = client.send(request).await;
            // The address, the authority or the credentials may have changed.
            if response.as_ref().map_or(true, |response| response.status() == StatusCode::UNAUTHORIZED) {
                self.renew().await;
            }
            limited(response?, is_watch, limits).await
        };
        tokio::time::timeout(ANSWER_LIMIT, answered).await.unwrap_or_else(|_| Err(TimedOut.into()))
    }

    /// Reads kubeconfig and token again. If that fails, the old client stays.
    async fn renew(&self) {
        {
            let mut current = lock(&self.current);
            if current.1.elapsed() < RENEWAL_PAUSE {
                return;
            }
            current.1 = Instant::now();
        }
        match self.access.unlimited_client(&self.program).await {
            Ok(client) => lock(&self.current).0 = client,
            Err(error) => tracing::debug!(%error, "failed to read the credentials again"),
        }
    }
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"))
}

/// An answer within its limits: a watch is passed on as it comes, everything else is read as a whole. A refusal, even one of a proxy, gets a
/// `Status` as its body, which includes the time after which to ask again; kube makes its errors from that.
pub(crate) async fn limited(
    response: Response<Body>,
    is_watch: bool,
    limits: &AnswerLimits,
) -> Result<Response<Answer>, BoxError> {
    let (mut parts, body) = response.into_parts();
    let body = if !parts.status.is_success() {
        let text = read(body, LARGEST_REFUSAL).await.unwrap_or_default();
        let status = serde_json::to_vec(&refusal(parts.status, &parts.headers, &text))?;
        parts.headers.remove(CONTENT_LENGTH);
        whole(status.into())
    } else if is_watch {
        lines(body)
    } else {
        // Not before: an API server that does not answer must not keep others from being read.
        let _turn = limits.at_once.acquire().await?;
        whole(read(body, limits.largest).await?)
    };
    Ok(Response::from_parts(parts, body))
}

/// Reads a body of at most `most` bytes into one buffer that grows. To collect its parts first would take twice the memory.
async fn read(mut body: Body, most: usize) -> Result<Bytes, BoxError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            if bytes.len() + data.len() > most {
                return Err(AnswerTooLarge(most).into());
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.into())
}

fn whole(bytes: Bytes) -> Answer {
    Full::new(bytes).map_err(BoxError::from).boxed_unsync()
}

/// A body that fails if a line is too long.
fn lines(body: Body) -> Answer {
    let mut length = 0;
    let frames = BodyStream::new(body).map(move |frame| {
        let frame = frame?;
        for part in frame.data_ref().into_iter().flat_map(|data| data.split_inclusive(|byte| *byte == b'\n')) {
            length += part.len();
            if length > LONGEST_LINE {
                return Err(BoxError::from(LineTooLong));
            }
            if part.ends_with(b"\n") {
                length = 0;
            }
        }
        Ok(frame)
    });
    StreamBody::new(frames).boxed_unsync()
}

/// The API server's refusal, with the time after which it wants to be asked again.
fn refusal(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Status {
    let mut status = serde_json::from_slice::<Status>(body).unwrap_or_else(|_| {
        // A proxy, or the API server's own limit of requests, answers in plain text. The reason is `NotFound` and so
        // on, because kube looks at the reason alone.
        let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
        Status::failure(&printable(&String::from_utf8_lossy(body)), &reason)
    });
    status.code = code.as_u16();
    // In seconds: API servers do not send dates.
    let asked = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    if let Some(seconds) = asked {
        status.details = Some(StatusDetails { retry_after_seconds: seconds, ..status.details.unwrap_or(NO_DETAILS) });
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CallError;

    fn answer(code: u16, body: Vec<u8>) -> Response<Body> {
        Response::builder().status(code).body(Body::from(body)).expect("an answer")
    }

    async fn passed_on(response: Response<Body>, is_watch: bool) -> Result<Bytes, BoxError> {
        Ok(limited(response, is_watch, &AnswerLimits::default()).await?.into_body().collect().await?.to_bytes())
    }

    #[tokio::test]
    async fn an_answer_that_is_too_large_is_not_read() {
        assert_eq!(passed_on(answer(200, b"{}".to_vec()), false).await.expect("read"), "{}");
        let error = passed_on(answer(200, vec![b' '; LARGEST_ANSWER + 1]), false).await.expect_err("too large");
        assert_eq!(error.to_string(), "an answer has more than 134217728 bytes");
    }

    #[tokio::test]
    async fn a_watch_may_be_long_but_no_line_of_it() {
        let line = [vec![b' '; LONGEST_LINE - 1], b"\n".to_vec()].concat();
        let read_lines = passed_on(answer(200, line.repeat(3)), true).await.expect("read");
        assert_eq!(read_lines.len(), 3 * LONGEST_LINE);
        let error = passed_on(answer(200, vec![b' '; LONGEST_LINE + 1]), true).await.expect_err("too long");
        assert!(error.is::<LineTooLong>(), "{error}");
    }

    /// The error that kube makes from a refusal.
    async fn refused(response: Response<Body>, is_watch: bool) -> kube::Error {
        let code = response.status();
        let response = limited(response, is_watch, &AnswerLimits::default()).await.expect("an answer");
        assert_eq!(response.status(), code, "callers that ask without kube's Api see it");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        kube::Error::Api(serde_json::from_slice(&body).expect("a Status"))
    }

    #[tokio::test]
    async fn a_refusal_is_a_status_and_says_when_to_come_back() {
        let mut busy = answer(429, b"too many requests\x1b[2J".to_vec());
        busy.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("7"));
        let CallError::Refused { code, retry_after, message } = CallError::from(refused(busy, false).await) else {
            panic!("refused")
        };
        assert_eq!((code, retry_after), (429, Some(Duration::from_secs(7))));
        assert!(message.starts_with("too many requests") && !message.contains('\x1b'), "{message}");
        let status = br#"{"kind":"Status","status":"Failure","code":403,"reason":"Forbidden","message":"no"}"#;
        assert_eq!(CallError::from(refused(answer(403, status.to_vec()), true).await).code(), Some(403));
        let error = refused(answer(404, b"404 page not found".to_vec()), false).await;
        assert!(matches!(error, kube::Error::Api(status) if status.is_not_found()), "kube takes it for what it is");
        // One byte more than is read of a refusal.
        let error = refused(answer(500, vec![b'a'; LARGEST_REFUSAL + 1]), false).await;
        assert_eq!(CallError::from(error).code(), Some(500));
    }

    #[test]
    fn metadata_are_asked_for_by_the_type_of_the_answer() {
        let asked = |uri: &'static str| {
            let request = Request::get(uri).header(ACCEPT, "application/json").body(Body::empty()).expect("a request");
            ask_for_metadata(request).headers()[ACCEPT].clone()
        };
        assert_eq!(asked("https://a/api/v1/pods?limit=5"), METADATA_LIST);
        assert_eq!(asked("https://a/api/v1/pods?watch=true"), METADATA);
    }

    #[test]
    fn a_watch_is_known_by_its_query() {
        assert!(is_watch(&Uri::from_static("https://a/api/v1/pods?&watch=true&resourceVersion=1")));
        assert!(!is_watch(&Uri::from_static("https://a/api/v1/pods?labelSelector=watch")));
    }
}
