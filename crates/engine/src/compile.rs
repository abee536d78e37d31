//! The loader's half: from WebAssembly to an artifact.

use std::fmt::Write as _;
use std::hash::{Hash, Hasher};

use wasmtime::Engine;

/// Why a module was not compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The compiler does not exist for this machine.
    #[error("failed to set up the compiler: {0}")]
    Setup(String),
    /// The compiler refused the module.
    #[error("failed to compile the module: {0}")]
    Module(String),
}

/// Cranelift with the configuration that the evaluator runs.
pub struct Compiler(Engine);

impl Compiler {
    /// A compiler for the machine it runs on.
    ///
    /// # Errors
    /// When Cranelift has no backend for it.
    pub fn new() -> Result<Self, CompileError> {
        let mut config = crate::shared_config();
        config.cranelift_opt_level(wasmtime::OptLevel::Speed);
        Engine::new(&config).map(Self).map_err(|error| CompileError::Setup(format!("{error:#}")))
    }

    /// Names the engine version, its settings and this machine's CPU features: an artifact loads only where the key is the
    /// same. 16 hex digits.
    pub fn key(&self) -> String {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        self.0.precompile_compatibility_hash().hash(&mut hasher);
        let mut key = String::with_capacity(16);
        write!(key, "{:016x}", hasher.finish()).expect("writing to a String never fails");
        key
    }

    /// Compiles a core module to the bytes of an artifact.
    ///
    /// # Errors
    /// When the module is not valid under [`crate::features`], or beyond an implementation limit.
    pub fn compile(&self, module: &[u8]) -> Result<Vec<u8>, CompileError> {
        self.0.precompile_module(module).map_err(|error| CompileError::Module(format!("{error:#}")))
    }
}

/// FNV-1a: a hash that is the same in every build, which the standard library does not promise of its own.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
