//! Revisions that are pinned to a module whose bytes are already on the volume, because of another policy.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_e2e::Installation;
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};

use crate::{Policy, digest, installation, replica, two_modules};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const WASM_LAYER: &str = "application/vnd.wasm.content.layer.v1+wasm";

/// Serves an artifact with one layer at a tag of a repository and at its digest, and returns the digest of its manifest.
pub(crate) fn put(
    installation: &Installation<'_>,
    repository: &str,
    pointer: &str,
    layer: &[u8],
    about: &Value,
) -> String {
    let mut described = json!({ "digest": digest(layer), "size": layer.len() });
    for (key, value) in about.as_object().unwrap() {
        described[key] = value.clone();
    }
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "layers": [described], "annotations": { "name": repository },
        "config": { "mediaType": "application/vnd.wasm.config.v1+json", "digest": digest(b"{}"), "size": 2 },
    });
    let manifest = manifest.to_string().into_bytes();
    let of = digest(&manifest);
    let source = installation.source();
    source.put(&format!("/v2/{repository}/blobs/{}", digest(layer)), layer);
    source.put(&format!("/v2/{repository}/manifests/{of}"), manifest.clone());
    source.put(&format!("/v2/{repository}/manifests/{pointer}"), manifest);
    of
}

/// Signs a manifest like cosign.
fn sign(installation: &Installation<'_>, repository: &str, manifest: &str, key: &KeyPair) {
    let statement = json!({
        "critical": {
            "identity": { "docker-reference": repository }, "image": { "docker-manifest-digest": manifest },
            "type": "cosign container image signature",
        },
        "optional": null,
    });
    let statement = statement.to_string().into_bytes();
    let signature = STANDARD.encode(key.sign(&statement).unwrap());
    let about = json!({
        "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
        "annotations": { "dev.cosignproject.cosign/signature": signature },
    });
    put(installation, repository, &format!("{}.sig", manifest.replace(':', "-")), &statement, &about);
}

/// Rows L21 and L27: no network is needed for bytes on the volume, but the rules of each policy apply.
#[test]
#[ignore = "starts a cluster"]
fn a_module_on_the_volume_is_served_only_to_policies_that_may_have_it() {
    let installation = installation("pinned");
    let key = KeyPair::generate().unwrap();
    let (module, _) = two_modules();
    let wasm = json!({ "mediaType": WASM_LAYER });
    put(&installation, "open", "v1", &module, &wasm);
    let signed = put(&installation, "signed", "v1", &module, &wasm);
    sign(&installation, "signed", &signed, &key);
    let address = |repository: &str| format!("registry://{}/{repository}:v1", installation.source().host());
    let by_us =
        json!({ "signatures": { "allOf": [{ "kind": "pubKey", "owner": "us", "key": key.public_key_pem() }] } });
    let pin = [("pinned-digest", &*digest(&module))];

    let open = Policy::of(&installation, "open");
    open.revise(1, &address("open"), &json!({}), &pin);
    let pod = replica(&installation);
    open.wait_serving(&pod, 1);
    let unsigned = Policy::of(&installation, "unsigned");
    unsigned.revise(1, &address("open"), &by_us, &pin);
    unsigned.wait_failure(&pod, "SignatureInvalid");
    let wanted = Policy::of(&installation, "signed");
    wanted.revise(1, &address("signed"), &by_us, &pin);
    assert_eq!(wanted.wait_serving(&pod, 1), digest(&module));
    assert_eq!(
        unsigned.serving(&pod).map_or(0, |(generation, _)| generation),
        0,
        "signed elsewhere is not signed here"
    );

    // The signatures are on the volume from now on.
    installation.source().close();
    let again = Policy::of(&installation, "again");
    again.revise(1, &address("signed"), &by_us, &pin);
    again.wait_serving(&pod, 1);
    unsigned.revise(2, &address("open"), &by_us, &pin);
    unsigned.wait_failure(&pod, "RegistryUnreachable");
    open.wait_serving(&pod, 1);
}

/// Row Z16: a program that may write a policy's status can pin it to any digest, and the bytes may be on the volume
/// for another policy.
#[test]
#[ignore = "starts a cluster"]
fn fault_z16_a_pin_to_the_module_of_another_policy_is_refused() {
    let installation = installation("z16");
    let (ours, theirs) = two_modules();
    let wasm = json!({ "mediaType": WASM_LAYER });
    let our_manifest = put(&installation, "ours", "v1", &ours, &wasm);
    let their_manifest = put(&installation, "theirs", "v1", &theirs, &wasm);
    let host = installation.source().host();
    let their_pin = [("pinned-digest", &*digest(&theirs))];
    let other = Policy::of(&installation, "theirs");
    other.revise(1, &format!("registry://{host}/theirs@{their_manifest}"), &json!({}), &their_pin);
    let pod = replica(&installation);
    other.wait_serving(&pod, 1);

    let by_tag = Policy::of(&installation, "by-tag");
    by_tag.revise(1, &format!("registry://{host}/ours:v1"), &json!({}), &their_pin);
    let by_digest = Policy::of(&installation, "by-digest");
    by_digest.revise(1, &format!("registry://{host}/ours@{our_manifest}"), &json!({}), &their_pin);
    let by_address = Policy::of(&installation, "by-address");
    by_address.revise(1, &by_address.module("/ours.wasm", &ours), &json!({}), &their_pin);
    for policy in [&by_tag, &by_digest, &by_address] {
        let text = policy.wait_failure(&pod, "DigestMismatch");
        assert!(text.contains(&digest(&theirs)) && text.contains("change spec.module"), "{text}");
        assert_eq!(policy.serving(&pod).map_or(0, |(generation, _)| generation), 0);
    }
    // A moved tag can be pinned to its earlier module, as long as the repository still has it.
    put(&installation, "moved", "v1", &theirs, &wasm);
    put(&installation, "moved", "v1", &ours, &wasm);
    let moved = Policy::of(&installation, "moved");
    moved.revise(1, &format!("registry://{host}/moved:v1"), &json!({}), &their_pin);
    assert_eq!(moved.wait_serving(&pod, 1), digest(&theirs));
    other.wait_serving(&pod, 1);
}
