//! Runs jobs: fetches modules, checks which policies may have them, and compiles them.

mod admit;
mod artifact;
mod in_use;
mod memory;
mod pace;
mod preempt;
mod queue;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use portcullis_contract::{Digest, Manifest, Reason, Stage};
use portcullis_util::lock;

use self::in_use::InUse;
use self::memory::{GiveBack, JobMemory, Kept};
use self::pace::{Hosts, Turns};
use self::slots::Slots;
use crate::claims::Claims;
use crate::compile::{CompileFailure, Compilers};
use crate::metrics::Metrics;
use crate::plan::{AttemptError, Job, Outcome, Prepared};
use crate::source::{Fetched, Progress, Reference, Sink, SourceError, Sources};
use crate::volume::{ArtifactRecord, Keep, Temporary, Volume};
use crate::volume_error::VolumeError;

/// Which program decided the digests that policies are pinned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PinSource {
    /// This loader resolved them itself: policies in a folder.
    Loader,
    /// Revisions, which take them from the status of policies: a cluster.
    Revisions,
}

/// What all jobs share.
pub(crate) struct JobRunner {
    pub(crate) volume: Arc<Volume>,
    pub(crate) sources: Sources,
    pub(crate) compilers: Compilers,
    pub(crate) metrics: Metrics,
    pub(crate) max_module_size: u64,
    max_artifact_size: u64,
    pins: PinSource,
    hosts: Hosts,
    /// Locks for downloads of one module from one host.
    layers: Turns<(Digest, String)>,
    /// Slots for compile children, which end for others that are needed more.
    children: Arc<Slots>,
    /// Slots for hashing whole files and for checking signatures; more at a time would only wait for the disk or a processor.
    readers: Arc<Slots>,
    /// Slots for jobs that keep much of answers in memory.
    large: Arc<Slots>,
    /// What stays when the volume is full.
    keep: Mutex<Keep>,
    /// Known sizes of artifacts that did not fit on the volume, so that they are not compiled again before there is room.
    too_large: Mutex<HashMap<Digest, u64>>,
    /// What stays in any case.
    in_use: InUse,
    /// Names of files that were removed from the volume, until the plan has them.
    removed: Arc<Mutex<HashSet<String>>>,
    /// Modules that could not be checked for these addresses, as the log says.
    unchecked: Mutex<HashSet<(Reference, Digest)>>,
}

/// What a running job and the loop share: progress in one direction, claims in the other.
#[derive(Debug, Default)]
pub(crate) struct JobContext {
    /// Whether the job has left its queue and runs. It may be back in the queue later.
    pub(crate) runs: AtomicBool,
    /// Progress of a download.
    pub(crate) bytes: Arc<Progress>,
    /// The tenants that need the job at present.
    claims: Mutex<Arc<Claims>>,
    /// Whether these tenants have had their share of the volume.
    share_is_short: Arc<AtomicBool>,
    /// What the job keeps of answers.
    kept: Kept,
}

impl JobContext {
    /// The context of a job that these tenants need.
    pub(crate) fn new(claims: Claims) -> Self {
        Self { claims: Mutex::new(Arc::new(claims)), ..Self::default() }
    }

    /// Records the tenants that need the job at present. True if they have changed: [`JobRunner::renew`] then moves it to its new place.
    pub(crate) fn claim(&self, claims: &Claims) -> bool {
        let mut known = lock(&self.claims);
        let is_other = **known != *claims;
        if is_other {
            *known = Arc::new(claims.clone());
        }
        is_other
    }

    fn claims(&self) -> Arc<Claims> {
        Arc::clone(&lock(&self.claims))
    }
}

impl From<SourceError> for AttemptError {
    fn from(error: SourceError) -> Self {
        Self { reason: error.reason, message: error.message, retry_after: error.retry_after }
    }
}

impl From<VolumeError> for AttemptError {
    fn from(error: VolumeError) -> Self {
        Self { reason: error.reason, message: error.message, retry_after: None }
    }
}

impl From<CompileFailure> for AttemptError {
    fn from(failure: CompileFailure) -> Self {
        Self { reason: failure.reason, message: failure.message, retry_after: None }
    }
}

