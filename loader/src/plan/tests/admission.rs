//! Modules that are on the volume for one policy, and are wanted by another under other rules.

use super::cluster::{broken, object, pinned, served};
use super::*;

const OTHER: &str = "https://example.com/b";

fn answer(table: &mut Table, module: &str, pin: &str, result: Result<(), Reason>) {
    let reference = Reference::parse(module, std::path::Path::new("/policies")).expect("an address");
    let result = result.map(|()| Admission::Checked).map_err(error);
    table.ended(Outcome::Admitted(reference, digest(pin), result));
}

/// A plan in which another policy has the module `a`, and the policy `b` is pinned to the same bytes.
fn shared() -> Table {
    let mut table = Table::new();
    let first = object(wants("a", URL, "{}"), "u", 1);
    table.want(vec![first.clone()]);
    table.settle();
    table.want(vec![first, pinned(object(wants("b", OTHER, "{}"), "v", 1), URL)]);
    table
}

#[test]
fn l27_a_module_on_the_volume_is_not_served_to_a_policy_before_its_rules_were_asked() {
    let mut table = shared();
    assert_eq!(table.jobs_with(false), ["admit"]);
    assert_eq!((table.candidates_with(false, "a"), table.candidates_with(false, "b")), (vec![1], vec![]));
    assert_eq!((table.state("b").phase, table.state("b").failure), (Phase::Queued, None));
    answer(&mut table, OTHER, URL, Ok(()));
    assert_eq!((table.candidates("b"), table.jobs_with(false)), (vec![1], Vec::new()), "asked once");
}

#[test]
fn l21_l23_a_module_on_the_volume_is_refused_for_the_reason_of_the_policy_that_asks() {
    for reason in [Reason::SignatureInvalid, Reason::SourceNotAllowed, Reason::SignatureUnavailable] {
        let mut table = shared();
        table.jobs_with(false);
        answer(&mut table, OTHER, URL, Err(reason));
        assert_eq!(table.candidates_with(false, "b"), Vec::<i64>::new());
        let state = table.state("b");
        assert_eq!((state.phase, state.failure.expect("fails").reason), (Phase::Failed, reason));
        assert_eq!(table.candidates("a"), [1], "the other policy goes on");
        let told = table.plan.state(&Program::default(), &Contexts::default()).sources;
        assert_eq!(told[0].failure.as_ref().map(|failure| failure.reason), Some(reason));
        // After a change outside, the check runs again at once; after a failure that may pass, it also runs again by itself.
        table.take(Event::OutsideChanged);
        answer(&mut table, URL, URL, Ok(()));
        table.pass(SETTINGS.retry.cap);
        assert_eq!(table.jobs_with(false), ["admit"]);
    }
}

#[test]
fn l21_nothing_is_compiled_or_fetched_before_its_rules_were_asked() {
    let mut table = Table::new();
    table.want(vec![pinned(object(wants("a", URL, "{}"), "u", 1), URL)]);
    assert_eq!(table.jobs_with(false), ["admit"]);
    answer(&mut table, URL, URL, Ok(()));
    assert_eq!(table.jobs_with(false), ["prepare"]);
    table.ended(Outcome::Prepared(digest(URL), Ok(Prepared::NoModule)));
    assert_eq!(table.jobs_with(false), [format!("fetch {URL}")]);
    table.fetched(URL, Ok(URL));
    assert_eq!(table.jobs_with(false), ["prepare"], "who fetched has asked");
}

#[test]
fn what_served_elsewhere_is_asked_about_too() {
    let mut table = Table::new();
    table.want(vec![served(broken(object(wants("a", URL, "{}"), "u", 7)), 6, OTHER, Some(OTHER))]);
    assert_eq!(table.jobs_with(false), ["admit"]);
    answer(&mut table, OTHER, OTHER, Err(Reason::SignatureInvalid));
    assert_eq!((table.jobs_with(false), table.candidates_with(false, "a")), (Vec::new(), Vec::new()));
}

