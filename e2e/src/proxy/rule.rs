//! What a proxy does with requests instead of passing them on.

use std::time::Duration;

use serde_json::{Value, json};

/// A rule: which requests, how many of them, and what happens to these. Passes them on unless told otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    method: String,
    part: String,
    left: Option<u32>,
    delay: Duration,
    action: Action,
}

/// What happens to a request after the delay.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Pass,
    /// Status, headers and body; the API server hears nothing.
    Answer(u16, Vec<(String, String)>, String),
    /// The connection ends; the API server hears nothing.
    Cut,
    /// The API server does what it is asked, and the connection ends in its answer.
    CutAnswer,
    /// Nobody ever answers.
    Hang,
}

impl Rule {
    /// On requests of this method whose path has this part; an empty method or part stands for all.
    pub fn on(method: &str, part: &str) -> Self {
        let (method, part) = (method.to_owned(), part.to_owned());
        Self { method, part, left: None, delay: Duration::ZERO, action: Action::Pass }
    }

    /// Only the first so many of them.
    #[must_use]
    pub fn times(self, number: u32) -> Self {
        Self { left: Some(number), ..self }
    }

    /// Waits before it goes on.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Answers with a `Status` of this code, as an API server does.
    #[must_use]
    pub fn answer(self, code: u16, message: &str) -> Self {
        let reason = match code {
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            410 => "Expired",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            _ => "",
        };
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason, "code": code,
        });
        self.answer_with(code, &status)
    }

    /// Answers with this status and object.
    #[must_use]
    pub fn answer_with(self, code: u16, body: &Value) -> Self {
        Self { action: Action::Answer(code, Vec::new(), body.to_string()), ..self }
    }

    /// With a header, like `Retry-After`.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Action::Answer(_, headers, _) = &mut self.action {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// Ends the connection; the API server hears nothing.
    #[must_use]
    pub fn cut(self) -> Self {
        Self { action: Action::Cut, ..self }
    }

    /// Lets the API server do it, and ends the connection within its answer.
    #[must_use]
    pub fn cut_answer(self) -> Self {
        Self { action: Action::CutAnswer, ..self }
    }

    /// Never answers; the API server hears nothing.
    #[must_use]
    pub fn hang(self) -> Self {
        Self { action: Action::Hang, ..self }
    }

    fn matches(&self, method: &str, path: &str) -> bool {
        self.left != Some(0) && (self.method.is_empty() || self.method == method) && path.contains(&self.part)
    }
}

/// What the first matching rule says, which counts as one time: how long to wait, and what to do then.
pub(super) fn decide(rules: &mut [Rule], method: &str, path: &str) -> (Duration, Action) {
    let Some(rule) = rules.iter_mut().find(|rule| rule.matches(method, path)) else {
        return (Duration::ZERO, Action::Pass);
    };
    if let Some(left) = &mut rule.left {
        *left -= 1;
    }
    (rule.delay, rule.action.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_counts_as_often_as_it_says() {
        let mut rules = [Rule::on("PATCH", "/status").times(2).cut(), Rule::on("PATCH", "").hang()];
        let mut act = |method, path| decide(&mut rules, method, path).1;
        assert_eq!(act("GET", "/a/status"), Action::Pass);
        assert_eq!([(); 3].map(|()| act("PATCH", "/a/status")), [Action::Cut, Action::Cut, Action::Hang]);
        assert_eq!(act("PATCH", "/a"), Action::Hang);
    }

    #[test]
    fn an_answer_is_that_of_an_api_server() {
        let rule = Rule::on("", "").answer(429, "slowly").header("Retry-After", "2");
        let Action::Answer(429, headers, body) = rule.action else { panic!("another action") };
        assert_eq!(headers, [("Retry-After".to_owned(), "2".to_owned())]);
        assert!(body.contains(r#""reason":"TooManyRequests","code":429"#), "{body}");
    }
}
