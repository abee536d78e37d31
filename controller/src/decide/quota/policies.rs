//! Refuses policies beyond the number that a namespace may have, specs that are too large, and match parts for which there is no room. Otherwise a user who may write Policies in
//! one namespace could fill etcd with revisions, and the memory of loaders, for everyone.

use std::collections::BTreeMap;

use portcullis_api::kubernetes::Outline;
use portcullis_contract::Reason;

use super::super::rules::Rules;
use crate::memory::ConditionValue;
use crate::world::{MATCH_BYTES, PolicyView, World};

/// The largest spec as JSON, in bytes: the largest settings that a loader accepts (512 KiB), and the largest match conditions. Revisions
/// hold a spec several times.
pub(super) const SPEC_BYTES: usize = 768 << 10;

/// The policies whose newest generation is refused.
#[derive(Debug)]
pub(in crate::decide) struct Quota<'w> {
    /// The condition of each refused policy, by its uid.
    refusals: BTreeMap<&'w str, ConditionValue>,
}

impl<'w> Quota<'w> {
    /// Accepts the oldest policies of each namespace, up to the limit. An accepted policy stays accepted, even if the limit is lowered: it
    /// goes on serving and can be edited. ClusterPolicies are not counted, as users who may write them may do anything.
    pub(in crate::decide) fn of(world: &'w World, rules: &Rules) -> Self {
        let mut namespaces: BTreeMap<&str, (usize, Vec<&PolicyView>)> = BTreeMap::new();
        for policy in world.policies.values() {
            let Some(namespace) = policy.reference.namespace.as_deref() else { continue };
            let (taken, waiting) = namespaces.entry(namespace).or_default();
            match (is_taken(world, policy), policy.is_deleting) {
                (true, _) => *taken += 1,
                (false, false) => waiting.push(policy),
                (false, true) => {}
            }
        }
        let mut refusals = BTreeMap::new();
        for (namespace, (mut taken, mut waiting)) in namespaces {
            waiting.sort_by_key(|policy| (policy.created, &policy.reference.uid));
            let free = rules.policies_per_namespace.saturating_sub(taken).min(waiting.len());
            taken += free;
            let uids = waiting.drain(free..).map(|policy| policy.reference.uid.as_str());
            refusals.extend(uids.map(|uid| (uid, too_many(namespace, taken, rules.policies_per_namespace))));
        }
        for (uid, policy) in &world.policies {
            let is_new = || !world.revisions.get(uid).is_some_and(|known| known.contains_key(&policy.generation));
            if (policy.is_cut || policy.spec_bytes > SPEC_BYTES) && is_new() {
                refusals.entry(uid).or_insert_with(|| too_large(policy));
            }
            if policy.left_out.is_some() && is_new() {
                refusals.entry(uid).or_insert_with(|| no_room(policy, world.has_room(policy)));
            }
        }
        Self { refusals }
    }

    /// The condition of a policy whose newest generation is refused; `None` if it is accepted.
    pub(in crate::decide) fn refusal(&self, policy: &PolicyView) -> Option<ConditionValue> {
        self.refusals.get(policy.reference.uid.as_str()).cloned()
    }
}

/// Whether a generation of the policy was accepted before.
pub(in crate::decide) fn is_taken(world: &World, policy: &PolicyView) -> bool {
    world.revisions.contains_key(&policy.reference.uid) || policy.status.last_served.is_some()
}

/// Does not say how many policies wait, as each new one would change the conditions of all.
fn too_many(namespace: &str, taken: usize, limit: usize) -> ConditionValue {
    let text = format!(
        "namespace {namespace} has {taken} accepted policies of at most {limit}; delete one that is not needed, or have the limit raised (controller.policiesPerNamespace of the chart)"
    );
    ConditionValue::not_configured(Reason::QuotaExceeded.as_str(), text)
}

fn too_large(policy: &PolicyView) -> ConditionValue {
    let text = match policy.is_cut {
        true => format!(
            "the policy takes more than {} bytes of memory without its settings; remove finalizers, owners, rules or match conditions",
            Outline::MAX_BYTES
        ),
        false => format!(
            "the spec has {} bytes as JSON, of at most {SPEC_BYTES}; make settings and match conditions shorter, or split the policy",
            policy.spec_bytes
        ),
    };
    ConditionValue::not_configured(Reason::QuotaExceeded.as_str(), text)
}

/// Writing this condition also reads the policy again, with its match part if there is room by then.
fn no_room(policy: &PolicyView, is_over: bool) -> ConditionValue {
    let namespace = policy.reference.namespace.as_deref().unwrap_or_default();
    let what = format!("rules, selectors and matchConditions of the policies of namespace {namespace}");
    let text = match is_over {
        true => format!("{what} took more than {MATCH_BYTES} bytes of memory; the policy is being read again"),
        false => format!("{what} take more than {MATCH_BYTES} bytes of memory; shorten them, or delete policies"),
    };
    ConditionValue::not_configured(Reason::QuotaExceeded.as_str(), text)
}

#[cfg(test)]
mod tests {
    use portcullis_api::Kind;
    use serde_json::{Value, json};

