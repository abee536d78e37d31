//! Webhooks that are not confirmed, and match rules that API servers refuse.

use super::*;

#[test]
fn a_webhook_that_only_a_change_can_mend_stalls_the_policy_once_nothing_is_loading() {
    let why = Unconfirmed {
        words: "SpecInvalid: the expression does not compile",
        stuck: Some("SpecInvalid"),
        confirmed: None,
    };
    let decided = |says: &[Says], webhook| decided_with(&facts(), says, webhook, None, now());
    let new = decided(&[Current], Webhook::Pending(why));
    assert_eq!(row(&new), "False/WebhookPending False/WebhookPending False/AsExpected False/Idle True/SpecInvalid");
    let stalled = new.condition(ConditionType::Stalled).expect("it is there");
    assert_eq!(stalled.message, why.words);
    let edited = decided(&[Current], Webhook::Older(why));
    assert_eq!(row(&edited), "False/WebhookPending True/ServingPrevious False/AsExpected False/Idle True/SpecInvalid");
    let lacking = Unconfirmed { words: "Forbidden: no right", stuck: Some("Forbidden"), confirmed: None };
    assert_eq!(row(&decided(&[Current], Webhook::Pending(lacking))).split(' ').nth(4), Some("True/Forbidden"));
    for says in [Loading, Older] {
        let loading = decided(&[Current, says], Webhook::Pending(why));
        assert_eq!(row(&loading).split(' ').nth(4), Some("False/AsExpected"), "it is being loaded");
    }
    let retrying = decided(&[OlderBecause(Reason::RegistryTimeout)], Webhook::Older(why));
    assert_eq!(row(&retrying).split(' ').nth(4), Some("False/Retrying"));
    let suspended = Facts { suspend: true, ..facts() };
    let suspended = decided_with(&suspended, &[Current], Webhook::Pending(why), None, now());
    assert_eq!(row(&suspended).split(' ').nth(4), Some("False/AsExpected"), "nobody is to call it");
}
