//! What a verdict means for the request, and what the lack of one means (docs/design/policy-abi.md, section 9; docs/design/faults.md,
//! section 1). Pure: no clock, no guest, no socket.
//!
//! ```text
//!  verdict ──► judged ──► mode, mutation, custom message ──┐
//!  evaluation failed ───► failed ──► failurePolicy, mode ──┼──► Decision ──► alone, or joined with the rest of a group
//!  nothing serves ──────► unserved ► failurePolicy, mode ──┤
//!  … and nothing ever did, in a group ──► passed_over ─────┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use portcullis_contract::{Class, Failure, FailurePolicy, Mode, PolicyId, Reason};

use crate::verdict::answer::{Answer, Cause, Details, Status};
use crate::verdict::text;
use crate::verdict::warnings::{self, Note, Words};
use crate::verdict::{EvaluationError, MemberDenial, Verdict};

/// A client that gets `retryAfterSeconds` waits and repeats the call by itself, up to ten times. So the answer has it only when the
/// next try is this near.
const SOON: Duration = Duration::from_secs(2);
/// The most audit annotations of one policy that are passed on.
const ANNOTATIONS: usize = 64;
/// Longest value of an audit annotation, in bytes.
pub(crate) const ANNOTATION: usize = 8 << 10;
/// Key of the annotation that names the generation which answered.
pub(crate) const GENERATION: &str = "generation";
/// Key of the annotation that names a policy which let a request pass without judging it.
pub(crate) const NOT_EVALUATED: &str = "policy-not-evaluated";
/// Key of the annotation that names a policy which its group passed over, because it was never enforced and is not loaded here.
pub(crate) const NOT_YET_ENFORCED: &str = "policy-not-yet-enforced";
/// Key of the annotation that names a Policy which was not asked, because the request is in another namespace.
pub(crate) const OUTSIDE_NAMESPACE: &str = "policy-outside-its-namespace";

/// The text for a mutation where there is nothing to mutate; it is part of docs/design/policy-abi.md, section 4.
const NOTHING_TO_MUTATE: &str = "Incoming object is null, which happens only with DELETE operations, but the policy is attempting a mutation. This is not allowed";

/// The part of the newest spec that decides how a verdict counts, whichever generation gave it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewestSpec<'a> {
    /// The policy.
    pub id: &'a PolicyId,
    /// What a denial does.
    pub mode: Mode,
    /// What happens without a verdict.
    pub failure_policy: FailurePolicy,
}

/// The part of the serving generation's spec that belongs to its verdicts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServingSpec<'a> {
    /// The generation.
    pub generation: i64,
    /// Whether its changes of the object may be sent.
    pub mutating: bool,
    /// The text in place of its own denials; none to keep them.
    pub message: Option<&'a str>,
}

/// What a guest did to the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// No change, or one that leaves the object as it was.
    None,
    /// A change where the request has no object.
    OfNothing,
    /// A different object.
    Changed,
}

/// What one policy decides about one request: its verdict after mode, mutation rules, custom message and `failurePolicy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Whether the request may pass.
    pub outcome: Outcome,
    /// Whether the policy's change of the object stands.
    pub mutates: bool,
    /// The generation that answered; none if no generation did.
    pub generation: Option<i64>,
    /// Warnings by this program; each names the policy.
    pub notes: Vec<Note>,
    /// Warnings by the policy itself.
    pub warnings: Vec<String>,
    /// Audit annotations, by the policy and by this program.
    pub annotations: BTreeMap<String, String>,
}

/// Whether the request may pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The request may pass. Message and code are passed on only where the policy was asked alone.
    Admitted {
        /// The policy's message.
        message: Option<String>,
        /// The policy's HTTP code.
        code: Option<u16>,
    },
    /// The request may not pass.
    Denied(Denial),
}

/// Why a request may not pass.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Denial {
    /// The message for the user; none if the policy gave none.
    pub text: Option<String>,
    /// Whether the message begins with the policy's name even where the policy was asked alone.
    pub is_named: bool,
    /// The HTTP code; without one, the API server uses 400.
    pub code: Option<u16>,
    /// The policy's own message, if a custom one replaced it.
    pub replaced: Option<String>,
    /// Why members of a policy group denied.
    pub members: Vec<MemberDenial>,
    /// Why there is no verdict; none if there is one.
    pub reason: Option<Reason>,
    /// Whether the client should try again in a second.
    pub retry_soon: bool,
}

