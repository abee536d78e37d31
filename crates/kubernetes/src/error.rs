//! Why a call to the API server failed, in the classes that pauses, metrics and callers distinguish.

use std::time::Duration;

use kube::runtime::watcher;
use tower::BoxError;

/// Longest time for a whole answer, and for the beginning of a watch. It is long enough for API servers that need half a minute
/// for each.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(45);
/// Longest line of a watch, in bytes: an object in etcd has at most 1.5 MiB, and its JSON may be longer than what is stored.
pub(crate) const LONGEST_LINE: usize = 8 << 20;
/// Longest text of an error, in bytes.
const LONGEST_TEXT: usize = 512;
/// Longest `Retry-After` that is obeyed. A longer one is a mistake.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The kubeconfig, its certificates or the token cannot be read.
    #[error("failed to read how to reach the API server: {0}")]
    Settings(String),
    /// There is no connection, or it was cut.
    #[error("failed to reach the API server: {0}")]
    Unreachable(String),
    /// No answer came in time.
    #[error("the API server did not answer within {} s", ANSWER_LIMIT.as_secs())]
    TimedOut,
    /// The answer has more bytes than its caller takes.
    #[error("the API server's answer has more than {0} bytes, the limit")]
    TooLarge(usize),
    /// The answer is not one of an API server.
    #[error("failed to read the API server's answer: {0}")]
    Malformed(String),
    /// The API server refused the call.
    #[error("the API server refused with {code}: {message}")]
    Refused {
        /// The HTTP status code.
        code: u16,
        /// How long the API server asks to wait, if it does.
        retry_after: Option<Duration>,
        /// The API server's message.
        message: String,
    },
}

impl CallError {
    /// The HTTP status code of a refusal.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The label `code` of metrics.
    pub fn label(&self) -> String {
        match self {
            Self::Settings(_) => "settings".to_owned(),
            Self::Unreachable(_) => "unreachable".to_owned(),
            Self::TimedOut => "timeout".to_owned(),
            Self::TooLarge(_) => "too_large".to_owned(),
            Self::Malformed(_) => "malformed".to_owned(),
            Self::Refused { code, .. } => code.to_string(),
        }
    }
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        let text = || root_cause(&error);
        let too_large = |error: &BoxError| error.downcast_ref::<AnswerTooLarge>().map(|too_large| too_large.0);
        match &error {
            kube::Error::Api(status) => Self::Refused {
                code: status.code,
                retry_after: asked_wait(&error),
                message: printable(&status.message),
            },
            kube::Error::Service(error) if error.is::<TimedOut>() => Self::TimedOut,
            kube::Error::Service(error) if let Some(most) = too_large(error) => Self::TooLarge(most),
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => Self::Malformed(text()),
            kube::Error::Auth(_) => Self::Settings(text()),
            _ => Self::Unreachable(text()),
        }
    }
}

/// How long the API server asks to wait before the next try, if it does.
pub fn asked_wait(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else { return None };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(LONGEST_RETRY_AFTER))
}

impl From<watcher::Error> for CallError {
    fn from(error: watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
            watcher::Error::WatchError(status) => kube::Error::Api(status).into(),
            watcher::Error::NoResourceVersion => Self::Malformed("an object has no resourceVersion".to_owned()),
        }
    }
}

/// No answer came in time.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {} s", ANSWER_LIMIT.as_secs())]
pub(crate) struct TimedOut;

/// An answer is larger than this many bytes.
#[derive(Debug, thiserror::Error)]
#[error("an answer has more than {0} bytes")]
pub(crate) struct AnswerTooLarge(pub(crate) usize);

/// A line of a watch is too long.
#[derive(Debug, thiserror::Error)]
#[error("an event of the watch is longer than {LONGEST_LINE} bytes")]
pub(crate) struct LineTooLong;

/// The innermost cause of an error, for instance "Connection refused (os error 111)", without control characters.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    printable(&portcullis_util::root_cause(error))
}

/// A text of another program, made safe for terminals and logs, and cut.
pub(crate) fn printable(text: &str) -> String {
    portcullis_util::clean(text, LONGEST_TEXT)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_mistaken_retry_after_is_cut() {
        let status = r#"{"status": "Failure", "code": 503, "details": {"retryAfterSeconds": 999999}}"#;
        let status: Status = serde_json::from_str(status).expect("a Status");
        let error = CallError::from(kube::Error::Api(Box::new(status)));
        assert!(
            matches!(error, CallError::Refused { retry_after: Some(LONGEST_RETRY_AFTER), code: 503, .. }),
            "{error:?}"
        );
    }

    #[test]
    fn each_failure_has_a_label() {
        let timed_out = CallError::from(kube::Error::Service(TimedOut.into()));
        let away = CallError::from(kube::Error::Service("gone".into()));
        let malformed = serde_json::from_str::<u8>("a").expect_err("no number");
        let malformed = CallError::from(watcher::Error::WatchFailed(kube::Error::SerdeError(malformed)));
        let too_large = CallError::from(kube::Error::Service(AnswerTooLarge(7).into()));
        let labels = [timed_out, too_large, malformed].map(|error| error.label());
        assert_eq!(
            (labels, away.label()),
            (["timeout", "too_large", "malformed"].map(str::to_owned), "unreachable".to_owned())
        );
        assert_eq!(away.to_string(), "failed to reach the API server: gone");
    }

    #[test]
    fn texts_of_an_api_server_are_safe_to_log() {
        assert_eq!(printable("\u{1b}[31mred\nlevel=info\u{202e}"), "[31mred level=info");
        let cut = printable(&"é".repeat(LONGEST_TEXT));
        assert!(cut.len() <= LONGEST_TEXT && cut.ends_with("é…"), "{} bytes", cut.len());
    }
}
