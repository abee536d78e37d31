//! Section 7: for a while, the evaluator does not find the manifest that the loader has published.

use std::fs;

use portcullis_contract::Reason;
use portcullis_tests::{CANARY, Folder, Pod, Policy, Review, Volume, eventually};

use crate::volume_evaluator::{broken_manifests, newer_manifests};

const VICTIM: &str = "cluster/victim";

/// Two volumes: the loader writes to one, and the evaluator reads the other, to which the test copies files when it wants to.
struct Passage {
    from: Volume,
    to: Volume,
}

impl Passage {
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

/// Asserts that while the evaluator finds one of these in the place of the manifest, the previous generation of an edited policy serves and
/// its status says so, and other policies do not change. With the next complete manifest the edit is served.
fn assert_kept_while(forms: Vec<(&str, Vec<u8>)>) {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("victim").denying("generation 1"));
    let seen = folder.path("seen");
    fs::create_dir_all(seen.join("artifacts")).expect("a folder");
    let setup = Pod::on(&folder).canary_later("the evaluator gets its first manifest from the test");
    let pod = setup.evaluator("--volume", seen.display()).begin();
    let passage = Passage { from: pod.volume(), to: Volume::at(&seen) };
    let pass_until = |generation: i64| {
        eventually(&format!("generation {generation}"), || {
            passage.pass();
            let state = pod.evaluator_state()?;
            state.current.get(VICTIM).filter(|current| current.generation == generation).map(|_| ())
        });
    };
    let other = format!("cluster/{CANARY}");
    pass_until(1);
    // The loader may publish one of the policies before the other is compiled.
    eventually("the other policy", || {
        passage.pass();
        pod.evaluator_state()?.current.contains_key(other.as_str()).then_some(())
    });
    pod.wait_ready();
    pod.assert_recovered(VICTIM, 1);
    pod.canary().resume();
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
        assert_eq!(serving_now, [other.as_str(), VICTIM], "{what}");
        pod.wait_condition(&other, "Ready", "True", "Active");
        pod.wait_condition(&other, "Degraded", "False", "AsExpected");

        pass_until(serving + 1);
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
