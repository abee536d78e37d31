//! The objects that were judged already: policies are not asked again about an object if neither has changed. Pure.
//!
//! A policy that has failed, or was not asked, is asked again, without the others that match the object.

use std::collections::{HashMap, HashSet};

use portcullis_matching::{Labels, Resource};

use super::budget::Round;
use super::finding::Finding;
use super::hash::hash;
use super::subject::Subject;

/// Most objects that are remembered. Policies are asked about the others in each scan.
const MAX_OBJECTS: usize = 100_000;
/// Most bytes that are remembered of all objects. Policies are asked about further objects in each scan.
const MAX_BYTES: usize = 16 << 20;
/// For how many scans in succession objects are remembered whose list cannot be read to its end.
const UNREAD_SCANS: u64 = 10;

/// The objects that were judged.
#[derive(Debug)]
pub(super) struct Memory {
    objects: HashMap<u64, Judged>,
    /// The bytes of all that is remembered.
    bytes: usize,
    scan: u64,
    max_objects: usize,
    max_bytes: usize,
}

#[derive(Debug)]
struct Judged {
    list: ListKey,
    fingerprint: u64,
    remembered: Remembered,
    /// The scan that has seen it last.
    scan: u64,
}

/// Hashes that name the list that has an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListKey {
    api_version: u64,
    resource: u64,
}

/// The lists of which a scan has not seen all objects.
#[derive(Debug, Default)]
pub(super) struct Unread(HashSet<u64>);

/// What is remembered of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Remembered {
    /// The policies that were asked, with their generations, by [`generations`]; without those that depend on others. If these are other ones now, they
    /// are all asked again.
    pub(super) generations: u64,
    pub(super) findings: Vec<Finding>,
    /// The policies that are to be asked again; the findings of all others hold, unless they depend on others.
    pub(super) open: Vec<Open>,
    /// The rounds in which policies that depend on others were asked; their findings hold as long as these last, whatever becomes of other policies.
    pub(super) rounds: Vec<Round>,
}

/// A policy that is to be asked again about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Open {
    policy: u64,
    /// Whether its evaluation has run to its deadline. The finding that says so holds until the policy is asked again.
    pub(super) is_late: bool,
}

impl Remembered {
    /// Whether a policy is to be asked again; none if its finding holds.
    pub(super) fn open(&self, policy: &Subject) -> Option<Open> {
        let policy = hash(&policy.uid);
        self.open.iter().find(|open| open.policy == policy).copied()
    }

    /// The memory that it takes, roughly, in bytes.
    fn size(&self) -> usize {
        let findings: usize = self.findings.iter().map(Finding::size).sum();
        findings + size_of_val(self.open.as_slice()) + size_of_val(self.rounds.as_slice())
    }
}

impl Open {
    /// A policy that is to be asked again.
    pub(super) fn new(policy: &Subject, is_late: bool) -> Self {
        Self { policy: hash(&policy.uid), is_late }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(MAX_OBJECTS, MAX_BYTES)
    }
}

impl Memory {
    fn new(max_objects: usize, max_bytes: usize) -> Self {
        Self { objects: HashMap::new(), bytes: 0, scan: 0, max_objects, max_bytes }
    }

    /// Begins a scan.
    pub(super) fn begin(&mut self) {
        self.scan += 1;
    }

    /// What is remembered of an object, if it was judged with this fingerprint.
    pub(super) fn recall(&mut self, key: u64, fingerprint: u64) -> Option<Remembered> {
        let judged = self.objects.get_mut(&key).filter(|judged| judged.fingerprint == fingerprint)?;
        judged.scan = self.scan;
        Some(judged.remembered.clone())
    }

    /// Remembers an object, if there is room.
    pub(super) fn put(&mut self, key: u64, list: ListKey, fingerprint: u64, remembered: Remembered) {
        self.forget(key);
        let bytes = remembered.size();
        if self.objects.len() < self.max_objects && self.bytes + bytes <= self.max_bytes {
            self.bytes += bytes;
            self.objects.insert(key, Judged { list, fingerprint, remembered, scan: self.scan });
        }
    }

