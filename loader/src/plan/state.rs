//! The loader's state, as served at `/v1/state`.

use std::collections::{BTreeMap, HashMap};

use portcullis_broker::{ContextNeed, Contexts};
use portcullis_contract::{
    Activity, ContextProblem, ContextReason, Digest, Failure, InputProblem, LoaderPolicy, LoaderState, Mismatch, Phase,
    PolicyId, Program, Reason, SourceHealth,
};

use super::Plan;
use super::attempts::Attempts;
use super::policy::Policy;
use crate::content::Body;
use crate::mismatch::mismatches;
use crate::source::{Reference, shown};

/// The most differences between metadata and policy that are listed for one policy.
const MAX_MISMATCHES: usize = 8;
/// The most problems with the objects that it reads that are listed for one policy.
const MAX_CONTEXT: usize = 8;

impl Plan {
    /// The state; its version is not set.
    pub(crate) fn state(&self, program: &Program, contexts: &Contexts) -> LoaderState {
        let own = self.publication.failure();
        let policies: Vec<LoaderPolicy> =
            self.policies.iter().map(|(id, policy)| self.policy_state(id, policy, own.as_ref(), contexts)).collect();
        let volume_failure = own.or_else(|| {
            let mut failures = policies.iter().filter_map(|policy| policy.failure.as_ref());
            // `VolumeFull` of one policy is only its own failure. If the manifest has no room either, that is found above.
            failures
                .find(|failure| failure.reason == Reason::VolumeReadOnly)
                .cloned()
                .map(|failure| Failure { generation: 0, ..failure })
        });
        LoaderState {
            version: 0,
            program: program.clone(),
            complete: self.complete,
            manifest_number: self.publication.number(),
            volume_failure,
            policies,
            sources: sources(self.policies.iter(), self.failures()),
            problems: self
                .problems
                .iter()
                .map(|((file, message), since)| InputProblem {
                    file: file.clone(),
                    message: message.clone(),
                    since: *since,
                })
                .collect(),
        }
    }

    fn policy_state(
        &self,
        id: &PolicyId,
        policy: &Policy,
        volume: Option<&Failure>,
        contexts: &Contexts,
    ) -> LoaderPolicy {
        let mut failure = self.failure(policy);
        let (mut phase, activity) = self.phase(policy);
        let is_published = policy.published == policy.target().map(|(_, digest)| (policy.generation, digest));
        if phase == Phase::Published && !is_published {
            // Ready, but not in the manifest on the volume yet: for a moment, or while there is no room for it, or while the volume fails.
            let left_out = self.publication.left_out(id).filter(|failure| failure.generation == policy.generation);
            failure = left_out.or(volume).map(|volume| Failure { generation: policy.generation, ..volume.clone() });
            phase = if failure.is_some() { Phase::Failed } else { Phase::Compiling };
        }
        LoaderPolicy {
            id: id.clone(),
            uid: policy.uid.clone(),
            generation: policy.generation,
            mode: policy.head.mode,
            failure_policy: policy.head.failure_policy,
            suspend: policy.head.suspend,
            enforced: policy.enforced,
            module: policy.body.as_ref().map(modules).unwrap_or_default(),
            digest: policy.target().map(|(_, digest)| digest),
            members: policy.target().map(|_| policy.pins.members()).unwrap_or_default(),
            phase,
            activity,
            failure,
            last_good: policy.last_good.as_ref().map(|good| good.number),
            mismatches: self.mismatches(id, policy),
            context: self.context(id, policy, contexts),
            // `Checks::add_impacts` fills it in.
            impact: None,
            created: policy.created,
        }
    }

    /// The differences between the metadata of the newest generation's modules and the policy.
    fn mismatches(&self, id: &PolicyId, policy: &Policy) -> Vec<Mismatch> {
        let Ok(body) = &policy.body else { return Vec::new() };
        let of_part = |(name, part): (&str, &Body)| {
            let digest = policy.pins.get(name)?;
            let artifact = self.candidate_artifact(part, &digest)?;
            if name.is_empty() {
                return Some(mismatches(id, part, artifact, &self.provided));
            }
            // A member has the rules of its policy group.
            let part = Body { resources: body.resources.clone(), ..part.without_settings() };
            let found = mismatches(id, &part, artifact, &self.provided).into_iter();
            Some(found.map(|mismatch| mismatch.of_member(name)).collect())
        };
        body.parts().into_iter().filter_map(of_part).flatten().take(MAX_MISMATCHES).collect()
    }

