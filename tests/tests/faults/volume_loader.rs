//! Section 7, first half: the loader's side of the shared volume.

use std::fs;
use std::time::Duration;

use portcullis_contract::{Digest, Reason};
use portcullis_tests::{
    FAIL_POINT, Folder, LIMIT, Pod, Policy, Program, Reply, Review, SmallVolume, Source, eventually, never, repository,
};

use crate::volume_evaluator::forget_private_copies;

const UPDATED: &str = "cluster/updated";

#[test]
fn fault_v01_volume_is_full() {
    let Some(volume) = SmallVolume::mounted("8m") else { return };
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let pod = Pod::on(&folder).volume(volume.path()).start();
    pod.wait_current(UPDATED, 1);
    let before = pod.volume().artifacts();

    volume.fill(64 << 10);
    folder.put(&Policy::cluster("new").example("required-labels").settings(serde_json::json!({"labels": ["team"]})));
    folder.put(&Policy::cluster("updated").example("no-privileged"));
    pod.assert_unserved("cluster/new", Reason::VolumeFull);
    pod.assert_kept(UPDATED, Reason::VolumeFull, 1, |verdict| verdict.message == "generation one");
    assert_eq!(pod.volume().artifacts(), before, "nothing half-written is visible");
    eventually("no temporary file to be left", || pod.volume().temporary_files().is_empty().then_some(()));

    volume.relieve();
    pod.assert_recovered("cluster/new", 1);
    pod.assert_recovered(UPDATED, 2);
}

#[test]
fn fault_v01_room_is_made_by_removing_what_nobody_names() {
    let Some(volume) = SmallVolume::mounted("8m") else { return };
    let folder = Folder::with_canary();
    let pod = Pod::on(&folder).volume(volume.path()).start();
    // Old artifacts, like those that many edits leave behind.
    let name = pod.volume().artifacts().remove(0);
    let (_, key) = name.split_once('-').expect("<digest>-<engine key>.cwasm");
    for number in 0..6 {
        let digest = Digest::of(format!("old module {number}").as_bytes()).hex();
        fs::write(pod.volume().artifacts_folder().join(format!("{digest}-{key}")), vec![0; 1 << 20]).expect("it fits");
    }
    volume.fill(64 << 10);
    folder.put(&Policy::cluster("new").example("no-privileged"));
    pod.assert_recovered("cluster/new", 1);
}

#[test]
fn fault_v02_volume_turns_read_only() {
    let Some(volume) = SmallVolume::mounted("32m") else { return };
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let pod = Pod::on(&folder).volume(volume.path()).start();
    pod.assert_recovered(UPDATED, 1);

    volume.set_read_only(true);
    folder.put(&Policy::cluster("updated").denying("generation two"));
    eventually("the loader to say that the volume is read-only", || {
        let failure = pod.loader_state()?.volume_failure?;
        (failure.reason == Reason::VolumeReadOnly).then_some(())
    });
    // The new manifest cannot be written, so the evaluator knows only one generation. The status combines the states of both programs.
    pod.wait_condition(UPDATED, "Ready", "False", "ServingPrevious");
    pod.wait_condition(UPDATED, "Degraded", "True", "VolumeReadOnly");
    assert_eq!(pod.ask(UPDATED, &Review::pod()).verdict().message, "generation one");

    volume.set_read_only(false);
    pod.assert_recovered(UPDATED, 2);
    assert_eq!(pod.ask(UPDATED, &Review::pod()).verdict().message, "generation two");
    eventually("the loader to say nothing of its volume", || {
        pod.loader_state()?.volume_failure.is_none().then_some(())
    });
}

/// Ends the loader at a fail point while it publishes generation 2 of a policy, and then starts it without the fail point. Returns how
/// often the module was fetched, and the size of its artifact in bytes.
fn killed_at(point: &str, while_down: impl FnOnce(&Pod)) -> (usize, u64) {
    killed_after(point, |_, _| (), while_down)
}

/// The same, where something happens before. It gets the digest of the module.
fn killed_after(point: &str, before: impl FnOnce(&Pod, Digest), while_down: impl FnOnce(&Pod)) -> (usize, u64) {
    let source = Source::https();
    let module = fs::read(repository().join("examples/modules/no-privileged.wasm")).expect("it is kept");
    let digest = Digest::of(&module);
    source.answer("/m.wasm", [Reply::ok(module)]);
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let pod = Pod::on(&folder).loader("--source-ca", source.ca_file(&folder)).start();
    pod.assert_recovered(UPDATED, 1);

    pod.loader().restart_with(Some(&format!("{point}=exit")));
    folder.put(&Policy::cluster("updated").module(&source.url("/m.wasm")));
    before(&pod, digest);
    assert_eq!(pod.loader().wait_for_end(LIMIT).code(), Some(FAIL_POINT));
    assert_eq!(pod.ask(UPDATED, &Review::pod()).verdict().message, "generation one");
    while_down(&pod);

    pod.loader().restart_with(None);
    pod.assert_recovered(UPDATED, 2);
    assert!(pod.ask(UPDATED, &Review::pod()).verdict().allowed);
    eventually("the temporary file to be removed", || pod.volume().temporary_files().is_empty().then_some(()));
    (source.requests("/m.wasm").len(), pod.volume().module(UPDATED).artifact.size)
}

