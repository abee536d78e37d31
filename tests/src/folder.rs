//! A folder of policies, and the other folders of a pod that uses it.

use std::fs;
use std::path::PathBuf;

use crate::files::{open_to_all, write_whole};
use crate::{Identity, Policy};

/// The name of the canary policy; its id is `cluster/canary`.
pub const CANARY: &str = "canary";

/// Temporary folders of one test: `policies/` for manifests and modules, and beside it `volume/`, `private/`, `status/` and
/// `tls/` of the pod. A second pod on the same folder finds the files that the first one left.
pub struct Folder {
    root: tempfile::TempDir,
}

impl Folder {
    /// A folder without policies.
    ///
    /// # Panics
    /// When there is no room for temporary files.
    pub fn empty() -> Self {
        let root = tempfile::Builder::new().prefix("portcullis-").tempdir().expect("a temporary folder");
        // Programs of other users must be able to reach their own part.
        open_to_all(root.path());
        let folder = Self { root };
        for name in ["policies", "policies/modules", "volume", "private", "broker", "status", "tls"] {
            fs::create_dir_all(folder.path(name)).expect("a folder");
        }
        folder
    }

    /// A folder with the policy that [`crate::Canary`] calls. Each pod on it calls the canary, unless its setup gives a
    /// reason not to.
    pub fn with_canary() -> Self {
        let folder = Self::empty();
        folder.put(&Policy::cluster(CANARY).guest("counter").on("configmaps"));
        folder
    }

    /// A path below the root.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The folder of the manifests.
    pub fn policies(&self) -> PathBuf {
        self.path("policies")
    }

    /// The shared volume, unless the pod gets another one.
    pub fn volume(&self) -> PathBuf {
        self.path("volume")
    }

    /// Writes a policy's module if it has changed, then its manifest to `<name>.yaml`, each by rename.
    pub fn put(&self, policy: &Policy) {
        if let Some((file, bytes)) = policy.module_file() {
            let path = self.policies().join(file);
            if fs::read(&path).ok().as_deref() != Some(bytes) {
                self.write(&format!("policies/{file}"), bytes);
            }
        }
        let text = portcullis_yaml::write(policy.json()).expect("a manifest is YAML");
        self.write(&format!("policies/{}", manifest_file(policy)), text.as_bytes());
    }

    /// Whether it has the manifest of a policy.
    pub(crate) fn has(&self, policy: &Policy) -> bool {
        self.policies().join(manifest_file(policy)).is_file()
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
