//! From a manifest to a table: loads what [`crate::volume::plan`] decides, each policy by itself, and makes a table of what is ready.
//!
//! A slow or failing candidate never delays that of another policy: there is a new table whenever a candidate is ready. Requests see the
//! old table or the new one, and nothing in between.

mod policy;

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt as _;
use jiff::Timestamp;
use portcullis_contract::{Candidate, GroupEntry, MemberMatch, PolicyId, Tenant};
use portcullis_matching::MemberMatcher;
use tokio::task::JoinSet;
use tracing::{Instrument as _, debug_span};

pub(crate) use self::policy::PolicyState;
use crate::guest::loaded::Loaded;
use crate::lanes::Share;
use crate::metrics::Metrics;
use crate::table::{MatchGroup, Table};
use crate::volume::artifact::Needed;
use crate::volume::load::{Before, LoadError, Loading};
use crate::volume::plan::{Key, Next};
use crate::volume::watch::KeyedManifest;

/// All policies of the newest manifest, with what is loaded and what is being loaded.
pub(crate) struct Reload {
    loading: Arc<Loading>,
    metrics: Metrics,
    /// The number of the newest manifest; 0 before the first.
    number: u64,
    groups: Vec<(GroupEntry, Arc<Matchers>)>,
    policies: BTreeMap<PolicyId, PolicyState>,
    tasks: JoinSet<Outcome>,
}

/// The match parts of the members of a group.
type Matchers = HashMap<PolicyId, Vec<MemberMatcher>>;

/// How a load ended.
struct Outcome {
    id: PolicyId,
    key: Key,
    result: Result<Arc<Loaded>, LoadError>,
}

impl Reload {
    pub(crate) fn new(loading: Loading, metrics: Metrics) -> Self {
        Self {
            loading: Arc::new(loading),
            metrics,
            number: 0,
            groups: Vec::new(),
            policies: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// The policies of the newest manifest.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &PolicyState> {
        self.policies.values()
    }

    /// The number of the newest manifest; 0 before the first.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether every candidate of the newest manifest that is due has been tried. One that is being tried again has been, unless the manifest may
    /// have mended it: it may wait long for another turn, and fail again.
    pub(crate) fn is_idle(&self) -> bool {
        let again = self.policies.values().filter(|policy| policy.is_another_try_on_its_way()).count();
        self.tasks.len() <= again
    }

    /// Takes over another manifest. Policies and candidates that it no longer names are given up, even while they are being loaded.
    pub(crate) fn adopt(&mut self, seen: KeyedManifest) {
        let KeyedManifest { manifest, keys } = seen;
        if manifest.number < self.number {
            // The file is not outdated: the loader is its only writer, and the numbers start again with a new volume.
            tracing::info!(
                number = manifest.number,
                previous = self.number,
                "the volume's manifest numbers start again"
            );
        }
        let mut earlier = std::mem::take(&mut self.policies);
        for (entry, keys) in manifest.policies.into_iter().zip(keys) {
            let id = entry.id.clone();
            let policy = match earlier.remove(&id) {
                Some(mut policy) => {
                    policy.adopt(entry, keys);
                    policy
                }
                None => {
                    let metrics = self.metrics.policy(&id);
                    let share = Arc::new(Share::new(Arc::clone(&self.loading.lanes), &id, Arc::clone(&metrics)));
                    PolicyState::new(entry, keys, share, metrics)
                }
            };
            self.policies.insert(id, policy);
        }
        for mut policy in earlier.into_values() {
            policy.give_up();
            self.metrics.forget(&policy.metrics);
        }
        self.number = manifest.number;
        self.groups = with_matchers(&manifest.groups, std::mem::take(&mut self.groups));
        self.loading.artifacts.need(self.artifacts());
        self.start();
    }

    /// Starts the loads that are due.
    pub(crate) fn start(&mut self) {
        let now = Instant::now();
        for (id, policy) in &mut self.policies {
            let i = match policy.next(now) {
                Next::Load(i) => i,
                next => {
                    policy.give_up();
                    if let Next::Renumber(i) = next {
                        policy.renumber(i);
                    }
                    continue;
                }
            };
            let key = policy.keys[i];
            if policy.on_its_way.as_ref().is_some_and(|(loading, _)| *loading == key) {
                continue;
            }
            policy.give_up();
            let (loading, candidate) = (Arc::clone(&self.loading), policy.entry.candidates[i].clone());
            let (id, metrics) = (id.clone(), Arc::clone(&policy.metrics));
            let before = Before { enforced: policy.entry.enforced, was_starved: policy.was_starved(&key) };
            let task = self.tasks.spawn(async move {
                let span = debug_span!("load", policy = %id, generation = candidate.generation);
                let load = loading.load(&id, &candidate, before, metrics).instrument(span);
                let load = AssertUnwindSafe(load).catch_unwind();
                let result = load.await.unwrap_or_else(|_| {
                    Err(LoadError::Start("Initialization failed: a panic of the evaluator".to_owned()))
                });
                Outcome { id, key, result }
            });
            policy.on_its_way = Some((key, task));
        }
    }

    /// Waits until a load has ended, and takes over the results of all loads that have.
    pub(crate) async fn progress(&mut self) {
        let Some(first) = self.tasks.join_next().await else { return std::future::pending().await };
        let mut next = Some(first);
        while let Some(outcome) = next {
            // An error means that the task was given up.
            if let Ok(outcome) = outcome {
                self.finish(outcome);
            }
            next = self.tasks.try_join_next();
        }
        self.start();
    }

    fn finish(&mut self, outcome: Outcome) {
        let Some(policy) = self.policies.get_mut(&outcome.id) else { return };
        // A load that was given up may have ended before it could be aborted.
        if policy.on_its_way.take_if(|(key, _)| *key == outcome.key).is_none() {
            return;
        }
        let Some(i) = policy.keys.iter().position(|key| *key == outcome.key) else { return };
        match outcome.result {
            Ok(loaded) => policy.serve(outcome.key, loaded),
            Err(error) => policy.refuse(i, outcome.key, error),
        }
    }

    /// Judges the share of failed evaluations of each policy in the interval that began at `begin`.
    pub(crate) fn count_errors(&mut self, begin: Timestamp) {
        self.policies.values_mut().for_each(|policy| policy.count_errors(begin));
    }

    /// When the next candidate is to be tried again; none if no candidate is.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.policies.values().filter_map(|policy| policy.due).min()
    }

