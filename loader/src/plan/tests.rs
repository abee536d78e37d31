//! The plan by itself: what comes in, what should be done, what is published.

use std::time::Duration;

use portcullis_contract::{
    Artifact, Current, Deviation, ExecutionMode, Failure, LoaderPolicy, Phase, Program, Refused, ReplicaState,
    WebhookKind,
};
use serde_json::value::RawValue;

use super::*;
use crate::content::{DesiredPolicy, Head, Problem, hash, uid};
use crate::input::Unreadable;

const SETTINGS: PlanSettings = PlanSettings {
    retry: Retry { initial: Duration::from_secs(1), cap: Duration::from_secs(300), outside: Duration::from_secs(600) },
    tombstone: Duration::from_secs(600),
    keep_newest: 8,
};

/// A plan with a clock of its own, and the manifest that it published last.
struct Table {
    plan: Plan,
    now: Now,
    number: u64,
    manifest: Option<Manifest>,
}

fn digest(module: &str) -> Digest {
    Digest::of(module.as_bytes())
}

fn record(module: &str) -> ArtifactRecord {
    ArtifactRecord {
        artifact: Artifact { file: format!("{module}.cwasm"), sha256: digest(&format!("code of {module}")), size: 1 },
        execution_mode: ExecutionMode::KubewardenWapc,
    }
}

fn wants(id: &str, module: &str, settings: &str) -> DesiredPolicy {
    let reference = Reference::parse(module, std::path::Path::new("/policies")).expect("an address");
    let group = ("aaaaaaaaaaaaaaaa".parse().expect("a group"), WebhookKind::Validating);
    let head = Head { group: Some(group), ..Head::strict() };
    let body = Body {
        module: module.to_owned(),
        reference: Some(reference),
        settings: RawValue::from_string(settings.to_owned()).expect("JSON"),
        mutating: false,
        message: None,
        timeout_eval_seconds: None,
        host_capabilities: Vec::new(),
        context_aware_resources: Vec::new(),
    };
    DesiredPolicy {
        id: id.parse().expect("an id"),
        file: format!("{id}.yaml"),
        created: None,
        hash: hash(&head, &body),
        head: Some(head),
        body: Ok(body),
    }
}

fn snapshot(policies: Vec<DesiredPolicy>) -> Snapshot {
    Snapshot { policies, ..Snapshot::default() }
}

fn setback(reason: Reason) -> Setback {
    Setback { reason, message: "no".to_owned(), retry_after: None }
}

impl Table {
    fn new() -> Self {
        Self::restored(None)
    }

    fn restored(manifest: Option<Manifest>) -> Self {
        let now = Now::get();
        let plan = Plan::restore(SETTINGS, manifest.as_ref(), |_| true, now);
        let number = manifest.as_ref().map_or(0, |manifest| manifest.number);
        Self { plan, now, number, manifest }
    }

    fn pass(&mut self, time: Duration) {
        self.now = Now { instant: self.now.instant + time, wall: self.now.wall + time };
    }

    fn want(&mut self, policies: Vec<DesiredPolicy>) {
        self.plan.desire(&snapshot(policies), self.now);
    }

    /// Turns until nothing is published any more, and gives the jobs that run then.
    fn jobs(&mut self) -> Vec<String> {
        loop {
            let turn = self.plan.turn(self.now);
            if let Some(mut manifest) = turn.publish {
                self.number += 1;
                manifest.number = self.number;
                self.manifest = Some(manifest);
                self.plan.published(Ok(self.number), self.now);
                continue;
            }
            let gathers = self.plan.publication.wakes_at().filter(|at| *at > self.now.instant);
            if let Some(at) = gathers {
                self.pass(at - self.now.instant);
                continue;
            }
            return turn.jobs.iter().map(name).collect();
        }
    }

    fn fetched(&mut self, module: &str, result: Result<&str, Reason>) {
        let reference = Reference::parse(module, std::path::Path::new("/policies")).expect("an address");
        self.plan.fetched(&reference, result.map(digest).map_err(setback), self.now);
    }

