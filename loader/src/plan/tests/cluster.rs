//! Policies of a cluster: generation numbers, recorded digests, what served elsewhere, groups.

use std::collections::BTreeSet;

use super::*;
use crate::content::{Object, Served};

const OTHER: &str = "https://example.com/b";

/// The policy as generation `generation` of the object `uid`.
pub(super) fn object(mut desired: DesiredPolicy, uid: &str, generation: i64) -> DesiredPolicy {
    desired.object = Some(Object {
        uid: uid.to_owned(),
        generation,
        pins: Pins::default(),
        matches: std::collections::BTreeMap::new(),
        older_groups: BTreeSet::new(),
        last_served: None,
        enforced: false,
        newest_served: false,
        fingerprint: None,
    });
    desired
}

pub(super) fn pinned(mut desired: DesiredPolicy, module: &str) -> DesiredPolicy {
    desired.object.as_mut().expect("an object").pins = Pins::new(Some(digest(module)), BTreeMap::new());
    desired
}

pub(super) fn served(mut desired: DesiredPolicy, generation: i64, module: &str, pin: Option<&str>) -> DesiredPolicy {
    let body = wants("a", module, "{\"old\":1}").body.expect("a body");
    let served = Served { generation, body, pins: Pins::new(pin.map(digest), BTreeMap::new()) };
    let object = desired.object.as_mut().expect("an object");
    (object.last_served, object.enforced) = (Some(served), true);
    desired
}

pub(super) fn broken(mut desired: DesiredPolicy) -> DesiredPolicy {
    desired.body = Err(Problem::new(Reason::SpecInvalid, "spec.rules: no"));
    desired
}

fn members(table: &mut Table, group: &str) -> Option<Vec<String>> {
    table.jobs();
    let groups = &table.manifest.as_ref().expect("a manifest").groups;
    let group = groups.iter().find(|entry| entry.id.as_str() == group)?;
    Some(group.members.iter().map(ToString::to_string).collect())
}

#[test]
fn uid_and_generation_are_the_objects() {
    let mut table = Table::new();
    table.want(vec![object(wants("a", URL, "{}"), "u", 7)]);
    table.settle();
    assert_eq!((table.candidates("a"), table.state("a").uid.as_str()), (vec![7], "u"));
    // The same content under another number is another generation, and under the same number it is not.
    table.want(vec![object(wants("a", URL, "{}"), "u", 9)]);
    assert_eq!(table.candidates("a"), [9]);
    table.want(vec![object(wants("a", URL, "{}"), "u", 9)]);
    assert_eq!(table.candidates("a"), [9]);
    // Deleted and made again: nothing of the old object is left.
    table.want(vec![object(wants("a", OTHER, "{}"), "v", 1)]);
    assert_eq!(table.jobs(), [format!("fetch {OTHER}")]);
    assert_eq!((table.candidates("a"), table.state("a").generation), (Vec::new(), 1));
}

#[test]
fn a_fresh_pod_serves_what_served_elsewhere_when_the_newest_is_broken() {
    let mut table = Table::new();
    table.want(vec![served(broken(object(wants("a", URL, "{}"), "u", 7)), 6, OTHER, Some(OTHER))]);
    assert_eq!(table.jobs(), ["prepare"]);
    table.ended(Outcome::Prepared(digest(OTHER), Ok(Prepared::NoModule)));
    assert_eq!(table.jobs(), [format!("fetch {OTHER}")]);
    table.settle();
    assert_eq!(table.candidates("a"), [6]);
    let entry = &table.manifest.as_ref().expect("a manifest").policies[0];
    assert_eq!((entry.generation, entry.failures[0].reason), (7, Reason::SpecInvalid));
    table.loads("a", 6, digest(OTHER));
}

#[test]
fn what_served_elsewhere_is_fetched_only_when_the_newest_failed() {
    let mut table = Table::new();
    table.want(vec![served(object(wants("a", URL, "{}"), "u", 7), 6, OTHER, Some(OTHER))]);
    assert_eq!(table.jobs(), [format!("fetch {URL}")]);
    table.fetched(URL, Err(Reason::NotFound));
    assert_eq!(table.jobs(), ["prepare"], "what served is looked for on the volume");
    table.ended(Outcome::Prepared(digest(OTHER), Ok(Prepared::NoModule)));
    table.fetched(OTHER, Ok(OTHER));
    table.compiled(OTHER);
    assert_eq!(table.candidates("a"), [6]);
}

#[test]
fn what_served_elsewhere_is_fetched_when_the_evaluator_refuses_the_newest() {
    let mut table = Table::new();
    table.want(vec![served(object(wants("a", URL, "{}"), "u", 7), 6, OTHER, Some(OTHER))]);
    table.settle();
    assert_eq!(table.candidates("a"), [7]);
    let failure = Failure::new(7, Reason::SettingsInvalid, "no", table.now.wall);
    let deviation = Deviation {
        uid: "u".to_owned(),
        id: "a".parse().expect("an id"),
        generation: 7,
        serving: 0,
        digest: None,
        members: BTreeMap::new(),
        state: ReplicaState::Failed,
        failure: Some(failure.clone()),
        refused: vec![Refused { digest: digest(URL), module: None, artifact: digest(URL), failure }],
        since: table.now.wall,
    };
    let state =
        EvaluatorState { manifest_number: table.number, deviations: vec![deviation], ..EvaluatorState::default() };
    table.take(Event::Evaluator(Arc::new(state)));
    table.settle();
    assert_eq!(table.candidates("a"), [7, 6]);
}

