//! From a manifest on the volume to what serves: keep, replace, fall back, forget.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_contract::{Failure, FailurePolicy, Mode, Reason, ReplicaState};
use portcullis_process::files;

use crate::rig::{LIMIT, Policy, Rig, deny_text};

const ID: &str = "cluster/a";

fn denying(message: &str, generation: i64) -> Policy {
    let mut policy = Policy::text(ID, &deny_text(message)).generation(generation);
    policy.last_candidate().generation = generation;
    policy
}

#[tokio::test]
async fn a_new_generation_replaces_the_old_one() {
    let rig = Rig::start();
    for generation in 1..=5 {
        rig.apply(denying(&format!("by {generation}"), generation)).await;
        assert_eq!(rig.denial(ID).await, format!("by {generation}"));
        assert_eq!(rig.loaded(ID).generation(), generation);
    }
    let state = rig.until(|state| state.manifest_number == 5).await;
    assert!(state.deviations.is_empty() && state.ready && state.current.len() == 1);
}

#[tokio::test]
async fn an_evaluator_that_drains_says_so_and_goes_on_serving() {
    let rig = Rig::start();
    rig.apply(denying("before", 1)).await;
    rig.until(|state| !state.draining).await;
    rig.drain();
    // By this the loader knows that calls of policies still come.
    rig.until(|state| state.draining).await;
    rig.apply(denying("meanwhile", 2)).await;
    assert_eq!(rig.denial(ID).await, "meanwhile");
    rig.until(|state| state.draining && state.current.len() == 1).await;
}

