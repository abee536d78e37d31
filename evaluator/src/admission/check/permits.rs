//! How users and namespaces that apply policies share the checks of a replica.
//!
//! Of the checks that are admitted, only some run at a time; the others wait for a permit, but only for a part of their time: the rest is
//! for the check itself. When the limit of admitted checks is reached, further ones are refused at once, so that a flood takes neither
//! memory nor the permits of others.

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

/// The permits of a replica.
pub(super) struct Permits {
    under_way: Shares,
    running: Shares,
}

/// The right to have one policy checked.
pub(super) struct Permit {
    _under_way: [OwnedSemaphorePermit; 3],
    _running: [OwnedSemaphorePermit; 3],
}

/// Why a policy is not checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoPermit {
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

impl Default for Permits {
    fn default() -> Self {
        Self {
            under_way: Shares::new(USER * WAITING, TENANT * WAITING, MAX_CHECKS * WAITING),
            running: Shares::new(USER, TENANT, MAX_CHECKS),
        }
    }
}

impl Permits {
    /// A permit for a policy that this user applies in this namespace. Waits for it until `until`.
    ///
    /// # Errors
    /// At once when too many are under way, and at `until` when too many run.
    pub(super) async fn take(&self, user: &str, tenant: &Tenant, until: Instant) -> Result<Permit, NoPermit> {
        let user = user.to_owned();
        let under_way = self.under_way.try_take(&user, tenant)?;
        let running = self.running.take(&user, tenant, until).await?;
        Ok(Permit { _under_way: under_way, _running: running })
    }
}

impl Shares {
    fn new(user: usize, tenant: usize, all: usize) -> Self {
        Self { users: KeyedPermits::new(user), tenants: KeyedPermits::new(tenant), all: Arc::new(Semaphore::new(all)) }
    }

    fn try_take(&self, user: &String, tenant: &Tenant) -> Result<[OwnedSemaphorePermit; 3], NoPermit> {
        let user = self.users.try_take(user).ok_or(NoPermit::User)?;
        let tenant = self.tenants.try_take(tenant).ok_or(NoPermit::Namespace)?;
        let all = Arc::clone(&self.all).try_acquire_owned().map_err(|_| NoPermit::Replica)?;
        Ok([user, tenant, all])
    }

    /// Takes the permits in this order, so that a check that waits for the share of its user or namespace holds nothing that others wait for.
    async fn take(
        &self,
        user: &String,
        tenant: &Tenant,
        until: Instant,
    ) -> Result<[OwnedSemaphorePermit; 3], NoPermit> {
        let until = until.into();
        let user = timeout_at(until, self.users.take(user)).await.map_err(|_| NoPermit::User)?;
        let tenant = timeout_at(until, self.tenants.take(tenant)).await.map_err(|_| NoPermit::Namespace)?;
        let all = timeout_at(until, Arc::clone(&self.all).acquire_owned()).await.map_err(|_| NoPermit::Replica)?;
        Ok([user, tenant, all.expect("it is never closed")])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::join_all;
    use futures::stream::FuturesUnordered;
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;

    /// Later than any test ends.
    fn late() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn team(name: &str) -> Tenant {
        Tenant::Namespace(name.into())
    }

    /// The results of `number` calls of this user in this namespace, made at the same time. What is free is taken at once, however soon the
    /// time of the calls is over.
    async fn flood(permits: &Permits, user: &str, tenant: &Tenant, number: usize) -> Vec<Result<Permit, NoPermit>> {
        let until = Instant::now() + Duration::from_millis(200);
        join_all((0..number).map(|_| permits.take(user, tenant, until))).await
    }

    fn permitted(results: &[Result<Permit, NoPermit>]) -> usize {
        results.iter().filter(|result| result.is_ok()).count()
    }

    #[tokio::test]
    async fn a_flood_of_one_user_or_namespace_leaves_room_for_others() {
        let permits = Permits::default();
        let mallory = flood(&permits, "mallory", &team("a"), 50).await;
        assert_eq!(permitted(&mallory), USER);
        assert!(mallory.iter().filter_map(|result| result.as_ref().err()).all(|error| *error == NoPermit::User));
        let bob = flood(&permits, "bob", &team("a"), 1).await;
        assert_eq!(permitted(&bob), 1);
        let eve = flood(&permits, "eve", &team("a"), 4).await;
        assert_eq!((permitted(&eve), eve[3].as_ref().err()), (TENANT - USER - 1, Some(&NoPermit::Namespace)));
        assert_eq!(permitted(&flood(&permits, "alice", &team("b"), 1).await), 1);
    }

    #[tokio::test]
    async fn the_replica_has_an_end_too() {
        let permits = Permits::default();
        let mut held = Vec::new();
        for number in 0..MAX_CHECKS {
            held.extend(flood(&permits, &format!("user-{number}"), &team(&format!("team-{number}")), 1).await);
        }
        assert_eq!(permitted(&held), MAX_CHECKS);
        let more = flood(&permits, "alice", &team("b"), 1).await;
        assert_eq!(more[0].as_ref().err(), Some(&NoPermit::Replica));
        drop(held);
        assert_eq!(permitted(&flood(&permits, "alice", &team("b"), 1).await), 1);
    }

    #[tokio::test]
    async fn who_finds_others_running_waits_and_who_has_too_many_waiting_does_not() {
        let permits = Permits::default();
        let running = flood(&permits, "alice", &team("a"), USER).await;
        let started = Instant::now();
        let (tenant, until) = (team("a"), late());
        let calls = (0..USER * WAITING).map(|_| permits.take("alice", &tenant, until));
        let mut calls: FuturesUnordered<_> = calls.collect();
        // As many as run are turned away at once, and as many get a permit later.
        let (results, ()) = tokio::join!(calls.by_ref().take(2 * USER).collect::<Vec<_>>(), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            drop(running);
        });
        assert_eq!(permitted(&results), USER, "as soon as the others end");
        assert!(started.elapsed() >= Duration::from_millis(300));
        assert!(calls.next().now_or_never().is_none(), "the others still wait");
        drop(calls);
        drop(results);
        let _running = flood(&permits, "alice", &team("a"), USER).await;
        let waiting = (0..USER * (WAITING - 1)).map(|_| async {
            let until = late();
            permits.take("alice", &team("a"), until).await.map(drop)
        });
        let mut waiting = Box::pin(join_all(waiting));
        assert!(waiting.as_mut().now_or_never().is_none(), "nothing ends");
        let turned_away = permits.take("alice", &team("a"), late()).now_or_never();
        assert_eq!(turned_away.and_then(Result::err), Some(NoPermit::User), "at once");
    }
}
