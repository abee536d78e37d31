//! The tenants that manifests of artifacts and their signatures are kept for, in a file for each module: without it they would be of an unknown
//! tenant after a restart, and a namespace could take as much room again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use portcullis_contract::{Digest, Tenant};
use portcullis_process::files;

use super::{BLOCK, KEEPERS, Reservation, Volume};
use crate::volume_error::VolumeError;

/// Largest file that is read, in bytes. It has one name for each file beside a module, whose sizes are limited.
const MAX_FILE: u64 = 16 << 20;

/// The tenants by the name of the file that is kept for them. Files of an earlier release are not among them.
pub(super) type Keepers = HashMap<String, BTreeSet<Tenant>>;

/// The content of a file: the names of namespaces, and `null` for ClusterPolicies.
type Saved = BTreeMap<String, BTreeSet<Option<Arc<str>>>>;

/// What was saved on the volume. A file that cannot be read counts for nothing.
pub(super) fn read(root: &Path) -> Keepers {
    let Ok(items) = fs::read_dir(root.join(KEEPERS)) else { return Keepers::new() };
    let parse = |item: fs::DirEntry| {
        let bytes = files::read_regular(&item.path(), MAX_FILE).ok()?;
        serde_json::from_slice::<Saved>(&bytes).ok()
    };
    let tenant = |name: Option<Arc<str>>| name.map_or(Tenant::Cluster, Tenant::Namespace);
    let saved = items.flatten().filter_map(parse).flatten();
    saved.map(|(file, tenants)| (file, tenants.into_iter().map(tenant).collect())).collect()
}

/// The module, in hex, that a file beside it belongs to: `<manifest>-<module>.…`.
fn module_of(file: &str) -> Option<&str> {
    file.split('.').next()?.split_once('-').map(|(_, hex)| hex)
}

impl Volume {
    /// Saves the tenants of all files beside a module.
    ///
    /// # Errors
    /// What the file system says, or that there is no room.
    pub(super) fn save_keepers(
        &self,
        module: &Digest,
        keepers: &Keepers,
        mut reservation: Reservation,
    ) -> Result<(), VolumeError> {
        let hex = module.hex();
        let of_module = keepers.iter().filter(|(file, _)| module_of(file) == Some(&hex));
        let name = |tenant: &Tenant| match tenant {
            Tenant::Cluster => None,
            Tenant::Namespace(name) => Some(Arc::clone(name)),
        };
        let saved: Saved =
            of_module.map(|(file, tenants)| (file.clone(), tenants.iter().map(name).collect())).collect();
        let bytes = serde_json::to_vec(&saved).expect("has text keys only");
        let on_disk = (bytes.len() as u64).next_multiple_of(BLOCK);
        reservation.grow_to(on_disk)?;
        let folder = self.root.join(KEEPERS);
        fs::create_dir_all(&folder).map_err(files::FileError::new("make the folder", &folder))?;
        self.put(&folder.join(format!("{hex}.json")), &bytes)?;
        reservation.settle(format!("{KEEPERS}/{hex}.json"), *module, on_disk);
        Ok(())
    }

    /// Forgets the files that are gone, and removes what was saved for modules that have none.
    pub(super) fn prune_keepers(&self, keepers: &mut Keepers) {
        keepers.retain(|name, _| fs::symlink_metadata(self.root.join("manifests").join(name)).is_ok());
        let modules: HashSet<&str> = keepers.keys().filter_map(|file| module_of(file)).collect();
        for item in fs::read_dir(self.root.join(KEEPERS)).into_iter().flatten().flatten() {
            let name = item.file_name();
            let hex = name.to_str().and_then(|name| name.split('.').next());
            if hex.is_none_or(|hex| !modules.contains(hex)) {
                // A file that cannot be removed stays.
                let _ = fs::remove_file(item.path());
            }
        }
    }
}