impl AttemptError {
    /// Whether another loader may have what the source cannot give now.
    fn may_others_help(&self) -> bool {
        self.reason.class().is_retryable() && self.reason.stage() == Stage::Fetch
    }
}

/// The error that stands for a bug in this program.
pub(crate) fn mistake(reason: Reason, what: &str) -> AttemptError {
    AttemptError {
        reason,
        message: format!("{what} failed because of a bug in the loader; its log says more"),
        retry_after: None,
    }
}

impl JobRunner {
    pub(crate) fn new(
        volume: Arc<Volume>,
        sources: Sources,
        compilers: Compilers,
        metrics: Metrics,
        limits: crate::compile::CompileLimits,
        pins: PinSource,
    ) -> Self {
        let attempts = sources.attempts;
        Self {
            volume,
            sources,
            compilers,
            metrics,
            max_module_size: limits.max_module_size,
            max_artifact_size: limits.max_artifact_size,
            hosts: Hosts::new(attempts),
            layers: Turns::default(),
            pins,
            children: Slots::preempting(limits.jobs),
            readers: Slots::new(limits.jobs),
            large: memory::slots(),
            keep: Mutex::default(),
            in_use: InUse::default(),
            removed: Arc::default(),
            too_large: Mutex::default(),
            unchecked: Mutex::default(),
        }
    }

    /// What stays when the volume is full.
    pub(crate) fn keep(&self, keep: Keep) {
        self.volume.room().own(keep.owners.clone());
        lock(&self.too_large).retain(|digest, _| keep.digests.contains(digest));
        lock(&self.unchecked).retain(|(_, digest)| keep.digests.contains(digest));
        self.in_use.forget(&keep.digests, Instant::now());
        *lock(&self.keep) = keep;
    }

    /// Moves waiting jobs to their new places, after the tenants that need them have changed.
    pub(crate) fn renew(&self) {
        self.hosts.renew();
        self.children.renew();
        self.readers.renew();
        self.large.renew();
    }

    /// What counts the memory of a job.
    fn memory(&self, context: &Arc<JobContext>) -> Arc<JobMemory> {
        Arc::new(JobMemory::new(&self.large, context))
    }

    /// Runs a job. Dropping the future ends it. `pins` are the digests under which policies want the module of a fetch, if they are known.
    pub(crate) async fn run(self: Arc<Self>, job: Job, pins: Vec<Digest>, context: Arc<JobContext>) -> Outcome {
        let _memory = GiveBack(Arc::clone(&context));
        match job {
            Job::Fetch(reference) => {
                if let Some(image) = reference.image().filter(|_| !pins.is_empty()) {
                    let _turn = self.hosts.turn(image.host.clone(), &context).await;
                    let brought = self.fetch_pinned(image, &pins, &context).await;
                    let failed = brought.iter().find_map(|(_, result)| result.as_ref().err());
                    self.metrics.fetch(failed.map(|error| error.reason));
                    return Outcome::Brought(reference, brought);
                }
                let result = self.fetch(&reference, &context).await;
                self.metrics.fetch(result.as_ref().err().map(|error| error.reason));
                match result {
                    Err(error) if error.may_others_help() && !pins.is_empty() => {
                        for pin in &pins {
                            match self.making_room(Some(&context), || self.others_onto_volume(pin, &context)).await {
                                Ok(true) => {}
                                Ok(false) => return Outcome::Fetched(reference, Err(error)),
                                Err(other) => return Outcome::Fetched(reference, Err(other)),
                            }
                        }
                        Outcome::Brought(reference, pins.into_iter().map(|pin| (pin, Ok(()))).collect())
                    }
                    result => Outcome::Fetched(reference, result),
                }
            }
            Job::Admit { reference, digest, again } => {
                let _held = self.in_use.hold(digest);
                let result = self.admit(&reference, &digest, again, &context).await;
                Outcome::Admitted(reference, digest, result)
            }
            Job::Prepare { digest, recompile } => {
                let _held = self.in_use.hold(digest);
                Outcome::Prepared(digest, self.prepare(digest, recompile, &context).await)
            }
        }
    }

