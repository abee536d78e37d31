//! The ways to enforce the same rules that are compared.

use std::fmt;

use clap::ValueEnum;
use serde::{Serialize, Serializer};

/// A way to enforce the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Variant {
    /// No rules at all: what the others are compared with.
    #[value(skip)]
    None,
    /// Policies of Portcullis, with the webhooks that its controller made: one for each match part.
    Portcullis,
    /// The same policies of the same evaluator, with a webhook for each of them.
    WebhookEach,
    /// ValidatingAdmissionPolicies with the same rules in CEL, each with its binding.
    AdmissionPolicy,
}

impl Variant {
    /// The variants to measure: first without rules, then each of the wanted ones, once.
    pub(super) fn measured(wanted: &[Self]) -> Vec<Self> {
        let mut all = vec![Self::None];
        for variant in wanted {
            if !all.contains(variant) {
                all.push(*variant);
            }
        }
        all
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Portcullis => "portcullis",
            Self::WebhookEach => "webhook each",
            Self::AdmissionPolicy => "ValidatingAdmissionPolicy",
        })
    }
}

impl Serialize for Variant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_twice_is_measured_once_after_no_rules() {
        let wanted = [Variant::AdmissionPolicy, Variant::Portcullis, Variant::AdmissionPolicy];
        let measured = [Variant::None, Variant::AdmissionPolicy, Variant::Portcullis];
        assert_eq!(Variant::measured(&wanted), measured);
        assert_eq!(serde_json::json!(Variant::WebhookEach), "webhook each");
    }
}