    fn compiled(&mut self, module: &str) {
        self.plan.prepared(digest(module), Ok(Prepared::Ready(record(module))), self.now);
    }

    /// Fetches and compiles whatever is asked for; each address gives a module of its own name.
    fn settle(&mut self) {
        for _ in 0..10 {
            let turn = self.plan.turn(self.now);
            for job in turn.jobs {
                match job {
                    Job::Fetch(reference) => {
                        let module = name(&Job::Fetch(reference.clone()));
                        self.plan.fetched(&reference, Ok(digest(module.trim_start_matches("fetch "))), self.now);
                    }
                    Job::Prepare { digest, .. } => {
                        let record = ArtifactRecord {
                            artifact: Artifact { file: digest.hex(), sha256: digest, size: 1 },
                            ..record("")
                        };
                        self.plan.prepared(digest, Ok(Prepared::Ready(record)), self.now);
                    }
                }
            }
        }
        assert_eq!(self.jobs(), Vec::<String>::new());
    }

    /// Generations of a policy's candidates in the newest manifest.
    fn candidates(&mut self, id: &str) -> Vec<i64> {
        self.jobs();
        let manifest = self.manifest.as_ref().expect("a manifest");
        let entry = manifest.policies.iter().find(|entry| entry.id.as_str() == id).expect("the policy");
        entry.candidates.iter().map(|candidate| candidate.generation).collect()
    }

    fn state(&self, id: &str) -> LoaderPolicy {
        let state = self.plan.state(&Program::default());
        state.policies.into_iter().find(|policy| policy.id.as_str() == id).expect("the policy")
    }

    /// The evaluator says that it serves a generation.
    fn loads(&mut self, id: &str, generation: i64, module: Digest) {
        let id: PolicyId = id.parse().expect("an id");
        let current = Current { uid: uid(&id), generation, digest: module, since: self.now.wall };
        let state = EvaluatorState {
            manifest_number: self.number,
            current: BTreeMap::from([(id, current)]),
            ..EvaluatorState::default()
        };
        self.plan.learn(Arc::new(state), self.now);
    }

    /// The evaluator says that it refuses a generation, and goes on with another (0 for none).
    fn refuses(&mut self, id: &str, generation: i64, module: Digest, artifact: Digest, reason: Reason, serving: i64) {
        let id: PolicyId = id.parse().expect("an id");
        let failure = Failure::new(generation, reason, "no");
        let deviation = Deviation {
            uid: uid(&id),
            id,
            generation,
            serving,
            digest: (serving > 0).then_some(module),
            state: ReplicaState::Previous,
            failure: Some(failure.clone()),
            refused: vec![Refused { digest: module, artifact, failure }],
            since: self.now.wall,
        };
        let state =
            EvaluatorState { manifest_number: self.number, deviations: vec![deviation], ..EvaluatorState::default() };
        self.plan.learn(Arc::new(state), self.now);
    }
}

fn name(job: &Job) -> String {
    match job {
        Job::Fetch(Reference::File(path)) => format!("fetch {}", path.display()),
        Job::Fetch(Reference::Web(url)) => format!("fetch {url}"),
        Job::Prepare { anew: false, .. } => "prepare".to_owned(),
        Job::Prepare { anew: true, .. } => "prepare anew".to_owned(),
    }
}

const URL: &str = "https://example.com/a";

#[test]
fn nothing_is_published_before_the_first_snapshot() {
    let mut table = Table::new();
    assert_eq!(table.jobs(), Vec::<String>::new());
    assert!(table.manifest.is_none());
    table.want(Vec::new());
    table.jobs();
    assert_eq!(table.number, 1);
    table.jobs();
    assert_eq!(table.number, 1, "unchanged content is not published again");
}

