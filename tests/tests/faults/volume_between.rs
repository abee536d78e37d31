//! Section 7: for a while, the evaluator does not find the manifest that the loader has published.

use std::fs;
use std::path::Path;

use portcullis_contract::Reason;
use portcullis_tests::{CANARY, Folder, Pod, Policy, Review, Volume, eventually};

use crate::volume_evaluator::{broken_manifests, flipped, newer_manifests};

const VICTIM: &str = "cluster/victim";

/// Two volumes: the loader writes to one, and the evaluator reads the other, to which the test copies files when it wants to.
struct Passage {
    from: Volume,
    to: Volume,
}

impl Passage {
    /// A pod whose evaluator reads what the test passes on, with the canary and generation 1 of the victim.
    fn begin(folder: &Folder) -> (Pod, Self) {
        folder.put(&Policy::cluster("victim").denying("generation 1"));
        let seen = folder.path("seen");
        fs::create_dir_all(seen.join("artifacts")).expect("a folder");
        let setup = Pod::on(folder).canary_later("the evaluator gets its first manifest from the test");
        let pod = setup.evaluator("--volume", seen.display()).begin();
        let passage = Self { from: pod.volume(), to: Volume::at(&seen) };
        passage.pass_until(&pod, VICTIM, 1);
        // The loader may publish one of the policies before the other is compiled.
        passage.pass_until(&pod, &other(), 1);
        pod.wait_ready();
        pod.assert_recovered(VICTIM, 1);
        pod.canary().resume();
        (pod, passage)
    }

    /// Passes manifests on until the evaluator serves this generation of a policy.
    fn pass_until(&self, pod: &Pod, id: &str, generation: i64) {
        eventually(&format!("generation {generation} of {id}"), || {
            self.pass();
            let state = pod.evaluator_state()?;
            state.current.get(id).filter(|current| current.generation == generation).map(|_| ())
        });
    }

    /// Copies the newest manifest, with all artifacts.
    fn pass(&self) {
        let Ok(manifest) = fs::read(self.from.manifest_path()) else { return };
        for name in self.from.artifacts() {
            let (from, to) = (self.from.artifacts_folder().join(&name), self.to.artifacts_folder().join(&name));
            if !to.exists() {
                let copied = fs::copy(&from, &to);
                assert!(copied.is_ok() || !from.exists(), "failed to copy what the loader has not removed: {copied:?}");
            }
        }
        self.to.publish_bytes(&manifest);
    }
}

/// The policy that is not edited.
fn other() -> String {
    format!("cluster/{CANARY}")
}

/// Asserts that while the evaluator finds one of these in the place of the manifest, the previous generation of an edited policy serves and
/// its status says so, and other policies do not change. With the next complete manifest the edit is served.
fn assert_kept_while(forms: Vec<(&str, Vec<u8>)>) {
    let folder = Folder::with_canary();
    let (pod, passage) = Passage::begin(&folder);
    for (serving, (what, bytes)) in (1_i64..).zip(forms) {
        passage.to.publish_bytes(&bytes);
        folder.put(&Policy::cluster("victim").denying(&format!("generation {}", serving + 1)));
        let reason = Reason::ManifestInvalid.as_str();
        for (kind, status, reason) in [
            ("Ready", "False", "ServingPrevious"),
            ("Enforced", "True", "ServingPrevious"),
            ("Degraded", "True", reason),
            ("Reconciling", "True", "Retrying"),
            ("Stalled", "False", "Retrying"),
        ] {
            pod.wait_condition(VICTIM, kind, status, reason);
        }
        let verdict = pod.ask(VICTIM, &Review::pod()).verdict();
        assert_eq!(verdict.message, format!("generation {serving}"), "{what}");
        // No policy disappears, and the status of one that was not edited does not change.
        let state = pod.evaluator_state().expect("it answers");
        let serving_now: Vec<_> = state.current.keys().map(ToString::to_string).collect();
        assert_eq!(serving_now, [other().as_str(), VICTIM], "{what}");
        pod.wait_condition(&other(), "Ready", "True", "Active");
        pod.wait_condition(&other(), "Degraded", "False", "AsExpected");

        passage.pass_until(&pod, VICTIM, serving + 1);
        pod.assert_recovered(VICTIM, serving + 1);
    }
}

#[test]
fn fault_v05_an_edit_behind_a_manifest_that_is_not_whole_keeps_what_serves() {
    assert_kept_while(broken_manifests());
}

#[test]
fn fault_v06_an_edit_behind_a_manifest_of_a_newer_format_keeps_what_serves() {
    assert_kept_while(newer_manifests());
}

/// Asserts that while the artifact of an edit is broken like this, the previous generation serves and the status says so. With the whole
/// artifact the edit is served.
fn assert_kept_behind_artifact(reason: Reason, put: impl FnOnce(&Path, &Path)) {
    let folder = Folder::with_canary();
    let (pod, passage) = Passage::begin(&folder);
    folder.put(&Policy::cluster("victim").denying("generation 2"));
    eventually("the edit to be published", || (passage.from.candidate(VICTIM).generation == 2).then_some(()));
    let (from, to) = (passage.from.artifact(VICTIM), passage.to.artifacts_folder());
    let to = to.join(from.file_name().expect("it is a file"));
    put(&from, &to);
    passage.to.publish(&passage.from.manifest());
    pod.assert_kept(VICTIM, reason, 1, |verdict| verdict.message == "generation 1");
    pod.wait_condition(&other(), "Ready", "True", "Active");

    // It is not copied over one that is there.
    let _ = fs::remove_file(to);
    passage.pass_until(&pod, VICTIM, 2);
    pod.assert_recovered(VICTIM, 2);
    assert_eq!(pod.ask(VICTIM, &Review::pod()).verdict().message, "generation 2");
}

#[test]
fn fault_v07_an_edit_whose_artifact_is_not_there_keeps_what_serves() {
    assert_kept_behind_artifact(Reason::ArtifactMissing, |_, _| ());
}

#[test]
fn fault_v08_an_edit_whose_artifact_has_a_flipped_bit_keeps_what_serves() {
    assert_kept_behind_artifact(Reason::ArtifactCorrupt, |from, to| {
        let whole = fs::read(from).expect("it is published");
        fs::write(to, flipped(whole)).expect("writes");
    });
}
