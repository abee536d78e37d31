//! The commands that work with modules in registries: their output as text and as JSON, and their exit status.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Output;

use portcullis_contract::{Digest, Reason};
use portcullis_registry::oci::Manifest;
use portcullis_tests::{Folder, Pod, Policy, Registry, Reply, Review};
use rcgen::KeyPair;
use serde_json::Value;

use crate::tool::{examples, run, written};

/// Runs a command with the settings for a registry.
fn tool(registry: &Registry, args: &[&str]) -> Output {
    let access = ["--docker-config", &registry.docker_config(), "--source-ca", &registry.ca_file()].map(str::to_owned);
    run(args.iter().map(|&arg| arg.to_owned()).chain(access))
}

/// The output of a command that must succeed.
fn printed(registry: &Registry, args: &[&str]) -> String {
    let output = tool(registry, args);
    assert!(output.status.success(), "{args:?}: {}", written(&output));
    String::from_utf8(output.stdout).expect("text")
}

fn json(registry: &Registry, args: &[&str]) -> Value {
    serde_json::from_str(&printed(registry, &[args, &["-o", "json"]].concat())).expect("JSON")
}

/// The error message of a command that must fail with this status.
fn refused(registry: &Registry, status: i32, args: &[&str]) -> String {
    let output = tool(registry, args);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {}", written(&output));
    assert!(output.stdout.is_empty(), "{args:?}: {}", written(&output));
    String::from_utf8(output.stderr).expect("text")
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn example(name: &str) -> (String, Vec<u8>) {
    let path = examples().join("modules").join(name);
    (text(&path), fs::read(path).expect("reads"))
}

#[test]
fn promise_push_pull_and_inspect_agree_on_digests() {
    let registry = Registry::with_login();
    let (file, bytes) = example("no-privileged.wasm");
    let name = registry.module("policies/no-privileged:v1");
    let pushed = json(&registry, &["push", &file, &name]);
    assert_eq!(pushed["digest"], Digest::of(&bytes).to_string());
    let pinned = pushed["image"].as_str().expect("a name").to_owned();
    assert_eq!(pinned, format!("{name}@{}", pushed["manifestDigest"].as_str().expect("a digest")));
    assert_eq!(printed(&registry, &["push", &file, &name]), format!("{pinned}\n"), "the same once more");

    let folder = Folder::empty();
    let copy = text(&folder.path("copy.wasm"));
    let pulled = json(&registry, &["pull", &pinned, "--output-file", &copy]);
    assert_eq!((&pulled["digest"], &pulled["manifestDigest"]), (&pushed["digest"], &pushed["manifestDigest"]));
    assert_eq!((&pulled["file"], fs::read(&copy).expect("reads") == bytes), (&copy.clone().into(), true));

    let inspected = json(&registry, &["inspect", &name]);
    for field in ["digest", "manifestDigest"] {
        assert_eq!(inspected[field], pushed[field]);
    }
    assert_eq!(inspected["metadata"]["protocolVersion"], "v1");
    let words = printed(&registry, &["inspect", &copy]);
    for word in ["Digest:", "Rule:", "Imports:", "Exports:", &Digest::of(&bytes).to_string()] {
        assert!(words.contains(word), "no {word} in {words}");
    }
}

#[test]
fn promise_the_manifest_that_inspect_prints_is_served_as_printed() {
    let registry = Registry::with_login();
    let folder = Folder::empty();
    for (name, settings) in [("no-privileged", "{}"), ("default-resources", "{cpu: 100m}")] {
        let (file, _) = example(&format!("{name}.wasm"));
        let image = registry.module(&format!("policies/{name}:v1"));
        printed(&registry, &["push", &file, &image]);
        let manifest = printed(&registry, &["inspect", &image, "--manifest"]);
        assert!(manifest.contains("\n  settings: {}\n") && manifest.contains("# Settings: "), "{manifest}");
        // The second policy needs settings from its user; the rest of the manifest is used as printed.
        let manifest = manifest.replace("settings: {}", &format!("settings: {settings}"));
        folder.write(&format!("policies/{name}.yaml"), manifest);
    }
    let setup = Pod::on(&folder).loader("--source-ca", registry.ca_file());
    let pod = setup.loader("--docker-config", registry.docker_config()).start();
    for name in ["no-privileged", "default-resources"] {
        pod.assert_recovered(&format!("cluster/{name}"), 1);
    }
    assert!(pod.ask("cluster/no-privileged", &Review::pod()).verdict().allowed);
}

#[test]
fn promise_verify_knows_who_signed() {
    let registry = Registry::with_login();
    let (ours, theirs) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let (signed, _) = registry.push("policies/signed:v1", &Reply::module_bytes("signed"));
    registry.push("policies/unsigned:v1", &Reply::module_bytes("unsigned"));
    registry.sign("policies/signed", &signed, &ours);
    let folder = Folder::empty();
    folder.write("ours.pub", ours.public_key_pem());
    folder.write("theirs.pub", theirs.public_key_pem());
    let (our_key, their_key) = (text(&folder.path("ours.pub")), text(&folder.path("theirs.pub")));
    let (name, unsigned) = (registry.module("policies/signed:v1"), registry.module("policies/unsigned:v1"));

    let words = printed(&registry, &["verify", &name, "--key", &our_key]);
    assert!(words.starts_with(&format!("{name}@{signed} is signed as wanted\n")), "{words}");
    let said = json(&registry, &["verify", &name, "--key", &our_key]);
    assert_eq!((&said["signed"], &said["manifestDigest"]), (&true.into(), &signed.to_string().into()));

    let error = refused(&registry, 1, &["verify", &name, "--key", &their_key]);
    assert!(error.contains("missing signatures") && error.contains(Reason::SignatureInvalid.as_str()), "{error}");
    let error = refused(&registry, 1, &["verify", &unsigned, "--key", &our_key]);
    assert!(error.contains("no signatures found"), "{error}");

    let wanted = |key: &KeyPair| {
        let signer = serde_json::json!({"kind": "pubKey", "owner": "us", "key": key.public_key_pem()});
        serde_json::json!({"apiVersion": "v1", "allOf": [signer]})
    };
    folder.write("verification.yml", wanted(&ours).to_string());
    let verification = text(&folder.path("verification.yml"));
    printed(&registry, &["verify", &name, "--verification", &verification]);
    folder.write("verification.yml", wanted(&theirs).to_string());
    refused(&registry, 1, &["verify", &name, "--verification", &verification]);
    folder.write("verification.yml", "{}");
    refused(&registry, 64, &["verify", &name, "--verification", &verification]);
    folder.write("none.pub", "no key");
    refused(&registry, 64, &["verify", &name, "--key", &text(&folder.path("none.pub"))]);

    // A loader comes to the same result.
    let policy = |name: &str, image: &str, key: &KeyPair| {
        let mut signatures = wanted(key);
        signatures.as_object_mut().expect("an object").remove("apiVersion");
        Policy::cluster(name).module(image).spec("signatures", signatures)
    };
    folder.put(&policy("ours", &name, &ours));
    folder.put(&policy("theirs", &name, &theirs));
    folder.put(&policy("unsigned", &unsigned, &ours));
    let setup = Pod::on(&folder).loader("--source-ca", registry.ca_file());
    let pod = setup.loader("--docker-config", registry.docker_config()).start();
    pod.assert_recovered("cluster/ours", 1);
    for id in ["cluster/theirs", "cluster/unsigned"] {
        pod.assert_unserved(id, Reason::SignatureInvalid);
    }
}

#[test]
fn promise_modules_travel_in_an_archive_with_their_signatures() {
    let (outside, inside) = (Registry::with_login(), Registry::with_login());
    let key = KeyPair::generate().expect("a key");
    let folder = Folder::empty();
    folder.write("cosign.pub", key.public_key_pem());
    let mut digests = Vec::new();
    for name in ["a", "b"] {
        let (digest, _) = outside.push(&format!("policies/{name}:v1"), &Reply::module_bytes(name));
        outside.sign(&format!("policies/{name}"), &digest, &key);
        folder.put(&Policy::cluster(name).module(&outside.module(&format!("policies/{name}:v1"))));
        digests.push(digest);
    }
    // A third module, which is named only by its digest.
    let (third, _) = outside.push("policies/c:gone", &Reply::module_bytes("c"));
    let pinned = outside.module(&format!("policies/c@{third}"));
    let (archive, again) = (text(&folder.path("modules.tar")), text(&folder.path("again.tar")));
    let policies = text(&folder.policies());
    let saved = json(&outside, &["save", &policies, &pinned, "--output-file", &archive]);
    assert_eq!(saved["artifacts"].as_array().map(Vec::len), Some(3), "{saved}");
    printed(&outside, &["save", &policies, &pinned, "--output-file", &again]);
    assert_eq!(fs::read(&archive).expect("reads"), fs::read(&again).expect("reads"), "the same bytes each time");

    // Files that hold no policies are not read, and nothing of them is looked for in a registry.
    for (name, content) in [
        ("template.yaml", "module: {{ .Values.module }}: ]"),
        ("compose.yaml", "web: {module: nowhere}"),
        ("other.json", "{\"module\": {\"module\": \"UPPER/x y\"}}"),
    ] {
        fs::write(folder.policies().join(name), content).expect("writes");
    }
    fs::remove_file(&again).expect("removes");
    printed(&outside, &["save", &policies, &pinned, "--output-file", &again]);
    assert_eq!(fs::read(&archive).expect("reads"), fs::read(&again).expect("reads"), "no other module");

    // A file whose bytes cannot be read may name further modules.
    let odd = folder.policies().join("odd.yaml");
    std::os::unix::fs::symlink("/proc/self/mem", &odd).expect("links");
    fs::remove_file(&again).expect("removes");
    let output = tool(&outside, &["save", &policies, &pinned, "--output-file", &again]);
    assert_eq!(output.status.code(), Some(1), "{}", written(&output));
    assert!(written(&output).contains("the archive may lack modules"), "{}", written(&output));
    assert_eq!(fs::read(&archive).expect("reads"), fs::read(&again).expect("reads"), "all the others");
    fs::remove_file(&odd).expect("removes");
    outside.stop();

    let loaded = json(&inside, &["load", &archive, &format!("{}/mirror", inside.host())]);
    let loaded = loaded["artifacts"].as_array().expect("a list").clone();
    assert_eq!(loaded.len(), 5, "three modules and two signatures: {loaded:?}");
    assert!(loaded.iter().all(|one| one["from"].as_str().is_some_and(|from| from.contains(outside.host()))));
    for (name, digest) in ["a", "b"].iter().zip(&digests) {
        let image = inside.module(&format!("mirror/policies/{name}:v1"));
        let words = printed(&inside, &["verify", &image, "--key", &text(&folder.path("cosign.pub"))]);
        assert!(words.contains(&digest.to_string()), "{words}");
        folder.put(&Policy::cluster(name).module(&image));
    }
    folder.put(&Policy::cluster("c").module(&inside.module(&format!("mirror/policies/c@{third}"))));
    let setup = Pod::on(&folder).loader("--source-ca", inside.ca_file());
    let pod = setup.loader("--docker-config", inside.docker_config()).start();
    for id in ["cluster/a", "cluster/b", "cluster/c"] {
        pod.assert_recovered(id, 1);
    }

    let mut damaged = fs::read(&archive).expect("reads");
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    folder.write("damaged.tar", damaged);
    refused(&inside, 1, &["load", &text(&folder.path("damaged.tar")), inside.host()]);
}

#[test]
fn promise_what_cannot_be_done_is_said_with_the_next_step() {
    let registry = Registry::with_login();
    let (file, bytes) = example("no-privileged.wasm");
    let folder = Folder::empty();
    let none = text(&folder.path("none.wasm"));
    folder.write("html.wasm", "<html>");
    let (html, absent) = (text(&folder.path("html.wasm")), registry.module("policies/absent:v1"));
    let cases: [(i32, &[&str], &[&str]); 9] = [
        (1, &["push", &none, &absent], &["none.wasm"]),
        (1, &["push", &html, &absent], &["html.wasm is not a module"]),
        (64, &["push", &file, "registry://UPPER/x y"], &["registry://host/repository:tag"]),
        (64, &["push", &file, &format!("{absent}@{}", Digest::of(&bytes))], &["want a tag"]),
        (1, &["pull", &absent], &["has no such module", "NotFound"]),
        (1, &["inspect", &none], &["there is no file"]),
        (1, &["inspect", &absent, "--manifest"], &["NotFound"]),
        (1, &["load", &none, registry.host()], &["failed to open", "none.wasm"]),
        (1, &["save", &absent, "--output-file", &text(&folder.path("x.tar"))], &["NotFound"]),
    ];
    for (status, args, words) in cases {
        let error = refused(&registry, status, args);
        assert!(error.starts_with("error: ") && words.iter().all(|word| error.contains(word)), "{args:?}: {error}");
    }
    assert!(!folder.path("x.tar").exists(), "no half archive");

    // Errors without a login, without the authority, and with a server that does not use TLS.
    let docker = text(&folder.path("docker"));
    fs::create_dir(&docker).expect("a folder");
    let ca = registry.ca_file();
    let plain = Registry::plain();
    let plain_name = plain.module("policies/a:v1");
    let alone: [(&[&str], &[&str]); 3] = [
        (&["pull", &absent, "--docker-config", &docker, "--source-ca", &ca], &["wants a login", "CredentialsMissing"]),
        (&["pull", &absent, "--docker-config", &docker], &["--source-ca", "TLSFailed"]),
        (&["push", &file, &plain_name, "--docker-config", &docker], &["--allow-http-host"]),
    ];
    for (args, words) in alone {
        let output = run(args);
        let error = written(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{args:?}: {error}");
    }
    let pushed = run(["push", &file, &plain_name, "--allow-http-host", plain.host()]);
    assert!(pushed.status.success(), "{}", written(&pushed));
}

#[test]
fn promise_an_index_is_refused_with_what_it_is() {
    let registry = Registry::tls();
    let module = Reply::module_bytes("of an index");
    let (manifest, _) = registry.push("policies/a:v1", &module);
    let size = Manifest::of_module(&module, BTreeMap::new()).bytes.len();
    registry.push_index("policies/a", "all", &manifest, size);
    let name = registry.module("policies/a:all");
    let error = refused(&registry, 1, &["pull", &name]);
    assert!(error.contains("an index of several manifests: name one of them by its digest"), "{error}");
    let folder = Folder::empty();
    folder.put(&Policy::cluster("remote").module(&name));
    let pod = Pod::on(&folder).loader("--source-ca", registry.ca_file()).start();
    let failure = pod.assert_unserved("cluster/remote", Reason::ManifestUnsupported);
    assert!(failure.message.contains("index"), "{}", failure.message);
    folder.put(&Policy::cluster("remote").module(&registry.module(&format!("policies/a@{manifest}"))));
    pod.assert_recovered("cluster/remote", 2);
}
