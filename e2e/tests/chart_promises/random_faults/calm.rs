//! I3 and I7: what must hold once every fault is lifted.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_e2e::{assert_recovers_on_node, condition};
use serde_json::Value;

use super::fault::Edit;
use super::stand::Stand;
use crate::stage::REPLICAS;

/// After so many faults, all of them are lifted, and everything must recover before the next one.
pub(super) const FAULTS_BETWEEN: usize = 50;

/// How long the conditions are watched after everything has recovered.
const WATCHED: Duration = Duration::from_secs(3);

/// The statuses that conditions had, one after the other, by policy, generation and type.
#[derive(Debug, Default)]
struct Statuses(BTreeMap<(String, i64, String), Vec<String>>);

impl Stand {
    /// Ends every fault, and asserts that all policies are Ready and not Degraded in time (I3), that until then and for a while after
    /// that no condition changes more than once (I7), and that nothing tells a secret (I4).
    pub(super) fn calm(&mut self) {
        self.wanted = REPLICAS;
        self.release.scale(REPLICAS);
        self.victims.iter_mut().for_each(|victim| victim.mend_source(self.release));
        let _ = self.release.api().delete(&self.passing.path(), None);
        self.settle();
        self.look();
        // The last faults are versions that cannot serve.
        self.victims.iter_mut().for_each(|victim| victim.edit(self.release, Edit::Good));
        let (start, mut statuses) = (Instant::now(), Statuses::default());
        assert_recovers_on_node("Ready and not Degraded", || {
            let objects = self.objects();
            objects.iter().for_each(|object| statuses.check(object));
            objects.iter().all(is_well).then_some(())
        });
        self.tally.recovered(start.elapsed());
        let end = Instant::now() + WATCHED;
        while Instant::now() < end {
            self.objects().iter().for_each(|object| statuses.check(object));
            thread::sleep(Duration::from_millis(50));
        }
        self.look();
        // The logs of containers are gone with their pods, so they are read now and then, and not only in the end.
        self.look_for_secrets();
    }

    /// The policies, as the API server has them.
    fn objects(&self) -> Vec<Value> {
        let policies = self.victims.iter().map(|victim| victim.policy()).chain([&self.canary]);
        policies.map(|policy| self.release.api().get(&policy.path()).unwrap_or_default()).collect()
    }
}

/// Whether a policy is Ready and not Degraded, at its newest generation.
fn is_well(object: &Value) -> bool {
    [("Ready", "True"), ("Degraded", "False")].iter().all(|(kind, status)| {
        condition(object, kind).is_some_and(|found| {
            found["status"] == *status && found["observedGeneration"] == object["metadata"]["generation"]
        })
    })
}

impl Statuses {
    /// Asserts that no condition of this object has changed twice.
    fn check(&mut self, object: &Value) {
        self.note(object).unwrap_or_else(|flapping| panic!("{flapping}, and no fault was left (I7): {object:#}"));
    }

    /// Notes the conditions that are about the newest generation. An error says which one has changed twice.
    fn note(&mut self, object: &Value) -> Result<(), String> {
        let (name, generation) = (&object["metadata"]["name"], &object["metadata"]["generation"]);
        for found in object["status"]["conditions"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            if found["observedGeneration"] != *generation {
                continue;
            }
            let key = (text(name), generation.as_i64().unwrap_or_default(), text(&found["type"]));
            let seen = self.0.entry(key).or_default();
            if seen.last().map(String::as_str) != found["status"].as_str() {
                seen.push(text(&found["status"]));
            }
            if seen.len() > 2 {
                return Err(format!("{} of {name} changed more than once, {seen:?}", found["type"]));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(generation: i64, ready: &str, degraded: &str) -> Value {
        let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "observedGeneration": 2 });
        json!({
            "metadata": { "name": "a", "generation": generation },
            "status": { "conditions": [condition("Ready", ready), condition("Degraded", degraded)] },
        })
    }

    #[test]
    fn a_policy_is_well_at_its_newest_generation_only() {
        assert!(is_well(&object(2, "True", "False")));
        for other in [object(3, "True", "False"), object(2, "False", "False"), object(2, "True", "True"), json!({})] {
            assert!(!is_well(&other), "{other}");
        }
    }

    #[test]
    fn a_condition_may_change_once() {
        let mut statuses = Statuses::default();
        for ready in ["False", "False", "True", "True"] {
            assert_eq!(statuses.note(&object(2, ready, "False")), Ok(()));
        }
        // What is said of an earlier generation does not count.
        assert_eq!(statuses.note(&object(3, "False", "False")), Ok(()));
    }

    #[test]
    fn a_condition_that_changes_back_flaps() {
        let mut statuses = Statuses::default();
        let noted = ["True", "False", "True"].map(|ready| statuses.note(&object(2, ready, "False")));
        assert!(noted[1].is_ok(), "{noted:?}");
        assert!(noted[2].as_ref().is_err_and(|flapping| flapping.starts_with("\"Ready\" of \"a\"")), "{noted:?}");
    }
}
