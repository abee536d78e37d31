//! Tests of the plan alone: which events come in, which jobs should run, what is published.

mod admission;
mod cluster;
mod failures;
mod members;
mod order;
mod pins;
mod publishing;
mod room;
mod tried;

use std::time::Duration;

use portcullis_broker::Contexts;
use portcullis_contract::{
    Artifact, Current, Deviation, ExecutionMode, Failure, LoaderPolicy, Phase, Program, Refused, ReplicaState,
    WebhookKind,
};
use serde_json::value::RawValue;

use super::*;
use crate::claims::Need;
use crate::content::{DesiredPolicy, Head, hash, uid};
use crate::input::Unreadable;
use crate::problem::Problem;

const SETTINGS: PlanSettings = PlanSettings {
    retry: Retry { initial: Duration::from_secs(1), cap: Duration::from_secs(300), outside: Duration::from_secs(600) },
    tombstone: Duration::from_secs(600),
    keep_newest: 8,
    manifest_size: portcullis_contract::MANIFEST_MAX_BYTES,
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
        declared: None,
    }
}

fn wants(id: &str, module: &str, settings: &str) -> DesiredPolicy {
    let reference = Reference::parse(module, std::path::Path::new("/policies")).expect("an address");
    let group = ("aaaaaaaaaaaaaaaa".parse().expect("a group"), WebhookKind::Validating);
    let head = Head { group: Some(group), ..Head::strict() };
    let settings = RawValue::from_string(settings.to_owned()).expect("JSON");
    let body = Body::module(module.to_owned(), Some(reference), settings);
    DesiredPolicy {
        id: id.parse().expect("an id"),
        file: format!("{id}.yaml"),
        created: None,
        hash: hash(&head, &body),
        head: Some(head),
        body: Ok(body),
        object: None,
    }
}

fn snapshot(policies: Vec<DesiredPolicy>) -> Snapshot {
    Snapshot { policies, ..Snapshot::default() }
}

fn error(reason: Reason) -> AttemptError {
    AttemptError { reason, message: "no".to_owned(), retry_after: None }
}

impl Table {
    fn new() -> Self {
        Self::restored(None)
    }

