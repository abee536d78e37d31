//! Objects in, exact actions out.

mod deletion;
mod fair;
mod groups;
mod own_namespace;
mod policies;
mod policy_checks;
mod repaired;
mod restored;
mod reverted;
mod revisions;
mod shared;
mod uninstalled;
mod unreadable;
mod webhook_quota;
mod webhook_timeouts;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_api::{Kind, Truth};
use portcullis_contract::{GroupId, PathKey, WebhookKind};
use serde_json::{Value, json};

use super::*;
use crate::desired::Installation;
use crate::memory::{ConditionValue, FailedProof};
use crate::world::{Change, Collection};

const POLICIES: Collection = Collection::Policies(Kind::ClusterPolicy);

/// A world that a test builds up, with its memory and its time.
struct Stage {
    world: World,
    memory: Memory,
    rules: Rules,
    start: Instant,
    elapsed: Duration,
    version: u64,
    /// Whether objects come from a list, and not from a watch.
    lists: bool,
}

/// A ClusterPolicy that a test builds up. It begins with generation 1, on pods, held by our finalizer.
#[derive(Clone)]
struct P(Value);

fn policy(name: &str) -> P {
    P(json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 1,
                     "finalizers": ["policies.portcullis.dev/webhooks"]},
        "spec": {"policyServer": "default", "module": "m",
                 "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]},
    }))
}

impl P {
    fn generation(mut self, generation: i64) -> Self {
        self.0["metadata"]["generation"] = json!(generation);
        self
    }

    fn spec(mut self, field: &str, value: Value) -> Self {
        self.0["spec"][field] = value;
        self
    }

    fn on(mut self, resource: &str) -> Self {
        self.0["spec"]["rules"][0]["resources"] = json!([resource]);
        self
    }

    fn without_finalizer(mut self) -> Self {
        self.0["metadata"]["finalizers"] = json!([]);
        self
    }