#[test]
fn from_wanted_to_published() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    assert_eq!(table.jobs(), ["fetch https://example.com/a"]);
    assert_eq!(table.candidates("a"), Vec::<i64>::new());
    assert_eq!(table.state("a").phase, Phase::Queued);
    table.fetched(URL, Ok("m"));
    assert_eq!(table.jobs(), ["prepare"]);
    table.compiled("m");
    assert_eq!(table.jobs(), Vec::<String>::new());
    assert_eq!(table.candidates("a"), [1]);
    let state = table.state("a");
    assert_eq!((state.phase, state.digest, state.failure), (Phase::Published, Some(digest("m")), None));
}

#[test]
fn policies_share_a_fetch_and_a_compilation() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}"), wants("b", URL, "{\"x\":1}")]);
    assert_eq!(table.jobs(), ["fetch https://example.com/a"]);
    table.fetched(URL, Ok("m"));
    assert_eq!(table.jobs(), ["prepare"]);
    table.compiled("m");
    assert_eq!((table.candidates("a"), table.candidates("b")), (vec![1], vec![1]));
    table.want(vec![wants("a", URL, "{}"), wants("b", URL, "{\"x\":1}"), wants("c", URL, "{}")]);
    assert_eq!(table.jobs(), Vec::<String>::new(), "one more costs nothing");
    assert_eq!(table.candidates("c"), [1]);
}

#[test]
fn s05_settings_are_published_without_a_job() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    table.want(vec![wants("a", URL, "{\"x\":1}")]);
    assert_eq!(table.jobs(), Vec::<String>::new());
    assert_eq!(table.candidates("a"), [2]);
    table.want(vec![wants("a", URL, "{}")]);
    assert_eq!(table.candidates("a"), [3], "what was there before is a new generation as well");
}

#[test]
fn what_only_the_loader_reads_delays_no_edit() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    table.loads("a", 1, digest(URL));
    let before = table.plan.turn(table.now);
    assert!(before.publish.is_none(), "what loaded is noted without haste");
    assert!(before.wake.is_some_and(|at| at > table.now.instant + Duration::from_millis(500)));
    table.want(vec![wants("a", URL, "{\"x\":1}")]);
    table.plan.turn(table.now);
    table.pass(Duration::from_millis(10));
    assert!(table.plan.turn(table.now).publish.is_some());
}

#[test]
fn a_failed_update_keeps_what_served() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    table.loads("a", 1, digest(URL));
    table.want(vec![wants("a", "https://example.com/b", "{}")]);
    assert_eq!(table.candidates("a"), [1], "on its way");
    table.fetched("https://example.com/b", Err(Reason::RegistryUnreachable));
    assert_eq!(table.candidates("a"), [1]);
    let state = table.state("a");
    let failure = state.failure.expect("fails");
    assert_eq!((state.phase, failure.generation, failure.reason), (Phase::Failed, 2, Reason::RegistryUnreachable));
    assert!(failure.next_retry_time.is_some());
    assert_eq!(state.last_good, Some(1));
    table.pass(Duration::from_secs(1));
    assert_eq!(table.jobs(), ["fetch https://example.com/b"], "tried again");
    table.fetched("https://example.com/b", Ok("b"));
    table.settle();
    assert_eq!(table.candidates("a"), [2], "the last good one is not needed any more");
    assert_eq!(table.state("a").failure, None);
}

#[test]
fn a_final_failure_is_not_tried_again_until_an_edit() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.jobs();
    table.fetched(URL, Ok("m"));
    assert_eq!(table.jobs(), ["prepare"]);
    table.plan.prepared(digest("m"), Err(setback(Reason::ModuleInvalid)), table.now);
    table.pass(Duration::from_secs(100_000));
    assert_eq!(table.jobs(), Vec::<String>::new());
    assert_eq!(table.state("a").failure.map(|failure| failure.reason), Some(Reason::ModuleInvalid));
    table.want(vec![wants("a", URL, "{\"x\":1}")]);
    assert_eq!(table.jobs(), ["fetch https://example.com/a"], "a new generation starts afresh");
    table.fetched(URL, Ok("mended"));
    table.settle();
    assert_eq!(table.candidates("a"), [2]);
}