#[test]
fn what_served_elsewhere_without_a_recorded_digest_is_what_its_address_gives() {
    let mut table = Table::new();
    table.want(vec![served(broken(object(wants("a", URL, "{}"), "u", 7)), 6, OTHER, None)]);
    assert_eq!(table.jobs(), [format!("fetch {OTHER}")]);
    table.settle();
    assert_eq!(table.candidates("a"), [6]);
    table.want(vec![served(broken(object(wants("a", URL, "{}"), "u", 7)), 6, OTHER, None)]);
    assert_eq!((table.jobs(), table.candidates("a")), (Vec::new(), vec![6]));
}

#[test]
fn what_served_elsewhere_and_is_other_bytes_now_is_not_taken() {
    let mut table = Table::new();
    table.want(vec![served(broken(object(wants("a", URL, "{}"), "u", 7)), 6, OTHER, Some("recorded"))]);
    table.jobs();
    table.ended(Outcome::Prepared(digest("recorded"), Ok(Prepared::NoModule)));
    assert_eq!(table.jobs(), [format!("fetch {OTHER}")]);
    table.fetched(OTHER, Ok("moved"));
    assert_eq!((table.jobs(), table.candidates("a")), (Vec::new(), Vec::new()));
    // The address is asked again later.
    table.pass(SETTINGS.retry.outside);
    assert_eq!(table.jobs(), ["prepare"]);
}

#[test]
fn l11_the_recorded_digest_wins_over_what_the_address_gave() {
    let mut table = Table::new();
    table.want(vec![object(wants("a", URL, "{}"), "u", 1)]);
    table.jobs();
    table.fetched(URL, Ok("late"));
    table.jobs();
    table.compiled("late");
    table.jobs();
    assert_eq!(
        table.state("a").digest,
        Some(digest("late")),
        "the state tells what serves before a digest is recorded"
    );
    table.want(vec![pinned(object(wants("a", URL, "{}"), "u", 1), "first")]);
    assert_eq!(table.jobs(), ["prepare"]);
    assert_eq!(table.candidates("a"), [1], "what serves goes on meanwhile");
    table.ended(Outcome::Prepared(digest("first"), Ok(Prepared::NoModule)));
    assert_eq!(table.jobs(), [format!("fetch {URL}")]);
    table.fetched(URL, Ok("late"));
    table.jobs();
    let failure = table.state("a").failure.expect("fails");
    assert_eq!(failure.reason, Reason::DigestMismatch);
    let told = |module: &str| failure.message.contains(&digest(module).to_string());
    assert!(told("first") && told("late"), "{}", failure.message);
    // In the end the source gives the right bytes.
    table.pass(SETTINGS.retry.outside);
    table.jobs();
    table.ended(Outcome::Prepared(digest("first"), Ok(Prepared::NoModule)));
    table.fetched(URL, Ok("first"));
    table.compiled("first");
    table.jobs();
    let manifest = table.manifest.as_ref().expect("a manifest");
    assert_eq!(manifest.policies[0].candidates[0].digest, digest("first"));
    assert!(table.state("a").failure.is_none());
}

#[test]
fn k09_a_policy_that_is_forgotten_takes_its_work_along() {
    let mut table = Table::new();
    table.want(vec![object(wants("a", URL, "{}"), "u", 1)]);
    assert_eq!(table.jobs().len(), 1);
    table.want(Vec::new());
    assert_eq!((table.jobs(), table.plan.keep().digests.len()), (Vec::new(), 0));
    // When it is created again, the API server's generation number counts.
    table.want(vec![object(wants("a", URL, "{}"), "v", 1)]);
    assert_eq!(table.state("a").generation, 1);
}

#[test]
fn w14_revisions_say_which_groups_ask_a_policy() {
    let (old, new) = ("bbbbbbbbbbbbbbbb", "aaaaaaaaaaaaaaaa");
    let both = |table: &mut Table, older: &[&str]| {
        let mut desired = object(wants("a", URL, "{}"), "u", 2);
        desired.object.as_mut().expect("an object").older_groups =
            older.iter().map(|group| (group.parse().expect("a group"), WebhookKind::Validating)).collect();
        table.want(vec![desired]);
    };
    let mut table = Table::new();
    both(&mut table, &[old]);
    assert_eq!(members(&mut table, old), Some(vec!["a".to_owned()]));
    table.pass(2 * SETTINGS.tombstone);
    assert_eq!(members(&mut table, old), Some(vec!["a".to_owned()]), "for as long as the revisions say so");
    both(&mut table, &[]);
    assert_eq!(members(&mut table, old), Some(Vec::new()), "out at once, and the group is a tombstone");
    assert_eq!(members(&mut table, new), Some(vec!["a".to_owned()]));
    table.pass(SETTINGS.tombstone);
    assert_eq!(members(&mut table, old), None);
}

