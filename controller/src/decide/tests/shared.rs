//! Webhooks that policies of different rules share.

use portcullis_contract::WebhookKind;
use serde_json::json;

use super::*;
use crate::desired::Desired;

impl Stage {
    fn sharing() -> Self {
        let mut stage = Self::new();
        stage.rules.shares_webhooks = true;
        stage
    }

    /// A policy with a revision that shares its webhook, with these marks.
    fn share(&mut self, policy: &P, marks: &[&str]) {
        let content = self.content(policy).expect("a content").sharing(true);
        self.put(policy.clone());
        let group = (content.group, content.part.kind);
        self.revision_changed(policy, marks, Some(&group), |object| object["data"]["shared"] = json!(true));
    }

    /// The resources in the rules of the webhook that is to be written; `None` if none is.
    fn written(&mut self) -> Option<(Box<Desired>, String)> {
        let desired = self.decide().into_iter().find_map(|action| match action {
            Action::TryWebhook { desired, .. }
            | Action::CreateWebhook { desired, .. }
            | Action::ChangeWebhook { desired, .. } => Some(desired),
            _ => None,
        })?;
        let rules = crate::desired::registered(&desired.entries);
        let words: BTreeSet<_> = rules.into_iter().flat_map(|rule| rule.resources).collect();
        Some((desired, words.into_iter().collect::<Vec<_>>().join(" ")))
    }

    /// Writes that webhook, and proves it if `is_proven`.
    fn write(&mut self, group: &GroupId, is_proven: bool) -> String {
        let (desired, words) = self.written().expect("a webhook to write");
        let mut object = desired.object();
        object["metadata"]["uid"] = json!("uid-of-webhook");
        self.take(Collection::Webhooks(WebhookKind::Validating), object);
        if is_proven {
            self.prove(group.clone());
        }
        words
    }

    fn shared_group(&self, policy: &P) -> GroupId {
        self.content(policy).expect("a content").sharing(true).group
    }
}

#[test]
fn a_shared_webhook_keeps_the_rules_of_a_member_that_is_not_reported_yet() {
    let mut stage = Stage::sharing();
    let members = ["pods", "services"].map(|resource| policy(resource).on(resource).everywhere());
    let group = stage.shared_group(&members[0]);
    members.iter().for_each(|member| stage.share(member, &["served"]));
    assert_eq!(stage.write(&group, true), "pods services");
    // Another controller leads, and one watch lags behind the others.
    stage.memory = Memory::new(stage.start);
    stage.world.policies.remove("uid-services");
    assert!(stage.written().is_none(), "the rules stay");
    stage.pass(30);
    assert!(stage.written().is_none(), "it is asked whether that member exists");
    stage.gone(&members[1]);
    let (_, words) = stage.written().expect("a webhook to write");
    assert_eq!(words, "pods");
}

#[test]
fn a_shared_webhook_has_the_rules_of_the_members_that_all_replicas_serve() {
    let mut stage = Stage::sharing();
    let (first, second) = (policy("a").everywhere(), policy("b").on("services"));
    let group = stage.shared_group(&first);
    assert_eq!(group, stage.shared_group(&second));
    stage.share(&first, &["served"]);
    stage.share(&second, &[]);
    assert_eq!(stage.write(&group, true), "pods");
    let actions = stage.actions();
    assert!(actions.contains(&"a True Registered at 1".to_owned()), "{actions:?}");
    stage.pass(6);
    let actions = stage.actions();
    assert!(actions.contains(&"b False WaitingForReplicas at 1".to_owned()), "{actions:?}");

    stage.put(second.clone().everywhere());
    assert_eq!(stage.write(&group, false), "pods services");
    let actions = stage.actions();
    assert!(actions.contains(&"prove with a-1".to_owned()), "{actions:?}");
    assert!(!actions.iter().any(|action| action.starts_with("b True")), "not called for it yet: {actions:?}");
    stage.prove(group);
    let actions = stage.actions();
    assert!(actions.contains(&"b True Registered at 1".to_owned()), "{actions:?}");

    // Replicas that fail later change nothing.
    stage.put(second);
    assert!(stage.written().is_none());
}

