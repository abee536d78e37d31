//! Section 7, second half: the evaluator's side of the shared volume.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_contract::{CandidateContent, Digest, Failure, Reason, ReplicaState};
use portcullis_tests::{
    Folder, LIMIT, Pod, Policy, Review, StopOnDrop, eventually, eventually_within, heavy, note, skip,
};

pub(crate) const VICTIM: &str = "cluster/victim";

/// A folder with the canary and a policy that tests break.
pub(crate) fn folder() -> Folder {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("victim").denying("generation 1"));
    folder
}

/// Asserts that every policy goes on serving while the manifest is one of these, and that the next valid manifest is used.
fn assert_manifest_refused(forms: Vec<(&str, Vec<u8>)>) {
    let folder = folder();
    let pod = Pod::on(&folder).start();
    pod.assert_recovered(VICTIM, 1);
    let mut generation = 1;
    for (what, bytes) in forms {
        pod.loader().kill();
        pod.volume().publish_bytes(&bytes);
        eventually(&format!("the evaluator to say that the manifest is {what}"), || {
            let failure = pod.evaluator_state()?.manifest_failure?;
            assert!(!failure.message.is_empty());
            (failure.reason == Reason::ManifestInvalid).then_some(())
        });
        let verdict = pod.ask(VICTIM, &Review::pod()).verdict();
        assert_eq!(verdict.message, format!("generation {generation}"), "{what}");

        assert_eq!(pod.metric("portcullis_manifest_unusable"), 1.0, "{what}");
        pod.loader().start_again();
        generation += 1;
        folder.put(&Policy::cluster("victim").denying(&format!("generation {generation}")));
        pod.wait_ready();
        eventually(&format!("generation {generation} after a manifest that was {what}"), || {
            (pod.ask(VICTIM, &Review::pod()).verdict().message == format!("generation {generation}")).then_some(())
        });
        assert_eq!(pod.evaluator_state().and_then(|state| state.manifest_failure), None, "{what}");
        assert_eq!(pod.metric("portcullis_manifest_unusable"), 0.0, "{what}");
    }
    assert!(pod.metric("portcullis_manifest_errors_total") >= 1.0);
}

/// The text of a valid manifest.
fn whole() -> String {
    let example = portcullis_contract::Manifest { number: u64::MAX, policies: Vec::new(), groups: Vec::new() };
    String::from_utf8(example.encode().expect("encodes")).expect("text")
}

/// Invalid manifests, each with what is wrong with it.
pub(crate) fn broken_manifests() -> Vec<(&'static str, Vec<u8>)> {
    let whole = whole();
    let mut huge = whole.clone().into_bytes();
    huge.resize(65 << 20, b' ');
    vec![
        ("torn", whole[..whole.len() / 2].into()),
        ("empty", Vec::new()),
        ("too large", huge),
        ("not JSON", b"<html></html>".to_vec()),
        ("of another checksum", whole.replace("18446744073709551615", "18446744073709551614").into_bytes()),
        ("another document", b"{\"kind\":\"List\",\"items\":[]}".to_vec()),
    ]
}

/// Manifests of future formats.
pub(crate) fn newer_manifests() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("newer", whole().replacen("\"format\":1", "\"format\":2", 1).into_bytes()),
        ("much newer", b"{\"format\":99,\"blocks\":[[]]}".to_vec()),
    ]
}

#[test]
fn fault_v05_manifest_is_not_whole() {
    assert_manifest_refused(broken_manifests());
}

#[test]
fn fault_v06_manifest_of_a_newer_format() {
    assert_manifest_refused(newer_manifests());
}

/// Removes the private copies of an evaluator that has ended. Without them, as in a new container, it must read artifacts from the volume.
pub(crate) fn forget_private_copies(pod: &Pod) {
    fs::remove_dir_all(pod.path("private")).expect("it is there");
    fs::create_dir(pod.path("private")).expect("a folder");
}

