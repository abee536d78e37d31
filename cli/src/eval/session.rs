//! Loader and evaluator for one question, on a folder of their own.
//!
//! The volume is kept in the user's cache folder, so that a module is compiled once and not at each question. Two questions
//! at the same time use two volumes.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use portcullis_contract::{EvaluatorState, Failure, LoaderState, Mode};
use tempfile::TempDir;

use super::manifest::Chosen;
use super::request::Review;
use crate::child::{Recipe, Running};
use crate::http::Http;
use crate::program::{Program, find};

/// Volumes in the cache folder; more questions at the same time use a volume that is thrown away.
const VOLUMES: usize = 8;
/// Longest time until the policy is loaded or has failed: a download and a compilation, each with a limit of a minute.
const LONGEST: Duration = Duration::from_secs(150);
/// Longest time for one request to a program.
const PATIENCE: Duration = Duration::from_secs(40);
/// How often the states are looked at.
const ASK: Duration = Duration::from_millis(10);
/// Settings of a pod that make no sense here.
const NOT_OURS: &[&str] =
    &["PORTCULLIS_POLICIES", "PORTCULLIS_TLS_DIR", "PORTCULLIS_CLIENT_CA", "PORTCULLIS_START_GATE"];

/// The running programs.
pub(super) struct Session {
    loader: Running,
    evaluator: Running,
    http: Http,
    admission: SocketAddr,
    loader_state: SocketAddr,
    evaluator_state: SocketAddr,
    // Last, so that the folders outlive the programs.
    _volume: Volume,
    _folder: TempDir,
}

/// What came of it.
pub(super) enum Judged {
    /// The policy cannot be loaded.
    Unserved(Failure),
    /// The evaluator's answer, and what the policy says whatever its mode, where that may be another.
    Answered { body: Vec<u8>, alone: Option<Vec<u8>> },
}

impl Session {
    /// Starts the programs on a folder with the chosen policy.
    /// `access` are the loader's arguments for registries.
    pub(super) async fn start(chosen: &Chosen, roots: &[PathBuf], access: Vec<OsString>) -> anyhow::Result<Self> {
        let [evaluator, loader] = find([Program::Evaluator, Program::Loader])?;
        let folder = tempfile::tempdir().context("failed to make a folder")?;
        let policies = folder.path().join("policies");
        fs::create_dir(&policies)?;
        fs::write(policies.join("policy.yaml"), &chosen.yaml)?;
        let volume = Volume::take(folder.path())?;
        let any: OsString = "127.0.0.1:0".into();

        let mut arguments: Vec<OsString> = vec!["--volume".into(), volume.path.clone().into()];
        arguments.extend(["--private-dir".into(), folder.path().join("private").into()]);
        for flag in ["--address", "--probe-address", "--state-address"] {
            arguments.extend([flag.into(), any.clone()]);
        }
        arguments.extend(["--plain-http", "--audit", "on", "--drain-delay", "0s"].map(OsString::from));
        let ports = &["admission", "probes", "state"];
        let evaluator = Running::start(&recipe(Program::Evaluator, evaluator, arguments, ports)).await?;
        let admission = address(&evaluator, "admission")?;
        let evaluator_state = address(&evaluator, "state")?;

        let mut arguments: Vec<OsString> = vec!["--dir".into(), policies.into()];
        arguments.extend(["--volume".into(), volume.path.clone().into()]);
        arguments.extend(["--evaluator-state".into(), evaluator_state.to_string().into()]);
        for flag in ["--probe-address", "--state-address"] {
            arguments.extend([flag.into(), any.clone()]);
        }
        for root in roots {
            arguments.extend(["--module-root".into(), root.into()]);
        }
        arguments.extend(access);
        let loader = Running::start(&recipe(Program::Loader, loader, arguments, &["probes", "state"])).await?;
        let loader_state = address(&loader, "state")?;
        Ok(Self {
            loader,
            evaluator,
            http: Http::new(PATIENCE)?,
            admission,
            loader_state,
            evaluator_state,
            _volume: volume,
            _folder: folder,
        })
    }

    /// Waits until the policy is loaded, then asks it.
    pub(super) async fn judge(&self, chosen: &Chosen, review: &Review) -> anyhow::Result<Judged> {
        if let Some(failure) = self.loaded(chosen).await? {
            return Ok(Judged::Unserved(failure));
        }
        let body = self.ask("validate", chosen, review).await?;
        let alone = match chosen.mode {
            Mode::Protect => None,
            Mode::Warn | Mode::Monitor => Some(self.ask("audit", chosen, review).await?),
        };
        Ok(Judged::Answered { body, alone })
    }

