//! A document that other programs follow by long poll.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Longest time that a reader waits for a change.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The newest version of a document, with a number that grows with each change of it.
pub struct StateFeed<T>(Arc<watch::Sender<(u64, Arc<T>)>>);

impl<T> Clone for StateFeed<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: PartialEq> StateFeed<T> {
    /// A feed. Versions begin at the time of the start in milliseconds, so that a reader with a version from before a restart
    /// gets an answer at once.
    pub fn new(mut first: T, numbered: impl Fn(&mut T, u64)) -> Self {
        let version = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(1);
        numbered(&mut first, version);
        Self(Arc::new(watch::Sender::new((version, Arc::new(first)))))
    }

    /// Publishes a document. One that equals the last one changes nothing and wakes no reader. `numbered` writes the version
    /// into the document; for the comparison, the new document gets the version of the last one.
    pub fn publish(&self, mut next: T, numbered: impl Fn(&mut T, u64)) {
        let mut next = Some({
            numbered(&mut next, self.0.borrow().0);
            next
        });
        self.0.send_if_modified(|(version, last)| {
            let Some(mut next) = next.take().filter(|next| *next != **last) else { return false };
            *version += 1;
            numbered(&mut next, *version);
            *last = Arc::new(next);
            true
        });
    }

    /// The newest document.
    pub fn latest(&self) -> Arc<T> {
        Arc::clone(&self.0.borrow().1)
    }

    /// The newest document's version.
    pub fn version(&self) -> u64 {
        self.0.borrow().0
    }

    /// Waits until the version differs from `since`, but no longer than `longest`, and returns the newest document.
    pub async fn after(&self, since: u64, longest: Duration) -> Arc<T> {
        let mut receiver = self.0.subscribe();
        let changed = receiver.wait_for(|(version, _)| *version != since);
        // A timeout is not a failure: the reader gets the document that it has already.
        let _ = tokio::time::timeout(longest, changed).await;
        self.latest()
    }
}

#[derive(Deserialize)]
struct Since {
    #[serde(default)]
    since: u64,
    /// Longest wait, in milliseconds.
    wait: Option<u64>,
}

/// `GET /v1/state?since=<version>`: the document as JSON, at once if its version differs from `since`, otherwise as soon as
/// it does (after 30 s at most).
///
/// With `&wait=<milliseconds>` the answer comes after that time at the latest, and is 204 without a body if the document is
/// still the same. So a reader learns within seconds that this program hangs, and an unchanged document costs nothing.
pub fn state_route<T: PartialEq + Serialize + Send + Sync + 'static>(feed: StateFeed<T>) -> Router {
    Router::new().route("/v1/state", get(state::<T>)).with_state(feed)
}

async fn state<T: PartialEq + Serialize + Send + Sync>(
    State(feed): State<StateFeed<T>>,
    Query(Since { since, wait }): Query<Since>,
) -> impl IntoResponse {
    let longest = wait.map_or(LONGEST_WAIT, |wait| Duration::from_millis(wait).min(LONGEST_WAIT));
    let document = feed.after(since, longest).await;
    if wait.is_some() && feed.version() == since {
        return http::StatusCode::NO_CONTENT.into_response();
    }
    match serde_json::to_vec(&*document) {
        Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (http::StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(document: &mut (u64, &str), version: u64) {
        document.0 = version;
    }

    #[tokio::test]
    async fn a_reader_waits_for_the_next_version() {
        let feed = StateFeed::new((0, "a"), number);
        let first = feed.latest().0;
        let reader = tokio::spawn({
            let feed = feed.clone();
            async move { feed.after(first, Duration::from_secs(60)).await }
        });
        feed.publish((0, "b"), number);
        assert_eq!(*reader.await.expect("joins"), (first + 1, "b"));
    }

    #[tokio::test]
    async fn an_equal_document_wakes_nobody() {
        let feed = StateFeed::new((0, "a"), number);
        let first = feed.latest();
        feed.publish((0, "a"), number);
        assert_eq!(feed.after(first.0, Duration::from_millis(1)).await, first);
    }

    #[tokio::test]
    async fn a_reader_from_before_a_restart_is_told_at_once() {
        let feed = StateFeed::new((0, "a"), number);
        assert_eq!(feed.after(5, Duration::from_secs(3600)).await.1, "a");
    }
}
