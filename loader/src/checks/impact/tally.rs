//! What a policy would do to objects that exist, counted and put into words. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use portcullis_contract::{AuditOutcome, ImpactFigures, Mode, clean};
use portcullis_matching::Resource;

/// Longest message of a policy that is quoted, in bytes.
const LONGEST_MESSAGE: usize = 200;
/// Longest name of an object that is quoted, in bytes.
const LONGEST_NAME: usize = 200;
/// Longest warning, in bytes.
const LONGEST: usize = 800;
/// Most kinds that are named.
const MOST_KINDS: usize = 4;
/// If the policy fails for each of this many first objects, it is not asked about the others.
const HOPELESS: usize = 20;

/// What the policy would do to one object.
#[derive(Debug)]
pub(super) struct Effect {
    /// Its namespace; empty for objects in none.
    pub(super) namespace: String,
    /// Its name.
    pub(super) name: String,
    /// The policy's verdict; `None` where it did not answer.
    pub(super) outcome: Option<AuditOutcome>,
    /// The message of the policy.
    pub(super) message: Option<String>,
}

/// The figures so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The kinds of which objects were read.
    kinds: Vec<String>,
    evaluated: usize,
    denied: usize,
    changed: usize,
    failed: usize,
    /// How many objects the policy was not asked about because a match condition could not be decided.
    undecided: usize,
    /// How many objects the policy was not asked about because they take too much memory.
    too_large: usize,
    /// How many objects the policy was not asked about because its match conditions had taken too long for others.
    costly: usize,
    /// Conditions that could not be decided, each once.
    conditions: Vec<String>,
    /// For the current kind: how many objects match conditions leave out, and how many others were read.
    here: (usize, usize),
    /// The namespaces of the objects that would be denied.
    namespaces: BTreeSet<String>,
    /// The first object that would be denied, and why.
    example: Option<String>,
    /// The first few objects that would be denied.
    denied_first: Vec<String>,
    /// Whether some objects were not read because there are too many.
    is_sample: bool,
    /// How many objects there are of the kinds that were read; of some kinds that may not be known.
    total: usize,
    /// Whether the number of objects of some kind is not known.
    is_total_unknown: bool,
    /// How many kinds were read to the end, or up to the limit.
    ended: usize,
    /// Whether kinds were left out because there are too many.
    is_cut: bool,
    is_late: bool,
    /// Kinds that this program may not list.
    forbidden: Vec<String>,
    /// Kinds that could not be listed for another reason.
    unread: Vec<String>,
}

impl Tally {
    /// Counts what the policy would do to an object.
    pub(super) fn add(&mut self, effect: Effect) {
        self.evaluated += 1;
        self.here.1 += 1;
        match effect.outcome {
            Some(AuditOutcome::Allowed) => {}
            Some(AuditOutcome::Changes) => self.changed += 1,
            Some(AuditOutcome::Failed) | None => self.failed += 1,
            Some(AuditOutcome::Denied) => {
                self.denied += 1;
                let Effect { namespace, name, message, .. } = effect;
                let path = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
                let example = || {
                    let message = clean(&message.unwrap_or_default(), LONGEST_MESSAGE);
                    let colon = if message.is_empty() { "" } else { ": " };
                    format!("{}{colon}{message}", clean(&path, LONGEST_NAME))
                };
                self.example.get_or_insert_with(example);
                if self.denied_first.len() < ImpactFigures::MAX_EXAMPLES {
                    self.denied_first.push(clean(&path, ImpactFigures::MAX_EXAMPLE));
                }
                if !namespace.is_empty() {
                    self.namespaces.insert(namespace);
                }
            }
        }
    }

    /// Takes note of an object that match conditions leave out. It is in no figure, except to estimate how many others there are.
    pub(super) fn leave_out(&mut self) {
        self.here.0 += 1;
    }

    /// Counts an object for which the named match condition cannot be decided: it is not known whether the policy would be asked.
    pub(super) fn leave_undecided(&mut self, condition: &str) {
        self.undecided += 1;
        self.here.1 += 1;
        if !self.conditions.iter().any(|name| name == condition) {
            self.conditions.push(condition.to_owned());
        }
    }

    /// Counts an object for which no match condition is evaluated, since they have taken too long for others.
    pub(super) fn leave_costly(&mut self) {
        self.costly += 1;
        self.here.1 += 1;
    }

    /// Counts an object that takes too much memory to be judged.
    pub(super) fn leave_too_large(&mut self) {
        self.too_large += 1;
        self.here.1 += 1;
    }

    /// Begins a kind.
    pub(super) fn begin(&mut self, resource: &Resource) {
        self.kinds.push(resource.title());
        self.here = (0, 0);
    }

    /// Ends a kind: whether all its objects were read, and how many there are, if that is known.
    pub(super) fn end(&mut self, is_complete: bool, total: Option<usize>) {
        self.ended += 1;
        self.is_sample |= !is_complete;
        self.is_total_unknown |= total.is_none();
        let (left_out, others) = self.here;
        let total = total.unwrap_or_default();
        // Match conditions are assumed to leave out the same share of the objects that were not read.
        let total = match left_out + others {
            0 => total,
            _ if is_complete => total.saturating_sub(left_out),
            read => total.saturating_mul(others) / read,
        };
        self.total = self.total.saturating_add(total);
    }

