//! Manifests of artifacts whose modules are on the volume, so that a digest needs no registry. Their signatures are beside them.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portcullis_contract::{Digest, Reason, Tenant, allowance, part};
use portcullis_process::files;
use portcullis_registry::oci::{MAX_MANIFEST, Manifest};
use portcullis_util::lock;

use super::keepers::Keepers;
use super::signed::KeptSignatures;
use super::{BLOCK, Volume};
use crate::claims::Claims;
use crate::volume_error::VolumeError;

/// The most bytes of manifests and signatures that are kept for one module. Anybody may publish any number of manifests for a module that
/// others use, and what belongs to a module that ClusterPolicies use counts for no namespace.
const MOST_OF_MODULE: u64 = 4 << 20;
/// What a file of signatures counts for at least, so that there are at most 64 for one module.
const LEAST_SIGNATURES: u64 = MOST_OF_MODULE / 64;

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

    /// Keeps a manifest beside the module that it names, and signatures of it, for the tenants with these claims. What is kept already stays as
    /// it is. Room is taken before a byte is written.
    ///
    /// # Errors
    /// What the file system says. `VolumeFull` when the tenants may keep no more, on the volume or for this module: the registry is asked
    /// again each time that it is needed.
    pub(crate) fn keep_beside(
        &self,
        manifest: &Manifest,
        module: &Digest,
        signed: Option<&KeptSignatures>,
        claims: &Arc<Claims>,
    ) -> Result<(), VolumeError> {
        // One at a time, so that all count those before.
        let mut keepers = lock(&self.keepers);
        let path = self.oci_path(&manifest.digest, module, "json");
        let mut files = Vec::new();
        if fs::symlink_metadata(&path).is_err() {
            files.push((path, manifest.bytes.clone()));
        }
        files.extend(signed.and_then(|signed| self.new_signatures(&manifest.digest, module, signed)));
        let costs: u64 = files.iter().map(|(path, bytes)| cost(path, bytes.len() as u64)).sum();
        if files.is_empty() {
            return Ok(());
        }
        let kept = self.kept_beside(module, &keepers);
        if costs > allowance_beside(&kept, claims) {
            let kept: u64 = kept.iter().map(|(_, cost)| cost).sum();
            let message = format!(
                "manifests and signatures of the module {module} count for {kept} of {MOST_OF_MODULE} bytes, and the tenants that need \
                 these may have only a part of what is left"
            );
            return Err(VolumeError { reason: Reason::VolumeFull, message });
        }
        let on_disk = |bytes: &[u8]| (bytes.len() as u64).next_multiple_of(BLOCK);
        let reserve = || self.room.reserve(Arc::clone(claims));
        reserve().check(files.iter().map(|(_, bytes)| on_disk(bytes)).sum())?;
        let name_of = |path: &Path| path.file_name().expect("it has a name").to_string_lossy().into_owned();
        let tenants: BTreeSet<Tenant> = claims.iter().map(|(tenant, _)| tenant.clone()).collect();
        keepers.extend(files.iter().map(|(path, _)| (name_of(path), tenants.clone())));
        // Before the files: a file that is not named there would be of an unknown tenant after a restart.
        self.save_keepers(module, &keepers, reserve())?;
        for (path, bytes) in files {
            let mut reservation = reserve();
            reservation.grow_to(on_disk(&bytes))?;
            self.put(&path, &bytes)?;
            reservation.settle(format!("manifests/{}", name_of(&path)), *module, on_disk(&bytes));
        }
        Ok(())
    }

    /// What is kept beside a module: the tenants that need each file, and the bytes that it counts for.
    fn kept_beside(&self, module: &Digest, keepers: &Keepers) -> Vec<(BTreeSet<Tenant>, u64)> {
        let infix = format!("-{}.", module.hex());
        let of = |item: fs::DirEntry| {
            let name = item.file_name().into_string().ok().filter(|name| name.contains(&infix))?;
            let cost = cost(Path::new(&name), item.metadata().ok()?.len());
            Some((keepers.get(&name).cloned().unwrap_or_default(), cost))
        };
        fs::read_dir(self.root.join("manifests")).into_iter().flatten().flatten().filter_map(of).collect()
    }

    /// Removes manifests and signatures of modules that are gone, except for `wanted` modules (in hex), which may be on their way.
    pub(super) fn prune_oci_manifests(&self, wanted: &HashSet<String>) {
        let Ok(items) = fs::read_dir(self.root.join("manifests")) else { return };
        for item in items.flatten() {
            let name = item.file_name();
            let is_ours = |name: &&str| name.ends_with(".json") || name.ends_with(".signatures");
            let stem = name.to_str().filter(is_ours).and_then(|name| name.split('.').next());
            let module = stem.and_then(|stem| stem.split_once('-')).map(|(_, hex)| hex);
            let is_there = |hex: &str| self.root.join("modules").join(format!("{hex}.wasm")).exists();
            let stays = module.is_some_and(|hex| wanted.contains(hex) || is_there(hex));
            if !stays {
                // A file that cannot be removed stays.
                let _ = fs::remove_file(item.path());
            }
        }
        self.prune_keepers(&mut lock(&self.keepers));
    }

    /// The path of a file that belongs to a manifest: the manifest itself (`json`) or its `signatures`.
    pub(super) fn oci_path(&self, manifest: &Digest, module: &Digest, extension: &str) -> PathBuf {
        self.root.join("manifests").join(format!("{}-{}.{extension}", manifest.hex(), module.hex()))
    }
}

