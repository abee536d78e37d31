//! The shared volume, as its one writer sees it.
//!
//! ```text
//! manifest.json                     what the evaluator follows, replaced by rename
//! artifacts/<digest>-<key>.cwasm    precompiled modules, with a .json beside each
//! modules/<digest>.wasm             what was fetched, so that nothing is fetched twice
//! manifests/<digest>-<module>.json  manifests of OCI artifacts, so that a digest needs no registry
//!                     ….signatures  their signatures, where some were required: one file for each repository
//! keepers/<module>.json             the tenants that these are kept for
//! tmp/                              what is being written
//! lock                              held by the one loader; holds the newest manifest's number
//! ```

mod artifact;
mod keepers;
mod lock;
mod oci;
mod prune;
mod room;
mod signed;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use portcullis_contract::{Digest, MANIFEST_FILE, MANIFEST_MAX_BYTES, Manifest, Reason};
use portcullis_process::{failpoint, files};
use portcullis_util::lock;

pub(crate) use self::artifact::{ArtifactRecord, Compiled};
use self::keepers::Keepers;
use self::lock::Lock;
pub(crate) use self::prune::Keep;
pub(crate) use self::room::{Owners, Reservation, Room};
pub(crate) use self::signed::{KeptSignatures, MAX_SIGNATURES, SignedManifest};
use crate::volume_error::VolumeError;

/// The folders of artifacts and of modules.
const ARTIFACTS: &str = "artifacts";
const MODULES: &str = "modules";
/// The folder that tells for which tenants manifests and signatures are kept.
const KEEPERS: &str = "keepers";
/// Size of a block of the volume's file system, in bytes. Small files take a whole one.
const BLOCK: u64 = 4096;

/// The volume. All its functions block.
pub(crate) struct Volume {
    root: PathBuf,
    key: String,
    lock: Lock,
    /// Names temporary files.
    counter: AtomicU64,
    /// The manifest's number and file metadata when it was written here, so that a change by another program is noticed.
    written: Mutex<Option<Written>>,
    room: Arc<Room>,
    /// The tenants that the manifests of artifacts and their signatures are kept for.
    keepers: Mutex<Keepers>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Written {
    number: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// A temporary file. It is removed when dropped, unless it was published under its final name.
pub(crate) struct Temporary {
    path: PathBuf,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Once it is published, there is no file under this name.
        let _ = fs::remove_file(&self.path);
    }
}

impl Temporary {
    /// Opens it for writing, and empties it.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn open(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(&self.path)
    }

    fn size(&self) -> u64 {
        fs::symlink_metadata(&self.path).map_or(0, |metadata| metadata.len())
    }

    /// Renames it to its final name, and replaces whatever has that name.
    fn publish(self, path: &Path) -> Result<(), VolumeError> {
        if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
            fs::remove_dir_all(path).map_err(files::FileError::new("remove", path))?;
        }
        fs::rename(&self.path, path).map_err(files::FileError::new("rename to", path))?;
        Ok(())
    }
}

impl Volume {
    /// Makes the folders and takes the lock. Does not wait: `None` if another loader has the volume.
    ///
    /// # Errors
    /// When the volume cannot be written.
    pub(crate) fn open(root: &Path, key: &str) -> Result<Option<Self>, VolumeError> {
        for folder in ["", ARTIFACTS, MODULES, "manifests", "tmp"].map(|name| root.join(name)) {
            fs::create_dir_all(&folder).map_err(files::FileError::new("make the folder", &folder))?;
        }
        let Some(lock) = Lock::take(&root.join("lock"))? else { return Ok(None) };
        let volume = Self {
            root: root.to_owned(),
            key: key.to_owned(),
            lock,
            counter: AtomicU64::new(0),
            written: Mutex::new(None),
            room: Room::new(None),
            keepers: Mutex::new(keepers::read(root)),
        };
        volume.remove_temporaries()?;
        Ok(Some(volume))
    }

    /// Limits the room for modules, artifacts and the files that belong to them to `size` bytes; without `size` it is unlimited.
    ///
    /// # Errors
    /// When the files on the volume cannot be counted.
    pub(crate) fn with_room(mut self, size: Option<u64>) -> Result<Self, VolumeError> {
        self.room = Room::new(size);
        self.measure()?;
        Ok(self)
    }

    /// The room, and how much of it each tenant has.
    pub(crate) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Counts the files on the volume.
    fn measure(&self) -> Result<(), VolumeError> {
        self.room.measure(|| {
            let mut files = HashMap::new();
            for folder in [ARTIFACTS, MODULES, "manifests", KEEPERS] {
                let path = self.root.join(folder);
                if folder == KEEPERS && !path.exists() {
                    // It is made with its first file.
                    continue;
                }
                for item in fs::read_dir(&path).map_err(files::FileError::new("list", &path))?.flatten() {
                    // A file that was removed meanwhile takes no room.
                    let Ok(metadata) = item.metadata() else { continue };
                    let name = item.file_name().to_string_lossy().into_owned();
                    let bytes = metadata.len().max(metadata.blocks().saturating_mul(512));
                    files.insert(format!("{folder}/{name}"), (module_of(folder, &name), bytes));
                }
            }
            Ok(files)
        })
    }

