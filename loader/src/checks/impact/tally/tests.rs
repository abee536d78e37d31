use super::*;

const PROTECT: Mode = Mode::Protect;

fn resource(name: &str, group: &str) -> Resource {
    Resource { group: group.into(), version: "v1".into(), name: name.into(), kind: "Any".into(), namespaced: true }
}

fn effect(namespace: &str, name: &str, outcome: Option<AuditOutcome>) -> Effect {
    let message = Some("privileged containers\nare not allowed".to_owned());
    Effect { namespace: namespace.into(), name: name.into(), outcome, message }
}

fn tally(outcomes: &[(&str, Option<AuditOutcome>)]) -> Tally {
    let mut tally = Tally::default();
    for (number, (namespace, outcome)) in outcomes.iter().enumerate() {
        tally.add(effect(namespace, &format!("web-{number}"), *outcome));
    }
    tally
}

fn read(tally: &mut Tally, resource: &Resource, is_complete: bool, total: Option<usize>) {
    tally.begin(resource);
    tally.end(is_complete, total);
}

const ALLOWED: Option<AuditOutcome> = Some(AuditOutcome::Allowed);
const DENIED: Option<AuditOutcome> = Some(AuditOutcome::Denied);

#[test]
fn the_figures_name_one_object_and_why() {
    let mut some = tally(&[("a", ALLOWED), ("team-a", DENIED), ("team-b", DENIED), ("team-a", DENIED)]);
    read(&mut some, &resource("pods", ""), true, Some(4));
    assert_eq!(
        some.warnings(PROTECT),
        [
            "3 of 4 pods in 2 namespaces would be denied, for instance team-a/web-1: privileged containers are not allowed"
        ]
    );
    assert_eq!(
        some.warnings(Mode::Warn),
        [
            "3 of 4 pods in 2 namespaces would be denied under protect, for instance team-a/web-1: privileged containers are not \
             allowed"
        ]
    );
}

#[test]
fn nothing_is_said_where_nothing_would_change() {
    let mut none = tally(&[("a", ALLOWED)]);
    read(&mut none, &resource("pods", ""), true, Some(1));
    assert_eq!(none.warnings(Mode::Monitor), [""; 0]);
    assert_eq!(Tally::default().warnings(PROTECT), [""; 0]);
}

#[test]
fn what_is_left_out_is_said() {
    let mut some =
        tally(&[("", DENIED), ("a", Some(AuditOutcome::Changes)), ("a", None), ("a", Some(AuditOutcome::Failed))]);
    read(&mut some, &resource("nodes", ""), true, Some(2));
    read(&mut some, &resource("deployments", "apps"), false, Some(4000));
    some.be_late();
    some.forbid(&resource("pods", ""));
    some.miss(&resource("widgets", "example.com"));
    assert_eq!(
        some.warnings(PROTECT),
        [
            "1 of 4 objects (a sample of about 4002) would be denied, for instance web-0: privileged containers are not allowed; \
             1 would be changed; 2 could not be evaluated; there was no time for more",
            "what it would do to pods is not known: the policy server may not list them; add them to rbac.auditReads of the chart",
            "what it would do to widgets.example.com is not known: they could not be listed",
        ]
    );
    read(&mut some, &resource("services", ""), false, None);
    assert!(some.warnings(PROTECT)[0].starts_with("1 of 4 objects (a sample) would"));
    let mut late = Tally::default();
    late.be_late();
    assert_eq!(
        late.warnings(PROTECT),
        ["there was no time to count the objects that it would deny; `portcullis impact` does so"]
    );
}

