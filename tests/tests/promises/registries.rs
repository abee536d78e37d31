//! A module from a developer's machine to a cluster's admission: pushed, looked at, named by a policy, and pinned.

use std::fs;

use portcullis_contract::Digest;
use portcullis_tests::{Folder, Pod, Registry, Review, eventually};

use crate::tool::{examples, run, written};

#[test]
fn a_pushed_module_is_named_by_its_tag_and_stays_what_it_was() {
    let registry = Registry::with_login();
    let access = ["--docker-config", &registry.docker_config(), "--source-ca", &registry.ca_file()].map(str::to_owned);
    let tool = |args: &[&str]| run(args.iter().map(|&arg| arg.to_owned()).chain(access.clone()));
    let module = examples().join("modules/no-privileged.wasm");
    let path = module.to_str().expect("text");
    let name = registry.module("policies/no-privileged:v1");

    let pushed = tool(&["push", path, &name]);
    assert!(pushed.status.success(), "{}", written(&pushed));
    let pinned = String::from_utf8_lossy(&pushed.stdout).trim().to_owned();
    assert!(pinned.starts_with(&name) && pinned.contains("@sha256:"), "{pinned}");
    let bytes = fs::read(&module).expect("reads");

    let folder = Folder::empty();
    let copy = folder.path("copy.wasm");
    let pulled = tool(&["pull", &pinned, "--output-file", copy.to_str().expect("text")]);
    assert!(pulled.status.success(), "{}", written(&pulled));
    assert_eq!(fs::read(&copy).expect("reads"), bytes);

    let inspected = tool(&["inspect", &name, "--output", "json"]);
    assert!(inspected.status.success(), "{}", written(&inspected));
    let json: serde_json::Value = serde_json::from_slice(&inspected.stdout).expect("JSON");
    assert_eq!(json["digest"], Digest::of(&bytes).to_string());
    assert_eq!(json["metadata"]["protocolVersion"], "v1");

    // What --manifest prints is a policy that is served.
    let manifest = tool(&["inspect", &name, "--manifest"]);
    assert!(manifest.status.success(), "{}", written(&manifest));
    let manifest: serde_json::Value = serde_yaml_ng::from_slice(&manifest.stdout).expect("YAML");
    let id = format!("cluster/{}", manifest["metadata"]["name"].as_str().expect("a name"));
    folder.write("policies/made.yaml", manifest.to_string());
    let setup = Pod::on(&folder).loader("--source-ca", registry.ca_file());
    let pod = setup.loader("--docker-config", registry.docker_config()).start();
    pod.assert_recovered(&id, 1);
    assert!(pod.ask(&id, &Review::pod()).verdict().allowed);

    // The tag moves: an edit of settings alone keeps the module, and the policy says which it is.
    let other = fs::read(examples().join("modules/required-labels.wasm")).expect("reads");
    registry.push("policies/no-privileged:v1", &other);
    let digest = eventually("the state to tell the digest", || {
        pod.loader_state()?.policies.into_iter().find(|policy| policy.id.as_str() == id)?.digest
    });
    assert_eq!(digest, Digest::of(&bytes));
    // Into a place without network, and out of it.
    let archive = folder.path("modules.tar");
    let archive = archive.to_str().expect("text");
    let saved = tool(&["save", &pinned, "--output-file", archive]);
    assert!(saved.status.success(), "{}", written(&saved));
    let other_place = format!("{}/mirror", registry.host());
    let loaded = tool(&["load", archive, &other_place]);
    assert!(loaded.status.success(), "{}", written(&loaded));
    let there = tool(&["inspect", &format!("{other_place}/policies/no-privileged:v1"), "--output", "json"]);
    let there: serde_json::Value = serde_json::from_slice(&there.stdout).expect("JSON");
    assert_eq!(there["digest"], Digest::of(&bytes).to_string());

    let unsigned = tool(&["verify", &name, "--verification", "/nowhere"]);
    assert_eq!(unsigned.status.code(), Some(64), "{}", written(&unsigned));
}