    /// Updates the state of each policy and makes the table of what is ready now. Policies that are only checked are separate, so that
    /// no request finds them; the loader reads in the state whether they load.
    pub(crate) fn table(&mut self) -> Table {
        let (mut policies, mut checks) = (HashMap::with_capacity(self.policies.len()), HashMap::new());
        let mut served = 0;
        for (id, policy) in &mut self.policies {
            policy.note();
            if id.is_check() {
                checks.insert(id.clone(), Arc::new(policy.served()));
                continue;
            }
            served += usize::from(policy.loaded.is_some());
            policies.insert(id.clone(), Arc::new(policy.served()));
        }
        self.metrics.loaded.set(i64::try_from(served).unwrap_or(i64::MAX));
        self.metrics.failed.set(i64::try_from(policies.len() - served).unwrap_or(i64::MAX));
        let groups = self.groups.iter().map(|(group, matchers)| {
            let members = group.members.iter().filter_map(|id| policies.get(id).cloned()).collect();
            let matchers = Arc::clone(matchers);
            (group.id.clone(), Arc::new(MatchGroup { kind: group.kind, members, matchers }))
        });
        Table { manifest_number: self.number, groups: groups.collect(), policies, checks }
    }

    /// The artifacts that the manifest names, and by whose policies.
    pub(crate) fn artifacts(&self) -> Needed {
        let mut needed = Needed::new();
        for policy in self.policies.values() {
            let tenant = Tenant::of(&policy.entry.id);
            for named in policy.entry.candidates.iter().flat_map(Candidate::modules) {
                needed.entry(named.module.artifact.sha256).or_default().insert(tenant.clone());
            }
        }
        needed
    }
}

