//! A rebuilt module file takes effect like a changed manifest, although the manifest stays the same.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::time::Duration;

use portcullis_contract::{Digest, Reason};
use portcullis_tests::{Folder, LIMIT, Pod, Policy, Review, Verdict, Volume, eventually, guest_with};
use rustix::process::Signal;

use crate::run::{client, start, wait_line};
use crate::tool::{run, written};

const ID: &str = "cluster/built";
const FILE: &str = "policies/modules/built.wasm";

fn denying(text: &str) -> Vec<u8> {
    guest_with("deny_text", text.as_bytes())
}

fn says(text: &'static str) -> impl Fn(&Verdict) -> bool {
    move |verdict| !verdict.allowed && verdict.message == text
}

/// Asserts that the pod serves this generation, which answers with `text`, and that the status has the digest of its module.
fn assert_serves(pod: &Pod, generation: i64, text: &'static str) {
    pod.assert_recovered(ID, generation);
    let verdict = pod.ask(ID, &Review::pod()).verdict();
    assert!(says(text)(&verdict), "{verdict:?}");
    assert_eq!(verdict.annotations["generation"], generation.to_string());
    let digest = Digest::of(&denying(text)).to_string();
    eventually("the status to name the module", || {
        let resolved = pod.status(ID)?["status"]["resolved"].clone();
        (resolved["digest"] == digest && resolved["generation"] == generation).then_some(())
    });
}

#[test]
fn promise_a_module_file_that_is_built_again_is_a_new_generation() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("built").denying("one"));
    let manifest = folder.policies().join("cluster-built.yaml");
    let written_at = || fs::metadata(&manifest).and_then(|metadata| metadata.modified()).expect("it is there");
    let before = written_at();
    let pod = Pod::on(&folder).start();
    assert_serves(&pod, 1, "one");

    // The file is replaced by a rename.
    folder.write(FILE, denying("two"));
    assert_serves(&pod, 2, "two");
    // If the new file is broken, the previous generation goes on serving.
    folder.write(FILE, "no module");
    let failure = pod.assert_kept(ID, Reason::ModuleInvalid, 2, says("two"));
    assert_eq!(failure.generation, 3, "{failure:?}");
    // The file is written in place: emptied first, then written in two parts with pauses. The loader may see an incomplete file, but in the
    // end the complete module serves.
    let path = folder.path(FILE);
    let module = denying("four");
    let mut file = fs::File::create(&path).expect("it is ours");
    for part in module.chunks(module.len() / 2 + 1) {
        std::thread::sleep(Duration::from_millis(300));
        file.write_all(part).expect("writes");
    }
    drop(file);
    let answers = |text: &'static str| {
        eventually("the new module to answer", || says(text)(&pod.ask(ID, &Review::pod()).verdict()).then_some(()));
        eventually("its generation", || Some(pod.evaluator_state()?.current.get(ID)?.generation))
    };
    let generation = answers("four");
    // The loader may see the empty file and the first part as generations of their own, or not.
    assert!((4..=6).contains(&generation), "{generation}");
    assert_serves(&pod, generation, "four");

    // The file is gone for a moment, and comes back with the same bytes: there is no new generation.
    fs::rename(&path, folder.path("away")).expect("renames");
    portcullis_tests::never(Duration::from_secs(3), "another generation", || {
        let state = pod.evaluator_state()?;
        (state.current.get(ID)?.generation != generation).then_some(())
    });
    fs::rename(folder.path("away"), &path).expect("renames");
    // The file comes back with other bytes and an old modification time.
    fs::remove_file(&path).expect("removes");
    fs::write(folder.path("old"), denying("five")).expect("writes");
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(86_400);
    let old = fs::File::options().write(true).open(folder.path("old"));
    old.and_then(|file| file.set_modified(long_ago)).expect("dates");
    fs::rename(folder.path("old"), &path).expect("renames");
    assert_serves(&pod, generation + 1, "five");

    // The file becomes a link to another file.
    folder.write("policies/modules/builds/six.wasm", denying("six"));
    fs::remove_file(&path).expect("removes");
    symlink("builds/six.wasm", &path).expect("links");
    assert_serves(&pod, generation + 2, "six");
    folder.write("policies/modules/builds/six.wasm", denying("seven"));
    assert_serves(&pod, generation + 3, "seven");
    assert_eq!(written_at(), before, "the manifest stayed as it was");
}

/// A change while no program runs takes effect too.
#[test]
fn promise_a_module_that_was_built_while_the_pod_was_away_is_taken_at_the_start() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("built").denying("one"));
    {
        let pod = Pod::on(&folder).start();
        assert_serves(&pod, 1, "one");
    }
    folder.write(FILE, denying("two"));
    {
        let pod = Pod::on(&folder).start();
        assert_serves(&pod, 2, "two");
        eventually("the last good generation", || (pod.volume().entry(ID).last_good?.generation == 2).then_some(()));
    }
    folder.write(FILE, "no module");
    {
        let pod = Pod::on(&folder).start();
        pod.wait_serving(ID, 2);
        pod.assert_kept(ID, Reason::ModuleInvalid, 2, says("two"));
    }
    fs::remove_file(folder.path(FILE)).expect("removes");
    let pod = Pod::on(&folder).start();
    pod.wait_serving(ID, 2);
    assert!(says("two")(&pod.ask(ID, &Review::pod()).verdict()));
    folder.write(FILE, denying("four"));
    assert_serves(&pod, 4, "four");
}

/// The output of `portcullis run` while a developer rebuilds a module.
#[test]
fn promise_run_takes_a_module_that_is_built_again_and_says_so() {
    let folder = Folder::empty();
    folder.put(&Policy::cluster("built").denying("one"));
    let dir = folder.policies();
    let mut tool = start(&dir);
    let caller = client(&tool, &dir);
    let message = |caller: &portcullis_tests::Client| {
        let answer = caller.post(&format!("/validate/{ID}"), Review::pod().bytes()).expect("answers");
        answer.json()["response"]["status"]["message"].clone()
    };
    let dir_text = dir.display().to_string();
    let described = |words: &[&str]| {
        eventually(&format!("{words:?} in the description"), || {
            let text = written(&run(["describe", "built", "--dir", &dir_text]));
            words.iter().all(|word| text.contains(word)).then_some(())
        });
    };
    assert_eq!(message(&caller), "one");

    folder.write(FILE, denying("two"));
    let digest = Digest::of(&denying("two")).to_string();
    wait_line(&tool, &format!(", module {digest}: "));
    assert_eq!(message(&caller), "two");
    described(&[&format!("generation 2, {digest}")]);

    folder.write(FILE, "no module");
    wait_line(&tool, "ServingPrevious generation 3");
    wait_line(&tool, "ModuleInvalid");
    assert_eq!(message(&caller), "two");
    described(&["ServingPrevious", "ModuleInvalid"]);

    // The module is rebuilt while the tool is stopped.
    tool.signal(Signal::INT);
    assert_eq!(tool.wait_for_end(LIMIT).code(), Some(0), "{}", tool.lines().join("\n"));
    folder.write(FILE, denying("four"));
    tool = start(&dir);
    let caller = client(&tool, &dir);
    eventually("the new module to answer", || (message(&caller) == "four").then_some(()));
    let digest = Digest::of(&denying("four")).to_string();
    described(&[&format!("generation 4, {digest}")]);
    assert_eq!(Volume::at(&dir.join(".portcullis/volume")).entry(ID).generation, 4);
    tool.signal(Signal::INT);
    assert_eq!(tool.wait_for_end(LIMIT).code(), Some(0), "{}", tool.lines().join("\n"));
}
