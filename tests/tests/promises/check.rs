//! `portcullis check`: the failures that policies would have in a pod, before they are applied.

use std::net::TcpListener;

use portcullis_tests::{Folder, Policy, Registry, guest, guest_with};
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::tool::{command, examples, run, written};

/// Runs the check on a folder, and returns its exit status and its report.
fn check(folder: &Folder, more: &[&str]) -> (Option<i32>, String) {
    let path = folder.path("").display().to_string();
    let output = run([&["check", &path], more].concat());
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).replace(&path, "") + &String::from_utf8_lossy(&output.stderr),
    )
}

#[test]
fn promise_the_examples_pass_the_check() {
    let output = run(["check", &examples().display().to_string(), "--strict"]);
    assert_eq!(output.status.code(), Some(0), "{}", written(&output));
    let place = "no-privileged.yaml:2: cluster/no-privileged: ";
    for words in ["ok\n", "note SourceNotAllowed: spec.module is a file: no cluster takes it, only the commands "] {
        assert!(written(&output).contains(&format!("{place}{words}")), "{}", written(&output));
    }
}

#[test]
fn promise_what_a_pod_would_refuse_is_told_before_anybody_applies_it() {
    let folder = Folder::empty();
    folder.put(&Policy::cluster("good").example("required-labels").settings(json!({"labels": ["team"]})));
    folder.put(&Policy::cluster("settings").example("required-labels").settings(json!({"labels": []})));
    folder.put(&Policy::cluster("absent").module("absent.wasm"));
    folder.put(&Policy::cluster("garbage").module("garbage.wasm"));
    folder.write("policies/garbage.wasm", "no module");
    folder.write("policies/other.yaml", "kind: ConfigMap\n");
    let (status, text) = check(&folder, &[]);
    assert_eq!(status, Some(1), "{text}");
    for words in [
        "cluster/good: ok",
        "cluster/settings: error SettingsInvalid: ",
        "cluster/garbage: error ModuleInvalid: ",
        "cluster/absent: error NotFound: ",
        "1 passed, 3 failed, 0 not known",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let (status, text) = check(&folder, &["-o", "json"]);
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!((status, &report["failed"]), (Some(1), &json!(3)), "{text}");
    let (_, text) = check(&folder, &["-o", "sarif"]);
    let sarif: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let of = |level: &str| {
        let results = sarif["runs"][0]["results"].as_array().into_iter().flatten();
        results.filter(|result| result["level"] == level).count()
    };
    // All modules are files, which no cluster takes.
    assert_eq!((of("error"), of("note"), of("warning")), (3, 4, 0), "{text}");
    let (_, text) = check(&folder, &["-o", "junit"]);
    assert!(text.contains("tests=\"4\" failures=\"3\" errors=\"0\""), "{text}");
}

/// A module with other metadata than it was built with.
fn with_metadata(mut module: Vec<u8>, metadata: &str) -> Vec<u8> {
    const SECTION: &[u8] = b"io.kubewarden.metadata";
    let section = module.windows(SECTION.len()).rposition(|window| window == SECTION).expect("it has metadata");
    module[section] = b'x';
    // A custom section: its number, its length as LEB128 in two bytes, its name, its content.
    let content = [&[u8::try_from(SECTION.len()).expect("short")], SECTION, metadata.as_bytes()].concat();
    assert!(content.len() < 1 << 14, "two bytes tell the length");
    let length =
        [(content.len() & 0x7f) | 0x80, content.len() >> 7].map(|part| u8::try_from(part).expect("seven bits"));
    [module, vec![0], length.to_vec(), content].concat()
}

#[test]
fn promise_the_manifest_of_a_module_with_older_metadata_passes_a_strict_check() {
    let folder = Folder::empty();
    let metadata = json!({
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
        "mutating": false, "executionMode": "kubewarden-wapc", "protocolVersion": "v1",
        "contextAwareResources": [{"apiVersion": "v1", "kind": "Namespace"}],
    });
    folder.write("policies/old.wasm", with_metadata(guest_with("deny_text", b"no"), &metadata.to_string()));
    let module = folder.path("policies/old.wasm").display().to_string();
    let inspected = run(["inspect", &module]);
    assert!(
        written(&inspected).contains("Host calls:       not declared (older metadata)\n"),
        "{}",
        written(&inspected)
    );
    let manifest = run(["inspect", &module, "--manifest"]);
    folder.write("policies/old.yaml", manifest.stdout);
    // Without one, a warning says that there is no API server to ask.
    folder.write(
        "kubeconfig",
        "{current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: a}}], \
         clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]}",
    );
    let mut strict = command(["check".as_ref(), folder.policies().as_os_str(), "--strict".as_ref()]);
    let output = strict.env("KUBECONFIG", folder.path("kubeconfig")).output().expect("it starts");
    assert_eq!(output.status.code(), Some(0), "{}", written(&output));
}

#[test]
fn promise_what_a_template_or_a_cluster_wrote_passes_the_check() {
    let folder = Folder::empty();
    let policy = Policy::cluster("good").example("no-privileged");
    let policy = policy.spec("hostCapabilities", Value::Null).spec("settings", Value::Null);
    folder.put(&policy.spec("rollbackTo", json!(1)));
    let (status, text) = check(&folder, &[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("cluster/good: warning RolledBack: spec.rollbackTo: "), "{text}");
}

#[test]
fn promise_a_slip_in_a_policy_group_is_told_with_its_name() {
    let folder = Folder::empty();
    folder.write("policies/modules/accept.wasm", guest("always_accept"));
    let members = json!({"exempt": {"module": "modules/accept.wasm"}});
    for (name, expression) in [("right", "exempt()"), ("misspelt", "exmpt()"), ("number", "1 + 1"), ("torn", "exempt(")]
    {
        folder.put(&Policy::cluster(name).group_of(&members, expression));
    }
    let (status, text) = check(&folder, &[]);
    assert_eq!(status, Some(1), "{text}");
    for words in [
        "cluster/right: ok",
        "cluster/misspelt: error SpecInvalid: ",
        "exmpt",
        "cluster/number: error SpecInvalid: ",
        "cluster/torn: error SpecInvalid: ",
        "1 passed, 3 failed, 0 not known",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

#[test]
fn promise_a_module_without_the_signature_that_a_policy_wants_does_not_pass() {
    let registry = Registry::with_login();
    let ours = KeyPair::generate().expect("a key");
    let signatures = json!({"allOf": [{"kind": "pubKey", "owner": "us", "key": ours.public_key_pem()}]});
    let folder = Folder::empty();
    // A signature counts for the bytes that were signed, in whatever repository, so the two modules must differ.
    for (name, module) in [("signed", "always_accept"), ("unsigned", "always_deny")] {
        let (manifest, _) = registry.push(&format!("{name}:v1"), &guest(module));
        if name == "signed" {
            registry.sign(name, &manifest, &ours);
        }
        let module = registry.module(&format!("{name}:v1"));
        folder.put(&Policy::cluster(name).module(&module).spec("signatures", signatures.clone()));
    }
    let access = ["--source-ca", &registry.ca_file(), "--docker-config", &registry.docker_config()];
    let (status, text) = check(&folder, &access);
    assert_eq!(status, Some(1), "{text}");
    let is_told =
        |text: &str| text.contains("cluster/signed: ok") && text.contains("cluster/unsigned: error SignatureInvalid: ");
    assert!(is_told(&text), "{text}");

    // The same where the installation wants the signature, and the policies say nothing of it.
    for name in ["signed", "unsigned"] {
        folder.put(&Policy::cluster(name).module(&registry.module(&format!("{name}:v1"))));
    }
    assert_eq!(check(&folder, &access).0, Some(0));
    let mut rules = signatures;
    rules["apiVersion"] = "v1".into();
    folder.write("verification.yml", rules.to_string());
    let verification = folder.path("verification.yml").display().to_string();
    let (status, text) = check(&folder, &[&access[..], &["--verification", &verification]].concat());
    assert_eq!(status, Some(1), "{text}");
    assert!(is_told(&text), "{text}");
}

/// A pipeline must not treat an unreachable registry as a mistake in the policy.
#[test]
fn promise_a_registry_that_is_away_is_no_mistake_of_the_policy() {
    let folder = Folder::empty();
    // A port on which no program listens.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    folder.put(&Policy::cluster("away").module(&format!("registry://127.0.0.1:{port}/policy:v1")));
    let (status, text) = check(&folder, &[]);
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("cluster/away: unknown RegistryUnreachable: "), "{text}");
    assert!(text.contains("0 passed, 0 failed, 1 not known"), "{text}");
}

#[test]
fn promise_warnings_fail_a_check_only_where_they_should() {
    let folder = Folder::empty();
    let module = examples().join("modules/host-capabilities.wasm").canonicalize().expect("is there");
    folder.put(&Policy::cluster("asks").module(&module.display().to_string()).settings(json!({"calls": []})));
    let root = module.parent().expect("a folder").display().to_string();
    let (status, text) = check(&folder, &["--module-root", &root]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("cluster/asks: warning CapabilityNotGranted: the module declares "), "{text}");
    assert_eq!(check(&folder, &["--module-root", &root, "--strict"]).0, Some(1));
}
