//! How much memory the match parts of Policies may take.
//!
//! Only so many policies of a namespace are accepted, but all of them are watched. Without a limit, a user who may write Policies in one
//! namespace could fill the memory of this program with those that are not accepted.

use std::collections::BTreeMap;

use portcullis_api::RevisionError;
use portcullis_contract::MatchPart;
use serde_json::Value;

use super::policy::{PolicyView, Unreadable};

/// What the match parts of the policies of one namespace may take, in bytes: sixty of the largest ones, or thousands of ordinary ones.
pub(crate) const MATCH_BYTES: usize = 16 << 20;

/// What a text takes besides its bytes, with what the allocator adds.
const TEXT: usize = size_of::<String>() + 32;

/// What the match parts of each namespace take, in bytes.
#[derive(Debug, Default)]
pub(super) struct MatchRoom(BTreeMap<String, usize>);

impl MatchRoom {
    /// Reserves memory for a policy's match part. If too little is left, the policy is kept without that part.
    pub(super) fn take(&mut self, policy: &mut PolicyView) {
        let (Some(namespace), Ok(content)) = (&policy.reference.namespace, &policy.content) else { return };
        let taken = self.0.entry(namespace.clone()).or_default();
        let bytes = bytes_of(&content.own);
        if *taken + bytes <= MATCH_BYTES {
            *taken += bytes;
        } else {
            policy.left_out = Some(bytes);
            policy.content = Err(Unreadable::Damaged(RevisionError::TooLarge));
        }
    }

    /// Takes back what a policy had.
    pub(super) fn give_back(&mut self, policy: &PolicyView) {
        let (Some(namespace), Ok(content)) = (&policy.reference.namespace, &policy.content) else { return };
        if let Some(taken) = self.0.get_mut(namespace) {
            *taken = taken.saturating_sub(bytes_of(&content.own));
            if *taken == 0 {
                self.0.remove(namespace);
            }
        }
    }

    /// Whether there is room for the match part of a policy that was left without it.
    pub(super) fn has_room(&self, policy: &PolicyView) -> bool {
        let taken = policy.reference.namespace.as_ref().and_then(|namespace| self.0.get(namespace)).copied();
        taken.unwrap_or_default() + policy.left_out.unwrap_or_default() <= MATCH_BYTES
    }
}

/// About how much memory a match part takes, in bytes.
pub(super) fn bytes_of(part: &MatchPart) -> usize {
    let texts = |texts: &[String]| texts.iter().map(|text| TEXT + text.len()).sum::<usize>();
    let rules = part.rules.iter().map(|rule| {
        texts(&rule.api_groups)
            + texts(&rule.api_versions)
            + texts(&rule.resources)
            + texts(&rule.operations)
            + 4 * TEXT
    });
    let conditions =
        part.match_conditions.iter().map(|condition| 2 * TEXT + condition.name.len() + condition.expression.len());
    let selectors = [&part.object_selector, &part.namespace_selector].into_iter().flatten().map(bytes_of_value);
    rules.chain(conditions).chain(selectors).sum::<usize>() + size_of::<MatchPart>()
}

/// The same for a value, whose depth is limited where it is read.
fn bytes_of_value(value: &Value) -> usize {
    let below = match value {
        Value::String(text) => TEXT + text.len(),
        Value::Array(items) => items.iter().map(bytes_of_value).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| TEXT + name.len() + bytes_of_value(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    size_of::<Value>() + below
}

#[cfg(test)]
mod tests {
    use portcullis_api::Kind;
    use serde_json::json;

    use super::super::{Change, Collection, World};

    /// A policy with match conditions of about this many bytes.
    fn put(world: &mut World, namespace: &str, name: &str, version: &str, bytes: usize) {
        let conditions: Vec<_> = (0..bytes.div_ceil(4096))
            .map(|number| json!({"name": format!("c{number}"), "expression": "x".repeat(4096)}))
            .collect();
        let object = json!({
            "metadata": {"name": name, "namespace": namespace, "uid": name, "generation": 1, "resourceVersion": version},
            "spec": {"module": "m", "rules": [], "matchConditions": conditions},
        });
        let object = serde_json::from_value(object).expect("an object");
        world.take(Change::Applied(Collection::Policies(Kind::Policy), Box::new(object)));
    }

    fn left_out(world: &World) -> Vec<&str> {
        world.policies.iter().filter(|(_, policy)| policy.left_out.is_some()).map(|(uid, _)| uid.as_str()).collect()
    }

    #[test]
    fn fault_z11_a_namespace_with_more_match_parts_than_there_is_room_for_keeps_no_more() {
        let mut world = World::new("default");
        for number in 0..20 {
            put(&mut world, "greedy", &format!("p{number:02}"), "1", 1 << 20);
        }
        put(&mut world, "modest", "other", "1", 1 << 20);
        let beyond = left_out(&world);
        assert_eq!(beyond, ["p15", "p16", "p17", "p18", "p19"]);
        assert!(!world.has_room(&world.policies["p15"]));

        // A policy that is read again has the room that it had.
        put(&mut world, "greedy", "p00", "2", 1 << 20);
        assert_eq!(left_out(&world).len(), 5);
        // One that needs less makes room, also for one that was left out once it is read again.
        put(&mut world, "greedy", "p01", "2", 4096);
        assert!(world.has_room(&world.policies["p15"]));
        put(&mut world, "greedy", "p15", "1", 1 << 20);
        assert_eq!(left_out(&world), ["p16", "p17", "p18", "p19"]);
        // So does one that is gone.
        world.take(Change::Listed(Collection::Policies(Kind::Policy), ["p16".to_owned()].into()));
        put(&mut world, "greedy", "p16", "1", 1 << 20);
        assert_eq!(left_out(&world), [""; 0]);
        assert_eq!(world.room.0.keys().collect::<Vec<_>>(), ["greedy"]);
    }
}
