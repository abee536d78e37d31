//! Follows the states of loader and evaluator by long polling, each in a task of its own.

use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use portcullis_contract::{EvaluatorState, LoaderState};
use portcullis_kubernetes::root_cause;
use portcullis_process::{FollowError, Follower};
use portcullis_util::Backoff;
use prometheus::IntCounter;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

/// The pauses after failures.
const BACKOFF: Backoff = Backoff { shortest: Duration::from_millis(50), longest: Duration::from_secs(1) };

/// An update that a follower sends.
#[derive(Debug)]
pub enum Update {
    /// The loader's state has changed.
    Loader(Box<LoaderState>),
    /// The evaluator's state has changed.
    Evaluator(Box<EvaluatorState>),
    /// The loader does not answer.
    LoaderOutage(Outage),
    /// The evaluator does not answer.
    EvaluatorOutage(Outage),
}

/// A program that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// The error, as a message.
    pub words: String,
    /// When this was noticed.
    pub since: Timestamp,
    /// Whether there is no connection, as when the program restarts. Otherwise it hangs, or its answer cannot be read.
    pub may_be_a_restart: bool,
}

impl Outage {
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
pub async fn loader(
    address: SocketAddr,
    failures: IntCounter,
    updates: mpsc::Sender<Update>,
) -> Result<(), FollowError> {
    let wrap = |state: LoaderState| Update::Loader(Box::new(state));
    follow(address, |state: &LoaderState| state.version, wrap, Update::LoaderOutage, failures, updates).await
}

/// Follows the evaluator until the receiver is gone.
///
/// # Errors
/// When no HTTP client can be made.
pub async fn evaluator(
    address: SocketAddr,
    failures: IntCounter,
    updates: mpsc::Sender<Update>,
) -> Result<(), FollowError> {
    let wrap = |state: EvaluatorState| Update::Evaluator(Box::new(state));
    follow(address, |state: &EvaluatorState| state.version, wrap, Update::EvaluatorOutage, failures, updates).await
}

async fn follow<T: DeserializeOwned>(
    address: SocketAddr,
    version: impl Fn(&T) -> u64,
    wrap: impl Fn(T) -> Update,
    outage: impl Fn(Outage) -> Update,
    failures: IntCounter,
    updates: mpsc::Sender<Update>,
) -> Result<(), FollowError> {
    let mut follower = Follower::<T>::new(address)?;
    let mut failed = 0;
    loop {
        let sent = match follower.next(&version).await {
            Ok(state) => {
                failed = 0;
                updates.send(wrap(state)).await
            }
            Err(error) => {
                failures.inc();
                failed += 1;
                tracing::debug!(%error, "failed to follow");
                let sent = updates.send(outage(Outage::of(&error))).await;
                tokio::time::sleep(BACKOFF.wait(failed, fastrand::f64())).await;
                sent
            }
        };
        if sent.is_err() {
            return Ok(());
        }
    }
}
