//! Row Z12: paths of match groups that contain a code, as in a cluster. A caller without the code is refused as soon as the head of its
//! request is read.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_contract::{ADMIT_PATH, GroupId, MARKER_PATH, PathKey, PathKeys};
use portcullis_tests::{Folder, Pod, PodSetup, Policy, Program, Review, StopOnDrop, eventually};

use crate::http::{DENIES, assert_closed};

const FIRST: PathKey = PathKey::Secret([0xa5; 32]);
const SECOND: PathKey = PathKey::Secret([0x3c; 32]);
/// The time between two requests of the canary.
const PACE: Duration = Duration::from_millis(20);

/// The setup of a pod with the paths of a cluster, and a policy that denies everything.
fn pod(folder: &Folder) -> PodSetup {
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let setup = Pod::on(folder).without_canary("the paths of policies are closed");
    let setup = setup.evaluator("--policy-paths", "off").loader("--policy-paths", "off");
    setup.evaluator("--path-keys", folder.path("keys").display())
}

fn put(folder: &Folder, keys: PathKeys) {
    folder.write("keys/keys", keys.text());
}

fn group(pod: &Pod) -> GroupId {
    pod.volume().manifest().groups[0].id.clone()
}

/// How often the policy was evaluated.
fn evaluations(pod: &Pod) -> f64 {
    let text = pod.metrics(Program::Evaluator);
    let series = |line: &&str| line.starts_with("portcullis_policy_evaluations_total") && line.contains(DENIES);
    text.lines().filter(series).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Whether the group answers on the path of this key.
fn answers(pod: &Pod, key: PathKey) -> bool {
    let path = key.path(ADMIT_PATH, &group(pod));
    let answer = pod.client().post(&path, Review::pod().bytes()).expect("answers");
    assert!(answer.status == 404 || !answer.verdict().allowed, "{answer:?}");
    answer.status == 200
}

#[test]
fn fault_z12_strangers_who_do_not_know_the_code_of_a_path_are_refused_by_the_head() {
    let folder = Folder::empty();
    put(&folder, PathKeys::only(FIRST));
    let pod = pod(&folder).start();
    pod.wait_current(DENIES, 1);
    pod.wait_ready();
    let group = group(&pod);
    let unknown: GroupId = "0123456789abcdef".parse().expect("a group");
    let [known, marker] = [ADMIT_PATH, MARKER_PATH].map(|root| FIRST.path(root, &group));
    let code = known.rsplit('/').next().expect("a code");
    let strange = [
        format!("/validate/{DENIES}"),
        "/validate/cluster/unknown".to_owned(),
        format!("/audit/{DENIES}"),
        format!("/validate_raw/{DENIES}"),
        format!("/admit/{group}"),
        format!("/admit/{unknown}"),
        format!("/marker/{group}"),
        format!("/admit/{group}/"),
        format!("/admit/{unknown}/{code}"),
        format!("/marker/{group}/{code}"),
        format!("/validate/{group}/{code}"),
        format!("/admit/{group}/{}", code.to_uppercase()),
        format!("/admit/{group}/{}", &code[..63]),
        format!("/admit/{group}/{}", "0".repeat(64)),
        format!("{known}/"),
        SECOND.path(ADMIT_PATH, &group),
        SECOND.path(ADMIT_PATH, &unknown),
    ];
    let (ends, before) = (AtomicBool::new(false), evaluations(&pod));
    let count = AtomicU32::new(0);
    thread::scope(|scope| {
        let canary = scope.spawn(|| {
            let client = pod.new_client();
            let mut late = 0_u32;
            while !ends.load(Ordering::SeqCst) {
                let ask = || client.post(&known, Review::pod().bytes()).expect("answers");
                let (answer, in_time) = pod.timed(Duration::from_secs(1), ask);
                assert!(!answer.verdict().allowed, "{answer:?}");
                count.fetch_add(1, Ordering::SeqCst);
                late += u32::from(in_time.is_err());
                thread::sleep(PACE);
            }
            let asked = count.load(Ordering::SeqCst);
            // A few late answers are allowed, because other tests use the machine as well.
            assert!(late <= 1 + asked / 100, "{late} of {asked} answers took more than a second");
        });
        let stop = StopOnDrop(&ends);
        eventually("the canary to be answered", || (count.load(Ordering::SeqCst) > 0).then_some(()));
        let requests: Vec<_> = strange.iter().flat_map(|path| [("POST", path.as_str()), ("GET", path)]).collect();
        assert_closed(&pod, &requests);
        drop(stop);
        canary.join().expect("the canary's answers were right");
    });
    let asked = count.into_inner();
    eventually("the evaluations to be counted", || {
        let count = evaluations(&pod) - before;
        assert!(count <= f64::from(asked), "{count} evaluations, of which {asked} were asked for");
        ((count - f64::from(asked)).abs() < 0.5).then_some(())
    });
    let answer = pod.client().post(&marker, Review::pod().bytes()).expect("answers");
    assert!(answer.verdict().message.contains(group.as_str()), "{answer:?}");

    // The key and the code are not in the metrics, the state or the log.
    let mut said = pod.metrics(Program::Evaluator);
    said.push_str(&serde_json::to_string(&pod.evaluator_state()).expect("a state"));
    said.extend(pod.evaluator().lines());
    assert!(said.contains(&FIRST.id()), "its id is shown");
    assert!(!said.contains(code) && !said.contains(&"a5".repeat(32)));
}

#[test]
fn fault_z12_without_keys_nobody_is_answered_and_a_change_of_keys_fails_no_call() {
    let folder = Folder::empty();
    std::fs::create_dir_all(folder.path("keys")).expect("a folder");
    let pod = pod(&folder).begin();
    eventually("the policy to be loaded", || pod.evaluator_state()?.current.values().next().map(|_| ()));
    assert!(!answers(&pod, PathKey::Plain) && !answers(&pod, FIRST));
    let ready = pod.probe(Program::Evaluator, "/readyz?verbose").expect("answers");
    assert!(ready.status == 503 && ready.body.contains("[-]path-keys"), "{ready:?}");
    pod.evaluator().wait_for_log("the missing keys", |line| {
        line["message"].as_str().is_some_and(|text| text.contains("failed to take keys of webhook paths"))
    });

    put(&folder, PathKeys::only(PathKey::Plain));
    pod.wait_ready();
    assert!(answers(&pod, PathKey::Plain) && !answers(&pod, FIRST));
    // Two steps of a change may have the same ids, so the log says that one has been seen.
    let taken = || pod.evaluator().lines().iter().filter(|line| line.contains("keys of webhook paths taken")).count();
    let accepts = |keys: PathKeys| {
        let before = taken();
        put(&folder, keys);
        eventually("the keys to be taken", || (taken() > before).then_some(()));
        let mut ids: Vec<_> = keys.all().map(|key| key.id()).collect();
        ids.sort_unstable();
        eventually("the state to tell of the keys", || (pod.evaluator_state()?.path_keys == ids).then_some(()));
    };
    accepts(PathKeys { current: PathKey::Plain, next: Some(FIRST), previous: None });
    assert!(answers(&pod, PathKey::Plain) && answers(&pod, FIRST));
    accepts(PathKeys { current: FIRST, next: None, previous: Some(PathKey::Plain) });
    assert!(answers(&pod, PathKey::Plain) && answers(&pod, FIRST));
    accepts(PathKeys { current: FIRST, next: Some(SECOND), previous: None });
    assert_eq!([PathKey::Plain, FIRST, SECOND].map(|key| answers(&pod, key)), [false, true, true]);

    // While the file is invalid, the earlier keys stay valid.
    folder.write("keys/keys", "noise");
    pod.evaluator().wait_for_log("the broken keys", |line| {
        line["accepted"].as_str().is_some_and(|text| text.contains("the old ones stay"))
    });
    assert_eq!([PathKey::Plain, FIRST, SECOND].map(|key| answers(&pod, key)), [false, true, true]);

    // Somebody else replaces the keys. Webhooks have the path of an earlier one until the controller has seen that; it may have begun to
    // move them to the next one.
    accepts(PathKeys::only(PathKey::Plain));
    assert_eq!([PathKey::Plain, FIRST, SECOND].map(|key| answers(&pod, key)), [true; 3]);
}
