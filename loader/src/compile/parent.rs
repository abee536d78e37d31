//! The parent: starts children, bounds them, and turns how they end into reasons.

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use portcullis_contract::{Failure, Reason};
use portcullis_registry::Receive as _;
use rustix::process::Signal;
use tokio::io::AsyncReadExt as _;
use tokio::process::{ChildStdout, Command};

use super::child::{JUDGED, OUT_OF_MEMORY};
use super::{CompileFailure, SUBCOMMAND, processor_time};
use crate::source::{Sink, SourceError};
use crate::volume::{Compiled, Reservation};

/// How much of an artifact is read at once, in bytes.
const PIECE: usize = 256 << 10;
/// Most bytes of a child's standard error that are read.
const MAX_STDERR: u64 = 64 << 10;
/// The exit status of a Rust program that panicked.
const PANICKED: i32 = 101;
/// Most threads of a child's compiler. Each has a stack and the function that it compiles within the child's memory limit, so there must not be
/// one for each core of a large node. More would hardly help: most modules are compiled in less than a second, and the largest in a few.
const MAX_THREADS: usize = 4;
/// How often a module is tried in all, if each child dies.
const TRIES: u32 = 2;

/// What one compilation may take.
#[derive(Debug, Clone, Copy)]
pub struct CompileLimits {
    /// Children at the same time.
    pub jobs: usize,
    /// Memory of a child, in bytes.
    pub memory: u64,
    /// Wall time of a child, without that in which its output is written to the volume.
    pub time: Duration,
    /// Processor time of a child.
    pub cpu_time: Duration,
    /// Largest module, in bytes.
    pub max_module_size: u64,
    /// Largest artifact, in bytes.
    pub max_artifact_size: u64,
}

/// Starts compile children. Callers must not run more than [`CompileLimits::jobs`] at a time.
pub struct Compilers {
    limits: CompileLimits,
}

impl Compilers {
    /// Compilers with these limits.
    pub fn new(limits: CompileLimits) -> Self {
        Self { limits }
    }

    /// Compiles the module that `module` opens into the sink that `artifact` makes; both are called again for each try. The child writes to a
    /// pipe, not to a file, so that its output is counted while it arrives.
    /// Dropping the future kills the child.
    ///
    /// # Errors
    /// Why there is no artifact.
    pub(crate) async fn compile(
        &self,
        module: impl Fn() -> std::io::Result<File>,
        artifact: impl Fn() -> std::io::Result<Sink>,
    ) -> Result<(Compiled, Reservation), CompileFailure> {
        let mut attempt = 1;
        loop {
            let io = |error: std::io::Error| {
                CompileFailure::new(
                    crate::volume_error::volume_reason(&error),
                    format!("failed to hand over the module: {error}"),
                )
            };
            match self.once(module().map_err(io)?, artifact().map_err(io)?).await {
                Err(ChildFailure::Died(text)) if attempt < TRIES => {
                    // The policy's own line in the log tells of the last time.
                    tracing::warn!(how = text, "the compiler died on a module; trying once more");
                    attempt += 1;
                }
                Err(ChildFailure::Died(text)) => {
                    let text = format!("the compiler died {TRIES} times on this module, the last time {text}");
                    return Err(CompileFailure::new(Reason::CompileFailed, text));
                }
                Err(ChildFailure::Judged(failure)) => return Err(failure),
                Ok(compiled) => return Ok(compiled),
            }
        }
    }

    async fn once(&self, module: File, mut artifact: Sink) -> Result<(Compiled, Reservation), ChildFailure> {
        let limits = &self.limits;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut command = command(limits, cores);
        command.stdin(Stdio::from(module)).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        #[cfg(debug_assertions)]
        if let Some(points) = std::env::var_os("PORTCULLIS_FAILPOINTS") {
            command.env("PORTCULLIS_FAILPOINTS", points);
        }
        let mut child =
            command.spawn().map_err(|error| unavailable(format!("failed to start the compiler: {error}")))?;
        let (stdout, stderr, write_time) = (child.stdout.take(), child.stderr.take(), artifact.write_time());
        let run = async {
            let said = async {
                let mut said = Vec::new();
                if let Some(stderr) = stderr {
                    stderr.take(MAX_STDERR).read_to_end(&mut said).await.map_err(lost)?;
                }
                Ok(said)
            };
            let ((), said) = tokio::try_join!(receive(stdout, &mut artifact), said)?;
            let status = child.wait().await.map_err(lost)?;
            let compiled = judge(status, &said, limits)?;
            let written = artifact.finish().await.map_err(refused)?;
            // The child has read hostile bytes: what it says about its output is checked against the bytes that arrived.
            match written.reservation {
                Some(reservation) if (compiled.sha256, compiled.size) == (written.digest, written.bytes) => {
                    Ok((compiled, reservation))
                }
                _ => Err(ChildFailure::Died("with an answer that is not about what it wrote".to_owned())),
            }
        };
        // A slow volume is no fault of the module.
        let ended = write_time.timeout(limits.time, run).await;
        ended.unwrap_or_else(|| Err(too_slow(child.id().and_then(processor_time::of), limits)))
    }
}