#[test]
fn k05_what_served_before_a_restart_goes_on_unless_the_rules_say_no() {
    let mut table = Table::new();
    let desired = || vec![object(wants("a", URL, "{}"), "u", 1)];
    table.want(desired());
    table.settle();
    let manifest = table.manifest.take();
    for (result, left) in [
        (Ok(()), vec![1]),
        (Err(Reason::SignatureUnavailable), vec![1]),
        (Err(Reason::CredentialsMissing), vec![1]),
        (Err(Reason::SignatureInvalid), vec![]),
        (Err(Reason::SourceNotAllowed), vec![]),
    ] {
        let mut table = Table::restored(manifest.clone());
        table.want(desired());
        assert_eq!(table.jobs_with(false), ["admit", "prepare"], "it is asked while it serves");
        answer(&mut table, URL, URL, result);
        table.compiled(URL);
        assert_eq!(table.candidates_with(false, "a"), left, "{result:?}");
        let told = table.plan.state(&Program::default(), &Contexts::default()).sources;
        assert_eq!(told[0].failure.as_ref().map(|failure| failure.reason), result.err(), "the host is named");
        if left.is_empty() {
            assert_older_one_stays_refused(&mut table);
        }
        if left.is_empty() || result.is_ok() {
            continue;
        }
        // What could not be checked is checked again, while it serves and until the check can be made.
        assert_eq!(table.state("a").failure, None);
        assert_eq!(table.jobs_with(false), Vec::<String>::new());
        table.pass(SETTINGS.retry.outside);
        assert_eq!(table.jobs_with(false), ["admit"], "after {result:?}");
        answer(&mut table, URL, URL, result);
        assert_eq!(table.candidates_with(false, "a"), left);
        table.take(Event::OutsideChanged);
        assert_eq!(table.jobs_with(false), ["admit"], "at once when a watched file has changed");
        answer(&mut table, URL, URL, Err(Reason::SignatureInvalid));
        assert_eq!(table.candidates_with(false, "a"), Vec::<i64>::new());
        assert_older_one_stays_refused(&mut table);
    }
}

/// Edits the settings of a policy whose only generation was refused: it does not serve because it is an older one now.
fn assert_older_one_stays_refused(table: &mut Table) {
    table.want(vec![object(wants("a", URL, "{\"edited\":1}"), "u", 2)]);
    assert_eq!(table.jobs_with(false), ["admit"]);
    assert_eq!(table.candidates_with(false, "a"), Vec::<i64>::new());
    answer(table, URL, URL, Err(Reason::SourceNotAllowed));
    assert_eq!(table.candidates_with(false, "a"), Vec::<i64>::new());
}

#[test]
fn k05_what_served_beside_a_newest_generation_that_fails_is_refused_after_a_restart() {
    let desired = || vec![wants("a", OTHER, "{}")];
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    table.settle();
    table.loads("a", 1, digest(URL));
    table.want(desired());
    table.jobs();
    table.fetched(OTHER, Err(Reason::NotFound));
    table.pass(Duration::from_secs(2));
    table.jobs();
    let mut table = Table::restored(table.manifest);
    table.want(desired());
    assert_eq!(table.candidates_with(false, "a"), [1]);
    answer(&mut table, URL, URL, Err(Reason::SourceNotAllowed));
    assert_eq!(table.candidates_with(false, "a"), Vec::<i64>::new());

    // The same where no evaluator has said yet that it serves.
    let desired = || vec![served(broken(object(wants("a", URL, "{}"), "u", 7)), 6, OTHER, Some(OTHER))];
    let mut table = Table::new();
    table.want(desired());
    table.settle();
    assert_eq!(table.candidates("a"), [6]);
    let mut table = Table::restored(table.manifest);
    table.want(desired());
    table.jobs_with(false);
    answer(&mut table, OTHER, OTHER, Err(Reason::SourceNotAllowed));
    assert_eq!(table.candidates_with(false, "a"), Vec::<i64>::new());
}

