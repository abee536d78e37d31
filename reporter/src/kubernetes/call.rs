//! One call to the API server, with limits of time and size, and with the answer's own word on when to come back.
//!
//! The client library's own retries are off: what is tried again, and when, is decided by who calls.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use portcullis_api::kubernetes::BoundedValue;
use serde::Deserialize;
use serde_json::Value;

/// Longest time for a whole call. An API server that needs half a minute for each is still heard.
const CALL_LIMIT: Duration = Duration::from_secs(45);
/// Longest time for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Largest answer that is read, in bytes.
const LARGEST: usize = 128 << 20;
/// Largest error answer that is looked at, in bytes.
const LARGEST_ERROR: usize = 64 << 10;
/// A client is made anew at most this often.
const CLIENT_LIFE: Duration = Duration::from_secs(5);
/// Longest `Retry-After` that is obeyed; what is longer is a mistake.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);

/// What a body of a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// A whole object, or the options of a deletion.
    Json,
    /// The fields of a server-side apply. JSON is YAML.
    Apply,
    /// The fields that change; `null` takes one away.
    Merge,
}

/// A call that had no success.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The kubeconfig, its certificates or the token cannot be read.
    #[error("failed to read how to reach the API server: {0}")]
    Settings(String),
    /// No connection, or one that was cut.
    #[error("failed to reach the API server: {0}")]
    Unreachable(String),
    /// No answer in time.
    #[error("the API server did not answer within {} s", CALL_LIMIT.as_secs())]
    TimedOut,
    /// The answer is none that an API server gives.
    #[error("failed to read the API server's answer: {0}")]
    Malformed(String),
    /// The API server said no.
    #[error("the API server refused with {code}: {message}")]
    Refused {
        /// The status code.
        code: u16,
        /// When to come back, by the API server's own word.
        retry_after: Option<Duration>,
        /// In its words.
        message: String,
    },
}

impl CallError {
    /// The status code of a refusal.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The label `code` of metrics.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Settings(_) => "settings".to_owned(),
            Self::Unreachable(_) => "unreachable".to_owned(),
            Self::TimedOut => "timeout".to_owned(),
            Self::Malformed(_) => "malformed".to_owned(),
            Self::Refused { code, .. } => code.to_string(),
        }
    }
}

/// The API server, and the way there.
pub(crate) struct Server {
    kubeconfig: Option<PathBuf>,
    /// Made anew when the credentials are refused: then files may have newer ones.
    client: Mutex<(Client, Instant)>,
}

impl Server {
    /// The API server that this file names; without one that of `KUBECONFIG`, or of the pod.
    ///
    /// # Errors
    /// When neither tells how to reach an API server.
    pub(crate) async fn open(kubeconfig: Option<&Path>) -> Result<Self, CallError> {
        let client = client(kubeconfig).await?;
        Ok(Self { kubeconfig: kubeconfig.map(Path::to_owned), client: Mutex::new((client, Instant::now())) })
    }

    /// The object or list of this path.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, CallError> {
        self.call(Method::GET, path, None).await
    }

    /// Sends `body` and reads the object that comes back.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        content: Content,
        body: &Value,
    ) -> Result<Value, CallError> {
        self.call(method, path, Some((content, body))).await
    }

    async fn call(&self, method: Method, path: &str, body: Option<(Content, &Value)>) -> Result<Value, CallError> {
        let whole = async {
            let response = self.open_answer(method, path, body).await?;
            let bytes = Limited::new(response.into_body(), LARGEST).collect().await;
            let bytes = bytes.map_err(|error| CallError::Unreachable(error.to_string()))?.to_bytes();
            let read = serde_json::from_slice::<BoundedValue>(&bytes).map(|value| value.0);
            read.map_err(|error| CallError::Malformed(error.to_string()))
        };
        tokio::time::timeout(CALL_LIMIT, whole).await.unwrap_or(Err(CallError::TimedOut))
    }

    /// The beginning of a good answer, whose body is read by the caller. No time limit for the body.
    pub(crate) async fn stream(&self, path: &str) -> Result<Response<Body>, CallError> {
        let opened = self.open_answer(Method::GET, path, None);
        tokio::time::timeout(CALL_LIMIT, opened).await.unwrap_or(Err(CallError::TimedOut))
    }

    async fn open_answer(
        &self,
        method: Method,
        path: &str,
        body: Option<(Content, &Value)>,
    ) -> Result<Response<Body>, CallError> {
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).0.clone();
        let mut request = Request::builder().method(method).uri(path).header(ACCEPT, "application/json");
        let mut bytes = Vec::new();
        if let Some((content, value)) = body {
            request = request.header(
                CONTENT_TYPE,
                match content {
                    Content::Json => "application/json",
                    Content::Apply => "application/apply-patch+yaml",
                    Content::Merge => "application/merge-patch+json",
                },
            );
            bytes = serde_json::to_vec(value).map_err(|error| CallError::Malformed(error.to_string()))?;
        }
        let request = request.body(Body::from(bytes)).map_err(|error| CallError::Malformed(error.to_string()))?;
        let response = match client.send(request).await {
            Ok(response) => response,
            Err(error) => {
                // The address, the authority or the client's certificate may have changed as well.
                self.renew().await;
                return Err(CallError::Unreachable(root_cause(&error)));
            }
        };
        if response.status().is_success() {
            return Ok(response);
        }
        if response.status() == StatusCode::UNAUTHORIZED {
            self.renew().await;
        }
        Err(refusal(response).await)
    }

    /// Reads kubeconfig and token again. Where that fails, the old client stays.
    async fn renew(&self) {
        {
            let mut held = self.client.lock().unwrap_or_else(PoisonError::into_inner);
            if held.1.elapsed() < CLIENT_LIFE {
                return;
            }
            held.1 = Instant::now();
        }
        match client(self.kubeconfig.as_deref()).await {
            Ok(client) => self.client.lock().unwrap_or_else(PoisonError::into_inner).0 = client,
            Err(error) => tracing::debug!(%error, "failed to renew the client"),
        }
    }
}

async fn client(kubeconfig: Option<&Path>) -> Result<Client, CallError> {
    let settings =
        |error: &dyn std::fmt::Display| CallError::Settings(portcullis_contract::clean(&error.to_string(), 512));
    let mut config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| settings(&error))?;
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            config.map_err(|error| settings(&error))?
        }
        None => Config::infer().await.map_err(|error| settings(&error))?,
    };
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_LIMIT);
    Client::try_from(config).map_err(|error| settings(&error))
}

async fn refusal(response: Response<Body>) -> CallError {
    #[derive(Deserialize, Default)]
    struct Status {
        #[serde(default)]
        message: String,
    }
    let (parts, body) = response.into_parts();
    let text = Limited::new(body, LARGEST_ERROR).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let message = serde_json::from_slice::<Status>(&text).map(|status| status.message);
    let message = message.unwrap_or_else(|_| String::from_utf8_lossy(&text).into_owned());
    CallError::Refused {
        code: parts.status.as_u16(),
        retry_after: parts.headers.get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?)),
        message: portcullis_contract::clean(&message, 512),
    }
}

/// `Retry-After` in seconds. API servers send no dates.
fn retry_after(text: &str) -> Option<Duration> {
    text.trim().parse().ok().map(Duration::from_secs).map(|time| time.min(LONGEST_RETRY_AFTER))
}

/// What lies at the bottom, for instance "Connection refused (os error 111)".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    portcullis_contract::clean(&deepest.to_string(), 512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_in_seconds_and_bounded() {
        assert_eq!(retry_after("7"), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("999999"), Some(LONGEST_RETRY_AFTER));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), None);
    }
}