#[test]
fn what_match_conditions_leave_out_counts_nowhere() {
    let mut some = Tally::default();
    some.begin(&resource("pods", ""));
    some.add(effect("a", "web", DENIED));
    some.add(effect("a", "db", ALLOWED));
    (0..6).for_each(|_| some.leave_out());
    some.end(true, Some(9));
    assert!(some.warnings(PROTECT)[0].starts_with("1 of 2 pods in 1 namespace would be denied"));
    let figures = some.figures(Timestamp::UNIX_EPOCH).expect("figures");
    assert_eq!((figures.evaluated, figures.total, figures.complete), (2, Some(2), true));

    // A quarter of the objects that were read count, so a quarter of the others are assumed to.
    some.begin(&resource("services", ""));
    some.add(effect("a", "web", ALLOWED));
    (0..3).for_each(|_| some.leave_out());
    some.end(false, Some(4000));
    let figures = some.figures(Timestamp::UNIX_EPOCH).expect("figures");
    assert_eq!((figures.evaluated, figures.total, figures.sample), (3, Some(1003), true), "{some:?}");
    assert!(some.warnings(PROTECT)[0].starts_with("1 of 3 objects (a sample of about 1003) in"));

    let mut none = Tally::default();
    none.begin(&resource("pods", ""));
    none.leave_out();
    none.end(true, Some(1));
    assert_eq!(none.warnings(PROTECT), [""; 0]);
    let figures = none.figures(Timestamp::UNIX_EPOCH).expect("figures");
    assert_eq!((figures.evaluated, figures.total, figures.complete), (0, Some(0), true));
}

#[test]
fn what_cannot_be_decided_is_said_and_the_figures_are_not_all() {
    let mut some = Tally::default();
    some.begin(&resource("pods", ""));
    some.add(effect("a", "web", DENIED));
    ["not-kubelet", "trusted", "not-kubelet"].into_iter().for_each(|name| some.leave_undecided(name));
    some.end(true, Some(4));
    assert_eq!(
        some.warnings(PROTECT),
        [
            "1 of 1 pods in 1 namespace would be denied, for instance a/web: privileged containers are not allowed",
            "what it would do to 3 of 4 pods is not known: only an API server can decide whether match conditions leave them out: \
             not-kubelet, trusted",
        ]
    );
    let figures = some.figures(Timestamp::UNIX_EPOCH).expect("figures");
    assert_eq!((figures.evaluated, figures.total, figures.failed, figures.complete), (1, Some(4), 0, false));

    let mut all = Tally::default();
    all.begin(&resource("pods", ""));
    (0..HOPELESS).for_each(|_| all.leave_undecided("trusted"));
    all.end(true, Some(HOPELESS));
    assert_eq!(all.warnings(PROTECT).len(), 1, "no figures");
    let figures = all.figures(Timestamp::UNIX_EPOCH).expect("figures");
    assert_eq!((figures.evaluated, figures.total, figures.complete), (0, Some(20), false));
}

#[test]
fn z23_objects_that_take_too_much_memory_are_counted() {
    let mut some = Tally::default();
    some.begin(&resource("configmaps", ""));
    some.add(effect("a", "web", ALLOWED));
    (0..2).for_each(|_| some.leave_too_large());
    some.end(true, Some(3));
    assert_eq!(
        some.warnings(PROTECT),
        ["what it would do to 2 of 3 configmaps is not known: they take too much memory to be judged"]
    );
    let figures = some.figures(Timestamp::UNIX_EPOCH).expect("figures");
    assert_eq!((figures.evaluated, figures.total, figures.complete), (1, Some(3), false));
}

#[test]
fn the_status_has_the_same_figures_and_a_few_names() {
    let mut some = tally(&[("a", ALLOWED), ("a", Some(AuditOutcome::Changes)), ("a", None), ("", DENIED)]);
    for number in 0..9 {
        some.add(effect(if number < 4 { "team-a" } else { "team-b" }, &format!("web-{number}"), DENIED));
    }
    read(&mut some, &resource("pods", ""), true, Some(20));
    let figures = some.figures(Timestamp::UNIX_EPOCH).expect("figures");
    let wanted = ImpactFigures {
        checked_at: Timestamp::UNIX_EPOCH,
        evaluated: 13,
        total: Some(13),
        denied: 10,
        changed: 1,
        failed: 1,
        namespaces: 2,
        examples: ["web-3", "team-a/web-0", "team-a/web-1", "team-a/web-2", "team-a/web-3"].map(str::to_owned).into(),
        sample: false,
        complete: true,
    };
    assert_eq!(figures, wanted, "of 20 objects the policy would not be asked about 7");
    read(&mut some, &resource("nodes", ""), false, Some(2000));
    let sample = some.figures(Timestamp::UNIX_EPOCH).expect("figures");
    assert_eq!(sample, ImpactFigures { total: Some(2020), sample: true, ..wanted });
    read(&mut some, &resource("services", ""), false, None);
    assert_eq!(some.figures(Timestamp::UNIX_EPOCH).map(|figures| figures.total), Some(None));
}

