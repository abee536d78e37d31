//! One line for each change, for output that is not a terminal. Pure.

use jiff::Timestamp;
use portcullis_api::{ConditionType, ObservedPolicy, Truth};
use portcullis_contract::{PolicyId, Reason};

use crate::facts::to_second;
use crate::statuses::Change;

/// The command of `portcullis` that shows a policy, as the user can paste it.
#[derive(Debug, Clone)]
pub struct Describe {
    /// How the user calls `portcullis`.
    pub command: String,
    /// The folder of policies; none in a cluster.
    pub dir: Option<String>,
}

impl Describe {
    /// The command for one policy.
    fn of(&self, id: &PolicyId) -> String {
        let dir = self.dir.as_ref().map(|dir| format!(" --dir {dir}")).unwrap_or_default();
        format!("{} describe {id}{dir}", self.command)
    }
}

/// `2026-01-01T00:00:00Z policy cluster/a: Active generation 2 (was Progressing): generation 2 answers`. `None` if only
/// times or counts have changed. When another module answers than before, it is named: `Active generation 2, module sha256:…: `.
pub fn line(change: &Change, describe: &Describe, now: Timestamp) -> Option<String> {
    let now = to_second(now);
    let id = &change.id;
    let Some(after) = &change.after else {
        return Some(format!("{now} policy {id}: gone"));
    };
    let picture = |object: &ObservedPolicy| {
        let degraded = object.status.condition(ConditionType::Degraded).map(|condition| condition.reason.clone());
        (object.status.word().to_owned(), object.status.observed_generation, degraded)
    };
    let before = change.before.as_ref().map(picture);
    let picture = picture(after);
    if before.as_ref() == Some(&picture) {
        return None;
    }
    let (word, generation, reason) = picture;
    let was = before.filter(|before| before.0 != word).map(|before| format!(" (was {})", before.0));
    let words = words(id, after, reason.as_deref(), describe);
    let served = |object: &ObservedPolicy| object.status.last_served.as_ref().map(|served| served.digest);
    // If a file was built again, only the digest shows a user that the module is another one.
    let module = change.before.as_ref().and_then(served).zip(served(after)).filter(|(before, after)| before != after);
    let module = module.map(|(_, after)| format!(", module {after}")).unwrap_or_default();
    Some(format!("{now} policy {id}: {word} generation {generation}{}{module}: {words}", was.unwrap_or_default()))
}

/// `2026-01-01T00:00:00Z policy cluster/a: warning: CapabilityNotGranted: …`, when the metadata of the module begins to differ from the
/// policy, or differs otherwise than before.
pub fn warning(change: &Change, now: Timestamp) -> Option<String> {
    let difference = |object: &ObservedPolicy| {
        let condition = object.status.condition(ConditionType::MetadataMatched)?;
        let differs = condition.status != Truth::True && condition.reason != "Progressing";
        differs.then(|| format!("{}: {}", condition.reason, condition.message))
    };
    let found = change.after.as_ref().and_then(difference)?;
    let is_new = change.before.as_ref().and_then(difference).as_ref() != Some(&found);
    is_new.then(|| format!("{} policy {}: warning: {found}", to_second(now), change.id))
}

