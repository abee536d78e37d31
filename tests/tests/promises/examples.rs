//! The examples do what their README says, and the modules kept there behave like those built from their sources.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use portcullis_tests::{Folder, Pod, Policy, Verdict, skip};
use serde_json::{Value, json};

use crate::tool::examples;

const POLICIES: [&str; 3] = ["no-privileged", "required-labels", "default-resources"];

/// The requests by name.
fn requests() -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(examples().join("requests")).expect("they are there").flatten();
    files
        .map(|file| {
            let name = file.path().file_stem().unwrap_or_default().to_string_lossy().into_owned();
            (name, fs::read(file.path()).expect("it can be read"))
        })
        .collect()
}

/// The example's policy with this module, as a cluster-wide policy of this name.
fn policy(example: &str, name: &str, module: &Path) -> Policy {
    let text = fs::read_to_string(examples().join(format!("{example}.yaml"))).expect("it is there");
    let manifest: Value = portcullis_yaml::read(&text).expect("it is YAML");
    let spec = &manifest["spec"];
    let bytes = fs::read(module).unwrap_or_else(|error| panic!("{}: {error}", module.display()));
    let mut policy = Policy::cluster(name).bytes(bytes).settings(spec["settings"].clone());
    for field in ["rules", "mutating", "failurePolicy"] {
        if !spec[field].is_null() {
            policy = policy.spec(field, spec[field].clone());
        }
    }
    policy
}

fn ask(pod: &Pod, id: &str, request: &[u8]) -> Verdict {
    pod.client().post(&format!("/validate/{id}"), request).expect("answers").verdict()
}

/// The cells of a row of a table in Markdown.
fn cells(line: &str) -> Vec<String> {
    line.trim_matches('|').split('|').map(|cell| cell.trim().replace(['`', '*'], "")).collect()
}

#[test]
fn promise_the_examples_do_what_their_readme_says() {
    let folder = Folder::empty();
    crate::tool::copy_examples(&folder.policies());
    let pod = Pod::on(&folder).start();
    let ids = ["cluster/no-privileged", "namespaced/default/required-labels", "cluster/default-resources"];
    for id in ids {
        pod.assert_recovered(id, 1);
    }
    let text = fs::read_to_string(examples().join("README.md")).expect("it is there");
    let requests = requests();
    let mut told = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("| `") && line.contains(".json`")) {
        let cells = cells(line);
        let (name, expected) = (cells[0].trim_end_matches(".json"), &cells[1..]);
        told.push(name.to_owned());
        for (id, expected) in ids.iter().zip(expected) {
            let verdict = ask(&pod, id, &requests[name]);
            let right = match expected.as_str() {
                "allows" => verdict.allowed && verdict.patch.is_none(),
                "denies" => !verdict.allowed && !verdict.message.is_empty(),
                "changes nothing" => verdict.allowed && verdict.patch.is_none(),
                "patches" => verdict.allowed && verdict.patch.is_some(),
                other => panic!("what is {other:?}?"),
            };
            assert!(right, "{id} on {name} should be {expected:?}: {verdict:?}");
        }
    }
    told.sort();
    assert_eq!(told, requests.into_keys().collect::<Vec<_>>(), "each request has a line in the README");
}

#[test]
fn promise_the_kept_modules_are_what_their_sources_give() {
    let Some(built) = env::var_os("PORTCULLIS_GUESTS_DIR").map(PathBuf::from) else {
        skip("the kept modules were not compared with what their sources give; `cargo xtask test` builds them");
        return;
    };
    let folder = Folder::empty();
    for example in POLICIES {
        let file = format!("{example}.wasm");
        folder.put(&policy(example, &format!("kept-{example}"), &examples().join("modules").join(&file)));
        folder.put(&policy(example, &format!("built-{example}"), &built.join(&file)));
    }
    // This module is there only if Go was installed to build it.
    let go = built.join("allowed-registries.wasm");
    if go.is_file() {
        let settings = json!({"registries": ["ghcr.io/example"]});
        folder.put(&Policy::cluster("go").bytes(fs::read(&go).expect("it can be read")).settings(settings));
    } else {
        skip("allowed-registries was not tried, as there is no Go to build it");
    }
    let pod = Pod::on(&folder).start();
    for example in POLICIES {
        let [kept, built] = ["kept", "built"].map(|name| format!("cluster/{name}-{example}"));
        pod.assert_recovered(&kept, 1);
        pod.assert_recovered(&built, 1);
        for (name, request) in requests() {
            let [kept, built] = [&kept, &built].map(|id| ask(&pod, id, &request));
            assert_eq!(kept.raw, built.raw, "{example} on {name}: build the guests and keep what comes of it");
        }
    }
    if go.is_file() {
        pod.assert_recovered("cluster/go", 1);
        let verdict = ask(&pod, "cluster/go", &requests()["pod-foreign-image"]);
        assert!(!verdict.allowed && verdict.message.contains("busybox:1.36"), "{verdict:?}");
        assert!(ask(&pod, "cluster/go", &requests()["pod-delete"]).allowed);
    }
}
