//! From a file of the shared volume to code that may run.
//!
//! An artifact is native code. Another program writes the volume, and a mapped file that changes means changed code or a bus error. So
//! the bytes are hashed while they are copied to a folder that only this process's user can write, and the copy is mapped. A copy from
//! an earlier start is hashed again before it is used.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use portcullis_contract::{Artifact, Digest, Tenant};
use portcullis_engine::RunningEngine;
use portcullis_process::files::FileError;
use portcullis_util::lock;
use tokio::sync::OwnedMutexGuard;
use wasmtime::{Engine, Module};

use crate::fair::claimant::Claimant;
use crate::fair::policies::Claim;
use crate::fair::pool::PolicyPool;
use crate::volume::artifact_error::ArtifactError;
use crate::volume::private_copy::PrivateCopies;
use crate::volume::private_room::Requester;

/// The artifacts in use, each mapped once however many policies name it.
pub(crate) struct Artifacts {
    copies: PrivateCopies,
    engine: RunningEngine,
    /// The mapped modules, by the digest of the artifact. The inner lock is held while an artifact is being mapped or its copy removed, so
    /// that a second policy waits for the first one's work. The outer lock is taken on threads that answer requests: it is held only to find
    /// the inner one, and never while files are touched.
    slots: Mutex<HashMap<Digest, Slot>>,
    /// Held while copies are removed, only by threads that may block: who waits for room finds it afterwards.
    pruning: Mutex<()>,
    /// Permits to hash and copy, each of which keeps a core busy. There are twice as many as cores, of which a tenant gets half, so that it
    /// does not wait for the hundreds of another tenant.
    workers: Arc<PolicyPool>,
    /// The artifacts that the newest manifest names: their copies stay when room is needed, and count for these tenants.
    needed: Mutex<Needed>,
}

/// Artifacts that are needed, and the tenants whose policies name them.
pub(crate) type Needed = HashMap<Digest, BTreeSet<Tenant>>;

type Slot = Arc<tokio::sync::Mutex<Weak<Module>>>;

impl Artifacts {
    /// Artifacts of the volume at `volume`, with private copies in `private`, which may have `size` bytes. A tenant has `workers` of
    /// them made at once.
    ///
    /// # Errors
    /// When the folder of private copies cannot be made or listed.
    pub(crate) fn new(
        volume: &Path,
        private: &Path,
        size: Option<u64>,
        engine: RunningEngine,
        workers: usize,
    ) -> Result<Self, FileError> {
        Ok(Self {
            copies: PrivateCopies::new(volume, private, size)?,
            engine,
            slots: Mutex::default(),
            pruning: Mutex::default(),
            workers: PolicyPool::new(u64::try_from(workers).unwrap_or(u64::MAX).saturating_mul(2), 1, usize::MAX),
            needed: Mutex::default(),
        })
    }

    /// Notes which artifacts the newest manifest names.
    pub(crate) fn need(&self, needed: Needed) {
        *lock(&self.needed) = needed;
    }

    /// The code of an artifact, which is copied, checked and mapped if it is not mapped yet. `enforced` says whether any generation of the
    /// policy was enforced.
    ///
    /// # Errors
    /// When it is not there, not what the manifest promises, or not for this engine.
    pub(crate) async fn load(
        self: &Arc<Self>,
        who: &Arc<Claimant>,
        enforced: bool,
        artifact: &Artifact,
    ) -> Result<Arc<Module>, ArtifactError> {
        let slot = Arc::clone(lock(&self.slots).entry(artifact.sha256).or_default());
        if let Some(code) = slot.try_lock().ok().and_then(|code| code.upgrade()) {
            return Ok(code);
        }
        // First the permit, then the lock: otherwise all policies with the same artifact would wait for the permit of the first one,
        // however late that comes.
        let one = Claim { who: Arc::clone(who), amount: 1, has: 0 };
        let permit = self.workers.take(&one, None).await;
        let permit = permit.expect("the queue has no end, and a claim that waits holds no permit");
        let mut slot = slot.lock_owned().await;
        if let Some(code) = slot.upgrade() {
            return Ok(code);
        }
        let (this, who, artifact) = (Arc::clone(self), Arc::clone(who), artifact.clone());
        let map = move || {
            // A load may be given up, but a copy that has begun goes on. So it keeps its permit and its lock to its end, and the next load of
            // the artifact waits for this copy instead of making one more.
            let _permit = permit;
            let code = Arc::new(this.map(&artifact, Requester { tenant: &who.tenant, enforced })?);
            *slot = Arc::downgrade(&code);
            Ok(code)
        };
        tokio::task::spawn_blocking(map).await.expect("mapping an artifact never panics")
    }

