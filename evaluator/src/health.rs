//! The health of each policy, on the state port, and on the probe port where paths of policies are open (docs/design/status-api.md,
//! section 7). It shows only names, generations and reasons: messages may quote settings and objects, and any client that reaches the
//! port can read it.

use std::fmt::Write as _;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::RETRY_AFTER;
use jiff::Timestamp;
use portcullis_contract::{Class, Failure, Reason};

use crate::http::route::{decoded, quoted};
use crate::table::{ServedPolicy, Serving, SharedTable, Table};
use crate::verdict::text::from_now;
use crate::volume::plan::is_current;

/// The `Retry-After` where the time of the next try is not known.
const LATER: Duration = Duration::from_secs(5);

/// `/healthz/policies` and `/healthz/policies/<id>`.
pub(crate) fn routes(table: SharedTable) -> Router {
    Router::new().route("/healthz/policies", get(all)).route("/healthz/policies/{*id}", get(one)).with_state(table)
}

/// The health of one policy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Health {
    code: u16,
    /// Why the newest generation does not serve; none if it does.
    reason: Option<Reason>,
    /// The newest generation, and the one that answers; 0 where none does.
    generation: i64,
    serving: i64,
    /// The time to the next try; none if none is planned.
    wait: Option<Duration>,
}

impl Health {
    fn of(policy: &ServedPolicy, now: Timestamp) -> Self {
        let serving = match &policy.serving {
            Serving::Ready(loaded) => loaded.generation(),
            Serving::Unserved(_) => 0,
        };
        let failure = match (&policy.serving, &policy.failure) {
            (Serving::Unserved(failure), None) | (_, Some(failure)) => Some(failure),
            (Serving::Ready(_), None) => None,
        };
        Self::judge(policy.generation, serving, failure, now)
    }

    /// The generation that serves may have failed elsewhere since, as when its module cannot be fetched again: it goes on serving.
    fn judge(generation: i64, serving: i64, failure: Option<&Failure>, now: Timestamp) -> Self {
        if is_current(serving, generation, failure) {
            return Self { code: 200, reason: None, generation, serving, wait: None };
        }
        let (reason, next) = match failure {
            Some(failure) => (failure.reason, failure.next_retry_time),
            // The newest generation is still being loaded.
            None => (Reason::AwaitingManifest, None),
        };
        let wait = (reason.class() == Class::Retry)
            .then(|| next.map_or(LATER, |next| Duration::try_from(next.duration_since(now)).unwrap_or(Duration::ZERO)));
        Self { code: reason.class().code(), reason: Some(reason), generation, serving, wait }
    }

    /// One line in the form of the API server's own health checks.
    fn line(&self, id: &str, out: &mut String) {
        let Self { generation, serving, .. } = self;
        let written = match (self.reason, serving) {
            (None, _) => writeln!(out, "[+]{id} ok: generation {generation}"),
            (Some(reason), 0) => {
                writeln!(out, "[-]{id} failed: generation {generation}: {}: {reason}: nothing serves", reason.stage())
            }
            (Some(reason), serving) => writeln!(
                out,
                "[-]{id} failed: generation {generation}: {}: {reason}: generation {serving} serves",
                reason.stage()
            ),
        };
        written.expect("writing to a String never fails");
    }

    fn text(&self, id: &str) -> String {
        let mut text = format!("policy: {id}\ngeneration: {}\nserving: {}\n", self.generation, self.serving);
        if let Some(reason) = self.reason {
            let (stage, wait) = (reason.stage(), self.wait.map(|wait| format!("next try: {}\n", from_now(wait))));
            write!(text, "stage: {stage}\nreason: {reason}\n{}", wait.unwrap_or_default())
                .expect("writing to a String never fails");
        }
        text
    }
}

async fn one(State(table): State<SharedTable>, Path(id): Path<String>) -> Response {
    let table = table.load_full();
    match table.policies.get(id.as_str()) {
        Some(policy) => {
            let health = Health::of(policy, Timestamp::now());
            respond(health.code, health.wait, health.text(policy.id.as_str()))
        }
        None if table.manifest_number == 0 => awaiting(),
        None => respond(404, None, format!("unknown policy: {}\n", quoted(&id))),
    }
}

async fn all(State(table): State<SharedTable>, RawQuery(query): RawQuery) -> Response {
    let table = table.load_full();
    if table.manifest_number == 0 {
        return awaiting();
    }
    let (code, wait, text) = summary(&table, query.as_deref().unwrap_or_default(), Timestamp::now());
    respond(code, wait, text)
}

fn awaiting() -> Response {
    let reason = Reason::AwaitingManifest;
    respond(503, Some(LATER), format!("[-]manifest failed: {}: {reason}\n", reason.stage()))
}

