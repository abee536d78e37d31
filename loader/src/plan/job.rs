//! The jobs that the plan asks for, and their outcomes.

use portcullis_contract::Digest;

use super::attempts::AttemptError;
use crate::source::Reference;
use crate::volume::ArtifactRecord;

/// The result of [`Job::Admit`] where the module is not refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The module is admitted.
    Checked,
    /// The source cannot say now, for this reason: the pin is trusted for now, and the check is still to be made.
    Trusted(AttemptError),
}

/// Work that takes time and may fail.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Job {
    /// Bring a module onto the volume and find out its digest.
    Fetch(Reference),
    /// Find out whether a policy that names this address may have the module that it is pinned to.
    Admit {
        /// The address.
        reference: Reference,
        /// The module.
        digest: Digest,
        /// Whether it was admitted before: then the address was found to lead to it, and only the rules are checked again.
        again: bool,
    },
    /// Make a module's artifact.
    Prepare {
        /// The module.
        digest: Digest,
        /// Compile it again even if the volume has an artifact of it.
        recompile: bool,
    },
}

/// The result of a job.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The digest of the module at the address.
    Fetched(Reference, Result<Digest, AttemptError>),
    /// The modules that policies are pinned to, each fetched by its digest.
    Brought(Reference, Vec<(Digest, Result<(), AttemptError>)>),
    /// Whether policies that name the address may have the module.
    Admitted(Reference, Digest, Result<Admission, AttemptError>),
    /// The artifact of the module.
    Prepared(Digest, Result<Prepared, AttemptError>),
}

/// The result of [`Job::Prepare`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// The artifact is on the volume.
    Ready(ArtifactRecord),
    /// The volume does not have the module.
    NoModule,
}

impl Job {
    /// The outcome of a job that failed before it had one of its own.
    pub(crate) fn failed(self, error: AttemptError) -> Outcome {
        match self {
            Self::Fetch(reference) => Outcome::Fetched(reference, Err(error)),
            Self::Admit { reference, digest, .. } => Outcome::Admitted(reference, digest, Err(error)),
            Self::Prepare { digest, .. } => Outcome::Prepared(digest, Err(error)),
        }
    }
}