    /// Removes private copies and slots of artifacts that are neither in `needed` nor in use, and notes who needs the others. Blocks.
    pub(crate) fn prune(&self, needed: &Needed) {
        self.copies.set_owners(needed);
        self.prune_by(needed, |digest, files| self.copies.remove(digest, files));
    }

    /// [`Self::prune`], where `remove` removes the copy of an artifact and files that may belong to it, or files of no artifact.
    fn prune_by(&self, needed: &Needed, remove: impl Fn(Option<Digest>, &[PathBuf])) {
        let _pruning = lock(&self.pruning);
        for (digest, files) in self.copies.files() {
            let Some(digest) = digest else {
                remove(None, &files);
                continue;
            };
            if needed.contains_key(&digest) {
                continue;
            }
            // While the artifact's own lock is held, no load uses its copy or makes one.
            if let Some(_slot) = self.lock_unused(digest) {
                remove(Some(digest), &files);
            }
        }
        lock(&self.slots).retain(|digest, slot| needed.contains_key(digest) || is_in_use(slot));
    }

    /// The lock of an artifact that is not in use; none if it is.
    fn lock_unused(&self, digest: Digest) -> Option<OwnedMutexGuard<Weak<Module>>> {
        let mut slots = lock(&self.slots);
        let slot = slots.entry(digest).or_default();
        if is_in_use(slot) { None } else { Arc::clone(slot).try_lock_owned().ok() }
    }

    /// Copies if needed, checks and maps. Blocks.
    fn map(&self, artifact: &Artifact, requester: Requester<'_>) -> Result<Module, ArtifactError> {
        let copy = match self.copies.get(artifact, requester) {
            Err(ArtifactError::NoRoom { .. }) => {
                // Copies of earlier manifests may still take up room.
                let needed = lock(&self.needed).clone();
                self.prune(&needed);
                self.copies.get(artifact, requester)?
            }
            copy => copy?,
        };
        // A copy that is made after the manifest was applied counts for all whose policies name it, not only for the first one. A newer
        // manifest, which may be applied meanwhile, comes last.
        self.copies.set_owners(&lock(&self.needed));
        let again = copy.try_clone().map_err(|source| {
            ArtifactError::Copy(FileError { action: "open", path: self.copies.path(artifact.sha256), source })
        })?;
        let error = match map(self.engine.engine(), copy) {
            Ok(module) => return Ok(module),
            Err(error) => error,
        };
        // The pool's error is the same for a module that is too large and for one that was compiled for another engine. An engine without
        // a pool shows which it is: it can map the former.
        let unpooled = self.engine.unpooled().map_err(|cause| incompatible(artifact, &cause.to_string()))?;
        match map(&unpooled, again) {
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
}

/// Whether an artifact is mapped, or a load holds its slot and is about to fill it.
fn is_in_use(slot: &Slot) -> bool {
    Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|code| code.strong_count() > 0)
}

fn incompatible(artifact: &Artifact, cause: &str) -> ArtifactError {
    ArtifactError::Incompatible { file: artifact.file.clone(), cause: portcullis_contract::clean(cause, 300) }
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
    use std::fs;
    use std::path::PathBuf;

    use portcullis_contract::Reason;
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
            fs::create_dir(fixture.volume.path().join("artifacts")).expect("a folder");
            fixture
        }

        fn artifacts(&self) -> Arc<Artifacts> {
            let engine = RunningEngine::new(RunLimits { instances: 1, ..RunLimits::default() }).expect("an engine");
            Arc::new(Artifacts::new(self.volume.path(), self.private.path(), None, engine, 2).expect("opens"))
        }

        fn write(&self, bytes: &[u8]) -> Artifact {
            fs::write(self.path(), bytes).expect("writes");
            Artifact { file: "a.cwasm".into(), sha256: Digest::of(bytes), size: bytes.len() as u64 }
        }

        fn path(&self) -> PathBuf {
            self.volume.path().join("artifacts").join("a.cwasm")
        }

