//! Why a capability was not provided.

use portcullis_contract::{
    BROKER_MAX_ERROR, BrokerOutcome, CALLBACK_FAILURE, ContextAwareResource, clean, not_for_namespaces, not_granted,
};

/// Why a capability was not provided. The texts are for guests; where upstream has a text, it is kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProvideError {
    /// The policy was not granted the capability.
    #[error("{}", not_granted(.0))]
    NotGranted(&'static str),
    /// The installation does not let policies of a namespace use the capability.
    #[error("{}", not_for_namespaces(.0))]
    NotForNamespaces(&'static str),
    /// The policy is only being checked. Anything that reaches the evaluator's socket can have any spec checked, so that what such a spec grants
    /// itself must not count.
    #[error("'{0}' is not available to a policy that is only being checked")]
    NotForChecks(&'static str),
    /// The policy was not granted the kind.
    #[error(
        "Policy has not been granted access to Kubernetes {}/{} resources. The violation has been reported.",
        .0.api_version, .0.kind
    )]
    KindNotGranted(ContextAwareResource),
    /// A policy of a namespace asks about another namespace.
    #[error("Policy has not been granted access to namespaces other than its own. The violation has been reported.")]
    OtherNamespace,
    /// There was no room for the question when it was asked, which says nothing about others who ask the same.
    #[error("{CALLBACK_FAILURE}{0}")]
    Busy(String),
    /// Any other failure.
    #[error("{CALLBACK_FAILURE}{0}")]
    Failed(String),
}

impl ProvideError {
    /// A failure with a text, which is cleaned and cut.
    pub fn failed(text: impl std::fmt::Display) -> Self {
        Self::Failed(cleaned(text))
    }

    /// A failure of this one question, with such a text.
    pub(crate) fn busy(text: impl std::fmt::Display) -> Self {
        Self::Busy(cleaned(text))
    }

    /// The text without the prefix that all failures have.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Failed(cause) | Self::Busy(cause) => cause.clone(),
            other => other.to_string(),
        }
    }

    /// The outcome for the header of the reply.
    pub(crate) fn outcome(&self) -> BrokerOutcome {
        match self {
            Self::Failed(_) | Self::Busy(_) => BrokerOutcome::Failed,
            _ => BrokerOutcome::Denied,
        }
    }
}

fn cleaned(text: impl std::fmt::Display) -> String {
    clean(&text.to_string(), BROKER_MAX_ERROR - 64)
}