#[test]
fn fault_v03_loader_killed_while_writing_an_artifact() {
    let mut part = 0;
    let (_, whole) = killed_at("loader.second_artifact_piece", |pod| {
        let files = pod.volume().temporary_files();
        let [file] = &files[..] else { panic!("not just the artifact: {files:?}") };
        part = fs::metadata(file).expect("it is there").len();
    });
    assert!(0 < part && part < whole, "{part} bytes of {whole} were written");
    // The whole file is there, and not yet under its name.
    killed_at("loader.after_artifact_write", |pod| assert!(!pod.volume().temporary_files().is_empty()));
}

#[test]
fn fault_v04_loader_killed_between_artifact_and_manifest() {
    // As with a large module, whose compilation takes a while, the manifest with the digest of the download is published before the end.
    let place = tempfile::tempdir().expect("a folder");
    let published = place.path().join("published");
    let point = format!("loader.after_artifact_write=wait({});loader.after_artifact_rename", published.display());
    let is_published = |pod: &Pod, digest: Digest| {
        eventually("the digest of the download in the manifest", || {
            let record = pod.volume().entry(UPDATED).source?;
            record.get().contains(&digest.hex()).then_some(())
        });
        fs::write(&published, "").expect("writes");
    };
    let (fetched, _) = killed_after(&point, is_published, |pod| {
        let named = [UPDATED, "cluster/canary"].map(|id| pod.volume().module(id).artifact.file);
        let others = pod.volume().artifacts().into_iter().filter(|file| !named.contains(file)).count();
        assert_eq!(others, 1, "the new artifact is there and nobody names it");
    });
    assert_eq!(fetched, 1, "the module is not fetched again");
    // Here even the digest of the download is lost.
    killed_at("loader.before_manifest_rename", |_| ());
}

#[test]
fn fault_v18_ten_thousand_old_artifacts() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let pod = Pod::on(&folder).start();
    pod.assert_recovered(UPDATED, 1);
    // Its last good artifact is older than all of those below.
    folder.put(&Policy::cluster("updated").bytes("no module"));
    let is_kept = || pod.assert_kept(UPDATED, Reason::ModuleInvalid, 1, |verdict| verdict.message == "generation one");
    is_kept();
    let volume = pod.volume();
    let name = volume.artifacts().remove(0);
    let (_, key) = name.split_once('-').expect("<digest>-<engine key>.cwasm");
    for number in 0..10_000 {
        let digest = Digest::of(format!("old module {number}").as_bytes()).hex();
        fs::write(volume.artifacts_folder().join(format!("{digest}-{key}")), b"old").expect("writes");
    }
    // A loader removes old artifacts at its start and after an edit.
    pod.loader().restart_with(None);
    folder.put(&Policy::cluster("new").guest("always_deny"));
    pod.assert_recovered("cluster/new", 1);
    // Those of the canary, of the new policy and of the last good generation, and the newest of all others (`--keep-newest`).
    eventually("the old ones to be removed", || (volume.artifacts().len() <= 3 + 8).then_some(()));
    assert_eq!(volume.artifacts().len(), 3 + 8, "what serves is kept, and the newest others");
    is_kept();
    // The policies that serve can be loaded again from the volume alone.
    pod.canary().pause();
    pod.loader().kill();
    pod.evaluator().kill();
    forget_private_copies(&pod);
    pod.evaluator().start_again();
    pod.resume_canary();
    pod.wait_current("cluster/new", 1);
    pod.wait_serving(UPDATED, 1);
    let message = |id: &str| pod.ask(id, &Review::pod()).verdict().message;
    assert_eq!([message("cluster/new"), message(UPDATED)], ["denied by always_deny", "generation one"]);
    pod.loader().start_again();
    pod.wait_ready();
    pod.assert_recovered("cluster/new", 1);
    is_kept();
}

#[test]
fn fault_v21_two_loaders_at_once() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation 1"));
    let pod = Pod::on(&folder).start();
    pod.assert_recovered(UPDATED, 1);

    // The loader of a new pod that starts while this one is still terminating.
    let second = Pod::on(&folder)
        .loader("--evaluator-state", pod.state_address(Program::Evaluator))
        .without(Program::Evaluator)
        .without(Program::Reporter)
        .begin();
    let mut number = pod.volume().manifest().number;
    let mut only_grows = |what: &str| {
        let next = pod.volume().manifest().number;
        assert!(next >= number, "{what}: {number} became {next}");
        number = next;
    };
    for generation in 2..=6 {
        folder.put(&Policy::cluster("updated").denying(&format!("generation {generation}")));
        pod.wait_current(UPDATED, generation);
        only_grows("two loaders");
    }
    never(Duration::from_millis(500), "the second loader publishing", || {
        second.loader_state().filter(|state| state.manifest_number > 0).map(|state| state.manifest_number)
    });

    pod.loader().kill();
    folder.put(&Policy::cluster("updated").denying("generation 7"));
    pod.wait_current(UPDATED, 7);
    only_grows("the second loader");
    assert_eq!(pod.ask(UPDATED, &Review::pod()).verdict().message, "generation 7");
    second.assert_alive();

    // Then the second loader ends, and the first one starts again.
    drop(second);
    pod.loader().start_again();
    folder.put(&Policy::cluster("updated").denying("generation 8"));
    pod.assert_recovered(UPDATED, 8);
    only_grows("the first loader");
}