/// Whether the manifest says that the policy was ever enforced; the state must say the same.
fn enforced(table: &mut Table) -> bool {
    table.jobs();
    let entry = &table.manifest.as_ref().expect("a manifest").policies[0];
    assert_eq!(entry.enforced, table.state("a").enforced);
    entry.enforced
}

fn marked(mut desired: DesiredPolicy) -> DesiredPolicy {
    desired.object.as_mut().expect("an object").enforced = true;
    desired
}

#[test]
fn w04_in_a_cluster_the_marks_say_what_was_enforced_and_nothing_else() {
    let mut table = Table::new();
    table.want(vec![object(wants("a", URL, "{}"), "u", 1)]);
    assert!(!enforced(&mut table), "it is being fetched");
    table.settle();
    // This replica has loaded it, and perhaps no other one has.
    let current = Current {
        uid: "u".to_owned(),
        generation: 1,
        digest: digest(URL),
        members: BTreeMap::new(),
        since: table.now.wall,
    };
    let state = EvaluatorState {
        manifest_number: table.number,
        current: BTreeMap::from([("a".parse().expect("an id"), current)]),
        ..EvaluatorState::default()
    };
    table.take(Event::Evaluator(Arc::new(state)));
    assert!(!enforced(&mut table));
    table.want(vec![marked(object(wants("a", URL, "{}"), "u", 1))]);
    assert!(enforced(&mut table), "the mark alone makes another manifest");
    // Nothing of this changes it: a broken generation, another match part, a restart of the loader.
    table.want(vec![marked(broken(object(wants("a", URL, "{}"), "u", 2)))]);
    assert!(enforced(&mut table));
    let mut again = Table::restored(table.manifest.clone());
    again.want(vec![marked(broken(object(wants("a", URL, "{}"), "u", 2)))]);
    assert!(enforced(&mut again));
    // A fresh pod says the same. Another object with the same name starts as not enforced.
    let mut fresh = Table::new();
    fresh.want(vec![marked(broken(object(wants("a", URL, "{}"), "u", 2)))]);
    assert!(enforced(&mut fresh));
    again.want(vec![broken(object(wants("a", URL, "{}"), "v", 1))]);
    assert!(!enforced(&mut again));
}

#[test]
fn w04_a_manifest_of_an_earlier_release_does_not_outlive_what_the_marks_say() {
    let mut table = Table::new();
    table.want(vec![broken(object(wants("a", URL, "{}"), "u", 1))]);
    table.jobs();
    let mut manifest = table.manifest.clone().expect("a manifest");
    manifest.policies[0].enforced = true;
    let mut again = Table::restored(Some(manifest));
    again.want(vec![broken(object(wants("a", URL, "{}"), "u", 1))]);
    assert!(!enforced(&mut again));
}

#[test]
fn w04_in_a_folder_what_the_evaluator_loaded_was_enforced_over_restarts_too() {
    let mut table = Table::new();
    table.want(vec![wants("cluster/a", URL, "{}")]);
    table.settle();
    let enforced = |table: &mut Table| {
        table.jobs();
        table.manifest.as_ref().expect("a manifest").policies[0].enforced
    };
    assert!(!enforced(&mut table), "published, and not loaded yet");
    let mut again = Table::restored(table.manifest.clone());
    again.want(vec![wants("cluster/a", URL, "{}")]);
    assert!(!enforced(&mut again));
    table.loads("cluster/a", 1, digest(URL));
    assert!(enforced(&mut table));
    table.want(vec![DesiredPolicy { hash: digest("2"), ..broken(wants("cluster/a", URL, "{}")) }]);
    assert!(enforced(&mut table));
    let mut again = Table::restored(table.manifest.clone());
    again.want(vec![DesiredPolicy { hash: digest("2"), ..broken(wants("cluster/a", URL, "{}")) }]);
    assert!(enforced(&mut again));
    // Removed and put back, it is new.
    again.want(Vec::new());
    again.want(vec![DesiredPolicy { hash: digest("3"), ..broken(wants("cluster/a", URL, "{}")) }]);
    assert!(!enforced(&mut again));
}

#[test]
fn w04_a_policy_without_groups_has_always_answered_for_itself() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    assert!(enforced(&mut table));
}

#[test]
fn a_suspended_policy_stays_in_its_group() {
    let mut table = Table::new();
    let mut desired = object(wants("a", URL, "{}"), "u", 1);
    desired.head.as_mut().expect("a head").suspend = true;
    table.want(vec![desired]);
    assert_eq!(members(&mut table, "aaaaaaaaaaaaaaaa"), Some(vec!["a".to_owned()]));
    assert!(table.manifest.as_ref().expect("a manifest").policies[0].suspend);
}
