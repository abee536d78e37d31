//! The one wasmtime configuration that loader and evaluator share.
//!
//! Code that was compiled under one configuration loads only under the same one, so both programs take it from here. The
//! loader builds this crate with `compile` (Cranelift, no runtime), the evaluator with `run` (runtime, no compiler); no
//! program builds both.
#![forbid(unsafe_code)]

#[cfg(feature = "compile")]
mod compile;
#[cfg(feature = "compile")]
mod direct_jumps;
#[cfg(feature = "compile")]
mod own_memory;
#[cfg(feature = "compile")]
mod preallocated_memory;
#[cfg(feature = "run")]
mod run;

#[cfg(feature = "compile")]
pub use compile::{CompileError, Compiler};
#[cfg(feature = "run")]
pub use run::{
    EngineError, LEAST_KEPT, MOST_KEPT, RunLimits, RunningEngine, STACKS, TABLE_KEPT, TABLES, Ticks,
    finds_written_pages,
};
use wasmtime::{Config, WasmFeatures};

/// The engine and its version, for states and reports.
pub const ENGINE: &str = concat!("wasmtime ", "48");

/// The interval at which the epoch moves. A running guest yields to others this often, and deadlines are met with this
/// precision.
pub const TICK: std::time::Duration = std::time::Duration::from_millis(5);

/// The most that wasmtime allocates for one instance beside its memory and its tables, in bytes: for globals, passive element segments and
/// what describes functions. No budget of the evaluator counts it, so the loader refuses modules that need more. A policy in Go needs a
/// twentieth of it, and one of 64 MiB, the largest module that the loader takes as shipped, would fit.
pub const INSTANCE_BYTES: usize = 3 << 19;

/// WebAssembly proposals that guests may use: what wasmtime has on by default without threads, 64-bit memories, garbage
/// collection and exceptions, plus typed function references (docs/design/policy-abi.md, section 3).
pub fn features() -> WasmFeatures {
    WasmFeatures::WASM2
        | WasmFeatures::TAIL_CALL
        | WasmFeatures::EXTENDED_CONST
        | WasmFeatures::FUNCTION_REFERENCES
        | WasmFeatures::MULTI_MEMORY
        | WasmFeatures::RELAXED_SIMD
}

/// The settings that decide whether compiled code is compatible. All other settings of a [`Config`] may differ.
fn shared_config() -> Config {
    let mut config = Config::new();
    config.wasm_features(WasmFeatures::all(), false);
    config.wasm_features(features(), true);
    config.epoch_interruption(true);
    config
}
