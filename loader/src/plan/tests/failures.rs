//! Failures, restarts, and policies that are removed.

use super::*;

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
    // A restart alone does not end a failure: it stands until this loader has tried.
    let why = |table: &Table| table.state("a").failure.map(|failure| failure.reason);
    assert_eq!(why(&table), Some(Reason::NotFound));
    table.jobs();
    table.fetched("https://example.com/b", Err(Reason::Unauthorized));
    assert_eq!(why(&table), Some(Reason::Unauthorized));
    table.want(vec![wants("a", "https://example.com/c", "{}")]);
    assert_eq!(why(&table), None, "another generation");
}

#[test]
fn a_restart_remembers_what_a_generation_was_granted_that_may_still_serve() {
    let mut table = Table::new();
    let mut granted = wants("a", URL, "{}");
    granted.body.as_mut().expect("a body").host_capabilities = vec!["oci/*".to_owned()];
    table.want(vec![granted]);
    table.settle();
    table.loads("a", 1, digest(URL));
    table.want(vec![wants("a", URL, "{\"x\":2}")]);
    table.pass(Duration::from_secs(2));
    table.jobs();
    assert_eq!(table.candidates("a"), [2]);
    let table = Table::restored(table.manifest.take());
    let modules = table.plan.earlier_modules(|module| (*module == digest(URL)).then_some(ExecutionMode::Wasi));
    let first: Vec<_> = modules.iter().filter(|module| module.generation == 1).collect();
    assert_eq!(first.len(), 1, "{modules:?}");
    assert_eq!((first[0].policy.as_str(), first[0].member.as_deref()), ("a", None));
    assert_eq!(
        (&*first[0].host_capabilities, first[0].execution_mode),
        (&["oci/*".to_owned()][..], ExecutionMode::Wasi)
    );
    assert!(table.plan.earlier_modules(|_| None).is_empty(), "the mode must be known");
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
fn an_older_generation_serves_while_the_newest_is_tried_again_for_want_of_a_capability() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    table.loads("a", 1, digest(URL));
    table.want(vec![wants("a", URL, "{\"asks\":1}")]);
    assert_eq!(table.candidates("a"), [2]);
    table.refuses("a", 2, digest(URL), digest("x"), Reason::MemoryUnavailable, 0);
    assert_eq!(table.candidates("a"), [2], "that passes without another generation");
    table.refuses("a", 2, digest(URL), digest("x"), Reason::CapabilityUnavailable, 0);
    assert_eq!(table.candidates("a"), [2, 1]);
    // The older one lacks it too. It is the best there is, and must be tried again.
    table.refuses("a", 1, digest(URL), digest("x"), Reason::CapabilityUnavailable, 0);
    assert_eq!(table.candidates("a"), [2, 1]);
    table.loads("a", 2, digest(URL));
    assert_eq!(table.candidates("a"), [2], "it works again");
}

#[test]
fn a_generation_that_was_replaced_before_anybody_said_it_serves_outlives_a_restart() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    table.loads("a", 1, digest(URL));
    table.want(vec![wants("a", URL, "{\"good\":1}")]);
    assert_eq!(table.candidates("a"), [2]);
    // The evaluator may serve it by now, but has not reported that to the loader.
    table.want(vec![wants("a", URL, "{\"bad\":1}")]);
    assert_eq!(table.candidates("a"), [3]);
    let mut table = Table::restored(table.manifest.take());
    table.want(vec![wants("a", URL, "{\"bad\":1}")]);
    table.settle();
    table.refuses("a", 3, digest(URL), digest("x"), Reason::SettingsInvalid, 1);
    assert_eq!(table.candidates("a"), [3, 2, 1]);
    table.refuses("a", 2, digest(URL), digest("x"), Reason::SettingsInvalid, 1);
    assert_eq!(table.candidates("a"), [3, 1]);
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
        assert_eq!(table.jobs(), ["prepare again"]);
        table.settle();
        assert_eq!(table.number, number + 1, "told under a new number, though nothing changed");
        // A second refusal leads to another compilation only after a pause.
        table.refuses("a", 1, digest(URL), digest(URL), reason, 0);
        assert_eq!(table.jobs(), Vec::<String>::new());
        table.pass(Duration::from_secs(1));
        assert_eq!(table.jobs(), ["prepare again"]);
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
fn a_policy_that_comes_back_is_a_new_generation_where_its_module_may_be_another() {
    for (module, generation) in [(URL, 1), ("modules/a.wasm", 2)] {
        let mut table = Table::new();
        table.want(vec![wants("a", module, "{}")]);
        table.settle();
        table.want(Vec::new());
        table.want(vec![wants("a", module, "{}")]);
        assert_eq!(table.state("a").generation, generation, "{module}");
    }
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
    table.take(Event::Published(Err(error(Reason::VolumeReadOnly))));
    assert!(table.plan.turn(table.now).publish.is_none(), "not at once");
    let state = table.plan.state(&Program::default(), &Contexts::default());
    assert_eq!(state.volume_failure.map(|failure| failure.reason), Some(Reason::VolumeReadOnly));
    let policy = table.state("a");
    assert_eq!(
        (policy.phase, policy.failure.map(|failure| failure.reason)),
        (Phase::Failed, Some(Reason::VolumeReadOnly))
    );
    table.pass(Duration::from_secs(1));
    assert_eq!(table.candidates("a"), [2]);
    assert!(table.plan.state(&Program::default(), &Contexts::default()).volume_failure.is_none());
}