/// The command of a child, on a machine with so many cores. Of the loader's environment it gets nothing.
fn command(limits: &CompileLimits, cores: usize) -> Command {
    // Not the program's path: the file there may have been replaced since this process started.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg(SUBCOMMAND)
        .arg(format!("--memory={}", limits.memory))
        .arg(format!("--cpu-seconds={}", limits.cpu_time.as_secs().max(1)))
        .arg(format!("--max-module-size={}", limits.max_module_size))
        .env_clear()
        .env("RAYON_NUM_THREADS", cores.min(MAX_THREADS).to_string());
    command
}

/// Receives what the child writes. Stops when it is too much, or when there is no room for it.
async fn receive(stdout: Option<ChildStdout>, artifact: &mut Sink) -> Result<(), ChildFailure> {
    let Some(mut stdout) = stdout else { return Ok(()) };
    let mut piece = vec![0; PIECE];
    loop {
        match stdout.read(&mut piece).await {
            Ok(0) => return Ok(()),
            Ok(length) => artifact.write(&piece[..length]).await.map_err(refused)?,
            Err(error) => return Err(lost(error)),
        }
    }
}

fn refused(error: SourceError) -> ChildFailure {
    ChildFailure::Judged(CompileFailure::new(error.reason, error.message))
}

/// The failure of a child that the machine could not run. Its module may be fine, and is compiled again later.
fn unavailable(text: impl AsRef<str>) -> ChildFailure {
    ChildFailure::Judged(CompileFailure::new(Reason::CompilerUnavailable, text))
}

fn lost(error: std::io::Error) -> ChildFailure {
    unavailable(format!("failed to hear from the compiler: {error}"))
}

/// The failure of a child that ran out of wall time, after so much processor time if that is known.
fn too_slow(used: Option<Duration>, limits: &CompileLimits) -> ChildFailure {
    let limit = limits.time.as_secs_f64();
    let most = limits.time.min(limits.cpu_time);
    match used.filter(|used| processor_time::is_starved(*used, most)) {
        Some(used) => unavailable(format!(
            "the compiler had only {:.1} s of processor time within {limit} s (--compile-time): the node or the loader's container has too \
             little of it",
            used.as_secs_f64()
        )),
        None => {
            let text = format!("compiling took longer than {limit} s (--compile-time)");
            ChildFailure::Judged(CompileFailure::new(Reason::CompileLimit, text))
        }
    }
}

/// How a child ended without an artifact.
#[derive(Debug, PartialEq)]
enum ChildFailure {
    Judged(CompileFailure),
    Died(String),
}

fn judge(status: ExitStatus, said: &[u8], limits: &CompileLimits) -> Result<Compiled, ChildFailure> {
    let limit = |text: String| Err(ChildFailure::Judged(CompileFailure::new(Reason::CompileLimit, text)));
    let out_of_memory = || {
        limit(format!(
            "the compiler ran out of its {} MiB of memory (--compile-memory) or of its stack",
            limits.memory >> 20
        ))
    };
    if let Some(signal) = status.signal() {
        return match Signal::from_named_raw(signal) {
            // A Rust program ends like this when memory or stack runs out.
            Some(Signal::ABORT | Signal::SEGV) => out_of_memory(),
            Some(Signal::XCPU) => limit(format!(
                "compiling took more than {} s of processor time (--compile-cpu-time)",
                limits.cpu_time.as_secs()
            )),
            // This program kills only children whose result it does not wait for.
            Some(Signal::KILL) => {
                Err(unavailable("the compiler was killed: the node or the loader's container may be out of memory"))
            }
            _ => Err(ChildFailure::Died(format!("by signal {signal}"))),
        };
    }
    let line = said.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).unwrap_or_default();
    let unknown = |what: &str| ChildFailure::Died(format!("with {what}"));
    match status.code() {
        Some(0) => serde_json::from_slice(line).map_err(|_| unknown("an answer that makes no sense")),
        Some(code) if code == i32::from(JUDGED) => {
            let failure: CompileFailure =
                serde_json::from_slice(line).map_err(|_| unknown("an answer that makes no sense"))?;
            Err(ChildFailure::Judged(CompileFailure::new(failure.reason, failure.message)))
        }
        Some(code) if code == i32::from(OUT_OF_MEMORY) => out_of_memory(),
        Some(PANICKED) if let Some(panic) = panic_in(said) => Err(unknown(&format!("exit status {PANICKED}: {panic}"))),
        Some(code) => Err(unknown(&format!("exit status {code}"))),
        None => Err(unknown("no exit status")),
    }
}

