//! Modules that policies are pinned to, and what a tag led to before.

use super::cluster::{object, pinned};
use super::*;

const TAG: &str = "registry://reg.example/m:v1";

fn tag() -> Reference {
    Reference::parse(TAG, std::path::Path::new("/policies")).expect("an address")
}

/// A plan in which the policies `pinned` are pinned to modules that are named after them, and `new` names the same tag and is not pinned. The
/// tag is not asked yet.
fn with_pins(ids: &[&str]) -> Table {
    let mut table = Table::new();
    let named = ids.iter().map(|id| pinned(object(wants(id, TAG, "{}"), "u", 1), id));
    table.want(named.chain([object(wants("new", TAG, "{}"), "v", 1)]).collect());
    table
}

impl Table {
    fn lost(&mut self, module: &str) {
        self.ended(Outcome::Prepared(digest(module), Ok(Prepared::NoModule)));
    }

    fn brought(&mut self, results: &[(&str, Result<(), Reason>)]) {
        let results = results.iter().map(|(module, result)| (digest(module), result.map_err(error)));
        self.ended(Outcome::Brought(tag(), results.collect()));
    }

    /// The pins of the fetch that should run now; `None` if none should.
    fn fetches(&mut self) -> Option<Vec<Digest>> {
        let fetch = Job::Fetch(tag());
        self.jobs().contains(&name(&fetch)).then(|| self.plan.pins_of(&fetch))
    }

    fn why(&self, id: &str) -> Option<Reason> {
        self.state(id).failure.map(|failure| failure.reason)
    }
}

#[test]
fn a_pinned_module_that_cannot_be_had_is_no_failure_of_others_who_name_the_tag() {
    let mut table = with_pins(&["lost", "there"]);
    table.jobs();
    table.lost("lost");
    table.lost("there");
    let mut both = vec![digest("lost"), digest("there")];
    both.sort();
    assert_eq!(table.fetches(), Some(both));
    table.brought(&[("lost", Err(Reason::NotFound)), ("there", Ok(()))]);
    assert_eq!(table.fetches(), Some(vec![]), "the tag is asked next");
    table.compiled("there");
    table.fetched(TAG, Ok("tagged"));
    assert_eq!(table.jobs(), ["prepare"]);
    table.compiled("tagged");
    assert_eq!((table.candidates("there"), table.candidates("new")), (vec![1], vec![1]));
    assert_eq!(table.why("lost"), Some(Reason::NotFound));
    assert_eq!((table.why("there"), table.why("new")), (None, None));

    // It is looked for again.
    assert_eq!(table.jobs(), Vec::<String>::new());
    table.pass(SETTINGS.retry.outside);
    assert_eq!(table.jobs(), ["prepare"]);
    table.lost("lost");
    assert_eq!(table.fetches(), Some(vec![digest("lost")]));
    table.brought(&[("lost", Ok(()))]);
    table.compiled("lost");
    assert_eq!((table.candidates("lost"), table.why("lost")), (vec![1], None));
    assert_eq!(table.fetches(), None);
}

#[test]
fn a_pinned_module_that_has_come_waits_for_nothing() {
    for why in [Reason::RegistryUnreachable, Reason::NotFound] {
        let mut table = with_pins(&["lost"]);
        table.jobs();
        table.lost("lost");
        table.brought(&[("lost", Err(why))]);
        assert_eq!((table.fetches(), table.why("lost")), (Some(vec![]), Some(why)), "the tag is asked next");
        table.fetched(TAG, Ok("lost"));
        assert_eq!((table.jobs(), table.why("lost")), (vec!["prepare".to_owned()], None));
        table.compiled("lost");
        assert_eq!((table.candidates("lost"), table.candidates("new")), (vec![1], vec![1]));
    }
}

#[test]
fn a_pinned_module_is_looked_for_at_once_when_a_watched_file_changes() {
    let mut table = with_pins(&["lost"]);
    table.jobs();
    table.lost("lost");
    table.brought(&[("lost", Err(Reason::Unauthorized))]);
    table.fetched(TAG, Ok("tagged"));
    table.jobs();
    table.compiled("tagged");
    assert_eq!((table.jobs(), table.why("lost")), (vec![], Some(Reason::Unauthorized)));
    table.take(Event::OutsideChanged);
    assert_eq!(table.jobs(), ["prepare"]);
    table.lost("lost");
    assert_eq!(table.fetches(), Some(vec![digest("lost")]));
}

#[test]
fn a_pin_that_alone_is_wanted_waits_for_its_host() {
    let mut table = Table::new();
    table.want(vec![pinned(object(wants("lost", TAG, "{}"), "u", 1), "lost")]);
    table.jobs();
    table.lost("lost");
    table.fetches();
    table.brought(&[("lost", Err(Reason::RegistryUnreachable))]);
    assert_eq!((table.fetches(), table.why("lost")), (None, Some(Reason::RegistryUnreachable)));
    let told = table.plan.state(&Program::default(), &Contexts::default()).sources;
    assert_eq!(told[0].failure.as_ref().map(|failure| failure.reason), Some(Reason::RegistryUnreachable));
    table.pass(SETTINGS.retry.cap);
    assert_eq!(table.fetches(), Some(vec![digest("lost")]));
    table.brought(&[("lost", Err(Reason::NotFound))]);
    assert_eq!(table.fetches(), None);
    table.want(vec![pinned(object(wants("lost", TAG, "{\"edited\":1}"), "u", 2), "lost")]);
    assert_eq!(table.fetches(), Some(vec![digest("lost")]), "at once, as somebody has touched the policy");
}