/// The message of `Ready`, but only the reason if the text comes from a guest: it may quote the settings, and these lines often end up
/// in a log.
fn words(id: &PolicyId, object: &ObservedPolicy, degraded: Option<&str>, describe: &Describe) -> String {
    let quotes_settings = [Reason::SettingsInvalid, Reason::SettingsCheckFailed, Reason::CapabilityUnavailable];
    let quotes_settings = quotes_settings.map(Reason::as_str);
    match degraded {
        Some(reason) if quotes_settings.contains(&reason) || reason == "SeveralReasons" => {
            format!("{reason}; `{}` shows what the policy says", describe.of(id))
        }
        _ => object.status.condition(ConditionType::Ready).map(|ready| ready.message.clone()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use portcullis_api::{Condition, PolicyStatus, Resolved};
    use portcullis_contract::Digest;

    use super::*;
    use crate::fixtures::observed;

    fn object(generation: i64, word: &str, degraded: &str) -> ObservedPolicy {
        let condition = |r#type, reason: &str, message: &str| Condition {
            r#type,
            status: Truth::True,
            reason: reason.into(),
            message: message.into(),
            observed_generation: generation,
            last_transition_time: Timestamp::UNIX_EPOCH,
        };
        let status = PolicyStatus {
            observed_generation: generation,
            conditions: vec![
                condition(ConditionType::Ready, word, "in words"),
                condition(ConditionType::Degraded, degraded, ""),
            ],
            ..PolicyStatus::default()
        };
        observed("cluster/a", generation, status)
    }

    fn id() -> PolicyId {
        "cluster/a".parse().expect("an id")
    }

    fn printed(before: Option<ObservedPolicy>, after: Option<ObservedPolicy>) -> Option<String> {
        let describe = Describe { command: "portcullis".to_owned(), dir: None };
        line(&Change { id: id(), before, after }, &describe, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_change_is_one_line() {
        let (loading, active) = (object(2, "Progressing", "AsExpected"), object(2, "Active", "AsExpected"));
        assert_eq!(
            printed(Some(loading), Some(active.clone())).as_deref(),
            Some("1970-01-01T00:00:00Z policy cluster/a: Active generation 2 (was Progressing): in words")
        );
        assert_eq!(
            printed(None, Some(active.clone())).as_deref(),
            Some("1970-01-01T00:00:00Z policy cluster/a: Active generation 2: in words")
        );
        assert_eq!(printed(Some(active.clone()), Some(active.clone())), None);
        assert_eq!(printed(Some(active), None).as_deref(), Some("1970-01-01T00:00:00Z policy cluster/a: gone"));
    }

    #[test]
    fn a_difference_of_the_metadata_is_told_once() {
        let with = |truth, reason: &str| {
            let mut object = object(1, "Active", "AsExpected");
            object.status.conditions.push(Condition {
                r#type: ConditionType::MetadataMatched,
                status: truth,
                reason: reason.into(),
                message: "in words".into(),
                observed_generation: 1,
                last_transition_time: Timestamp::UNIX_EPOCH,
            });
            Some(object)
        };
        let warned = |before, after| warning(&Change { id: id(), before, after }, Timestamp::UNIX_EPOCH);
        let differs = || with(Truth::False, "RulesDiffer");
        let words = "1970-01-01T00:00:00Z policy cluster/a: warning: RulesDiffer: in words";
        assert_eq!(warned(None, differs()).as_deref(), Some(words));
        assert_eq!(warned(with(Truth::False, "RawPolicy"), differs()).as_deref(), Some(words));
        assert!(warned(None, with(Truth::Unknown, "NoMetadata")).is_some());
        for (before, after) in [
            (differs(), differs()),
            (differs(), with(Truth::True, "AsExpected")),
            (None, with(Truth::Unknown, "Progressing")),
            (differs(), None),
        ] {
            assert_eq!(warned(before, after), None);
        }
    }

    #[test]
    fn another_module_is_named() {
        let serving = |generation, module: &[u8]| {
            let mut object = object(generation, "Active", "AsExpected");
            object.status.last_served = Some(Resolved::module(generation, Digest::of(module)));
            object
        };
        let digest = Digest::of(b"two");
        assert_eq!(
            printed(Some(serving(1, b"one")), Some(serving(2, b"two"))),
            Some(format!("1970-01-01T00:00:00Z policy cluster/a: Active generation 2, module {digest}: in words"))
        );
        assert_eq!(
            printed(Some(serving(2, b"two")), Some(serving(3, b"two"))).as_deref(),
            Some("1970-01-01T00:00:00Z policy cluster/a: Active generation 3: in words")
        );
    }

    #[test]
    fn what_a_guest_says_of_its_settings_is_not_in_the_line() {
        for reason in ["SettingsInvalid", "CapabilityUnavailable"] {
            let kept = object(3, "ServingPrevious", reason);
            assert_eq!(
                printed(Some(object(2, "Active", "AsExpected")), Some(kept)),
                Some(format!(
                    "1970-01-01T00:00:00Z policy cluster/a: ServingPrevious generation 3 (was Active): {reason}; \
                     `portcullis describe cluster/a` shows what the policy says"
                ))
            );
        }
        let describe =
            Describe { command: "target/debug/portcullis".to_owned(), dir: Some("'my policies'".to_owned()) };
        assert_eq!(describe.of(&id()), "target/debug/portcullis describe cluster/a --dir 'my policies'");
    }
}
