//! What becomes of a verdict, or of none (docs/design/policy-abi.md, section 9; docs/design/faults.md, section 1). Pure: no clock, no guest, no socket.
//!
//! ```text
//!  verdict ──► judged ──► mode, mutation, custom message ──┐
//!  evaluation failed ───► failed ──► failurePolicy, mode ──┼──► Opinion ──► alone, or joined with a group's others
//!  nothing serves ──────► unserved ► failurePolicy, mode ──┤
//!  … and nothing ever did, in a group ──► passed_over ─────┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use portcullis_contract::{Class, Failure, FailurePolicy, Mode, PolicyId, Reason};

use crate::table::Record;
use crate::verdict::answer::{Answer, Cause, Details, Status};
use crate::verdict::text;
use crate::verdict::warnings::{self, Note, Words};
use crate::verdict::{EvaluationError, Verdict};

/// A client that is told to come back waits and repeats the call by itself, up to ten times. So it is told only when the
/// next try is this near.
const SOON: Duration = Duration::from_secs(2);
/// Most audit annotations of one policy that are passed on.
const ANNOTATIONS: usize = 64;
/// Longest value of an audit annotation, in bytes.
const ANNOTATION: usize = 8 << 10;
/// Key of the annotation that names the generation which answered.
pub(crate) const GENERATION: &str = "generation";
/// Key of the annotation that names a policy which let a request pass without judging it.
pub(crate) const NOT_EVALUATED: &str = "policy-not-evaluated";
/// Key of the annotation that names a policy which its group passed over, as it was never enforced and is not loaded here.
pub(crate) const NOT_YET_ENFORCED: &str = "policy-not-yet-enforced";
/// Key of the annotation that names a Policy which was not asked, as the request is not of its namespace.
pub(crate) const OUTSIDE_NAMESPACE: &str = "policy-outside-its-namespace";

/// What docs/design/policy-abi.md, section 4, fixes for a mutation where there is nothing to mutate.
const NOTHING_TO_MUTATE: &str = "Incoming object is null, which happens only with DELETE operations, but the policy is attempting a mutation. This is not allowed";

/// Whose verdict it is, and how it counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// The policy.
    pub id: &'a PolicyId,
    /// Of the newest generation.
    pub mode: Mode,
    /// Of the newest generation.
    pub failure_policy: FailurePolicy,
}

/// What the generation that serves adds to its verdicts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms<'a> {
    /// The generation.
    pub generation: i64,
    /// Whether its patches may be sent.
    pub mutating: bool,
    /// Replaces the text of its denials.
    pub message: Option<&'a str>,
}

/// What a guest did to the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// Nothing, or what was there before.
    None,
    /// It mutates, and there is no object.
    OfNothing,
    /// It gave another one.
    Changed,
}

/// What one policy makes of one request, before it stands alone or beside others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opinion {
    /// Admitted or denied.
    pub outcome: Outcome,
    /// Whether the policy's change of the object stands.
    pub mutates: bool,
    /// The generation that answered; nothing where none did.
    pub generation: Option<i64>,
    /// Warnings of this program, which name the policy.
    pub notes: Vec<Note>,
    /// The policy's warnings.
    pub warnings: Vec<String>,
    /// Audit annotations.
    pub annotations: BTreeMap<String, String>,
}

/// Whether the request may pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It may. What the policy says all the same is passed on where it stands alone.
    Admitted {
        /// In words.
        message: Option<String>,
        /// In a number.
        code: Option<u16>,
    },
    /// It may not.
    Denied(Denial),
}

/// Why not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Denial {
    /// In words.
    pub text: Option<String>,
    /// Whether the words need the policy's name before them also where it stands alone.
    pub is_named: bool,
    /// An HTTP code.
    pub code: Option<u16>,
    /// The policy's own words, where a custom message replaced them.
    pub replaced: Option<String>,
    /// Why there is no verdict, where there is none.
    pub reason: Option<Reason>,
    /// Whether the client should try again in a second.
    pub retry_soon: bool,
}

impl<'a> From<&'a Record> for Asked<'a> {
    fn from(record: &'a Record) -> Self {
        Self { id: &record.id, mode: record.mode, failure_policy: record.failure_policy }
    }
}

