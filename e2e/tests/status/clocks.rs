//! Reporters whose clocks differ.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use portcullis_e2e::{PodSetup, Program, eventually_within, never_lasting};
use serde_json::Value;

use crate::cluster;
use crate::stage::{Replica, SOON, Stage, status_and_reason};
use crate::states::{Says, unreachable};

/// By how many seconds the clocks are off: ten minutes.
const SHIFT: i64 = 600;

/// Longer than a Lease is valid.
const LONGER: Duration = Duration::from_secs(20);

/// Compiles the library of the black-box tests that shifts only the wall clock of a program.
fn library() -> PathBuf {
    let library = cluster().folder().join("shift.so");
    let source = portcullis_testkit::repository().join("tests/clock/shift.c");
    let mut compiler = Command::new("cc");
    let output = compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).output();
    let output = output.expect("there is a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// A replica whose clock is off by this many seconds.
fn replica(stage: &Stage, library: &std::path::Path, seconds: i64) -> Replica {
    let shift = cluster().folder().join(format!("shift{seconds}"));
    fs::write(&shift, seconds.to_ne_bytes()).unwrap();
    let setup = PodSetup::default().env(Program::Reporter, "LD_PRELOAD", &library.to_string_lossy());
    let replica = stage.replica_with(setup.env(Program::Reporter, "CLOCK_SHIFT_FILE", &shift.to_string_lossy()));
    replica.wait_ready();
    replica
}

/// The holder of the Lease, and how often the Lease has changed its holder.
fn held(stage: &Stage) -> Option<(String, Value)> {
    let lease = stage.installation.api().find(&stage.lease())?;
    Some((lease["spec"]["holderIdentity"].as_str()?.to_owned(), lease["spec"]["leaseTransitions"].clone()))
}

/// By how many seconds the last renewal is off.
fn renewal_is_off_by(stage: &Stage) -> i64 {
    let lease = stage.installation.api().find(&stage.lease()).unwrap();
    let renewed = humantime::parse_rfc3339(lease["spec"]["renewTime"].as_str().unwrap()).unwrap();
    let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().cast_signed();
    seconds(renewed) - seconds(SystemTime::now())
}

/// Asserts that this replica keeps the Lease, and that its clock is off by this many seconds.
fn assert_kept(stage: &Stage, leader: &Replica, seconds: i64) {
    let before = held(stage).unwrap();
    assert_eq!(before.0, leader.name());
    never_lasting(LONGER, "another leader", || held(stage).filter(|now| *now != before));
    let off = renewal_is_off_by(stage);
    assert!((off - seconds).abs() < 60, "the renewal is off by {off} s and not by about {seconds} s");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r16_a_live_lease_is_left_alone_however_far_clocks_differ_and_a_dead_one_is_taken() {
    let stage = Stage::new(cluster(), "clocks");
    let library = library();
    // For the other replica, each renewal of this one is twenty minutes old.
    let late = replica(&stage, &library, -SHIFT);
    eventually_within(SOON, "a leader", || (stage.holder()? == late.name()).then_some(()));
    let early = replica(&stage, &library, SHIFT);
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    late.says(&object, Says::Current);
    early.says(&object, Says::Current);
    stage.word(&policy, "Active");
    assert_kept(&stage, &late, -SHIFT);

    // A Lease that is no longer renewed is taken over. For the first replica, each renewal is then twenty minutes in the future.
    late.pod.stop(Program::Reporter);
    eventually_within(SOON, "the other leader", || (stage.holder()? == early.name()).then_some(()));
    late.pod.start(Program::Reporter);
    stage.wait_ready();
    assert_kept(&stage, &early, SHIFT);

    // Once a report was seen to change, whether it is stale depends on when it does so, and not on the time in it.
    late.says(&object, unreachable());
    let found = stage.word(&policy, "Degraded");
    assert_eq!(status_and_reason(&found, "Degraded"), "True/RegistryUnreachable");
    early.pod.stop(Program::Reporter);
    eventually_within(SOON, "the first leader", || (stage.holder()? == late.name()).then_some(()));
}
