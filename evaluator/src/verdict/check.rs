//! The answer to an API server about a policy that somebody applies. Pure.
//!
//! Only a policy that cannot load until it is edited is refused. All others are admitted, some of them with a warning.

use portcullis_contract::{CheckFailure, CheckOutcome, CheckVerdict, Class, Reason, clean};

use crate::verdict::answer::{Answer, Status};
use crate::verdict::warnings;

/// The code of a refusal: Unprocessable Entity, by which clients know that the object is invalid.
const INVALID: u16 = 422;
/// Longest text of a refusal, in bytes: a text of the loader of at most 1 KiB, and its reason.
const MAX_TEXT: usize = 1280;
/// Tells the author where to see later what is not known yet.
const LATER: &str = "; `kubectl describe` shows whether it loads";
/// The message where the loader sent none.
const NO_MESSAGE: &str = "the loader does not say why";

/// Admits without a warning.
pub(crate) fn admitted() -> Answer {
    Answer { allowed: true, ..Answer::default() }
}

/// Admits with a warning that the policy was not checked for this cause.
pub(crate) fn not_checked(cause: &str) -> Answer {
    let text = format!("the policy was not checked: {cause}{LATER}");
    Answer { warnings: warnings::whole([text]), ..admitted() }
}

/// The answer for a verdict of the loader.
pub(crate) fn answered(verdict: CheckVerdict) -> Answer {
    let CheckVerdict { outcome, failure, warnings } = verdict;
    let failure = failure.unwrap_or_else(|| CheckFailure { reason: None, message: NO_MESSAGE.to_owned() });
    match outcome {
        CheckOutcome::Passed => Answer { warnings: warnings::whole(warnings), ..admitted() },
        CheckOutcome::Refused => {
            let message = Some(clean(&text(&failure), MAX_TEXT));
            let status = Status { message, code: Some(INVALID), details: None };
            Answer { status: Some(status), warnings: warnings::whole(warnings), ..Answer::default() }
        }
        CheckOutcome::Unknown => {
            let (prefix, later) = match failure.reason.map(Reason::class) {
                None => ("not checked", LATER),
                Some(Class::Final) => ("it does not load", ""),
                Some(Class::Outside | Class::Retry) => ("not loaded yet", LATER),
            };
            let first = format!("{prefix}: {}{later}", text(&failure));
            Answer { warnings: warnings::whole([first].into_iter().chain(warnings)), ..admitted() }
        }
    }
}

/// The reason and the message; the message alone where there is no reason.
fn text(failure: &CheckFailure) -> String {
    let CheckFailure { reason, message } = failure;
    reason.map_or_else(|| message.clone(), |reason| format!("{reason}: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(answer: Answer) -> String {
        let status = answer.status.expect("a status");
        assert_eq!((answer.allowed, status.code), (false, Some(422)));
        status.message.expect("a message")
    }

    #[test]
    fn a_policy_that_loads_is_admitted_with_what_its_author_should_know() {
        assert_eq!(answered(CheckVerdict::passed(Vec::new())), Answer { allowed: true, ..Answer::default() });
        let answer = answered(CheckVerdict::passed(vec!["one".into(), "t\x1bwo".into()]));
        assert_eq!((answer.allowed, answer.status), (true, None));
        assert_eq!(answer.warnings, ["one", "t wo"]);
    }

    #[test]
    fn a_policy_that_cannot_load_is_invalid() {
        let answer = answered(CheckVerdict::refused(Reason::SettingsInvalid, "no such\nlabel".into()));
        assert_eq!(message(answer), "SettingsInvalid: no such label");
        let verdict = CheckVerdict { outcome: CheckOutcome::Refused, failure: None, warnings: vec!["w".into()] };
        let answer = answered(verdict);
        assert_eq!(answer.warnings, ["w"]);
        assert_eq!(message(answer), NO_MESSAGE);
        let whole = format!("{}.", "x".repeat(1023));
        assert!(message(answered(CheckVerdict::refused(Reason::SettingsInvalid, whole.clone()))).ends_with(&whole));
        let long = answered(CheckVerdict::refused(Reason::SettingsInvalid, "x".repeat(1 << 16)));
        assert!(message(long).len() <= MAX_TEXT);
    }

    #[test]
    fn what_is_not_known_is_admitted_with_a_warning() {
        let mut verdict = CheckVerdict::unknown(Some(Reason::NotFound), "there is no such module");
        verdict.warnings.push("another".into());
        let answer = answered(verdict);
        assert_eq!((answer.allowed, answer.status), (true, None));
        assert_eq!(answer.warnings, [&format!("not loaded yet: NotFound: there is no such module{LATER}"), "another"]);
        assert_eq!(
            answered(CheckVerdict::unknown(None, "too late")).warnings,
            [format!("not checked: too late{LATER}")]
        );
        let only_warned = answered(CheckVerdict::unknown(Some(Reason::SettingsInvalid), "no labels"));
        assert_eq!(only_warned.warnings, ["it does not load: SettingsInvalid: no labels"]);
    }

    #[test]
    fn a_check_that_fails_refuses_nothing() {
        let answer = not_checked("the loader of this pod\r\ndoes not answer");
        assert!(answer.allowed);
        assert_eq!(
            answer.warnings,
            [
                "the policy was not checked: the loader of this pod does not answer; `kubectl describe` shows whether it loads"
            ]
        );
    }
}