    async fn fetch(&self, reference: &Reference, context: &Arc<JobContext>) -> Result<Digest, AttemptError> {
        let _turn = match reference.host() {
            Some(host) => Some(self.hosts.turn(host, context).await),
            None => None,
        };
        context.runs.store(true, Ordering::Relaxed);
        match reference {
            Reference::Registry(image) => return self.fetch_artifact(image, None, context).await,
            Reference::Signed { image, signatures } => {
                return self.fetch_artifact(image, Some(signatures), context).await;
            }
            Reference::File(_) | Reference::Web(_) => {}
        }
        if let Reference::File(_) = reference {
            // Reading a local file twice costs less than a second copy of a module that is already on the volume.
            let fetched = self.measure(reference, context).await?;
            if self.volume.seems_to_have_module(&fetched.digest, fetched.bytes) {
                self.in_use.touch(fetched.digest);
                return Ok(fetched.digest);
            }
        }
        self.fetch_making_room(reference, context).await
    }

    /// Reads a module without keeping it.
    async fn measure(&self, reference: &Reference, context: &JobContext) -> Result<Fetched, AttemptError> {
        let mut sink = Sink::new(None, self.max_module_size, Arc::clone(&context.bytes));
        self.sources.fetch(reference, &mut sink).await?;
        Ok(sink.finish().await?)
    }

    async fn fetch_making_room(&self, reference: &Reference, context: &JobContext) -> Result<Digest, AttemptError> {
        self.making_room(Some(context), || self.fetch_onto_volume(reference, context)).await
    }

    async fn fetch_onto_volume(&self, reference: &Reference, context: &JobContext) -> Result<Digest, AttemptError> {
        let temporary = self.volume.temporary();
        let mut sink = self.sink(&temporary, context)?;
        self.sources.fetch(reference, &mut sink).await?;
        self.keep_module(temporary, sink.finish().await?).await
    }

    async fn keep_module(&self, temporary: Temporary, fetched: Fetched) -> Result<Digest, AttemptError> {
        let Fetched { digest, bytes, reservation } = fetched;
        self.metrics.fetched_bytes.inc_by(bytes);
        let reservation = reservation.ok_or_else(|| mistake(Reason::InternalError, "keeping a module"))?;
        let volume = Arc::clone(&self.volume);
        self.in_use.touch(digest);
        blocking(move || volume.keep_module(temporary, &digest, reservation)).await??;
        Ok(digest)
    }

    async fn prepare(
        &self,
        digest: Digest,
        recompile: bool,
        context: &Arc<JobContext>,
    ) -> Result<Prepared, AttemptError> {
        let kept = if recompile { None } else { self.read(context, move |volume| volume.artifact(&digest)).await? };
        if let Some(record) = kept.clone().filter(|record| record.declared.is_some()) {
            return Ok(Prepared::Ready(record));
        }
        // An artifact of an earlier release can serve; it is compiled again for its metadata if that needs no download, and if the module can
        // be read.
        let has_module = match self.has_module(&digest, context).await {
            Err(_) if kept.is_some() => false,
            result => result?,
        };
        if !has_module {
            return Ok(kept.map_or(Prepared::NoModule, Prepared::Ready));
        }
        let result = loop {
            let slot = self.children.turn(context).await;
            context.runs.store(true, Ordering::Relaxed);
            if let Some(result) = slot.run(self.making_room(Some(context), || self.compile(digest, context))).await {
                break result;
            }
            context.runs.store(false, Ordering::Relaxed);
            tracing::debug!(%digest, "a compilation was ended for another one, and begins again in its turn");
        };
        if !recompile && result.as_ref().is_err_and(|error| error.reason == Reason::VolumeFull) {
            // A module without an artifact only takes room: no policy can serve from it.
            let volume = Arc::clone(&self.volume);
            blocking(move || volume.remove_module(&digest)).await?;
        }
        result.or_else(|error| kept.ok_or(error)).map(Prepared::Ready)
    }

