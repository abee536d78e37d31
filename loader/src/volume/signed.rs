//! The signatures of an OCI artifact, kept beside its module: for the next policy no network is needed, and other loaders get them along with
//! the module.

use std::collections::BTreeSet;
use std::fs;

use portcullis_contract::Digest;
use portcullis_process::files;
use portcullis_registry::oci::Manifest;
use portcullis_registry::signature::Material;
use serde::{Deserialize, Serialize};

use super::Volume;
use crate::volume_error::VolumeError;

/// Largest file of signatures, and most bytes of signatures that are given to another loader at once.
pub(crate) const MAX_SIGNATURES: u64 = 16 << 20;
/// Most manifests with signatures that are used for one module.
const MOST: usize = 16;

/// Most repositories that are remembered for one artifact.
const MOST_PLACES: usize = 64;

/// What is kept of the signatures of a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptSignatures {
    /// The repositories that the artifact was found signed in.
    pub places: BTreeSet<String>,
    /// The signatures. They are not trusted because they are kept: the signers are checked again each time.
    pub signatures: Material,
}

/// A manifest and its signatures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SignedManifest {
    /// The manifest's text, whose digest is what was signed.
    manifest: String,
    /// Its signatures.
    #[serde(flatten)]
    pub kept: KeptSignatures,
}

impl SignedManifest {
    /// The manifest, if it was found signed in the repository `place` and its module has this digest.
    pub(crate) fn manifest_of(&self, module: &Digest, place: &str) -> Option<Manifest> {
        if !self.kept.places.contains(place) {
            return None;
        }
        let manifest = Manifest::parse(self.manifest.clone().into_bytes()).ok()?;
        let is_it = manifest.module().is_ok_and(|layer| layer.digest == *module);
        is_it.then_some(manifest)
    }
}

impl Volume {
    /// The signatures that are kept for a manifest.
    pub(crate) fn signatures(&self, manifest: &Digest, module: &Digest) -> Option<KeptSignatures> {
        let bytes = files::read_regular(&self.oci_path(manifest, module, "signatures"), MAX_SIGNATURES).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Keeps the signatures of a manifest that was found in the repository `place`. They replace those that were kept before.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn keep_signatures(
        &self,
        manifest: &Digest,
        module: &Digest,
        place: String,
        signatures: Material,
    ) -> Result<(), VolumeError> {
        let path = self.oci_path(manifest, module, "signatures");
        let mut places = self.signatures(manifest, module).unwrap_or_default().places;
        if places.len() < MOST_PLACES {
            places.insert(place);
        }
        let text = serde_json::to_vec(&KeptSignatures { places, signatures }).expect("has text keys only");
        self.put(&path, &text)
    }

    /// The manifests that name a module and whose signatures are kept; if there are many, only some of them.
    pub(crate) fn signed_manifests(&self, module: &Digest) -> Vec<SignedManifest> {
        let suffix = format!("-{}.signatures", module.hex());
        let Ok(items) = fs::read_dir(self.root.join("manifests")) else { return Vec::new() };
        let (mut found, mut size) = (Vec::new(), 0);
        for item in items.flatten() {
            let name = item.file_name();
            let hex = name.to_str().and_then(|name| name.strip_suffix(&suffix));
            let Some(digest) = hex.and_then(|hex| format!("sha256:{hex}").parse::<Digest>().ok()) else { continue };
            let manifest = self.oci_manifest(&digest).and_then(|manifest| String::from_utf8(manifest.bytes).ok());
            let Some((manifest, kept)) = manifest.zip(self.signatures(&digest, module)) else { continue };
            // A text may take up to twice its length in JSON.
            size += 2 * manifest.len() as u64 + 2 * item.metadata().map_or(0, |metadata| metadata.len());
            if found.len() == MOST || size > MAX_SIGNATURES {
                break;
            }
            found.push(SignedManifest { manifest, kept });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;
    use crate::volume::Keep;

    #[test]
    fn signatures_stay_as_long_as_their_module_or_the_wish_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = Volume::open(folder.path(), "00000000000000aa").expect("opens").expect("is free");
        let (manifest, module) = (Manifest::of_module(b"module", BTreeMap::new()), Digest::of(b"module"));
        let unsigned = Manifest::of_module(b"module", [("name".to_owned(), "other".to_owned())].into());
        volume.keep_oci_manifest(&manifest, &module).expect("keeps");
        volume.keep_oci_manifest(&unsigned, &module).expect("keeps");
        for place in ["registry://a/b", "registry://mirror/b"] {
            volume.keep_signatures(&manifest.digest, &module, place.to_owned(), Material::default()).expect("keeps");
        }
        let kept = volume.signed_manifests(&module);
        for place in ["registry://a/b", "registry://mirror/b"] {
            let read: Vec<_> = kept.iter().map(|signed| signed.manifest_of(&module, place)).collect();
            assert_eq!(read, [Some(manifest.clone())], "only the signed manifest is found");
        }
        assert_eq!(kept[0].manifest_of(&Digest::of(b"other"), "registry://a/b"), None);
        assert_eq!(kept[0].manifest_of(&module, "registry://a/c"), None, "nobody signed it there");
        let text = serde_json::to_string(&kept).expect("serialises");
        assert_eq!(serde_json::from_str::<Vec<SignedManifest>>(&text).expect("parses"), kept);

        let wanted = Keep { digests: HashSet::from([module]), ..Keep::default() };
        volume.prune(&wanted).expect("prunes");
        assert_eq!(volume.signed_manifests(&module).len(), 1, "the module may be on its way");
        volume.prune(&Keep::default()).expect("prunes");
        assert!(volume.signed_manifests(&module).is_empty() && volume.signatures(&manifest.digest, &module).is_none());
    }
}