    /// Forgets an object.
    pub(super) fn forget(&mut self, key: u64) {
        if let Some(judged) = self.objects.remove(&key) {
            self.bytes -= judged.remembered.size();
        }
    }

    /// Forgets the objects that a whole scan has not seen, but for those of lists that it could not read to the end.
    pub(super) fn end(&mut self, unread: &Unread) {
        let scan = self.scan;
        self.objects
            .retain(|_, judged| judged.scan == scan || judged.scan + UNREAD_SCANS >= scan && unread.has(judged.list));
        self.bytes = self.objects.values().map(|judged| judged.remembered.size()).sum();
    }
}

impl ListKey {
    /// The key of the list of this resource.
    pub(super) fn of(resource: &Resource) -> Self {
        let api_version = resource.api_version();
        Self { resource: hash(&(&api_version, &resource.name)), api_version: hash(&api_version) }
    }
}

impl Unread {
    /// Notes that a list was not read to its end.
    pub(super) fn list(&mut self, resource: &Resource) {
        self.0.insert(ListKey::of(resource).resource);
    }

    /// Notes that the resources of a group and version are unknown.
    pub(super) fn api_version(&mut self, api_version: &str) {
        self.0.insert(hash(&api_version));
    }

    fn has(&self, list: ListKey) -> bool {
        self.0.contains(&list.resource) || self.0.contains(&list.api_version)
    }
}

/// The key of an object in one version of its resource.
pub(super) fn key(uid: &str, resource: &Resource) -> u64 {
    hash(&(uid, &resource.group, &resource.version, &resource.name))
}

/// What all judgements of an object depend on: the object, and the labels of its namespace.
pub(super) fn fingerprint(resource_version: &str, namespace: Option<&Labels>) -> u64 {
    hash(&(resource_version, namespace))
}

/// What the judgement of these policies depends on besides: which match the object, with the generations that serve.
pub(super) fn generations<'s>(policies: impl Iterator<Item = &'s Subject>) -> u64 {
    let mut policies: Vec<(&str, i64)> = policies.map(|subject| (subject.uid.as_str(), subject.generation)).collect();
    policies.sort_unstable();
    hash(&policies)
}

#[cfg(test)]
mod tests {
    use portcullis_api::{Kind, PolicyKey};
    use serde_json::json;

    use super::*;
    use crate::audit::finding::Problem;
    use crate::audit::finding::tests::finding;
    use crate::audit::in_force::Content;
    use crate::audit::subject::{Read, Served, Site, read};

