//! Watching the revisions of one namespace, for as long as it takes.
//!
//! The watcher of `kube` lists in pages, keeps its place with bookmarks, limits each watch in time (and 5 s more where
//! the API server says nothing at all), starts over after 410 and waits with jitter after failures. What is added here: a list
//! that stands still is started again, changes gather for a moment, and nothing that fails takes away what is known.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_process::{Beat, Shutdown};
use prometheus::IntCounter;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::Installation;
use super::object::Object;
use super::store::Store;
use crate::input::{Desired, Snapshot};

/// How long changes gather before a snapshot is sent.
const GATHER: Duration = Duration::from_millis(20);
/// Longest silence while a list is on its way; longer than the longest wait after a failure.
const LIST_SILENCE: Duration = Duration::from_secs(120);
/// How often the loop turns at least.
const TURN: Duration = Duration::from_secs(5);
/// Longest text of a failure in the log, in bytes.
const TEXT: usize = 500;

/// Follows the revisions until the shutdown. `beat` turns whether or not the API server answers.
///
/// A panic of the loop ends in a new one, which lists everything again.
pub(crate) fn watch_revisions(
    client: Client,
    installation: Installation,
    errors: IntCounter,
    beat: Beat,
    shutdown: &Shutdown,
) -> Desired {
    let (sender, receiver) = watch::channel(None);
    let (token, sender) = (shutdown.clone(), Arc::new(sender));
    crate::supervise::forever("input", shutdown, move || {
        let follow = Follow {
            api: Api::namespaced(client.clone(), &installation.namespace),
            config: watcher::Config::default()
                .labels(&format!("{POLICY_SERVER_LABEL}={}", installation.policy_server))
                .timeout(installation.watch_seconds),
            errors: errors.clone(),
            beat: beat.clone(),
            sender: Arc::clone(&sender),
            told: None,
        };
        follow.run(token.clone())
    });
    receiver
}

struct Follow {
    api: Api<Object>,
    config: watcher::Config,
    errors: IntCounter,
    beat: Beat,
    sender: Arc<watch::Sender<Option<Arc<Snapshot>>>>,
    /// The failure that the log knows of.
    told: Option<String>,
}

impl Follow {
    async fn run(mut self, shutdown: Shutdown) {
        let mut store = Store::default();
        while !shutdown.has_begun() {
            tokio::select! {
                () = shutdown.begun() => {}
                () = self.watch(&mut store) => {}
            }
        }
    }

    /// One watcher; ends when it stands still, or when it says that it is at its end.
    async fn watch(&mut self, store: &mut Store) {
        let mut events = pin!(watcher(self.api.clone(), self.config.clone()).default_backoff());
        let mut heard = Instant::now();
        let mut tell_at: Option<Instant> = None;
        loop {
            self.beat.now();
            if store.forget(std::time::Instant::now()) {
                tell_at.get_or_insert(Instant::now());
            }
            let tell = async {
                match tell_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Changes that never end must not put off telling them.
                biased;
                () = tell => {
                    tell_at = None;
                    if let Some(snapshot) = store.snapshot() {
                        self.sender.send_replace(Some(Arc::new(snapshot)));
                    }
                }
                event = events.next() => {
                    heard = Instant::now();
                    match event {
                        Some(Ok(event)) => {
                            // A list that begins has not worked yet.
                            if !matches!(event, watcher::Event::Init) && self.told.take().is_some() {
                                tracing::info!("the API server tells of the revisions again");
                            }
                            if store.take(event, std::time::Instant::now()) {
                                tell_at.get_or_insert(heard + GATHER);
                            }
                        }
                        Some(Err(error)) => self.failed(&error),
                        None => return,
                    }
                }
                () = sleep(TURN) => {
                    if store.is_listing() && heard.elapsed() > LIST_SILENCE {
                        tracing::warn!("the list of the revisions stands still; it is begun again");
                        return;
                    }
                }
            }
        }
    }

    fn failed(&mut self, error: &watcher::Error) {
        self.errors.inc();
        let text = portcullis_contract::clean(&whole(error), TEXT);
        if self.told.as_ref() != Some(&text) {
            tracing::warn!(
                problem = text,
                "the revisions cannot be watched; what is known of them goes on, and it is tried again"
            );
            self.told = Some(text);
        }
    }
}

/// An error with its causes, as far as they say more.
fn whole(error: &watcher::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
