//! Asking for a Lease and keeping it.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;

use super::decide::{LeaseSettings, Seen, Step, given_up};

/// Longest time for giving a Lease up: a program that ends does not wait for an API server that is away.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(2);
/// Longest time for one question; shorter than what a leader trusts its Lease for.
const QUESTION_LIMIT: Duration = Duration::from_secs(4);

/// Whether this program leads. To be asked before each write.
#[derive(Debug, Clone)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

impl Leadership {
    /// Whether it does now. False as soon as its own time has run out, whatever became of the renewal.
    pub fn is_held(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Waits until it leads.
    pub async fn held(&mut self) {
        while !self.is_held() {
            self.changed().await;
        }
    }

    /// Waits until a renewal, a loss, or the end of its time. For ever where nothing can change any more.
    pub async fn changed(&mut self) {
        let until = *self.0.borrow_and_update();
        let over = async {
            match until.filter(|until| *until > Instant::now()) {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.0.changed() => if changed.is_err() { std::future::pending::<()>().await },
            () = over => {}
        }
    }
}

/// Asks for the Lease, keeps it, and gives it up when `end` is over. The future is to be spawned and awaited until it ends.
pub fn hold_lease(
    client: Client,
    settings: LeaseSettings,
    end: impl Future<Output = ()> + Send,
) -> (Leadership, impl Future<Output = ()> + Send) {
    let (sender, receiver) = watch::channel(None);
    let leases: Api<Lease> = Api::namespaced(client, &settings.namespace);
    let future = async move {
        let holder = Holder { leases, settings, sender };
        tokio::select! {
            () = holder.keep() => {}
            () = end => {}
        }
        let led = holder.sender.send_replace(None).is_some();
        if led {
            let _ = tokio::time::timeout(GIVE_UP_LIMIT, holder.give_up()).await;
        }
    };
    (Leadership(receiver), future)
}

struct Holder {
    leases: Api<Lease>,
    settings: LeaseSettings,
    sender: watch::Sender<Option<Instant>>,
}

/// How a turn went.
enum Turn {
    Held,
    /// Somebody else was quicker, or holds it.
    Others,
    Failed(String),
}

impl Holder {
    async fn keep(&self) {
        let (mut seen, mut troubled) = (Seen::default(), false);
        let LeaseSettings { namespace, name, identity, .. } = &self.settings;
        loop {
            let began = Instant::now();
            let turn = tokio::time::timeout(QUESTION_LIMIT, self.turn(&mut seen)).await;
            let turn = turn.unwrap_or_else(|_| Turn::Failed("the API server does not answer".to_owned()));
            let led = self.sender.borrow().is_some();
            match turn {
                Turn::Held => {
                    if !led {
                        tracing::info!(lease = name, namespace, identity, "leading");
                    }
                    self.sender.send_replace(Some(began + self.settings.trusted()));
                }
                Turn::Others => self.lost(led),
                Turn::Failed(ref error) => {
                    if !troubled {
                        tracing::warn!(lease = name, namespace, %error, "failed to renew or read the Lease; it is tried again");
                    }
                    // What is held stays held until its own time is over.
                    if self.sender.borrow().is_some_and(|until| Instant::now() >= until) {
                        self.lost(led);
                    }
                }
            }
            let failed = matches!(turn, Turn::Failed(_));
            if troubled && !failed {
                tracing::info!(lease = name, namespace, "the Lease can be read and renewed again");
            }
            troubled = failed;
            let wait = if failed { self.settings.renew / 4 } else { self.settings.renew };
            tokio::time::sleep(wait.mul_f64(0.9 + 0.2 * crate::random())).await;
        }
    }

    fn lost(&self, led: bool) {
        if led {
            tracing::warn!(lease = self.settings.name, "leading no longer");
            self.sender.send_replace(None);
        }
    }

    async fn turn(&self, seen: &mut Seen) -> Turn {
        let found = match self.leases.get_opt(&self.settings.name).await {
            Ok(found) => found,
            Err(error) => return Turn::Failed(error.to_string()),
        };
        let params = PostParams {
            field_manager: Some(self.settings.identity.chars().take(128).collect()),
            ..PostParams::default()
        };
        let written = match seen.step(&self.settings, found, Instant::now(), Timestamp::now()) {
            Step::Wait { holder } => {
                tracing::debug!(lease = self.settings.name, holder, "somebody else leads");
                return Turn::Others;
            }
            Step::Create(lease) => self.leases.create(&params, &lease).await,
            Step::Replace(lease) => self.leases.replace(&self.settings.name, &params, &lease).await,
        };
        match written {
            Ok(_) => Turn::Held,
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Turn::Others,
            Err(error) => Turn::Failed(error.to_string()),
        }
    }

    async fn give_up(&self) {
        let params = PostParams::default();
        let Ok(Some(lease)) = self.leases.get_opt(&self.settings.name).await else { return };
        if let Some(lease) = given_up(lease, &self.settings.identity) {
            let written = self.leases.replace(&self.settings.name, &params, &lease).await;
            tracing::debug!(lease = self.settings.name, ok = written.is_ok(), "gave the Lease up");
        }
    }
}
