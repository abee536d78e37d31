//! How far a policy is on its way to a generation, according to its status. Pure.

use crate::item::Item;

/// How far the policy is, as a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    /// It is on its way.
    Waiting(String),
    /// It is Ready.
    Ready(String),
    /// It will not become Ready by itself.
    Stuck(String),
}

/// How far `item` is, a policy with this uid that was changed to become `generation`.
pub(super) fn judge(item: &Item, uid: &str, generation: i64) -> Progress {
    if item.uid() != uid {
        return Progress::Stuck("the policy has been deleted and made again".to_owned());
    }
    if item.generation() > generation {
        let newest = item.generation();
        return Progress::Stuck(format!("somebody has changed the policy meanwhile; it is at generation {newest}"));
    }
    let words = |condition: &str| {
        let condition = item.condition(condition)?;
        let colon = if condition.message.is_empty() { "" } else { ": " };
        Some((condition.status, format!("{}{colon}{}", condition.reason, condition.message)))
    };
    let ready = words("Ready");
    if let Some((_, words)) = ready.as_ref().filter(|(status, _)| status == "True") {
        return Progress::Ready(words.clone());
    }
    let is = |found: Option<(String, String)>, wanted: &str| found.filter(|(status, _)| status == wanted);
    // This condition is how the controller reports that the named generation is gone.
    let refused = item.condition("WebhookConfigured").filter(|condition| condition.reason == "SpecInvalid");
    let refused = refused.and_then(|_| is(words("WebhookConfigured"), "False"));
    if let Some((_, words)) = is(words("Accepted"), "False").or_else(|| is(words("Stalled"), "True")).or(refused) {
        return Progress::Stuck(words);
    }
    let nothing = || format!("nobody has looked at generation {generation} yet");
    Progress::Waiting(ready.map_or_else(nothing, |(_, words)| words))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(generation: i64, conditions: &[(&str, &str, &str, i64)]) -> Item {
        let conditions: Vec<_> = conditions
            .iter()
            .map(|(r#type, status, reason, of)| {
                json!({"type": r#type, "status": status, "reason": reason, "message": "words", "observedGeneration": of})
            })
            .collect();
        let object = json!({"kind": "ClusterPolicy", "metadata": {"name": "a", "uid": "u", "generation": generation},
                            "status": {"conditions": conditions}});
        Item::of_object(object).expect("a policy")
    }

    #[test]
    fn the_ways_of_a_rollback() {
        let judge = |item: &Item| judge(item, "u", 5);
        let waiting = |words: &str| Progress::Waiting(words.to_owned());
        assert_eq!(
            judge(&item(5, &[("Ready", "True", "Active", 4)])),
            waiting("nobody has looked at generation 5 yet")
        );
        assert_eq!(judge(&item(5, &[("Ready", "False", "Progressing", 5)])), waiting("Progressing: words"));
        let done = item(5, &[("Ready", "True", "Active", 5), ("Stalled", "False", "AsExpected", 5)]);
        assert_eq!(judge(&done), Progress::Ready("Active: words".to_owned()));
        let stuck = item(5, &[("Ready", "False", "Error", 5), ("Stalled", "True", "NotFound", 5)]);
        assert_eq!(judge(&stuck), Progress::Stuck("NotFound: words".to_owned()));
        let refused = item(5, &[("Accepted", "False", "SpecInvalid", 5)]);
        assert_eq!(judge(&refused), Progress::Stuck("SpecInvalid: words".to_owned()));
        let webhook = |reason| item(5, &[("WebhookConfigured", "False", reason, 5)]);
        assert_eq!(judge(&webhook("SpecInvalid")), Progress::Stuck("SpecInvalid: words".to_owned()));
        assert!(matches!(judge(&webhook("WaitingForReplicas")), Progress::Waiting(_)));
    }

    #[test]
    fn what_somebody_else_does_ends_the_waiting() {
        assert!(matches!(judge(&item(6, &[]), "u", 5), Progress::Stuck(words) if words.contains("generation 6")));
        assert!(matches!(judge(&item(5, &[]), "other", 5), Progress::Stuck(words) if words.contains("made again")));
    }
}