    fn subject(uid: &str, generation: i64) -> Subject {
        let site = Site { policy_server: "default".into(), namespace: "portcullis".into() };
        let object = json!({"metadata": {"name": "a", "uid": uid}, "spec": {"rules": []}});
        match read(
            Kind::ClusterPolicy,
            &object,
            &Content::Own,
            &site,
            &Served::from([(PolicyKey::of(uid), generation)]),
        ) {
            Some(Read::Subject(subject)) => *subject,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_judgement_counts_while_nothing_that_it_depends_on_changes() {
        let (a, b) = (subject("aaaa", 1), subject("bbbb", 4));
        let labels = Labels::from([("env".to_owned(), "prod".to_owned())]);
        let first = fingerprint("7", Some(&labels));
        for other in [fingerprint("8", Some(&labels)), fingerprint("7", Some(&Labels::new())), fingerprint("7", None)] {
            assert_ne!(first, other);
        }
        let first = generations([&a, &b].into_iter());
        assert_eq!(first, generations([&b, &a].into_iter()), "whatever the order");
        let newer = subject("bbbb", 5);
        for other in [generations([&a].into_iter()), generations([&a, &newer].into_iter())] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn what_is_remembered_is_what_was_found() {
        let mut memory = Memory::default();
        memory.begin();
        let open = vec![Open::new(&subject("bbbb", 1), true)];
        let remembered =
            Remembered { findings: vec![finding("a", Problem::Violation, "no")], open, ..Remembered::default() };
        let list = ListKey::of(&resource("v1"));
        memory.put(1, list, 10, remembered.clone());
        memory.put(2, list, 20, Remembered::default());
        assert_eq!(memory.recall(1, 10), Some(remembered));
        assert_eq!((memory.recall(1, 11), memory.recall(3, 10)), (None, None));
        memory.end(&Unread::default());
        memory.begin();
        assert_eq!(memory.recall(2, 20), Some(Remembered::default()));
        memory.end(&Unread::default());
        assert_eq!((memory.recall(1, 10), memory.bytes), (None, 0), "the object is gone");
    }

    #[test]
    fn the_objects_of_a_list_that_fails_are_remembered_for_a_while() {
        let by_list = |unread: &mut Unread| unread.list(&resource("v1"));
        let by_version = |unread: &mut Unread| unread.api_version("autoscaling/v1");
        for note in [by_list as fn(&mut Unread), by_version] {
            let mut memory = Memory::default();
            memory.begin();
            memory.put(1, ListKey::of(&resource("v1")), 10, Remembered::default());
            memory.put(2, ListKey::of(&resource("v2")), 10, Remembered::default());
            memory.end(&Unread::default());
            let mut unread = Unread::default();
            note(&mut unread);
            for _ in 0..UNREAD_SCANS {
                memory.begin();
                memory.end(&unread);
                assert_eq!(memory.objects.keys().collect::<Vec<_>>(), [&1]);
            }
            memory.begin();
            memory.end(&unread);
            assert!(memory.objects.is_empty(), "not for ever");
        }
    }

    #[test]
    fn what_is_beyond_the_limits_is_asked_about_again() {
        let large = || Remembered {
            findings: vec![finding("a", Problem::Violation, &"x".repeat(500))],
            ..Remembered::default()
        };
        let mut memory = Memory::new(2, 1000);
        memory.begin();
        let list = ListKey::of(&resource("v1"));
        for key in 1..=3 {
            memory.put(key, list, 0, Remembered::default());
        }
        assert_eq!((memory.recall(2, 0), memory.recall(3, 0)), (Some(Remembered::default()), None));
        memory.put(1, list, 0, large());
        memory.put(2, list, 0, large());
        assert_eq!((memory.recall(1, 0), memory.recall(2, 0)), (Some(large()), None));
        memory.forget(1);
        memory.put(3, list, 0, large());
        assert!(memory.recall(3, 0).is_some());
        let open = vec![Open::new(&subject("bbbb", 1), false); 200];
        memory.put(2, list, 0, Remembered { open, ..Remembered::default() });
        assert_eq!(memory.recall(2, 0), None, "policies that are to be asked again take room too");
    }

    #[test]
    fn only_policies_that_are_open_are_asked_again() {
        let (failed, late, judged) = (subject("aaaa", 1), subject("bbbb", 1), subject("cccc", 1));
        let open = vec![Open::new(&failed, false), Open::new(&late, true)];
        let remembered = Remembered { open, ..Remembered::default() };
        let is_late = |policy| remembered.open(policy).map(|open| open.is_late);
        assert_eq!((is_late(&failed), is_late(&late), is_late(&judged)), (Some(false), Some(true), None));
    }

    fn resource(version: &str) -> Resource {
        Resource {
            group: "autoscaling".into(),
            version: version.into(),
            name: "horizontalpodautoscalers".into(),
            kind: "HorizontalPodAutoscaler".into(),
            namespaced: true,
        }
    }

    #[test]
    fn an_object_is_known_by_its_uid_and_the_version_that_is_read() {
        assert_eq!(key("u", &resource("v1")), key("u", &resource("v1")));
        assert_ne!(key("u", &resource("v1")), key("u", &resource("v2")));
        assert_ne!(key("u", &resource("v1")), key("v", &resource("v1")));
    }
}
