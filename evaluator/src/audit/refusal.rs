//! Why there is no verdict for the reporter: the status of the answer and its text.

use http::StatusCode;
use portcullis_contract::{AuditRefusal, Reason};

use crate::audit::MOST_WAITING;
use crate::review::ReviewError;

/// Why a question is not answered with a verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// The first manifest has not come yet.
    #[error("{}: the loader has not said yet what to serve", Reason::AwaitingManifest)]
    Awaiting,
    /// The process is about to end.
    #[error("this replica is about to stop; ask another one")]
    Draining,
    /// The queue is full, or large objects of others take all the room.
    #[error("{MOST_WAITING} audits wait already, or large ones take all the room; try again later")]
    TooMany,
    /// Its turn did not come in time.
    #[error("the turn of this audit did not come in time; try again later")]
    TooLate,
    /// Requests need what the audit would take.
    #[error("Overloaded: {}; try again later", .0.message)]
    Contended(AuditRefusal),
    /// The manifest has no policy with this id, which is cleaned and cut.
    #[error("unknown policy: {0}")]
    Unknown(String),
    /// The body is not JSON, or it is compressed.
    #[error("{0}")]
    MediaType(&'static str),
    /// The body is above `--max-body`.
    #[error("the body is larger than the limit of this server")]
    TooLarge,
    /// The body took too long to arrive.
    #[error("the body took too long to arrive")]
    TooSlow,
    /// The connection broke.
    #[error("the body ends early")]
    Broken,
    /// The body is not a review.
    #[error(transparent)]
    Unreadable(#[from] ReviewError),
    /// A bug of this program.
    #[error("internal server error: a panic")]
    Panicked,
}

impl Refusal {
    /// The status of the answer.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Awaiting | Self::Draining | Self::TooMany | Self::TooLate | Self::Contended(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Unknown(_) => StatusCode::NOT_FOUND,
            Self::MediaType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Broken | Self::Unreadable(_) => StatusCode::BAD_REQUEST,
            Self::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_503_and_what_the_sender_did_wrong_is_4xx() {
        for (refusal, status) in [
            (Refusal::Awaiting, 503),
            (Refusal::Draining, 503),
            (Refusal::TooMany, 503),
            (Refusal::TooLate, 503),
            (Refusal::Contended(AuditRefusal::default()), 503),
            (Refusal::Unknown("cluster/a".into()), 404),
            (Refusal::MediaType("want JSON"), 415),
            (Refusal::TooLarge, 413),
            (Refusal::TooSlow, 408),
            (Refusal::Broken, 400),
            (Refusal::Unreadable(ReviewError::Empty), 400),
            (Refusal::Panicked, 500),
        ] {
            assert_eq!(refusal.status().as_u16(), status, "{refusal}");
        }
    }

    #[test]
    fn the_text_says_what_to_do() {
        let message = "requests take all places of this policy".to_owned();
        let text = Refusal::Contended(AuditRefusal { message, ..AuditRefusal::default() }).to_string();
        assert_eq!(text, "Overloaded: requests take all places of this policy; try again later");
        assert_eq!(Refusal::Unreadable(ReviewError::Empty).to_string(), "the body is empty; want an AdmissionReview");
    }
}
