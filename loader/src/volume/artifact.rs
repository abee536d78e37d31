//! Precompiled modules on the volume, each with a record beside it.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use portcullis_contract::{Artifact, Digest, ExecutionMode, Hasher, NamedModule};
use portcullis_process::{failpoint, files};
use serde::{Deserialize, Serialize};

use super::{ARTIFACTS, Reservation, Temporary, Volume};
use crate::declared::Declared;
use crate::volume_error::VolumeError;

/// Largest record that is read, in bytes.
const MAX_RECORD: u64 = 64 << 10;

/// What is known of an artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArtifactRecord {
    /// Its file.
    pub artifact: Artifact,
    /// The guest ABI.
    pub execution_mode: ExecutionMode,
    /// What the module's metadata declares; `None` for an artifact of an earlier release, which did not record it.
    pub declared: Option<Declared>,
}

/// A compiled module: what a compile child reports about its output, and the content of the record beside an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Compiled {
    /// SHA-256 of the machine code.
    pub sha256: Digest,
    /// Size of the machine code, in bytes.
    pub size: u64,
    /// The guest ABI, from the module's metadata.
    pub execution_mode: ExecutionMode,
    /// What the module's metadata declares; `None` in records of earlier releases.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub declared: Option<Declared>,
}

impl Volume {
    /// The name of a module's artifact for this engine.
    fn artifact_name(&self, digest: &Digest, extension: &str) -> String {
        format!("{}-{}.{extension}", digest.hex(), self.key)
    }

    fn artifact_path(&self, name: &str) -> PathBuf {
        self.root.join(ARTIFACTS).join(name)
    }

    /// The artifact of a module, if it is on the volume and its bytes match its record.
    pub(crate) fn artifact(&self, digest: &Digest) -> Option<ArtifactRecord> {
        let Compiled { sha256, size, execution_mode, declared } = self.compiled(digest)?;
        let file = self.artifact_name(digest, "cwasm");
        let found = hash(files::open_regular(&self.artifact_path(&file)).ok()?, size)?;
        let artifact = Artifact { file, sha256, size };
        (found == sha256).then_some(ArtifactRecord { artifact, execution_mode, declared })
    }

    /// How a module is called, if its artifact has a record for this engine.
    pub(crate) fn execution_mode(&self, digest: &Digest) -> Option<ExecutionMode> {
        Some(self.compiled(digest)?.execution_mode)
    }

    fn compiled(&self, digest: &Digest) -> Option<Compiled> {
        let record = files::read_regular(&self.artifact_path(&self.artifact_name(digest, "json")), MAX_RECORD).ok()?;
        serde_json::from_slice(&record).ok()
    }

    /// The artifact of a module of an earlier manifest, if its file is still there, for this engine. Its bytes are not looked at.
    pub(crate) fn artifact_of(&self, named: &NamedModule<'_>) -> Option<ArtifactRecord> {
        let artifact = named.module.artifact.clone();
        let metadata = std::fs::symlink_metadata(self.artifact_path(&artifact.file)).ok()?;
        let is_it = artifact.file == self.artifact_name(&named.digest, "cwasm")
            && metadata.is_file()
            && metadata.len() == artifact.size;
        let declared = || self.compiled(&named.digest)?.declared;
        is_it.then(|| ArtifactRecord { artifact, execution_mode: named.module.execution_mode, declared: declared() })
    }