/// The groups of a manifest with their match parts. Those that `earlier` groups had already are not parsed again: there may be thousands of
/// conditions, and this thread answers requests too.
fn with_matchers(groups: &[GroupEntry], earlier: Vec<(GroupEntry, Arc<Matchers>)>) -> Vec<(GroupEntry, Arc<Matchers>)> {
    let earlier: HashMap<_, _> = earlier.into_iter().map(|(group, known)| (group.id, (group.matches, known))).collect();
    let known = |group: &GroupEntry| {
        let (matches, known) = earlier.get(&group.id)?;
        (*matches == group.matches).then(|| Arc::clone(known))
    };
    groups.iter().map(|group| (group.clone(), known(group).unwrap_or_else(|| Arc::new(matchers(group))))).collect()
}

/// The match parts of the members of a group with a shared webhook. A member with a part that this release cannot evaluate has no entry: it
/// is asked about every request, so that none passes without it.
fn matchers(group: &GroupEntry) -> Matchers {
    let read = |(id, parts): (&PolicyId, &Vec<MemberMatch>)| {
        let matchers: Option<Vec<_>> = parts.iter().map(MemberMatcher::of).collect();
        if matchers.is_none() {
            tracing::warn!(policy = %id, group = %group.id, "this release cannot judge what the policy matches; it is asked about every request of its webhook");
        }
        Some((id.clone(), matchers?))
    };
    group.matches.iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use portcullis_contract::{FailurePolicy, MatchCondition, Mode, PolicyEntry, WebhookKind};
    use portcullis_engine::{RunLimits, RunningEngine};
    use tempfile::TempDir;

    use super::*;
    use crate::guest::Guests;
    use crate::lanes::{LaneLimits, Lanes};
    use crate::memory::MemoryPlan;
    use crate::volume::artifact::Artifacts;
    use crate::volume::artifact_error::ArtifactError;
    use crate::volume::plan::tests::candidate;

    /// A manifest's policy with the generations 3 and 2, neither of which has been tried.
    struct Fixture {
        reload: Reload,
        id: PolicyId,
        _folders: [TempDir; 2],
    }

    impl Fixture {
        fn new() -> Self {
            let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
            std::fs::create_dir(folders[0].path().join("artifacts")).expect("a folder");
            let metrics = Metrics::new().expect("registers");
            let lanes = Lanes::new(LaneLimits::new(4, 1), MemoryPlan::unlimited(), &metrics).expect("starts");
            let engine = RunningEngine::new(RunLimits { instances: 1, ..RunLimits::default() }).expect("an engine");
            let artifacts = Artifacts::new(folders[0].path(), folders[1].path(), None, engine.clone(), 2);
            let loading = Loading {
                artifacts: Arc::new(artifacts.expect("opens")),
                guests: Guests::new(engine).expect("links"),
                lanes: Arc::clone(&lanes),
                policy_timeout: Duration::from_secs(60),
                namespaced_capabilities: Arc::default(),
                broker: None,
                caches: Arc::default(),
                caches_of_checks: Arc::default(),
                log_shares: Arc::default(),
            };
            let id: PolicyId = "cluster/a".parse().expect("an id");
            let entry = PolicyEntry {
                id: id.clone(),
                uid: "u".into(),
                generation: 3,
                mode: Mode::Protect,
                failure_policy: FailurePolicy::Fail,
                suspend: false,
                enforced: true,
                candidates: [3, 2].map(candidate).into(),
                failures: Vec::new(),
                last_good: None,
                source: None,
            };
            let share = Share::new(lanes, &id, metrics.policy(&id));
            let keys = entry.candidates.iter().map(|candidate| Key::of(&entry.uid, candidate)).collect();
            let policy = PolicyState::new(entry, keys, Arc::new(share), metrics.policy(&id));
            let mut reload = Reload::new(loading, metrics);
            reload.policies.insert(id.clone(), policy);
            Self { reload, id, _folders: folders }
        }

        fn policy(&mut self) -> &mut PolicyState {
            self.reload.policies.get_mut(&self.id).expect("it is there")
        }

        fn refuse(&mut self, i: usize, error: LoadError) {
            let key = self.policy().keys[i];
            self.policy().refuse(i, key, error);
        }

        /// Lets candidate `i` be on its way for ever.
        fn loads_for_ever(&mut self, i: usize) -> Key {
            let key = self.policy().keys[i];
            let task = self.reload.tasks.spawn(pending());
            self.policy().on_its_way = Some((key, task));
            key
        }
    }

    fn starved() -> LoadError {
        LoadError::NoProcessor {
            used: Duration::from_millis(80),
            limit: Duration::from_secs(2),
            late: Box::new(LoadError::StartTimedOut("init interrupted".to_owned())),
        }
    }

    #[tokio::test]
    async fn a_manifest_is_applied_while_starved_candidates_wait_for_another_turn() {
        let no_memory = || LoadError::NoMemory("none left".to_owned());
        let missing = || LoadError::Artifact(ArtifactError::Missing { file: "a".to_owned() });
        for (earlier, is_idle) in [
            (vec![], false),
            (vec![missing()], false),
            (vec![starved(), missing()], false),
            (vec![no_memory()], true),
            (vec![starved()], true),
            (vec![starved(), no_memory()], true),
        ] {
            let mut fixture = Fixture::new();
            assert!(fixture.reload.is_idle(), "nothing is on its way");
            for error in earlier {
                fixture.refuse(0, error);
            }
            fixture.loads_for_ever(0);
            assert_eq!(fixture.reload.is_idle(), is_idle);
            // A load that was given up may still read its artifact.
            let other = fixture.reload.tasks.spawn(pending());
            assert!(!fixture.reload.is_idle());
            other.abort();
        }
    }

    #[tokio::test]
    async fn an_older_generation_that_could_serve_is_not_given_up_for_another_try_of_the_newest() {
        let mut fixture = Fixture::new();
        fixture.refuse(0, starved());
        let [newest, older] = [fixture.policy().keys[0], fixture.loads_for_ever(1)];
        let now = Instant::now();
        fixture.policy().known.refused.get_mut(&newest).expect("refused").retry_at = Some(now);
        fixture.reload.start();
        assert_eq!(fixture.policy().on_its_way.as_ref().map(|(key, _)| *key), Some(older));
        // When that has failed, it is the newest one's turn.
        let result = Err(LoadError::Start("a trap".to_owned()));
        fixture.reload.finish(Outcome { id: fixture.id.clone(), key: older, result });
        fixture.reload.start();
        assert_eq!(fixture.policy().on_its_way.as_ref().map(|(key, _)| *key), Some(newest));
    }

    fn group(id: &str, expression: &str) -> GroupEntry {
        let policy: PolicyId = "cluster/a".parse().expect("an id");
        let condition = MatchCondition { name: "c".to_owned(), expression: expression.to_owned() };
        let part = MemberMatch { rules: Vec::new(), object_selector: None, match_conditions: vec![condition] };
        GroupEntry {
            id: id.parse().expect("an id"),
            kind: WebhookKind::Validating,
            members: vec![policy.clone()],
            matches: BTreeMap::from([(policy, vec![part])]),
        }
    }

    #[test]
    fn match_parts_are_parsed_again_only_where_they_changed() {
        let (one, other) = ("0123456789abcdef", "fedcba9876543210");
        let first = with_matchers(&[group(one, "true"), group(other, "true")], Vec::new());
        let [known, _] = [0, 1].map(|place: usize| Arc::clone(&first[place].1));
        let second = with_matchers(&[group(other, "false"), group(one, "true")], first);
        assert!(Arc::ptr_eq(&second[1].1, &known));
        assert_eq!(second[0].1.len(), 1);
        let moved = GroupEntry { members: Vec::new(), ..group(one, "true") };
        assert!(Arc::ptr_eq(&with_matchers(&[moved], second)[0].1, &known), "its members may change");
        assert!(!Arc::ptr_eq(
            &with_matchers(&[group(one, "false")], vec![(group(one, "true"), known.clone())])[0].1,
            &known
        ));
    }
}
