//! From the desired policies to what is published.

use super::*;

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
fn an_artifact_that_was_removed_to_make_room_is_made_again_before_it_counts() {
    const OTHER: &str = "https://example.com/c";
    let mut table = Table::new();
    for module in [URL, "https://example.com/b", OTHER] {
        table.want(vec![wants("a", module, "{}")]);
        table.settle();
    }
    table.loads("a", 3, digest(OTHER));
    table.jobs();
    let file = table.plan.keep().spare.remove(&digest(URL)).flatten().expect("it may be removed");
    table.take(Event::Removed(HashSet::from([file])));
    table.want(vec![wants("a", URL, "{}")]);
    table.jobs();
    table.fetched(URL, Ok(URL));
    assert_eq!((table.jobs(), table.candidates("a")), (vec!["prepare".to_owned()], vec![3]));
    table.settle();
    assert_eq!(table.candidates("a")[0], 4);
}

#[test]
fn progress_is_shown_and_builds_no_manifest() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    assert_eq!(table.jobs(), ["fetch https://example.com/a"]);
    let reference = Reference::parse(URL, std::path::Path::new("/policies")).expect("an address");
    table.plan.progress(&Job::Fetch(reference), 5, Some(9), table.now);
    let shown = table.state("a").activity.map(|activity| (activity.bytes, activity.total));
    assert_eq!(shown, Some((5, Some(9))));
    assert!(!table.plan.is_manifest_behind());
    table.want(vec![wants("a", URL, "{}")]);
    assert!(table.plan.is_manifest_behind());
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
    table.ended(Outcome::Prepared(digest("m"), Err(error(Reason::ModuleInvalid))));
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
    // The volume has lost the module, and the address gives something else now.
    let manifest = table.manifest.take();
    let mut table = Table::restored(manifest);
    table.want(vec![wants("a", URL, "{}")]);
    table.jobs();
    table.ended(Outcome::Prepared(digest(URL), Ok(Prepared::NoModule)));
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
    table.take(Event::Desired(Arc::new(with_size(Some(1)))));
    assert_eq!(table.jobs(), ["fetch /policies/modules/a.wasm"]);
    table.fetched(file, Ok("m"));
    assert_eq!(table.jobs(), ["prepare"]);
    table.compiled("m");
    table.take(Event::Desired(Arc::new(with_size(Some(2)))));
    assert_eq!(table.jobs(), ["fetch /policies/modules/a.wasm"]);
    assert_eq!(table.candidates("a"), [1], "what is there counts meanwhile");
    table.fetched(file, Ok("m"));
    assert_eq!(table.candidates("a"), [1], "the same bytes are the same generation");
    table.take(Event::Desired(Arc::new(with_size(None))));
    table.fetched(file, Err(Reason::NotFound));
    assert_eq!(
        (table.candidates("a"), table.state("a").failure),
        (vec![1], None),
        "a file that is away changes nothing"
    );
    table.take(Event::Desired(Arc::new(with_size(Some(3)))));
    table.fetched(file, Ok("n"));
    assert_eq!(table.jobs(), ["prepare"]);
    assert_eq!((table.state("a").generation, table.candidates("a")), (2, vec![1]));
    table.compiled("n");
    assert_eq!(table.candidates("a"), [2]);
    table.take(Event::Desired(Arc::new(with_size(Some(4)))));
    table.fetched(file, Err(Reason::ModuleTooLarge));
    assert_eq!((table.state("a").generation, table.candidates("a")), (3, vec![2]));
    assert_eq!(table.state("a").failure.map(|failure| failure.reason), Some(Reason::ModuleTooLarge));
}

#[test]
fn a_file_that_changes_while_it_is_read_is_read_again() {
    let mut table = Table::new();
    let file = "modules/a.wasm";
    let fetch = ["fetch /policies/modules/a.wasm"];
    let with_size = |size: u64| Snapshot {
        stamps: BTreeMap::from([("/policies/modules/a.wasm".into(), Some(Stamp::of_size(size)))]),
        ..snapshot(vec![wants("a", file, "{}")])
    };
    table.take(Event::Desired(Arc::new(with_size(1))));
    assert_eq!(table.jobs(), fetch);
    // The file changes after the job has read a part of it, before the job ends.
    table.take(Event::Desired(Arc::new(with_size(2))));
    table.fetched(file, Ok("half"));
    assert!(table.jobs().contains(&fetch[0].to_owned()));
    table.fetched(file, Ok("whole"));
    assert_eq!(table.jobs(), ["prepare"]);
    table.compiled("whole");
    assert_eq!((table.state("a").generation, table.candidates("a")), (2, vec![2]));
    // The same if the file has been read before.
    table.take(Event::Desired(Arc::new(with_size(3))));
    assert_eq!(table.jobs(), fetch);
    table.take(Event::Desired(Arc::new(with_size(4))));
    table.fetched(file, Err(Reason::NotFound));
    assert_eq!(table.jobs(), fetch);
    table.fetched(file, Ok("whole"));
    assert_eq!((table.jobs(), table.candidates("a")), (Vec::new(), vec![2]));
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
    table.take(Event::Desired(Arc::new(broken("line 1"))));
    assert_eq!(table.candidates("a"), [1]);
    let state = table.state("a");
    assert_eq!((state.generation, state.phase), (2, Phase::Failed));
    assert_eq!(state.failure.map(|failure| failure.message).as_deref(), Some("a.yaml: line 1"));
    table.take(Event::Desired(Arc::new(broken("line 1"))));
    assert_eq!(table.state("a").generation, 2, "the same fault is the same generation");
    // Also after a restart.
    let mut table = Table::restored(table.manifest.take());
    table.take(Event::Desired(Arc::new(broken("line 1"))));
    assert_eq!((table.candidates("a"), table.state("a").generation), (vec![1], 2));
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    assert_eq!(table.candidates("a"), [3]);
}

#[test]
fn z07_settings_are_in_the_manifest_once_and_known_after_a_restart() {
    let settings = "{\"marker\":\"some settings\"}";
    let id = "cluster/a";
    let mut table = Table::new();
    table.want(vec![wants(id, URL, settings)]);
    table.settle();
    table.loads(id, 1, digest(URL));
    table.jobs();
    let manifest = table.manifest.take().expect("a manifest");
    assert!(manifest.policies[0].last_good.is_some());
    let text = serde_json::to_string(&manifest).expect("encodes");
    assert_eq!(text.matches("some settings").count(), 1, "{text}");

    // While the next generation is on its way, the one that serves keeps its settings over two restarts.
    for _ in 0..2 {
        table = Table::restored(table.manifest.take().or_else(|| Some(manifest.clone())));
        table.want(vec![wants(id, "https://example.com/b", "{}")]);
        assert_eq!(table.candidates(id), [1]);
        let entry = &table.manifest.as_ref().expect("a manifest").policies[0];
        assert_eq!(entry.candidates[0].modules()[0].module.settings.get(), settings);
        assert_eq!(serde_json::to_string(entry).expect("encodes").matches("some settings").count(), 1);
    }
}
