//! From a file of the shared volume to code that may run.
//!
//! An artifact is native code. The volume is somebody else's to write, and a mapped file that changes is changed code or a
//! bus error. So the bytes are hashed while they are copied to a folder that only this process's user can write, and the
//! copy is mapped. A copy that is there from an earlier start is hashed again before it is used.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use portcullis_contract::{Artifact, Digest, Hasher, Reason};
use portcullis_engine::RunningEngine;
use portcullis_process::files::{self, FileError};
use tokio::sync::Semaphore;
use wasmtime::{Engine, Module};

/// The folder of artifacts in the volume.
const FOLDER: &str = "artifacts";
/// Bytes that are read at once.
const CHUNK: usize = 256 << 10;

/// Why an artifact cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArtifactError {
    /// It is not there: the loader is about to make it again.
    #[error("the artifact {file} is not on the volume; the loader makes it again")]
    Missing {
        /// Its name.
        file: String,
    },
    /// It is no regular file or may not be read.
    #[error("{0}; the evaluator's user must be able to read the volume")]
    Unreadable(FileError),
    /// Its bytes are not those that the manifest promises.
    #[error(
        "the artifact {file} has digest {found} and not {expected}, as its manifest says; the loader makes it again"
    )]
    Corrupt {
        /// Its name.
        file: String,
        /// What the manifest says.
        expected: Digest,
        /// What the bytes have.
        found: Digest,
    },
    /// Its size is not the one that the manifest promises.
    #[error("the artifact {file} has not the {expected} bytes that its manifest says; the loader makes it again")]
    Length {
        /// Its name.
        file: String,
        /// What the manifest says.
        expected: u64,
    },
    /// It was made for another engine, other settings of it, or another processor.
    #[error("the artifact {file} was made for another engine: {cause}; the loader makes it again")]
    Incompatible {
        /// Its name.
        file: String,
        /// What the engine says.
        cause: String,
    },
    /// The module wants more at its start than an instance may have.
    #[error("{0}")]
    Limit(String),
    /// The private copy cannot be written.
    #[error("failed to make the private copy of an artifact: {0}")]
    Copy(FileError),
}

impl ArtifactError {
    /// The reason of the failure.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Missing { .. } => Reason::ArtifactMissing,
            Self::Unreadable(_) | Self::Copy(_) => Reason::ArtifactUnreadable,
            Self::Corrupt { .. } | Self::Length { .. } => Reason::ArtifactCorrupt,
            Self::Incompatible { .. } => Reason::ArtifactIncompatible,
            Self::Limit(_) => Reason::MemoryLimit,
        }
    }
}

/// The artifacts in use, each mapped once however many policies name it.
pub(crate) struct Artifacts {
    volume: PathBuf,
    private: PathBuf,
    engine: RunningEngine,
    /// By the digest of the artifact. The inner lock is held while an artifact is being mapped, so that a second policy
    /// waits for the first one's work; the outer one only to find the inner.
    slots: Mutex<HashMap<Digest, Arc<tokio::sync::Mutex<Weak<Code>>>>>,
    /// Hashing and copying keep a core busy each, so more at once would only share it.
    workers: Arc<Semaphore>,
}

/// Mapped code.
pub(crate) struct Code {
    module: Module,
}

impl Code {
    /// The module.
    pub(crate) fn module(&self) -> &Module {
        &self.module
    }
}

/// Makes the folder of private copies, for nobody but this process's user. To be called before the process is shut in.
///
/// # Errors
/// When it cannot be made, is no folder, or belongs to somebody else.
pub fn prepare_private_dir(path: &Path) -> Result<(), FileError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(FileError::new("make the folder", path))?;
    let metadata = fs::symlink_metadata(path).map_err(FileError::new("examine", path))?;
    let refuse = |text: &str| Err(FileError::new("use the folder", path)(io::Error::other(text.to_owned())));
    if !metadata.is_dir() {
        return refuse("it is no folder");
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return refuse("it belongs to another user, who could exchange code that runs here");
    }
    fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(FileError::new("protect", path))
}

impl Artifacts {
    /// Artifacts of the volume at `volume`, with private copies in `private`, of which `workers` are made at once.
    ///
    /// # Errors
    /// When the folder of private copies cannot be had.
    pub(crate) fn new(volume: &Path, private: &Path, engine: RunningEngine, workers: usize) -> Result<Self, FileError> {
        prepare_private_dir(private)?;
        Ok(Self {
            volume: volume.to_owned(),
            private: private.to_owned(),
            engine,
            slots: Mutex::default(),
            workers: Arc::new(Semaphore::new(workers)),
        })
    }

