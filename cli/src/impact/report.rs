//! Counts of what a policy would do, for people and for programs. Pure.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use portcullis_contract::PolicyId;
use portcullis_matching::Resource;
use serde::Serialize;

use crate::eval::verdict::Outcome;

/// Longest name, message or note that is kept, in bytes.
const LONGEST: usize = 1000;
/// Length of the progress bar, in characters.
const BAR: u64 = 20;

/// What the policy would do to one object.
#[derive(Debug)]
pub(super) struct Effect {
    pub(super) kind: String,
    /// The namespace; empty for cluster-scoped objects.
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) outcome: Outcome,
    /// Whether it would be changed, if it is admitted.
    pub(super) changes: bool,
    pub(super) message: Option<String>,
}

/// What the policy would do to all objects.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Impact {
    policy: String,
    #[serde(flatten)]
    counts: Counts,
    /// In how many namespaces something would be denied.
    namespaces: usize,
    resources: Vec<OfResource>,
    /// The first objects that would not be admitted as they are.
    objects: Vec<Affected>,
    /// What could not be read.
    hidden: Vec<String>,
    notes: Vec<String>,
    #[serde(skip)]
    denied_in: BTreeSet<String>,
    /// Match conditions that cannot be decided for some object.
    #[serde(skip)]
    undecided_by: BTreeSet<String>,
    /// Most objects that are kept in `objects`.
    #[serde(skip)]
    most: usize,
}

/// Numbers of objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Counts {
    checked: u64,
    denied: u64,
    changed: u64,
    /// The policy failed on them, or took too long.
    not_evaluated: u64,
    /// The policy was not asked about them because match conditions leave them out.
    left_out: u64,
    /// The policy was not asked about them because a match condition cannot be decided.
    undecided: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OfResource {
    resource: String,
    version: String,
    /// What the policy was asked about: `CREATE` or `UPDATE`.
    operation: String,
    #[serde(flatten)]
    counts: Counts,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Affected {
    kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    name: String,
    effect: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Kind {
    Denied,
    Changed,
    NotEvaluated,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Changed => "changed",
            Self::NotEvaluated => "not evaluated",
        }
    }
}

impl Effect {
    fn kind(&self) -> Option<Kind> {
        match self.outcome {
            Outcome::Rejected => Some(Kind::Denied),
            Outcome::NotEvaluated => Some(Kind::NotEvaluated),
            Outcome::Admitted => self.changes.then_some(Kind::Changed),
        }
    }
}

impl Counts {
    fn add(&mut self, kind: Option<Kind>) {
        self.checked += 1;
        match kind {
            None => {}
            Some(Kind::Denied) => self.denied += 1,
            Some(Kind::Changed) => self.changed += 1,
            Some(Kind::NotEvaluated) => self.not_evaluated += 1,
        }
    }

    /// The counts after `denied` that are not zero, as a text.
    fn others(self) -> String {
        let others = [
            (self.changed, "would be changed"),
            (self.not_evaluated, "could not be evaluated"),
            (self.left_out, "left out by match conditions"),
            (self.undecided, "not asked about, as match conditions cannot be decided"),
        ];
        others.iter().filter(|(count, _)| *count > 0).map(|(count, words)| format!("; {count} {words}")).collect()
    }

    /// How many would not be admitted unchanged, or could not be evaluated.
    fn affected(self) -> u64 {
        self.denied + self.changed + self.not_evaluated
    }
}

impl Impact {
    /// The empty counts of a policy. The first `most` affected objects are kept.
    pub(super) fn new(policy: &PolicyId, most: usize) -> Self {
        Self {
            policy: policy.to_string(),
            counts: Counts::default(),
            namespaces: 0,
            resources: Vec::new(),
            objects: Vec::new(),
            hidden: Vec::new(),
            notes: Vec::new(),
            denied_in: BTreeSet::new(),
            undecided_by: BTreeSet::new(),
            most,
        }
    }

    /// Begins a resource.
    pub(super) fn begin(&mut self, resource: &Resource, operation: &str) {
        self.resources.push(OfResource {
            resource: resource.title(),
            version: resource.version.clone(),
            operation: operation.to_owned(),
            counts: Counts::default(),
        });
    }

    /// Adds an object of the current resource.
    pub(super) fn add(&mut self, effect: Effect) {
        let kind = effect.kind();
        self.count(|counts| counts.add(kind));
        let Some(kind) = kind else { return };
        let Effect { kind: of, namespace, name, message, .. } = effect;
        if kind == Kind::Denied && !namespace.is_empty() && self.denied_in.insert(namespace.clone()) {
            self.namespaces += 1;
        }
        if self.objects.len() < self.most {
            let safe = |text: String| portcullis_contract::clean(&text, LONGEST);
            self.objects.push(Affected {
                kind: safe(of),
                namespace: safe(namespace),
                name: safe(name),
                effect: kind,
                message: message.map(safe),
            });
        }
    }