#[test]
fn rules_that_change_count_for_what_they_admitted_before() {
    let named = format!("registry://reg.example/m@{}", digest("manifest"));
    let module = named.trim_start_matches("registry://");
    let mut table = Table::new();
    table.want(vec![wants("a", &named, "{}")]);
    table.settle();
    table.take(Event::OutsideChanged);
    table.want(vec![wants("a", &named, "{}"), wants("b", &named, "{}")]);
    assert_eq!(table.jobs_with(false), ["admit"]);
    assert_eq!(table.candidates_with(false, "a"), [1], "it goes on meanwhile");
    // The file changes once more while the check runs, which may have read it before.
    table.take(Event::OutsideChanged);
    answer(&mut table, &named, module, Ok(()));
    assert_eq!(table.jobs_with(false), ["admit"]);
    answer(&mut table, &named, module, Err(Reason::SignatureInvalid));
    for id in ["a", "b"] {
        assert_eq!(table.candidates_with(false, id), Vec::<i64>::new(), "{id}");
        assert_eq!(table.state(id).failure.map(|failure| failure.reason), Some(Reason::SignatureInvalid), "{id}");
    }
}

#[test]
fn rules_that_change_during_a_fetch_count_for_what_it_brings() {
    let mut table = Table::new();
    table.want(vec![wants("a", URL, "{}")]);
    assert_eq!(table.jobs_with(false), [format!("fetch {URL}")]);
    table.take(Event::OutsideChanged);
    // It may have failed by what the file said before.
    table.fetched(URL, Err(Reason::Unauthorized));
    assert_eq!(table.jobs_with(false), [format!("fetch {URL}")]);
    table.take(Event::OutsideChanged);
    table.fetched(URL, Ok(URL));
    assert_eq!(table.jobs_with(false), ["admit"]);
    answer(&mut table, URL, URL, Err(Reason::SourceNotAllowed));
    assert_eq!(table.candidates_with(false, "a"), Vec::<i64>::new());
    assert_eq!(table.state("a").failure.map(|failure| failure.reason), Some(Reason::SourceNotAllowed));
}

#[test]
fn x05_a_name_server_that_is_wrong_for_a_while_takes_nothing_out_of_service() {
    let reference = || Reference::parse(URL, std::path::Path::new("/policies")).expect("an address");
    let mut table = Table::new();
    table.want(vec![pinned(object(wants("a", URL, "{}"), "u", 1), URL)]);
    table.jobs_with(false);
    let trusted = Ok(Admission::Trusted(error(Reason::RegistryUnreachable)));
    table.ended(Outcome::Admitted(reference(), digest(URL), trusted));
    table.compiled(URL);
    assert_eq!(table.candidates_with(false, "a"), [1]);
    for _ in 0..2 {
        table.pass(SETTINGS.retry.outside);
        assert_eq!(table.jobs_with(false), ["admit"]);
        let led_inside = AttemptError { retry_after: Some(Duration::ZERO), ..error(Reason::SourceNotAllowed) };
        table.ended(Outcome::Admitted(reference(), digest(URL), Err(led_inside)));
        assert_eq!(table.candidates_with(false, "a"), [1]);
        assert_eq!(table.jobs_with(false), Vec::<String>::new());
    }
}