/// The verdict as it is, for audits: no mode, no custom message.
pub(crate) fn plain(generation: i64, verdict: Verdict, mutation: Mutation) -> Opinion {
    let outcome = if !verdict.accepted {
        Outcome::Denied(Denial { text: said(verdict.message), code: verdict.code, ..Denial::default() })
    } else if mutation == Mutation::OfNothing {
        Outcome::Denied(Denial { text: Some(NOTHING_TO_MUTATE.to_owned()), ..Denial::default() })
    } else {
        Outcome::Admitted { message: said(verdict.message), code: verdict.code }
    };
    let annotations = verdict.audit_annotations.unwrap_or_default().into_iter();
    Opinion {
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

/// The verdict as it counts: mode, mutation and custom message, in the order of docs/design/policy-abi.md, section 9.
pub(crate) fn judged(asked: Asked<'_>, terms: Terms<'_>, verdict: Verdict, mutation: Mutation) -> Opinion {
    let mut opinion = plain(terms.generation, verdict, mutation);
    if asked.mode == Mode::Monitor {
        opinion.mutates = false;
        opinion.outcome = Outcome::Admitted { message: None, code: None };
        return opinion;
    }
    if opinion.mutates && !terms.mutating {
        opinion.mutates = false;
        let text = format!(
            "Request rejected by policy {}. The policy attempted to mutate the request, but it is currently configured to not allow mutations.",
            asked.id
        );
        opinion.outcome = Outcome::Denied(Denial { text: Some(text), ..Denial::default() });
    }
    let Outcome::Denied(denial) = &mut opinion.outcome else { return opinion };
    if let Some(message) = terms.message {
        denial.replaced = denial.text.replace(text::denial(message));
    }
    if asked.mode == Mode::Warn {
        let text = denial.text.as_deref().unwrap_or("the policy denies this request");
        opinion.notes.push(Note::Denies(format!("policy {}: {text}", asked.id)));
        opinion.outcome = Outcome::Admitted { message: None, code: None };
    }
    opinion
}

/// The answer of a policy that is loaded and not asked.
pub(crate) fn suspended(generation: i64) -> Opinion {
    Opinion {
        outcome: Outcome::Admitted { message: None, code: None },
        mutates: false,
        generation: Some(generation),
        notes: Vec::new(),
        warnings: Vec::new(),
        annotations: BTreeMap::new(),
    }
}

/// What a match group counts for a member that was never enforced and is not loaded here: nothing. The audit log says so.
pub(crate) fn passed_over(id: &PolicyId) -> Opinion {
    not_asked(id, NOT_YET_ENFORCED)
}

/// What a match group counts for a Policy where the request is of another namespace, or of none: nothing. Webhooks of the group call it
/// for its own namespace only, so somebody has registered another, and a tenant has no say in what others do.
pub(crate) fn outside_its_namespace(id: &PolicyId) -> Opinion {
    not_asked(id, OUTSIDE_NAMESPACE)
}

fn not_asked(id: &PolicyId, annotation: &str) -> Opinion {
    Opinion {
        outcome: Outcome::Admitted { message: None, code: None },
        mutates: false,
        generation: None,
        notes: Vec::new(),
        warnings: Vec::new(),
        annotations: BTreeMap::from([(annotation.to_owned(), id.to_string())]),
    }
}

/// Whether this program alone writes the annotation.
pub(crate) fn is_ours(key: &str) -> bool {
    matches!(key, NOT_EVALUATED | NOT_YET_ENFORCED | OUTSIDE_NAMESPACE)
}

/// UNSERVED: the answer of a policy of which nothing can be used here.
pub(crate) fn unserved(asked: Asked<'_>, failure: &Failure, now: Timestamp) -> Opinion {
    let wait = failure
        .next_retry_time
        .filter(|_| failure.class() == Class::Retry)
        .map(|next| Duration::try_from(next.duration_since(now)).unwrap_or(Duration::ZERO));
    let mut text = match failure.reason {
        // The guest's own words may quote settings, which whoever makes a request must not read.
        Reason::SettingsInvalid => "the policy refuses its settings; its status tells why".to_owned(),
        Reason::SettingsCheckFailed => "the policy's check of its settings failed; its status tells how".to_owned(),
        _ => text::denial(&failure.message),
    };
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
    unjudged(asked, denial, failure.reason, &text, None)
}

/// EVALERR: the answer when one evaluation of a loaded policy failed.
pub(crate) fn failed(asked: Asked<'_>, generation: i64, error: &EvaluationError) -> Opinion {
    let EvaluationError { reason, text } = error;
    // Who moved here from a `policies.yml` may look for the very text.
    let bare = asked.id.is_bare();
    let denial = Denial {
        text: Some(if bare { text.clone() } else { format!("{reason}: {text}") }),
        is_named: !bare,
        code: Some(reason.class().code()),
        reason: Some(*reason),
        ..Denial::default()
    };
    unjudged(asked, denial, *reason, text, Some(generation))
}

/// No verdict: `failurePolicy` decides, and a policy that never denies does not begin with this.
fn unjudged(asked: Asked<'_>, denial: Denial, reason: Reason, text: &str, generation: Option<i64>) -> Opinion {
    let mut opinion = Opinion {
        outcome: Outcome::Denied(denial),
        mutates: false,
        generation,
        notes: Vec::new(),
        warnings: Vec::new(),
        annotations: BTreeMap::new(),
    };
    if asked.mode != Mode::Protect || asked.failure_policy == FailurePolicy::Ignore {
        opinion.outcome = Outcome::Admitted { message: None, code: None };
        opinion.notes.push(Note::NotEvaluated(format!("policy {} was not evaluated: {reason}: {text}", asked.id)));
        opinion.annotations.insert(NOT_EVALUATED.to_owned(), format!("{}/{reason}", asked.id));
    }
    opinion
}

impl Opinion {
    /// The answer of policy `id` where it is asked alone. `patch` is sent when the policy's change stands.
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
            warnings: warnings::chosen(vec![(id, words)]),
        }
    }
}

impl Denial {
    fn alone(self, id: &PolicyId) -> Option<Status> {
        let causes: Vec<_> = self.replaced.map(|message| Cause { message, ..Cause::default() }).into_iter().collect();
        let retry_after_seconds = self.retry_soon.then_some(1);
        let details =
            (!causes.is_empty() || retry_after_seconds.is_some()).then_some(Details { causes, retry_after_seconds });
        let message = self.text.map(|text| if self.is_named { format!("policy {id}: {text}") } else { text });
        (message.is_some() || self.code.is_some()).then_some(Status { message, code: self.code, details })
    }
}

/// A guest's text; an empty one is none.
fn said(message: Option<String>) -> Option<String> {
    message.map(|message| text::denial(&message)).filter(|message| !message.is_empty())
}

#[cfg(test)]
mod tests;
