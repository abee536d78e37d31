//! The volume: restarts, its faults, a second loader.

use std::fs;
use std::time::Duration;

use portcullis_contract::Manifest;

use crate::folder::{Folder, eventually, numbered, policy};

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("a.wasm", numbered(1));
    folder.write("a.yaml", policy("a", "a.wasm", "{}"));
    folder
}

#[test]
fn a_restart_compiles_nothing_and_counts_on() {
    let folder = folder();
    let mut loader = folder.start(&[]);
    loader.serves("cluster/a", 1);
    folder.write("a.yaml", policy("a", "a.wasm", "{x: 1}"));
    let before = loader.serves("cluster/a", 2);
    loader.stop();
    let number = loader.manifest().expect("a manifest").number;
    let loader = folder.start(&[]);
    eventually("the policy", || loader.policy("cluster/a").filter(|policy| policy.generation == 2));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(loader.metric("portcullis_compilations_total{result=\"ok\"}"), 0.0);
    assert_eq!(loader.manifest().expect("a manifest").number, number, "nothing new is published");
    folder.write("a.yaml", policy("a", "a.wasm", "{x: 2}"));
    let after = loader.serves("cluster/a", 3);
    assert_eq!(before.uid, after.uid);
    assert!(loader.manifest().expect("a manifest").number > number);
}

#[test]
fn what_changed_while_nobody_looked_is_a_new_generation() {
    let folder = folder();
    let mut loader = folder.start(&[]);
    loader.serves("cluster/a", 1);
    loader.stop();
    folder.write("a.wasm", numbered(2));
    loader = folder.start(&[]);
    loader.serves("cluster/a", 2);
}

#[test]
fn fault_v03_v04_a_loader_that_dies_resumes_without_a_second_fetch() {
    for point in ["loader.after_artifact_write", "loader.after_artifact_rename", "loader.before_manifest_rename"] {
        let folder = folder();
        let mut loader = folder.start_with(&[], &format!("{point}=exit"));
        assert_eq!(loader.ended().code(), Some(86), "{point}");
        let loader = folder.start(&[]);
        loader.serves("cluster/a", 1);
        assert!(loader.files("tmp").is_empty(), "{point}");
        if point == "loader.after_artifact_rename" {
            assert_eq!(loader.metric("portcullis_compilations_total{result=\"ok\"}"), 0.0, "work resumes");
        }
    }
}

#[test]
fn fault_v05_v06_a_manifest_of_another_hand_is_replaced() {
    let folder = folder();
    let loader = folder.start(&[]);
    loader.serves("cluster/a", 1);
    let path = folder.volume().join("manifest.json");
    let number = loader.manifest().expect("a manifest").number;
    for (content, is_higher) in [
        (b"torn".to_vec(), false),
        (Vec::new(), false),
        (br#"{"format":2,"blocks":[]}"#.to_vec(), false),
        (Manifest { number: number + 50, policies: Vec::new(), groups: Vec::new() }.encode().expect("encodes"), true),
    ] {
        fs::write(folder.path().join(".new"), content).expect("writes");
        fs::rename(folder.path().join(".new"), &path).expect("renames");
        let healed = eventually("the manifest to be back", || loader.manifest().filter(|m| m.policies.len() == 1));
        assert!(healed.number > number + if is_higher { 50 } else { 0 });
    }
}

#[test]
fn fault_v08_a_spoilt_artifact_is_found_at_the_start() {
    let folder = folder();
    let mut loader = folder.start(&[]);
    let entry = loader.serves("cluster/a", 1);
    loader.stop();
    let path = folder.volume().join("artifacts").join(&entry.candidates[0].modules()[0].module.artifact.file);
    let mut bytes = fs::read(&path).expect("reads");
    bytes[100] ^= 1;
    fs::write(&path, &bytes).expect("writes");
    let loader = folder.start(&[]);
    eventually("it to be made again", || {
        (portcullis_contract::Digest::of(&fs::read(&path).ok()?)
            == entry.candidates[0].modules()[0].module.artifact.sha256)
            .then_some(())
    });
    assert_eq!(loader.metric("portcullis_compilations_total{result=\"ok\"}"), 1.0);
}

#[test]
fn fault_v18_old_artifacts_are_removed() {
    let folder = folder();
    let mut loader = folder.start(&[]);
    loader.serves("cluster/a", 1);
    loader.stop();
    for number in 0..500 {
        let digest = portcullis_contract::Digest::of(&[0, (number >> 8) as u8, number as u8]).hex();
        fs::write(folder.volume().join(format!("artifacts/{digest}-0123456789abcdef.cwasm")), "old").expect("writes");
        fs::write(folder.volume().join(format!("modules/{digest}.wasm")), "old").expect("writes");
    }
    let loader = folder.start(&["--keep-newest", "3"]);
    let count = |folder: &str| loader.files(folder).iter().filter(|name| name.ends_with("wasm")).count();
    eventually("old files to go", || (count("artifacts") == 4 && count("modules") == 4).then_some(()));
    assert!(loader.entry("cluster/a").is_some_and(|entry| {
        folder.volume().join("artifacts").join(&entry.candidates[0].modules()[0].module.artifact.file).exists()
    }));
}

#[test]
fn fault_v21_a_second_loader_waits_and_numbers_only_grow() {
    let folder = folder();
    let mut first = folder.start(&[]);
    first.serves("cluster/a", 1);
    let second = folder.start(&[]);
    eventually("the second to wait", || second.log().contains("another loader has the volume").then_some(()));
    let number = first.manifest().expect("a manifest").number;
    assert!(!second.loader_state().complete);
    first.stop();
    folder.write("a.yaml", policy("a", "a.wasm", "{x: 1}"));
    second.serves("cluster/a", 2);
    assert!(second.manifest().expect("a manifest").number > number);
}

#[test]
fn p05_the_first_policy_is_served_before_the_last_is_compiled() {
    let folder = Folder::new();
    for number in 0..12 {
        folder.write(&format!("{number:02}.wasm"), numbered(number));
        folder
            .write(&format!("{number:02}.yaml"), policy(&format!("p{number:02}"), &format!("{number:02}.wasm"), "{}"));
    }
    let loader = folder.start(&[]);
    let partly = eventually("a candidate", || {
        let manifest = loader.manifest()?;
        let served = manifest.policies.iter().filter(|entry| !entry.candidates.is_empty()).count();
        (served > 0).then_some(served)
    });
    assert!(partly < 12, "{partly}");
    for number in 0..12 {
        loader.serves(&format!("cluster/p{number:02}"), 1);
    }
}
