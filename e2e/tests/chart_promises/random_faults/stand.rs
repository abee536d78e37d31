//! The installation that suffers the faults, with its policies and callers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use portcullis_e2e::{Answer, Cluster, Container, Load, Policy, Release, eventually_within};
use serde_json::{Value, json};

use super::assess::{Assessment, Excuses, Expected, assess};
use super::fault::{Edit, Fault, VICTIMS};
use super::tally::Tally;
use super::usage::Usages;
use super::victim::{self, SECRET, Victim};
use crate::stage::{CONTROLLERS, REPLICAS, Stage};

/// The beginning of the canary's denials.
pub(super) const CANARY_SAYS: &str = "privileged containers are not allowed: ";

/// The number of calls per second that the canary must admit, and also of those that it must deny.
const CANARY_CALLS: u32 = 25;

/// The number of calls per second that two of the edited policies must deny.
const VICTIM_CALLS: u32 = 10;

/// The number of calls of each kind before the first fault.
const CALLS_BEFORE: usize = 50;

/// The shortest run of which [`MOST_EXCUSED`] is asserted: in a shorter one, a single slow restart may take most of the time.
const LONG_RUN: Duration = Duration::from_secs(600);

/// The largest share of a run in which calls may break. It is about a half: one fault in twelve ends a program that answers calls, without
/// warning, and calls may break until everything is back.
const MOST_EXCUSED: f64 = 0.75;

/// The time limit for the recovery after a fault.
pub(super) const BACK: Duration = Duration::from_secs(240);

/// The object that a call creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    PlainPod,
    PrivilegedPod,
    ConfigMap,
}

pub(super) struct Stand {
    pub(super) release: &'static Release<'static>,
    pub(super) cluster: &'static Cluster,
    pub(super) canary: Policy,
    pub(super) victims: Vec<Victim>,
    /// The policy that comes and goes.
    pub(super) passing: Policy,
    pub(super) namespace: String,
    /// The number of replicas that the policy server is scaled to.
    pub(super) wanted: usize,
    /// How often each container of a pod was killed, by the pod's uid.
    pub(super) kills: HashMap<(String, String), u64>,
    pub(super) excuses: Excuses,
    loads: Vec<(Asks, Load)>,
    pub(super) tally: Tally,
    /// The usage before the first fault.
    pub(super) before: Usages,
    pub(super) start: Instant,
}

impl Stand {
    /// Applies all policies, waits until they are Ready, and starts the callers.
    pub(super) fn new(stage: &Stage, cluster: &'static Cluster) -> Self {
        let (release, namespace) = (stage.release(), stage.namespace());
        let canary = release.cluster_policy("canary").example("no-privileged");
        // Two victims share a match group of their own, and one in mode monitor is in the canary's group.
        let victims: [Policy; VICTIMS] = [
            release.cluster_policy("first").on(&["configmaps"]),
            release.cluster_policy("second").on(&["configmaps"]),
            release.cluster_policy("watching").field("mode", "monitor"),
        ];
        let mut stand = Self {
            release,
            cluster,
            victims: victims.into_iter().map(Victim::new).collect(),
            passing: release.cluster_policy("passing").on(&["services"]).denying("passing says no."),
            canary,
            namespace,
            wanted: REPLICAS,
            kills: HashMap::new(),
            excuses: Excuses::default(),
            loads: Vec::new(),
            tally: Tally::default(),
            before: Usages::default(),
            start: Instant::now(),
        };
        release.apply_ready(std::slice::from_ref(&stand.canary));
        for victim in &mut stand.victims {
            victim.edit(release, Edit::Good);
        }
        for victim in &mut stand.victims {
            victim.policy().wait_for(&release.api(), "Ready", "True");
            victim.look(&release.api());
        }
        // Restarts by earlier tests must not count in this one.
        stand.kills = stand.restarts();
        stand.loads = [Asks::PlainPod, Asks::PrivilegedPod, Asks::ConfigMap].map(|asks| stand.call(asks)).into();
        // A program that was never asked uses less than one that serves.
        stand.loads.iter().for_each(|(_, load)| load.wait_for(CALLS_BEFORE));
        stand.before = Usages::of(release);
        stand.start = Instant::now();
        stand
    }

