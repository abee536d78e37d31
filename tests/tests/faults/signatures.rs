//! Section 4: modules that must be signed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_contract::{Digest, Reason};
use portcullis_tests::{Folder, Pod, PodSetup, Policy, Reply, Source, guest};
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const WASM: &str = "application/vnd.wasm.content.layer.v1+wasm";

fn manifest(kind: &str, blob: &[u8], annotations: Value) -> String {
    json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.wasm.config.v1+json", "digest": Digest::of(b"{}"), "size": 2},
        "layers": [{"mediaType": kind, "digest": Digest::of(blob), "size": blob.len(), "annotations": annotations}],
    })
    .to_string()
}

/// Serves a module at `repository:v1` and at its digest, and returns the digest of its manifest.
pub(crate) fn publish(source: &Source, repository: &str) -> Digest {
    let module = guest("always_accept");
    let manifest = manifest(WASM, &module, json!({"name": repository}));
    source.answer(&format!("/v2/{repository}/blobs/{}", Digest::of(&module)), [Reply::ok(module)]);
    let digest = Digest::of(manifest.as_bytes());
    for pointer in ["v1".to_owned(), digest.to_string()] {
        let reply = Reply::ok(manifest.clone()).header("content-type", MANIFEST);
        source.answer(&format!("/v2/{repository}/manifests/{pointer}"), [reply]);
    }
    digest
}

fn signatures_at(repository: &str, digest: &Digest) -> String {
    format!("/v2/{repository}/manifests/sha256-{}.sig", digest.hex())
}

/// Signs like cosign: a statement about the digest `said`, stored beside the manifest `digest`.
pub(crate) fn sign(source: &Source, repository: &str, digest: &Digest, said: &Digest, key: &KeyPair) {
    let statement = json!({
        "critical": {
            "identity": {"docker-reference": repository},
            "image": {"docker-manifest-digest": said},
            "type": "cosign container image signature",
        },
        "optional": null,
    });
    let statement = statement.to_string().into_bytes();
    let signature = STANDARD.encode(key.sign(&statement).expect("signs"));
    let annotations = json!({"dev.cosignproject.cosign/signature": signature});
    let list = manifest("application/vnd.dev.cosign.simplesigning.v1+json", &statement, annotations);
    source.answer(&format!("/v2/{repository}/blobs/{}", Digest::of(&statement)), [Reply::ok(statement)]);
    source.answer(&signatures_at(repository, digest), [Reply::ok(list).header("content-type", MANIFEST)]);
}

fn policy(source: &Source, name: &str, signatures: Value) -> Policy {
    Policy::cluster(name).module(&format!("registry://{}/{name}:v1", source.host())).spec("signatures", signatures)
}

pub(crate) fn by(key: &KeyPair) -> Value {
    json!({"allOf": [{"kind": "pubKey", "owner": "us", "key": key.public_key_pem()}]})
}

fn pod_with(folder: &Folder, source: &Source) -> PodSetup {
    Pod::on(folder).loader("--source-ca", source.ca_file(folder))
}

#[test]
fn fault_l21_signature_absent_by_another_or_over_another_digest() {
    let source = Source::https();
    let (ours, theirs) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let folder = Folder::with_canary();
    let names = ["good", "absent", "theirs", "another"];
    let digests = names.map(|name| publish(&source, name));
    sign(&source, "good", &digests[0], &digests[0], &ours);
    sign(&source, "theirs", &digests[2], &digests[2], &theirs);
    sign(&source, "another", &digests[3], &digests[0], &ours);
    for name in names {
        folder.put(&policy(&source, name, by(&ours)));
    }
    let pod = pod_with(&folder, &source).start();
    // The same bytes are on the volume by now, but policies whose module is not signed are still refused.
    pod.assert_recovered("cluster/good", 1);
    for name in &names[1..] {
        pod.assert_unserved(&format!("cluster/{name}"), Reason::SignatureInvalid);
    }
    folder.put(&policy(&source, "good", by(&theirs)));
    pod.assert_kept("cluster/good", Reason::SignatureInvalid, 1, |verdict| verdict.allowed);
    sign(&source, "absent", &digests[1], &digests[1], &ours);
    pod.assert_recovered("cluster/absent", 1);
}

