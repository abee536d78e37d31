//! The reports of this installation that exist, and what has to be done about them. Pure.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::hash::hash;
use super::report::content;

/// Most reports that are remembered. Further ones are written in each scan, and are deleted only with their objects.
const MOST: usize = 200_000;

/// The namespace and the name of a report.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ObjectKey {
    /// None for reports about objects in no namespace.
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

/// What has to be done about a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Leave it: the report is right, or there is none and none is needed.
    Nothing,
    /// Write it.
    Write,
    /// Delete it.
    Delete,
}

/// The reports that exist.
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<ObjectKey, Existing>);

#[derive(Debug)]
struct Existing {
    content: u64,
    /// The kind of the object that it is about.
    of: u64,
    /// Whether this scan has judged its object.
    is_seen: bool,
}

impl ObjectKey {
    /// The namespace and the name of this report.
    pub(super) fn of(report: &Value) -> Option<Self> {
        let metadata = &report["metadata"];
        let namespace = metadata["namespace"].as_str().map(str::to_owned);
        Some(Self { namespace, name: metadata["name"].as_str()?.to_owned() })
    }
}

impl Known {
    /// Takes in a report that was listed.
    pub(super) fn found(&mut self, report: &Value) {
        if let Some(key) = ObjectKey::of(report)
            && self.0.len() < MOST
        {
            let scope = &report["scope"];
            let of = kind(scope["apiVersion"].as_str().unwrap_or_default(), scope["kind"].as_str().unwrap_or_default());
            self.0.insert(key, Existing { content: content(report), of, is_seen: false });
        }
    }

    /// Whether there is a report with a key.
    pub(super) fn has(&self, key: &ObjectKey) -> bool {
        self.0.contains_key(key)
    }

    /// What has to be done so that the report with a key becomes the wanted one. The report then counts as seen.
    pub(super) fn action(&mut self, key: &ObjectKey, wanted: Option<&Value>) -> Action {
        let existing = self.0.get_mut(key);
        let is_there = existing.is_some();
        let is_same = match (existing, wanted) {
            (Some(existing), wanted) => {
                existing.is_seen = true;
                wanted.is_some_and(|wanted| existing.content == content(wanted))
            }
            (None, _) => false,
        };
        match (is_there, wanted) {
            (_, Some(_)) if !is_same => Action::Write,
            (true, None) => Action::Delete,
            (_, _) => Action::Nothing,
        }
    }

    /// Notes that the object of a report was judged, and the report is left as it is.
    pub(super) fn seen(&mut self, key: &ObjectKey) {
        if let Some(existing) = self.0.get_mut(key) {
            existing.is_seen = true;
        }
    }

    /// Notes that a report was written.
    pub(super) fn written(&mut self, report: &Value) {
        self.found(report);
        if let Some(existing) = ObjectKey::of(report).and_then(|key| self.0.get_mut(&key)) {
            existing.is_seen = true;
        }
    }

    /// Notes that a report was deleted.
    pub(super) fn deleted(&mut self, key: &ObjectKey) {
        self.0.remove(key);
    }

    /// The reports on objects that no longer exist: their kind was listed to its end, without them.
    pub(super) fn stale(&self, api_version: &str, name: &str) -> Vec<ObjectKey> {
        let of = kind(api_version, name);
        self.keys(|existing| existing.of == of && !existing.is_seen)
    }

    /// The reports on objects of kinds that a whole scan has no list for. `listed` are the kinds that it has a list for, readable or not.
    pub(super) fn others<'k>(&self, listed: impl Iterator<Item = (&'k str, &'k str)>) -> Vec<ObjectKey> {
        let listed: BTreeSet<u64> = listed.map(|(api_version, name)| kind(api_version, name)).collect();
        self.keys(|existing| !listed.contains(&existing.of) && !existing.is_seen)
    }

    fn keys(&self, is_wanted: impl Fn(&Existing) -> bool) -> Vec<ObjectKey> {
        let mut keys: Vec<ObjectKey> =
            self.0.iter().filter(|(_, existing)| is_wanted(existing)).map(|(key, _)| key.clone()).collect();
        keys.sort_unstable();
        keys
    }
}

fn kind(api_version: &str, name: &str) -> u64 {
    hash(&(api_version, name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(name: &str, kind: &str, message: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "n"}, "scope": {"apiVersion": "v1", "kind": kind},
            "results": [{"policy": "cluster/a", "message": message}],
        })
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: Some("n".into()), name: name.into() }
    }

    #[test]
    fn only_what_differs_is_written_and_only_what_is_not_wanted_deleted() {
        let mut known = Known::default();
        known.found(&report("a", "Pod", "no"));
        assert!(known.has(&key("a")) && !known.has(&key("b")));
        assert_eq!(known.action(&key("a"), Some(&report("a", "Pod", "no"))), Action::Nothing);
        assert_eq!(known.action(&key("a"), Some(&report("a", "Pod", "never"))), Action::Write);
        assert_eq!(known.action(&key("a"), None), Action::Delete);
        assert_eq!(known.action(&key("b"), None), Action::Nothing);
        assert_eq!(known.action(&key("b"), Some(&report("b", "Pod", "no"))), Action::Write);
        known.written(&report("b", "Pod", "no"));
        assert_eq!(known.action(&key("b"), Some(&report("b", "Pod", "no"))), Action::Nothing);
        known.deleted(&key("b"));
        assert!(!known.has(&key("b")));
    }

    #[test]
    fn reports_on_objects_that_were_not_seen_are_stale() {
        let mut known = Known::default();
        for (name, kind) in [("a", "Pod"), ("b", "Pod"), ("c", "Service"), ("d", "Secret")] {
            known.found(&report(name, kind, "no"));
        }
        known.action(&key("a"), Some(&report("a", "Pod", "no")));
        known.written(&report("e", "Pod", "new"));
        assert_eq!(known.stale("v1", "Pod"), [key("b")]);
        // Services could not be listed, so their reports stay. No policy is for Secrets any longer.
        assert_eq!(known.others([("v1", "Pod"), ("v1", "Service")].into_iter()), [key("d")]);
    }
}