#[test]
fn an_edit_of_rules_leaves_no_gap_in_what_both_generations_match() {
    let mut stage = Stage::sharing();
    let on = |resources: &[&str]| {
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": resources, "operations": ["CREATE"]});
        policy("a").spec("rules", json!([rule]))
    };
    let before = on(&["pods", "services"]).everywhere();
    let group = stage.shared_group(&before);
    stage.share(&before, &["served"]);
    assert_eq!(stage.write(&group, true), "pods services");
    let edited = on(&["services", "secrets"]).generation(2);
    stage.share(&before, &["served", "withdrawn"]);
    stage.share(&edited, &[]);
    assert_eq!(stage.write(&group, true), "services");
    assert!(stage.written().is_none());
    let wildcard = on(&["*/*"]).generation(3);
    stage.share(&edited, &["withdrawn"]);
    stage.share(&wildcard, &[]);
    assert!(stage.written().is_none(), "what is registered is within the new rules");
    stage.put(wildcard.everywhere());
    assert_eq!(stage.write(&group, true), "*/*");
}

#[test]
fn a_deleted_member_takes_its_rules_with_it() {
    let mut stage = Stage::sharing();
    let (first, second) = (policy("a").everywhere(), policy("b").on("services").everywhere());
    let group = stage.shared_group(&first);
    stage.share(&first, &["served"]);
    stage.share(&second, &["served"]);
    assert_eq!(stage.write(&group, true), "pods services");
    stage.put(second.deleting());
    assert_eq!(stage.write(&group, true), "pods");
}

#[test]
fn a_policy_for_which_a_shared_webhook_has_no_room_has_its_own() {
    let mut stage = Stage::sharing();
    let on = |name: &str, resources: Vec<String>| {
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": resources, "operations": ["CREATE"]});
        policy(name).spec("rules", json!([rule]))
    };
    let many = |from: u32, to: u32| (from..to).map(|number| format!("r{number}")).collect::<Vec<_>>();
    for (name, from) in [("a", 0), ("b", 100)] {
        stage.share(&on(name, many(from, from + 100)).everywhere(), &["served"]);
    }
    let mut shares = |resources: Vec<String>| {
        stage.put(on("c", resources));
        let actions = stage.decide();
        let object = actions.iter().find_map(|action| match action {
            Action::CreateRevision { object, .. } => Some(object),
            _ => None,
        });
        object.expect("a revision")["data"]["shared"] == json!(true)
    };
    assert!(shares(many(50, 256)));
    assert!(!shares(many(50, 257)));
}

impl Stage {
    fn marks(&mut self) -> Vec<String> {
        self.actions().into_iter().filter(|action| action.starts_with("mark")).collect()
    }
}

#[test]
fn an_edit_of_rules_ends_the_old_ones_only_when_api_servers_call_for_the_new_ones() {
    let mut stage = Stage::sharing();
    let (old, new) = (policy("a").everywhere(), policy("a").on("services").generation(2));
    let group = stage.shared_group(&old);
    stage.share(&old, &["served"]);
    assert_eq!(stage.write(&group, true), "pods");
    stage.share(&new, &[]);
    // The old rules stay until the number of replicas is known and all of them serve the edit.
    for counts in [json!({"expected": 2, "current": 1}), json!({"expected": 2}), json!({})] {
        stage.put(new.clone().status("replicaCounts", counts).condition("True", "Registered", 1));
        assert_eq!(stage.marks(), NOTHING);
        assert!(stage.written().is_none());
        stage.pass(600);
    }
    stage.put(new.clone().everywhere().condition("False", "WaitingForReplicas", 2));
    assert_eq!(stage.write(&group, false), "pods services");
    assert_eq!(stage.marks(), NOTHING, "API servers may not know it yet");
    stage.prove(group.clone());
    assert_eq!(stage.marks(), ["mark a-1 withdrawn=true"]);
    stage.put(new.clone().everywhere().condition("True", "Registered", 2));
    stage.share(&old, &["served", "withdrawn"]);
    stage.put(new.everywhere().condition("True", "Registered", 2));
    assert_eq!(stage.write(&group, true), "services");
}

#[test]
fn an_edit_of_a_selector_ends_the_old_one_when_every_replica_has_the_new_one() {
    let mut stage = Stage::sharing();
    let on = |app: &str| policy("a").spec("objectSelector", json!({"matchLabels": {"app": app}}));
    let (old, new) = (on("shop").everywhere(), on("bank").generation(2));
    let group = stage.shared_group(&old);
    stage.share(&old, &["served"]);
    assert_eq!(stage.write(&group, true), "pods");
    stage.share(&new, &[]);
    assert_eq!(stage.marks(), NOTHING);
    stage.put(new.everywhere());
    assert_eq!(stage.marks(), ["mark a-1 withdrawn=true"]);
    assert!(stage.written().is_none());
}

