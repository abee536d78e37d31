//! Following another program's state by long poll.

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use serde::de::DeserializeOwned;

/// Largest state document that is read, in bytes.
const LARGEST: usize = 64 << 20;

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
        /// What was read.
        url: String,
        /// Why.
        source: reqwest::Error,
    },
    /// The answer is beyond the size limit.
    #[error("the answer of {url} is larger than {LARGEST} bytes")]
    TooLarge {
        /// What was read.
        url: String,
    },
    /// The answer is no such document.
    #[error("failed to decode the answer of {url}: {source}")]
    Malformed {
        /// What was read.
        url: String,
        /// Why.
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
        let client = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(Duration::from_secs(2))
            // The other side waits 30 s at most before it answers.
            .timeout(Duration::from_secs(35))
            .build()
            .map_err(|source| FollowError::Http { url: url.clone(), source })?;
        Ok(Self { client, url, since: 0, document: PhantomData })
    }

    /// The next document: at once the first time and after an error, else when it has changed (or after 30 s, unchanged).
    /// `version` tells a document's version.
    ///
    /// # Errors
    /// When the other side cannot be asked; the caller waits a moment and calls again.
    pub async fn next(&mut self, version: impl Fn(&T) -> u64) -> Result<T, FollowError> {
        let since = std::mem::take(&mut self.since);
        let document = self.get(since).await?;
        self.since = version(&document);
        Ok(document)
    }

    async fn get(&self, since: u64) -> Result<T, FollowError> {
        let http = |source| FollowError::Http { url: self.url.clone(), source };
        let request = self.client.get(&self.url).query(&[("since", since)]);
        let mut response = request.send().await.and_then(reqwest::Response::error_for_status).map_err(http)?;
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(http)? {
            if body.len() + piece.len() > LARGEST {
                return Err(FollowError::TooLarge { url: self.url.clone() });
            }
            body.extend_from_slice(&piece);
        }
        serde_json::from_slice(&body).map_err(|source| FollowError::Malformed { url: self.url.clone(), source })
    }
}