    /// Problems with the objects that the newest generation reads. How a module reads them is only known once it is compiled.
    fn context(&self, id: &PolicyId, policy: &Policy, contexts: &Contexts) -> Vec<ContextProblem> {
        let Ok(body) = &policy.body else { return Vec::new() };
        let of_part = |(name, part): (&str, &Body)| {
            let artifact = self.candidate_artifact(part, &policy.pins.get(name)?)?;
            let (capabilities, kinds) = (&part.host_capabilities, &part.context_aware_resources);
            Some(ContextNeed::of(id, artifact.execution_mode, capabilities, kinds))
        };
        let needs: Vec<_> = body.parts().into_iter().filter_map(of_part).flatten().collect();
        if !needs.is_empty() && !self.provided.broker {
            let text = "the loader has no broker (--broker-socket), which reads objects of the cluster for policies";
            return vec![ContextProblem::new(ContextReason::ContextNotSynced, text)];
        }
        let mut problems = contexts.problems(&needs);
        problems.truncate(MAX_CONTEXT);
        problems
    }

    /// How far the newest generation is. With several modules, a failed one decides, then one that is fetched or compiled now, then one that waits.
    fn phase(&self, policy: &Policy) -> (Phase, Option<Activity>) {
        let Ok(body) = &policy.body else { return (Phase::Failed, None) };
        let parts = body.parts().into_iter().map(|(name, part)| self.phase_of(part, policy.pins.get(name)));
        let behind = |(phase, _): &(Phase, Option<Activity>)| match phase {
            Phase::Failed => 0,
            Phase::Fetching => 1,
            Phase::Compiling => 2,
            Phase::Queued => 3,
            Phase::Published => 4,
        };
        parts.min_by_key(behind).unwrap_or((Phase::Queued, None))
    }

    fn phase_of(&self, part: &Body, pin: Option<Digest>) -> (Phase, Option<Activity>) {
        let fetching = || {
            let module = part.reference.as_ref().and_then(|reference| self.modules.get(reference));
            phase_of_work(module, Phase::Fetching)
        };
        if let Some(digest) = pin.filter(|digest| !self.is_admitted(part, digest)) {
            return phase_of_work(self.admission(part, &digest), Phase::Fetching);
        }
        let Some(compilation) = pin.and_then(|digest| self.artifacts.get(&digest)) else { return fetching() };
        if compilation.attempts.result().is_some() {
            (Phase::Published, None)
        } else if compilation.no_module {
            fetching()
        } else {
            phase_of_work(Some(&compilation.attempts), Phase::Compiling)
        }
    }

    /// The addresses that are fetched from or checked, each with its failure if it fails.
    fn failures(&self) -> Vec<(&Reference, Option<Failure>)> {
        let modules = self.modules.iter().map(|(reference, module)| (reference, module.failure(0, None)));
        modules.chain(self.admissions.failures()).collect()
    }
}

/// One entry for each host. If several of its addresses fail, the first in order is shown.
///
/// There may be thousands of policies and addresses, and the state is published several times a second, so it goes through the policies only once.
pub(super) fn sources<'p>(
    policies: impl Iterator<Item = (&'p PolicyId, &'p Policy)>,
    mut failures: Vec<(&Reference, Option<Failure>)>,
) -> Vec<SourceHealth> {
    let users = users(policies);
    let mut hosts: BTreeMap<String, SourceHealth> = BTreeMap::new();
    failures.sort_by_key(|(reference, _)| *reference);
    for (reference, failure) in failures {
        let user = users.get(reference).copied();
        let is_only_tried = user == Some(None);
        let Some(host) = reference.host().filter(|_| !is_only_tried) else { continue };
        let health = hosts.entry(host.clone()).or_insert(SourceHealth { host, failure: None, policy: None });
        if health.failure.is_none() {
            health.policy = failure.as_ref().and_then(|_| user.flatten().cloned());
            health.failure = failure;
        }
    }
    hosts.into_values().collect()
}

/// The addresses that policies name, each with the first of these policies; `None` if only trials name it.
fn users<'p>(
    policies: impl Iterator<Item = (&'p PolicyId, &'p Policy)>,
) -> HashMap<&'p Reference, Option<&'p PolicyId>> {
    let mut users = HashMap::new();
    for (id, policy) in policies {
        let parts = policy.body.iter().flat_map(Body::parts);
        for reference in parts.filter_map(|(_, part)| part.reference.as_ref()) {
            let user = users.entry(reference).or_insert(None);
            if user.is_none() && !id.is_check() {
                *user = Some(id);
            }
        }
    }
    users
}

/// How far a piece of work is; `running` is the phase of an attempt that runs.
fn phase_of_work<T>(work: Option<&Attempts<T>>, running: Phase) -> (Phase, Option<Activity>) {
    match work {
        Some(work) if work.has_failed() => (Phase::Failed, None),
        work => match work.and_then(Attempts::activity) {
            Some(activity) => (running, Some(activity.clone())),
            None => (Phase::Queued, None),
        },
    }
}

/// The modules as the user wrote them: that of a policy, or those of a group's members.
fn modules(body: &Body) -> String {
    let parts = body.parts().into_iter().map(|(name, part)| match name {
        "" => shown(&part.module),
        member => format!("{member}={}", shown(&part.module)),
    });
    parts.collect::<Vec<_>>().join(", ")
}
