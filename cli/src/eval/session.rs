//! Loader and evaluator for one request, or for the check of some policies, on a folder of their own.
//!
//! The volume is new each time and has only compiled modules of earlier runs, so that whatever the programs report about a policy is about the
//! one that they were given.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use portcullis_contract::{Digest, EvaluatorState, Failure, LoaderState, Mismatch, Mode, PolicyId};
use portcullis_process::Shutdown;
use tempfile::TempDir;

use super::cache::{self, Cache, Given};
use super::manifest::Chosen;
use super::request::Review;
use super::state::{Settled, settled};
use crate::child::{ChildSpec, Echo, Running, StartError, quoted};
use crate::http::Http;
use crate::layout::{TEMPORARY, fits_socket};
use crate::program::{Program, find};

/// Longest time until the policy is loaded or has failed, without its compilation. A download is limited to a minute.
const LONGEST: Duration = Duration::from_secs(90);
/// Longest compilation, if no other limit is given.
const COMPILING: Duration = Duration::from_secs(60);
/// Longest time for one request to a program.
const PATIENCE: Duration = Duration::from_secs(40);
/// Longest text of a refusal, in bytes. No real one is as long, so it is shown in full.
const LONGEST_TEXT: usize = 1 << 20;
/// The name of the socket between evaluator and loader.
const SOCKET: &str = "broker.sock";
/// How often the states are read.
const ASK: Duration = Duration::from_millis(10);
/// Environment variables with settings of a pod that make no sense here. Traces and metrics of a single request are not exported.
const NOT_OURS: &[&str] =
    &["PORTCULLIS_POLICIES", "PORTCULLIS_TLS_DIR", "PORTCULLIS_CLIENT_CA", "PORTCULLIS_START_GATE", "OTEL_"];

/// The running programs.
pub(crate) struct Session {
    loader: Running,
    evaluator: Running,
    http: Http,
    admission: SocketAddr,
    loader_state: SocketAddr,
    evaluator_state: SocketAddr,
    /// Longest time until a policy, or the next one of several, is loaded or has failed.
    limit: Duration,
    cache: Option<(Cache, Given)>,
    // The last fields, so that the folders are removed after the programs have ended.
    folder: TempDir,
    /// The folder of the socket, where the path of the other is too long for one.
    _short: Option<TempDir>,
}

/// Further arguments of the programs, and what they print.
#[derive(Debug, Default)]
pub(crate) struct More {
    /// Further arguments of the evaluator.
    pub(crate) evaluator: Vec<OsString>,
    /// Further arguments of the loader.
    pub(crate) loader: Vec<OsString>,
    /// What of the evaluator's log is printed.
    pub(crate) echo: Echo,
}

impl More {
    /// Arguments of the loader only.
    pub(crate) fn of_loader(loader: Vec<OsString>) -> Self {
        Self { loader, ..Self::default() }
    }
}

/// The result for one request.
pub(super) enum Evaluated {
    /// The policy cannot be loaded.
    Unserved(Failure),
    /// The evaluator's answer, and in `alone` the policy's own verdict without regard to its mode, if that may differ.
    Answered { module: Digest, mismatches: Vec<Mismatch>, body: Vec<u8>, alone: Option<Vec<u8>> },
}

/// The evaluator does not take a review, for instance because it is not an admission review.
#[derive(Debug, thiserror::Error)]
#[error("the evaluator refuses the request with {status}: {words}")]
pub(crate) struct Refusal {
    status: u16,
    words: String,
}