    fn deleting(mut self) -> Self {
        self.0["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        self
    }

    /// Every replica serves this generation and knows the newest one.
    fn everywhere(mut self) -> Self {
        let generation = self.0["metadata"]["generation"].clone();
        self.0["status"]["observedGeneration"] = generation;
        self.0["status"]["replicaCounts"] = json!({"expected": 2, "current": 2});
        self
    }

    fn status(mut self, field: &str, value: Value) -> Self {
        self.0["status"][field] = value;
        self
    }

    fn condition(self, status: &str, reason: &str, generation: i64) -> Self {
        let condition = json!({"type": "WebhookConfigured", "status": status, "reason": reason, "message": "",
                               "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        self.status("conditions", json!([condition]))
    }
}

/// The defaults of an installation.
pub(super) fn rules() -> Rules {
    Rules {
        policy_server: "default".into(),
        namespace: "portcullis".into(),
        installation: Ok(Installation {
            namespace: "portcullis".into(),
            policy_server: "default".into(),
            service: "policy-server".into(),
            service_port: 443,
            username: "controller".into(),
            owner: None,
            labels: Arc::default(),
            ca_bundle: Arc::new("PEM".into()),
            path_key: PathKey::Plain,
        }),
        webhook_labels: Arc::default(),
        policy_timeout: 2,
        policies_per_namespace: 100,
        webhooks_per_namespace: 20,
        shares_webhooks: false,
        check_timeout: None,
        webhook_pause: Duration::from_secs(5),
        revision_pause: Duration::from_secs(2),
        waiting_event: Duration::from_secs(300),
    }
}

impl Stage {
    fn new() -> Self {
        let mut world = World::new("default");
        Collection::ALL.into_iter().for_each(|collection| world.take(Change::Listed(collection, BTreeSet::new())));
        let start = Instant::now();
        let rules = rules();
        // The memory is older than all pauses that begin with it.
        let memory = Memory::new(start);
        Self { world, memory, rules, start, elapsed: Duration::from_secs(60), version: 0, lists: false }
    }

    fn take(&mut self, collection: Collection, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = serde_json::from_value(object).expect("an object");
        let change = if self.lists { Change::InList } else { Change::Applied };
        self.world.take(change(collection, Box::new(object)));
    }

    fn put(&mut self, policy: P) {
        self.take(POLICIES, policy.0);
    }

    /// The revision of this policy at its generation, with these marks.
    fn revision(&mut self, policy: &P, marks: &[&str]) {
        self.revision_with(policy, marks, None);
    }

    fn revision_with(&mut self, policy: &P, marks: &[&str], problem: Option<&str>) {
        let group = self.content(policy).ok().map(|content| (content.group, content.part.kind));
        self.revision_changed(policy, marks, group.as_ref(), |object| object["data"]["problem"] = json!(problem));
    }

    /// The same with these labels, after `change`.
    fn revision_changed(
        &mut self,
        policy: &P,
        marks: &[&str],
        group: Option<&(GroupId, WebhookKind)>,
        change: impl FnOnce(&mut Value),
    ) {
        let metadata = &policy.0["metadata"];
        let reference = json!({"kind": "ClusterPolicy", "name": metadata["name"], "uid": metadata["uid"]});
        let name = format!("{}-{}", metadata["name"].as_str().unwrap_or_default(), metadata["generation"]);
        let annotations: serde_json::Map<String, Value> =
            marks.iter().map(|mark| (format!("policies.portcullis.dev/{mark}"), json!("true"))).collect();
        let whose: portcullis_api::PolicyReference = serde_json::from_value(reference.clone()).expect("a reference");
        let mut labels = whose.labels("default");
        let group = group.map(|(group, kind)| portcullis_api::revision::group_labels(group, *kind));
        labels.extend(group.into_iter().flatten().map(|(label, value)| (label.to_owned(), value)));
        let mut object = json!({
            "metadata": {"name": name, "uid": format!("uid-of-{name}"), "labels": labels, "annotations": annotations},
            "data": {"policy": reference, "generation": metadata["generation"], "spec": policy.0["spec"]},
            "revision": metadata["generation"],
        });
        change(&mut object);
        self.take(Collection::Revisions, object);
    }

    fn content(&self, policy: &P) -> Result<crate::world::Content, crate::world::Unreadable> {
        let object = serde_json::from_value(policy.0.clone()).expect("an object");
        crate::world::PolicyView::read(Kind::ClusterPolicy, &object).expect("a policy").content
    }

    fn group(&self, policy: &P) -> GroupId {
        self.content(policy).expect("a content").group
    }

    /// The webhook that this policy's group should have.
    fn webhook(&mut self, policy: &P) -> String {
        let content = self.content(policy).expect("a content");
        self.webhook_of(&content, content.timeout_seconds)
    }

    /// The webhook of a group, with a timeout of `seconds`.
    fn webhook_of(&mut self, content: &crate::world::Content, seconds: u32) -> String {
        let installation = self.rules.installation.clone().expect("a installation");
        let desired = crate::desired::desired(&installation, &content.group, &content.part, seconds);
        let mut object = desired.object();
        object["metadata"]["uid"] = json!(format!("uid-of-{}", desired.name));
        self.take(Collection::Webhooks(content.part.kind), object);
        desired.name
    }

    /// Adds the webhook of this policy's group, and proves it.
    fn proven(&mut self, policy: &P) {
        self.webhook(policy);
        let group = self.group(policy);
        self.prove(group);
    }

    /// Writes the webhooks that are to be created or changed, as the loop does, and returns how many.
    fn write_webhooks(&mut self) -> usize {
        self.write_webhooks_through(|_| ())
    }

    /// The same with an admission plugin that changes what is written.
    fn write_webhooks_through(&mut self, plugin: impl Fn(&mut Value)) -> usize {
        let actions = self.decide();
        let writes = actions.iter().filter_map(|action| match action {
            Action::CreateWebhook { desired, .. }
            | Action::ChangeWebhook { desired, .. }
            | Action::CreateCheckWebhook { desired, .. }
            | Action::ChangeCheckWebhook { desired, .. } => Some((action, desired)),
            _ => None,
        });
        let mut count = 0;
        for (action, desired) in writes {
            self.version += 1;
            count += 1;
            let mut object = desired.object();
            object["metadata"]["uid"] = json!(format!("uid-of-{}", desired.name));
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            plugin(&mut object);
            let object = serde_json::from_value(object).expect("an object");
            let change = Change::Answered(Collection::Webhooks(desired.kind), Box::new(object));
            self.memory.wrote(action, &change);
            self.world.take(change);
        }
        count
    }

    /// Records that the present webhook of a group is proven.
    fn prove(&mut self, group: GroupId) {
        self.decide();
        let webhook = self.world.webhooks.values().find(|one| one.name.ends_with(group.as_str())).expect("a webhook");
        let proven = (webhook.uid.clone(), Arc::clone(&webhook.entries));
        self.memory.groups.entry(group).or_default().proven = Some(proven);
    }

    /// Records that we deleted this webhook.
    fn unregistered(&mut self, name: &str) {
        let webhook = self.world.webhooks.values().find(|one| one.name == name).expect("a webhook");
        self.memory.unregistered("default", webhook.kind, name, &webhook.uid);
        self.world.webhooks.retain(|_, one| one.name != name);
    }

    fn decide(&mut self) -> Vec<Action> {
        let clock = "2026-01-02T00:00:00Z".parse().expect("a time");
        let now = Now { instant: self.start + self.elapsed, wall: clock };
        let decision = decide(&self.world, &mut self.memory, &self.rules, now);
        [decision.actions, decision.refusals].concat()
    }

    fn pass(&mut self, seconds: u64) {
        self.elapsed += Duration::from_secs(seconds);
    }

    /// Records that an API server said that this policy does not exist.
    fn gone(&mut self, policy: &P) {
        self.memory.gone.insert(policy.0["metadata"]["uid"].as_str().expect("a uid").to_owned());
    }

    /// The actions in short: `verb object`, and for conditions and marks their content.
    fn actions(&mut self) -> Vec<String> {
        self.decide().iter().map(short).collect()
    }

    /// Records that an API server accepted the webhook of this policy in a dry run.
    fn tried(&mut self, policy: &P) {
        let group = self.group(policy);
        self.memory.groups.entry(group).or_default().tried = Some(Ok(()));
    }
}

fn short(action: &Action) -> String {
    match action {
        Action::Hold(policy) => format!("hold {}", policy.name),
        Action::FindPolicy(policy) => format!("find {}", policy.name),
        Action::Release(policy) => format!("release {}", policy.name),
        Action::CreateRevision { object, .. } => format!("revision {}", object["revision"]),
        Action::Mark { name, labels, annotations, .. } => {
            let marks: Vec<_> = labels
                .iter()
                .chain(annotations)
                .map(|(key, value)| format!("{}={value}", key.trim_start_matches("policies.portcullis.dev/")))
                .collect();
            format!("mark {name} {}", marks.join(" "))
        }
        Action::DeleteRevision { name, .. } => format!("remove {name}"),
        Action::TryWebhook { .. } => "try".to_owned(),
        Action::CreateWebhook { repaired, .. } => {
            format!("register{}", if repaired.is_some() { " again" } else { "" })
        }
        Action::ChangeWebhook { repaired, .. } => format!("change{}", if repaired.is_some() { " back" } else { "" }),
        Action::DeleteWebhook { .. } => "unregister".to_owned(),
        Action::CreateCheckWebhook { is_repair, .. } => {
            format!("register checks{}", if *is_repair { " again" } else { "" })
        }
        Action::ChangeCheckWebhook { is_repair, .. } => {
            format!("change checks{}", if *is_repair { " back" } else { "" })
        }
        Action::Prove { revision, .. } => format!("prove with {revision}"),
        Action::SetCondition { policy, condition, .. } => {
            format!("{} {:?} {} at {}", policy.name, condition.status, condition.reason, condition.observed_generation)
        }
        Action::Warn(warning) => format!("tell {} {}", warning.policy.name, warning.reason),
    }
}

const NOTHING: [&str; 0] = [];

#[test]
fn nothing_is_decided_before_every_list_is_whole() {
    let mut stage = Stage::new();
    stage.world = World::new("default");
    stage.put(policy("a").without_finalizer());
    assert_eq!(stage.actions(), NOTHING);
}