#[tokio::test]
async fn settings_change_without_another_mapping() {
    let rig = Rig::start();
    rig.apply(Policy::guest(ID, "echo_settings").settings(r#"{"v":1}"#)).await;
    let copies = || fs::read_dir(rig.private.path()).unwrap().count();
    // Without the artifact, only code that is mapped already can serve.
    fs::remove_dir_all(rig.volume.path().join("artifacts")).unwrap();
    fs::remove_dir_all(rig.private.path()).unwrap();
    fs::create_dir(rig.private.path()).unwrap();
    let mut policy = Policy::guest(ID, "echo_settings").settings(r#"{"v":2}"#).generation(2);
    policy.last_candidate().generation = 2;
    fs::create_dir(rig.volume.path().join("artifacts")).unwrap();
    rig.put(policy);
    fs::remove_dir_all(rig.volume.path().join("artifacts")).unwrap();
    rig.publish().await;
    assert_eq!(rig.denial(ID).await, r#"{"request":{},"settings":{"v":2}}"#);
    assert_eq!(copies(), 0);
}

#[tokio::test]
async fn the_same_content_in_a_new_generation_serves_at_once() {
    let rig = Rig::start();
    rig.apply(Policy::guest(ID, "always_accept")).await;
    let mut next = Policy::guest(ID, "always_accept").generation(2);
    next.last_candidate().generation = 2;
    next.entry.mode = Mode::Monitor;
    next.entry.failure_policy = FailurePolicy::Ignore;
    rig.apply(next).await;
    let policy = rig.served(ID);
    assert_eq!((rig.loaded(ID).generation(), policy.mode), (2, Mode::Monitor));
    assert_eq!(policy.failure_policy, FailurePolicy::Ignore);
}

#[tokio::test]
async fn a_broken_generation_leaves_the_old_one_serving() {
    let rig = Rig::start();
    rig.apply(denying("by 1", 1)).await;
    let mut broken = Policy::new(ID).candidate("bad_settings", 2);
    broken.entry.mode = Mode::Warn;
    rig.apply(broken).await;
    assert_eq!(rig.denial(ID).await, "by 1");
    assert_eq!(rig.served(ID).mode, Mode::Warn, "the mode is the newest generation's");
    let state = rig.until(|state| state.deviations.len() == 1).await;
    let deviation = &state.deviations[0];
    assert_eq!((deviation.state, deviation.serving, deviation.generation), (ReplicaState::Previous, 1, 2));
    assert_eq!(deviation.failure.as_ref().map(|failure| failure.reason), Some(Reason::SettingsInvalid));
    assert_eq!(deviation.refused.len(), 1);
    rig.apply(denying("by 3", 3)).await;
    assert_eq!(rig.denial(ID).await, "by 3");
}

#[tokio::test]
async fn after_a_restart_the_last_good_one_serves_instead_of_the_broken_one() {
    let rig = Rig::start();
    rig.apply(Policy::new(ID).candidate("bad_settings", 2).candidate("always_deny", 1)).await;
    assert_eq!(rig.denial(ID).await, "denied by always_deny");
    let (volume, private) = rig.stop();
    let rig = Rig::on(volume, private);
    let state = rig.until(|state| state.manifest_number == 1).await;
    assert_eq!((state.deviations[0].state, state.deviations[0].serving), (ReplicaState::Previous, 1));
    assert_eq!(rig.denial(ID).await, "denied by always_deny");
}

#[tokio::test]
async fn the_loaders_failure_explains_what_does_not_serve() {
    let rig = Rig::start();
    let mut policy = Policy::new(ID);
    rig.apply(policy.clone()).await;
    assert_eq!(rig.unserved(ID).reason, Reason::AwaitingManifest);
    assert!(!rig.ready.is_released());
    policy.entry.failures.push(Failure::new(1, Reason::RegistryTimeout, "no answer", Timestamp::now()));
    rig.apply(policy.clone()).await;
    assert_eq!(rig.unserved(ID).reason, Reason::RegistryTimeout);
    assert!(!rig.ready.is_released(), "it may still pass");
    policy.entry.failures[0] = Failure::new(1, Reason::Unauthorized, "no entry", Timestamp::now());
    rig.apply(policy).await;
    assert!(rig.ready.is_released(), "waiting cannot help");
}

#[tokio::test]
async fn a_policy_that_is_gone_is_forgotten() {
    let rig = Rig::start();
    rig.put(Policy::guest("cluster/b", "always_accept"));
    rig.apply(Policy::guest(ID, "always_accept")).await;
    assert_eq!(fs::read_dir(rig.private.path()).unwrap().count(), 1, "one module, one copy");
    rig.take_out(ID);
    rig.publish().await;
    assert!(!rig.is_known(ID) && rig.is_known("cluster/b"));
    rig.take_out("cluster/b");
    rig.publish().await;
    let end = Instant::now() + Duration::from_secs(60);
    while fs::read_dir(rig.private.path()).unwrap().count() > 0 {
        assert!(Instant::now() < end, "the private copy is left");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_policy_that_is_only_tried_is_in_the_state_and_nowhere_else() {
    const CHECKS: [&str; 2] = ["check/7", "check/team-a/8"];
    let rig = Rig::start();
    rig.put(Policy::guest(ID, "always_accept"));
    rig.put(Policy::guest(CHECKS[0], "always_accept"));
    rig.apply(Policy::guest(CHECKS[1], "bad_settings")).await;
    let state = rig.until(|state| state.current.len() == 2 && state.deviations.len() == 1).await;
    assert!(state.current.contains_key(ID) && state.current.contains_key(CHECKS[0]));
    let refused = &state.deviations[0];
    assert_eq!((refused.id.as_str(), refused.refused.len()), (CHECKS[1], 1));
    assert_eq!(refused.failure.as_ref().map(|failure| failure.reason), Some(Reason::SettingsInvalid));
    let is_hidden = || {
        let series = prometheus::TextEncoder::new().encode_to_string(&rig.metrics.registry.gather()).unwrap();
        assert!(!series.contains("check/") && series.contains(ID), "{series}");
        assert!(rig.is_known(ID) && CHECKS.iter().all(|id| !rig.is_known(id)));
        assert_eq!((rig.metrics.loaded.get(), rig.metrics.failed.get()), (1, 0));
    };
    is_hidden();
    CHECKS.iter().for_each(|id| rig.take_out(id));
    rig.publish().await;
    let state = rig.until(|state| state.deviations.is_empty()).await;
    assert!(state.current.len() == 1 && state.current.contains_key(ID));
    is_hidden();
}

#[tokio::test]
async fn another_object_of_the_same_name_begins_anew() {
    let rig = Rig::start();
    rig.apply(denying("by the first", 1)).await;
    let mut second = Policy::new(ID).candidate("bad_settings", 1);
    second.entry.uid = "another".into();
    rig.apply(second).await;
    assert_eq!(rig.unserved(ID).reason, Reason::SettingsInvalid);
}

#[tokio::test]
async fn a_manifest_that_cannot_be_used_changes_nothing() {
    let rig = Rig::start();
    rig.apply(denying("by 1", 1)).await;
    let good = fs::read(rig.manifest_path()).unwrap();
    let newer = br#"{"format":99}"#.to_vec();
    for bad in [b"".to_vec(), b"torn".to_vec(), good[..good.len() / 2].to_vec(), newer] {
        files::publish(&rig.manifest_path(), &bad).unwrap();
        let state = rig.until(|state| state.manifest_failure.is_some()).await;
        assert_eq!(state.manifest_failure.as_ref().map(|failure| failure.reason), Some(Reason::ManifestInvalid));
        assert_eq!(rig.denial(ID).await, "by 1");
        files::publish(&rig.manifest_path(), &good).unwrap();
        rig.until(|state| state.manifest_failure.is_none()).await;
    }
    fs::remove_file(rig.manifest_path()).unwrap();
    rig.until(|state| state.manifest_failure.is_some()).await;
    assert_eq!(rig.denial(ID).await, "by 1");
}

#[tokio::test]
async fn a_slow_candidate_delays_nobody() {
    let rig = Rig::start();
    let mut slow = Policy::guest("cluster/slow", "loop_in_init");
    slow.last_candidate().timeout_eval_seconds = Some(5);
    rig.put(slow);
    rig.put(denying("by 1", 1));
    let number = rig.publish_and_go_on();
    let state = rig.until(|state| state.current.len() == 1).await;
    assert_ne!(state.manifest_number, number, "not applied to the end");
    assert_eq!(rig.denial(ID).await, "by 1");
    rig.until(|state| state.manifest_number == number).await;
    // On a machine that is busy with other programs it is tried again first.
    rig.until(|_| rig.unserved("cluster/slow").reason == Reason::StartTimedOut).await;
}

#[tokio::test]
async fn a_newer_manifest_overtakes_a_slow_candidate() {
    let rig = Rig::start();
    rig.put(Policy::guest(ID, "loop_in_init"));
    rig.publish_and_go_on();
    rig.until(|state| !state.deviations.is_empty()).await;
    let start = Instant::now();
    rig.apply(denying("by 2", 2)).await;
    assert!(start.elapsed() < LIMIT / 2, "{:?}", start.elapsed());
    assert_eq!(rig.denial(ID).await, "by 2");
}

#[tokio::test]
async fn two_policies_with_one_module_keep_their_settings_apart() {
    let rig = Rig::start();
    for id in ["cluster/b", "cluster/c"] {
        rig.put(Policy::guest(id, "echo_settings").settings(&format!("{{\"of\":\"{id}\"}}")));
    }
    rig.publish().await;
    for _ in 0..20 {
        for id in ["cluster/b", "cluster/c"] {
            let expected = format!("{{\"request\":{{}},\"settings\":{{\"of\":\"{id}\"}}}}");
            assert_eq!(rig.denial(id).await, expected);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_sees_a_gap_or_a_mixture_while_generations_change() {
    let rig = Arc::new(Rig::start());
    rig.apply(denying("by 1", 1)).await;
    let answers = Arc::new(AtomicUsize::new(0));
    let asking = {
        let (rig, answers) = (Arc::clone(&rig), Arc::clone(&answers));
        tokio::spawn(async move {
            let mut seen = std::collections::BTreeSet::new();
            while rig.loaded(ID).generation() < 40 {
                let message = rig.denial(ID).await;
                seen.insert(message.trim_start_matches("by ").parse::<i64>().unwrap());
                answers.fetch_add(1, Ordering::SeqCst);
            }
            seen.len()
        })
    };
    for generation in 2..=40 {
        // Of two further answers, the second one is for a request that came after the previous generation served.
        let enough = answers.load(Ordering::SeqCst) + 2;
        while answers.load(Ordering::SeqCst) < enough && !asking.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        rig.apply(denying(&format!("by {generation}"), generation)).await;
    }
    assert!(asking.await.unwrap() >= 39);
}
