//! `/healthz/policies` and `/healthz/sources` (docs/design/status-api.md, section 7). The probes of the pod never use them.

use std::fmt::Write as _;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::RETRY_AFTER;
use jiff::Timestamp;
use portcullis_contract::{Failure, LoaderPolicy, LoaderState, Phase, SourceHealth};
use portcullis_process::StateFeed;

/// The routes.
pub(crate) fn routes(feed: StateFeed<LoaderState>) -> Router {
    Router::new()
        .route("/healthz/policies", get(policies))
        .route("/healthz/policies/{*id}", get(policy))
        .route("/healthz/sources", get(sources))
        .route("/healthz/sources/{host}", get(source))
        .with_state(feed)
}

/// One check: its name, its code, and its text.
#[derive(Debug, PartialEq, Eq)]
struct Check {
    name: String,
    code: u16,
    text: String,
    retry_after: Option<u64>,
}

impl Check {
    fn of_policy(policy: &LoaderPolicy, now: Timestamp) -> Self {
        let name = policy.id.to_string();
        let generation = policy.generation;
        match &policy.failure {
            Some(failure) => Self::failed(name, &format!("generation {generation}, "), failure, now),
            None if policy.phase == Phase::Published => {
                Self { name, code: 200, text: format!("generation {generation} is published"), retry_after: None }
            }
            None => Self {
                name,
                code: 503,
                text: format!("generation {generation} is on its way ({:?})", policy.phase),
                retry_after: Some(1),
            },
        }
    }

    fn of_source(source: &SourceHealth, now: Timestamp) -> Self {
        let name = source.host.clone();
        match &source.failure {
            None => Self { name, code: 200, text: "the last fetch worked".to_owned(), retry_after: None },
            Some(failure) => {
                let policy = source.policy.as_ref().map(|policy| format!("policy {policy}, ")).unwrap_or_default();
                Self::failed(name, &policy, failure, now)
            }
        }
    }

    fn failed(name: String, before: &str, failure: &Failure, now: Timestamp) -> Self {
        let seconds = failure.next_retry_time.map(|next| next.duration_since(now).as_secs().max(1).unsigned_abs());
        let text = format!("{before}{} stage, {failure}", failure.stage());
        let class = failure.class();
        Self { name, code: class.code(), text, retry_after: seconds.filter(|_| class.is_retryable()) }
    }

    fn line(&self) -> String {
        let (sign, word) = if self.code == 200 { ('+', "ok") } else { ('-', "failed") };
        format!("[{sign}]{} {word}: {}\n", self.name, self.text)
    }

    fn answer(&self) -> Response {
        respond(self.code, self.line(), self.retry_after)
    }
}

fn respond(code: u16, text: String, retry_after: Option<u64>) -> Response {
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, text).into_response();
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

async fn policies(State(feed): State<StateFeed<LoaderState>>, RawQuery(query): RawQuery) -> Response {
    let now = Timestamp::now();
    let checks = feed.latest().policies.iter().map(|policy| Check::of_policy(policy, now)).collect();
    all(checks, query.as_deref().unwrap_or_default())
}

async fn sources(State(feed): State<StateFeed<LoaderState>>, RawQuery(query): RawQuery) -> Response {
    let now = Timestamp::now();
    let checks = feed.latest().sources.iter().map(|source| Check::of_source(source, now)).collect();
    all(checks, query.as_deref().unwrap_or_default())
}

async fn policy(State(feed): State<StateFeed<LoaderState>>, Path(id): Path<String>) -> Response {
    let state = feed.latest();
    match state.policies.iter().find(|policy| policy.id.as_str() == id) {
        Some(policy) => Check::of_policy(policy, Timestamp::now()).answer(),
        None => (StatusCode::NOT_FOUND, "no such policy\n").into_response(),
    }
}

async fn source(State(feed): State<StateFeed<LoaderState>>, Path(host): Path<String>) -> Response {
    let state = feed.latest();
    match state.sources.iter().find(|source| source.host == host) {
        Some(source) => Check::of_source(source, Timestamp::now()).answer(),
        None => (StatusCode::NOT_FOUND, "no policy names this host\n").into_response(),
    }
}

/// All checks except the excluded ones, with the worst of their codes: 500, then 503, then 200.
fn all(mut checks: Vec<Check>, query: &str) -> Response {
    let (mut verbose, mut excluded) = (false, Vec::new());
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "verbose" => verbose = true,
            "exclude" => excluded.push(value.into_owned()),
            _ => {}
        }
    }
    checks.retain(|check| !excluded.contains(&check.name));
    let rank = |code: u16| match code {
        200 => 0,
        503 => 1,
        _ => 2,
    };
    let worst = checks.iter().map(|check| check.code).max_by_key(|code| rank(*code)).unwrap_or(200);
    let mut text = String::new();
    for check in checks.iter().filter(|check| verbose || check.code != 200) {
        text.push_str(&check.line());
    }
    writeln!(text, "{}", if worst == 200 { "ok" } else { "failed" }).expect("writing to a String never fails");
    let retry_after = checks.iter().filter_map(|check| check.retry_after).min();
    respond(worst, text, retry_after.filter(|_| worst == 503))
}

#[cfg(test)]
mod tests {
    use portcullis_contract::Reason;

    use super::*;

    fn check(name: &str, reason: Option<Reason>) -> Check {
        let source = SourceHealth {
            host: name.to_owned(),
            failure: reason.map(|reason| Failure::new(0, reason, "no", Timestamp::UNIX_EPOCH)),
            policy: None,
        };
        Check::of_source(&source, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn the_class_is_the_code() {
        for (reason, code) in [
            (None, 200),
            (Some(Reason::RegistryTimeout), 503),
            (Some(Reason::NotFound), 500),
            (Some(Reason::ModuleInvalid), 500),
        ] {
            assert_eq!(check("h", reason).code, code);
        }
    }

    #[test]
    fn the_worst_code_counts_and_checks_can_be_left_out() {
        let checks =
            || vec![check("a:1", None), check("b", Some(Reason::RegistryTimeout)), check("c", Some(Reason::NotFound))];
        assert_eq!(all(checks(), "").status(), 500);
        assert_eq!(all(checks(), "exclude=c&verbose").status(), 503);
        assert_eq!(all(checks(), "exclude=c&exclude=b").status(), 200);
        assert_eq!(all(Vec::new(), "").status(), 200);
    }
}
