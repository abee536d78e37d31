//! Making room: files that no policy names are removed, except for the newest few.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use portcullis_contract::{Digest, Tenant};
use portcullis_process::files::FileError;

use super::{ARTIFACTS, MODULES, Owners, Volume};
use crate::claims::Claims;
use crate::volume_error::VolumeError;

/// What stays on the volume.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keep {
    /// Modules that a policy names or named last, with their artifacts for this engine.
    pub digests: HashSet<Digest>,
    /// Artifact files that the plan knows, whichever engine they are for.
    pub files: HashSet<String>,
    /// Those of `digests` that no policy can serve from now, with the artifact's file if there is one. They go if room is needed.
    pub spare: HashMap<Digest, Option<String>>,
    /// The tenants that own each module.
    pub owners: Owners,
    /// How many of all other files stay, newest first.
    pub newest: usize,
}

impl Keep {
    /// What must stay even if room is needed.
    pub(crate) fn least(mut self) -> Self {
        self.newest = 0;
        self.without_spare(|_| true)
    }

    /// What must stay even if tenants that have had their share need room. What policies of others could roll back to is among it, but nothing
    /// that no policy names.
    pub(crate) fn least_of(mut self, tenants: &Claims) -> Self {
        self.newest = 0;
        let owners = self.owners.clone();
        let are_among = |owners: &BTreeSet<Tenant>| owners.iter().all(|owner| tenants.has(owner));
        self.without_spare(|digest| owners.get(digest).is_some_and(are_among))
    }

    fn without_spare(mut self, goes: impl Fn(&Digest) -> bool) -> Self {
        for (digest, file) in std::mem::take(&mut self.spare).into_iter().filter(|(digest, _)| goes(digest)) {
            self.digests.remove(&digest);
            if let Some(file) = file {
                self.files.remove(&file);
            }
        }
        self
    }
}

impl Volume {
    /// Removes artifacts and modules that need not stay, and returns the names of their files.
    ///
    /// # Errors
    /// When the volume cannot be listed, and nothing was removed. A file that cannot be removed stays.
    pub(crate) fn prune(&self, keep: &Keep) -> Result<Vec<String>, VolumeError> {
        let stems: HashSet<String> =
            keep.digests.iter().map(|digest| format!("{}-{}", digest.hex(), self.key)).collect();
        let hexes: HashSet<String> = keep.digests.iter().map(Digest::hex).collect();
        let artifacts = others(&self.root.join(ARTIFACTS), "cwasm", |stem| {
            stems.contains(stem) || keep.files.contains(&format!("{stem}.cwasm"))
        })?;
        let modules = others(&self.root.join(MODULES), "wasm", |stem| hexes.contains(stem))?;
        let mut removed = Vec::new();
        for old in [artifacts, modules] {
            for path in old.into_iter().skip(keep.newest) {
                if fs::remove_file(&path).is_ok() {
                    removed.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
                }
                // Only artifacts have a record.
                let _ = fs::remove_file(path.with_extension("json"));
            }
        }
        self.prune_oci_manifests(&hexes);
        if let Err(error) = self.measure() {
            // What was removed must be told in any case. The next pruning counts again.
            tracing::debug!(%error, "failed to count the files on the volume");
        }
        Ok(removed)
    }
}

/// The files of a folder that need not stay, newest first.
fn others(folder: &Path, extension: &str, stays: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, VolumeError> {
    let mut others = Vec::new();
    for item in fs::read_dir(folder).map_err(FileError::new("list", folder))? {
        let path = item.map_err(FileError::new("list", folder))?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if path.extension().is_none_or(|found| found != extension) || stays(stem) {
            continue;
        }
        let modified = fs::symlink_metadata(&path).and_then(|metadata| metadata.modified());
        others.push((modified.unwrap_or(SystemTime::UNIX_EPOCH), path));
    }
    others.sort_by(|a, b| b.cmp(a));
    Ok(others.into_iter().map(|(_, path)| path).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn v18_referenced_and_newest_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = Volume::open(folder.path(), "00000000000000aa").expect("opens").expect("is free");
        let start = SystemTime::UNIX_EPOCH;
        let digests: Vec<Digest> = (0..40_u8).map(|n| Digest::of(&[n])).collect();
        for (age, digest) in digests.iter().enumerate() {
            let hex = digest.hex();
            for name in [
                format!("artifacts/{hex}-00000000000000aa.cwasm"),
                format!("artifacts/{hex}-00000000000000aa.json"),
                format!("modules/{hex}.wasm"),
            ] {
                let path = folder.path().join(name);
                fs::write(&path, "x").expect("writes");
                let time = start + Duration::from_secs(age as u64);
                fs::File::options().write(true).open(&path).and_then(|file| file.set_modified(time)).expect("dates");
            }
        }
        let keep = Keep {
            digests: HashSet::from([digests[0]]),
            files: HashSet::from([format!("{}-00000000000000aa.cwasm", digests[1].hex())]),
            newest: 8,
            ..Keep::default()
        };
        let removed = volume.prune(&keep).expect("prunes");
        assert_eq!(removed.len(), 40 - 2 - 8 + 40 - 1 - 8);
        assert!(removed.contains(&format!("{}-00000000000000aa.cwasm", digests[5].hex())), "{removed:?}");
        let left = |name: &str| fs::read_dir(folder.path().join(name)).expect("lists").count();
        assert_eq!(left("modules"), 1 + 8);
        assert_eq!(left("artifacts"), 2 * (1 + 1 + 8));
        assert!(volume.module(&digests[39]).exists() && !volume.module(&digests[5]).exists());
        let file = format!("{}-00000000000000aa.cwasm", digests[1].hex());
        let spare = HashMap::from([(digests[0], None), (digests[1], Some(file))]);
        volume.prune(&Keep { spare, ..keep }.least()).expect("prunes");
        assert_eq!((left("modules"), left("artifacts")), (0, 0), "where room is needed");
    }
}