    /// Waits until the newest generation serves; gives its failure when it never will.
    async fn loaded(&self, chosen: &Chosen) -> anyhow::Result<Option<Failure>> {
        let started = Instant::now();
        while started.elapsed() < LONGEST {
            let loader: LoaderState = self.http.state(self.loader_state).await.context("the loader is gone")?;
            let evaluator: EvaluatorState =
                self.http.state(self.evaluator_state).await.context("the evaluator is gone")?;
            if let Some(problem) = loader.problems.first() {
                bail!("the loader cannot take the policy: {}", problem.message);
            }
            if let Some(failure) = loader.volume_failure.or(evaluator.manifest_failure) {
                return Ok(Some(failure));
            }
            let policy = loader.policies.into_iter().find(|policy| policy.id == chosen.id);
            match policy {
                None if loader.complete => bail!("the loader does not see the policy {}", chosen.id),
                None => {}
                Some(policy) if policy.failure.is_some() => return Ok(policy.failure),
                Some(policy) => {
                    let is_newest = |generation: i64, uid: &str| generation == policy.generation && uid == policy.uid;
                    let current = evaluator.current.get(&chosen.id);
                    if current.is_some_and(|current| is_newest(current.generation, &current.uid)) {
                        return Ok(None);
                    }
                    let deviation = evaluator.deviations.into_iter().find(|deviation| deviation.id == chosen.id);
                    let deviation = deviation.filter(|deviation| is_newest(deviation.generation, &deviation.uid));
                    let failure = deviation.and_then(|deviation| deviation.failure);
                    // An artifact that the evaluator could not use is made again.
                    if let Some(failure) = failure.filter(|failure| !failure.class().is_retryable()) {
                        return Ok(Some(failure));
                    }
                }
            }
            tokio::time::sleep(ASK).await;
        }
        bail!("the policy {} was not loaded within {} s", chosen.id, LONGEST.as_secs())
    }

    async fn ask(&self, path: &str, chosen: &Chosen, review: &Review) -> anyhow::Result<Vec<u8>> {
        let path = format!("/{path}/{}", chosen.id);
        let (status, body) = self.http.post(self.admission, &path, review.bytes.clone()).await?;
        let words = || portcullis_contract::clean(&String::from_utf8_lossy(&body), 1024);
        anyhow::ensure!(status == 200, "the evaluator refuses the request with {status}: {}", words());
        Ok(body)
    }

    /// Ends the programs.
    pub(super) async fn stop(self) {
        let patience = Duration::from_secs(5);
        self.evaluator.stop(patience).await;
        self.loader.stop(patience).await;
    }
}

fn recipe(program: Program, path: PathBuf, arguments: Vec<OsString>, ports: &'static [&'static str]) -> Recipe {
    Recipe { program, path, arguments, unset: NOT_OURS, ports, log: None, echo: false, speaks: false }
}

fn address(program: &Running, port: &str) -> anyhow::Result<SocketAddr> {
    program.addresses.get(port).copied().with_context(|| format!("a program did not tell its port {port}"))
}

/// A volume, and the lock that keeps others from it.
struct Volume {
    path: PathBuf,
    _lock: Option<File>,
}

impl Volume {
    /// The first free one of the cache folder; else one below `fallback`.
    fn take(fallback: &Path) -> anyhow::Result<Self> {
        let cache = cache_folder();
        for slot in cache.iter().flat_map(|cache| (0..VOLUMES).map(move |n| cache.join(format!("eval-{n}")))) {
            if DirBuilder::new().recursive(true).mode(0o700).create(&slot).is_err() {
                break;
            }
            let lock = OpenOptions::new().create(true).truncate(false).write(true).open(slot.join("lock"));
            if let Ok(lock) = lock
                && lock.try_lock().is_ok()
            {
                return Ok(Self { path: slot.join("volume"), _lock: Some(lock) });
            }
        }
        let path = fallback.join("volume");
        fs::create_dir(&path)?;
        Ok(Self { path, _lock: None })
    }
}

/// `$XDG_CACHE_HOME/portcullis`, `~/.cache/portcullis`, or none.
fn cache_folder() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("portcullis"))
}
