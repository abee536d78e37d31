//! What all replicas together do for a policy. Pure.

use portcullis_api::{ConditionType, PolicyStatus, ReplicaCounts, Truth};
use portcullis_contract::{Class, ContextReason, ReplicaState};

use crate::facts::{Facts, Unconfirmed, Webhook};
use crate::message;
use crate::replica::Assessment;

/// The rows of the aggregation table, in its order. The name is the reason of `Ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    NoReplicas,
    Error,
    Degraded,
    ServingPrevious,
    Progressing,
    Suspended,
    ContextNotSynced,
    WebhookPending,
    /// All that count serve the newest generation, or have it suspended, and a pod that is not ready may still answer with an older one.
    OlderMayAnswer,
    Active,
}

/// Everything that the conditions are made from.
pub(super) struct Aggregate<'a> {
    pub(super) facts: &'a Facts<'a>,
    pub(super) webhook: Webhook<'a>,
    /// The replicas that count, which are the expected ones.
    pub(super) assessments: Vec<&'a Assessment<'a>>,
    /// The ones among them that make the policy degraded.
    pub(super) bad: Vec<&'a Assessment<'a>>,
    /// The pods that do not count and serve an older generation. API servers open no connection to them, and keep those that are open.
    pub(super) older: Vec<&'a Assessment<'a>>,
    pub(super) counts: ReplicaCounts,
    pub(super) case: Case,
}

impl<'a> Aggregate<'a> {
    pub(super) fn new(facts: &'a Facts<'a>, webhook: Webhook<'a>, assessments: &'a [Assessment<'a>]) -> Self {
        let (assessments, others): (Vec<_>, Vec<_>) = assessments.iter().partition(|assessment| assessment.expected);
        let older: Vec<_> = others.into_iter().filter(|other| other.state == ReplicaState::Previous).collect();
        let count = |state| {
            u32::try_from(assessments.iter().filter(|assessment| assessment.state == state).count()).unwrap_or(u32::MAX)
        };
        let counts = ReplicaCounts {
            expected: u32::try_from(assessments.len()).unwrap_or(u32::MAX),
            current: count(ReplicaState::Current),
            previous: count(ReplicaState::Previous),
            pending: count(ReplicaState::Pending),
            failed: count(ReplicaState::Failed),
            unknown: count(ReplicaState::Unknown),
        };
        let bad: Vec<_> = assessments.iter().copied().filter(|assessment| assessment.is_bad()).collect();
        let case = if counts.expected == 0 {
            Case::NoReplicas
        } else if counts.failed == counts.expected {
            Case::Error
        } else if counts.failed > 0 || counts.unknown > 0 {
            Case::Degraded
        } else if !bad.is_empty() {
            Case::ServingPrevious
        } else if counts.current < counts.expected {
            Case::Progressing
        } else if facts.suspend && older.is_empty() {
            Case::Suspended
        } else if facts.suspend {
            Case::OlderMayAnswer
        } else if assessments.iter().any(|assessment| assessment.lacks_context()) {
            Case::ContextNotSynced
        } else if webhook != Webhook::Confirmed {
            Case::WebhookPending
        } else if !older.is_empty() {
            Case::OlderMayAnswer
        } else {
            Case::Active
        };
        Self { facts, webhook, assessments, bad, older, counts, case }
    }

    pub(super) fn reason(&self) -> &'static str {
        match self.case {
            Case::NoReplicas => "NoReplicas",
            Case::Error => "Error",
            Case::Degraded => "Degraded",
            Case::ServingPrevious => "ServingPrevious",
            Case::Progressing | Case::OlderMayAnswer => "Progressing",
            Case::Suspended => "Suspended",
            Case::ContextNotSynced => "ContextNotSynced",
            Case::WebhookPending => "WebhookPending",
            Case::Active => "Active",
        }
    }

    /// What is wrong with the objects that the newest generation reads, on the replicas that count; none if nothing is.
    pub(super) fn context(&self) -> Option<(ContextReason, String)> {
        message::lacking(self.assessments.iter().copied(), self.counts.expected)
    }

    /// Why the policy is not Ready although every replica serves the newest generation, if waiting does not help.
    pub(super) fn context_needs_a_change(&self) -> Option<(ContextReason, String)> {
        self.context().filter(|(reason, _)| self.case == Case::ContextNotSynced && reason.needs_a_change())
    }

