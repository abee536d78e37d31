use super::*;

fn done(name: &str, outcome: Outcome) -> Done {
    Done { took: Duration::from_millis(1240), ..Done::new(name.to_owned(), outcome) }
}

#[test]
fn the_summary_ends_with_the_totals() {
    let passed = Outcome::Passed(Totals { passed: 3, failed: 0, skipped: 0 });
    let skipped = Outcome::Skipped("no Go here; install Go 1.24".to_owned());
    let steps = [done("formatting", Outcome::Passed(Totals::default())), done("loader", passed), done("go", skipped)];
    let (text, totals) = summary(&steps, &Count::default());
    assert_eq!(
        text,
        "formatting  ok         1.2 s\n\
         loader      ok         1.2 s  3 passed, 0 failed, 0 skipped\n\
         go          SKIPPED\n\
         SKIPPED: go: no Go here; install Go 1.24\n\
         3 passed, 0 failed, 1 skipped",
    );
    assert_eq!(totals, Totals { passed: 3, failed: 0, skipped: 1 });
}

#[test]
fn a_failed_check_counts_as_one_failure() {
    let (_, totals) = summary(&[done("formatting", Outcome::Failed(Totals::default()))], &Count::default());
    assert_eq!(totals, Totals { passed: 0, failed: 1, skipped: 0 });
}

#[test]
fn failed_tests_count_as_many_as_they_are() {
    let failed = done("loader", Outcome::Failed(Totals { passed: 5, failed: 2, skipped: 0 }));
    let (_, totals) = summary(&[failed], &Count::default());
    assert_eq!(totals, Totals { passed: 5, failed: 2, skipped: 0 });
}

#[test]
fn tests_that_failed_or_said_that_they_were_skipped_are_named_before_the_totals() {
    let output = "SKIPPED a: no node\ntest a ... ok\nFAILING b: x.rs:1:1: why\ntest b ... FAILED\ntest c ... FAILED\n";
    let mut step = done("loader", Outcome::Failed(Totals { passed: 0, failed: 2, skipped: 1 }));
    step.runs = runs::parse(output);
    let count = Count { lines: vec!["fault catalogue: none".to_owned()], missing: 1, ..Count::default() };
    let (text, _) = summary(&[step], &count);
    assert_eq!(
        text.split_once('\n').unwrap().1,
        "SKIPPED: loader: a: no node\nFAILED: loader: b: x.rs:1:1: why\nFAILED: loader: c\nfault catalogue: none\n\
         0 passed, 3 failed, 1 skipped",
    );
}

#[test]
fn a_skip_inside_a_test_is_counted_as_one() {
    let logs = std::env::temp_dir().join(format!("xtask-steps-skip-{}", std::process::id()));
    let mut echo = Command::new("sh");
    let output = "SKIPPED a: no node\ntest a ... ok\ntest b ... ok\ntest result: ok. 2 passed; 0 failed; 0 ignored\n";
    echo.args(["-c", "printf %s \"$0\"", output]);
    let steps = vec![Step::command("one", echo), Step::skip("two", "no node").leaving_out("e2e/tests/node/")];
    let done = run_all(vec![Group::one_by_one(steps)], &logs).unwrap();
    assert_eq!(done[0].outcome, Outcome::Passed(Totals { passed: 1, failed: 0, skipped: 1 }));
    assert_eq!(done[0].runs.len(), 2);
    assert_eq!(done[1].leaves_out, Some("e2e/tests/node/"));
    fs::remove_dir_all(logs).unwrap();
}

#[test]
fn a_step_that_hangs_fails_and_its_last_lines_come_before_the_totals() {
    let logs = std::env::temp_dir().join(format!("xtask-steps-hung-{}", std::process::id()));
    let mut hangs = Command::new("sh");
    hangs.args(["-c", "echo 'test a ... ok'; echo 'test b has been running'; exec sleep 3600"]);
    let steps =
        vec![Step::command("one", hangs).within(Duration::from_secs(1)), Step::command("two", Command::new("true"))];
    let done = run_all(vec![Group::one_by_one(steps)], &logs).unwrap();
    assert!(matches!(done[0].outcome, Outcome::Failed(_)), "{:?}", done[0].outcome);
    assert_eq!(done[1].outcome, Outcome::Passed(Totals::default()), "the others run");
    let (text, totals) = summary(&done, &Count::default());
    let told = "FAILED: one: sh was ended, as the step may take 1 s; its last lines:\n    test a ... ok\n    \
        test b has been running\n";
    assert!(text.contains(told), "{text}");
    assert_eq!(totals.failed, 1);
    fs::remove_dir_all(logs).unwrap();
}