/// The decision for an audit: the verdict without mode and custom message.
pub(crate) fn plain(generation: i64, verdict: Verdict, mutation: Mutation) -> Decision {
    let outcome = if !verdict.accepted {
        let (text, members) = (said(verdict.message), verdict.members);
        Outcome::Denied(Denial { text, code: verdict.code, members, ..Denial::default() })
    } else if mutation == Mutation::OfNothing {
        Outcome::Denied(Denial { text: Some(NOTHING_TO_MUTATE.to_owned()), ..Denial::default() })
    } else {
        Outcome::Admitted { message: said(verdict.message), code: verdict.code }
    };
    let annotations = verdict.audit_annotations.unwrap_or_default().into_iter();
    Decision {
        mutates: matches!(outcome, Outcome::Admitted { .. }) && mutation == Mutation::Changed,
        outcome,
        generation: Some(generation),
        notes: Vec::new(),
        warnings: verdict.warnings.unwrap_or_default(),
        annotations: annotations
            .filter(|(key, _)| key != GENERATION && !is_ours(key))
            .take(ANNOTATIONS)
            .map(|(key, value)| (key, portcullis_contract::truncate(&value, ANNOTATION)))
            .collect(),
    }
}

/// The decision for a request: the verdict after mode, mutation and custom message, in the order of docs/design/policy-abi.md, section 9.
pub(crate) fn judged(
    newest: NewestSpec<'_>,
    serving: ServingSpec<'_>,
    verdict: Verdict,
    mutation: Mutation,
) -> Decision {
    let mut decision = plain(serving.generation, verdict, mutation);
    if newest.mode == Mode::Monitor {
        decision.mutates = false;
        decision.outcome = Outcome::Admitted { message: None, code: None };
        return decision;
    }
    if decision.mutates && !serving.mutating {
        decision.mutates = false;
        let text = format!(
            "Request rejected by policy {}. The policy attempted to mutate the request, but it is currently configured to not allow mutations.",
            newest.id
        );
        decision.outcome = Outcome::Denied(Denial { text: Some(text), ..Denial::default() });
    }
    let Outcome::Denied(denial) = &mut decision.outcome else { return decision };
    if let Some(message) = serving.message {
        denial.replaced = denial.text.replace(text::denial(message));
    }
    if newest.mode == Mode::Warn {
        let text = denial.text.as_deref().unwrap_or("the policy denies this request");
        decision.notes.push(Note::Denies(format!("policy {}: {text}", newest.id)));
        decision.outcome = Outcome::Admitted { message: None, code: None };
    }
    decision
}

/// The decision of a suspended policy, which is loaded and not asked.
pub(crate) fn suspended(generation: i64) -> Decision {
    Decision {
        outcome: Outcome::Admitted { message: None, code: None },
        mutates: false,
        generation: Some(generation),
        notes: Vec::new(),
        warnings: Vec::new(),
        annotations: BTreeMap::new(),
    }
}

/// The decision for a member of a match group that was never enforced and is not loaded here: it is passed over, and the audit log says so.
pub(crate) fn passed_over(id: &PolicyId) -> Decision {
    not_asked(id, NOT_YET_ENFORCED)
}

/// The decision for a Policy where the request is in another namespace or in none: it does not count. The group's webhooks call only for
/// the Policy's own namespace, so this one was registered by hand; a tenant must not decide about the objects of others.
pub(crate) fn outside_its_namespace(id: &PolicyId) -> Decision {
    not_asked(id, OUTSIDE_NAMESPACE)
}

fn not_asked(id: &PolicyId, annotation: &str) -> Decision {
    Decision {
        outcome: Outcome::Admitted { message: None, code: None },
        mutates: false,
        generation: None,
        notes: Vec::new(),
        warnings: Vec::new(),
        annotations: BTreeMap::from([(annotation.to_owned(), id.to_string())]),
    }
}

/// Whether the key is one that only this program may write.
pub(crate) fn is_ours(key: &str) -> bool {
    matches!(key, NOT_EVALUATED | NOT_YET_ENFORCED | OUTSIDE_NAMESPACE)
}

/// UNSERVED: the decision of a policy that has nothing loaded here.
pub(crate) fn unserved(newest: NewestSpec<'_>, failure: &Failure, now: Timestamp) -> Decision {
    let wait = failure
        .next_retry_time
        .filter(|_| failure.class() == Class::Retry)
        .map(|next| Duration::try_from(next.duration_since(now)).unwrap_or(Duration::ZERO));
    let mut text = unserved_text(failure);
    if let Some(wait) = wait {
        text = format!("{text}; next try {}", text::from_now(wait));
    }
    let denial = Denial {
        text: Some(format!("{}: {text}", failure.reason)),
        is_named: true,
        code: Some(failure.class().code()),
        reason: Some(failure.reason),
        retry_soon: wait.is_some_and(|wait| wait <= SOON),
        ..Denial::default()
    };
    unjudged(newest, denial, failure.reason, &text, None)
}

