//! How many policies of a namespace are taken. Whoever may write Policies in one namespace could fill etcd with revisions, and the
//! memory of the controller, for everybody else.

use std::collections::BTreeMap;

use portcullis_contract::Reason;

use super::condition::no;
use crate::memory::Verdict;
use crate::world::{PolicyView, World};

/// The policies that are not taken, as their namespace has enough.
#[derive(Debug)]
pub(super) struct Quota<'w> {
    /// By their uid, how many of their namespace are.
    refused: BTreeMap<&'w str, usize>,
    limit: usize,
}

impl<'w> Quota<'w> {
    /// Takes `limit` policies of each namespace, oldest first. Who was taken keeps its place, also when the limit becomes smaller: what
    /// serves goes on, and can be edited. ClusterPolicies are not counted, as who may write them may do anything.
    pub(super) fn of(world: &'w World, limit: usize) -> Self {
        let mut namespaces: BTreeMap<&str, (usize, Vec<&PolicyView>)> = BTreeMap::new();
        for policy in world.policies.values() {
            let Some(namespace) = policy.reference.namespace.as_deref() else { continue };
            let (taken, waiting) = namespaces.entry(namespace).or_default();
            let was_taken =
                world.revisions.contains_key(&policy.reference.uid) || policy.standing.last_served.is_some();
            match (was_taken, policy.is_deleting) {
                (true, _) => *taken += 1,
                (false, false) => waiting.push(policy),
                (false, true) => {}
            }
        }
        let mut refused = BTreeMap::new();
        for (mut taken, mut waiting) in namespaces.into_values() {
            waiting.sort_by_key(|policy| (policy.created, &policy.reference.uid));
            let free = limit.saturating_sub(taken).min(waiting.len());
            taken += free;
            refused.extend(waiting.drain(free..).map(|policy| (policy.reference.uid.as_str(), taken)));
        }
        Self { refused, limit }
    }

    /// What to say of a policy that is not taken. The number of those that wait is left out: each new one would change what all say.
    pub(super) fn refusal(&self, policy: &PolicyView) -> Option<Verdict> {
        let taken = self.refused.get(policy.reference.uid.as_str())?;
        let namespace = policy.reference.namespace.as_deref().unwrap_or_default();
        let text = format!(
            "policies of namespace {namespace} that are taken: {taken} of at most {}; delete one that is not needed, or have the limit raised (controller.policiesPerNamespace of the chart)",
            self.limit
        );
        Some(no(Reason::QuotaExceeded.as_str(), text))
    }
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;
    use portcullis_api::Kind;
    use serde_json::{Value, json};

    use super::*;
    use crate::world::{News, Source};

    fn take(world: &mut World, source: Source, object: Value) {
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        world.take(News::Applied(source, Box::new(object)));
    }

    fn put(world: &mut World, kind: Kind, namespace: Option<&str>, name: &str, second: u8) {
        let object = json!({
            "metadata": {"name": name, "namespace": namespace, "uid": name, "generation": 1, "resourceVersion": "1",
                         "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z")},
            "spec": {"module": "m", "rules": []},
        });
        take(world, Source::Policies(kind), object);
    }

    fn revise(world: &mut World, namespace: &str, name: &str) {
        let policy = json!({"kind": "Policy", "namespace": namespace, "name": name, "uid": name});
        let object = json!({"metadata": {"name": name, "uid": format!("revision-{name}"), "resourceVersion": "1"},
                            "data": {"policy": policy, "generation": 1, "spec": {}}});
        take(world, Source::Revisions, object);
    }

    fn refused(world: &World, limit: usize) -> Vec<&str> {
        Quota::of(world, limit).refused.keys().copied().collect()
    }

    #[test]
    fn the_oldest_of_each_namespace_are_taken() {
        let mut world = World::new("default");
        for (namespace, name, second) in
            [("one", "a", 3), ("one", "b", 1), ("one", "c", 2), ("one", "d", 2), ("two", "e", 9)]
        {
            put(&mut world, Kind::Policy, Some(namespace), name, second);
        }
        assert_eq!(refused(&world, 4), [""; 0]);
        assert_eq!(refused(&world, 3), ["a"]);
        assert_eq!(refused(&world, 2), ["a", "d"]);
        assert_eq!(refused(&world, 1), ["a", "c", "d"]);
    }

    #[test]
    fn who_was_taken_keeps_its_place() {
        let mut world = World::new("default");
        put(&mut world, Kind::Policy, Some("one"), "young", 9);
        revise(&mut world, "one", "young");
        put(&mut world, Kind::Policy, Some("one"), "old", 1);
        assert_eq!(refused(&world, 2), [""; 0]);
        assert_eq!(refused(&world, 1), ["old"]);
        revise(&mut world, "one", "old");
        assert_eq!(refused(&world, 1), [""; 0]);
        put(&mut world, Kind::Policy, Some("one"), "new", 10);
        assert_eq!(refused(&world, 1), ["new"]);
    }

    #[test]
    fn cluster_policies_are_not_counted() {
        let mut world = World::new("default");
        for (name, second) in [("a", 1), ("b", 2), ("c", 3)] {
            put(&mut world, Kind::ClusterPolicy, None, name, second);
        }
        assert_eq!(refused(&world, 1), [""; 0]);
    }

    #[test]
    fn the_words_name_the_limit_and_the_next_step() {
        let mut world = World::new("default");
        put(&mut world, Kind::Policy, Some("team-a"), "a", 1);
        put(&mut world, Kind::Policy, Some("team-a"), "b", 2);
        let quota = Quota::of(&world, 1);
        assert_eq!(quota.refusal(&world.policies["a"]), None);
        let refusal = quota.refusal(&world.policies["b"]).expect("it is one too many");
        assert_eq!(refusal.reason, "QuotaExceeded");
        let begin = "policies of namespace team-a that are taken: 1 of at most 1; delete one";
        assert!(refusal.message.starts_with(begin), "{}", refusal.message);
    }
}
