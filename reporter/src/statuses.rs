//! All policies with their status, decided again with each new state of loader or evaluator.

use std::collections::BTreeMap;

use jiff::Timestamp;
use portcullis_api::{ObservedPolicy, ObservedSpec};
use portcullis_contract::{LoaderState, PolicyId};

use crate::decide::decide;
use crate::facts::{Facts, LastReport, Replica, Webhook, to_second};
use crate::join::{Evaluator, Pod, join};

/// The policies, by id.
#[derive(Debug, Default)]
pub struct Statuses {
    objects: BTreeMap<PolicyId, ObservedPolicy>,
}

/// A policy with a changed object.
#[derive(Debug)]
pub struct Change {
    /// The policy.
    pub id: PolicyId,
    /// Its object until now.
    pub before: Option<ObservedPolicy>,
    /// Its object from now on; `None` when it is gone.
    pub after: Option<ObservedPolicy>,
}

impl Statuses {
    /// The policies with their status.
    pub fn objects(&self) -> &BTreeMap<PolicyId, ObservedPolicy> {
        &self.objects
    }

    /// Decides about every policy. `remembered` gives the object that an earlier run has left. A folder has one replica, this pod,
    /// and no webhook.
    pub fn update(
        &mut self,
        pod: &Pod,
        loader: &LoaderState,
        evaluator: Evaluator<'_>,
        remembered: impl Fn(&PolicyId) -> Option<ObservedPolicy>,
        now: Timestamp,
    ) -> Vec<Change> {
        let report = join(pod, loader, evaluator, now);
        let heard = LastReport { report: &report, is_stale: false };
        let replica = Replica { pod: &pod.name, pod_uid: &pod.uid, expected: true, report: Some(heard) };
        let mut last = std::mem::take(&mut self.objects);
        let mut changes = Vec::new();
        for policy in &loader.policies {
            let created = to_second(policy.created);
            let before = last.remove(&policy.id).or_else(|| remembered(&policy.id));
            // A later policy of the same name, or one on a new volume, starts with a clean status.
            let same = |before: &&ObservedPolicy| {
                before.metadata.uid.as_ref() == Some(&policy.uid) && before.metadata.creation_timestamp == Some(created)
            };
            let previous = before.as_ref().filter(same).map(|before| &before.status);
            let facts = Facts {
                uid: &policy.uid,
                generation: policy.generation,
                suspend: policy.suspend,
                digest: policy.digest,
                members: Some(&policy.members),
                rollback_to: None,
                refusal: None,
            };
            let status = decide(&facts, &[replica], Webhook::Confirmed, previous, now);
            let spec = ObservedSpec {
                module: policy.module.clone(),
                mode: policy.mode,
                failure_policy: policy.failure_policy,
                suspend: policy.suspend,
            };
            let after = ObservedPolicy::new(&policy.id, &policy.uid, policy.generation, created, spec, status);
            self.objects.insert(policy.id.clone(), after.clone());
            if before.as_ref() != Some(&after) {
                changes.push(Change { id: policy.id.clone(), before, after: Some(after) });
            }
        }
        changes.extend(last.into_iter().map(|(id, before)| Change { id, before: Some(before), after: None }));
        changes
    }
}
