//! Section 4: modules from a real registry that must have a keyless signature.

use std::fs;
use std::path::PathBuf;

use portcullis_contract::{Digest, Reason};
use portcullis_tests::sigstore::{GITHUB, Holder, Sigstore};
use portcullis_tests::{CANARY, Folder, Pod, PodSetup, Policy, Registry, Reply};
use serde_json::{Value, json};

fn trust_root(folder: &Folder, sigstore: &Sigstore) -> PathBuf {
    folder.write("trusted_root.json", sigstore.trusted_root().to_string());
    folder.path("trusted_root.json")
}

fn publish(registry: &Registry, repository: &str) -> Digest {
    registry.push(&format!("{repository}:v1"), &Reply::module_bytes(repository)).0
}

fn policy(registry: &Registry, name: &str, repository: &str, signer: Value) -> Policy {
    let module = registry.module(&format!("{repository}:v1"));
    Policy::cluster(name).module(&module).spec("signatures", json!({"allOf": [signer]}))
}

fn action(owner: &str) -> Value {
    json!({"kind": "githubAction", "owner": owner, "repo": "repo"})
}

fn pod_with(folder: &Folder, registry: &Registry) -> PodSetup {
    Pod::on(folder).loader("--source-ca", registry.ca_file()).loader("--retry-outside", "10m")
}

#[test]
fn fault_l21_identity_of_another_or_proved_by_nobody() {
    let (registry, ours, theirs) = (Registry::tls(), Sigstore::new(), Sigstore::new());
    let folder = Folder::with_canary();
    let root = trust_root(&folder, &ours);
    let leaf = ours.leaf(&Holder::workflow("org/repo"));
    let digest = publish(&registry, "older");
    registry.sign_with_certificate("older", &digest, &ours, &leaf);
    let digest = publish(&registry, "newer");
    registry.sign_in_bundle("newer", &digest, &ours, &leaf);
    // Complete signatures with certificates of an authority that is not in the trust root.
    let digest = publish(&registry, "untrusted");
    registry.sign_with_certificate("untrusted", &digest, &theirs, &theirs.leaf(&Holder::workflow("org/repo")));
    let digest = publish(&registry, "untrusted-newer");
    registry.sign_in_bundle("untrusted-newer", &digest, &theirs, &theirs.leaf(&Holder::workflow("org/repo")));
    publish(&registry, "unsigned");
    let below = |prefix: &str| json!({"kind": "genericIssuer", "issuer": GITHUB, "subject": {"urlPrefix": prefix}});
    for policy in [
        policy(&registry, "older", "older", action("org")),
        policy(&registry, "newer", "newer", action("org")),
        policy(&registry, "prefix", "older", below("https://github.com/org")),
        policy(&registry, "other", "older", action("other")),
        policy(&registry, "other-newer", "newer", action("other")),
        policy(&registry, "part-of-a-name", "older", below("https://github.com/or")),
        policy(&registry, "untrusted", "untrusted", action("org")),
        policy(&registry, "untrusted-newer", "untrusted-newer", action("org")),
        policy(&registry, "unsigned", "unsigned", action("org")),
    ] {
        folder.put(&policy);
    }
    let pod = pod_with(&folder, &registry).loader("--trust-root", root.display()).start();
    for id in ["cluster/older", "cluster/newer", "cluster/prefix"] {
        pod.assert_recovered(id, 1);
    }
    for (id, words) in [
        ("cluster/other", "one of https://github.com/org/repo/"),
        ("cluster/other-newer", "one of https://github.com/org/repo/"),
        ("cluster/part-of-a-name", "one of https://github.com/org/repo/"),
        ("cluster/untrusted", "trust root"),
        ("cluster/untrusted-newer", "trust root"),
        ("cluster/unsigned", "no signatures found"),
    ] {
        let failure = pod.assert_unserved(id, Reason::SignatureInvalid);
        assert!(failure.message.contains(words), "{id}: {}", failure.message);
    }
    // Each module has bytes of its own, and artifacts that no policy names any longer stay for a while.
    let volume = pod.volume();
    let mut good = [CANARY, "older", "newer"].map(|name| volume.module(&format!("cluster/{name}")).artifact.file);
    good.sort();
    assert_eq!(volume.artifacts(), good, "nothing else was compiled");
}

#[test]
fn fault_l22_trust_root_that_is_no_help() {
    let (registry, ours, theirs) = (Registry::tls(), Sigstore::new(), Sigstore::new());
    let folder = Folder::with_canary();
    let root = trust_root(&folder, &theirs);
    let digest = publish(&registry, "signed");
    registry.sign_with_certificate("signed", &digest, &ours, &ours.leaf(&Holder::workflow("org/repo")));
    folder.put(&policy(&registry, "remote", "signed", action("org")));
    let pod = pod_with(&folder, &registry).loader("--trust-root", root.display()).start();
    pod.assert_unserved("cluster/remote", Reason::SignatureInvalid);
    // With a trust root that cannot be read, nothing is verified.
    fs::write(&root, "{}").expect("writes");
    let failure = pod.assert_unserved("cluster/remote", Reason::SignatureUnavailable);
    assert!(failure.message.contains("trusted_root.json"), "{}", failure.message);
    // The right one takes effect at once.
    trust_root(&folder, &ours);
    pod.assert_recovered("cluster/remote", 1);
}