    /// Adds an object that match conditions leave out.
    pub(super) fn leave_out(&mut self) {
        self.count(|counts| counts.left_out += 1);
    }

    /// Adds an object for which the named match condition cannot be decided: it is not known whether the policy would be asked.
    pub(super) fn leave_undecided(&mut self, condition: String) {
        self.count(|counts| counts.undecided += 1);
        if self.undecided_by.insert(condition.clone()) {
            self.note(format!(
                "only an API server can decide the match condition {condition} for some objects, for instance because it depends on the user"
            ));
        }
    }

    fn count(&mut self, change: impl Fn(&mut Counts)) {
        change(&mut self.counts);
        if let Some(resource) = self.resources.last_mut() {
            change(&mut resource.counts);
        }
    }

    /// Adds a reason why something could not be read.
    pub(super) fn hide(&mut self, why: String) {
        self.hidden.push(portcullis_contract::clean(&why, LONGEST));
    }

    /// Adds a note about the figures.
    pub(super) fn note(&mut self, text: String) {
        self.notes.push(portcullis_contract::clean(&text, LONGEST));
    }

    /// The progress as a line: how many objects of the current resource were read, and of how many if that is known.
    pub(super) fn progress(&self, (read, total): (u64, Option<u64>)) -> String {
        let resource = self.resources.last().map(|last| last.resource.as_str()).unwrap_or_default();
        let denied = self.counts.denied;
        match total {
            Some(total) => {
                let full = BAR.saturating_mul(read).checked_div(total).unwrap_or(BAR).min(BAR);
                let bar: String = (0..BAR).map(|place| if place < full { '#' } else { '.' }).collect();
                format!("{resource} [{bar}] {read} of {total} objects read, {denied} would be denied")
            }
            None => format!("{resource}: {read} objects read, {denied} would be denied"),
        }
    }

    /// The exit status: 1 if something would be denied, otherwise 2 if something is not known, otherwise 0.
    pub(super) fn status(&self) -> u8 {
        if self.counts.denied > 0 {
            1
        } else if self.counts.not_evaluated + self.counts.undecided > 0 || !self.hidden.is_empty() {
            2
        } else {
            0
        }
    }

    pub(super) fn text(&self) -> String {
        let Counts { checked, denied, .. } = self.counts;
        let place = match self.namespaces {
            0 => String::new(),
            1 => ", in 1 namespace".to_owned(),
            count => format!(", in {count} namespaces"),
        };
        let mut text =
            format!("{}: {denied} of {checked} objects would be denied{place}{}\n", self.policy, self.counts.others());
        let width = self.resources.iter().map(|one| one.resource.len()).max().unwrap_or_default();
        for OfResource { resource, counts, .. } in &self.resources {
            let _ = writeln!(text, "  {resource:<width$}  {} of {}{}", counts.denied, counts.checked, counts.others());
        }
        if !self.objects.is_empty() {
            text.push('\n');
        }
        for Affected { kind, namespace, name, effect, message } in &self.objects {
            let slash = if namespace.is_empty() { "" } else { "/" };
            let words = message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
            let _ = writeln!(text, "{kind} {namespace}{slash}{name}: {}{words}", effect.as_str());
        }
        let shown = u64::try_from(self.objects.len()).unwrap_or(u64::MAX);
        let more = self.counts.affected().saturating_sub(shown);
        if more > 0 {
            let _ = writeln!(text, "and {more} more; --show {} shows all", self.counts.affected());
        }
        for (label, lines) in [("not read", &self.hidden), ("note", &self.notes)] {
            for line in lines {
                let _ = writeln!(text, "{label}: {line}");
            }
        }
        text
    }