        fn copies(&self) -> usize {
            fs::read_dir(self.private.path()).expect("lists").count()
        }
    }

    async fn reason(artifacts: &Arc<Artifacts>, artifact: &Artifact) -> Reason {
        let who = Claimant::new(&"cluster/a".parse().expect("an id"));
        artifacts.load(&who, false, artifact).await.map(|_| ()).expect_err("refused").reason()
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
    fn copies_that_nobody_needs_are_removed() {
        let fixture = Fixture::new();
        let artifact = fixture.write(b"code");
        let artifacts = fixture.artifacts();
        let requester = Requester { tenant: &Tenant::Cluster, enforced: false };
        assert!(artifacts.copies.get(&artifact, requester).is_ok());
        fs::write(fixture.private.path().join("left over"), b"").expect("writes");
        artifacts.prune(&Needed::from([(artifact.sha256, BTreeSet::from([Tenant::Cluster]))]));
        assert_eq!(fixture.copies(), 1);
        artifacts.prune(&Needed::new());
        assert_eq!(fixture.copies(), 0);
    }

    #[tokio::test]
    async fn a_copy_that_is_made_after_the_manifest_was_applied_counts_for_all_who_name_it() {
        let fixture = Fixture::new();
        let artifact = fixture.write(b"twenty bytes of code");
        let engine = RunningEngine::new(RunLimits { instances: 1, ..RunLimits::default() }).expect("an engine");
        let (volume, private) = (fixture.volume.path(), fixture.private.path());
        let artifacts = Arc::new(Artifacts::new(volume, private, Some(64), engine, 2).expect("opens"));
        let [first, next] = ["first", "next"].map(|name| Tenant::Namespace(name.into()));
        artifacts.need(Needed::from([(artifact.sha256, BTreeSet::from([first.clone(), next.clone()]))]));
        let who = Claimant::new(&"namespaced/first/x".parse().expect("an id"));
        assert_eq!(
            artifacts.load(&who, false, &artifact).await.expect_err("no code").reason(),
            Reason::ArtifactIncompatible
        );
        let get = |bytes: &[u8], tenant| {
            artifacts.copies.get(&fixture.write(bytes), Requester { tenant, enforced: false }).map(drop)
        };
        assert!(get(&[0; 18], &next).is_err_and(|error| matches!(error, ArtifactError::NoRoom { .. })));
        assert!(get(&[0; 12], &first).is_ok(), "half of it is the other one's");
    }

    #[test]
    fn threads_that_answer_requests_wait_for_no_file_that_is_removed() {
        let fixture = Fixture::new();
        let artifact = fixture.write(b"code");
        let artifacts = fixture.artifacts();
        let requester = Requester { tenant: &Tenant::Cluster, enforced: false };
        assert!(artifacts.copies.get(&artifact, requester).is_ok());
        let removed = Mutex::new(Vec::new());
        artifacts.prune_by(&Needed::new(), |digest, _| {
            assert!(artifacts.slots.try_lock().is_ok(), "a load of another artifact finds its slot");
            let slot = Arc::clone(&lock(&artifacts.slots)[&artifact.sha256]);
            assert!(slot.try_lock().is_err(), "a load of the same artifact waits");
            lock(&removed).push(digest);
        });
        assert_eq!(*lock(&removed), [Some(artifact.sha256)]);
        assert!(lock(&artifacts.slots).is_empty());
    }

    #[tokio::test]
    async fn a_copy_of_a_load_that_is_given_up_goes_on_and_the_next_load_takes_it() {
        let fixture = Fixture::new();
        let artifact = fixture.write(b"code, but of no compiler");
        let artifacts = fixture.artifacts();
        let room = artifacts.copies.room_that_waits();
        for _ in 0..5 {
            let (artifacts, artifact) = (Arc::clone(&artifacts), artifact.clone());
            let load = tokio::spawn(async move { reason(&artifacts, &artifact).await });
            tokio::task::yield_now().await;
            load.abort();
            assert!(load.await.is_err_and(|error| error.is_cancelled()));
        }
        assert!(is_in_use(&lock(&artifacts.slots)[&artifact.sha256]), "the first one still copies");
        drop(room);
        assert_eq!(reason(&artifacts, &artifact).await, Reason::ArtifactIncompatible);
        assert_eq!(artifacts.copies.tries(), 1);
        assert_eq!(fixture.copies(), 1);
    }
}
