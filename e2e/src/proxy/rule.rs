//! Rules of a proxy: what it does with requests instead of passing them on.

use std::time::Duration;

use serde_json::{Value, json};

/// A rule: which requests it applies to, how many of them, and what happens to them. By default they are passed on.
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
    /// Answer with status, headers and body, without the API server.
    Answer(u16, Vec<(String, String)>, String),
    /// End the connection, without the API server.
    Cut,
    /// Let the API server execute the request, and end the connection in the middle of its answer.
    CutAnswer,
    /// Never answer.
    Hang,
}

impl Rule {
    /// A rule for requests with this method whose path contains `part`; an empty method or part matches all.
    pub fn on(method: &str, part: &str) -> Self {
        let (method, part) = (method.to_owned(), part.to_owned());
        Self { method, part, left: None, delay: Duration::ZERO, action: Action::Pass }
    }

    /// Limits the rule to the first `number` requests that match.
    #[must_use]
    pub fn times(self, number: u32) -> Self {
        Self { left: Some(number), ..self }
    }

    /// Waits before the request is handled.
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

    /// Adds a header, like `Retry-After`.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Action::Answer(_, headers, _) = &mut self.action {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// Ends the connection, without the API server.
    #[must_use]
    pub fn cut(self) -> Self {
        Self { action: Action::Cut, ..self }
    }

    /// Lets the API server execute the request, and ends the connection in the middle of its answer.
    #[must_use]
    pub fn cut_answer(self) -> Self {
        Self { action: Action::CutAnswer, ..self }
    }

    /// Never answers, and does not ask the API server.
    #[must_use]
    pub fn hang(self) -> Self {
        Self { action: Action::Hang, ..self }
    }

    fn matches(&self, method: &str, path: &str) -> bool {
        self.left != Some(0) && (self.method.is_empty() || self.method == method) && path.contains(&self.part)
    }
}

/// Applies the first matching rule and counts that. Returns how long to wait, and what to do then.
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
