//! The loader's half: from WebAssembly to an artifact.

use std::borrow::Cow;

use wasmtime::Engine;

use crate::direct_jumps::with_direct_jumps;
use crate::own_memory::with_own_memory;
use crate::preallocated_memory::with_preallocated_memory;

/// Why a module was not compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The compiler does not exist for this machine.
    #[error("failed to set up the compiler: {0}")]
    Setup(String),
    /// There was not enough memory to compile the module.
    #[error("failed to compile the module: out of memory")]
    OutOfMemory,
    /// The compiler refused the module.
    #[error("failed to compile the module: {0}")]
    Module(String),
}

/// The smallest module: its artifact identifies the engine and nothing else.
const EMPTY_MODULE: &[u8] = b"\0asm\x01\0\0\0";

/// The version of how modules are prepared before they are compiled; a part of the engine key. Change it with the
/// preparation.
const PREPARATION: u8 = 4;

/// Cranelift with the configuration that the evaluator runs.
pub struct Compiler {
    engine: Engine,
    key: String,
}

impl Compiler {
    /// A compiler for the machine it runs on.
    ///
    /// # Errors
    /// When Cranelift has no backend for it.
    pub fn new() -> Result<Self, CompileError> {
        let mut config = crate::shared_config();
        config.cranelift_opt_level(wasmtime::OptLevel::Speed);
        let setup = |error: wasmtime::Error| CompileError::Setup(format!("{error:#}"));
        let engine = Engine::new(&config).map_err(setup)?;
        // wasmtime's own compatibility hash needs its runtime. The same facts are in the header of each artifact, and the
        // artifact of an empty module has nothing else.
        let mut identity = engine.precompile_module(EMPTY_MODULE).map_err(setup)?;
        identity.push(PREPARATION);
        let key = format!("{:016x}", fnv1a(&identity));
        Ok(Self { engine, key })
    }

    /// The engine key: 16 hex digits that identify the engine's version, its settings, this machine's CPU features and how modules are prepared.
    /// An artifact loads only where the key is the same.
    pub fn key(&self) -> String {
        self.key.clone()
    }

    /// Compiles a core module to the bytes of an artifact: what `prepare` makes of it, or the module as it is if the compiler does not take that.
    ///
    /// # Errors
    /// When the module is not valid under [`crate::features`], or beyond an implementation limit.
    pub fn compile(&self, module: &[u8]) -> Result<Vec<u8>, CompileError> {
        if let Cow::Owned(prepared) = prepare(module) {
            match self.precompile(&prepared) {
                // What was added may be beyond a limit. Without it the module may be within, and if not, the error is about its own bytes. The
                // limits on time and memory of the process hold for both together.
                Err(CompileError::Module(_)) => {}
                compiled => return compiled,
            }
        }
        self.precompile(module)
    }

    /// Compiles these very bytes.
    fn precompile(&self, module: &[u8]) -> Result<Vec<u8>, CompileError> {
        self.engine.precompile_module(module).map_err(|error| {
            if error.is::<wasmtime::OutOfMemory>() {
                CompileError::OutOfMemory
            } else {
                CompileError::Module(format!("{error:#}"))
            }
        })
    }
}

/// A module as it is compiled: a policy in Rego has a memory of its own, another module that grows its memory has a part of it from the start, and
/// after that, functions that Go compiled jump directly.
///
/// The module must be valid; then what it becomes is valid too, but for limits on how much there may be of something.
fn prepare(module: &[u8]) -> Cow<'_, [u8]> {
    let with_memory = with_own_memory(module).or_else(|| with_preallocated_memory(module));
    let direct = with_direct_jumps(with_memory.as_deref().unwrap_or(module));
    direct.or(with_memory).map_or(Cow::Borrowed(module), Cow::Owned)
}

/// FNV-1a: a hash that is the same in every build, which the standard library does not promise for its own.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
