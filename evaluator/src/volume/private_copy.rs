//! Copies of artifacts that no other user can write, checked as they are made.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};

use portcullis_contract::{Artifact, Digest, Hasher, Tenant};
use portcullis_process::files::{self, FileError};

use crate::volume::artifact_error::ArtifactError;
#[cfg(test)]
use crate::volume::private_room::tests::RoomThatWaits;
use crate::volume::private_room::{PrivateRoom, Requester};

/// The folder of artifacts in the volume.
const ARTIFACTS: &str = "artifacts";
/// How many bytes are read at once.
const CHUNK: usize = 256 << 10;

/// A folder with a copy for each artifact in use, named by its digest.
pub(crate) struct PrivateCopies {
    volume: PathBuf,
    folder: PathBuf,
    room: PrivateRoom,
    #[cfg(test)]
    tries: AtomicU64,
}

/// Makes the folder of private copies, for this process's user only. To be called before the process is confined.
///
/// # Errors
/// When it cannot be made, is not a folder, or belongs to another user.
pub(crate) fn prepare_private_dir(path: &Path) -> Result<(), FileError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(FileError::new("make the folder", path))?;
    let metadata = fs::symlink_metadata(path).map_err(FileError::new("examine", path))?;
    let refuse = |text: &str| Err(FileError::new("use the folder", path)(io::Error::other(text.to_owned())));
    if !metadata.is_dir() {
        return refuse("it is not a folder");
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return refuse("it belongs to another user, who could exchange code that runs here");
    }
    // The mode is set by descriptor, which a confined process may still do.
    let protect = |folder: File| folder.set_permissions(Permissions::from_mode(0o700));
    File::open(path).and_then(protect).map_err(FileError::new("protect", path))
}

impl PrivateCopies {
    /// The copies in `folder` of the artifacts in `volume`, in at most `size` bytes. Copies that an earlier process did not end are removed.
    ///
    /// # Errors
    /// When the folder cannot be made or listed.
    pub(crate) fn new(volume: &Path, folder: &Path, size: Option<u64>) -> Result<Self, FileError> {
        prepare_private_dir(folder)?;
        let there = fs::read_dir(folder).map_err(FileError::new("list", folder))?.flatten();
        // What cannot be removed goes on to take its room.
        let stays = |entry: &fs::DirEntry| !is_unfinished(&entry.file_name()) || fs::remove_file(entry.path()).is_err();
        let room = PrivateRoom::new(size, there.filter(stays).filter_map(|entry| known(&entry)));
        Ok(Self {
            volume: volume.to_owned(),
            folder: folder.to_owned(),
            room,
            #[cfg(test)]
            tries: AtomicU64::new(0),
        })
    }

    /// The copy of an artifact, open for reading. Its bytes have been hashed in this process.
    ///
    /// # Errors
    /// When the artifact is not there or not what the manifest promises, or the copy cannot be written or has no room.
    pub(crate) fn get(&self, artifact: &Artifact, requester: Requester<'_>) -> Result<File, ArtifactError> {
        let earlier = self.earlier(artifact.sha256);
        if earlier.is_none() {
            self.room.give_back(&artifact.sha256);
        }
        let full = |why| ArtifactError::NoRoom { file: artifact.file.clone(), bytes: artifact.size, why };
        self.room.take(artifact.sha256, artifact.size, requester).map_err(full)?;
        match earlier {
            Some(copy) => Ok(copy),
            None => self.copy(artifact).inspect_err(|_| self.room.give_back(&artifact.sha256)),
        }
    }