    /// The code of an artifact: as it is mapped already, or after copy and check.
    ///
    /// # Errors
    /// When it is not there, not what the manifest promises, or not for this engine.
    pub(crate) async fn load(self: &Arc<Self>, artifact: &Artifact) -> Result<Arc<Code>, ArtifactError> {
        let slot = Arc::clone(self.lock().entry(artifact.sha256).or_default());
        let mut slot = slot.lock().await;
        if let Some(code) = slot.upgrade() {
            return Ok(code);
        }
        let _worker = self.workers.acquire().await.expect("the semaphore is never closed");
        let (this, artifact) = (Arc::clone(self), artifact.clone());
        let mapped = tokio::task::spawn_blocking(move || this.map(&artifact)).await;
        let code = Arc::new(mapped.expect("mapping an artifact never panics")?);
        *slot = Arc::downgrade(&code);
        Ok(code)
    }

    /// Removes private copies and slots of artifacts that are neither in `needed` nor mapped.
    pub(crate) fn prune(&self, needed: &HashSet<Digest>) {
        let keep: HashSet<String> = {
            let mut slots = self.lock();
            // Who holds a slot's lock is about to map it.
            slots.retain(|digest, slot| {
                needed.contains(digest) || slot.try_lock().map_or(true, |slot| slot.strong_count() > 0)
            });
            slots.keys().chain(needed).map(Digest::hex).collect()
        };
        let Ok(entries) = fs::read_dir(&self.private) else { return };
        for entry in entries.flatten() {
            if !entry.file_name().to_str().is_some_and(|name| keep.contains(name.trim_start_matches('.'))) {
                // What cannot be removed now is met again the next time.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Digest, Arc<tokio::sync::Mutex<Weak<Code>>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies where needed, checks and maps. Blocks.
    fn map(&self, artifact: &Artifact) -> Result<Code, ArtifactError> {
        let copy = match self.earlier_copy(artifact.sha256) {
            Some(copy) => copy,
            None => self.copy(artifact)?,
        };
        let error = match map(self.engine.engine(), copy.try_clone().map_err(|e| self.copy_error(artifact, e))?) {
            Ok(module) => return Ok(Code { module }),
            Err(error) => error,
        };
        // The pool refuses what is too large for it in the same breath as what was made for another engine. An engine
        // without a pool tells the two apart.
        let unpooled = self.engine.unpooled().map_err(|cause| incompatible(artifact, &cause))?;
        match map(&unpooled, copy) {
            Ok(module) => Err(ArtifactError::Limit(self.limit_text(&module))),
            Err(_) => Err(incompatible(artifact, &format!("{error:#}"))),
        }
    }

    fn limit_text(&self, module: &Module) -> String {
        let (limits, wants) = (self.engine.limits(), module.resources_required());
        let pages = wants.max_initial_memory_size.unwrap_or(0);
        let elements = wants.max_initial_table_size.unwrap_or(0);
        if pages.saturating_mul(64 << 10) > u64::try_from(limits.memory_bytes).unwrap_or(u64::MAX) {
            let (wanted, limit) = (pages / 16, limits.memory_bytes >> 20);
            format!("the module wants {wanted} MiB of memory at its start, the limit is {limit} MiB")
        } else if elements > u64::try_from(limits.table_elements).unwrap_or(u64::MAX) {
            let limit = limits.table_elements;
            format!("the module wants a table of {elements} elements at its start, the limit is {limit}")
        } else {
            format!(
                "the module has {} memories, {} tables and what else belongs to an instance, more than one may have",
                wants.num_memories, wants.num_tables
            )
        }
    }

    /// A copy of an earlier start, if its bytes are still right.
    fn earlier_copy(&self, sha256: Digest) -> Option<File> {
        let path = self.private.join(sha256.hex());
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
        // What is left of a write that never ended is made again.
        let _ = fs::remove_file(&path);
        None
    }

    /// Copies the artifact from the volume and hashes the bytes on their way.
    fn copy(&self, artifact: &Artifact) -> Result<File, ArtifactError> {
        let from = self.volume.join(FOLDER).join(&artifact.file);
        let mut source = files::open_regular(&from).map_err(|error| match error.source.kind() {
            io::ErrorKind::NotFound => ArtifactError::Missing { file: artifact.file.clone() },
            _ => ArtifactError::Unreadable(error),
        })?;
        let path = self.private.join(artifact.sha256.hex());
        // No two workers copy the same artifact, so the name is free but for what an earlier process left.
        let temporary = self.private.join(format!(".{}", artifact.sha256.hex()));
        let _ = fs::remove_file(&temporary);
        let result = self.copy_to(artifact, &mut source, &from, &temporary).and_then(|()| {
            fs::rename(&temporary, &path).map_err(|error| self.copy_error(artifact, error))?;
            // Opened anew, for reading only: no handle that could change the code is left.
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
        // One byte more than promised is enough to know.
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
        ArtifactError::Copy(FileError::new("write", &self.private.join(artifact.sha256.hex()))(error))
    }
}

fn incompatible(artifact: &Artifact, cause: &str) -> ArtifactError {
    ArtifactError::Incompatible { file: artifact.file.clone(), cause: portcullis_contract::clean(cause, 300) }
}

/// Hands the first `limit` bytes of a file on in pieces, and counts them.
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

/// Maps a private copy.
#[expect(unsafe_code, reason = "the one place where bytes become code; see the comment")]
fn map(engine: &Engine, copy: File) -> wasmtime::Result<Module> {
    // SAFETY: the engine asks for bytes that a wasmtime compiler wrote and that never change while they are mapped.
    // The bytes are a compiler's: their SHA-256 is the one that the manifest promises, and the manifest and the artifacts
    // are written by this pod's loader, the only program with write access to the volume; what another version of the
    // compiler wrote is refused by the engine itself. They do not change: `copy` is a file of mode 0400 in a folder of
    // mode 0700, both of this process's own user, this program opens it for reading only, and it was hashed after the last
    // byte was written, or as it was written.
    unsafe { Module::deserialize_open_file(engine, copy) }
}

#[cfg(test)]
mod tests {
    use portcullis_engine::RunLimits;

    use super::*;

    struct Fixture {
        volume: tempfile::TempDir,
        private: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            let fixture = Self {
                volume: tempfile::tempdir().expect("a folder"),
                private: tempfile::tempdir().expect("a folder"),
            };
            fs::create_dir(fixture.volume.path().join(FOLDER)).expect("a folder");
            fixture
        }

        fn artifacts(&self) -> Arc<Artifacts> {
            let engine = RunningEngine::new(RunLimits { instances: 1, ..RunLimits::default() }).expect("an engine");
            Arc::new(Artifacts::new(self.volume.path(), self.private.path(), engine, 2).expect("opens"))
        }

        fn write(&self, bytes: &[u8]) -> Artifact {
            fs::write(self.path(), bytes).expect("writes");
            Artifact { file: "a.cwasm".into(), sha256: Digest::of(bytes), size: bytes.len() as u64 }
        }

        fn path(&self) -> PathBuf {
            self.volume.path().join(FOLDER).join("a.cwasm")
        }

        fn copies(&self) -> usize {
            fs::read_dir(self.private.path()).expect("lists").count()
        }
    }

    async fn reason(artifacts: &Arc<Artifacts>, artifact: &Artifact) -> Reason {
        artifacts.load(artifact).await.map(|_| ()).expect_err("refused").reason()
    }

    #[tokio::test]
    async fn what_is_not_there_or_no_file_is_told_apart() {
        let fixture = Fixture::new();
        let artifact = fixture.write(b"code");
        fs::remove_file(fixture.path()).expect("removes");
        let artifacts = fixture.artifacts();
        assert_eq!(reason(&artifacts, &artifact).await, Reason::ArtifactMissing);
        std::os::unix::fs::symlink("/dev/zero", fixture.path()).expect("links");
        assert_eq!(reason(&artifacts, &artifact).await, Reason::ArtifactUnreadable);
    }

    #[tokio::test]
    async fn changed_bytes_never_become_code_and_leave_no_copy() {
        let fixture = Fixture::new();
        let artifact = fixture.write(b"code");
        let artifacts = fixture.artifacts();
        for changed in [&b"cods"[..], b"cod", b"code and more", b""] {
            fs::write(fixture.path(), changed).expect("writes");
            assert_eq!(reason(&artifacts, &artifact).await, Reason::ArtifactCorrupt);
            assert_eq!(fixture.copies(), 0);
        }
    }

    #[tokio::test]
    async fn what_no_compiler_of_this_version_wrote_is_incompatible() {
        let fixture = Fixture::new();
        let artifact = fixture.write(b"\x7fELF but no artifact");
        assert_eq!(reason(&fixture.artifacts(), &artifact).await, Reason::ArtifactIncompatible);
    }

    #[test]
    fn a_spoilt_earlier_copy_is_not_used() {
        let fixture = Fixture::new();
        let artifact = fixture.write(b"code");
        let artifacts = fixture.artifacts();
        assert!(artifacts.copy(&artifact).is_ok());
        assert!(artifacts.earlier_copy(artifact.sha256).is_some());
        let copy = fixture.private.path().join(artifact.sha256.hex());
        assert_eq!(fs::metadata(&copy).expect("is there").permissions().mode() & 0o777, 0o400);
        fs::remove_file(&copy).expect("removes");
        fs::write(&copy, b"cods").expect("writes");
        assert!(artifacts.earlier_copy(artifact.sha256).is_none());
        assert_eq!(fixture.copies(), 0);
    }

    #[test]
    fn copies_that_nobody_needs_are_removed() {
        let fixture = Fixture::new();
        let artifact = fixture.write(b"code");
        let artifacts = fixture.artifacts();
        assert!(artifacts.copy(&artifact).is_ok());
        fs::write(fixture.private.path().join("left over"), b"").expect("writes");
        artifacts.prune(&HashSet::from([artifact.sha256]));
        assert_eq!(fixture.copies(), 1);
        artifacts.prune(&HashSet::new());
        assert_eq!(fixture.copies(), 0);
    }

    #[test]
    fn the_private_folder_is_ours_alone() {
        let fixture = Fixture::new();
        fs::set_permissions(fixture.private.path(), Permissions::from_mode(0o777)).expect("sets");
        prepare_private_dir(fixture.private.path()).expect("prepares");
        let mode = fs::metadata(fixture.private.path()).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