/// What the first panic said, from its place on; `None` if there was none. It may quote the module, and a child that the module has taken over
/// may write anything. So it is cleaned and cut before it reaches a log or a status, and decides nothing.
fn panic_in(said: &[u8]) -> Option<String> {
    let said = String::from_utf8_lossy(said);
    let panic = &said[said.find("panicked at ")?..];
    let end = panic.find("\nnote: run with `RUST_BACKTRACE").unwrap_or(panic.len());
    Some(portcullis_contract::clean(&panic[..end], Failure::MAX_MESSAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CompileLimits = CompileLimits {
        jobs: 1,
        memory: 512 << 20,
        time: Duration::from_secs(1),
        cpu_time: Duration::from_secs(1),
        max_module_size: 1,
        max_artifact_size: 1,
    };

    fn reason(raw_status: i32, said: &str) -> Option<Reason> {
        match judge(ExitStatus::from_raw(raw_status), said.as_bytes(), &LIMITS) {
            Err(ChildFailure::Judged(failure)) => Some(failure.reason),
            Err(ChildFailure::Died(_)) => None,
            Ok(_) => panic!("no artifact"),
        }
    }

    #[test]
    fn a_node_with_many_cores_does_not_use_up_the_memory_for_stacks() {
        for (cores, threads) in [(1, "1"), (2, "2"), (4, "4"), (256, "4")] {
            let command = command(&LIMITS, cores);
            let set: Vec<_> = command.as_std().get_envs().collect();
            assert_eq!(set, [("RAYON_NUM_THREADS".as_ref(), Some(threads.as_ref()))], "{cores}");
        }
    }

    #[test]
    fn how_a_child_ends_becomes_a_reason() {
        let judged = r#"{"reason":"ModuleInvalid","message":"no"}"#;
        assert_eq!(reason(3 << 8, &format!("noise\n{judged}\n")), Some(Reason::ModuleInvalid));
        assert_eq!(reason(6, ""), Some(Reason::CompileLimit), "SIGABRT");
        assert_eq!(reason(4 << 8, ""), Some(Reason::CompileLimit), "a panic without memory");
        assert_eq!(reason(24, ""), Some(Reason::CompileLimit), "SIGXCPU");
        assert_eq!(reason(9, ""), Some(Reason::CompilerUnavailable), "SIGKILL by somebody else");
        assert_eq!(reason(4, ""), None, "SIGILL");
        assert_eq!(reason(101 << 8, "thread panicked"), None);
        assert_eq!(reason(3 << 8, "noise"), None);
        assert_eq!(reason(0, "noise"), None);
    }

    #[test]
    fn a_compiler_that_panics_says_where_and_why() {
        let died = |status: i32, said: &[u8]| match judge(ExitStatus::from_raw(status << 8), said, &LIMITS) {
            Err(ChildFailure::Died(text)) => text,
            _ => panic!("it died"),
        };
        let panic = "\nthread '<unnamed>' (7) panicked at src/a.rs:1:2:\nwhy\nagain";
        let note = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace";
        let another = "\nthread '<unnamed>' (8) panicked at src/b.rs:1:2:\nanother\n";
        let expected = "with exit status 101: panicked at src/a.rs:1:2: why again";
        assert_eq!(died(101, format!("noise{panic}\n{note}\n{another}").as_bytes()), expected);
        assert_eq!(died(101, panic.as_bytes()), expected);
        assert_eq!(died(101, b"thread panicked"), "with exit status 101");
        assert_eq!(died(86, panic.as_bytes()), "with exit status 86");
        // What a module can make a panic say is as long as the parent reads, and anything.
        let hostile = ["panicked at \u{1b}[2J\u{202e}a\0".as_bytes(), &[0xff; 64 << 10]].concat();
        let text = died(101, &hostile);
        assert!(text.starts_with("with exit status 101: panicked at [2Ja \u{fffd}"), "{text}");
        assert!(text.len() < 2 * Failure::MAX_MESSAGE, "{}", text.len());
    }

    #[test]
    fn who_has_had_no_processor_time_says_nothing_about_the_module() {
        let minute = Duration::from_secs(60);
        let reason = |used: Option<u64>, limits: &CompileLimits| match too_slow(used.map(Duration::from_secs), limits) {
            ChildFailure::Judged(failure) => failure.reason,
            ChildFailure::Died(text) => panic!("{text}"),
        };
        let limits = CompileLimits { time: minute, cpu_time: minute, ..LIMITS };
        assert_eq!(reason(Some(0), &limits), Reason::CompilerUnavailable);
        assert_eq!(reason(Some(11), &limits), Reason::CompilerUnavailable);
        assert_eq!(reason(Some(12), &limits), Reason::CompileLimit);
        assert_eq!(reason(None, &limits), Reason::CompileLimit, "it has just ended");
        let limits = CompileLimits { time: 10 * minute, cpu_time: minute, ..LIMITS };
        assert_eq!(reason(Some(50), &limits), Reason::CompileLimit, "most of what it may have");
        assert!(Reason::CompilerUnavailable.class().is_retryable());
    }
}