    /// Removes what an earlier loader left half-written.
    fn remove_temporaries(&self) -> Result<(), VolumeError> {
        for folder in [self.root.clone(), self.root.join(ARTIFACTS), self.root.join(MODULES), self.root.join("tmp")] {
            let all = folder.ends_with("tmp");
            for item in fs::read_dir(&folder).map_err(files::FileError::new("list", &folder))?.flatten() {
                if (all || item.file_name().as_encoded_bytes().starts_with(b".")) && item.path().is_file() {
                    fs::remove_file(item.path()).map_err(files::FileError::new("remove", &item.path()))?;
                }
            }
        }
        Ok(())
    }

    /// A new temporary file. It does not exist until it is opened.
    pub(crate) fn temporary(&self) -> Temporary {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        Temporary { path: self.root.join("tmp").join(format!("{}-{number}", std::process::id())) }
    }

    /// Writes a whole file, by rename.
    fn put(&self, path: &Path, bytes: &[u8]) -> Result<(), VolumeError> {
        let temporary = self.temporary();
        let write = temporary.open().and_then(|mut file| file.write_all(bytes));
        write.map_err(files::FileError::new("write", path))?;
        temporary.publish(path)
    }

    /// The path of a module.
    pub(crate) fn module(&self, digest: &Digest) -> PathBuf {
        self.root.join(module_name(digest))
    }

    /// Keeps a module that has been fetched and hashed.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn keep_module(
        &self,
        temporary: Temporary,
        digest: &Digest,
        reservation: Reservation,
    ) -> Result<(), VolumeError> {
        let bytes = temporary.size();
        temporary.publish(&self.module(digest))?;
        reservation.settle(module_name(digest), *digest, bytes);
        Ok(())
    }

    /// Removes a module.
    pub(crate) fn remove_module(&self, digest: &Digest) {
        let path = self.module(digest);
        // A file that cannot be removed stays, and its bytes go on counting.
        if fs::remove_file(&path).is_ok() {
            self.room.forget(&module_name(digest));
        }
    }

    /// Whether a module of this size seems to be on the volume. Its bytes are not checked.
    pub(crate) fn seems_to_have_module(&self, digest: &Digest, size: u64) -> bool {
        fs::symlink_metadata(self.module(digest)).is_ok_and(|metadata| metadata.is_file() && metadata.len() == size)
    }

    /// Whether a module is on the volume and its bytes match its digest. What has its name and cannot be it is removed.
    ///
    /// # Errors
    /// When it cannot be read. It may be good, so it stays.
    pub(crate) fn has_module(&self, digest: &Digest, limit: u64) -> Result<bool, VolumeError> {
        let path = self.module(digest);
        match files::read_regular(&path, limit) {
            Ok(bytes) if Digest::of(&bytes) == *digest => return Ok(true),
            Ok(_) => {}
            Err(error) => match fs::symlink_metadata(&path) {
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(false),
                Ok(metadata) if !metadata.is_file() || metadata.len() > limit => {}
                _ => return Err(error.into()),
            },
        }
        self.remove_module(digest);
        Ok(false)
    }

    /// The manifest on the volume; `None` if there is none, or it cannot be used.
    pub(crate) fn manifest(&self) -> Option<Manifest> {
        let path = self.root.join(MANIFEST_FILE);
        if fs::symlink_metadata(&path).is_err() {
            return None;
        }
        let bytes = files::read_regular(&path, MANIFEST_MAX_BYTES)
            .inspect_err(|error| tracing::warn!(%error, "the manifest on the volume cannot be read; writing a new one"))
            .ok()?;
        Manifest::decode(&bytes)
            .inspect_err(|error| tracing::warn!(%error, "the manifest on the volume cannot be used; writing a new one"))
            .ok()
    }

    /// Whether the manifest on the volume is no longer the one that was written here last.
    pub(crate) fn is_manifest_foreign(&self) -> bool {
        let written = *lock(&self.written);
        written.is_some_and(|written| examine(&self.root.join(MANIFEST_FILE), written.number) != Some(written))
    }

    /// Publishes a manifest under a number above all earlier ones, and gives that number.
    ///
    /// # Errors
    /// The file system's error, or that the manifest is too large for evaluators. The old manifest is then still there.
    pub(crate) fn publish(&self, mut manifest: Manifest) -> Result<u64, VolumeError> {
        let on_volume =
            if self.is_manifest_foreign() { self.manifest().map_or(0, |manifest| manifest.number) } else { 0 };
        let number = self.lock.number().max(on_volume).saturating_add(1);
        manifest.number = number;
        let bytes = manifest.encode().map_err(|error| VolumeError {
            reason: Reason::VolumeReadOnly,
            message: format!("failed to encode the manifest: {error}"),
        })?;
        if bytes.len() as u64 > MANIFEST_MAX_BYTES {
            // An evaluator that starts could not read it and would serve nothing. With the old manifest it serves what served before.
            return Err(VolumeError {
                reason: Reason::ManifestInvalid,
                message: format!(
                    "the manifest of all policies would have {} bytes, and {MANIFEST_MAX_BYTES} are the limit: there are too many \
                     policies, or their settings are too large",
                    bytes.len()
                ),
            });
        }
        // The number is written first: a loader that dies in between leaves a gap, but never uses a number twice.
        self.lock.note(number)?;
        let path = self.root.join(MANIFEST_FILE);
        let temporary = self.temporary();
        let write = temporary.open().and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()));
        write.map_err(files::FileError::new("write", &path))?;
        // Examined under its temporary name: another program may replace the file under the final name at any time.
        let written = examine(&temporary.path, number);
        failpoint::hit("loader.before_manifest_rename");
        temporary.publish(&path)?;
        *lock(&self.written) = written;
        Ok(number)
    }

    /// Makes numbers continue above `number`, which an evaluator has seen. True if the number is newer than all that this volume knows.
    pub(crate) fn count_from(&self, number: u64) -> bool {
        // A number in the upper half of the range is never reached by counting, so it is a mistake.
        let is_newer = number > self.lock.number() && number < u64::MAX / 2;
        if is_newer {
            self.lock.raise(number);
        }
        is_newer
    }

    /// Makes numbers continue above the manifest of an earlier loader, or above the clock (in seconds) if that manifest and its number are lost.
    pub(crate) fn number_from(&self, manifest: Option<&Manifest>) {
        let lost = manifest.is_none() && fs::symlink_metadata(self.root.join(MANIFEST_FILE)).is_ok();
        let clock = u64::try_from(Timestamp::now().as_second()).unwrap_or(1);
        let floor = match manifest {
            Some(manifest) => manifest.number,
            None if lost && self.lock.number() == 0 => clock,
            None => 0,
        };
        self.lock.raise(floor);
        *lock(&self.written) = manifest.and_then(|manifest| examine(&self.root.join(MANIFEST_FILE), manifest.number));
    }
}

