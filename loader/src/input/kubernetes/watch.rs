//! Watches the revisions of one namespace, and keeps trying while the API server fails.
//!
//! Changes gather for a moment before they are passed on. A failure never removes what is known.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::runtime::watcher;
use kube::{Api, Client};
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_kubernetes::{Failures, watch as watch_collection};
use portcullis_process::{Beat, Shutdown, supervised};
use prometheus::IntCounter;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::Installation;
use super::object::Object;
use super::store::Store;
use crate::input::{Desired, Snapshot};

/// How long changes gather before a snapshot is sent.
const GATHER: Duration = Duration::from_millis(20);
/// Longest time between two turns of the loop.
const TURN: Duration = Duration::from_secs(5);
/// Revisions on a page of a list. A page of the largest revisions still fits into the largest answer that is read.
const PAGE: u32 = 50;

/// Follows the revisions until the shutdown. `beat` is renewed whether or not the API server answers.
///
/// After a panic the loop starts again and lists everything again.
pub(crate) fn watch_revisions(
    client: Client,
    installation: Installation,
    errors: IntCounter,
    beat: Beat,
    shutdown: &Shutdown,
) -> Desired {
    let (sender, receiver) = watch::channel(None);
    let (token, sender) = (shutdown.clone(), Arc::new(sender));
    supervised("input", shutdown, move || {
        let follow = Follow {
            api: Api::namespaced(client.clone(), &installation.namespace),
            config: watcher::Config::default()
                .labels(&format!("{POLICY_SERVER_LABEL}={}", installation.policy_server))
                .page_size(PAGE)
                .timeout(installation.watch_seconds),
            errors: errors.clone(),
            beat: beat.clone(),
            sender: Arc::clone(&sender),
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
}

impl Follow {
    async fn run(self, shutdown: Shutdown) {
        tokio::select! {
            () = shutdown.begun() => {}
            () = self.watch() => {}
        }
    }

    async fn watch(self) {
        let Self { api, config, errors, beat, sender } = self;
        let mut store = Store::default();
        let list_and_watch = || {
            let errors = errors.clone();
            let failures = Failures::new("watch the revisions", move |_| errors.inc());
            watch_collection(api.clone(), config.clone(), failures)
        };
        let mut events = pin!(list_and_watch());
        let mut tell_at: Option<Instant> = None;
        loop {
            beat.now();
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
                // The timer comes first: a steady stream of changes must not put off the snapshot.
                biased;
                () = tell => {
                    tell_at = None;
                    if let Some(snapshot) = store.snapshot() {
                        sender.send_replace(Some(Arc::new(snapshot)));
                    }
                    if store.take_list_wish() {
                        events.set(list_and_watch());
                    }
                }
                event = events.next() => {
                    let Some(event) = event else { return };
                    if store.take(event, std::time::Instant::now()) {
                        tell_at.get_or_insert(Instant::now() + GATHER);
                    }
                }
                () = sleep(TURN) => {}
            }
        }
    }
}
