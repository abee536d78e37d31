//! Follows another program's state by long poll.

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::{format_bytes, loopback};

/// Largest state document that is read, in bytes.
const LARGEST: usize = 64 << 20;
/// How long the other program may hold a request open until its state changes.
const WAIT: Duration = Duration::from_secs(1);
/// Longest time for an answer in addition to [`WAIT`]: a program that hangs is noticed after three seconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest time for a whole answer; its size is limited as well.
const LONGEST: Duration = Duration::from_secs(20);

/// Reads one `/v1/state` again and again.
pub struct Follower<T> {
    client: reqwest::Client,
    url: String,
    since: u64,
    document: PhantomData<fn() -> T>,
}

/// Why a state could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// No connection, no answer in time, or a broken one.
    #[error("failed to read {url}: {source}")]
    Http {
        /// The URL that was read.
        url: String,
        /// The error of the HTTP client.
        source: reqwest::Error,
    },
    /// The connection stands, but no answer comes.
    #[error("{url} accepts a connection and does not answer")]
    Silent {
        /// The URL that was read.
        url: String,
    },
    /// The answer is beyond the size limit.
    #[error("the answer of {url} is larger than {}", format_bytes(LARGEST as u64))]
    TooLarge {
        /// The URL that was read.
        url: String,
    },
    /// The answer is not such a document.
    #[error("failed to decode the answer of {url}: {source}")]
    Malformed {
        /// The URL that was read.
        url: String,
        /// The error of the JSON parser.
        source: serde_json::Error,
    },
}

impl<T: DeserializeOwned> Follower<T> {
    /// Follows the program whose state port is `address`, which must be on the loopback.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(address: SocketAddr) -> Result<Self, FollowError> {
        let url = format!("http://{address}/v1/state");
        let client = loopback::client(LONGEST).map_err(|source| FollowError::Http { url: url.clone(), source })?;
        Ok(Self { client, url, since: 0, document: PhantomData })
    }

    /// The next document: at once the first time and after an error, otherwise as soon as it has changed. `version`
    /// returns a document's version. While this waits, the other program is asked every second, so that an end of that
    /// program is soon an error here.
    ///
    /// # Errors
    /// When the other program cannot be asked or does not answer; the caller should wait a moment and call again.
    pub async fn next(&mut self, version: impl Fn(&T) -> u64) -> Result<T, FollowError> {
        let since = std::mem::take(&mut self.since);
        let document = loop {
            if let Some(document) = self.get(since).await? {
                break document;
            }
        };
        self.since = version(&document);
        Ok(document)
    }

    /// The document; `None` if it still has the version `since`.
    async fn get(&self, since: u64) -> Result<Option<T>, FollowError> {
        let http = |source| FollowError::Http { url: self.url.clone(), source };
        let wait = u64::try_from(WAIT.as_millis()).unwrap_or(1000);
        let request = self.client.get(&self.url).query(&[("since", since), ("wait", wait)]);
        let mut response = tokio::time::timeout(WAIT + PATIENCE, request.send())
            .await
            .map_err(|_| FollowError::Silent { url: self.url.clone() })?
            .and_then(reqwest::Response::error_for_status)
            .map_err(http)?;
        if response.status() == reqwest::StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(http)? {
            if body.len() + piece.len() > LARGEST {
                return Err(FollowError::TooLarge { url: self.url.clone() });
            }
            body.extend_from_slice(&piece);
        }
        serde_json::from_slice(&body)
            .map(Some)
            .map_err(|source| FollowError::Malformed { url: self.url.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ProbeServer, StateFeed, state_route};

    fn number(document: &mut (u64, String), version: u64) {
        document.0 = version;
    }

    #[tokio::test]
    async fn a_change_is_told_and_an_unchanged_document_is_waited_for() {
        crate::install_crypto();
        let feed = StateFeed::new((0, "a".to_owned()), number);
        let mut server = ProbeServer::new();
        let address = server.port(([127, 0, 0, 1], 0).into(), state_route(feed.clone())).expect("binds");
        server.start().expect("starts");
        let mut follower = Follower::<(u64, String)>::new(address).expect("a client");
        assert_eq!(follower.next(|document| document.0).await.expect("answers").1, "a");
        let changed = tokio::spawn(async move { follower.next(|document| document.0).await });
        // Longer than one wait, so that at least one answer says "the same".
        tokio::time::sleep(WAIT + WAIT / 5).await;
        feed.publish((0, "b".to_owned()), number);
        assert_eq!(changed.await.expect("joins").expect("answers").1, "b");
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_noticed() {
        crate::install_crypto();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let mut follower = Follower::<u64>::new(listener.local_addr().expect("an address")).expect("a client");
        let error = follower.next(|version| *version).await.expect_err("no answer comes");
        assert!(matches!(error, FollowError::Silent { .. }), "{error}");
    }
}
