//! How long the match conditions of one check may take. Pure.

use std::time::Duration;

/// The time for the conditions of one check, and what comes to it for each object. Conditions take microseconds as a rule; such that take as long as
/// they may take a fifth of a second for each object.
const FIRST: Duration = Duration::from_millis(250);
const FOR_EACH: Duration = Duration::from_millis(1);

/// The time that the match conditions of one check have taken. All checks wait for them, one after the other.
#[derive(Debug, Default)]
pub(super) struct ConditionTime {
    spent: Duration,
    /// For how many objects.
    objects: u32,
}

impl ConditionTime {
    /// Records that they took so long for one object.
    pub(super) fn took(&mut self, time: Duration) {
        self.spent += time;
        self.objects = self.objects.saturating_add(1);
    }

    /// Whether they have had their time.
    pub(super) fn is_used_up(&self) -> bool {
        self.spent > FIRST + FOR_EACH * self.objects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For how many of a thousand objects conditions are evaluated that take so long.
    fn evaluated(each: Duration) -> u32 {
        let mut time = ConditionTime::default();
        while !time.is_used_up() && time.objects < 1000 {
            time.took(each);
        }
        time.objects
    }

    #[test]
    fn quick_conditions_are_evaluated_for_all_objects_and_slow_ones_for_a_few() {
        assert_eq!(evaluated(Duration::from_micros(1200)), 1000);
        assert_eq!(evaluated(Duration::from_millis(200)), 2);
        assert_eq!(evaluated(Duration::from_secs(5)), 1);
    }
}
