//! Edits of the folder become manifests.

use std::fs;
use std::time::{Duration, Instant};

use portcullis_contract::{Phase, Reason};

use crate::folder::{Folder, eventually, get, numbered, policy};

fn folder() -> Folder {
    let folder = Folder::new();
    fs::create_dir(folder.path().join("modules")).expect("makes");
    folder.write("modules/a.wasm", numbered(1));
    folder.write("a.yaml", policy("a", "modules/a.wasm", "{z: 9007199254740993, a: null, e: ''}"));
    folder
}

#[test]
fn s06_a_policy_is_published_with_its_settings_unchanged() {
    let folder = folder();
    let loader = folder.start(&[]);
    let entry = loader.serves("cluster/a", 1);
    assert_eq!(entry.candidates[0].modules()[0].module.settings.get(), r#"{"z":9007199254740993,"a":null,"e":""}"#);
    let manifest = loader.manifest().expect("a manifest");
    assert_eq!(manifest.groups.len(), 1);
    assert_eq!(manifest.groups[0].members, [entry.id]);
    let artifact = folder.volume().join("artifacts").join(&entry.candidates[0].modules()[0].module.artifact.file);
    let bytes = fs::read(artifact).expect("reads");
    assert_eq!(portcullis_contract::Digest::of(&bytes), entry.candidates[0].modules()[0].module.artifact.sha256);
    eventually("the state to say so", || loader.policy("cluster/a").filter(|policy| policy.phase == Phase::Published));
    assert_eq!(get(loader.probes, "/readyz").0, 200);
    assert_eq!(get(loader.probes, "/livez").0, 200);
    assert_eq!(get(loader.probes, "/healthz/policies/cluster/a").0, 200);
    assert_eq!(get(loader.probes, "/healthz/policies/cluster/b").0, 404);
}

#[test]
fn s05_an_edit_of_settings_is_published_at_once_and_compiles_nothing() {
    let folder = folder();
    let loader = folder.start(&[]);
    loader.serves("cluster/a", 1);
    let compiled = loader.metric("portcullis_compilations_total{result=\"ok\"}");
    let mut times = Vec::new();
    for generation in 2..7 {
        folder.write("a.yaml", policy("a", "modules/a.wasm", &format!("{{n: {generation}}}")));
        let start = Instant::now();
        loader.serves("cluster/a", generation);
        times.push(start.elapsed());
    }
    times.sort();
    assert!(times[2] < Duration::from_secs(10), "{times:?}");
    assert_eq!(loader.metric("portcullis_compilations_total{result=\"ok\"}"), compiled);
    eventually("the number to be told", || {
        (loader.metric("portcullis_manifest_number") as u64 == loader.manifest()?.number).then_some(())
    });
}

#[test]
fn a_broken_edit_keeps_what_served_and_a_mended_one_goes_on() {
    let folder = folder();
    let loader = folder.start(&[]);
    loader.serves("cluster/a", 1);
    folder.write("a.yaml", "apiVersion: policies.portcullis.dev/v1alpha1\nspec: [");
    let failed = loader.fails("cluster/a");
    let failure = failed.failure.expect("a failure");
    assert_eq!((failed.generation, failure.reason), (2, Reason::SpecInvalid));
    assert!(failure.message.starts_with("a.yaml: line 2"), "{}", failure.message);
    loader.serves("cluster/a", 1);
    let (status, body) = get(loader.probes, "/healthz/policies/cluster/a");
    assert_eq!(status, 500);
    assert!(body.contains("cluster/a") && body.contains("spec stage") && body.contains("SpecInvalid"), "{body}");
    folder.write("a.yaml", policy("a", "modules/a.wasm", "{mended: true}"));
    loader.serves("cluster/a", 3);
    eventually("the log to say so", || loader.log().contains("the policy loads again").then_some(()));
    fs::remove_file(folder.path().join("a.yaml")).expect("removes");
    eventually("the policy to go", || loader.manifest().filter(|manifest| manifest.policies.is_empty()));
    assert_eq!(loader.manifest().expect("a manifest").groups[0].members, []);
}

#[test]
fn a_rebuilt_module_is_seen_at_once() {
    let folder = folder();
    let loader = folder.start(&[]);
    let first = loader.serves("cluster/a", 1);
    folder.write("modules/a.wasm", numbered(2));
    let second = loader.serves("cluster/a", 2);
    assert_ne!(first.candidates[0].digest, second.candidates[0].digest);
    folder.write("modules/a.wasm", "no module");
    let failed = loader.fails("cluster/a");
    assert_eq!((failed.generation, failed.failure.map(|failure| failure.reason)), (3, Some(Reason::ModuleInvalid)));
    loader.serves("cluster/a", 2);
}

#[test]
fn a_module_that_comes_later_is_loaded_when_it_comes() {
    let folder = folder();
    fs::remove_file(folder.path().join("modules/a.wasm")).expect("removes");
    let loader = folder.start(&["--retry-outside", "10m"]);
    assert_eq!(loader.fails("cluster/a").failure.map(|failure| failure.reason), Some(Reason::NotFound));
    folder.write("modules/a.wasm", numbered(1));
    loader.serves("cluster/a", 1);
}

#[test]
fn one_policy_s_failure_delays_no_other() {
    let folder = folder();
    folder.write("b.yaml", policy("b", "modules/absent.wasm", "{}"));
    folder.write("c.yaml", policy("c", "https://127.0.0.1:1/m.wasm", "{}"));
    folder.write("d.yaml", policy("d", "ftp://example.com/m.wasm", "{}"));
    folder.write("e.yaml", "kind: Policy\n");
    let loader = folder.start(&[]);
    loader.serves("cluster/a", 1);
    let reason = |id: &str| loader.fails(id).failure.expect("a failure").reason;
    assert_eq!(reason("cluster/b"), Reason::NotFound);
    assert_eq!(reason("cluster/c"), Reason::RegistryUnreachable);
    assert_eq!(reason("cluster/d"), Reason::SourceNotAllowed);
    let state = loader.loader_state();
    assert_eq!(state.problems.len(), 1);
    assert_eq!(state.sources[0].host, "127.0.0.1:1");
    assert_eq!(get(loader.probes, "/healthz/policies").0, 500);
    assert_eq!(get(loader.probes, "/healthz/sources/127.0.0.1:1").0, 503);
    assert_eq!(get(loader.probes, "/readyz").0, 200, "readiness never depends on sources");
}

#[test]
fn l23_files_outside_of_the_roots_are_refused() {
    let folder = folder();
    let outside = Folder::new();
    outside.write("x.wasm", numbered(1));
    std::os::unix::fs::symlink(outside.path().join("x.wasm"), folder.path().join("link.wasm")).expect("links");
    let path = outside.path().join("x.wasm");
    folder.write("b.yaml", policy("b", &format!("file://{}", path.display()), "{}"));
    folder.write("c.yaml", policy("c", "link.wasm", "{}"));
    folder.write("d.yaml", policy("d", "../../../../etc/hostname.wasm", "{}"));
    let loader = folder.start(&[]);
    for id in ["cluster/b", "cluster/c", "cluster/d"] {
        assert_eq!(loader.fails(id).failure.map(|failure| failure.reason), Some(Reason::SourceNotAllowed), "{id}");
    }
    drop(loader);
    let loader = folder.start(&["--module-root", outside.path().to_str().expect("text")]);
    loader.serves("cluster/b", 1);
}

#[test]
fn s03_settings_beyond_the_limits_are_refused() {
    let folder = folder();
    folder.write("b.yaml", policy("b", "modules/a.wasm", &format!("{{a: {}}}", "x".repeat(1 << 20))));
    folder.write("c.yaml", policy("c", "modules/a.wasm", &format!("{{a: {}{}}}", "[".repeat(1000), "]".repeat(1000))));
    let loader = folder.start(&[]);
    for id in ["cluster/b", "cluster/c"] {
        assert_eq!(loader.fails(id).failure.map(|failure| failure.reason), Some(Reason::SettingsInvalid), "{id}");
    }
    loader.serves("cluster/a", 1);
}

#[test]
fn a_policies_yml_is_followed() {
    let folder = folder();
    fs::remove_file(folder.path().join("a.yaml")).expect("removes");
    folder.write(
        "policies.yml",
        "clusterwide-a:\n  module: modules/a.wasm\n  policyMode: monitor\n  allowedToMutate: true\n  settings: {x: 1}\n\
         group:\n  policies: {m: {module: modules/a.wasm}}\n  expression: m()\n  message: no\n\
         bad-group:\n  policies: {m: {module: modules/a.wasm}}\n  expression: n()\n  message: no\nbad/id: {module: a.wasm}\n",
    );
    let file = folder.path().join("policies.yml");
    let loader = folder.start(&["--policies", file.to_str().expect("text")]);
    let entry = loader.serves("clusterwide-a", 1);
    assert_eq!(entry.mode, portcullis_contract::Mode::Monitor);
    assert!(entry.candidates[0].mutating);
    assert!(loader.manifest().expect("a manifest").groups.is_empty());
    assert_eq!(loader.serves("group", 1).candidates[0].members().len(), 1);
    assert_eq!(loader.fails("bad-group").failure.map(|failure| failure.reason), Some(Reason::SpecInvalid));
    assert_eq!(loader.loader_state().problems.len(), 1);
    folder.write("policies.yml", "clusterwide-a:\n  module: modules/a.wasm\n");
    assert_eq!(loader.serves("clusterwide-a", 2).mode, portcullis_contract::Mode::Protect);
}

#[test]
fn settings_that_cannot_be_used_end_the_program_with_64() {
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis-loader"))
        .args(["--dir", "/nowhere"])
        .stderr(std::process::Stdio::piped())
        .output()
        .expect("runs");
    assert_eq!(status.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&status.stderr).contains("--dir"), "{status:?}");
}

#[test]
fn a_stop_is_clean() {
    let folder = folder();
    let mut loader = folder.start(&[]);
    loader.serves("cluster/a", 1);
    assert_eq!(loader.stop().code(), Some(0));
    assert!(loader.files("tmp").is_empty());
}