/// The worst code, the shortest time to the next try of a failed policy, and a line for each policy.
fn summary(table: &Table, query: &str, now: Timestamp) -> (u16, Option<Duration>, String) {
    let value = |name: &'static str| {
        query.split('&').filter_map(move |pair| match pair.split_once('=') {
            Some((key, value)) if key == name => decoded_query(value),
            None if pair == name => Some(String::new()),
            _ => None,
        })
    };
    let excluded: Vec<String> = value("exclude").collect();
    let mut policies: Vec<_> =
        table.policies.values().filter(|policy| !excluded.contains(&policy.id.to_string())).collect();
    policies.sort_by(|a, b| a.id.cmp(&b.id));
    let (mut code, mut wait, mut text) = (200, None, String::new());
    for policy in policies {
        let health = Health::of(policy, now);
        code = worst(code, health.code);
        wait = [wait, health.wait].into_iter().flatten().min();
        health.line(policy.id.as_str(), &mut text);
    }
    match code {
        200 if value("verbose").next().is_none() => (code, None, "ok\n".to_owned()),
        200 => (code, None, format!("{text}policies check passed\n")),
        _ => (code, wait.filter(|_| code == 503), format!("{text}policies check failed\n")),
    }
}

/// Decodes an id of a query, where its slashes may be encoded.
fn decoded_query(value: &str) -> Option<String> {
    let value = value.replace("%2F", "/").replace("%2f", "/");
    decoded(&value).map(|value| value.into_owned())
}

/// The worse of two codes: 500 before 503 before 200.
fn worst(a: u16, b: u16) -> u16 {
    let rank = |code| match code {
        200 => 0,
        503 => 1,
        _ => 2,
    };
    if rank(b) > rank(a) { b } else { a }
}

fn respond(code: u16, wait: Option<Duration>, text: String) -> Response {
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match wait {
        Some(wait) => (status, [(RETRY_AFTER, wait.as_secs().max(1).to_string())], text).into_response(),
        None => (status, text).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    fn failure(reason: Reason, next: Option<&str>) -> Failure {
        let mut failure = Failure::new(3, reason, "the settings say: secret", now());
        failure.next_retry_time = next.map(|time| time.parse().expect("a time"));
        failure
    }

    #[test]
    fn the_code_is_that_of_the_class() {
        for (reason, next, code, wait) in [
            (Reason::RegistryTimeout, Some("2026-01-01T00:00:40Z"), 503, Some(40)),
            (Reason::RegistryTimeout, Some("2025-01-01T00:00:40Z"), 503, Some(0)),
            (Reason::ArtifactMissing, None, 503, Some(5)),
            (Reason::NotFound, Some("2026-01-01T00:00:40Z"), 500, None),
            (Reason::SettingsInvalid, None, 500, None),
        ] {
            let health = Health::judge(3, 2, Some(&failure(reason, next)), now());
            assert_eq!((health.code, health.wait.map(|wait| wait.as_secs())), (code, wait), "{reason}");
        }
        assert_eq!(Health::judge(3, 3, None, now()).code, 200);
        assert_eq!(Health::judge(3, 2, None, now()).code, 503);
    }

    #[test]
    fn a_policy_whose_newest_generation_serves_is_healthy_unless_its_spec_cannot_be_read() {
        let judge = |serving, reason| Health::judge(3, serving, Some(&failure(reason, None)), now());
        let well = judge(3, Reason::RegistryTimeout);
        assert_eq!(well, Health { code: 200, reason: None, generation: 3, serving: 3, wait: None });
        assert_eq!(judge(3, Reason::SpecInvalid).code, 500);
        assert_eq!(judge(2, Reason::RegistryTimeout).code, 503);
    }

    #[test]
    fn names_and_reasons_and_nothing_else() {
        let health = Health::judge(3, 2, Some(&failure(Reason::SettingsInvalid, None)), now());
        assert_eq!(
            health.text("cluster/a"),
            "policy: cluster/a\ngeneration: 3\nserving: 2\nstage: load\nreason: SettingsInvalid\n"
        );
        let health = Health::judge(3, 0, Some(&failure(Reason::RegistryTimeout, Some("2026-01-01T00:00:09Z"))), now());
        assert_eq!(
            health.text("cluster/a"),
            "policy: cluster/a\ngeneration: 3\nserving: 0\nstage: fetch\nreason: RegistryTimeout\nnext try: in 9 s\n"
        );
        let mut line = String::new();
        health.line("cluster/a", &mut line);
        assert_eq!(line, "[-]cluster/a failed: generation 3: fetch: RegistryTimeout: nothing serves\n");
    }

    #[test]
    fn the_worst_code_counts() {
        for (a, b, expected) in [(200, 200, 200), (200, 503, 503), (503, 500, 500), (500, 503, 500), (500, 200, 500)] {
            assert_eq!(worst(a, b), expected);
        }
    }
}