#[test]
fn generations_that_were_never_called_and_edits_of_a_suspended_policy_leave_nothing_behind() {
    let mut stage = Stage::sharing();
    let on = |resource: &str, generation: i64| policy("a").on(resource).generation(generation);
    let first = on("pods", 1).everywhere();
    let group = stage.shared_group(&first);
    stage.share(&first, &["served"]);
    assert_eq!(stage.write(&group, true), "pods");
    stage.share(&on("services", 2), &[]);
    stage.share(&on("secrets", 3), &[]);
    assert_eq!(stage.marks(), ["mark a-2 withdrawn=true"]);
    let suspended = on("secrets", 3).spec("suspend", json!(true));
    stage.share(&suspended, &[]);
    assert_eq!(stage.marks(), ["mark a-1 withdrawn=true", "mark a-2 withdrawn=true"]);
}

#[test]
fn a_generation_that_was_called_stays_although_no_replica_could_load_it() {
    let mut stage = Stage::sharing();
    let on = |resource: &str, generation: i64| policy("a").on(resource).generation(generation);
    let group = stage.shared_group(&on("pods", 1));
    stage.share(&on("pods", 1), &["served", "withdrawn"]);
    stage.share(&on("services", 2).everywhere(), &[]);
    assert_eq!(stage.write(&group, true), "services");
    stage.decide();
    // The condition is already about the edit.
    stage.share(&on("secrets", 3).condition("False", "WaitingForReplicas", 3), &[]);
    assert_eq!(stage.marks(), NOTHING);
}

#[test]
fn a_registered_webhook_gets_no_rules_of_a_member_that_may_not_be_called() {
    let mut stage = Stage::sharing();
    let (old, new) = (policy("a").everywhere(), policy("a").on("services").generation(2));
    let group = stage.shared_group(&old);
    stage.share(&old, &["served"]);
    assert_eq!(stage.write(&group, true), "pods");
    // An earlier release has withdrawn it at once.
    stage.share(&old, &["served", "withdrawn"]);
    stage.share(&new, &[]);
    assert!(stage.written().is_none(), "the webhook stays as it is");
    stage.memory = Memory::new(stage.start);
    assert!(stage.written().is_none(), "also for a new controller");
    stage.put(new.everywhere());
    assert_eq!(stage.write(&group, true), "services");
}

#[test]
fn z10_generations_that_a_shared_webhook_may_call_have_a_size_together() {
    let mut stage = Stage::sharing();
    let text = "x".repeat(750 << 10);
    let at = |generation: i64| {
        let on = policy("a").on(&format!("r{generation}")).generation(generation);
        on.spec("settings", json!({"text": text}))
    };
    (1..=5).for_each(|generation| stage.share(&at(generation), &["served"]));
    stage.put(at(6));
    let actions = stage.actions();
    assert!(actions.contains(&"a False QuotaExceeded at 6".to_owned()), "{actions:?}");
    (1..=5).for_each(|generation| stage.share(&at(generation), &[]));
    stage.put(at(6));
    let actions = stage.actions();
    assert!(actions.contains(&"revision 6".to_owned()), "they were never called: {actions:?}");
}

#[test]
fn a_member_that_was_uninstalled_says_so_until_its_marks_are_taken_back() {
    let mut stage = Stage::sharing();
    let (first, left) = (policy("a").everywhere(), policy("b").everywhere().condition("False", "Uninstalled", 1));
    let group = stage.shared_group(&first);
    stage.share(&first, &["served"]);
    stage.share(&left, &["served"]);
    stage.write(&group, true);
    let actions = stage.actions();
    let stays = ["mark b-1 served=false", "b False Uninstalled at 1"].map(str::to_owned);
    assert!(actions.ends_with(&stays), "{actions:?}");
    let value = ConditionValue { status: Truth::Unknown, reason: "Unknown", message: "not called".into() };
    let failed = FailedProof { value, keeps_earlier: false };
    stage.memory.groups.get_mut(&group).expect("a group").unproven = Some(failed);
    let actions = stage.actions();
    assert!(actions.ends_with(&stays), "{actions:?}");
}

#[test]
fn a_shared_webhook_that_is_missing_comes_back_with_the_rules_of_a_generation_that_was_withdrawn() {
    let mut stage = Stage::sharing();
    let other = policy("b").on("services").everywhere().condition("True", "Registered", 1);
    let broken = policy("a").generation(2).spec("module", json!("broken")).condition("False", "CABundleInvalid", 2);
    stage.share(&other, &["served"]);
    stage.share(&policy("a"), &["served", "withdrawn"]);
    stage.share(&broken, &[]);
    let (_, words) = stage.written().expect("a webhook to write");
    assert_eq!(words, "pods services");
    // An edit of its rules is not called before every replica has it.
    stage.share(&broken.on("secrets"), &[]);
    let (_, words) = stage.written().expect("a webhook to write");
    assert_eq!(words, "services");
}