/// Restarts the evaluator with a volume on which the victim's artifact is broken, while the loader is down. Asserts that only the victim
/// fails. Then the loader starts and compiles the artifact again. Returns the failure.
fn assert_artifact_refused(reason: Reason, what: &str, break_it: impl FnOnce(&Pod, &Path)) -> Failure {
    let folder = folder();
    let pod = Pod::on(&folder).start();
    pod.assert_recovered(VICTIM, 1);
    pod.canary().pause();
    pod.loader().kill();
    pod.evaluator().kill();
    forget_private_copies(&pod);
    let artifact = pod.volume().artifact(VICTIM);
    break_it(&pod, &artifact);
    pod.evaluator().start_again();
    let deviation = pod.wait_failure(VICTIM, reason);
    assert_eq!(deviation.state, ReplicaState::Failed, "{what}: {deviation:?}");
    pod.resume_canary();
    let review = Review::pod();
    pod.ask(VICTIM, &review).assert_unserved(&review, VICTIM, reason);
    assert_eq!(pod.health(VICTIM).code, 503, "{what}");

    pod.loader().start_again();
    pod.assert_recovered(VICTIM, 1);
    assert_eq!(pod.ask(VICTIM, &review).verdict().message, "generation 1", "{what}");
    deviation.failure.expect("a deviation with this reason has a failure")
}

/// Restarts the evaluator with a volume on which the victim's artifact is broken, while the loader runs. Asserts that the evaluator says
/// so, and that the loader then compiles the artifact again.
fn assert_artifact_made_again(reason: Reason, break_it: impl FnOnce(&Path)) {
    let folder = folder();
    let pod = Pod::on(&folder).start();
    pod.assert_recovered(VICTIM, 1);
    let (loader, artifact) = (pod.loader().pid(), pod.volume().artifact(VICTIM));
    pod.canary().pause();
    pod.evaluator().kill();
    forget_private_copies(&pod);
    break_it(&artifact);
    pod.evaluator().start_again();
    pod.evaluator().wait_for_log("the refusal", |line| line["policy"] == VICTIM && line["reason"] == reason.as_str());
    pod.assert_recovered(VICTIM, 1);
    pod.resume_canary();
    assert_eq!(pod.ask(VICTIM, &Review::pod()).verdict().message, "generation 1");
    assert!(pod.loader().is_alive() && pod.loader().pid() == loader, "the loader was not restarted");
    let bytes = fs::read(pod.volume().artifact(VICTIM)).expect("the artifact is there again");
    assert_eq!(Digest::of(&bytes), pod.volume().module(VICTIM).artifact.sha256, "the artifact is as the manifest says");
}

#[test]
fn fault_v07_artifact_is_not_there() {
    let remove = |artifact: &Path| fs::remove_file(artifact).expect("it was there");
    assert_artifact_refused(Reason::ArtifactMissing, "missing", |_, artifact| remove(artifact));
    assert_artifact_made_again(Reason::ArtifactMissing, remove);
}

/// The bytes with one bit flipped.
pub(crate) fn flipped(mut bytes: Vec<u8>) -> Vec<u8> {
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    bytes
}

#[test]
fn fault_v08_a_bit_is_flipped() {
    let flip = |artifact: &Path| {
        let bytes = fs::read(artifact).expect("it is there");
        fs::write(artifact, flipped(bytes)).expect("writes");
    };
    assert_artifact_refused(Reason::ArtifactCorrupt, "flipped", |_, artifact| flip(artifact));
    assert_artifact_made_again(Reason::ArtifactCorrupt, flip);
}

/// The artifact contains machine code that the loader compiled, but for another policy.
#[test]
fn fault_x10_an_artifact_of_other_code_under_a_correct_manifest() {
    assert_artifact_refused(Reason::ArtifactCorrupt, "another policy's", |pod, artifact| {
        let other = fs::read(pod.volume().artifact("cluster/canary")).expect("it is there");
        assert_ne!(fs::read(artifact).expect("it is there"), other);
        fs::write(artifact, other).expect("writes");
    });
}