    /// The files of the folder by the digests in their names, and the digests of copies that take room; none for files that are no copies.
    pub(crate) fn files(&self) -> HashMap<Option<Digest>, Vec<PathBuf>> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return HashMap::new() };
        let mut files: HashMap<_, Vec<_>> =
            self.room.digests().into_iter().map(|digest| (Some(digest), Vec::new())).collect();
        for entry in entries.flatten() {
            files.entry(digest(&entry.file_name())).or_default().push(entry.path());
        }
        files
    }

    /// Removes the copy of an artifact, which nobody may use or make meanwhile, and these files. A file that cannot be removed now goes on
    /// to take its room, and is tried again the next time.
    pub(crate) fn remove(&self, digest: Option<Digest>, files: &[PathBuf]) {
        let copy = digest.map(|digest| self.path(digest));
        let mut are_gone = true;
        for file in files.iter().chain(&copy) {
            let removed = fs::remove_file(file);
            are_gone &= removed.is_ok() || removed.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        }
        if let Some(digest) = digest.filter(|_| are_gone) {
            self.room.give_back(&digest);
        }
    }

    /// Notes whose policies name the artifacts: their copies count for these tenants.
    pub(crate) fn set_owners(&self, owners: &HashMap<Digest, BTreeSet<Tenant>>) {
        self.room.set_owners(owners);
    }

    /// Where the copy of an artifact is.
    pub(crate) fn path(&self, sha256: Digest) -> PathBuf {
        self.folder.join(sha256.hex())
    }

    /// The copy of an earlier start, if its bytes are still right.
    fn earlier(&self, sha256: Digest) -> Option<File> {
        let path = self.path(sha256);
        let mut file = files::open_regular(&path).ok()?;
        let mut hasher = Hasher::default();
        let is_ours = file.metadata().is_ok_and(|metadata| metadata.uid() == rustix::process::geteuid().as_raw());
        let is_read = pump(&mut file, u64::MAX, |chunk| {
            hasher.update(chunk);
            Ok(())
        });
        if is_ours && is_read.is_ok() && hasher.finish() == sha256 {
            return Some(file);
        }
        // The file is the rest of a write that did not end; the copy is made again.
        let _ = fs::remove_file(&path);
        None
    }

    /// Copies the artifact from the volume and hashes the bytes as they pass. Nobody else copies it meanwhile.
    fn copy(&self, artifact: &Artifact) -> Result<File, ArtifactError> {
        let from = self.volume.join(ARTIFACTS).join(&artifact.file);
        let mut source = files::open_regular(&from).map_err(|error| match error.source.kind() {
            io::ErrorKind::NotFound => ArtifactError::Missing { file: artifact.file.clone() },
            _ => ArtifactError::Unreadable(error),
        })?;
        #[cfg(test)]
        self.tries.fetch_add(1, Ordering::Relaxed);
        let path = self.path(artifact.sha256);
        let temporary = self.folder.join(format!(".{}", artifact.sha256.hex()));
        // An earlier try may have failed to remove its file.
        let _ = fs::remove_file(&temporary);
        let result = self.copy_to(artifact, &mut source, &from, &temporary).and_then(|()| {
            fs::rename(&temporary, &path).map_err(|error| self.copy_error(artifact, error))?;
            // The copy is opened again for reading only, so that no handle is left that could change the code.
            files::open_regular(&path).map_err(ArtifactError::Copy)
        });
        if result.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        result
    }

    fn copy_to(
        &self,
        artifact: &Artifact,
        source: &mut File,
        from: &Path,
        temporary: &Path,
    ) -> Result<(), ArtifactError> {
        let mut copy = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(temporary)
            .map_err(|error| self.copy_error(artifact, error))?;
        let mut hasher = Hasher::default();
        let mut written = Ok(());
        // One byte more than promised is enough to see that the file is too long.
        let length = pump(source, artifact.size.saturating_add(1), |chunk| {
            hasher.update(chunk);
            written = copy.write_all(chunk);
            if written.is_ok() { Ok(()) } else { Err(io::Error::other("the copy cannot be written")) }
        });
        written.map_err(|error| self.copy_error(artifact, error))?;
        let length = length.map_err(|error| ArtifactError::Unreadable(FileError::new("read", from)(error)))?;
        if length != artifact.size {
            return Err(ArtifactError::Length { file: artifact.file.clone(), expected: artifact.size });
        }
        let found = hasher.finish();
        if found != artifact.sha256 {
            return Err(ArtifactError::Corrupt { file: artifact.file.clone(), expected: artifact.sha256, found });
        }
        Ok(())
    }

    fn copy_error(&self, artifact: &Artifact, error: io::Error) -> ArtifactError {
        ArtifactError::Copy(FileError::new("write", &self.path(artifact.sha256))(error))
    }
}

/// The digest and the size of a file in the folder; none if it is not a copy.
fn known(entry: &fs::DirEntry) -> Option<(Digest, u64)> {
    Some((digest(&entry.file_name())?, entry.metadata().ok()?.len()))
}

