//! A generation that is beyond a limit, and is taken later.

use super::*;

fn accepted(status: &PolicyStatus) -> (Truth, &str, i64) {
    let condition = status.condition(ConditionType::Accepted).expect("it is there");
    (condition.status, condition.reason.as_str(), condition.observed_generation)
}

#[test]
fn a_generation_that_is_taken_after_all_is_not_said_to_be_beyond_a_limit() {
    let refused = Facts { refusal: Some("too many"), ..facts() };
    let pending = Webhook::Pending("w".into());
    let first = decided_with(&refused, &[Loading, Loading], pending, None, now());
    assert_eq!(accepted(&first), (Truth::False, "QuotaExceeded", 7));
    for says in [&[Loading, Loading][..], &[Older], &[]] {
        let taken = decided_with(&facts(), says, pending, Some(&first), later());
        assert_eq!(accepted(&taken), (Truth::Unknown, "Progressing", 7));
        let condition = taken.condition(ConditionType::Accepted).expect("it is there");
        let message = "no replica has looked at the policy yet";
        assert_eq!((condition.message.as_str(), condition.last_transition_time), (message, later()));
    }
    // What was said of an older generation stays until the newest one is judged.
    let eight = Facts { generation: 8, ..facts() };
    let edited = decided_with(&eight, &[Loading, Loading], pending, Some(&first), later());
    assert_eq!(accepted(&edited), (Truth::False, "QuotaExceeded", 7));
    let judged = decided_with(&facts(), &[Current, Loading], pending, Some(&first), later());
    assert_eq!(accepted(&judged), (Truth::True, "Accepted", 7));
}
