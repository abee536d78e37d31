//! How users and namespaces that apply policies share the checks of a replica.
//!
//! Of the checks that are admitted, only some run at a time; the others wait for a place, but only for a part of their time: the rest is
//! for the check itself. When the limit of admitted checks is reached, further ones are refused at once, so that a flood takes neither
//! memory nor the places of others.

use std::sync::Arc;
use std::time::Instant;

use portcullis_contract::{MAX_CHECKS, Tenant};
use portcullis_process::KeyedPermits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

/// Checks of one user that run at the same time.
const USER: usize = 4;
/// Checks of one namespace that run at the same time; those of ClusterPolicies together count as one namespace.
const TENANT: usize = 6;
/// How many times as many checks may be under way, waiting ones included, as may run.
const WAITING: usize = 4;

/// The places of a replica.
pub(super) struct Places {
    under_way: Shares,
    running: Shares,
}

/// The right to have one policy checked.
pub(super) struct Place {
    _under_way: [OwnedSemaphorePermit; 3],
    _running: [OwnedSemaphorePermit; 3],
}

/// Why a policy is not checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoPlace {
    /// Its author has too many checks under way.
    #[error("too many policies of this user are being checked on this replica")]
    User,
    /// Its namespace, or ClusterPolicies together, have too many.
    #[error("too many policies of this namespace are being checked on this replica")]
    Namespace,
    /// Too many checks are under way on this replica.
    #[error("too many policies are being checked on this replica")]
    Replica,
}

/// A number of permits for each user, each tenant and all together.
struct Shares {
    users: KeyedPermits<String>,
    tenants: KeyedPermits<Tenant>,
    all: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            under_way: Shares::new(USER * WAITING, TENANT * WAITING, MAX_CHECKS * WAITING),
            running: Shares::new(USER, TENANT, MAX_CHECKS),
        }
    }
}

impl Places {
    /// A place for a policy that this user applies in this namespace. Waits for it until `until`.
    ///
    /// # Errors
    /// At once when too many are under way, and at `until` when too many run.
    pub(super) async fn take(&self, user: &str, tenant: &Tenant, until: Instant) -> Result<Place, NoPlace> {
        let user = user.to_owned();
        let under_way = self.under_way.try_take(&user, tenant)?;
        let running = self.running.take(&user, tenant, until).await?;
        Ok(Place { _under_way: under_way, _running: running })
    }
}

impl Shares {
    fn new(user: usize, tenant: usize, all: usize) -> Self {
        Self { users: KeyedPermits::new(user), tenants: KeyedPermits::new(tenant), all: Arc::new(Semaphore::new(all)) }
    }

    fn try_take(&self, user: &String, tenant: &Tenant) -> Result<[OwnedSemaphorePermit; 3], NoPlace> {
        let user = self.users.try_take(user).ok_or(NoPlace::User)?;
        let tenant = self.tenants.try_take(tenant).ok_or(NoPlace::Namespace)?;
        let all = Arc::clone(&self.all).try_acquire_owned().map_err(|_| NoPlace::Replica)?;
        Ok([user, tenant, all])
    }

    /// Takes the permits in this order, so that a check that waits for the share of its user or namespace holds nothing that others wait for.
    async fn take(&self, user: &String, tenant: &Tenant, until: Instant) -> Result<[OwnedSemaphorePermit; 3], NoPlace> {
        let until = until.into();
        let user = timeout_at(until, self.users.take(user)).await.map_err(|_| NoPlace::User)?;
        let tenant = timeout_at(until, self.tenants.take(tenant)).await.map_err(|_| NoPlace::Namespace)?;
        let all = timeout_at(until, Arc::clone(&self.all).acquire_owned()).await.map_err(|_| NoPlace::Replica)?;
        Ok([user, tenant, all.expect("it is never closed")])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::join_all;

    use super::*;

    fn soon(seconds: u64) -> Instant {
        (tokio::time::Instant::now() + Duration::from_secs(seconds)).into_std()
    }

    fn team(name: &str) -> Tenant {
        Tenant::Namespace(name.into())
    }

    /// The results of `number` calls of this user in this namespace, made at the same time.
    async fn flood(places: &Places, user: &str, tenant: &Tenant, number: usize) -> Vec<Result<Place, NoPlace>> {
        let until = soon(1);
        join_all((0..number).map(|_| places.take(user, tenant, until))).await
    }

    fn placed(results: &[Result<Place, NoPlace>]) -> usize {
        results.iter().filter(|result| result.is_ok()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_user_or_namespace_leaves_room_for_others() {
        let places = Places::default();
        let mallory = flood(&places, "mallory", &team("a"), 50).await;
        assert_eq!(placed(&mallory), USER);
        assert!(mallory.iter().filter_map(|result| result.as_ref().err()).all(|error| *error == NoPlace::User));
        let bob = flood(&places, "bob", &team("a"), 1).await;
        assert_eq!(placed(&bob), 1);
        let eve = flood(&places, "eve", &team("a"), 4).await;
        assert_eq!((placed(&eve), eve[3].as_ref().err()), (TENANT - USER - 1, Some(&NoPlace::Namespace)));
        assert_eq!(placed(&flood(&places, "alice", &team("b"), 1).await), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_replica_has_an_end_too() {
        let places = Places::default();
        let mut held = Vec::new();
        for number in 0..MAX_CHECKS {
            held.extend(flood(&places, &format!("user-{number}"), &team(&format!("team-{number}")), 1).await);
        }
        assert_eq!(placed(&held), MAX_CHECKS);
        let more = flood(&places, "alice", &team("b"), 1).await;
        assert_eq!(more[0].as_ref().err(), Some(&NoPlace::Replica));
        drop(held);
        assert_eq!(placed(&flood(&places, "alice", &team("b"), 1).await), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_others_running_waits_and_who_has_too_many_waiting_does_not() {
        let places = Places::default();
        let running = flood(&places, "alice", &team("a"), USER).await;
        let started = tokio::time::Instant::now();
        let tenant = team("a");
        let (results, ()) = tokio::join!(flood(&places, "alice", &tenant, USER * WAITING), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            drop(running);
        });
        assert_eq!(placed(&results), USER, "as soon as the others end");
        assert!(started.elapsed() >= Duration::from_millis(300));
        drop(results);
        let _running = flood(&places, "alice", &team("a"), USER).await;
        let waiting = (0..USER * (WAITING - 1)).map(|_| async {
            let until = soon(60);
            places.take("alice", &team("a"), until).await.map(drop)
        });
        let one_more = async {
            let started = tokio::time::Instant::now();
            let one = places.take("alice", &team("a"), soon(60)).await;
            (one.err(), started.elapsed())
        };
        let mut waiting = Box::pin(join_all(waiting));
        let turned_away = tokio::select! {
            biased;
            _ = &mut waiting => panic!("nothing ends"),
            turned_away = one_more => turned_away,
        };
        assert_eq!(turned_away, (Some(NoPlace::User), Duration::ZERO));
    }
}
