//! Puts signatures by a certificate into a real registry, as cosign does.

use std::collections::BTreeMap;

use portcullis_contract::Digest;
use portcullis_registry::oci::{MANIFEST_TYPE, Manifest};
use serde_json::{Value, json};

use crate::Registry;
use crate::sigstore::{BUNDLE, Leaf, SIGN, Sigstore};

impl Registry {
    /// Signs the manifest `signed` of a repository as `cosign sign` did before its version 3: with a statement under a tag that
    /// is derived from its digest, and certificate and log entry in annotations.
    ///
    /// # Panics
    /// When the registry does not accept it.
    pub fn sign_with_certificate(&self, repository: &str, signed: &Digest, sigstore: &Sigstore, leaf: &Leaf) {
        let statement = json!({
            "critical": {
                "identity": {"docker-reference": format!("{}/{repository}", self.host())},
                "image": {"docker-manifest-digest": signed},
                "type": "cosign container image signature",
            },
            "optional": {"env": "prod"},
        });
        let statement = statement.to_string().into_bytes();
        let manifest = changed(&statement, |manifest| {
            manifest["layers"][0]["mediaType"] = "application/vnd.dev.cosign.simplesigning.v1+json".into();
            manifest["layers"][0]["annotations"] = json!(sigstore.annotations(leaf, &statement));
        });
        self.push_artifact(&format!("{repository}:sha256-{}.sig", signed.hex()), &manifest, &statement);
    }

    /// Signs the manifest `signed` as `cosign sign` does since its version 3: with a bundle in an artifact of its own,
    /// and a list of such artifacts under a tag, for a registry that keeps no list itself.
    ///
    /// # Panics
    /// When the registry does not accept it.
    pub fn sign_in_bundle(&self, repository: &str, signed: &Digest, sigstore: &Sigstore, leaf: &Leaf) {
        let bundle = sigstore.bundle(leaf, signed, SIGN, json!({"env": "prod"})).to_string().into_bytes();
        let manifest = changed(&bundle, |manifest| {
            manifest["artifactType"] = BUNDLE.into();
            manifest["config"]["mediaType"] = "application/vnd.oci.empty.v1+json".into();
            manifest["layers"][0]["mediaType"] = BUNDLE.into();
            manifest["subject"] = json!({"mediaType": MANIFEST_TYPE, "digest": signed, "size": 1});
        });
        let size = manifest.bytes.len();
        let digest = self.push_artifact(&format!("{repository}:bundle"), &manifest, &bundle);
        self.push_index(repository, &format!("sha256-{}", signed.hex()), &digest, size);
    }
}

/// The manifest of an artifact with one layer, after a change.
fn changed(layer: &[u8], change: impl FnOnce(&mut Value)) -> Manifest {
    let manifest = Manifest::of_module(layer, BTreeMap::new());
    let mut manifest: Value = serde_json::from_slice(&manifest.bytes).expect("JSON");
    change(&mut manifest);
    Manifest::parse(manifest.to_string().into_bytes()).expect("a manifest")
}