#[test]
fn a_broken_build_ends_the_run() {
    let logs = std::env::temp_dir().join(format!("xtask-steps-{}", std::process::id()));
    let (failed, passed) = (Outcome::Failed(Totals::default()), Outcome::Passed(Totals::default()));
    let broken = || Step::check("builds", || Ok(vec!["it does not build".to_owned()])).gate();
    let behind = || Step::check("tests", || panic!("a step behind a broken build was run"));
    let outcomes = |groups| -> Vec<_> {
        let done: Vec<Done> = run_all(groups, &logs).unwrap();
        done.into_iter().map(|step| step.outcome).collect()
    };
    assert_eq!(outcomes(vec![Group::one_by_one(vec![broken(), behind()])]), [failed.clone(), Outcome::NotRun]);
    let beside = Step::command("another build", Command::new("true"));
    let groups = vec![Group::beside(vec![beside, broken()]), Group::beside(vec![behind(), behind()])];
    assert_eq!(outcomes(groups), [passed, failed, Outcome::NotRun, Outcome::NotRun]);
    fs::remove_dir_all(logs).unwrap();
}

#[test]
fn steps_that_may_run_beside_each_other_end_in_their_order() {
    let logs = std::env::temp_dir().join(format!("xtask-steps-beside-{}", std::process::id()));
    fs::create_dir_all(&logs).unwrap();
    // Each of the two waits for the other, which would never end in one lane.
    let (one, two) = (logs.join("one"), logs.join("two"));
    let meet = |mine: &Path, other: &Path| {
        let mut command = Command::new("sh");
        command.args(["-c", "touch \"$0\"; until [ -e \"$1\" ]; do sleep 0.01; done"]).args([mine, other]);
        command
    };
    let steps = vec![
        Step::command("one", meet(&one, &two)),
        Step::commands("two", || Ok(vec![meet(&two, &one), Command::new("false")])),
    ];
    let then = vec![Step::command("three", Command::new("true"))];
    let done = run_all(vec![Group::beside(steps), Group::one_by_one(then)], &logs).unwrap();
    let told: Vec<_> = done.iter().map(|step| (step.name.as_str(), step.outcome.clone())).collect();
    let (passed, failed) = (Outcome::Passed(Totals::default()), Outcome::Failed(Totals::default()));
    assert_eq!(told, [("one", passed.clone()), ("two", failed), ("three", passed)]);
    fs::remove_dir_all(logs).unwrap();
}

#[test]
fn a_failed_step_lets_the_others_run() {
    let logs = std::env::temp_dir().join(format!("xtask-steps-on-{}", std::process::id()));
    let mut echo = Command::new("sh");
    echo.args(["-c", "echo 'test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured'"]);
    let steps = vec![Step::command("one", Command::new("false")), Step::command("two", echo)];
    let outcomes: Vec<_> =
        run_all(vec![Group::one_by_one(steps)], &logs).unwrap().into_iter().map(|step| step.outcome).collect();
    assert_eq!(
        outcomes,
        [Outcome::Failed(Totals::default()), Outcome::Passed(Totals { passed: 2, failed: 0, skipped: 0 })]
    );
    fs::remove_dir_all(logs).unwrap();
}

#[test]
fn what_uses_idle_time_has_a_lane_of_its_own_and_the_lowest_priority() {
    let groups = [(LANES, Group::beside as fn(_) -> _), (1, Group::one_by_one as fn(_) -> _)];
    for (lanes, group) in groups {
        assert_that_idle_time_is_used(lanes, group);
    }
}

/// Runs a step that uses idle time in a group that has this many other lanes.
fn assert_that_idle_time_is_used<'a>(lanes: usize, group: fn(Vec<Step<'a>>) -> Group<'a>) {
    let logs = std::env::temp_dir().join(format!("xtask-steps-idle-{}", std::process::id()));
    fs::create_dir_all(&logs).unwrap();
    let in_logs = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(&logs);
        command
    };
    // All lanes are busy until the step that uses idle time has run.
    let waits = "until [ -e idle ]; do sleep 0.01; done";
    let mut steps: Vec<_> = (0..lanes).map(|lane| Step::command(format!("{lane}"), in_logs(waits))).collect();
    steps.push(Step::command("idle", in_logs("nice > priority; touch idle")).when_idle());
    let done = run_all(vec![group(steps)], &logs).unwrap();
    assert_eq!(done.last().unwrap().name, "idle");
    assert!(done.iter().all(|step| step.outcome == Outcome::Passed(Totals::default())));
    assert_eq!(fs::read_to_string(logs.join("priority")).unwrap(), "19\n");
    fs::remove_dir_all(logs).unwrap();
}