#[test]
fn fault_v08_an_artifact_that_is_cut_or_longer() {
    assert_artifact_refused(Reason::ArtifactCorrupt, "cut", |_, artifact| {
        let bytes = fs::read(artifact).expect("it is there");
        fs::write(artifact, &bytes[..bytes.len() / 2]).expect("writes");
    });
    assert_artifact_refused(Reason::ArtifactCorrupt, "longer", |_, artifact| {
        let mut bytes = fs::read(artifact).expect("it is there");
        bytes.push(0);
        fs::write(artifact, bytes).expect("writes");
    });
}

#[test]
fn fault_v09_artifact_changes_after_it_was_loaded() {
    let folder = folder();
    let pod = Pod::on(&folder).start();
    pod.assert_recovered(VICTIM, 1);
    pod.loader().kill();
    let artifact = pod.volume().artifact(VICTIM);
    let size = usize::try_from(fs::metadata(&artifact).expect("it is there").len()).expect("it is small");

    let done = AtomicBool::new(false);
    let answers = thread::scope(|scope| {
        let callers = scope.spawn(|| {
            let check = |answer: Result<portcullis_tests::Answer, String>| {
                assert_eq!(answer.expect("answers").verdict().message, "generation 1");
            };
            pod.client().ask_until(4, VICTIM, &Review::pod(), check, || done.load(Ordering::SeqCst))
        });
        let _stop = StopOnDrop(&done);
        let some_answers = || {
            let before = pod.canary().answers();
            eventually("answers meanwhile", || (pod.canary().answers() > before + 20).then_some(()));
        };
        // Overwrites the file in place, so that a mapping of it would change.
        fs::write(&artifact, vec![0xcc; size]).expect("overwrites");
        some_answers();
        fs::File::options().write(true).open(&artifact).and_then(|file| file.set_len(0)).expect("truncates");
        some_answers();
        fs::remove_file(&artifact).expect("unlinks");
        some_answers();
        done.store(true, Ordering::SeqCst);
        callers.join().expect("every answer is right")
    });
    assert!(answers > 0);
    pod.loader().start_again();
    pod.wait_ready();
    pod.assert_recovered(VICTIM, 1);
}

#[test]
fn fault_v10_artifact_of_another_engine() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/artifacts");
    for (name, words) in [
        ("other-version.cwasm", "incompatible version '47'"),
        ("other-settings.cwasm", "epoch interruption"),
        ("other-processor.cwasm", "architecture 'riscv64"),
    ] {
        let other = fs::read(data.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let failure =
            assert_artifact_refused(Reason::ArtifactIncompatible, name, |pod, _| replace_artifact(pod, &other));
        assert!(failure.message.contains(words), "{name}: {}", failure.message);
    }
}

#[test]
fn fault_v10_artifact_of_a_processor_with_another_feature() {
    let mut feature = String::new();
    let failure = assert_artifact_refused(Reason::ArtifactIncompatible, "of another processor", |pod, artifact| {
        let mut other = fs::read(artifact).expect("it is there");
        feature = give_another_feature(&mut other);
        replace_artifact(pod, &other);
    });
    for words in ["incompatible with native host", &format!("\"{feature}\"")] {
        assert!(failure.message.contains(words), "no {words} in {}", failure.message);
    }
}

/// Makes these bytes the victim's artifact, in the manifest too. Call it only while no loader runs.
fn replace_artifact(pod: &Pod, bytes: &[u8]) {
    fs::write(pod.volume().artifact(VICTIM), bytes).expect("writes");
    pod.volume().edit(|manifest| {
        let victim = manifest.policies.iter_mut().find(|policy| policy.id.as_str() == VICTIM);
        let candidates = &mut victim.expect("it is there").candidates;
        let CandidateContent::Module(module) = &mut candidates[0].content else { panic!("it is not a module") };
        module.artifact.sha256 = Digest::of(bytes);
        module.artifact.size = u64::try_from(bytes.len()).expect("it is small");
    });
}