fn module_name(digest: &Digest) -> String {
    format!("{MODULES}/{}.wasm", digest.hex())
}

/// The module that a file belongs to: `<module>.wasm`, `<module>-<key>.cwasm`, `<manifest>-<module>.json`,
/// `<manifest>-<module>.<digest>.signatures`, and the keepers' `<module>.json`.
fn module_of(folder: &str, name: &str) -> Option<Digest> {
    let stem = name.split('.').next()?;
    let (first, second) = stem.split_once('-').unwrap_or((stem, ""));
    let hex = if folder == "manifests" { second } else { first };
    format!("sha256:{hex}").parse().ok()
}

fn examine(path: &Path, number: u64) -> Option<Written> {
    let metadata = fs::symlink_metadata(path).ok()?;
    let modified = (metadata.mtime(), metadata.mtime_nsec());
    Some(Written { number, inode: metadata.ino(), size: metadata.size(), modified })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use portcullis_contract::Tenant;

    use super::*;
    use crate::claims::{Claims, Need};

    fn empty() -> Manifest {
        Manifest { number: 0, policies: Vec::new(), groups: Vec::new() }
    }

    fn open(root: &Path) -> Volume {
        let volume = Volume::open(root, "0123456789abcdef").expect("opens").expect("is free");
        volume.number_from(volume.manifest().as_ref());
        volume
    }

    #[test]
    fn v21_one_loader_at_a_time_and_numbers_only_grow() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = open(folder.path());
        assert!(Volume::open(folder.path(), "k").expect("opens").is_none());
        assert_eq!(first.publish(empty()), Ok(1));
        assert_eq!(first.publish(empty()), Ok(2));
        drop(first);
        assert_eq!(open(folder.path()).publish(empty()), Ok(3));
    }

    #[test]
    fn z07_what_no_evaluator_would_read_does_not_replace_what_one_can() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = open(folder.path());
        assert_eq!(volume.publish(empty()), Ok(1));
        let entry = serde_json::json!({
            "id": "cluster/a", "uid": "u", "generation": 1, "mode": "protect", "failurePolicy": "Fail", "candidates": [],
            "failures": [], "source": "x".repeat(usize::try_from(MANIFEST_MAX_BYTES).expect("it fits")),
        });
        let entry = serde_json::from_str(&entry.to_string()).expect("an entry");
        let error = volume.publish(Manifest { policies: vec![entry], ..empty() }).expect_err("refused");
        assert_eq!(error.reason, Reason::ManifestInvalid);
        assert_eq!(volume.manifest().map(|manifest| manifest.number), Some(1));
        assert!(!volume.is_manifest_foreign());
    }

    #[test]
    fn v05_numbers_grow_past_a_manifest_that_was_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = open(folder.path());
        for _ in 0..5 {
            volume.publish(empty()).expect("publishes");
        }
        drop(volume);
        fs::write(folder.path().join(MANIFEST_FILE), "torn").expect("writes");
        assert_eq!(open(folder.path()).publish(empty()), Ok(6));
        fs::write(folder.path().join(MANIFEST_FILE), "torn").expect("writes");
        fs::write(folder.path().join("lock"), "").expect("writes");
        assert!(open(folder.path()).publish(empty()).expect("publishes") > 1_000_000);
    }

    #[test]
    fn v22_numbers_go_on_where_an_evaluator_saw_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = open(folder.path());
        assert!(volume.count_from(70));
        assert_eq!(volume.publish(empty()), Ok(71));
        assert!(!volume.count_from(71) && !volume.count_from(u64::MAX));
    }

    #[test]
    fn a_manifest_of_another_hand_is_noticed_and_outnumbered() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = open(folder.path());
        volume.publish(empty()).expect("publishes");
        assert!(!volume.is_manifest_foreign());
        let bytes = Manifest { number: 70, ..empty() }.encode().expect("encodes");
        files::publish(&folder.path().join(MANIFEST_FILE), &bytes).expect("writes");
        assert!(volume.is_manifest_foreign());
        assert_eq!(volume.publish(empty()), Ok(71));
        fs::remove_file(folder.path().join(MANIFEST_FILE)).expect("removes");
        assert!(volume.is_manifest_foreign());
        fs::create_dir(folder.path().join(MANIFEST_FILE)).expect("makes");
        assert_eq!(volume.publish(empty()), Ok(72));
    }

    #[test]
    fn only_what_cannot_be_a_module_is_removed_for_it() {
        const LIMIT: u64 = 10;
        let folder = tempfile::tempdir().expect("a folder");
        let volume = open(folder.path()).with_room(Some(LIMIT)).expect("counts");
        let digest = Digest::of(b"module");
        let path = volume.module(&digest);
        let mut claims = Claims::default();
        claims.add(&Tenant::Cluster, Need::New);
        let claims = Arc::new(claims);
        let room = || volume.room().reserve(Arc::clone(&claims));
        let keep = |bytes: &[u8]| {
            let temporary = volume.temporary();
            temporary.open().expect("opens").write_all(bytes).expect("writes");
            volume.keep_module(temporary, &digest, room()).expect("keeps");
            assert_eq!(room().check(LIMIT).map_err(|error| error.reason), Err(Reason::VolumeFull));
        };
        let has = || volume.has_module(&digest, LIMIT);
        assert_eq!(has(), Ok(false), "there is none");
        keep(b"module");
        assert_eq!(has(), Ok(true));

        // It cannot be read, and is still there when it can be.
        let (modules, aside) = (folder.path().join(MODULES), folder.path().join("aside"));
        fs::rename(&modules, &aside).expect("renames");
        fs::write(&modules, "").expect("writes");
        let error = has().expect_err("it is not known");
        assert!(error.reason == Reason::VolumeReadOnly && error.message.contains("Not a directory"), "{error}");
        fs::remove_file(&modules).expect("removes");
        fs::rename(&aside, &modules).expect("renames");
        assert_eq!(has(), Ok(true));
        if !rustix::process::geteuid().is_root() {
            let allow = |mode: u32| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("changes");
            allow(0);
            assert_eq!(has().map_err(|error| error.reason), Err(Reason::VolumeReadOnly));
            allow(0o600);
            assert_eq!(has(), Ok(true));
        }

        for bytes in [&b"molude"[..], b"a long module"] {
            keep(bytes);
            assert_eq!((has(), path.exists()), (Ok(false), false), "it is something else");
            assert_eq!(room().check(LIMIT), Ok(()), "it takes no room any longer");
        }
        std::os::unix::fs::symlink(&aside, &path).expect("links");
        assert_eq!((has(), path.is_symlink()), (Ok(false), false));
    }

    #[test]
    fn v03_what_was_half_written_is_removed_at_the_start() {
        let folder = tempfile::tempdir().expect("a folder");
        drop(open(folder.path()));
        let left = [folder.path().join("tmp/1-1"), folder.path().join(".manifest.json.1.tmp")];
        for path in &left {
            fs::write(path, "half").expect("writes");
        }
        drop(open(folder.path()));
        assert!(left.iter().all(|path| !path.exists()));
    }
}
