//! Counts of what a policy would do, for people and for programs. Pure.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use portcullis_contract::PolicyId;
use portcullis_matching::Resource;
use serde::Serialize;

use crate::eval::verdict::Outcome;

/// Longest message of an object that is kept, in bytes.
const LONGEST: usize = 1000;

/// What the policy says of one object.
#[derive(Debug)]
pub(super) struct Effect {
    pub(super) kind: String,
    /// Empty for objects in none.
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) outcome: Outcome,
    /// Whether it would be changed, where it is admitted.
    pub(super) changes: bool,
    pub(super) message: Option<String>,
}

/// What the policy would do to all of them.
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
    /// Most objects that are kept.
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
    not_judged: u64,
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
    NotJudged,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Changed => "changed",
            Self::NotJudged => "not judged",
        }
    }
}

impl Effect {
    fn kind(&self) -> Option<Kind> {
        match self.outcome {
            Outcome::Rejected => Some(Kind::Denied),
            Outcome::Unjudged => Some(Kind::NotJudged),
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
            Some(Kind::NotJudged) => self.not_judged += 1,
        }
    }

    /// The parts that are not zero, after those that are denied.
    fn others(self) -> String {
        let others = [(self.changed, "would be changed"), (self.not_judged, "could not be judged")];
        others.iter().filter(|(count, _)| *count > 0).map(|(count, words)| format!("; {count} {words}")).collect()
    }

    /// How many would not be admitted as they are, or are not known to be.
    fn affected(self) -> u64 {
        self.denied + self.changed + self.not_judged
    }
}

impl Impact {
    /// Nothing yet, of a policy. The first `most` objects are kept.
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
            most,
        }
    }

    /// Begins with the objects of a resource.
    pub(super) fn begin(&mut self, resource: &Resource, operation: &str) {
        self.resources.push(OfResource {
            resource: resource.title(),
            version: resource.version.clone(),
            operation: operation.to_owned(),
            counts: Counts::default(),
        });
    }

    /// Adds an object of the resource that was begun last.
    pub(super) fn add(&mut self, effect: Effect) {
        let kind = effect.kind();
        self.counts.add(kind);
        if let Some(resource) = self.resources.last_mut() {
            resource.counts.add(kind);
        }
        let Some(kind) = kind else { return };
        let Effect { kind: of, namespace, name, message, .. } = effect;
        if kind == Kind::Denied && !namespace.is_empty() && self.denied_in.insert(namespace.clone()) {
            self.namespaces += 1;
        }
        if self.objects.len() < self.most {
            let message = message.map(|message| portcullis_contract::clean(&message, LONGEST));
            self.objects.push(Affected { kind: of, namespace, name, effect: kind, message });
        }
    }

    /// Says what could not be read.
    pub(super) fn hide(&mut self, why: String) {
        self.hidden.push(why);
    }

    /// Says what a user should know about the figures.
    pub(super) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// How far it is, in a line.
    pub(super) fn progress(&self) -> String {
        let resource = self.resources.last().map(|last| last.resource.as_str()).unwrap_or_default();
        let Counts { checked, denied, .. } = self.counts;
        format!("{resource}: {checked} objects checked, {denied} would be denied")
    }

    /// The exit status: 1 where something would be denied; else 2 where something is not known; else 0.
    pub(super) fn status(&self) -> u8 {
        if self.counts.denied > 0 {
            1
        } else if self.counts.not_judged > 0 || !self.hidden.is_empty() {
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
            effect("a", Outcome::Unjudged, false),
        ]);
        impact.note("one thing".to_owned());
        assert_eq!(
            impact.text(),
            "cluster/a: 2 of 5 objects would be denied, in 2 namespaces; 1 would be changed; 1 could not be judged\n  \
             pods  2 of 5; 1 would be changed; 1 could not be judged\n\n\
             Pod a/web: denied: no way\n\
             Pod b/web: changed\n\
             and 2 more; --show 4 shows all\n\
             note: one thing\n"
        );
        let json: Value = serde_json::from_str(&impact.json()).expect("JSON");
        assert_eq!((&json["denied"], &json["notJudged"], &json["namespaces"]), (&json!(2), &json!(1), &json!(2)));
        assert_eq!(json["resources"][0]["checked"], 5);
        assert_eq!(json["objects"][1], json!({"kind": "Pod", "namespace": "b", "name": "web", "effect": "changed"}));
    }

    #[test]
    fn what_is_not_known_is_no_success() {
        let status = |outcome| impact(vec![effect("a", outcome, false)]).status();
        assert_eq!([Outcome::Admitted, Outcome::Rejected, Outcome::Unjudged].map(status), [0, 1, 2]);
        let mut hidden = impact(Vec::new());
        assert_eq!(hidden.status(), 0);
        hidden.hide("pods is forbidden".to_owned());
        assert_eq!(hidden.status(), 2);
        assert!(hidden.text().ends_with("\nnot read: pods is forbidden\n"));
    }
}