/// Changes an artifact of this machine's compiler as if it were made for a processor with another feature: one that this machine lacks, or,
/// where it has them all, one of a name that nobody knows. Returns the name.
fn give_another_feature(artifact: &mut [u8]) -> String {
    // The engine writes for each feature the length of its name, the name, a 2 for a setting that is on or off, and which of both it is.
    let feature = |start: usize| {
        let end = start + usize::from(artifact[start - 1]);
        let is_on = match artifact.get(end..end + 2)? {
            [2, 0] => false,
            [2, 1] => true,
            _ => return None,
        };
        artifact[start..end].starts_with(b"has_").then_some((start..end, is_on))
    };
    let features: Vec<_> = (1..artifact.len()).filter_map(feature).collect();
    let (name, is_on) = features.iter().find(|(_, is_on)| !is_on).unwrap_or(&features[0]).clone();
    if is_on {
        artifact[name.end - 1] = b'?';
    } else {
        artifact[name.end + 1] = 1;
    }
    String::from_utf8(artifact[name].to_vec()).expect("a name")
}

#[test]
fn fault_v11_a_thousand_swaps_a_minute() {
    const SWAPS: i64 = 1000;
    const MINUTE: Duration = Duration::from_secs(60);
    let _alone = heavy();
    let folder = folder();
    let pod = Pod::on(&folder).start();
    pod.assert_recovered(VICTIM, 1);
    let one = pod.volume().candidate(VICTIM);
    folder.put(&Policy::cluster("victim").denying("generation 2"));
    pod.assert_recovered(VICTIM, 2);
    let two = pod.volume().candidate(VICTIM);
    pod.loader().kill();
    pod.reporter().kill();

    let newest = AtomicI64::new(2);
    let check = |answer: Result<portcullis_tests::Answer, String>| {
        let verdict = answer.expect("answers").verdict();
        // Even generations have the module of generation 2, odd ones that of generation 1.
        let generation: i64 = verdict.annotations["generation"].parse().expect("a number");
        assert_eq!(verdict.message, format!("generation {}", 2 - generation % 2), "{verdict:?}");
        newest.fetch_max(generation, Ordering::SeqCst);
    };
    let done = AtomicBool::new(false);
    let swaps_before = pod.metric("portcullis_swaps_total");
    thread::scope(|scope| {
        let callers =
            scope.spawn(|| pod.client().ask_until(4, VICTIM, &Review::pod(), check, || done.load(Ordering::SeqCst)));
        let _stop = StopOnDrop(&done);
        let since = pod.moment_with_test();
        for generation in 3..3 + SWAPS {
            let mut candidate = if generation % 2 == 1 { one.clone() } else { two.clone() };
            candidate.generation = generation;
            pod.volume().edit(|manifest| {
                let victim = manifest.policies.iter_mut().find(|policy| policy.id.as_str() == VICTIM);
                let victim = victim.expect("it is there");
                victim.generation = generation;
                victim.candidates = vec![candidate];
                victim.failures.clear();
            });
            // No generation may be skipped: each answers a caller before the next one comes.
            eventually(&format!("an answer of generation {generation}"), || {
                (newest.load(Ordering::SeqCst) == generation || callers.is_finished()).then_some(())
            });
        }
        let now = pod.moment_with_test();
        done.store(true, Ordering::SeqCst);
        let answers = callers.join().expect("every answer is of one generation");
        let (took, allowed) = (since.until(&now), since.allowed(MINUTE, &now));
        note(&format!("{SWAPS} swaps beside {answers} answers took {took:.1?}, {allowed:.1?} allowed here and now"));
        assert!(took <= allowed, "{SWAPS} swaps took {took:?}, and {allowed:?} were allowed here and now");
    });
    let swaps = pod.metric("portcullis_swaps_total") - swaps_before;
    assert!(swaps >= SWAPS as f64, "{swaps} swaps for {SWAPS} manifests");
    pod.loader().start_again();
    pod.reporter().start_again();
}

