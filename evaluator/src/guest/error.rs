//! How a call of a guest fails.

use portcullis_contract::{Reason, clean};
use wasmtime::Trap;

use super::failed_calls::FailedCalls;

/// Longest text of a guest that an error quotes, in bytes.
const MAX_QUOTE: usize = 1024;

/// Why a guest gave no usable reply. The texts are those of docs/design/policy-abi.md, sections 5 and 6, without the prefixes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// The deadline passed.
    #[error("guest code interrupted, execution deadline exceeded")]
    TimedOut {
        /// The host call whose failure may have caused this and may be temporary, with why it failed.
        may_pass: Option<String>,
    },
    /// The guest trapped; the text is the trap's.
    #[error("{0}")]
    Trap(String),
    /// The guest made this host keep more than a call may; the text names the limit. Neither the guest's own text nor a denied capability
    /// replaces this error.
    #[error("{0}")]
    Limit(String),
    /// The guest ended itself.
    #[error("the guest exited with code {0}")]
    Exit(i32),
    /// The guest reported a failure; the text is its own.
    #[error("{0}")]
    Guest(String),
    /// The guest reported success and gave no reply; the text is its own if it left one.
    #[error("{0}")]
    NoReply(String),
    /// The guest handed over a reply that is not inside its memory.
    #[error("{0}")]
    BadReply(String),
    /// Its reply is above the limit.
    #[error("the reply is longer than {} bytes", super::MAX_REPLY)]
    ReplyTooLarge,
    /// The guest failed before it could be asked. The text begins with `Initialization failed`.
    #[error("{text}")]
    Init {
        /// What happened.
        text: String,
        /// Whether the deadline passed.
        timed_out: bool,
        /// The host call whose failure may have caused this and may be temporary, with why it failed.
        may_pass: Option<String>,
    },
    /// There was no memory for the guest.
    #[error("{0}")]
    Overloaded(String),
    /// The guest was denied a capability and failed because of that; the text is that of the failure.
    #[error("{0}")]
    Denied(String),
    /// A capability that the guest uses could not be provided, and it failed because of that; the text is that of the failure.
    #[error("{text}")]
    Unprovided {
        /// What happened.
        text: String,
        /// The host call whose failure may be temporary, with why it failed.
        may_pass: Option<String>,
    },
    /// The guest failed after the answer to one of its host calls was no. That is an answer, and the failure is the guest's own; a load is tried
    /// again all the same, as the answer may be another one later.
    #[error("{error}")]
    AfterNo {
        /// The failure.
        error: Box<Self>,
        /// The host call, with its answer.
        may_pass: String,
    },
    /// The guest asks for something that this host does not have.
    #[error("{0}")]
    Unsupported(String),
    /// This host failed.
    #[error("{0}")]
    Host(String),
}

impl CallError {
    /// The reason for the evaluation's failure.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::TimedOut { .. } | Self::Init { timed_out: true, .. } => Reason::EvaluationTimedOut,
            Self::Unprovided { .. } | Self::Init { may_pass: Some(_), .. } => Reason::CapabilityUnavailable,
            Self::Trap(_) | Self::Limit(_) | Self::Exit(_) | Self::Guest(_) | Self::Init { .. } => {
                Reason::EvaluationTrapped
            }
            Self::NoReply(_) | Self::BadReply(_) => Reason::ResponseInvalid,
            Self::ReplyTooLarge => Reason::ResponseTooLarge,
            Self::Overloaded(_) => Reason::Overloaded,
            Self::Denied(_) => Reason::CapabilityDenied,
            Self::AfterNo { error, .. } => error.reason(),
            Self::Unsupported(_) => Reason::ModuleUnsupported,
            Self::Host(_) => Reason::InternalError,
        }
    }

    /// The host call whose failure, or whose answer of no, may have caused this and may be temporary. A load is tried again because of it, also one
    /// that was too late: a host that hangs takes the guest's time.
    pub(crate) fn that_may_pass(&self) -> Option<&str> {
        match self {
            Self::TimedOut { may_pass } | Self::Init { may_pass, .. } | Self::Unprovided { may_pass, .. } => {
                may_pass.as_deref()
            }
            Self::AfterNo { may_pass, .. } => Some(may_pass),
            _ => None,
        }
    }

    /// What an error of the engine means. Kinds are distinguished by type, never by text.
    pub(super) fn of(error: &wasmtime::Error) -> Self {
        if let Some(known) = error.downcast_ref::<Self>() {
            return known.clone();
        }
        match error.downcast_ref::<Trap>() {
            Some(Trap::Interrupt) => Self::TimedOut { may_pass: None },
            Some(trap) => Self::Trap(trap.to_string()),
            // An error without a trap comes from the engine itself, for instance when it has no memory.
            None => Self::Host(quote(format!("{error:#}").as_bytes())),
        }
    }

    /// The failure of the initialisation function `function`.
    pub(crate) fn init(self, function: &str) -> Self {
        match self {
            Self::TimedOut { may_pass } => Self::Init {
                text: format!("Initialization failed: {function} init interrupted, execution deadline exceeded"),
                timed_out: true,
                may_pass,
            },
            Self::Host(_) | Self::Overloaded(_) | Self::Unsupported(_) => self,
            other => Self::Init { text: format!("Initialization failed: {other}"), timed_out: false, may_pass: None },
        }
    }

    /// The failure as it counts after these failed host calls, which may be its cause.
    pub(super) fn after(self, failures: &FailedCalls) -> Self {
        let may_pass = failures.that_may_pass().map(str::to_owned);
        if !failures.denied && failures.failed.is_none() {
            return self.after_no(may_pass);
        }
        let text = match self {
            Self::Trap(text) | Self::Guest(text) | Self::NoReply(text) => text,
            Self::Exit(_) => self.to_string(),
            Self::Init { text, timed_out, .. } => return Self::Init { text, timed_out, may_pass },
            Self::TimedOut { .. } => return Self::TimedOut { may_pass },
            other => return other,
        };
        if failures.denied { Self::Denied(text) } else { Self::Unprovided { text, may_pass } }
    }

    /// The failure as it counts after the host call `may_pass`, to which the answer was no; none if there was no such call.
    fn after_no(self, may_pass: Option<String>) -> Self {
        let Some(may_pass) = may_pass else { return self };
        match self {
            Self::TimedOut { .. } => Self::TimedOut { may_pass: Some(may_pass) },
            Self::Init { text, timed_out: true, .. } => Self::Init { text, timed_out: true, may_pass: Some(may_pass) },
            Self::Trap(_) | Self::Guest(_) | Self::NoReply(_) | Self::Exit(_) | Self::Init { .. } => {
                Self::AfterNo { error: Box::new(self), may_pass }
            }
            other => other,
        }
    }
}