#[test]
fn an_https_address_is_pinned() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    // The module's copy is lost, and the address gives something else now.
    let manifest = table.manifest.take();
    let mut table = Table::restored(manifest);
    table.want(vec![wants("a", URL, "{}")]);
    table.jobs();
    table.plan.prepared(digest(URL), Ok(Prepared::NoModule), table.now);
    assert_eq!(table.jobs(), ["fetch https://example.com/a"]);
    table.fetched(URL, Ok("other"));
    assert_eq!(table.jobs(), Vec::<String>::new());
    let failure = table.state("a").failure.expect("fails");
    assert_eq!((failure.generation, failure.reason), (1, Reason::DigestMismatch));
    assert!(failure.message.contains(&digest("other").to_string()), "{}", failure.message);
}

#[test]
fn a_pin_is_published_before_its_module_is_compiled() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.jobs();
    table.fetched(URL, Ok("m"));
    let fetched = table.now.instant;
    assert_eq!(table.jobs(), ["prepare"]);
    assert!(table.now.instant - fetched < Duration::from_millis(100), "what is lost with a loader is little");
    let mut table = Table::restored(table.manifest.take());
    table.want(vec![wants("a", URL, "{}")]);
    assert_eq!(table.jobs(), ["prepare"], "nothing is fetched again");
}

#[test]
fn a_rebuilt_file_is_a_new_generation() {
    let mut table = Table::new();
    let file = "modules/a.wasm";
    let with_size = |size: Option<u64>| Snapshot {
        stamps: BTreeMap::from([("/policies/modules/a.wasm".into(), size.map(Stamp::of_size))]),
        ..snapshot(vec![wants("a", file, "{}")])
    };
    table.plan.desire(&with_size(Some(1)), table.now);
    assert_eq!(table.jobs(), ["fetch /policies/modules/a.wasm"]);
    table.fetched(file, Ok("m"));
    assert_eq!(table.jobs(), ["prepare"]);
    table.compiled("m");
    table.plan.desire(&with_size(Some(2)), table.now);
    assert_eq!(table.jobs(), ["fetch /policies/modules/a.wasm"]);
    assert_eq!(table.candidates("a"), [1], "what is there counts meanwhile");
    table.fetched(file, Ok("m"));
    assert_eq!(table.candidates("a"), [1], "the same bytes are the same generation");
    table.plan.desire(&with_size(None), table.now);
    table.fetched(file, Err(Reason::NotFound));
    assert_eq!(
        (table.candidates("a"), table.state("a").failure),
        (vec![1], None),
        "a file that is away changes nothing"
    );
    table.plan.desire(&with_size(Some(3)), table.now);
    table.fetched(file, Ok("n"));
    assert_eq!(table.jobs(), ["prepare"]);
    assert_eq!((table.state("a").generation, table.candidates("a")), (2, vec![1]));
    table.compiled("n");
    assert_eq!(table.candidates("a"), [2]);
    table.plan.desire(&with_size(Some(4)), table.now);
    table.fetched(file, Err(Reason::ModuleTooLarge));
    assert_eq!((table.state("a").generation, table.candidates("a")), (3, vec![2]));
    assert_eq!(table.state("a").failure.map(|failure| failure.reason), Some(Reason::ModuleTooLarge));
}

#[test]
fn a_file_that_cannot_be_read_keeps_its_policies() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    let broken = |text: &str| Snapshot {
        unreadable: BTreeMap::from([(
            "a.yaml".to_owned(),
            Unreadable { message: text.to_owned(), hash: digest(text) },
        )]),
        ..Snapshot::default()
    };
    table.plan.desire(&broken("line 1"), table.now);
    assert_eq!(table.candidates("a"), [1]);
    let state = table.state("a");
    assert_eq!((state.generation, state.phase), (2, Phase::Failed));
    assert_eq!(state.failure.map(|failure| failure.message).as_deref(), Some("a.yaml: line 1"));
    table.plan.desire(&broken("line 1"), table.now);
    assert_eq!(table.state("a").generation, 2, "the same fault is the same generation");
    // Also after a restart.
    let mut table = Table::restored(table.manifest.take());
    table.plan.desire(&broken("line 1"), table.now);
    assert_eq!((table.candidates("a"), table.state("a").generation), (vec![1], 2));
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    assert_eq!(table.candidates("a"), [3]);
}