/// A pod whose evaluator is another user, so that permissions matter to it; `None` if this test may not start one.
fn pod_of_two_users(folder: &Folder) -> Option<Pod> {
    if !rustix::process::geteuid().is_root() {
        skip("it runs the evaluator as another user, which only root can");
        return None;
    }
    let pod = Pod::on(folder).separate_users().start();
    pod.assert_recovered(VICTIM, 1);
    Some(pod)
}

#[test]
fn fault_v19_folder_of_artifacts_cannot_be_read() {
    let folder = folder();
    let Some(pod) = pod_of_two_users(&folder) else { return };
    let artifacts = pod.volume().artifacts_folder();
    let before = fs::metadata(&artifacts).expect("it is there").permissions();
    fs::set_permissions(&artifacts, fs::Permissions::from_mode(0o000)).expect("it is ours");
    folder.put(&Policy::cluster("new").denying("a new policy"));
    pod.assert_unserved("cluster/new", Reason::ArtifactUnreadable);
    folder.put(&Policy::cluster("victim").denying("generation 2"));
    pod.assert_kept(VICTIM, Reason::ArtifactUnreadable, 1, |verdict| verdict.message == "generation 1");
    fs::set_permissions(&artifacts, before).expect("it is ours");
    pod.assert_recovered("cluster/new", 1);
    pod.assert_recovered(VICTIM, 2);
}

#[test]
fn fault_v19_artifact_cannot_be_read() {
    let folder = folder();
    let Some(pod) = pod_of_two_users(&folder) else { return };
    pod.canary().pause();
    pod.evaluator().kill();
    pod.loader().kill();
    for entry in fs::read_dir(pod.path("private")).expect("it is there").flatten() {
        let _ = fs::remove_file(entry.path()).or_else(|_| fs::remove_dir_all(entry.path()));
    }
    fs::set_permissions(pod.volume().artifact(VICTIM), fs::Permissions::from_mode(0o000)).expect("it is ours");
    pod.evaluator().start_again();
    pod.wait_failure(VICTIM, Reason::ArtifactUnreadable);
    pod.resume_canary();
    let review = Review::pod();
    pod.ask(VICTIM, &review).assert_unserved(&review, VICTIM, Reason::ArtifactUnreadable);
    pod.loader().start_again();
    pod.assert_recovered(VICTIM, 1);
}

#[test]
fn fault_v20_no_file_where_a_file_is_due() {
    type Break = fn(&Path);
    let forms: [(&str, Break); 4] = [
        ("a FIFO", fifo),
        ("a link to a device", |path| symlink("/dev/zero", path).expect("links")),
        ("a link to a file", |path| symlink("/etc/hostname", path).expect("links")),
        ("a directory", |path| fs::create_dir(path).expect("a folder")),
    ];
    for (what, make) in forms {
        assert_artifact_refused(Reason::ArtifactUnreadable, what, |_, artifact| {
            fs::remove_file(artifact).expect("it was there");
            make(artifact);
        });
    }
}

#[test]
fn fault_v20_no_file_where_the_manifest_is_due() {
    let folder = folder();
    let pod = Pod::on(&folder).evaluator("--poll-interval", "500ms").start();
    pod.assert_recovered(VICTIM, 1);
    pod.loader().kill();
    let manifest = pod.volume().manifest_path();
    let whole = fs::read(&manifest).expect("it is there");
    fs::remove_file(&manifest).expect("it was there");
    fifo(&manifest);
    eventually_within(LIMIT, "the evaluator to say so, and not to hang", || {
        pod.evaluator_state()?.manifest_failure.filter(|failure| failure.reason == Reason::ManifestInvalid)
    });
    assert_eq!(pod.ask(VICTIM, &Review::pod()).verdict().message, "generation 1");
    pod.volume().publish_bytes(&whole);
    pod.loader().start_again();
    folder.put(&Policy::cluster("victim").denying("generation 2"));
    pod.assert_recovered(VICTIM, 2);
}

fn fifo(path: &Path) {
    let status = Command::new("mkfifo").arg(path).status();
    assert!(status.is_ok_and(|status| status.success()), "failed to make a FIFO");
}
