//! Asks another program of the pod: each question is a POST of JSON on the loopback.

use std::net::SocketAddr;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};

use crate::{format_bytes, loopback};

/// Largest answer that is read, in bytes.
const LARGEST: usize = 256 << 10;
/// Longest `Retry-After` that is obeyed. A longer one is a mistake.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);

/// Asks one program.
#[derive(Debug, Clone)]
pub struct Poster {
    client: reqwest::Client,
    address: SocketAddr,
}

/// An answer, whatever its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status code.
    pub status: u16,
    /// How long the program asks to wait, if it does.
    pub retry_after: Option<Duration>,
    /// The body.
    pub body: Vec<u8>,
}

/// Why no answer was received.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// No connection, no answer in time, or a broken one.
    #[error("failed to ask {url}: {source}")]
    Http {
        /// The URL that was asked.
        url: String,
        /// The error of the HTTP client.
        source: reqwest::Error,
    },
    /// The answer is beyond the size limit.
    #[error("the answer of {url} is larger than {}", format_bytes(LARGEST as u64))]
    TooLarge {
        /// The URL that was asked.
        url: String,
    },
}

impl Poster {
    /// Asks the program at `address`, which must be on the loopback. An answer takes at most `longest`.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(address: SocketAddr, longest: Duration) -> Result<Self, PostError> {
        let named = |source| PostError::Http { url: format!("http://{address}"), source };
        Ok(Self { client: loopback::client(longest).map_err(named)?, address })
    }

    /// Posts JSON to a path, which begins with a slash.
    ///
    /// # Errors
    /// When the program does not answer, or its answer is too large.
    pub async fn post(&self, path: &str, body: Vec<u8>) -> Result<Answer, PostError> {
        let url = format!("http://{}{path}", self.address);
        let failed = |source| PostError::Http { url: url.clone(), source };
        let request = self.client.post(&url).header(CONTENT_TYPE, "application/json").body(body);
        let mut response = request.send().await.map_err(failed)?;
        let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let retry_after = asked.map(|seconds| Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER));
        let status = response.status().as_u16();
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(failed)? {
            if body.len() + piece.len() > LARGEST {
                return Err(PostError::TooLarge { url: url.clone() });
            }
            body.extend_from_slice(&piece);
        }
        Ok(Answer { status, retry_after, body })
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::post;

    use super::*;
    use crate::ProbeServer;

    #[tokio::test]
    async fn an_answer_is_read_with_its_status_and_the_time_to_come_back() {
        crate::install_crypto();
        let echo = post(|body: String| async move { body });
        let busy = post(|| async { (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "7")], "later") });
        let large = post(|| async { "x".repeat(LARGEST + 1) });
        let routes = Router::new().route("/echo", echo).route("/busy", busy).route("/large", large);
        let mut server = ProbeServer::new();
        let address = server.port(([127, 0, 0, 1], 0).into(), routes).expect("binds");
        server.start().expect("starts");
        let poster = Poster::new(address, Duration::from_secs(20)).expect("a client");
        let answer = poster.post("/echo", b"{}".to_vec()).await.expect("answers");
        assert_eq!(answer, Answer { status: 200, retry_after: None, body: b"{}".to_vec() });
        let answer = poster.post("/busy", Vec::new()).await.expect("answers");
        assert_eq!((answer.status, answer.retry_after), (503, Some(Duration::from_secs(7))));
        let error = poster.post("/large", Vec::new()).await.expect_err("too large");
        assert!(matches!(error, PostError::TooLarge { .. }), "{error}");
    }
}