#[test]
fn v02_a_manifest_that_failed_waits_no_longer_once_the_volume_takes_a_module() {
    let other = "https://example.com/b";
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    table.want(vec![wants("a", other, "{}")]);
    assert_eq!(table.jobs(), ["fetch https://example.com/b"]);
    table.fetched(other, Err(Reason::VolumeReadOnly));
    // The manifest should say that it failed, but cannot be written either.
    let turn = loop {
        let turn = table.plan.turn(table.now);
        if turn.publish.is_some() {
            break turn;
        }
        table.pass(Duration::from_millis(10));
    };
    assert!(turn.jobs.is_empty());
    table.take(Event::Published(Err(error(Reason::VolumeReadOnly))));

    // The volume works again, and the module is tried first.
    table.fetched(other, Ok("m"));
    table.compiled("m");
    assert_eq!(table.state("a").failure, None, "it does not fail again for what was");
    table.plan.turn(table.now);
    table.pass(Duration::from_millis(10));
    assert!(table.plan.turn(table.now).publish.is_some());
}

#[test]
fn a_lost_manifest_is_published_again() {
    let mut table = Table::new();
    table.want(Vec::new());
    table.jobs();
    table.take(Event::ManifestLost);
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
    let sources = table.plan.state(&Program::default(), &Contexts::default()).sources;
    assert_eq!(sources.iter().map(|source| source.host.as_str()).collect::<Vec<_>>(), ["example.com", "other.org"]);
    assert_eq!(sources[0].policy.as_ref().map(PolicyId::as_str), Some("a"));
    assert!(sources[1].failure.is_none());
    table.take(Event::OutsideChanged);
    assert_eq!(table.jobs(), ["fetch https://example.com/a", "prepare"], "a new authority is tried at once");
}

#[test]
fn each_policy_is_looked_at_once_however_many_addresses_fail() {
    let address = |n: usize| format!("https://host-{n}.example/m");
    let mut table = Table::new();
    table.want((0..50).map(|n| wants(&format!("p{n:02}"), &address(n), "{}")).collect());
    table.jobs();
    (0..50).for_each(|n| table.fetched(&address(n), Err(Reason::RegistryTimeout)));
    let expected = table.plan.state(&Program::default(), &Contexts::default()).sources;
    let references: Vec<Reference> = (0..50)
        .map(|n| Reference::parse(&address(n), std::path::Path::new("/policies")).expect("an address"))
        .collect();
    let failure = |reference| table.plan.modules[reference].failure(0, None);
    let failures = references.iter().map(|reference| (reference, failure(reference))).collect();
    let mut looked_at = 0;
    let told = super::super::state::sources(table.plan.policies.iter().inspect(|_| looked_at += 1), failures);
    assert_eq!((looked_at, told.len()), (50, 50));
    assert!(told.iter().all(|source| source.failure.is_some() && source.policy.is_some()));
    assert_eq!(told, expected);
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
