//! Interprets an API server's answer to a marker. Pure.

use std::fmt;
use std::time::Duration;

use portcullis_api::Truth;
use portcullis_contract::{GroupId, clean, marker_message};
use portcullis_util::{Backoff, causes};

/// The longest text of another program that is quoted, in bytes.
const QUOTED: usize = 300;
/// The first wait between two tries.
const FIRST: Duration = Duration::from_millis(100);
/// The longest wait between two tries.
const LONGEST: Duration = Duration::from_secs(30);

/// Why one API server did not prove that it calls the webhook.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofProblem {
    /// The change passed. An API server sees a new webhook within about a second.
    #[error(
        "the API server does not call the webhook yet, or cannot; if this persists, check that API servers can reach the Service, the network policies, and the API server's metric apiserver_admission_webhook_fail_open_count"
    )]
    NotCalledYet,
    /// There was no connection, or no answer in time.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// The controller lacks a right: to patch its revisions, or to read the addresses of the API servers.
    #[error("the API server forbids it: {0}")]
    Forbidden(String),
    /// The revision no longer exists, so another one has to carry the marker.
    #[error("the revision that carries the marker is gone")]
    Gone,
    /// Another webhook rejected the change before ours was called.
    #[error("another webhook rejected the marker: {0}")]
    RefusedByAnother(String),
    /// The API server answered in a way that proves nothing.
    #[error("the API server answered with {code}: {text}")]
    Unexpected {
        /// The HTTP status.
        code: u16,
        /// The message of the API server.
        text: String,
    },
}

/// At least one API server did not prove that it calls the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unproven {
    /// The most serious problem.
    pub problem: ProofProblem,
    /// The API server that has it.
    pub server: String,
    /// Whether none of the API servers has shown that it does not call the webhook, so that an earlier proof still holds.
    pub keeps_earlier_proof: bool,
    /// How many API servers call the webhook.
    pub proven: usize,
    /// How many API servers there are.
    pub servers: usize,
}

impl ProofProblem {
    /// Status and reason of the condition `WebhookConfigured`.
    pub fn condition(&self) -> (Truth, &'static str) {
        match self {
            Self::Forbidden(_) => (Truth::False, "Forbidden"),
            Self::NotCalledYet
            | Self::Unreachable(_)
            | Self::Gone
            | Self::RefusedByAnother(_)
            | Self::Unexpected { .. } => (Truth::Unknown, "Unknown"),
        }
    }

    /// Whether an earlier proof still holds: the API server was not asked, or said nothing about the webhook. What somebody must mend is reported
    /// in any case.
    pub fn keeps_earlier_proof(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Gone | Self::RefusedByAnother(_) | Self::Unexpected { .. } => true,
            Self::NotCalledYet | Self::Forbidden(_) => false,
        }
    }

    /// Whether the cluster's authority or the credentials may have changed since they were read.
    pub(crate) fn may_be_outdated(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Unexpected { code: 401, .. })
    }

    /// The order in which problems are reported if several API servers fail: the larger one first.
    pub(crate) fn weight(&self) -> u8 {
        match self {
            Self::Forbidden(_) => 5,
            Self::RefusedByAnother(_) => 4,
            Self::Unexpected { .. } => 3,
            Self::NotCalledYet => 2,
            Self::Unreachable(_) => 1,
            Self::Gone => 0,
        }
    }
}

impl Unproven {
    /// The result for `servers` API servers, of which these have failed; `None` if none has.
    pub(crate) fn of<'a>(failed: impl Iterator<Item = (&'a str, &'a ProofProblem)>, servers: usize) -> Option<Self> {
        let failed: Vec<_> = failed.collect();
        let (server, problem) = failed.iter().max_by_key(|(_, problem)| problem.weight())?;
        Some(Self {
            problem: (*problem).clone(),
            server: (*server).to_owned(),
            // A more serious problem of one does not hide what another has shown.
            keeps_earlier_proof: failed.iter().all(|(_, problem)| problem.keeps_earlier_proof()),
            proven: servers - failed.len(),
            servers,
        })
    }
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { problem, server, proven, servers, .. } = self;
        write!(f, "{proven} of {servers} API servers call the webhook; {server}: {problem}")
    }
}