    use super::*;
    use crate::world::{Change, Collection};

    fn take(world: &mut World, collection: Collection, object: Value) {
        let object: Outline = serde_json::from_value(object).expect("an object");
        world.take(Change::Applied(collection, Box::new(object)));
    }

    fn put(world: &mut World, kind: Kind, namespace: Option<&str>, name: &str, second: u8) {
        let object = json!({
            "metadata": {"name": name, "namespace": namespace, "uid": name, "generation": 1, "resourceVersion": "1",
                         "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z")},
            "spec": {"module": "m", "rules": []},
        });
        take(world, Collection::Policies(kind), object);
    }

    fn revise(world: &mut World, namespace: &str, name: &str) {
        let policy = json!({"kind": "Policy", "namespace": namespace, "name": name, "uid": name});
        let object = json!({"metadata": {"name": name, "uid": format!("revision-{name}"), "resourceVersion": "1"},
                            "data": {"policy": policy, "generation": 1, "spec": {}}});
        take(world, Collection::Revisions, object);
    }

    fn rules(policies_per_namespace: usize) -> Rules {
        Rules { policies_per_namespace, ..crate::decide::tests::rules() }
    }

    fn refused(world: &World, limit: usize) -> Vec<&str> {
        Quota::of(world, &rules(limit)).refusals.keys().copied().collect()
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
        let quota = Quota::of(&world, &rules(1));
        assert_eq!(quota.refusal(&world.policies["a"]), None);
        let refusal = quota.refusal(&world.policies["b"]).expect("it is one too many");
        assert_eq!(refusal.reason, "QuotaExceeded");
        let begin = "namespace team-a has 1 accepted policies of at most 1; delete one";
        assert!(refusal.message.starts_with(begin), "{}", refusal.message);
    }

    #[test]
    fn z10_a_policy_that_takes_too_much_without_its_settings_is_not_taken() {
        let mut world = World::new("default");
        let finalizers: Vec<String> = (0..50_000).map(|number| format!("example.com/{number}")).collect();
        let object = json!({
            "metadata": {"name": "a", "namespace": "one", "uid": "a", "generation": 1, "resourceVersion": "1", "finalizers": finalizers},
            "spec": {"module": "m", "rules": []},
        });
        take(&mut world, Collection::Policies(Kind::Policy), object);
        let refusal = Quota::of(&world, &rules(9)).refusal(&world.policies["a"]).expect("it is too large");
        assert!(
            refusal.message.contains("more than 8388608 bytes of memory without its settings"),
            "{}",
            refusal.message
        );
        let policy = &world.policies["a"];
        assert!(policy.is_held && policy.is_cut && policy.content.is_err());
    }

    #[test]
    fn z11_a_policy_without_room_for_its_match_part_is_not_taken_until_it_is_read_again() {
        let mut world = World::new("default");
        let object = |name: &str, bytes: usize| {
            let condition = json!({"name": "c", "expression": "x".repeat(bytes)});
            json!({
                "metadata": {"name": name, "namespace": "one", "uid": name, "generation": 1, "resourceVersion": "1"},
                "spec": {"module": "m", "rules": [], "matchConditions": [condition]},
            })
        };
        // 23 of them fit.
        let part = 700 << 10;
        for number in 0..24 {
            take(&mut world, Collection::Policies(Kind::Policy), object(&format!("p{number:02}"), part));
        }
        let message = |world: &World| {
            Quota::of(world, &rules(99))
                .refusal(&world.policies["p23"])
                .map(|refusal| (refusal.reason, refusal.message))
        };
        assert_eq!(refused(&world, 99), ["p23"]);
        let (reason, words) = message(&world).expect("it is refused");
        assert_eq!(reason, "QuotaExceeded");
        assert!(words.contains("of namespace one take more than 16777216 bytes of memory; shorten"), "{words}");
        // With room, the words change, and writing them reads the policy again.
        take(&mut world, Collection::Policies(Kind::Policy), object("p00", 1));
        let (_, words) = message(&world).expect("it is not read yet");
        assert!(words.ends_with("the policy is being read again"), "{words}");
        take(&mut world, Collection::Policies(Kind::Policy), object("p23", part));
        assert_eq!(refused(&world, 99), [""; 0]);
    }

    #[test]
    fn z10_a_spec_that_is_too_large_is_not_taken_and_what_was_taken_stays() {
        let mut world = World::new("default");
        let large = |generation: i64| {
            json!({
                "metadata": {"name": "a", "namespace": "one", "uid": "a", "generation": generation, "resourceVersion": "1"},
                "spec": {"module": "m", "rules": [], "settings": {"text": "x".repeat(SPEC_BYTES)}},
            })
        };
        take(&mut world, Collection::Policies(Kind::Policy), large(1));
        let refusal = Quota::of(&world, &rules(9)).refusal(&world.policies["a"]).expect("it is too large");
        assert!(refusal.message.contains("of at most 786432; make settings"), "{}", refusal.message);
        // A policy that an earlier release accepted stays accepted.
        revise(&mut world, "one", "a");
        assert_eq!(refused(&world, 9), [""; 0]);
    }
}
