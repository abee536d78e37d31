//! How many instructions the evaluator's own steps of a request take, which does not depend on the machine's speed. `instructions.yaml` has the
//! figures, and says what to do when a count is off.
//!
//! Valgrind counts them, so no counters of the processor are needed. It runs this test again as a child that does a step some times, and
//! counts only what the thread of the test does within [`measured`]. Guests are left out: their code is their own.

use std::collections::BTreeMap;
use std::env;
use std::hint::black_box;
use std::process::Command;

use portcullis_evaluator::steps::{ReadyPolicy, decode};
use portcullis_testkit::{note, pod_review, skip};
use serde::Deserialize;

use crate::rig::{Policy, Rig};

/// The expected figures.
const FIGURES: &str = include_str!("../instructions.yaml");

/// How far a count may be from its figure, as a fraction of the figure.
const TOLERANCE: f64 = 0.05;

/// How often a step is done.
const TIMES: u64 = 20;

/// The variable that makes this test the child: the step that it does.
const STEP: &str = "PORTCULLIS_TEST_STEP";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Figures {
    /// The compiler that the figures are for, as `rustc --version` names it.
    rustc: String,
    /// Instructions by the name of a step.
    instructions: BTreeMap<String, u64>,
}

#[test]
fn a_step_of_a_request_takes_no_more_instructions_than_its_figure() {
    if let Ok(step) = env::var(STEP) {
        work(&step);
        return;
    }
    let figures: Figures = portcullis_yaml::read(FIGURES).unwrap();
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        skip("valgrind, which counts instructions; on Debian: `apt-get install --no-install-recommends valgrind`");
        return;
    }
    let compiler = compiler();
    if compiler != figures.rustc {
        skip(&format!(
            "the figures of evaluator/tests/instructions.yaml are for rustc {}, not {compiler}",
            figures.rustc
        ));
        return;
    }
    let mut problems = Vec::new();
    for (step, figure) in &figures.instructions {
        let count = counted(step) / TIMES;
        let told = format!("{step}: {count} instructions, and the figure is {figure}");
        note(&told);
        if count.abs_diff(*figure) as f64 > TOLERANCE * *figure as f64 {
            problems.push(told);
        }
    }
    assert!(problems.is_empty(), "evaluator/tests/instructions.yaml says what to do: {}", problems.join("; "));
}

/// The version of the compiler, for instance `1.95.0`.
fn compiler() -> String {
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(rustc).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).split(' ').nth(1).unwrap_or("(unknown)").to_owned()
}

/// The instructions of a child within [`measured`].
fn counted(step: &str) -> u64 {
    let test = std::thread::current().name().unwrap().to_owned();
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*instructions::measured*"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", &test, "--test-threads=1"])
        .env(STEP, step)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{step} under valgrind: {}\n{text}", String::from_utf8_lossy(&output.stdout));
    total(&text).unwrap_or_else(|| panic!("valgrind does not tell a count: {text}"))
}

/// The count in what valgrind prints: `==42== Collected : 1234567`.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("Collected"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

/// Does a step [`TIMES`] times. Valgrind finds this function by its name, and would take a closure in it for another call of it.
#[inline(never)]
fn measured(step: &dyn Fn()) {
    for _ in 0..TIMES {
        step();
    }
}

/// Does a step once, for what is prepared only once, and then as it is measured.
fn repeat(step: &dyn Fn()) {
    step();
    measured(step);
}

/// What the child does.
fn work(step: &str) {
    let body = pod_review(false);
    match step {
        "decode" => repeat(&|| drop(black_box(decode(black_box(&body))))),
        "payload" => {
            let review = decode(&body).unwrap();
            repeat(&|| drop(black_box(review.payload())));
        }
        "post-process and encode" => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let (_rig, policy) = runtime.block_on(async {
                let rig = Rig::small();
                rig.apply(Policy::guest("cluster/a", "always_accept")).await;
                let policy = ReadyPolicy::of(rig.served("cluster/a")).unwrap();
                (rig, policy)
            });
            let review = decode(&body).unwrap();
            let payload = review.payload();
            repeat(&|| {
                let answer = policy.post_process(&review, payload.clone(), br#"{"accepted":true}"#);
                drop(black_box(review.encode(&runtime.block_on(answer).unwrap())));
            });
        }
        other => panic!("there is no step {other:?}"),
    }
}

#[test]
fn the_count_is_found_in_what_valgrind_prints() {
    assert_eq!(total("==7== Events    : Ir\n==7== Collected : 1234567\n==7== \n"), Some(1_234_567));
    assert_eq!(total("valgrind: command not found"), None);
}