/// Interprets the answer to a dry-run patch that carries the marker of a group.
///
/// # Errors
/// Why the answer is not a proof.
pub(crate) fn judge<T>(answer: Result<T, kube::Error>, group: &GroupId) -> Result<(), ProofProblem> {
    let status = match answer {
        Ok(_) => return Err(ProofProblem::NotCalledYet),
        Err(kube::Error::Api(status)) => status,
        Err(error) => return Err(ProofProblem::Unreachable(clean(&causes(&error), QUOTED))),
    };
    let text = clean(&status.message, QUOTED);
    // The API server puts its own words before the webhook's message; nothing else in the answer says which webhook denied it.
    let by_webhook = status.message.starts_with("admission webhook ");
    match status.code {
        403 if by_webhook && status.message.ends_with(&format!(": {}", marker_message(group))) => Ok(()),
        _ if by_webhook => Err(ProofProblem::RefusedByAnother(text)),
        401 | 403 => Err(ProofProblem::Forbidden(text)),
        404 => Err(ProofProblem::Gone),
        code => Err(ProofProblem::Unexpected { code, text }),
    }
}

/// How long to wait after this many tries: briefly at first, as an API server sees a new webhook within about a second.
pub fn pause_after(tries: u32) -> Duration {
    Backoff { shortest: FIRST, longest: LONGEST }.bound(tries / 2 + 1)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn group() -> GroupId {
        "0123456789abcdef".parse().expect("a group")
    }

    fn answer(code: u16, message: &str) -> Result<(), ProofProblem> {
        judge::<()>(Err(kube::Error::Api(Status::failure(message, "Forbidden").with_code(code).boxed())), &group())
    }

    #[test]
    fn the_denial_that_names_the_group_is_the_proof() {
        let denied = |who: &str, what: &str| format!("admission webhook \"{who}\" denied the request: {what}");
        let ours = "marker.0123456789abcdef.policies.portcullis.dev";
        assert_eq!(answer(403, &denied(ours, "portcullis marker 0123456789abcdef")), Ok(()));
        for (code, who, what) in [
            (403, ours, "portcullis marker fedcba9876543210"),
            (403, "others.example", "no"),
            (400, ours, "portcullis marker 0123456789abcdef"),
        ] {
            assert!(matches!(answer(code, &denied(who, what)), Err(ProofProblem::RefusedByAnother(_))), "{who}");
        }
    }

    #[test]
    fn what_proves_nothing_is_told_apart() {
        assert_eq!(judge(Ok(()), &group()), Err(ProofProblem::NotCalledYet));
        let rbac =
            "controllerrevisions.apps \"a\" is forbidden: User \"portcullis marker 0123456789abcdef\" cannot patch";
        assert!(matches!(answer(403, rbac), Err(ProofProblem::Forbidden(_))));
        assert!(matches!(answer(401, "Unauthorized"), Err(ProofProblem::Forbidden(_))));
        assert_eq!(answer(404, "controllerrevisions.apps \"a\" not found"), Err(ProofProblem::Gone));
        assert!(matches!(answer(503, "later"), Err(ProofProblem::Unexpected { code: 503, .. })));
        let lost = judge::<()>(Err(kube::Error::LinesCodecMaxLineLengthExceeded), &group());
        assert!(matches!(lost, Err(ProofProblem::Unreachable(_))));
    }

    #[test]
    fn only_what_somebody_must_mend_is_false() {
        assert_eq!(ProofProblem::Forbidden(String::new()).condition(), (Truth::False, "Forbidden"));
        assert_eq!(ProofProblem::NotCalledYet.condition(), (Truth::Unknown, "Unknown"));
    }

    #[test]
    fn only_an_api_server_that_lets_the_marker_pass_speaks_against_an_earlier_proof() {
        let text = String::new;
        for (problem, keeps) in [
            (ProofProblem::NotCalledYet, false),
            (ProofProblem::Unreachable(text()), true),
            // It says nothing about the webhook, but somebody has to restore a right.
            (ProofProblem::Forbidden(text()), false),
            // Another revision carries the next marker.
            (ProofProblem::Gone, true),
            (ProofProblem::RefusedByAnother(text()), true),
            (ProofProblem::Unexpected { code: 503, text: text() }, true),
        ] {
            assert_eq!(problem.keeps_earlier_proof(), keeps, "{problem}");
            let alone = Unproven::of([("a", &problem)].into_iter(), 2).expect("a failure");
            assert_eq!((alone.keeps_earlier_proof, alone.proven), (keeps, 1), "{problem}");
            let failed = [("a", &problem), ("b", &ProofProblem::NotCalledYet)];
            let with_another = Unproven::of(failed.into_iter(), 2).expect("a failure");
            assert!(!with_another.keeps_earlier_proof, "the second one does not call it, whatever {problem}");
        }
        assert_eq!(Unproven::of(std::iter::empty(), 2), None);
    }

    #[test]
    fn tries_are_near_each_other_at_first() {
        let waits: Vec<_> = (0..8).map(|tries| pause_after(tries).as_millis()).collect();
        assert_eq!(waits, [100, 100, 200, 200, 400, 400, 800, 800]);
        assert_eq!(pause_after(u32::MAX), LONGEST);
    }
}
