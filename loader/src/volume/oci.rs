//! Manifests of artifacts whose modules are on the volume, so that a digest needs no registry.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use portcullis_contract::Digest;
use portcullis_process::files;
use portcullis_registry::oci::{MAX_MANIFEST, Manifest};

use super::Volume;
use crate::volume_error::VolumeError;

impl Volume {
    /// The manifest with this digest, if it is kept and its bytes match.
    pub(crate) fn oci_manifest(&self, digest: &Digest) -> Option<Manifest> {
        let prefix = format!("{}-", digest.hex());
        let is_it = |name: &str| name.starts_with(&prefix) && name.ends_with(".json");
        let named = |item: &fs::DirEntry| item.file_name().to_str().is_some_and(is_it);
        let path = fs::read_dir(self.root.join("manifests")).ok()?.flatten().find(named)?.path();
        let bytes = files::read_regular(&path, MAX_MANIFEST).ok()?;
        if Digest::of(&bytes) == *digest { Manifest::parse(bytes).ok() } else { None }
    }

    /// Keeps a manifest beside the module that it names.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn keep_oci_manifest(&self, manifest: &Manifest, module: &Digest) -> Result<(), VolumeError> {
        let path = self.oci_path(&manifest.digest, module, "json");
        if path.exists() {
            return Ok(());
        }
        self.put(&path, &manifest.bytes)
    }

    /// Removes manifests and signatures of modules that are gone, except for `wanted` modules (in hex), which may be on their way.
    pub(super) fn prune_oci_manifests(&self, wanted: &HashSet<String>) {
        let Ok(items) = fs::read_dir(self.root.join("manifests")) else { return };
        for item in items.flatten() {
            let name = item.file_name();
            let stem = name.to_str().and_then(|name| name.strip_suffix(".json").or(name.strip_suffix(".signatures")));
            let module = stem.and_then(|stem| stem.split_once('-')).map(|(_, hex)| hex);
            let is_there = |hex: &str| self.root.join("modules").join(format!("{hex}.wasm")).exists();
            let stays = module.is_some_and(|hex| wanted.contains(hex) || is_there(hex));
            if !stays {
                // A file that cannot be removed stays.
                let _ = fs::remove_file(item.path());
            }
        }
    }

    /// The path of a file that belongs to a manifest: the manifest itself (`json`) or its `signatures`.
    pub(super) fn oci_path(&self, manifest: &Digest, module: &Digest, extension: &str) -> PathBuf {
        self.root.join("manifests").join(format!("{}-{}.{extension}", manifest.hex(), module.hex()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::volume::Keep;

    #[test]
    fn l27_a_manifest_stays_as_long_as_its_module() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = Volume::open(folder.path(), "00000000000000aa").expect("opens").expect("is free");
        let (manifest, module) = (Manifest::of_module(b"module", BTreeMap::new()), Digest::of(b"module"));
        fs::write(volume.module(&module), "module").expect("writes");
        volume.keep_oci_manifest(&manifest, &module).expect("keeps");
        assert_eq!(volume.oci_manifest(&manifest.digest).as_ref(), Some(&manifest));
        assert_eq!(volume.oci_manifest(&module), None);
        volume.prune(&Keep::default()).expect("prunes");
        assert_eq!(volume.oci_manifest(&manifest.digest), None);
    }
}