#[test]
fn a_pin_that_is_trusted_while_its_source_is_away_is_asked_about_until_the_source_is_back() {
    let reference = || Reference::parse(URL, std::path::Path::new("/policies")).expect("an address");
    let asks = |table: &mut Table| {
        let turn = table.plan.turn(table.now);
        let admit = |job: &Job| matches!(job, Job::Admit { again: false, .. });
        turn.jobs.keys().any(admit)
    };
    let trusts = |table: &mut Table| {
        let trusted = Ok(Admission::Trusted(error(Reason::RegistryUnreachable)));
        table.ended(Outcome::Admitted(reference(), digest(URL), trusted));
    };
    for (found, left) in
        [(Ok(()), vec![1]), (Err(Reason::Unauthorized), vec![1]), (Err(Reason::DigestMismatch), vec![])]
    {
        let mut table = Table::new();
        table.want(vec![pinned(object(wants("a", URL, "{}"), "u", 1), URL)]);
        assert!(asks(&mut table));
        trusts(&mut table);
        table.compiled(URL);
        assert_eq!(table.candidates_with(false, "a"), [1], "it serves meanwhile");
        assert!(!asks(&mut table));
        for _ in 0..2 {
            table.pass(SETTINGS.retry.cap);
            assert!(asks(&mut table), "whether the address leads to it");
            trusts(&mut table);
        }
        assert_eq!(table.state("a").failure, None);
        table.pass(SETTINGS.retry.cap);
        assert!(asks(&mut table));
        answer(&mut table, URL, URL, found);
        assert_eq!(table.candidates_with(false, "a"), left, "{found:?}");
        assert!(!asks(&mut table), "not at once");
    }
}

#[test]
fn a_pin_that_was_trusted_before_a_restart_is_asked_about_after_it() {
    for (found, left) in [(Ok(()), vec![1]), (Err(Reason::DigestMismatch), vec![])] {
        let reference = || Reference::parse(URL, std::path::Path::new("/policies")).expect("an address");
        let want = |table: &mut Table| table.want(vec![pinned(object(wants("a", URL, "{}"), "u", 1), URL)]);
        let mut table = Table::new();
        want(&mut table);
        let trusted = Ok(Admission::Trusted(error(Reason::RegistryUnreachable)));
        table.jobs_with(false);
        table.ended(Outcome::Admitted(reference(), digest(URL), trusted));
        table.compiled(URL);
        assert_eq!(table.candidates_with(false, "a"), [1], "it serves meanwhile");
        // Twice, as the second start knows only what the first one wrote.
        for _ in 0..2 {
            table = Table::restored(table.manifest);
            want(&mut table);
            let turn = table.plan.turn(table.now);
            assert!(turn.jobs.keys().any(|job| matches!(job, Job::Admit { again: false, .. })), "{:?}", turn.jobs);
            assert_eq!(table.candidates_with(false, "a"), [1], "it goes on serving");
        }
        answer(&mut table, URL, URL, found);
        assert_eq!(table.candidates_with(false, "a"), left, "{found:?}");
        let mut table = Table::restored(table.manifest);
        want(&mut table);
        let turn = table.plan.turn(table.now);
        let asked_about = turn.jobs.keys().any(|job| matches!(job, Job::Admit { again: false, .. }));
        assert_eq!(asked_about, found.is_err(), "what was found is known");
    }
}

#[test]
fn an_address_that_was_asked_stays_so_where_another_one_of_the_same_module_was_not() {
    let reference = |module: &str| Reference::parse(module, std::path::Path::new("/policies")).expect("an address");
    let want = |table: &mut Table| {
        let first = pinned(object(wants("a", URL, "{}"), "u", 1), URL);
        table.want(vec![first, pinned(object(wants("b", OTHER, "{}"), "v", 1), URL)]);
    };
    let mut table = Table::new();
    want(&mut table);
    table.jobs_with(false);
    answer(&mut table, URL, URL, Ok(()));
    let trusted = Ok(Admission::Trusted(error(Reason::RegistryUnreachable)));
    table.ended(Outcome::Admitted(reference(OTHER), digest(URL), trusted));
    table.compiled(URL);
    assert_eq!((table.candidates_with(false, "a"), table.candidates_with(false, "b")), (vec![1], vec![1]));
    let mut table = Table::restored(table.manifest);
    want(&mut table);
    for address in [URL, OTHER] {
        answer(&mut table, address, URL, Err(Reason::DigestMismatch));
    }
    assert_eq!(table.candidates_with(false, "a"), [1], "the address led to it once");
    assert_eq!(table.candidates_with(false, "b"), Vec::<i64>::new());
}
