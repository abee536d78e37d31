//! One loaded generation of one policy: what a request needs to get a verdict, and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use portcullis_contract::{Digest, Reason};

use crate::verdict::{EvaluationError, Verdict};

/// What a guest is asked.
#[derive(Debug, Clone)]
pub struct Payload {
    /// The JSON of the request, exactly as the guest shall see it.
    pub request: Bytes,
}

/// What bounds one call.
#[derive(Debug, Clone, Copy)]
pub struct CallLimits {
    /// When the answer must be there. The policy's own time limit counts as well.
    pub deadline: Instant,
}

/// A generation that passed all its checks.
pub struct Loaded {
    generation: i64,
    digest: Digest,
    message: Option<String>,
    mutating: bool,
    timeout: Duration,
}

impl Loaded {
    /// Asks the policy about a request, in a fresh instance.
    ///
    /// # Errors
    /// When the guest fails, takes too long, or answers what is no verdict.
    pub async fn validate(
        self: &Arc<Self>,
        _payload: Payload,
        _limits: CallLimits,
    ) -> Result<Verdict, EvaluationError> {
        Err(EvaluationError::new(Reason::InternalError, "internal server error: guests do not run yet"))
    }

    /// The generation.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// The digest of its module.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Replaces the text of a denial.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// Whether a patch by the policy may be sent.
    pub fn mutating(&self) -> bool {
        self.mutating
    }

    /// Longest evaluation.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}