    /// Why API servers will not call the newest generation, which every replica has loaded, before somebody changes something.
    pub(super) fn webhook_needs_a_change(&self) -> Option<(&'a str, &'a str)> {
        match self.webhook {
            Webhook::Older(why) | Webhook::Pending(why) if self.case == Case::WebhookPending => {
                Some((why.stuck?, why.words))
            }
            _ => None,
        }
    }

    /// Whether requests may pass because a replica goes on with a suspended generation: `suspend` acts by the newest generation that a replica
    /// knows, so that the policy is suspended there until the replica knows the one that resumes it. Where no replica is asked, none knows it.
    pub(super) fn is_suspended_still(&self, previous: Option<&PolicyStatus>) -> bool {
        let last = previous.and_then(|previous| previous.condition(ConditionType::Enforced));
        let was_suspended = last.is_some_and(|last| last.status == Truth::False && last.reason == "Suspended");
        let goes_on = || self.assessments.is_empty() || self.assessments.iter().any(|one| !one.knows_newest);
        was_suspended && !self.facts.suspend && goes_on()
    }

    /// What the replicas do, in a sentence.
    pub(super) fn sentence(&self) -> String {
        let Self { facts, counts, bad, .. } = self;
        let generation = facts.generation;
        let failures = || message::failures(bad, counts.expected);
        let single = counts.expected == 1;
        match self.case {
            Case::NoReplicas => "no replica is ready to be asked".to_owned(),
            Case::Error if single => format!("nothing answers; generation {generation}: {}", failures()),
            Case::Degraded if single => format!("nothing is known of the replica: {}", failures()),
            Case::ServingPrevious if single => {
                let serving = self.assessments.first().and_then(|assessment| message::answering(assessment.serving));
                format!("{}; generation {generation}: {}", serving.unwrap_or_default(), failures())
            }
            Case::Error | Case::Degraded | Case::ServingPrevious => {
                let instead = message::instead(generation, &self.assessments);
                let told = [Some(message::share(generation, *counts)), instead, Some(failures())];
                told.into_iter().flatten().collect::<Vec<_>>().join("; ")
            }
            Case::Progressing => message::loading(facts, *counts, &self.assessments),
            Case::Suspended => self.suspended(),
            Case::ContextNotSynced => {
                let words = self.context().map(|(_, words)| words).unwrap_or_default();
                format!("generation {generation} is loaded and lacks objects that it reads: {words}")
            }
            Case::WebhookPending => match self.webhook {
                Webhook::Older(Unconfirmed { words, .. }) => {
                    format!("generation {generation} is loaded and its match rules are not confirmed yet: {words}")
                }
                Webhook::Pending(Unconfirmed { words, .. }) => {
                    format!("generation {generation} is loaded and not called yet: {words}")
                }
                Webhook::Confirmed => String::new(),
            },
            Case::OlderMayAnswer => {
                let newest = if facts.suspend { self.suspended() } else { self.answering() };
                format!("{newest}; {}", message::older(&self.older))
            }
            Case::Active => self.answering(),
        }
    }

    /// Says that no replica that counts is asked.
    fn suspended(&self) -> String {
        format!("generation {} is loaded and not asked: the policy is suspended", self.facts.generation)
    }

    /// Says that the newest generation answers on all replicas that count.
    fn answering(&self) -> String {
        match (self.facts.generation, self.counts.expected) {
            (generation, 1) => format!("generation {generation} answers"),
            (generation, expected) => format!("generation {generation} answers on all {expected} replicas"),
        }
    }

    /// Whether every replica that counts serves the newest generation, and API servers call it or need not, as it is suspended.
    pub(super) fn is_served(&self) -> bool {
        matches!(self.case, Case::Active | Case::Suspended | Case::OlderMayAnswer)
    }

    /// Whether no failure can pass by itself, and nothing else goes on.
    pub(super) fn is_stuck(&self) -> bool {
        let waits = |assessment: &&Assessment<'_>| {
            assessment.problem.as_ref().is_some_and(|problem| problem.class != Class::Retry)
        };
        !self.bad.is_empty() && self.bad.iter().all(waits) && !self.is_loading()
    }

    pub(super) fn is_loading(&self) -> bool {
        self.assessments.iter().any(|assessment| assessment.is_working())
    }
}
