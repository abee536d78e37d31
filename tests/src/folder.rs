//! A folder of policies, and the places where a pod on it keeps the rest.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{CANARY, Identity, Policy};

/// Temporary folders of one test: `policies/` for manifests and modules, and beside it `volume/`, `private/`, `status/` and
/// `tls/` of the pod. A second pod on the same folder finds what the first left.
pub struct Folder {
    root: tempfile::TempDir,
}

impl Folder {
    /// With no policy.
    ///
    /// # Panics
    /// When there is no room for temporary files.
    pub fn empty() -> Self {
        let root = tempfile::Builder::new().prefix("portcullis-").tempdir().expect("a temporary folder");
        // Programs of other users must get through to their own part.
        open_to_all(root.path());
        let folder = Self { root };
        for name in ["policies", "policies/modules", "volume", "private", "status", "tls"] {
            fs::create_dir_all(folder.path(name)).expect("a folder");
        }
        folder
    }

    /// With the policy that [`crate::Canary`] asks.
    pub fn with_canary() -> Self {
        let folder = Self::empty();
        folder.put(&Policy::cluster(CANARY).guest("counter").on("configmaps"));
        folder
    }

    /// A path below the root.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Where manifests are.
    pub fn policies(&self) -> PathBuf {
        self.path("policies")
    }

    /// The shared volume, unless the pod is given another.
    pub fn volume(&self) -> PathBuf {
        self.path("volume")
    }

    /// Writes a policy's module where it is another than before, then its manifest to `<name>.yaml`, each by rename.
    pub fn put(&self, policy: &Policy) {
        if let Some((file, bytes)) = policy.module_file() {
            let path = self.policies().join(file);
            if fs::read(&path).ok().as_deref() != Some(bytes) {
                self.write(&format!("policies/{file}"), bytes);
            }
        }
        let text = serde_yaml_ng::to_string(policy.json()).expect("a manifest is YAML");
        self.write(&format!("policies/{}", manifest_file(policy)), text.as_bytes());
    }

    /// Removes a policy's manifest.
    ///
    /// # Panics
    /// When it is not there.
    pub fn remove(&self, policy: &Policy) {
        fs::remove_file(self.policies().join(manifest_file(policy))).expect("the manifest is there");
    }

    /// Writes any file below the root by rename, folders included.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        write_whole(&self.path(name), bytes.as_ref());
    }

    /// Gives the evaluator a certificate.
    pub fn identify(&self, identity: &Identity) {
        identity.write_to(&self.path("tls"));
    }
}

fn manifest_file(policy: &Policy) -> String {
    format!("{}.yaml", policy.id().replace('/', "-"))
}

/// Lets every user read a folder.
pub(crate) fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
}

/// Writes a file by rename.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let folder = path.parent().expect("a file is in a folder");
    fs::create_dir_all(folder).expect("a folder");
    let temporary = folder.join(format!(".{}.test-tmp", NEXT.fetch_add(1, Ordering::Relaxed)));
    fs::write(&temporary, bytes)
        .and_then(|()| fs::rename(&temporary, path))
        .unwrap_or_else(|error| panic!("failed to write {}: {error}", path.display()));
}