impl Session {
    /// Starts the programs on a folder with these manifests of one policy each.
    /// `compiling` is the longest compilation.
    pub(crate) async fn start(
        manifests: &[&str],
        roots: &[PathBuf],
        more: More,
        compiling: Option<Duration>,
    ) -> anyhow::Result<Self> {
        let [evaluator, loader] = find([Program::Evaluator, Program::Loader])?;
        let folder = tempfile::tempdir().context("failed to make a folder")?;
        let policies = folder.path().join("policies");
        fs::create_dir(&policies)?;
        for (number, manifest) in manifests.iter().enumerate() {
            fs::write(policies.join(file(number)), manifest)?;
        }
        let volume = folder.path().join("volume");
        fs::create_dir_all(artifacts(&folder))?;
        let cache = Cache::open().map(|cache| {
            let given = cache.give(&artifacts(&folder));
            (cache, given)
        });
        let any: OsString = "127.0.0.1:0".into();

        let mut arguments: Vec<OsString> = vec!["--volume".into(), volume.clone().into()];
        arguments.extend(["--private-dir".into(), folder.path().join("private").into()]);
        let short = short(folder.path())?;
        let socket = short.as_ref().unwrap_or(&folder).path().join(SOCKET);
        arguments.extend(["--broker-socket".into(), socket.clone().into()]);
        for flag in ["--address", "--probe-address", "--state-address"] {
            arguments.extend([flag.into(), any.clone()]);
        }
        arguments.extend(
            ["--plain-http", "--policy-paths", "on", "--audit", "on", "--validate-raw", "on", "--drain-delay", "0s"]
                .map(OsString::from),
        );
        // The user is the operator here. What an installation allows the Policies of its namespaces is not known, so it is all; the status of a
        // Policy tells later.
        let all = ["--namespaced-capability", "*"].map(OsString::from);
        arguments.extend(all.clone());
        arguments.extend(more.evaluator);
        let ports = &["admission", "probes", "state"];
        let spec_of_evaluator = ChildSpec { echo: more.echo, ..spec(Program::Evaluator, evaluator, arguments, ports) };
        let evaluator = Running::start(&spec_of_evaluator).await;
        let evaluator = evaluator.map_err(StartError::into_setting)?;
        let admission = address(&evaluator, "admission")?;
        let evaluator_state = address(&evaluator, "state")?;

        let mut arguments: Vec<OsString> = vec!["--dir".into(), policies.into()];
        arguments.extend(["--volume".into(), volume.into()]);
        arguments.extend(["--broker-socket".into(), socket.into()]);
        // All given artifacts are kept, as it is not known yet which one the module needs.
        arguments.extend(["--keep-newest".into(), cache::MOST.to_string().into()]);
        arguments.extend(["--evaluator-state".into(), evaluator_state.to_string().into()]);
        for flag in ["--probe-address", "--state-address"] {
            arguments.extend([flag.into(), any.clone()]);
        }
        for root in roots {
            arguments.extend(["--module-root".into(), root.into()]);
        }
        arguments.extend(all);
        arguments.extend(more.loader);
        let loader = Running::start(&spec(Program::Loader, loader, arguments, &["probes", "state"])).await;
        let loader = loader.map_err(StartError::into_setting)?;
        let loader_state = address(&loader, "state")?;
        Ok(Self {
            loader,
            evaluator,
            http: Http::new(PATIENCE)?,
            admission,
            loader_state,
            evaluator_state,
            limit: LONGEST + compiling.unwrap_or(COMPILING),
            cache,
            folder,
            _short: short,
        })
    }

    /// Waits until the policy is loaded, then asks it.
    pub(super) async fn evaluate(&self, chosen: &Chosen, review: &Review) -> anyhow::Result<Evaluated> {
        let mut loaded = None;
        self.settle(&[&chosen.id], |_, settled| loaded = Some(settled)).await?;
        let (module, mismatches) = match loaded.context("the policy has no state")? {
            Settled::Serves { module, mismatches } => (module, mismatches),
            Settled::Failed(failure) => return Ok(Evaluated::Unserved(failure)),
            Settled::Refused(why) => bail!(why),
        };
        if review.is_raw {
            let body = self.ask("validate_raw", chosen, review).await?;
            return Ok(Evaluated::Answered { module, mismatches, body, alone: None });
        }
        let body = self.ask("validate", chosen, review).await?;
        let alone = match chosen.spec.mode {
            Mode::Protect => None,
            Mode::Warn | Mode::Monitor => Some(self.ask("audit", chosen, review).await?),
        };
        Ok(Evaluated::Answered { module, mismatches, body, alone })
    }

    /// Waits until each of the policies serves or has failed; `ids` are in the order of the manifests. Calls `tell` for each as soon as its
    /// result is known.
    ///
    /// # Errors
    /// When a program has ended, and when nothing happens for too long.
    pub(crate) async fn settle(&self, ids: &[&PolicyId], mut tell: impl FnMut(usize, Settled)) -> anyhow::Result<()> {
        let mut pending: Vec<usize> = (0..ids.len()).collect();
        let mut since = Instant::now();
        while let Some(first) = pending.first() {
            let limit = self.limit.as_secs();
            ensure!(since.elapsed() < self.limit, "the policy {} was not loaded within {limit} s", ids[*first]);
            let loader = self.http.state(self.loader_state).await;
            let loader: LoaderState = answered(Program::Loader, &self.loader, loader).await?;
            let evaluator = self.http.state(self.evaluator_state).await;
            let evaluator: EvaluatorState = answered(Program::Evaluator, &self.evaluator, evaluator).await?;
            let before = pending.len();
            pending.retain(|number| match settled(ids[*number], &file(*number), &loader, &evaluator) {
                None => true,
                Some(settled) => {
                    tell(*number, settled);
                    false
                }
            });
            if pending.len() < before {
                since = Instant::now();
            } else {
                tokio::time::sleep(ASK).await;
            }
        }
        Ok(())
    }

    async fn ask(&self, path: &str, chosen: &Chosen, review: &Review) -> anyhow::Result<Vec<u8>> {
        Ok(self.post(path, &chosen.id, review.bytes.clone()).await??)
    }