#[test]
fn a_broken_spec_keeps_what_served_and_acts_with_its_mode() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    let mut broken = wants("a", URL, "{\"x\":1}");
    broken.hash = digest("broken");
    broken.head = Some(Head { mode: portcullis_contract::Mode::Monitor, group: None, ..Head::strict() });
    broken.body = Err(Problem::new(Reason::SpecInvalid, "spec.rules: no"));
    table.want(vec![broken]);
    assert_eq!(table.candidates("a"), [1]);
    let manifest = table.manifest.as_ref().expect("a manifest");
    assert_eq!(manifest.policies[0].mode, portcullis_contract::Mode::Monitor);
    assert_eq!(manifest.policies[0].failures[0].reason, Reason::SpecInvalid);
    assert_eq!(manifest.groups[0].members.len(), 1, "the match group stays");
    table.want(vec![wants("a", URL, "{\"x\":2}")]);
    assert_eq!(table.jobs(), Vec::<String>::new(), "the module is still known");
    assert_eq!(table.candidates("a"), [3]);
}

#[test]
fn a_restart_with_a_broken_newest_version_serves_the_last_good_one() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    table.loads("a", 1, digest(URL));
    table.want(vec![wants("a", "https://example.com/b", "{}")]);
    table.jobs();
    table.fetched("https://example.com/b", Err(Reason::NotFound));
    table.jobs();
    table.pass(Duration::from_secs(2));
    table.jobs();
    let number = table.number;
    let mut table = Table::restored(table.manifest.take());
    table.want(vec![wants("a", "https://example.com/b", "{}")]);
    assert_eq!(table.candidates("a"), [1]);
    assert_eq!((table.state("a").generation, table.state("a").last_good), (2, Some(1)));
    assert!(table.number >= number);
}

#[test]
fn a_restart_with_nothing_new_publishes_nothing() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}"), wants("b", "https://example.com/b", "{}")]);
    table.settle();
    table.loads("a", 1, digest(URL));
    table.pass(Duration::from_secs(2));
    table.jobs();
    let number = table.number;
    let mut table = Table::restored(table.manifest.take());
    table.want(vec![wants("a", URL, "{}"), wants("b", "https://example.com/b", "{}")]);
    assert_eq!(table.jobs(), ["prepare", "prepare"], "what is there is looked at");
    table.settle();
    assert_eq!(table.number, number);
    assert_eq!(table.state("a").generation, 1);
}

#[test]
fn refused_settings_bring_the_last_good_one_back() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    table.loads("a", 1, digest(URL));
    table.want(vec![wants("a", URL, "{\"bad\":1}")]);
    assert_eq!(table.candidates("a"), [2]);
    table.refuses("a", 2, digest(URL), digest("x"), Reason::SettingsInvalid, 1);
    assert_eq!(table.candidates("a"), [2, 1]);
    assert_eq!(table.state("a").last_good, Some(1));
    table.want(vec![wants("a", URL, "{\"good\":1}")]);
    assert_eq!(table.candidates("a"), [3]);
}

#[test]
fn v07_v08_v10_an_artifact_that_the_evaluator_cannot_use_is_made_anew() {
    for reason in
        [Reason::ArtifactMissing, Reason::ArtifactCorrupt, Reason::ArtifactIncompatible, Reason::ArtifactUnreadable]
    {
        let mut table = Table::new();
        table.want(vec![wants("a", URL, "{}")]);
        table.settle();
        let number = table.number;
        table.refuses("a", 1, digest(URL), digest(URL), reason, 0);
        assert_eq!(table.jobs(), ["prepare anew"]);
        table.settle();
        assert_eq!(table.number, number + 1, "told under a new number, though nothing changed");
        // The same again: not before a pause.
        table.refuses("a", 1, digest(URL), digest(URL), reason, 0);
        assert_eq!(table.jobs(), Vec::<String>::new());
        table.pass(Duration::from_secs(1));
        assert_eq!(table.jobs(), ["prepare anew"]);
    }
}

