//! Policy groups: several modules, one generation.

use portcullis_api::Resolved;

use super::*;

const A: &str = "https://example.com/a";
const B: &str = "https://example.com/b";
const ID: &str = "cluster/group";

fn wants_group(members: &[(&str, &str, &str)]) -> DesiredPolicy {
    let mut desired = wants(ID, A, "{}");
    let part = |module: &str, settings: &str| wants(ID, module, settings).body.expect("good");
    let members = members.iter().map(|(name, module, settings)| ((*name).to_owned(), part(module, settings)));
    let body = Body {
        members: members.collect(),
        expression: Some("a() && b()".to_owned()),
        ..Body::module(String::new(), None, crate::content::no_settings())
    };
    desired.hash = hash(desired.head.as_ref().expect("a head"), &body);
    desired.body = Ok(body);
    desired
}

fn group_digest(members: &[(&str, &str)]) -> Digest {
    let members = members.iter().map(|(name, module)| ((*name).to_owned(), digest(module)));
    Resolved::group(1, members.collect()).digest
}

#[test]
fn a_group_is_published_when_all_its_modules_are_there() {
    let mut table = Table::new();
    table.want(vec![wants_group(&[("a", A, "{}"), ("b", B, "{}")])]);
    assert_eq!(table.jobs(), [format!("fetch {A}"), format!("fetch {B}")]);
    table.fetched(A, Ok(A));
    assert_eq!(table.jobs(), [format!("fetch {B}"), "prepare".to_owned()]);
    table.compiled(A);
    assert_eq!(table.candidates(ID), Vec::<i64>::new());
    assert_eq!(table.state(ID).digest, None, "not all of it is known");
    table.fetched(B, Err(Reason::NotFound));
    assert_eq!(table.candidates(ID), Vec::<i64>::new());
    let failure = table.state(ID).failure.expect("a failure");
    assert_eq!((failure.reason, failure.message.as_str()), (Reason::NotFound, "member `b`: no"));
    assert_eq!(table.state(ID).phase, Phase::Failed);

    table.take(Event::OutsideChanged);
    table.settle();
    assert_eq!(table.candidates(ID), [1]);
    let state = table.state(ID);
    assert_eq!((state.digest, state.phase), (Some(group_digest(&[("a", A), ("b", B)])), Phase::Published));
    assert_eq!(state.members.len(), 2);
}

#[test]
fn an_edit_fetches_only_what_it_changes_and_the_last_good_group_stays() {
    let mut table = Table::new();
    table.want(vec![wants_group(&[("a", A, "{}"), ("b", B, "{}")])]);
    table.settle();
    table.jobs();
    table.loads(ID, 1, group_digest(&[("a", A), ("b", B)]));
    table.want(vec![wants_group(&[("a", A, "{\"x\":1}"), ("b", B, "{}")])]);
    assert_eq!(table.jobs(), Vec::<String>::new(), "settings fetch nothing");
    assert_eq!(table.candidates(ID), [2]);
    let other = "https://example.com/c";
    table.want(vec![wants_group(&[("a", A, "{\"x\":1}"), ("b", other, "{}")])]);
    assert_eq!(table.jobs(), [format!("fetch {other}")]);
    assert_eq!(table.candidates(ID), [2, 1], "generation 1 is the last good one");

    // After a restart the members are known, with their settings.
    let mut table = Table::restored(table.manifest.take());
    table.want(vec![wants_group(&[("a", A, "{\"x\":1}"), ("b", other, "{}")])]);
    assert_eq!(table.candidates(ID), [2, 1]);
    let entry = &table.manifest.as_ref().expect("a manifest").policies[0];
    assert_eq!(entry.candidates[0].modules()[0].module.settings.get(), "{\"x\":1}");
    table.settle();
    assert_eq!(table.candidates(ID)[0], 3);
}

#[test]
fn an_artifact_that_the_evaluator_cannot_use_is_made_again_for_its_member_only() {
    let mut table = Table::new();
    table.want(vec![wants_group(&[("a", A, "{}"), ("b", B, "{}")])]);
    table.settle();
    table.jobs();
    let whole = group_digest(&[("a", A), ("b", B)]);
    let failure = Failure::new(1, Reason::ArtifactCorrupt, "member `b`: no", table.now.wall);
    let deviation = Deviation {
        uid: uid(&ID.parse().expect("an id")),
        id: ID.parse().expect("an id"),
        generation: 1,
        serving: 0,
        digest: None,
        members: BTreeMap::new(),
        state: ReplicaState::Failed,
        failure: Some(failure.clone()),
        refused: vec![Refused { digest: whole, module: Some(digest(B)), artifact: digest(B), failure }],
        since: table.now.wall,
    };
    let state =
        EvaluatorState { manifest_number: table.number, deviations: vec![deviation], ..EvaluatorState::default() };
    table.take(Event::Evaluator(Arc::new(state)));
    assert_eq!(table.jobs(), ["prepare again"]);
}

#[test]
fn recorded_members_count_whatever_their_addresses_give() {
    let mut table = Table::new();
    let mut desired = wants_group(&[("a", A, "{}"), ("b", B, "{}")]);
    let pins = BTreeMap::from([("a".to_owned(), digest("recorded")), ("b".to_owned(), digest(B))]);
    desired.object = Some(crate::content::Object {
        uid: "u".to_owned(),
        generation: 4,
        pins: Pins::new(None, pins),
        matches: std::collections::BTreeMap::new(),
        older_groups: BTreeSet::new(),
        last_served: None,
        enforced: false,
        newest_served: false,
        fingerprint: None,
    });
    table.want(vec![desired]);
    table.jobs();
    assert_eq!(table.state(ID).digest, Some(group_digest(&[("a", "recorded"), ("b", B)])));
}
