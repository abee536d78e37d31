//! The installation that things happen to, with its policies and those who call.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use portcullis_e2e::{Answer, Cluster, Container, Load, Policy, Release, eventually_within};
use serde_json::{Value, json};

use super::fault::{Edit, Fault, VICTIMS};
use super::verdict::{Excuses, Expected, Verdict, judge};
use super::victim::{self, SECRET, Victim};
use crate::stage::{REPLICAS, Stage};

/// What the canary denies with.
pub(super) const CANARY_SAYS: &str = "privileged containers are not allowed: ";

/// Calls a second that the canary must admit, and as many that it must deny.
const CANARY_CALLS: u32 = 25;

/// Calls a second that are denied by two policies that are edited.
const VICTIM_CALLS: u32 = 10;

/// How long it may take until all is back, by itself.
pub(super) const BACK: Duration = Duration::from_secs(240);

/// How many controllers there are.
const CONTROLLERS: usize = 2;

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    PlainPod,
    PrivilegedPod,
    ConfigMap,
}

/// What became of the calls.
#[derive(Debug, Default)]
pub(super) struct Count {
    right: usize,
    broken: usize,
}

pub(super) struct Stand {
    pub(super) release: &'static Release<'static>,
    pub(super) cluster: &'static Cluster,
    pub(super) canary: Policy,
    pub(super) victims: Vec<Victim>,
    /// One that comes and goes.
    pub(super) passing: Policy,
    pub(super) namespace: String,
    /// How many replicas are wanted.
    pub(super) wanted: usize,
    /// How often each container of a pod was killed, by the pod's uid.
    pub(super) kills: HashMap<(String, String), u64>,
    excuses: Excuses,
    loads: Vec<(Asks, Load)>,
    count: Count,
    pub(super) start: Instant,
}

impl Stand {
    /// All policies Ready, and callers that call.
    pub(super) fn new(stage: &Stage, cluster: &'static Cluster) -> Self {
        let (release, namespace) = (stage.release(), stage.namespace());
        let canary = release.cluster_policy("canary").example("no-privileged");
        // Two share a match group of their own, and one that only watches is in the canary's.
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
            count: Count::default(),
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
        // What an earlier test has killed is no restart of this one's.
        stand.kills = stand.restarts();
        stand.loads = [Asks::PlainPod, Asks::PrivilegedPod, Asks::ConfigMap].map(|asks| stand.call(asks)).into();
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

    /// Causes a fault. Where it removes one of several, all of them were back before.
    pub(super) fn suffer(&mut self, fault: &Fault) {
        if fault.takes_one_of_several() {
            self.settle();
        }
        println!("{:7.1} s: {fault:?}", self.start.elapsed().as_secs_f64());
        if fault.breaks_calls() {
            self.excuses.begin(Instant::now());
        }
        self.perform(fault);
    }

    /// Waits until all containers that were killed are back, and all pods are there and ready.
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

    /// Judges all answers since it was asked last, and looks what is Ready and what was started again.
    pub(super) fn look(&mut self) {
        for index in 0..self.loads.len() {
            let (asks, answers) = (self.loads[index].0, self.loads[index].1.take());
            self.judge(asks, &answers);
        }
        for victim in &mut self.victims {
            victim.look(&self.release.api());
        }
        for (key, count) in self.restarts() {
            let kills = self.kills.get(&key).copied().unwrap_or_default();
            assert!(count <= kills, "{key:?} was started again {count} times, and killed {kills} times");
        }
    }

    fn judge(&mut self, asks: Asks, answers: &[Answer]) {
        let expected = match asks {
            Asks::PlainPod => Expected::Admitted,
            Asks::PrivilegedPod => Expected::Denied(CANARY_SAYS),
            Asks::ConfigMap => Expected::DeniedByAll(self.victims[..2].iter().map(|victim| &victim.history).collect()),
        };
        for answer in answers {
            match judge(answer, &expected, &self.excuses) {
                Verdict::Right => self.count.right += 1,
                Verdict::Broken => self.count.broken += 1,
                Verdict::Wrong => panic!(
                    "{asks:?} at {:.1} s must be {expected:?}, and is {answer:?}",
                    answer.sent.saturating_duration_since(self.start).as_secs_f64(),
                ),
            }
        }
    }

    /// How often each container of a pod that is there was started again.
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

    /// Kills a container that runs, and remembers that.
    pub(super) fn kill(&mut self, pod: &Value, container: &str) {
        if let Some(process) = Container::of(pod, container) {
            process.kill();
            let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
            *self.kills.entry((uid, container.to_owned())).or_default() += 1;
        }
    }

    /// Applies a policy that is no victim.
    pub(super) fn apply(&self, policy: &Policy) {
        victim::apply(&self.release.api(), policy, &policy.manifest(self.release.source()));
    }

    /// Ends the calls, judges the last of them, and tells how many there were.
    pub(super) fn end_calls(&mut self) {
        for (asks, load) in std::mem::take(&mut self.loads) {
            let answers = load.end_after(200);
            self.judge(asks, &answers);
        }
        println!("{:?}", self.count);
        assert!(self.count.right > self.count.broken, "hardly anything was judged: {:?}", self.count);
    }
}

/// Whether the pods of a Deployment are those of its newest template, and no others.
fn is_rolled_out(deployment: &Value) -> bool {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && ["replicas", "updatedReplicas", "readyReplicas"].iter().all(|count| status[count] == spec["replicas"])
}

fn all_ready(pod: &Value) -> bool {
    let statuses = pod["status"]["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    !statuses.is_empty() && statuses.iter().all(|status| status["ready"] == true)
}
