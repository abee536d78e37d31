//! Writes into the status of policies that nothing evaluates them.

use std::time::Duration;

use anyhow::Result;
use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use kube::api::Patch;
use portcullis_api::Kind;
use portcullis_api::kubernetes::Outline;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Uninstall, manager, status};
use crate::world::{Collection, PolicyView};

/// How long a reporter relies on its Lease after the last renewal: until then, it may write the status of a policy once more.
const LEADER_ENDS: Duration = Duration::from_secs(13);
/// How long writing the status of all policies may take, and how long doing so once more. The rest keeps what it says. Both together leave most
/// of the time of the chart's Job to what must not fail.
const LIMIT: Duration = Duration::from_secs(15);
/// How many writes run at the same time.
const AT_ONCE: usize = 16;
/// Those of the cluster concern most requests.
const KINDS: [Kind; 2] = [Kind::ClusterPolicy, Kind::Policy];

impl Uninstall {
    /// Makes the status of policies say that nothing evaluates them, and once more what the last leader of the reporters has overwritten.
    ///
    /// A failure is only logged: it blocks nothing. Policies that go on saying that they are enforced are registered at once by the next
    /// installation, as after a controller was gone for a while.
    pub(super) async fn tell(&self, had_leader: bool) {
        let leader_ends = Instant::now() + LEADER_ENDS;
        let told = self.tell_all().await;
        if had_leader && told > 0 {
            sleep_until(leader_ends).await;
            self.tell_all().await;
        }
        tracing::info!(policies = told, "their status says that nothing evaluates them");
    }

    /// Writes the status of the policies whose status does not say it, and returns of how many.
    async fn tell_all(&self) -> usize {
        let mut told = 0;
        let end = Instant::now() + LIMIT;
        for kind in KINDS {
            let problem = match timeout_at(end, self.tell_each(kind, &mut told)).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => format!("it took longer than {LIMIT:?}"),
            };
            tracing::warn!(problem, "the status of some policies may go on saying that they are enforced");
        }
        told
    }

    async fn tell_each(&self, kind: Kind, told: &mut usize) -> Result<()> {
        let now = Timestamp::now();
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let mut next = Some(String::new());
        while let Some(token) = next {
            let (objects, after) = self.page(Collection::Policies(kind), &token).await?;
            next = after;
            let writes = objects.into_iter().map(|object| self.tell_one(kind, object, now));
            let mut writes = stream::iter(writes).buffer_unordered(AT_ONCE);
            while let Some(is_told) = writes.next().await {
                *told += usize::from(is_told);
            }
        }
        Ok(())
    }

    /// Returns whether it has written the status.
    async fn tell_one(&self, kind: Kind, object: Outline, now: Timestamp) -> bool {
        let policy = PolicyView::read(kind, &object).filter(|one| one.policy_server == self.policy_server);
        let patch = policy.as_ref().and_then(|policy| status::patch(policy, &object, now));
        let (Some(policy), Some(patch)) = (policy, patch) else { return false };
        let policy = policy.reference;
        let api = self.policies(Collection::Policies(kind), &policy);
        match api.patch_status(&policy.name, &manager(), &Patch::Merge(patch)).await {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%error, policy = policy.name, namespace = policy.namespace, "failed to write its status");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