#[test]
fn old_news_of_an_artifact_count_for_nothing() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    table.refuses("a", 1, digest(URL), digest("another artifact"), Reason::ArtifactCorrupt, 0);
    assert_eq!(table.jobs(), Vec::<String>::new());
    table.number -= 1;
    table.refuses("a", 1, digest(URL), digest(URL), Reason::ArtifactCorrupt, 0);
    table.number += 1;
    assert_eq!(table.jobs(), Vec::<String>::new());
}

#[test]
fn k09_a_policy_that_goes_takes_its_work_along() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    assert_eq!(table.jobs().len(), 1);
    table.want(Vec::new());
    assert_eq!(table.jobs(), Vec::<String>::new());
    let manifest = table.manifest.as_ref().expect("a manifest");
    assert!(manifest.policies.is_empty());
    assert_eq!(manifest.groups[0].members.len(), 0, "its group is a tombstone");
    assert!(table.plan.keep().digests.is_empty());
}

#[test]
fn a_policy_that_comes_back_does_not_count_from_one() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    table.want(Vec::new());
    table.want(vec![wants("a", URL, "{\"x\":1}")]);
    assert_eq!(table.state("a").generation, 2);
}

#[test]
fn v01_v02_a_volume_that_fails_is_told_and_tried_again() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    table.want(vec![wants("a", URL, "{\"x\":1}")]);
    table.pass(Duration::from_secs(1));
    table.plan.turn(table.now);
    table.pass(Duration::from_secs(1));
    assert!(table.plan.turn(table.now).publish.is_some());
    table.plan.published(Err(setback(Reason::VolumeReadOnly)), table.now);
    assert!(table.plan.turn(table.now).publish.is_none(), "not at once");
    let state = table.plan.state(&Program::default());
    assert_eq!(state.volume_failure.map(|failure| failure.reason), Some(Reason::VolumeReadOnly));
    let policy = table.state("a");
    assert_eq!(
        (policy.phase, policy.failure.map(|failure| failure.reason)),
        (Phase::Failed, Some(Reason::VolumeReadOnly))
    );
    table.pass(Duration::from_secs(1));
    assert_eq!(table.candidates("a"), [2]);
    assert!(table.plan.state(&Program::default()).volume_failure.is_none());
}

#[test]
fn a_lost_manifest_is_published_again() {
    let mut table = Table::new();
    table.want(Vec::new());
    table.jobs();
    table.plan.manifest_lost();
    table.jobs();
    assert_eq!(table.number, 2);
}

#[test]
fn hosts_tell_how_they_do() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}"), wants("b", "https://other.org/b", "{}")]);
    table.jobs();
    table.fetched(URL, Err(Reason::TLSFailed));
    table.fetched("https://other.org/b", Ok("b"));
    let sources = table.plan.state(&Program::default()).sources;
    assert_eq!(sources.iter().map(|source| source.host.as_str()).collect::<Vec<_>>(), ["example.com", "other.org"]);
    assert_eq!(sources[0].policy.as_ref().map(PolicyId::as_str), Some("a"));
    assert!(sources[1].failure.is_none());
    table.plan.outside_changed();
    assert_eq!(table.jobs(), ["fetch https://example.com/a", "prepare"], "a new authority is tried at once");
}

#[test]
fn what_is_kept_is_what_somebody_names() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    table.loads("a", 1, digest(URL));
    table.want(vec![wants("a", "https://example.com/b", "{}")]);
    table.settle();
    let keep = table.plan.keep();
    assert!(keep.digests.contains(&digest(URL)) && keep.digests.contains(&digest("https://example.com/b")));
}
