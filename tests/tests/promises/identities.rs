//! `portcullis verify` shows who signed a module, and signatures can be copied to another registry.

use std::fs;

use portcullis_tests::sigstore::{Holder, Sigstore};
use portcullis_tests::{Folder, Registry, Reply};

use crate::tool::{run, written};

#[test]
fn verify_tells_what_was_proved() {
    let (registry, sigstore, folder) = (Registry::tls(), Sigstore::new(), Folder::empty());
    let root = folder.path("trusted_root.json");
    fs::write(&root, sigstore.trusted_root().to_string()).expect("writes");
    let root = root.to_str().expect("text");
    let leaf = sigstore.leaf(&Holder::workflow("org/repo"));
    let older = registry.push("policies/older:v1", &Reply::module_bytes("older")).0;
    registry.sign_with_certificate("policies/older", &older, &sigstore, &leaf);
    let newer = registry.push("policies/newer:v1", &Reply::module_bytes("newer")).0;
    registry.sign_in_bundle("policies/newer", &newer, &sigstore, &leaf);
    for (name, digest) in [("policies/older:v1", older), ("policies/newer:v1", newer)] {
        let verify = |args: &[&str]| {
            let (name, ca) = (registry.module(name), registry.ca_file());
            let fixed = ["verify", &name, "--source-ca", &ca].map(str::to_owned);
            run(fixed.into_iter().chain(args.iter().map(|&arg| arg.to_owned())))
        };
        let good = verify(&["--github-owner", "org", "--trust-root", root, "--annotation", "env=prod"]);
        let words = written(&good);
        assert!(good.status.success(), "{words}");
        for word in [&digest.to_string(), "githubAction of org: https://github.com/org/repo/", "logged at 20"] {
            assert!(words.contains(word), "no {word:?}: {words}");
        }
        let json = verify(&["--github-owner", "org", "--trust-root", root, "--output", "json"]);
        let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
        assert_eq!(json["proofs"][0]["repository"], "org/repo");
        for (args, status, word) in [
            (&["--github-owner", "other", "--trust-root", root][..], 1, "one of https://github.com/org/repo/"),
            (&["--github-owner", "org"][..], 1, "--trust-root"),
            (&["--github-owner", "org", "--trust-root", "/nowhere"][..], 64, "--trust-root"),
            (&["--issuer", "https://accounts.example"][..], 64, "--subject"),
        ] {
            let bad = verify(args);
            let words = written(&bad);
            assert_eq!(bad.status.code(), Some(status), "{words}");
            assert!(words.contains(word), "no {word:?}: {words}");
        }
    }
}

#[test]
fn signatures_go_along_to_another_registry() {
    let (first, second, sigstore, folder) = (Registry::tls(), Registry::tls(), Sigstore::new(), Folder::empty());
    let path = |name: &str| folder.path(name).to_str().expect("text").to_owned();
    fs::write(path("trusted_root.json"), sigstore.trusted_root().to_string()).expect("writes");
    let leaf = sigstore.leaf(&Holder::workflow("org/repo"));
    let digest = first.push("policies/a:v1", &Reply::module_bytes("goes along")).0;
    first.sign_in_bundle("policies/a", &digest, &sigstore, &leaf);
    let tool = |registry: &Registry, args: &[&str]| {
        let ca = ["--source-ca".to_owned(), registry.ca_file()];
        let output = run(args.iter().map(|&arg| arg.to_owned()).chain(ca));
        assert!(output.status.success(), "{}", written(&output));
    };
    tool(&first, &["save", &first.module("policies/a:v1"), "--output-file", &path("modules.tar")]);
    // Loading the archive twice is fine.
    for _ in 0..2 {
        tool(&second, &["load", &path("modules.tar"), &format!("{}/mirror", second.host())]);
    }
    let name = second.module("mirror/policies/a:v1");
    tool(&second, &["verify", &name, "--github-owner", "org", "--trust-root", &path("trusted_root.json")]);
}