/// What a file counts for in the share of its module.
fn cost(path: &Path, bytes: u64) -> u64 {
    if path.extension().is_some_and(|extension| extension == "signatures") {
        bytes.max(LEAST_SIGNATURES)
    } else {
        bytes
    }
}

/// How much more may be kept for a module. ClusterPolicies may have all that is free, and a namespace as much as it leaves to others: the
/// manifests and signatures of one are not in the way of those of another, so none has to give way. That a policy served before does not count here, as
/// its owner has chosen what the signatures are.
fn allowance_beside(kept: &[(BTreeSet<Tenant>, u64)], claims: &Claims) -> u64 {
    let used = kept.iter().map(|(_, cost)| cost).sum();
    let own = |tenant: &Tenant| kept.iter().map(|(keepers, cost)| part(keepers, tenant, *cost)).sum();
    let one = |tenant: &Tenant| allowance(MOST_OF_MODULE, used, (*tenant != Tenant::Cluster).then(|| own(tenant)));
    claims.iter().map(|(tenant, _)| one(tenant)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::claims::Need;
    use crate::volume::Keep;

    fn claims(tenant: &Tenant) -> Arc<Claims> {
        let mut claims = Claims::default();
        claims.add(tenant, Need::New);
        Arc::new(claims)
    }

    fn padded(number: usize, bytes: usize) -> Manifest {
        let padding = BTreeMap::from([("padding".to_owned(), format!("{number}{}", "x".repeat(bytes)))]);
        Manifest::of_module(b"module", padding)
    }

    #[test]
    fn z08_manifests_without_end_for_one_module_leave_room_for_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = Volume::open(folder.path(), "00000000000000aa").expect("opens").expect("is free");
        let (module, other) = (Digest::of(b"module"), Digest::of(b"other"));
        let padded = |number: usize| padded(number, 1 << 20);
        let cluster = claims(&Tenant::Cluster);
        let keep = |manifest: &Manifest, module: &Digest| volume.keep_beside(manifest, module, None, &cluster);
        let kept = (0..100).filter(|number| keep(&padded(*number), &module).is_ok()).count();
        assert_eq!(kept, 3, "a little more than a mebibyte each");
        assert_eq!(keep(&padded(100), &module).expect_err("is full").reason, Reason::VolumeFull);
        keep(&padded(0), &other).expect("another module has its own room");
        keep(&Manifest::of_module(b"module", BTreeMap::new()), &module).expect("a small one still fits");
    }

    #[test]
    fn z08_manifests_of_many_modules_take_room_before_they_are_written() {
        const MIB: u64 = 1 << 20;
        let folder = tempfile::tempdir().expect("a folder");
        let volume = Volume::open(folder.path(), "00000000000000aa").expect("opens").expect("is free");
        let volume = volume.with_room(Some(40 * MIB)).expect("counts");
        let greedy = claims(&Tenant::Namespace("greedy".into()));
        let keep = |number: usize, claims: &Arc<Claims>| {
            let module = Digest::of(&number.to_be_bytes());
            volume.keep_beside(&padded(number, 1 << 20), &module, None, claims)
        };
        let kept = (0..100).filter(|number| keep(*number, &greedy).is_ok()).count();
        assert!((17..20).contains(&kept), "as much as it leaves to others, in manifests of a mebibyte: {kept}");
        assert_eq!(keep(100, &greedy).expect_err("is full").reason, Reason::VolumeFull);
        let files = fs::read_dir(folder.path().join("manifests")).expect("lists").count();
        assert_eq!(files, kept, "what is refused is not written");
        keep(101, &claims(&Tenant::Namespace("small".into()))).expect("there is room for others");
        let reservation = volume.room().reserve(claims(&Tenant::Cluster));
        let free = || (0..40).take_while(|mib| reservation.check(mib * MIB).is_ok()).count();
        let settled = free();
        volume.measure().expect("counts");
        assert!(settled.abs_diff(free()) <= 1, "what was settled is what is on the volume: {settled} and {}", free());
    }

    #[test]
    fn l27_a_manifest_stays_as_long_as_its_module() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = Volume::open(folder.path(), "00000000000000aa").expect("opens").expect("is free");
        let (manifest, module) = (Manifest::of_module(b"module", BTreeMap::new()), Digest::of(b"module"));
        fs::write(volume.module(&module), "module").expect("writes");
        volume.keep_beside(&manifest, &module, None, &claims(&Tenant::Cluster)).expect("keeps");
        assert_eq!(volume.oci_manifest(&manifest.digest).as_ref(), Some(&manifest));
        assert_eq!(volume.oci_manifest(&module), None);
        let keepers = || fs::read_dir(folder.path().join("keepers")).expect("lists").count();
        volume.prune(&Keep { digests: HashSet::from([module]), ..Keep::default() }).expect("prunes");
        assert_eq!((volume.oci_manifest(&manifest.digest), keepers()), (Some(manifest.clone()), 1));
        volume.prune(&Keep::default()).expect("prunes");
        assert_eq!((volume.oci_manifest(&manifest.digest), keepers()), (None, 0));
    }
}
