//! Why actions fail.

use std::time::Duration;

use portcullis_contract::clean;
use portcullis_kubernetes::{CallError, asked_wait};

/// The longest text of the API server that is shown, in bytes.
pub(crate) const TEXT: usize = 800;
/// The longest wait that an API server may ask for. Webhooks should not stay unrepaired for longer.
pub(crate) const LONGEST_ASKED: Duration = Duration::from_secs(60);

/// Why an action failed.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The failure, for people to read.
    pub(crate) text: String,
    /// What kind of failure it is.
    pub(crate) cause: Cause,
    /// How long the API server asks to wait, if it does.
    pub(crate) retry_after: Option<Duration>,
}

/// A kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The object was changed or deleted meanwhile, so that the next decision will be another one.
    Overtaken,
    /// Rights are missing, or an admission plugin forbids it.
    Forbidden,
    /// The API server refuses the content.
    Refused,
    /// There is no connection to an API server, or it was cut.
    Unreachable,
    /// Everything else, such as an API server that does not answer in time.
    Other,
}

/// A wait of ours, or the longer one that the API server asks for.
pub(crate) fn obeying(asked: Option<Duration>, own: Duration) -> Duration {
    own.max(asked.unwrap_or_default().min(LONGEST_ASKED))
}

impl Failed {
    pub(crate) fn other(text: String) -> Self {
        Self::of(Cause::Other, text)
    }

    pub(crate) fn overtaken(text: &str) -> Self {
        Self::of(Cause::Overtaken, text.to_owned())
    }

    /// A failure that no API server has named.
    pub(crate) fn of(cause: Cause, text: String) -> Self {
        Self { text, cause, retry_after: None }
    }

    /// Whether the API server refuses the content.
    pub(crate) fn is_refusal(&self) -> bool {
        self.cause == Cause::Refused
    }

    /// The reason that the policies which wait for the action should give, if somebody has to act.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        match self.cause {
            Cause::Forbidden => Some("Forbidden"),
            Cause::Refused => Some("SpecInvalid"),
            Cause::Overtaken | Cause::Unreachable | Cause::Other => None,
        }
    }
}

impl From<kube::Error> for Failed {
    fn from(error: kube::Error) -> Self {
        let retry_after = asked_wait(&error);
        let status = match error {
            kube::Error::Api(status) => status,
            other => {
                let text = clean(&other.to_string(), TEXT);
                let is_unreachable = matches!(CallError::from(other), CallError::Unreachable(_));
                return Self::of(if is_unreachable { Cause::Unreachable } else { Cause::Other }, text);
            }
        };
        let cause = if status.is_conflict() || status.is_not_found() || status.is_already_exists() {
            Cause::Overtaken
        } else if status.is_forbidden() {
            Cause::Forbidden
        } else if status.is_invalid() || status.code == 400 {
            Cause::Refused
        } else {
            Cause::Other
        };
        Self { text: clean(&status.message, TEXT), cause, retry_after }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    /// The answer of an API server.
    fn answer(code: u16, reason: &str) -> Failed {
        kube::Error::Api(Box::new(Status::failure("its words", reason).with_code(code))).into()
    }

    #[test]
    fn a_refusal_of_the_api_server_is_a_failure_that_somebody_has_to_mend() {
        for (code, reason, cause) in [
            (409, "Conflict", Cause::Overtaken),
            (409, "AlreadyExists", Cause::Overtaken),
            (404, "NotFound", Cause::Overtaken),
            (403, "Forbidden", Cause::Forbidden),
            (422, "Invalid", Cause::Refused),
            (400, "BadRequest", Cause::Refused),
            (500, "InternalError", Cause::Other),
        ] {
            let failed = answer(code, reason);
            assert_eq!((failed.cause, failed.text.as_str()), (cause, "its words"), "{code}");
        }
        let said = |code: u16, reason: &str| answer(code, reason).reason();
        assert_eq!((said(403, "Forbidden"), said(422, "Invalid")), (Some("Forbidden"), Some("SpecInvalid")));
        assert_eq!((said(409, "Conflict"), said(500, "InternalError")), (None, None));
    }

    #[test]
    fn no_connection_is_told_from_an_answer_that_cannot_be_read() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(Failed::from(kube::Error::Service(refused.into())).cause, Cause::Unreachable);
        let unreadable = serde_json::from_str::<u8>("a page of a proxy").expect_err("no number");
        assert_eq!(Failed::from(kube::Error::SerdeError(unreadable)).cause, Cause::Other);
    }

    #[test]
    fn a_busy_api_server_says_how_long_to_wait() {
        let busy = r#"{"status": "Failure", "code": 429, "message": "its words", "details": {"retryAfterSeconds": 7}}"#;
        let busy: Status = serde_json::from_str(busy).expect("a Status");
        let busy = Failed::from(kube::Error::Api(Box::new(busy)));
        assert_eq!((busy.cause, busy.retry_after), (Cause::Other, Some(Duration::from_secs(7))));
        assert_eq!(answer(429, "TooManyRequests").retry_after, None);
    }
}