    async fn compile(&self, digest: Digest, context: &JobContext) -> Result<ArtifactRecord, AttemptError> {
        let temporary = self.volume.temporary();
        let reserve = || self.volume.room().reserve(context.claims()).telling(&context.share_is_short);
        let at_least = lock(&self.too_large).get(&digest).copied().unwrap_or(0);
        reserve().check(at_least)?;
        let module = self.volume.module(&digest);
        let start = Instant::now();
        let module = || portcullis_process::files::open_regular(&module).map_err(|error| error.source);
        let size = Arc::<Progress>::default();
        let sink = || Ok(Sink::of_artifact(temporary.open()?, reserve(), self.max_artifact_size, Arc::clone(&size)));
        let result = self.compilers.compile(module, sink).await;
        self.metrics.compilation(start.elapsed(), result.as_ref().err().map(|failure| failure.reason));
        let (compiled, reservation) = match result {
            Ok(compiled) => compiled,
            Err(failure) => {
                if failure.reason == Reason::VolumeFull {
                    lock(&self.too_large).insert(digest, size.read().0);
                }
                return Err(failure.into());
            }
        };
        lock(&self.too_large).remove(&digest);
        let volume = Arc::clone(&self.volume);
        Ok(blocking(move || volume.publish_artifact(temporary, &digest, &compiled, reservation)).await??)
    }

    /// Publishes a manifest and returns its number.
    pub(crate) async fn publish(&self, manifest: Manifest) -> Result<u64, AttemptError> {
        let publish = || {
            let (volume, manifest) = (Arc::clone(&self.volume), manifest.clone());
            async { Ok(blocking(move || volume.publish(manifest)).await??) }
        };
        self.making_room(None, publish).await
    }

    /// Reads from the volume; the number of readers at the same time is limited. What has begun to read goes on if the job is ended, and keeps
    /// its slot until it is done.
    async fn read<T: Send + 'static>(
        &self,
        context: &Arc<JobContext>,
        read: impl FnOnce(&Volume) -> T + Send + 'static,
    ) -> Result<T, AttemptError> {
        let reader = self.readers.turn(context).await;
        let volume = Arc::clone(&self.volume);
        blocking(move || {
            let _reader = reader;
            read(&volume)
        })
        .await
    }

    /// Runs `write`, of a job if `context` is given. If the volume is full, makes room and runs it once more.
    async fn making_room<T, F: Future<Output = Result<T, AttemptError>>>(
        &self,
        context: Option<&JobContext>,
        write: impl Fn() -> F,
    ) -> Result<T, AttemptError> {
        if let Some(context) = context {
            context.share_is_short.store(false, Ordering::Relaxed);
        }
        match write().await {
            Err(error) if error.reason == Reason::VolumeFull && self.make_room(context).await => write().await,
            result => result,
        }
    }

    /// Removes everything from the volume that no policy can serve from; only what its own tenants have where a job is refused because they
    /// have had their share. True if anything was removed.
    async fn make_room(&self, context: Option<&JobContext>) -> bool {
        let keep = lock(&self.keep).clone();
        let least = match context.filter(|context| context.share_is_short.load(Ordering::Relaxed)) {
            Some(context) => keep.least_of(&context.claims()),
            None => keep.least(),
        };
        self.prune(least).await > 0
    }

    /// The names of files that were removed from the volume since this was asked last.
    pub(crate) fn removed(&self) -> HashSet<String> {
        std::mem::take(&mut lock(&self.removed))
    }

    /// Removes from the volume what need not stay, and returns how many files were removed.
    pub(crate) async fn prune(&self, mut keep: Keep) -> usize {
        keep.digests.extend(self.in_use.digests(Instant::now()));
        let (volume, noted) = (Arc::clone(&self.volume), Arc::clone(&self.removed));
        let prune = move || {
            let removed = volume.prune(&keep)?;
            let count = removed.len();
            // Here, because this goes on when the job that needs room is ended.
            lock(&noted).extend(removed);
            Ok::<_, VolumeError>(count)
        };
        match blocking(prune).await {
            Ok(Ok(removed)) => {
                self.metrics.pruned.inc_by(removed as u64);
                return removed;
            }
            Ok(Err(error)) => tracing::debug!(%error, "failed to prune the volume"),
            Err(error) => tracing::debug!(problem = error.message, "failed to prune the volume"),
        }
        0
    }
}

/// Runs blocking work on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Result<T, AttemptError> {
    tokio::task::spawn_blocking(body).await.map_err(|_| mistake(Reason::VolumeReadOnly, "work on the volume"))
}
