//! An edit of a policy changes the answer. While an edit is broken, the old version answers, also after a restart.

use std::fs;
use std::path::Path;

use portcullis_contract::Reason;
use portcullis_tests::{Folder, Pod, Policy, Program, Reply, Review, Source, Verdict, eventually};
use serde_json::{Value, json};

const LABELS: &str = "cluster/labels";

fn labels(wanted: Value) -> Policy {
    Policy::cluster("labels").example("required-labels").settings(json!({"labels": wanted}))
}

fn misses(label: &str) -> impl Fn(&Verdict) -> bool {
    let text = format!("missing labels: {label}");
    move |verdict| !verdict.allowed && verdict.message == text
}

/// Waits until the status file says that this generation is not Ready, with these words in the message.
fn wait_told(pod: &Pod, generation: i64, words: &[&str]) {
    eventually(&format!("{words:?} about generation {generation} in the status"), || {
        let status = pod.status(LABELS)?;
        let conditions = status["status"]["conditions"].as_array()?;
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
        let message = ready["message"].as_str().unwrap_or_default();
        let is_it = ready["reason"] == "ServingPrevious" && ready["observedGeneration"] == generation;
        (is_it && words.iter().all(|words| message.contains(words))).then_some(())
    });
}

#[test]
fn promise_an_edit_changes_the_answer_and_fetches_and_compiles_nothing() {
    let source = Source::https();
    let module = fs::read(crate::tool::examples().join("modules/required-labels.wasm")).expect("it is kept");
    source.answer("/required-labels.wasm", [Reply::ok(module)]);
    let folder = Folder::with_canary();
    let edit = |label: &str| labels(json!([label])).module(&source.url("/required-labels.wasm"));
    folder.put(&edit("owner"));
    let pod = Pod::on(&folder).loader("--source-ca", source.ca_file(&folder)).start();
    pod.assert_recovered(LABELS, 1);
    let compiled = |pod: &Pod| {
        let text = pod.metrics(Program::Loader);
        let of = |line: &str| line.starts_with("portcullis_compilations_total{").then(|| line.to_owned());
        text.lines().filter_map(of).collect::<Vec<_>>()
    };
    let (before, artifacts) = (compiled(&pod), pod.volume().artifacts());
    assert!(!before.is_empty(), "compilations are counted");

    for (generation, label) in [(2, "cost-center"), (3, "stage"), (4, "owner")] {
        folder.put(&edit(label));
        pod.assert_recovered(LABELS, generation);
        let verdict = pod.ask(LABELS, &Review::pod()).verdict();
        assert!(misses(label)(&verdict), "{verdict:?}");
        assert_eq!(verdict.annotations["generation"], generation.to_string());
    }
    assert_eq!(source.requests("/required-labels.wasm").len(), 1, "the module was fetched once");
    assert_eq!(compiled(&pod), before, "nothing was compiled again");
    assert_eq!(pod.volume().artifacts(), artifacts);
}

#[test]
fn promise_a_broken_edit_keeps_the_old_version_and_status_says_why() {
    let folder = Folder::with_canary();
    folder.put(&labels(json!(["owner"])));
    let pod = Pod::on(&folder).start();
    pod.assert_recovered(LABELS, 1);

    let broken = [
        (labels(json!([])), Reason::SettingsInvalid, "name at least one label"),
        (labels(json!(["owner"])).module("modules/missing.wasm"), Reason::NotFound, "missing.wasm"),
        (labels(json!(["owner"])).bytes(b"<html></html>"), Reason::ModuleInvalid, ""),
        (labels(json!(["owner"])).guest("unknown_import"), Reason::ModuleUnsupported, "no_such_function"),
        (labels(json!(["owner"])).spec("mode", "sometimes"), Reason::SpecInvalid, "mode"),
    ];
    let mut generation = 1;
    for (policy, reason, words) in broken {
        folder.put(&policy);
        generation += 1;
        let failure = pod.assert_kept(LABELS, reason, 1, misses("owner"));
        assert_eq!(failure.generation, generation, "{failure:?}");
        assert!(failure.message.contains(words), "no {words:?} in {failure:?}");
        // The message in the status says the same.
        wait_told(&pod, generation, &[reason.as_str(), words]);
    }

    folder.put(&labels(json!(["cost-center"])));
    pod.assert_recovered(LABELS, generation + 1);
    let verdict = pod.ask(LABELS, &Review::pod()).verdict();
    assert!(misses("cost-center")(&verdict), "{verdict:?}");
}

/// Restarts all programs on the same volume, with a broken newest version and without what `lose` removes. Asserts that the last good
/// version answers and the status says so, and that a mended version takes over.
fn assert_last_good_serves(broken: &Policy, reason: Reason, lose: impl FnOnce(&Folder)) {
    let folder = Folder::with_canary();
    folder.put(&labels(json!(["owner"])));
    {
        let pod = Pod::on(&folder).start();
        pod.assert_recovered(LABELS, 1);
        folder.put(&labels(json!(["cost-center"])));
        pod.assert_recovered(LABELS, 2);
        // The generation becomes the last good one when the loader learns that it has loaded.
        eventually("the last good generation", || {
            (pod.volume().entry(LABELS).last_good?.generation == 2).then_some(())
        });
    }
    folder.put(broken);
    lose(&folder);
    let pod = Pod::on(&folder).start();
    pod.wait_serving(LABELS, 2);
    pod.assert_kept(LABELS, reason, 2, misses("cost-center"));
    wait_told(&pod, 3, &[reason.as_str()]);

    folder.put(&labels(json!(["stage"])));
    pod.assert_recovered(LABELS, 4);
    assert!(misses("stage")(&pod.ask(LABELS, &Review::pod()).verdict()));
}

fn clear(folder: &Path) {
    fs::remove_dir_all(folder).and_then(|()| fs::create_dir(folder)).expect("it is ours");
}

#[test]
fn promise_a_restart_with_refused_settings_serves_the_last_good_version() {
    assert_last_good_serves(&labels(json!([])), Reason::SettingsInvalid, |_| ());
}

#[test]
fn promise_a_restart_with_a_missing_module_serves_the_last_good_version() {
    let broken = labels(json!(["owner"])).module("modules/missing.wasm");
    // Only the volume is left: the module of the last good version is gone from the folder too.
    assert_last_good_serves(&broken, Reason::NotFound, |folder| {
        clear(&folder.path("private"));
        fs::remove_file(folder.policies().join("modules/required-labels.wasm")).expect("it was there");
        folder.put(&broken);
        // The mended version writes it again.
    });
}

#[test]
fn promise_a_restart_with_a_broken_manifest_serves_the_last_good_version() {
    let broken = labels(json!(["owner"])).spec("mode", "sometimes");
    assert_last_good_serves(&broken, Reason::SpecInvalid, |folder| clear(&folder.path("private")));
}