/// Why nothing is loaded. The guest's own message may quote settings, which the author of a request must not read.
pub(crate) fn unserved_text(failure: &Failure) -> String {
    match failure.reason {
        Reason::SettingsInvalid => "the policy refuses its settings; its status tells why".to_owned(),
        Reason::SettingsCheckFailed => "the policy's check of its settings failed; its status tells how".to_owned(),
        Reason::CapabilityUnavailable => {
            "a host capability that the policy needs to load could not be provided; its status tells which".to_owned()
        }
        _ => text::denial(&failure.message),
    }
}

/// EVALERR: the decision when one evaluation of a loaded policy failed.
pub(crate) fn failed(newest: NewestSpec<'_>, generation: i64, error: &EvaluationError) -> Decision {
    let EvaluationError { reason, text } = error;
    // Users who moved here with their `policies.yml` may search logs for exactly this text.
    let bare = newest.id.is_bare();
    let denial = Denial {
        text: Some(if bare { text.clone() } else { format!("{reason}: {text}") }),
        is_named: !bare,
        code: Some(reason.class().code()),
        reason: Some(*reason),
        ..Denial::default()
    };
    unjudged(newest, denial, *reason, text, Some(generation))
}

/// Without a verdict, `failurePolicy` decides; a policy in a mode that never denies does not start denying here.
fn unjudged(newest: NewestSpec<'_>, denial: Denial, reason: Reason, text: &str, generation: Option<i64>) -> Decision {
    let mut decision = Decision {
        outcome: Outcome::Denied(denial),
        mutates: false,
        generation,
        notes: Vec::new(),
        warnings: Vec::new(),
        annotations: BTreeMap::new(),
    };
    if newest.mode != Mode::Protect || newest.failure_policy == FailurePolicy::Ignore {
        decision.outcome = Outcome::Admitted { message: None, code: None };
        decision.notes.push(Note::NotEvaluated(format!("policy {} was not evaluated: {reason}: {text}", newest.id)));
        decision.annotations.insert(NOT_EVALUATED.to_owned(), format!("{}/{reason}", newest.id));
    }
    decision
}

impl Decision {
    /// The answer where only policy `id` was asked. `patch` is sent if the policy's change stands.
    pub(crate) fn alone(self, id: &PolicyId, patch: Option<String>) -> Answer {
        let patch = patch.filter(|_| self.mutates);
        let (allowed, status) = match self.outcome {
            Outcome::Admitted { message: None, code: None } => (true, None),
            Outcome::Admitted { message, code } => (true, Some(Status { message, code, details: None })),
            Outcome::Denied(denial) => (false, denial.alone(id)),
        };
        let generation = self.generation.map(|generation| (GENERATION.to_owned(), generation.to_string()));
        let words = Words { prefix: String::new(), notes: self.notes, warnings: self.warnings };
        let annotations = self.annotations.into_iter().map(|(key, value)| (text::annotation_key(&key), value));
        Answer {
            allowed,
            patch_type: patch.as_ref().map(|_| "JSONPatch"),
            patch,
            status,
            audit_annotations: annotations.chain(generation).collect(),
            warnings: warnings::chosen(&[(id, words)]),
        }
    }
}

impl Denial {
    fn alone(self, id: &PolicyId) -> Option<Status> {
        let replaced = self.replaced.map(|message| Cause { message, ..Cause::default() });
        let causes: Vec<_> =
            replaced.into_iter().chain(self.members.into_iter().map(|member| member.cause(None))).collect();
        let retry_after_seconds = self.retry_soon.then_some(1);
        let details =
            (!causes.is_empty() || retry_after_seconds.is_some()).then_some(Details { causes, retry_after_seconds });
        let message = self.text.map(|text| if self.is_named { format!("policy {id}: {text}") } else { text });
        (message.is_some() || self.code.is_some()).then_some(Status { message, code: self.code, details })
    }
}

impl MemberDenial {
    /// The cause of a denial, in the answer of a match group with the policy that it is about.
    pub(crate) fn cause(self, policy: Option<&PolicyId>) -> Cause {
        let field = format!("spec.policies.{}", self.name);
        let field = policy.map_or_else(|| field.clone(), |policy| format!("{policy}: {field}"));
        Cause { reason: None, message: self.message, field: Some(field) }
    }
}

/// A guest's message, cleaned; an empty one counts as none.
fn said(message: Option<String>) -> Option<String> {
    message.map(|message| text::denial(&message)).filter(|message| !message.is_empty())
}

#[cfg(test)]
mod tests;
