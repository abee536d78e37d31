//! Loader and evaluator are followed by long poll, each by a task of its own, for ever.

use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use portcullis_contract::{EvaluatorState, LoaderState};
use portcullis_process::{FollowError, Follower};
use prometheus::IntCounter;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

/// First pause after a failed attempt; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What a follower has to tell.
#[derive(Debug)]
pub enum News {
    /// The loader's state has changed.
    Loader(Box<LoaderState>),
    /// The evaluator's state has changed.
    Evaluator(Box<EvaluatorState>),
    /// The loader cannot be asked.
    LoaderSilent(Silence),
    /// The evaluator cannot be asked.
    EvaluatorSilent(Silence),
}

/// Why a program could not be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silence {
    /// Why, in words.
    pub words: String,
    /// When this was noticed.
    pub since: Timestamp,
    /// There is no connection, as when the program restarts. Otherwise it hangs, or its answer makes no sense.
    pub may_be_a_restart: bool,
}

impl Silence {
    fn of(error: &FollowError) -> Self {
        let (words, may_be_a_restart) = match error {
            FollowError::Http { url, source } => {
                (format!("{url}: {}", root_cause(source)), !source.is_timeout() && !source.is_status())
            }
            FollowError::Silent { .. } | FollowError::TooLarge { .. } | FollowError::Malformed { .. } => {
                (error.to_string(), false)
            }
        };
        Self { words: portcullis_contract::clean(&words, 512), since: Timestamp::now(), may_be_a_restart }
    }
}

/// Follows the loader until the receiver is gone.
///
/// # Errors
/// When no HTTP client can be made.
pub async fn loader(address: SocketAddr, failures: IntCounter, news: mpsc::Sender<News>) -> Result<(), FollowError> {
    let wrap = |state: LoaderState| News::Loader(Box::new(state));
    follow(address, |state: &LoaderState| state.version, wrap, News::LoaderSilent, failures, news).await
}

/// Follows the evaluator until the receiver is gone.
///
/// # Errors
/// When no HTTP client can be made.
pub async fn evaluator(address: SocketAddr, failures: IntCounter, news: mpsc::Sender<News>) -> Result<(), FollowError> {
    let wrap = |state: EvaluatorState| News::Evaluator(Box::new(state));
    follow(address, |state: &EvaluatorState| state.version, wrap, News::EvaluatorSilent, failures, news).await
}

async fn follow<T: DeserializeOwned>(
    address: SocketAddr,
    version: impl Fn(&T) -> u64,
    wrap: impl Fn(T) -> News,
    silent: impl Fn(Silence) -> News,
    failures: IntCounter,
    news: mpsc::Sender<News>,
) -> Result<(), FollowError> {
    let mut follower = Follower::<T>::new(address)?;
    let mut pause = FIRST_PAUSE;
    loop {
        let told = match follower.next(&version).await {
            Ok(state) => {
                pause = FIRST_PAUSE;
                news.send(wrap(state)).await
            }
            Err(error) => {
                failures.inc();
                tracing::debug!(%error, "failed to follow");
                let sent = news.send(silent(Silence::of(&error))).await;
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                sent
            }
        };
        if told.is_err() {
            return Ok(());
        }
    }
}

/// What lies at the bottom, for instance "Connection refused (os error 111)".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    deepest.to_string()
}