    fn restored(manifest: Option<Manifest>) -> Self {
        let now = Now::get();
        let artifact_of = |named: &NamedModule<'_>| {
            let (artifact, execution_mode) = (named.module.artifact.clone(), named.module.execution_mode);
            Some(ArtifactRecord { artifact, execution_mode, declared: None })
        };
        let plan = Plan::restore(SETTINGS, Arc::default(), manifest.as_ref(), artifact_of, now);
        let number = manifest.as_ref().map_or(0, |manifest| manifest.number);
        Self { plan, now, number, manifest }
    }

    fn pass(&mut self, time: Duration) {
        self.now = Now { instant: self.now.instant + time, wall: self.now.wall + time };
    }

    fn take(&mut self, event: Event) {
        self.plan.take(event, self.now, 0.5);
    }

    fn ended(&mut self, outcome: Outcome) {
        self.take(Event::Ended(outcome));
    }

    fn want(&mut self, policies: Vec<DesiredPolicy>) {
        self.take(Event::Desired(Arc::new(snapshot(policies))));
    }

    /// Turns until there is nothing left to publish, and returns the jobs that run then. Every policy may have the module that it asks for.
    fn jobs(&mut self) -> Vec<String> {
        self.jobs_with(true)
    }

    fn jobs_with(&mut self, grants: bool) -> Vec<String> {
        loop {
            let turn = self.plan.turn(self.now);
            let asked: Vec<_> = turn.jobs.keys().filter_map(asked).collect();
            if grants && !asked.is_empty() {
                for (reference, digest) in asked {
                    self.ended(Outcome::Admitted(reference.clone(), digest, Ok(Admission::Checked)));
                }
                if let Some(manifest) = turn.publish {
                    self.publish(manifest);
                }
                continue;
            }
            if let Some(manifest) = turn.publish {
                self.publish(manifest);
                continue;
            }
            let gathers = self.plan.publication.wakes_at().filter(|at| *at > self.now.instant);
            if let Some(at) = gathers {
                self.pass(at - self.now.instant);
                continue;
            }
            return turn.jobs.keys().map(name).collect();
        }
    }

    fn publish(&mut self, manifest: Manifest) {
        self.number += 1;
        self.manifest = Some(Manifest { number: self.number, ..manifest });
        self.take(Event::Published(Ok(self.number)));
    }

    fn fetched(&mut self, module: &str, result: Result<&str, Reason>) {
        let reference = Reference::parse(module, std::path::Path::new("/policies")).expect("an address");
        self.ended(Outcome::Fetched(reference.clone(), result.map(digest).map_err(error)));
    }

    fn compiled(&mut self, module: &str) {
        self.ended(Outcome::Prepared(digest(module), Ok(Prepared::Ready(record(module)))));
    }

    /// Ends all jobs with success until there are none; each address gives a module that is named after it.
    fn settle(&mut self) {
        for _ in 0..10 {
            let turn = self.plan.turn(self.now);
            for job in turn.jobs.into_keys() {
                match job {
                    Job::Fetch(reference) => {
                        let module = name(&Job::Fetch(reference.clone()));
                        self.ended(Outcome::Fetched(
                            reference.clone(),
                            Ok(digest(module.trim_start_matches("fetch "))),
                        ));
                    }
                    Job::Admit { reference, digest, .. } => {
                        self.ended(Outcome::Admitted(reference.clone(), digest, Ok(Admission::Checked)))
                    }
                    Job::Prepare { digest, .. } => {
                        let record = ArtifactRecord {
                            artifact: Artifact { file: digest.hex(), sha256: digest, size: 1 },
                            ..record("")
                        };
                        self.ended(Outcome::Prepared(digest, Ok(Prepared::Ready(record))));
                    }
                }
            }
        }
        assert_eq!(self.jobs(), Vec::<String>::new());
    }

    /// Generations of a policy's candidates in the newest manifest.
    fn candidates(&mut self, id: &str) -> Vec<i64> {
        self.candidates_with(true, id)
    }

    fn candidates_with(&mut self, grants: bool, id: &str) -> Vec<i64> {
        self.jobs_with(grants);
        let manifest = self.manifest.as_ref().expect("a manifest");
        let entry = manifest.policies.iter().find(|entry| entry.id.as_str() == id).expect("the policy");
        entry.candidates.iter().map(|candidate| candidate.generation).collect()
    }

    fn state(&self, id: &str) -> LoaderPolicy {
        let state = self.plan.state(&Program::default(), &Contexts::default());
        state.policies.into_iter().find(|policy| policy.id.as_str() == id).expect("the policy")
    }

    /// The evaluator reports that it serves a generation.
    fn loads(&mut self, id: &str, generation: i64, module: Digest) {
        let id: PolicyId = id.parse().expect("an id");
        let current =
            Current { uid: uid(&id), generation, digest: module, members: BTreeMap::new(), since: self.now.wall };
        let state = EvaluatorState {
            manifest_number: self.number,
            current: BTreeMap::from([(id, current)]),
            ..EvaluatorState::default()
        };
        self.take(Event::Evaluator(Arc::new(state)));
    }

    /// The evaluator reports that it refuses a generation, and serves generation `serving` (0 for none).
    fn refuses(&mut self, id: &str, generation: i64, module: Digest, artifact: Digest, reason: Reason, serving: i64) {
        let id: PolicyId = id.parse().expect("an id");
        let failure = Failure::new(generation, reason, "no", self.now.wall);
        let deviation = Deviation {
            uid: uid(&id),
            id,
            generation,
            serving,
            digest: (serving > 0).then_some(module),
            members: BTreeMap::new(),
            state: ReplicaState::Previous,
            failure: Some(failure.clone()),
            refused: vec![Refused { digest: module, module: None, artifact, failure }],
            since: self.now.wall,
        };
        let state =
            EvaluatorState { manifest_number: self.number, deviations: vec![deviation], ..EvaluatorState::default() };
        self.take(Event::Evaluator(Arc::new(state)));
    }
}

fn asked(job: &Job) -> Option<(Reference, Digest)> {
    let Job::Admit { reference, digest, .. } = job else { return None };
    Some((reference.clone(), *digest))
}

fn name(job: &Job) -> String {
    match job {
        Job::Admit { .. } => "admit".to_owned(),
        Job::Fetch(Reference::File(path)) => format!("fetch {}", path.display()),
        Job::Fetch(Reference::Web(url)) => format!("fetch {url}"),
        Job::Fetch(Reference::Registry(image) | Reference::Signed { image, .. }) => format!("fetch {image}"),
        Job::Prepare { recompile: false, .. } => "prepare".to_owned(),
        Job::Prepare { recompile: true, .. } => "prepare again".to_owned(),
    }
}

const URL: &str = "https://example.com/a";