/// Whether a file in the folder has the name of a copy that is being made.
fn is_unfinished(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".") && digest(name).is_some()
}

/// The digest in the name of a copy, or of a file that becomes one; none in other names.
fn digest(name: &OsStr) -> Option<Digest> {
    format!("sha256:{}", name.to_str()?.trim_start_matches('.').split('.').next()?).parse().ok()
}

/// Passes the first `limit` bytes of a file to `take` in pieces, and returns their number.
fn pump(file: &mut File, limit: u64, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<u64> {
    let mut file = file.take(limit);
    let mut buffer = vec![0; CHUNK];
    let mut length = 0;
    loop {
        let n = match file.read(&mut buffer) {
            Ok(0) => return Ok(length),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        take(&buffer[..n])?;
        length += u64::try_from(n).unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
impl PrivateCopies {
    /// Copies wait for room until what this returns is dropped.
    pub(crate) fn room_that_waits(&self) -> RoomThatWaits<'_> {
        self.room.that_waits()
    }

    /// How many copies were begun.
    pub(crate) fn tries(&self) -> u64 {
        self.tries.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn room_comes_back_only_with_the_file() {
        let (volume, folder) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let (stays, goes) = (Digest::of(b"stays"), Digest::of(b"goes"));
        // A folder cannot be removed like a file.
        fs::create_dir(folder.path().join(stays.hex())).expect("a folder");
        fs::write(folder.path().join(goes.hex()), b"goes").expect("writes");
        let copies = PrivateCopies::new(volume.path(), folder.path(), None).expect("opens");
        fs::write(folder.path().join(format!(".{}", goes.hex())), b"go").expect("writes");
        let files = copies.files();
        assert_eq!((files.len(), files[&Some(stays)].len(), files[&Some(goes)].len()), (2, 1, 2));
        for (digest, files) in files {
            copies.remove(digest, &files);
        }
        assert_eq!(copies.room.digests(), [stays]);
        assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 1);
    }

    /// An artifact on a new volume, and an empty folder for private copies.
    fn artifact() -> (tempfile::TempDir, tempfile::TempDir, Artifact) {
        let (volume, folder) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        fs::create_dir(volume.path().join(ARTIFACTS)).expect("a folder");
        fs::write(volume.path().join(ARTIFACTS).join("a"), b"code").expect("writes");
        (volume, folder, Artifact { file: "a".into(), sha256: Digest::of(b"code"), size: 4 })
    }

    #[test]
    fn what_a_killed_process_was_writing_is_gone_with_the_next_start() {
        let (volume, folder, artifact) = artifact();
        let requester = Requester { tenant: &Tenant::Cluster, enforced: false };
        for left in ["", ".0", ".7"] {
            fs::write(folder.path().join(format!(".{}{left}", artifact.sha256.hex())), b"co").expect("writes");
        }
        let copies = PrivateCopies::new(volume.path(), folder.path(), None).expect("opens");
        assert_eq!(copies.room.digests(), []);
        assert!(copies.get(&artifact, requester).is_ok());
        let files: Vec<_> = fs::read_dir(folder.path()).expect("lists").flatten().map(|file| file.path()).collect();
        assert_eq!(files, [copies.path(artifact.sha256)]);
    }

    #[test]
    fn a_spoilt_earlier_copy_is_not_used() {
        let (volume, folder, artifact) = artifact();
        let copies = PrivateCopies::new(volume.path(), folder.path(), None).expect("opens");
        let requester = Requester { tenant: &Tenant::Cluster, enforced: false };
        assert!(copies.get(&artifact, requester).is_ok());
        assert!(copies.earlier(artifact.sha256).is_some());
        let copy = copies.path(artifact.sha256);
        assert_eq!(fs::metadata(&copy).expect("is there").permissions().mode() & 0o777, 0o400);
        fs::remove_file(&copy).expect("removes");
        fs::write(&copy, b"cods").expect("writes");
        assert!(copies.earlier(artifact.sha256).is_none());
        assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 0);
    }

    #[test]
    fn the_folder_is_ours_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("sets");
        prepare_private_dir(folder.path()).expect("prepares");
        let mode = fs::metadata(folder.path()).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
