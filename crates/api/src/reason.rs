//! The reasons of conditions and events besides those of failures (docs/design/status-api.md, sections 4 and 5).
//!
//! Conditions are written with these reasons only, and the users' page about the status has a row for each.

use crate::{ConditionType, EventType};

/// The reason after an uninstallation. The controller keeps it in `WebhookConfigured` until it registers the policy, or somebody has to act.
pub const UNINSTALLED: &str = "Uninstalled";

/// The type and reason of each event, except those whose reason is that of a failure.
pub const EVENT_REASONS: &[(EventType, &str)] = &[
    (EventType::Normal, "Active"),
    (EventType::Normal, "Progressing"),
    (EventType::Normal, "Recovered"),
    (EventType::Warning, "ServingPrevious"),
    (EventType::Warning, "ContextForbidden"),
    (EventType::Warning, "ContextKindUnknown"),
    (EventType::Warning, "ContextTooLarge"),
    (EventType::Warning, "ContextStale"),
    (EventType::Warning, "ResolvedDifferently"),
    (EventType::Warning, "WaitingForReplicas"),
    (EventType::Warning, "WebhookRepaired"),
    (EventType::Warning, "CertificateExpiring"),
    (EventType::Warning, "CertificateInvalid"),
    (EventType::Warning, "PathKeysReplaced"),
    (EventType::Warning, "StatusSchemaOutdated"),
    (EventType::Warning, "EvaluationFailing"),
];

impl ConditionType {
    /// Every type, in the order in which they are written.
    pub const ALL: [Self; 9] = [
        Self::Accepted,
        Self::Ready,
        Self::Enforced,
        Self::Degraded,
        Self::Reconciling,
        Self::Stalled,
        Self::MetadataMatched,
        Self::ContextSynced,
        Self::WebhookConfigured,
    ];

    /// The reasons that a condition of this type can have, besides those of failures ([`Self::tells_failures`]).
    pub const fn reasons(self) -> &'static [&'static str] {
        match self {
            Self::Accepted => &[
                "Accepted",
                "Progressing",
                "SpecInvalid",
                "QuotaExceeded",
                "SourceNotAllowed",
                "SettingsInvalid",
                "SeveralReasons",
            ],
            Self::Ready => &[
                "Active",
                "Progressing",
                "ServingPrevious",
                "Degraded",
                "Error",
                "NoReplicas",
                "ContextNotSynced",
                "WebhookPending",
                "Suspended",
                UNINSTALLED,
            ],
            Self::Enforced => &[
                "Active",
                "ServingPrevious",
                "ReplicaFailed",
                "AllReplicasFailed",
                "NotLoaded",
                "NotYetEnforced",
                "NoReplicas",
                "ContextNotSynced",
                "WebhookPending",
                "Suspended",
                UNINSTALLED,
            ],
            Self::Degraded => &["AsExpected", "SeveralReasons"],
            Self::Reconciling => &["Loading", "RollingOut", "Retrying", "Idle"],
            Self::Stalled => &[
                "AsExpected",
                "Retrying",
                "SeveralReasons",
                "ContextForbidden",
                "ContextKindUnknown",
                "ContextTooLarge",
                "Forbidden",
            ],
            Self::MetadataMatched => &[
                "AsExpected",
                "Progressing",
                "SeveralReasons",
                "CapabilityUnavailable",
                "CapabilityNotGranted",
                "KindNotGranted",
                "MutatingDiffers",
                "RulesDiffer",
                "MemberNotCalled",
                "RawPolicy",
                "NoMetadata",
            ],
            Self::ContextSynced => &[
                "AsExpected",
                "Progressing",
                "ContextForbidden",
                "ContextKindUnknown",
                "ContextTooLarge",
                "ContextNotSynced",
                "ContextStale",
            ],
            Self::WebhookConfigured => &[
                "Registered",
                "WaitingForReplicas",
                UNINSTALLED,
                "Suspended",
                "SpecInvalid",
                "QuotaExceeded",
                "CABundleInvalid",
                "Forbidden",
                "Unknown",
            ],
        }
    }

    /// Whether a condition of this type can have the reason of a failure.
    pub const fn tells_failures(self) -> bool {
        matches!(self, Self::Degraded | Self::Stalled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_are_there_once() {
        let names: std::collections::BTreeSet<&str> = ConditionType::ALL.iter().map(|one| one.as_str()).collect();
        assert_eq!(names.len(), 9);
        assert!(ConditionType::ALL.iter().all(|one| !one.reasons().is_empty()));
    }

    #[test]
    fn every_problem_of_objects_is_a_reason() {
        let reasons = ConditionType::ContextSynced.reasons();
        assert!(portcullis_contract::ContextReason::ALL.iter().all(|one| reasons.contains(&one.as_str())));
    }

    #[test]
    fn every_difference_of_the_metadata_is_a_reason() {
        let reasons = ConditionType::MetadataMatched.reasons();
        assert!(portcullis_contract::MismatchReason::ALL.iter().all(|one| reasons.contains(&one.as_str())));
    }
}
