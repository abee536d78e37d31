//! A client of the API server whose answers have limits of time and size.
//!
//! It is kube's client, with a layer for what kube lacks: kube reads answers, and lines of a watch, of any length, and waits for
//! them for ever; it never reads a changed kubeconfig or certificate again; and it drops the header `Retry-After`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt as _;
use http::header::{CONTENT_LENGTH, HeaderMap, RETRY_AFTER};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, Full, Limited, StreamBody};
use kube::client::Body;
use kube::core::Status;
use kube::core::response::StatusDetails;
use kube::{Client, Config};
use portcullis_util::lock;
use tower::BoxError;

use crate::access::{Access, AccessError};
use crate::error::{ANSWER_LIMIT, LONGEST_LINE, LineTooLong, TimedOut, printable};

/// Largest answer, in bytes.
const LARGEST_ANSWER: usize = 128 << 20;
/// Largest refusal whose text is read, in bytes.
const LARGEST_REFUSAL: usize = 64 << 10;
/// Shortest time between two readings of the credentials.
const RENEWAL_PAUSE: Duration = Duration::from_secs(5);

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
        let service = tower::service_fn(move |request| {
            let connection = Arc::clone(&connection);
            async move { connection.send(request).await }
        });
        Ok(ApiServer { client: Client::new(service, config.default_namespace.clone()), config })
    }
}

impl Connection {
    async fn send(&self, request: Request<Body>) -> Result<Response<Answer>, BoxError> {
        let is_watch = is_watch(request.uri());
        let client = lock(&self.current).0.clone();
        let answered = async {
            let response = client.send(request).await;
            // The address, the authority or the credentials may have changed.
            if response.as_ref().map_or(true, |response| response.status() == StatusCode::UNAUTHORIZED) {
                self.renew().await;
            }
            limited(response?, is_watch).await
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
pub(crate) async fn limited(response: Response<Body>, is_watch: bool) -> Result<Response<Answer>, BoxError> {
    let (mut parts, body) = response.into_parts();
    let body = if !parts.status.is_success() {
        let text = read(body, LARGEST_REFUSAL).await.unwrap_or_default();
        let status = serde_json::to_vec(&refusal(parts.status, &parts.headers, &text))?;
        parts.headers.remove(CONTENT_LENGTH);
        whole(status.into())
    } else if is_watch {
        lines(body)
    } else {
        whole(read(body, LARGEST_ANSWER).await?)
    };
    Ok(Response::from_parts(parts, body))
}

/// Reads a body of at most `most` bytes into one buffer that grows. To collect its parts first would take twice the memory.
async fn read(body: Body, most: usize) -> Result<Bytes, BoxError> {
    let mut body = Limited::new(body, most);
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
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
    use http::HeaderValue;

    use super::*;
    use crate::CallError;

    fn answer(code: u16, body: Vec<u8>) -> Response<Body> {
        Response::builder().status(code).body(Body::from(body)).expect("an answer")
    }

    async fn passed_on(response: Response<Body>, is_watch: bool) -> Result<Bytes, BoxError> {
        Ok(limited(response, is_watch).await?.into_body().collect().await?.to_bytes())
    }

    #[tokio::test]
    async fn an_answer_that_is_too_large_is_not_read() {
        assert_eq!(passed_on(answer(200, b"{}".to_vec()), false).await.expect("read"), "{}");
        let error = passed_on(answer(200, vec![b' '; LARGEST_ANSWER + 1]), false).await.expect_err("too large");
        assert_eq!(error.to_string(), "length limit exceeded");
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
        let response = limited(response, is_watch).await.expect("an answer");
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
    fn a_watch_is_known_by_its_query() {
        assert!(is_watch(&Uri::from_static("https://a/api/v1/pods?&watch=true&resourceVersion=1")));
        assert!(!is_watch(&Uri::from_static("https://a/api/v1/pods?labelSelector=watch")));
    }
}