    /// Publishes an artifact that a compile child has written and synced.
    ///
    /// # Errors
    /// The file system's error; the artifact is not visible then.
    pub(crate) fn publish_artifact(
        &self,
        temporary: Temporary,
        digest: &Digest,
        compiled: &Compiled,
        reservation: Reservation,
    ) -> Result<ArtifactRecord, VolumeError> {
        failpoint::hit("loader.after_artifact_write");
        let Compiled { sha256, size, execution_mode, .. } = *compiled;
        let declared = compiled.declared.clone();
        let file = self.artifact_name(digest, "cwasm");
        let record = serde_json::to_vec(compiled).expect("has text keys only");
        // The record comes first: a loader that dies in between leaves a record without a matching file, which is ignored.
        files::publish(&self.artifact_path(&self.artifact_name(digest, "json")), &record)?;
        temporary.publish(&self.artifact_path(&file))?;
        reservation.settle(format!("{ARTIFACTS}/{file}"), *digest, size);
        failpoint::hit("loader.after_artifact_rename");
        Ok(ArtifactRecord { artifact: Artifact { file, sha256, size }, execution_mode, declared })
    }
}

/// The digest of a file of exactly `size` bytes.
fn hash(mut file: File, size: u64) -> Option<Digest> {
    if file.metadata().ok()?.len() != size {
        return None;
    }
    let mut hasher = Hasher::default();
    let mut piece = vec![0; 256 << 10];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Some(hasher.finish()),
            Ok(length) => hasher.update(&piece[..length]),
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::sync::Arc;

    use super::*;

    const DIGEST: &[u8] = b"module";

    fn published(folder: &std::path::Path) -> (Volume, ArtifactRecord) {
        let volume = Volume::open(folder, "0123456789abcdef").expect("opens").expect("is free");
        let temporary = volume.temporary();
        temporary.open().expect("opens").write_all(b"code").expect("writes");
        let compiled = Compiled {
            sha256: Digest::of(b"code"),
            size: 4,
            execution_mode: ExecutionMode::KubewardenWapc,
            declared: Some(Declared { has_section: true, ..Declared::default() }),
        };
        let reservation = volume.room().reserve(Arc::default());
        let record =
            volume.publish_artifact(temporary, &Digest::of(DIGEST), &compiled, reservation).expect("publishes");
        (volume, record)
    }

    #[test]
    fn what_is_published_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let (volume, record) = published(folder.path());
        assert_eq!(volume.artifact(&Digest::of(DIGEST)), Some(record));
        assert_eq!(volume.execution_mode(&Digest::of(DIGEST)), Some(ExecutionMode::KubewardenWapc));
        assert_eq!(fs::read_dir(folder.path().join("tmp")).expect("lists").count(), 0);
    }

    #[test]
    fn a_record_of_an_earlier_release_is_read() {
        let text = format!(r#"{{"sha256":"{}","size":4,"executionMode":"wasi"}}"#, Digest::of(b"code"));
        let compiled: Compiled = serde_json::from_str(&text).expect("decodes");
        assert_eq!((compiled.execution_mode, compiled.declared), (ExecutionMode::Wasi, None));
    }

    #[test]
    fn v08_v09_v20_changed_bytes_and_special_files_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let (volume, record) = published(folder.path());
        let path = folder.path().join(ARTIFACTS).join(&record.artifact.file);
        let spoil: [&dyn Fn(); 5] = [
            &|| fs::write(&path, b"cold").expect("writes"),
            &|| fs::write(&path, b"code!").expect("writes"),
            &|| fs::remove_file(&path).expect("removes"),
            &|| fs::create_dir(&path).expect("makes"),
            &|| {
                fs::remove_dir(&path).expect("removes");
                std::os::unix::fs::symlink("/dev/zero", &path).expect("links");
            },
        ];
        for spoil in spoil {
            spoil();
            assert_eq!(volume.artifact(&Digest::of(DIGEST)), None);
        }
    }

    #[test]
    fn v20_a_folder_in_the_place_of_an_artifact_gives_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let (volume, record) = published(folder.path());
        let path = folder.path().join(ARTIFACTS).join(&record.artifact.file);
        fs::remove_file(&path).expect("removes");
        fs::create_dir_all(path.join("x")).expect("makes");
        drop(volume);
        let (volume, _) = published(folder.path());
        assert_eq!(volume.artifact(&Digest::of(DIGEST)), Some(record));
    }
}
