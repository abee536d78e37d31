//! Why a capability was not provided.

use portcullis_contract::{
    BROKER_MAX_ERROR, BrokerOutcome, CALLBACK_FAILURE, ContextAwareResource, Reason, clean, not_for_namespaces,
    not_granted,
};
use portcullis_registry::FetchError;

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
    /// The answer is no: what was asked about does not exist, or is not signed as it must be. Asking worked, so nobody has to fix anything.
    #[error("{CALLBACK_FAILURE}{0}")]
    Negative(String),
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

    /// An answer of no, with such a text.
    pub(crate) fn negative(text: impl std::fmt::Display) -> Self {
        Self::Negative(cleaned(text))
    }

    /// What a registry's error is for a caller that asks about an image: an answer where the registry has no such image, or where its signatures are
    /// not the required ones; a failure where the registry could not be asked, refuses, or gives something else.
    pub(crate) fn of_image(error: FetchError) -> Self {
        match error.reason {
            Reason::NotFound | Reason::SignatureInvalid => Self::negative(error.message),
            _ => Self::failed(error.message),
        }
    }

    /// A failure of this one question, with such a text.
    pub(crate) fn busy(text: impl std::fmt::Display) -> Self {
        Self::Busy(cleaned(text))
    }

    /// The text without the prefix that all failures have.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Negative(cause) | Self::Failed(cause) | Self::Busy(cause) => cause.clone(),
            other => other.to_string(),
        }
    }

    /// The outcome for the header of the reply.
    pub(crate) fn outcome(&self) -> BrokerOutcome {
        match self {
            Self::Negative(_) => BrokerOutcome::Negative,
            Self::Failed(_) | Self::Busy(_) => BrokerOutcome::Failed,
            Self::NotGranted(_)
            | Self::NotForNamespaces(_)
            | Self::NotForChecks(_)
            | Self::KindNotGranted(_)
            | Self::OtherNamespace => BrokerOutcome::Denied,
        }
    }
}

fn cleaned(text: impl std::fmt::Display) -> String {
    clean(&text.to_string(), BROKER_MAX_ERROR - 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_of_no_is_negative_and_all_texts_are_those_of_failures() {
        let kind = ContextAwareResource { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
        for (error, outcome) in [
            (ProvideError::NotGranted("oci/v1/verify"), BrokerOutcome::Denied),
            (ProvideError::NotForNamespaces("oci/v1/verify"), BrokerOutcome::Denied),
            (ProvideError::NotForChecks("oci/v1/verify"), BrokerOutcome::Denied),
            (ProvideError::KindNotGranted(kind), BrokerOutcome::Denied),
            (ProvideError::OtherNamespace, BrokerOutcome::Denied),
            (ProvideError::negative("no"), BrokerOutcome::Negative),
            (ProvideError::busy("no"), BrokerOutcome::Failed),
            (ProvideError::failed("no"), BrokerOutcome::Failed),
        ] {
            assert_eq!(error.outcome(), outcome, "{error}");
            if outcome != BrokerOutcome::Denied {
                assert_eq!((error.to_string(), error.cause()), (format!("{CALLBACK_FAILURE}no"), "no".to_owned()));
            }
        }
    }

    #[test]
    fn what_a_registry_answers_about_an_image_is_told_from_its_trouble() {
        for reason in Reason::ALL {
            let error = ProvideError::of_image(FetchError::new(*reason, "text"));
            let is_answer = matches!(error, ProvideError::Negative(_));
            let is_about_the_image = ["NotFound", "SignatureInvalid"].contains(&reason.as_str());
            assert_eq!((is_answer, error.cause().as_str()), (is_about_the_image, "text"), "{reason}");
        }
    }
}
