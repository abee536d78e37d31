//! Why something failed, where, and whether trying again can help (docs/design/status-api.md, section 6; docs/design/faults.md, section 1).

use std::fmt;

use serde::{Deserialize, Serialize};

/// The stage at which a policy failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Reading the policy that the user wrote.
    Spec,
    /// Fetching and verifying the module.
    Fetch,
    /// Compiling it.
    Compile,
    /// Handing the module over on the shared volume.
    Volume,
    /// Making it ready to serve.
    Load,
    /// One evaluation.
    Evaluate,
}

/// Whether retrying can help. Every failure has exactly one class; it decides the code of health checks and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Class {
    /// Passing: trying again may work with nothing changed. Code 503; retried with backoff (1 s × 2, jitter, 5 min).
    Retry,
    /// Needs a change outside the policy: credentials, trust, a pushed image. Code 500; retried every 10 minutes, and at
    /// once when a watched input changes.
    Outside,
    /// Final for this generation: only an edit of the policy helps. Code 500; never retried.
    Final,
}

impl Class {
    /// The code of `/healthz/policies/<id>` and of an answer: 503 if trying again may help, 500 otherwise.
    pub fn code(self) -> u16 {
        match self {
            Self::Retry => 503,
            Self::Outside | Self::Final => 500,
        }
    }

    /// Whether trying again may work although nothing was changed.
    pub fn is_retryable(self) -> bool {
        self == Self::Retry
    }
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident: $stage:ident, $class:ident;)+) => {
        /// The reason of a failure: one word that is the same in wire JSON, condition, event, metric label and log.
        ///
        /// Reasons are API: never renamed once released. A reader takes an unknown one as [`Reason::InternalError`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Reason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Reason {
            /// Every reason, in the order of this table.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The reason in one word.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// The stage at which it happens.
            pub fn stage(self) -> Stage {
                match self { $(Self::$name => Stage::$stage,)+ }
            }

            /// Whether retrying can help.
            pub fn class(self) -> Class {
                match self { $(Self::$name => Class::$class,)+ }
            }
        }
    };
}