#[test]
fn figures_say_that_they_are_not_all_and_what_was_not_counted_has_none() {
    let figures = |tally: &Tally| tally.figures(Timestamp::UNIX_EPOCH);
    let counted = || {
        let mut some = tally(&[("a", ALLOWED)]);
        read(&mut some, &resource("pods", ""), true, Some(1));
        some
    };
    assert_eq!(figures(&counted()).map(|figures| (figures.complete, figures.total)), Some((true, Some(1))));
    for (change, total) in [
        (Tally::be_late as fn(&mut Tally), None),
        (|tally| tally.forbid(&resource("nodes", "")), Some(1)),
        (|tally| tally.miss(&resource("nodes", "")), Some(1)),
        (Tally::cut, Some(1)),
        // The list of this kind ended early, with an error.
        (
            |tally| {
                tally.begin(&resource("nodes", ""));
                tally.miss(&resource("nodes", ""));
            },
            None,
        ),
    ] {
        let mut some = counted();
        change(&mut some);
        assert_eq!(figures(&some).map(|figures| (figures.complete, figures.total)), Some((false, total)));
    }
    let mut hopeless = tally(&[("a", None); HOPELESS]);
    read(&mut hopeless, &resource("pods", ""), true, Some(HOPELESS));
    assert_eq!(figures(&hopeless).map(|figures| figures.complete), Some(false));

    assert_eq!(figures(&Tally::default()), None, "no kind could be read");
    let mut late = Tally::default();
    late.begin(&resource("pods", ""));
    late.be_late();
    assert_eq!(figures(&late), None);
    let mut empty = Tally::default();
    read(&mut empty, &resource("pods", ""), true, Some(0));
    assert_eq!(figures(&empty).map(|figures| (figures.evaluated, figures.total)), Some((0, Some(0))));
}

#[test]
fn texts_of_policies_and_names_are_bounded() {
    let mut one = Tally::default();
    let (namespace, name) = ("n".repeat(1000), "x".repeat(1000));
    one.add(Effect { namespace, name, outcome: DENIED, message: Some("\u{1b}[2J".repeat(10_000)) });
    one.add(effect("a", &"\u{1b}[2J".repeat(10_000), DENIED));
    one.begin(&resource("pods", ""));
    let examples = one.figures(Timestamp::UNIX_EPOCH).expect("figures").examples;
    let is_bounded = |name: &String| name.len() <= ImpactFigures::MAX_EXAMPLE && !name.contains('\u{1b}');
    assert!(examples.len() == 2 && examples.iter().all(is_bounded), "{examples:?}");
    for number in 0..100 {
        one.forbid(&resource(&format!("{}{number}", "r".repeat(500)), ""));
    }
    let warnings = one.warnings(PROTECT);
    assert_eq!(warnings.len(), 2);
    assert!(warnings.iter().all(|text| text.len() <= LONGEST && !text.contains('\u{1b}')), "{warnings:?}");
}

#[test]
fn a_policy_that_cannot_judge_is_not_asked_for_ever() {
    let failed = vec![("a", None); HOPELESS];
    assert!(tally(&failed).is_hopeless() && !tally(&failed[1..]).is_hopeless());
    let with_one: Vec<_> = failed.into_iter().chain([("a", ALLOWED)]).collect();
    assert!(!tally(&with_one).is_hopeless());
}

#[test]
fn objects_for_which_match_conditions_take_too_long_are_said_and_the_figures_are_not_all() {
    let mut some = tally(&[("team-a", ALLOWED)]);
    (0..3).for_each(|_| some.leave_costly());
    read(&mut some, &resource("pods", ""), true, Some(4));
    assert_eq!(
        some.warnings(PROTECT),
        [
            "what it would do to 3 of 4 pods is not known: its match conditions take too long; make them quicker, or count with \
          `portcullis impact`"
        ]
    );
    let figures = some.figures(Timestamp::UNIX_EPOCH).expect("figures");
    assert_eq!((figures.evaluated, figures.total, figures.complete), (1, Some(4), false));
}
