//! The child: shuts itself in, reads a module, writes an artifact.
//!
//! Module on standard input, artifact on standard output (a pipe, which the parent reads only as far as it has room), one line of JSON on
//! standard error. Before the child reads a byte, it gives up opening files and sockets and writing files, and limits its memory and
//! processor time.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use clap::Parser;
use portcullis_contract::{Digest, Reason};
use portcullis_engine::CompileError;
use portcullis_process::{Confinement, failpoint};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{CompileFailure, inspect};
use crate::source::module_too_large;
use crate::volume::Compiled;

/// What the parent says.
#[derive(Debug, Parser)]
#[command(name = "portcullis-loader compile")]
pub struct ChildArgs {
    /// Most memory, in bytes.
    #[arg(long)]
    pub memory: u64,
    /// Most processor time, in seconds.
    #[arg(long)]
    pub cpu_seconds: u64,
    /// Largest module, in bytes.
    #[arg(long)]
    pub max_module_size: u64,
}

/// The child's body. Exit status 0 with an artifact, [`JUDGED`] with a failure on standard error; anything else means that
/// it died.
pub fn compile_stdin(args: &ChildArgs) -> ExitCode {
    exit_when_out_of_memory();
    let result = shut_in(args).and_then(|()| compile(args));
    let (status, line) = match &result {
        Ok(compiled) => (ExitCode::SUCCESS, serde_json::to_string(compiled)),
        Err(failure) => (ExitCode::from(JUDGED), serde_json::to_string(failure)),
    };
    eprintln!("{}", line.unwrap_or_default());
    status
}

/// Exit status of a child that has judged a module.
pub(super) const JUDGED: u8 = 3;
/// Exit status of a child whose compiler panicked because it ran out of memory.
pub(super) const OUT_OF_MEMORY: u8 = 4;
/// A child that cannot allocate this much more, in bytes, has reached its memory limit.
const LAST_RESERVE: usize = 4 << 20;

/// When memory runs out, the compiler aborts in most places and panics in some. A test allocation at each panic
/// shows whether that was the cause. What other panics say goes to standard error, for the parent.
fn exit_when_out_of_memory() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if Vec::<u8>::new().try_reserve_exact(LAST_RESERVE).is_err() {
            std::process::exit(OUT_OF_MEMORY.into());
        }
        others(panic);
    }));
}

fn shut_in(args: &ChildArgs) -> Result<(), CompileFailure> {
    let limit = |resource, limit: u64, hard: u64| {
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(hard) }).map_err(|error| {
            CompileFailure::new(Reason::CompileFailed, format!("failed to limit the compiler: {error}"))
        })
    };
    // Limits the memory that is really the child's own: most of its address space is the program itself.
    limit(Resource::Data, args.memory, args.memory)?;
    // The signal of the soft limit names the cause; that of the hard limit does not.
    limit(Resource::Cpu, args.cpu_seconds.max(1), args.cpu_seconds.max(1) + 2)?;
    limit(Resource::Core, 0, 0)?;
    // It needs no file at all: it writes to a pipe.
    limit(Resource::Fsize, 0, 0)?;
    // Neither of these is needed for safety: a child that outlives its parent ends by its limits, and one with normal priority
    // only slows down its neighbours.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let _ = rustix::process::nice(5);
    // A kernel without Landlock or seccomp still has the limits above; the loader's own log says what it has.
    let _ = Confinement::default().apply();
    Ok(())
}

fn compile(args: &ChildArgs) -> Result<Compiled, CompileFailure> {
    if failpoint::hit("compile.start") {
        return Err(CompileFailure::new(Reason::CompileFailed, "fail point"));
    }
    let io = |error: io::Error| {
        CompileFailure::new(crate::volume_error::volume_reason(&error), format!("failed to compile: {error}"))
    };
    let mut module = Vec::new();
    io::stdin().lock().take(args.max_module_size.saturating_add(1)).read_to_end(&mut module).map_err(io)?;
    if module.len() as u64 > args.max_module_size {
        return Err(CompileFailure::new(Reason::ModuleTooLarge, module_too_large(args.max_module_size)));
    }
    if cfg!(debug_assertions) {
        failpoint::hit_of("compile.module", &Digest::of(&module));
    }
    let inspected = inspect(&module)?;
    let failed = |error: CompileError| match error {
        CompileError::OutOfMemory => {
            CompileFailure::new(Reason::CompileLimit, "the compiler ran out of its memory (--compile-memory)")
        }
        error => CompileFailure::new(Reason::CompileFailed, error.to_string()),
    };
    let artifact = portcullis_engine::Compiler::new().and_then(|compiler| compiler.compile(&module)).map_err(failed)?;
    // Standard output buffers by lines; a duplicate of the descriptor does not.
    let mut file = std::fs::File::from(rustix::io::dup(io::stdout()).map_err(|error| io(error.into()))?);
    file.write_all(&artifact).map_err(io)?;
    Ok(Compiled {
        sha256: Digest::of(&artifact),
        size: artifact.len() as u64,
        execution_mode: inspected.execution_mode,
        declared: Some(inspected.declared),
    })
}