    /// Adds a kind that this program may not list.
    pub(super) fn forbid(&mut self, resource: &Resource) {
        self.forbidden.push(resource.title());
    }

    /// Adds a kind that could not be listed.
    pub(super) fn miss(&mut self, resource: &Resource) {
        self.unread.push(resource.title());
    }

    /// Records that kinds are left out because there are too many.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Records that the time ran out.
    pub(super) fn be_late(&mut self) {
        self.is_late = true;
    }

    /// Whether it is useless to ask about more objects.
    pub(super) fn is_hopeless(&self) -> bool {
        self.failed >= HOPELESS && self.failed == self.evaluated
    }

    /// The warnings about a policy of this mode; the figures in them are those of `protect`. Empty if the policy would deny and change nothing,
    /// and everything could be listed and evaluated.
    pub(super) fn warnings(&self, mode: Mode) -> Vec<String> {
        let figures = (self.denied + self.changed + self.failed > 0 || self.is_late).then(|| self.sentence(mode));
        let undecided = (self.undecided > 0).then(|| {
            format!(
                "what it would do to {} of {} {} is not known: only an API server can decide whether match conditions leave them out: {}",
                self.undecided,
                self.known(),
                self.what(),
                listed(&self.conditions)
            )
        });
        let costly = (self.costly > 0).then(|| {
            let (count, known, what) = (self.costly, self.known(), self.what());
            format!(
                "what it would do to {count} of {known} {what} is not known: its match conditions take too long; make them quicker, or \
                 count with `portcullis impact`"
            )
        });
        let too_large = (self.too_large > 0).then(|| {
            let (count, known, what) = (self.too_large, self.known(), self.what());
            format!(
                "what it would do to {count} of {known} {what} is not known: they take too much memory to be judged"
            )
        });
        let forbidden = (!self.forbidden.is_empty()).then(|| {
            format!(
                "what it would do to {} is not known: the policy server may not list them; add them to rbac.auditReads of the chart",
                listed(&self.forbidden)
            )
        });
        let unread = (!self.unread.is_empty())
            .then(|| format!("what it would do to {} is not known: they could not be listed", listed(&self.unread)));
        [figures, undecided, costly, too_large, forbidden, unread]
            .into_iter()
            .flatten()
            .map(|text| clean(&text, LONGEST))
            .collect()
    }

    /// The figures for the status of the policy; `None` where no objects could be counted.
    pub(super) fn figures(&self, now: Timestamp) -> Option<ImpactFigures> {
        if self.kinds.is_empty() || (self.evaluated == 0 && self.is_late) {
            return None;
        }
        let is_everything = self.forbidden.is_empty() && self.unread.is_empty() && !self.is_cut && !self.is_hopeless();
        Some(ImpactFigures {
            checked_at: now,
            evaluated: number(self.evaluated),
            total: self.total().map(number),
            denied: number(self.denied),
            changed: number(self.changed),
            failed: number(self.failed),
            namespaces: number(self.namespaces.len()),
            examples: self.denied_first.clone(),
            sample: self.is_sample,
            complete: is_everything && !self.is_late && self.undecided + self.costly + self.too_large == 0,
        })
    }

    /// About how many objects there are of the kinds that were read, if that is known.
    fn total(&self) -> Option<usize> {
        let is_known = !self.is_late && !self.is_total_unknown && self.ended == self.kinds.len();
        // If all objects were read, only those that the policy would be asked about count.
        is_known.then(|| if self.is_sample { self.total.max(self.known()) } else { self.known() })
    }

    /// How many of the objects that were read the policy is asked about, or may be.
    fn known(&self) -> usize {
        self.evaluated + self.undecided + self.costly + self.too_large
    }

    fn what(&self) -> &str {
        match self.kinds.as_slice() {
            [kind] => kind,
            _ => "objects",
        }
    }

    fn sentence(&self, mode: Mode) -> String {
        let Self { evaluated, denied, changed, failed, .. } = self;
        if *evaluated == 0 {
            return "there was no time to count the objects that it would deny; `portcullis impact` does so".to_owned();
        }
        let what = self.what();
        let sample = match (self.is_sample, self.is_total_unknown) {
            (false, _) => String::new(),
            (true, true) => " (a sample)".to_owned(),
            (true, false) => format!(" (a sample of about {})", self.total),
        };
        let places = match self.namespaces.len() {
            0 => String::new(),
            1 => " in 1 namespace".to_owned(),
            count => format!(" in {count} namespaces"),
        };
        let mode = if mode == Mode::Protect { "" } else { " under protect" };
        let mut text = format!("{denied} of {evaluated} {what}{sample}{places} would be denied{mode}");
        if let Some(example) = &self.example {
            text.push_str(&format!(", for instance {example}"));
        }
        for (is_said, more) in [
            (*changed > 0, format!("{changed} would be changed")),
            (*failed > 0, format!("{failed} could not be evaluated")),
            (self.is_late, "there was no time for more".to_owned()),
        ] {
            if is_said {
                text.push_str("; ");
                text.push_str(&more);
            }
        }
        text
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// The first names, and whether there are more.
fn listed(names: &[String]) -> String {
    let more = if names.len() > MOST_KINDS { " and others" } else { "" };
    format!("{}{more}", names[..names.len().min(MOST_KINDS)].join(", "))
}

#[cfg(test)]
mod tests;