reasons! {
    /// The manifest of the policy cannot be read or breaks a rule of its schema.
    SpecInvalid: Spec, Final;
    /// A limit of the installation: policies or webhook configurations of a namespace, or the size of a spec.
    QuotaExceeded: Spec, Outside;

    /// The source refuses connections or its name does not resolve.
    RegistryUnreachable: Fetch, Retry;
    /// The source did not answer in time.
    RegistryTimeout: Fetch, Retry;
    /// The source answered 5xx.
    RegistryServerError: Fetch, Retry;
    /// The source asked the loader to come back later.
    RegistryThrottled: Fetch, Retry;
    /// The body ended early.
    BlobTruncated: Fetch, Retry;
    /// The signature could not be checked now.
    SignatureUnavailable: Fetch, Retry;
    /// The source refused the credentials (401, 403).
    Unauthorized: Fetch, Outside;
    /// The credentials that are needed are absent or cannot be read.
    CredentialsMissing: Fetch, Outside;
    /// The source has no such module, or the file does not exist.
    NotFound: Fetch, Outside;
    /// The source's certificate is not accepted.
    TLSFailed: Fetch, Outside;
    /// The source redirects to an address that the loader does not follow.
    RedirectRefused: Fetch, Outside;
    /// The bytes are not those of the pinned digest.
    DigestMismatch: Fetch, Outside;
    /// The signature is absent, or not by a required signer.
    SignatureInvalid: Fetch, Outside;
    /// The scheme, host or path is not among those that the installation allows.
    SourceNotAllowed: Fetch, Final;
    /// The OCI manifest is not that of a policy module.
    ManifestUnsupported: Fetch, Final;
    /// The module is above the size limit.
    ModuleTooLarge: Fetch, Final;
    /// The module expands beyond the limit.
    DecompressionLimit: Fetch, Final;

    /// The bytes are not a WebAssembly module.
    ModuleInvalid: Compile, Final;
    /// The module needs something that this host does not offer.
    ModuleUnsupported: Compile, Final;
    /// Compiling took more time or memory than allowed.
    CompileLimit: Compile, Final;
    /// The compiler failed on this module.
    CompileFailed: Compile, Final;
    /// The replica had too little memory, processor time or processes for the compiler.
    CompilerUnavailable: Compile, Retry;

    /// The volume is full.
    VolumeFull: Volume, Retry;
    /// The policies of its namespace have more settings than their share of the largest manifest that evaluators read, and
    /// this policy has more than most.
    SettingsTooLarge: Volume, Final;
    /// The policies of its namespace are more than fit in their share of the largest manifest that evaluators read.
    TooManyPolicies: Volume, Outside;
    /// The volume cannot be written.
    VolumeReadOnly: Volume, Retry;
    /// The manifest on the volume cannot be used.
    ManifestInvalid: Volume, Retry;
    /// The artifact that the manifest names is not there.
    ArtifactMissing: Volume, Retry;
    /// The artifact's bytes do not have the digest that the manifest names.
    ArtifactCorrupt: Volume, Retry;
    /// The artifact was made for another engine.
    ArtifactIncompatible: Volume, Retry;
    /// The artifact is not a regular file or may not be read.
    ArtifactUnreadable: Volume, Retry;

    /// The loader has not yet written a manifest.
    AwaitingManifest: Load, Retry;
    /// The module wants more memory or tables than allowed.
    MemoryLimit: Load, Final;
    /// The replica does not have enough free memory to start the module.
    MemoryUnavailable: Load, Retry;
    /// The replica did not have enough free processor time to start the module and check the settings.
    ProcessorUnavailable: Load, Retry;
    /// Starting the module or its settings check took longer than allowed.
    StartTimedOut: Load, Final;
    /// The module trapped or failed while starting.
    InstantiationFailed: Load, Final;
    /// The policy refuses its settings.
    SettingsInvalid: Load, Final;
    /// The policy's settings check itself failed.
    SettingsCheckFailed: Load, Final;
    /// The evaluator does not answer.
    EvaluatorUnreachable: Load, Retry;

    /// The replica has not reported for too long.
    ReportStale: Load, Retry;
    /// Replicas resolved a generation to different bytes: this one differs from most, or no majority agrees.
    ResolvedDifferently: Load, Outside;

    /// The policy trapped.
    EvaluationTrapped: Evaluate, Final;
    /// The policy ran longer than allowed.
    EvaluationTimedOut: Evaluate, Final;
    /// The policy's answer is malformed.
    ResponseInvalid: Evaluate, Final;
    /// The policy's answer is above the size limit.
    ResponseTooLarge: Evaluate, Final;
    /// The policy's mutation cannot be applied.
    PatchInvalid: Evaluate, Final;
    /// The policy used a capability it has not been granted.
    CapabilityDenied: Evaluate, Final;
    /// A capability that the policy uses cannot be provided now.
    CapabilityUnavailable: Evaluate, Retry;
    /// The policy was not asked, because the time for which the API server waits was over before its turn.
    EvaluationSkipped: Evaluate, Retry;
    /// The policy shares a webhook, and it could not be found out whether it matches the request.
    MatchConditionFailed: Evaluate, Final;
    /// There were more requests than this replica accepts.
    Overloaded: Evaluate, Retry;
    /// A defect of this program.
    InternalError: Evaluate, Final;
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Spec => "spec",
            Self::Fetch => "fetch",
            Self::Compile => "compile",
            Self::Volume => "volume",
            Self::Load => "load",
            Self::Evaluate => "evaluate",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_is_the_wire_form() {
        for reason in Reason::ALL {
            let json = serde_json::to_string(reason).expect("serialises");
            assert_eq!(json, format!("\"{reason}\""));
        }
    }
}