    pub(super) fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self).expect("strings and numbers");
        format!("{json}\n")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pods() -> Resource {
        Resource {
            group: String::new(),
            version: "v1".into(),
            name: "pods".into(),
            kind: "Pod".into(),
            namespaced: true,
        }
    }

    fn effect(namespace: &str, outcome: Outcome, changes: bool) -> Effect {
        let message = (outcome != Outcome::Admitted).then(|| "no\nway".to_owned());
        Effect { kind: "Pod".into(), namespace: namespace.into(), name: "web".into(), outcome, changes, message }
    }

    fn impact(effects: Vec<Effect>) -> Impact {
        let mut impact = Impact::new(&"cluster/a".parse().expect("an id"), 2);
        impact.begin(&pods(), "CREATE");
        effects.into_iter().for_each(|effect| impact.add(effect));
        impact
    }

    #[test]
    fn all_are_counted_and_the_first_are_shown() {
        let mut impact = impact(vec![
            effect("a", Outcome::Admitted, false),
            effect("a", Outcome::Rejected, false),
            effect("b", Outcome::Admitted, true),
            effect("b", Outcome::Rejected, false),
            effect("a", Outcome::NotEvaluated, false),
        ]);
        impact.note("one thing".to_owned());
        assert_eq!(
            impact.text(),
            "cluster/a: 2 of 5 objects would be denied, in 2 namespaces; 1 would be changed; 1 could not be evaluated\n  \
             pods  2 of 5; 1 would be changed; 1 could not be evaluated\n\n\
             Pod a/web: denied: no way\n\
             Pod b/web: changed\n\
             and 2 more; --show 4 shows all\n\
             note: one thing\n"
        );
        let json: Value = serde_json::from_str(&impact.json()).expect("JSON");
        assert_eq!((&json["denied"], &json["notEvaluated"], &json["namespaces"]), (&json!(2), &json!(1), &json!(2)));
        assert_eq!(json["resources"][0]["checked"], 5);
        assert_eq!(json["objects"][1], json!({"kind": "Pod", "namespace": "b", "name": "web", "effect": "changed"}));
    }

    #[test]
    fn objects_write_no_codes_and_no_lines_to_a_terminal() {
        let hostile = |text: &str| format!("{text}\u{1b}[2J\nnote: x");
        let mut rejected = effect(&hostile("ns"), Outcome::Rejected, false);
        rejected.kind = hostile("Kind");
        rejected.name = hostile("name");
        let mut impact = impact(vec![rejected]);
        impact.note(hostile("note"));
        impact.hide(hostile("hidden"));
        let text = impact.text();
        assert!(text.contains("\nKind [2J note: x ns [2J note: x/name [2J note: x: denied: no way\n"), "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains("\nnote: x"), "{text:?}");
    }

    #[test]
    fn what_is_not_known_is_no_success() {
        let status = |outcome| impact(vec![effect("a", outcome, false)]).status();
        assert_eq!([Outcome::Admitted, Outcome::Rejected, Outcome::NotEvaluated].map(status), [0, 1, 2]);
        let mut hidden = impact(Vec::new());
        assert_eq!(hidden.status(), 0);
        hidden.hide("pods is forbidden".to_owned());
        assert_eq!(hidden.status(), 2);
        assert!(hidden.text().ends_with("\nnot read: pods is forbidden\n"));
    }

    #[test]
    fn what_match_conditions_leave_out_is_counted_and_no_failure() {
        let mut impact = impact(vec![effect("a", Outcome::Admitted, false)]);
        (0..3).for_each(|_| impact.leave_out());
        assert_eq!(impact.status(), 0);
        let lines = "cluster/a: 0 of 1 objects would be denied; 3 left out by match conditions\n  \
                     pods  0 of 1; 3 left out by match conditions\n";
        assert_eq!(impact.text(), lines);
        let json: Value = serde_json::from_str(&impact.json()).expect("JSON");
        assert_eq!((&json["checked"], &json["leftOut"], &json["undecided"]), (&json!(1), &json!(3), &json!(0)));
        assert_eq!(json["resources"][0]["leftOut"], 3);
    }

    #[test]
    fn what_cannot_be_decided_is_counted_and_no_success() {
        let mut some = impact(Vec::new());
        ["trusted", "trusted"].into_iter().for_each(|name| some.leave_undecided(name.to_owned()));
        assert_eq!(some.status(), 2);
        assert_eq!(
            some.text(),
            "cluster/a: 0 of 0 objects would be denied; 2 not asked about, as match conditions cannot be decided\n  \
             pods  0 of 0; 2 not asked about, as match conditions cannot be decided\n\
             note: only an API server can decide the match condition trusted for some objects, for instance because it depends on the user\n"
        );
        let json: Value = serde_json::from_str(&some.json()).expect("JSON");
        assert_eq!((&json["leftOut"], &json["undecided"]), (&json!(0), &json!(2)));
        some.add(effect("a", Outcome::Rejected, false));
        assert_eq!(some.status(), 1, "an object would be denied for certain");
    }

    #[test]
    fn the_progress_has_a_bar_where_the_total_is_known() {
        let impact = impact(vec![effect("a", Outcome::Rejected, false)]);
        assert_eq!(impact.progress((1, None)), "pods: 1 objects read, 1 would be denied");
        let wanted = "pods [#####...............] 500 of 2000 objects read, 1 would be denied";
        assert_eq!(impact.progress((500, Some(2000))), wanted);
        for full in [(0, Some(0)), (7, Some(7)), (8, Some(7))] {
            assert!(impact.progress(full).contains("[####################]"), "{full:?}");
        }
    }
}