/// The installation's own list applies to every policy, and a file cannot be signed.
#[test]
fn fault_l21_signatures_that_the_installation_wants() {
    let source = Source::https();
    let ours = KeyPair::generate().expect("a key");
    let folder = Folder::empty();
    let digests = ["good", "absent"].map(|name| publish(&source, name));
    sign(&source, "good", &digests[0], &digests[0], &ours);
    let mut list = by(&ours);
    list["apiVersion"] = "v1".into();
    folder.write("verification.yml", list.to_string());
    for name in ["good", "absent"] {
        folder.put(&Policy::cluster(name).module(&format!("registry://{}/{name}:v1", source.host())));
    }
    folder.put(&Policy::cluster("file").denying("never"));
    let setup = pod_with(&folder, &source).without_canary("its module is a file, which nobody can sign");
    let pod = setup.loader("--verification", folder.path("verification.yml").display()).start();
    pod.assert_recovered("cluster/good", 1);
    pod.assert_unserved("cluster/absent", Reason::SignatureInvalid);
    pod.assert_unserved("cluster/file", Reason::SignatureInvalid);
    let good = pod.volume().module("cluster/good").artifact.file;
    assert_eq!(pod.volume().artifacts(), [good], "the file was not compiled");
}

/// A loader starts with a list that it cannot read, and loads nothing meanwhile.
#[test]
fn a_list_of_signers_that_is_broken_at_the_start_counts_once_it_is_right() {
    let source = Source::https();
    let ours = KeyPair::generate().expect("a key");
    let folder = Folder::empty();
    let digests = ["good", "absent"].map(|name| publish(&source, name));
    sign(&source, "good", &digests[0], &digests[0], &ours);
    folder.write("verification.yml", "allOf: [");
    for name in ["good", "absent"] {
        folder.put(&Policy::cluster(name).module(&format!("registry://{}/{name}:v1", source.host())));
    }
    let setup = pod_with(&folder, &source).without_canary("its module is a file, which nobody can sign");
    let setup = setup.loader("--retry-initial", "10m").loader("--retry-cap", "10m");
    let pod = setup.loader("--verification", folder.path("verification.yml").display()).start();
    for name in ["good", "absent"] {
        let failure = pod.assert_unserved(&format!("cluster/{name}"), Reason::SignatureUnavailable);
        assert!(failure.message.contains("verification.yml"), "{}", failure.message);
    }
    folder.write("verification.yml", by(&ours).to_string());
    pod.assert_recovered("cluster/good", 1);
    pod.assert_unserved("cluster/absent", Reason::SignatureInvalid);
}

#[test]
fn fault_l22_signature_that_cannot_be_checked() {
    let source = Source::https();
    let ours = KeyPair::generate().expect("a key");
    let folder = Folder::with_canary();
    let digests = ["away", "keyless"].map(|name| publish(&source, name));
    source.answer(&signatures_at("away", &digests[0]), [Reply::status(503)]);
    sign(&source, "keyless", &digests[1], &digests[1], &ours);
    folder.put(&policy(&source, "away", by(&ours)));
    // Without a trust root, certificates cannot be checked.
    folder.put(&policy(&source, "keyless", json!({"allOf": [{"kind": "githubAction", "owner": "us"}]})));
    let pod = pod_with(&folder, &source).start();
    for name in ["away", "keyless"] {
        pod.assert_unserved(&format!("cluster/{name}"), Reason::SignatureUnavailable);
    }
    sign(&source, "away", &digests[0], &digests[0], &ours);
    pod.assert_recovered("cluster/away", 1);
}