    fn call(&self, asks: Asks) -> (Asks, Load) {
        let pod = |is_privileged: bool| {
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "generateName": "asked-", "annotations": { "password": SECRET } },
                "spec": { "schedulerName": "nobody", "containers": [{
                    "name": "main", "image": "example.invalid/none", "securityContext": { "privileged": is_privileged },
                }] },
            })
        };
        let (resource, object, per_second) = match asks {
            Asks::PlainPod => ("pods", pod(false), CANARY_CALLS),
            Asks::PrivilegedPod => ("pods", pod(true), CANARY_CALLS),
            Asks::ConfigMap => {
                let data = json!({ "password": SECRET });
                let object = json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "generateName": "asked-" }, "data": data,
                });
                ("configmaps", object, VICTIM_CALLS)
            }
        };
        (asks, self.release.load_of(&self.namespace, resource, &object, per_second))
    }

    /// Causes a fault. If it takes one of several replicas away, waits before until all of them are back.
    pub(super) fn suffer(&mut self, fault: &Fault) {
        if fault.takes_one_of_several() {
            self.settle();
        }
        println!("{:7.1} s: {fault:?}", self.start.elapsed().as_secs_f64());
        self.tally.fault(fault);
        if fault.breaks_calls() {
            self.excuses.begin(Instant::now());
        }
        self.perform(fault);
    }

    /// Waits until all killed containers are back, and all pods exist and are ready.
    pub(super) fn settle(&mut self) {
        eventually_within(BACK, "containers that start again after they were killed", || {
            self.restarts()
                .iter()
                .all(|(key, count)| self.kills.get(key).is_none_or(|kills| count >= kills))
                .then_some(())
        });
        for name in ["portcullis-policy-server", "portcullis-controller"] {
            let path = format!("/apis/apps/v1/namespaces/{}/deployments/{name}", self.release.namespace());
            let is_done = || self.release.api().get(&path).filter(is_rolled_out).map(drop);
            eventually_within(BACK, &format!("the rollout of {name}"), is_done);
        }
        self.release.wait_for_replicas(self.wanted);
        eventually_within(BACK, "ready controllers", || {
            let pods = self.release.controllers();
            (pods.len() == CONTROLLERS && pods.iter().all(all_ready)).then_some(())
        });
        self.excuses.end(Instant::now());
    }

    /// Judges all answers since the last look, notes which versions are Ready, and asserts that no container restarted by itself.
    pub(super) fn look(&mut self) {
        for index in 0..self.loads.len() {
            let (asks, answers) = (self.loads[index].0, self.loads[index].1.take());
            self.assess(asks, &answers);
        }
        for victim in &mut self.victims {
            victim.look(&self.release.api());
        }
        for (key, count) in self.restarts() {
            let kills = self.kills.get(&key).copied().unwrap_or_default();
            assert!(count <= kills, "{key:?} was started again {count} times, and killed {kills} times");
        }
    }

    fn assess(&mut self, asks: Asks, answers: &[Answer]) {
        let expected = match asks {
            Asks::PlainPod => Expected::Admitted,
            Asks::PrivilegedPod => Expected::Denied(CANARY_SAYS),
            Asks::ConfigMap => Expected::DeniedByAll(self.victims[..2].iter().map(|victim| &victim.history).collect()),
        };
        for answer in answers {
            assert!(!answer.message.contains(SECRET), "{asks:?}: an answer tells a secret (I4): {answer:?}");
            let assessment = assess(answer, &expected, &self.excuses);
            assert!(
                assessment != Assessment::Wrong,
                "{asks:?} at {:.1} s must be {expected:?}, and is {answer:?}",
                answer.sent.saturating_duration_since(self.start).as_secs_f64(),
            );
            let took = answer.answered.saturating_duration_since(answer.sent);
            self.tally.answer(assessment, took, self.excuses.cover(answer));
        }
    }

    /// How often each container was restarted, for all existing pods.
    fn restarts(&self) -> HashMap<(String, String), u64> {
        let pods = [self.release.pods(), self.release.controllers()].concat();
        let restarts = |pod: &Value| {
            let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
            let statuses = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
            statuses.into_iter().map(move |status| {
                let name = status["name"].as_str().unwrap().to_owned();
                ((uid.clone(), name), status["restartCount"].as_u64().unwrap_or_default())
            })
        };
        pods.iter().flat_map(restarts).collect()
    }

    /// Kills a container if it runs, and counts that.
    pub(super) fn kill(&mut self, pod: &Value, container: &str) {
        if let Some(process) = Container::of(pod, container) {
            process.kill();
            let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
            *self.kills.entry((uid, container.to_owned())).or_default() += 1;
        }
    }

    /// Applies a policy that is not a victim.
    pub(super) fn apply(&self, policy: &Policy) {
        victim::apply(&self.release.api(), policy, &policy.manifest(self.release.source()));
    }

    /// Ends the calls, assesses the last of them, and asserts that most of the run was assessed.
    pub(super) fn end_calls(&mut self) {
        for (asks, load) in std::mem::take(&mut self.loads) {
            let answers = load.end_after(200);
            self.assess(asks, &answers);
        }
        let (now, Tally { right, broken, .. }) = (Instant::now(), &self.tally);
        assert!(right > broken, "hardly anything was assessed: {right} right answers, {broken} broken ones");
        let (excused, run) = (self.excuses.total(now), now.duration_since(self.start));
        assert!(
            run < LONG_RUN || excused <= run.mul_f64(MOST_EXCUSED),
            "calls might break in {excused:.0?} of {run:.0?}, which proves too little",
        );
    }
}

/// Whether all pods of a Deployment are of its newest template, and are ready.
fn is_rolled_out(deployment: &Value) -> bool {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && ["replicas", "updatedReplicas", "readyReplicas"].iter().all(|count| status[count] == spec["replicas"])
}

fn all_ready(pod: &Value) -> bool {
    let statuses = pod["status"]["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    !statuses.is_empty() && statuses.iter().all(|status| status["ready"] == true)
}