#[test]
fn a_host_does_not_fail_when_nothing_is_wanted_of_it_any_more() {
    let failure =
        |table: &Table| table.plan.state(&Program::default(), &Contexts::default()).sources[0].failure.clone();
    let mut table = Table::new();
    table.want(vec![object(wants("a", TAG, "{}"), "u", 1)]);
    table.jobs();
    table.fetched(TAG, Err(Reason::RegistryTimeout));
    assert_eq!(failure(&table).map(|failure| failure.reason), Some(Reason::RegistryTimeout));
    // Another replica has found out where the tag leads, and the module is on the volume.
    table.want(vec![pinned(object(wants("a", TAG, "{}"), "u", 1), "there")]);
    assert_eq!(table.jobs(), ["prepare"]);
    table.compiled("there");
    table.pass(SETTINGS.retry.cap);
    assert_eq!((table.jobs(), table.candidates("a")), (vec![], vec![1]));
    assert_eq!(failure(&table), None);
    // It is asked at once when it is needed.
    table.want(vec![object(wants("b", TAG, "{}"), "v", 1)]);
    assert_eq!(table.fetches(), Some(vec![]));
}

#[test]
fn a_pin_that_is_found_missing_while_its_tag_is_asked_is_fetched_next() {
    for result in [Ok("moved"), Err(Reason::NotFound)] {
        let mut table = with_pins(&["lost"]);
        assert_eq!(table.fetches(), Some(vec![]));
        table.lost("lost");
        table.fetched(TAG, result);
        assert_eq!(table.fetches(), Some(vec![digest("lost")]), "{result:?}");
        assert_eq!(table.why("lost"), result.err(), "where the tag leads is no failure of the pin");
        table.brought(&[("lost", Ok(()))]);
        table.compiled("lost");
        assert_eq!(table.candidates("lost"), [1]);
        if result.is_err() {
            assert_eq!(table.fetches(), Some(vec![]), "the tag was not told by that");
            table.fetched(TAG, result);
        }
        assert_eq!((table.fetches(), table.why("new")), (None, result.err()));
    }
}

#[test]
fn l05_a_source_that_asks_for_time_gets_it_also_for_pinned_modules() {
    let throttled = |seconds| {
        let retry_after = Some(Duration::from_secs(seconds));
        AttemptError { retry_after, ..error(Reason::RegistryThrottled) }
    };
    let waits = |table: &mut Table, why: &str| {
        assert_eq!(table.fetches(), None, "{why}");
        table.pass(Duration::from_secs(99));
        assert_eq!(table.fetches(), None, "{why}");
        table.pass(Duration::from_secs(1));
        assert_eq!(table.fetches(), Some(vec![digest("lost")]), "{why}");
    };
    let mut table = with_pins(&["lost"]);
    table.jobs();
    table.lost("lost");
    table.ended(Outcome::Fetched(tag(), Err(throttled(100))));
    waits(&mut table, "the tag was asked");
    table.ended(Outcome::Brought(tag(), vec![(digest("lost"), Err(throttled(100)))]));
    waits(&mut table, "the module was asked for");
    table.brought(&[("lost", Ok(()))]);
    table.compiled("lost");
    assert_eq!(table.candidates("lost"), [1]);

    // What came of others makes no difference.
    let mut table = with_pins(&["lost", "there"]);
    table.jobs();
    table.lost("lost");
    table.lost("there");
    let both = vec![(digest("lost"), Err(throttled(100))), (digest("there"), Ok(()))];
    table.ended(Outcome::Brought(tag(), both));
    waits(&mut table, "another module came");
}

#[test]
fn a_mistake_of_the_loader_is_not_repeated_at_once() {
    let mut table = with_pins(&["lost"]);
    table.jobs();
    table.lost("lost");
    table.fetched(TAG, Err(Reason::InternalError));
    assert_eq!(table.fetches(), None);
}

#[test]
fn what_a_tag_led_to_long_ago_is_asked_again_for_a_new_policy() {
    let hour = Duration::from_secs(3600);
    for module in [URL, TAG] {
        let mut table = Table::new();
        let first = || wants("a", module, "{}");
        table.want(vec![first()]);
        table.jobs();
        table.fetched(module, Ok("old"));
        table.jobs();
        table.compiled("old");
        table.pass(Duration::from_secs(30));
        table.want(vec![first(), wants("soon", module, "{}")]);
        assert_eq!((table.jobs(), table.candidates("soon")), (vec![], vec![1]), "what was tried a moment ago");

        table.pass(hour);
        table.want(vec![first(), wants("b", module, "{}")]);
        assert_eq!(table.jobs(), [format!("fetch {}", module.trim_start_matches("registry://"))]);
        table.fetched(module, Err(Reason::RegistryUnreachable));
        assert_eq!(table.why("b"), Some(Reason::RegistryUnreachable), "it is not known what the tag means now");
        assert_eq!((table.candidates("a"), table.why("a")), (vec![1], None));
        table.pass(SETTINGS.retry.cap);
        table.jobs();
        table.fetched(module, Ok("new"));
        table.jobs();
        table.compiled("new");
        assert_eq!(table.candidates("b"), [1]);
        assert_eq!((table.state("a").digest, table.state("b").digest), (Some(digest("old")), Some(digest("new"))));
    }
}

#[test]
fn what_cannot_change_unseen_is_not_asked_again() {
    let named = format!("registry://reg.example/m@{}", digest("manifest"));
    for module in ["modules/a.wasm", &named] {
        let mut table = Table::new();
        table.want(vec![wants("a", module, "{}")]);
        table.settle();
        table.pass(Duration::from_secs(3600));
        table.want(vec![wants("a", module, "{}"), wants("b", module, "{}")]);
        assert_eq!((table.jobs(), table.candidates("b")), (vec![], vec![1]), "{module}");
    }
}
