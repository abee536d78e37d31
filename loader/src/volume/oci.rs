//! Manifests of artifacts whose modules are on the volume, so that a digest needs no registry.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use portcullis_contract::{Digest, Reason};
use portcullis_process::files;
use portcullis_registry::oci::{MAX_MANIFEST, Manifest};

use super::Volume;
use crate::volume_error::VolumeError;

/// The most bytes of manifests and signatures that are kept for one module. Anybody may publish any number of manifests for a module that
/// others use, and what belongs to a module that ClusterPolicies use counts for no namespace.
const MOST_OF_MODULE: u64 = 4 << 20;

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

    /// Whether so many more bytes may be kept for a module.
    ///
    /// # Errors
    /// `VolumeFull` when they may not: the registry is asked again each time that they are needed.
    pub(crate) fn check_oci_room(&self, module: &Digest, bytes: u64) -> Result<(), VolumeError> {
        let infix = format!("-{}.", module.hex());
        let is_its = |item: &fs::DirEntry| item.file_name().to_str().is_some_and(|name| name.contains(&infix));
        let items = fs::read_dir(self.root.join("manifests")).into_iter().flatten().flatten().filter(is_its);
        let kept: u64 = items.filter_map(|item| item.metadata().ok()).map(|metadata| metadata.len()).sum();
        if kept.saturating_add(bytes) <= MOST_OF_MODULE {
            return Ok(());
        }
        let message =
            format!("{kept} bytes of manifests and signatures are kept for the module {module}, and no more than that");
        Err(VolumeError { reason: Reason::VolumeFull, message })
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
    fn z08_manifests_without_end_for_one_module_leave_room_for_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = Volume::open(folder.path(), "00000000000000aa").expect("opens").expect("is free");
        let (module, other) = (Digest::of(b"module"), Digest::of(b"other"));
        let padded = |number: usize| {
            let padding = BTreeMap::from([("padding".to_owned(), format!("{number}{}", "x".repeat(1 << 20)))]);
            Manifest::of_module(b"module", padding)
        };
        let keep = |manifest: &Manifest, module: &Digest| {
            volume.check_oci_room(module, manifest.bytes.len() as u64)?;
            volume.keep_oci_manifest(manifest, module)
        };
        let kept = (0..100).filter(|number| keep(&padded(*number), &module).is_ok()).count();
        assert_eq!(kept, 3, "a little more than a mebibyte each");
        assert_eq!(keep(&padded(100), &module).expect_err("is full").reason, Reason::VolumeFull);
        keep(&padded(0), &other).expect("another module has its own room");
        keep(&Manifest::of_module(b"module", BTreeMap::new()), &module).expect("a small one still fits");
    }

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