    /// The answer to a review at one of the paths of a policy, or how the evaluator refuses the review.
    ///
    /// # Errors
    /// When the evaluator does not answer.
    pub(crate) async fn post(
        &self,
        path: &str,
        id: &PolicyId,
        review: Vec<u8>,
    ) -> anyhow::Result<Result<Vec<u8>, Refusal>> {
        let answer = self.http.post(self.admission, &format!("/{path}/{id}"), review).await;
        let (status, body) = answered(Program::Evaluator, &self.evaluator, answer).await?;
        if status == 200 {
            return Ok(Ok(body));
        }
        let words = portcullis_contract::clean(&String::from_utf8_lossy(&body), LONGEST_TEXT);
        Ok(Err(Refusal { status, words }))
    }

    /// How many lines of policies are not in the evaluator's log, because they were more than the share of the policy. None are known of where the
    /// evaluator does not answer.
    pub(super) async fn dropped_lines(&self) -> u64 {
        let Some(probes) = self.evaluator.addresses.get("probes") else { return 0 };
        let metrics = self.http.get(*probes, "/metrics").await;
        metrics.map_or(0, |(_, body)| dropped_lines(&String::from_utf8_lossy(&body)))
    }

    /// Ends the programs, and keeps what they compiled. `used` is the module that was asked, if any was.
    pub(crate) async fn stop(self, used: Option<&Digest>) {
        let Self { loader, evaluator, http, cache, folder, _short, .. } = self;
        // An evaluator that ends waits a second for requests on connections that are still open.
        drop(http);
        let patience = Duration::from_secs(5);
        tokio::join!(evaluator.stop(patience), loader.stop(patience));
        if let Some((cache, given)) = &cache {
            cache.keep(&artifacts(&folder), given, used);
        }
    }
}

impl Evaluated {
    /// The module that was asked.
    pub(super) fn module(&self) -> Option<&Digest> {
        match self {
            Self::Answered { module, .. } => Some(module),
            Self::Unserved(_) => None,
        }
    }
}

/// Does work with a session. A signal ends the work, the programs and the folder.
///
/// # Errors
/// Those of the work, and when a signal arrives.
pub(crate) fn until_signal<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    // One thread: children that end with their parent end when the thread that started them does.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let shutdown = Shutdown::on_signals().context("failed to catch signals")?;
        tokio::select! {
            done = work => done,
            () = shutdown.begun() => bail!("interrupted by a signal"),
        }
    })
}

/// What a program answered. If it has ended, the error has its exit status and the last lines of its log.
async fn answered<T>(program: Program, running: &Running, answer: anyhow::Result<T>) -> anyhow::Result<T> {
    match answer {
        Ok(answer) => Ok(answer),
        Err(error) => match running.has_ended().await {
            Some((status, tail)) => bail!("the {program} has ended ({status}){}", quoted(&tail)),
            None => Err(error.context(format!("the {program} does not answer"))),
        },
    }
}

/// A folder of this user for the socket, if its path in `folder` would be too long for one; otherwise none.
fn short(folder: &Path) -> anyhow::Result<Option<TempDir>> {
    if fits_socket(&folder.join(SOCKET)) {
        return Ok(None);
    }
    let private = fs::Permissions::from_mode(0o700);
    let made = tempfile::Builder::new().prefix("portcullis-").permissions(private).tempdir_in(TEMPORARY);
    let failed = || {
        format!(
            "TMPDIR is too long for the path of a socket, and no folder can be made in {TEMPORARY}; set a shorter one"
        )
    };
    made.map(Some).with_context(failed)
}

/// The sum over all policies in the text of the evaluator's metrics: a policy group has one for each member.
fn dropped_lines(metrics: &str) -> u64 {
    let values = metrics.lines().filter_map(|line| line.strip_prefix("portcullis_policy_log_lines_dropped_total{"));
    values.filter_map(|rest| rest.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}

/// The file of a manifest in the folder of the programs.
fn file(number: usize) -> String {
    format!("policy-{number}.json")
}

fn spec(program: Program, path: PathBuf, arguments: Vec<OsString>, ports: &'static [&'static str]) -> ChildSpec {
    ChildSpec { program, path, arguments, unset: NOT_OURS, ports, log: None, echo: Echo::Nothing, speaks: false }
}

fn artifacts(folder: &TempDir) -> PathBuf {
    folder.path().join("volume/artifacts")
}

fn address(program: &Running, port: &str) -> anyhow::Result<SocketAddr> {
    program.addresses.get(port).copied().with_context(|| format!("a program did not tell its port {port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_lines_are_counted_over_all_policies() {
        let metrics = "\
# TYPE portcullis_policy_log_lines_dropped_total counter
portcullis_policy_log_lines_dropped_total{policy=\"cluster/a\"} 8094
portcullis_policy_log_lines_dropped_total{policy=\"cluster/a/b\"} 2
portcullis_log_lines_lost_total 7
";
        assert_eq!((dropped_lines(metrics), dropped_lines("")), (8096, 0));
    }
}