/// Text of a guest, safe to show.
pub(super) fn quote(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(4 * MAX_QUOTE)];
    clean(&String::from_utf8_lossy(cut), MAX_QUOTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_type() {
        assert_eq!(CallError::of(&Trap::Interrupt.into()), late());
        assert!(matches!(CallError::of(&Trap::UnreachableCodeReached.into()), CallError::Trap(_)));
        assert_eq!(CallError::of(&wasmtime::Error::new(CallError::Exit(3))), CallError::Exit(3));
        assert!(matches!(CallError::of(&wasmtime::Error::msg("deadline exceeded")), CallError::Host(_)));
    }

    fn late() -> CallError {
        CallError::TimedOut { may_pass: None }
    }

    fn denied() -> FailedCalls {
        FailedCalls { denied: true, ..FailedCalls::default() }
    }

    fn failed() -> FailedCalls {
        let failure = Some("net/v1/dns_lookup_host: no".to_owned());
        FailedCalls { denied: false, failed: failure.clone(), outside: failure }
    }

    /// The answer to a call was no.
    fn answered_no() -> FailedCalls {
        FailedCalls { failed: None, ..failed() }
    }

    #[test]
    fn what_failed_before_is_the_cause() {
        let trap = || CallError::Trap("unreachable".into());
        assert_eq!(trap().after(&FailedCalls::default()), trap());
        assert_eq!(trap().after(&denied()).reason(), Reason::CapabilityDenied);
        assert_eq!(trap().after(&failed()).reason(), Reason::CapabilityUnavailable);
    }

    #[test]
    fn a_deadline_after_a_failed_host_call_stays_one_and_names_the_call() {
        for error in [late(), late().init("_start")] {
            assert_eq!(error.clone().after(&denied()), error);
            let after = error.clone().after(&failed());
            assert_eq!((after.to_string(), after.reason()), (error.to_string(), Reason::EvaluationTimedOut));
            assert_eq!(after.that_may_pass(), failed().that_may_pass());
        }
    }

    #[test]
    fn a_start_that_failed_after_a_host_call_keeps_its_text_and_names_the_call() {
        let start = || CallError::Exit(3).init("_start");
        let error = start().after(&failed());
        let text = "Initialization failed: the guest exited with code 3";
        assert_eq!((error.to_string().as_str(), error.reason()), (text, Reason::CapabilityUnavailable));
        assert!(matches!(error, CallError::Init { may_pass: Some(call), .. } if call.contains("dns_lookup_host")));
        assert_eq!(start().after(&denied()), start());
    }

    #[test]
    fn what_comes_after_an_answer_of_no_is_the_guests_own_failure_and_names_the_call() {
        for error in [
            CallError::Trap("unreachable".into()),
            CallError::Guest("not signed".into()),
            CallError::NoReply("no reply".into()),
            CallError::Exit(3),
            CallError::Exit(3).init("_start"),
            late(),
            late().init("_start"),
        ] {
            let after = error.clone().after(&answered_no());
            assert_eq!((after.to_string(), after.reason()), (error.to_string(), error.reason()));
            assert_ne!(after.reason(), Reason::CapabilityUnavailable);
            assert_eq!(after.that_may_pass(), failed().that_may_pass(), "a load is tried again");
        }
        let host = CallError::Host("no memory".into());
        assert_eq!(host.clone().after(&answered_no()), host);
        let denied = FailedCalls { denied: true, ..answered_no() };
        assert_eq!(CallError::Guest("no".into()).after(&denied), CallError::Denied("no".into()));
    }

    #[test]
    fn a_limit_stays_one_whatever_was_refused_before() {
        let error = CallError::Limit("too much".into());
        assert_eq!(error.clone().after(&denied()), error);
        assert_eq!(error.reason(), Reason::EvaluationTrapped);
    }

    #[test]
    fn a_deadline_in_an_initialisation_names_the_function() {
        let error = late().init("wapc_init");
        let text = "Initialization failed: wapc_init init interrupted, execution deadline exceeded";
        assert_eq!((error.to_string().as_str(), error.reason()), (text, Reason::EvaluationTimedOut));
    }
}
