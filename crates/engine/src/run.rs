//! The evaluator's half: an engine with pooled instances that owns its clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use wasmtime::{Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

/// What one instance may use, and how many there may be.
#[derive(Debug, Clone, Copy)]
pub struct RunLimits {
    /// The largest linear memory of one instance, in bytes.
    pub memory_bytes: usize,
    /// The most elements of one table.
    pub table_elements: usize,
    /// The most instances at the same time, each with its [`STACKS`].
    pub instances: u32,
    /// How much of the memory that an instance wrote may stay resident for the next one, in bytes. It is limited to [`MOST_KEPT`], and to
    /// [`LEAST_KEPT`] where [`finds_written_pages`] is false.
    pub kept_bytes: usize,
}

/// The most tables of one instance: compilers write one, for function pointers, and a second one for references where they use them.
pub const TABLES: u32 = 2;
/// The beginning of a linear memory that stays resident between two instances in any case, in bytes. Pages that an instance is likely to
/// touch again are cleared in place, which is cheaper than giving them back and faulting them in again.
pub const LEAST_KEPT: usize = 256 << 10;
/// The most of a linear memory that stays resident where the kernel tells which pages were written, in bytes: what guests of all
/// languages write in a call. Only written pages are cleared, so more costs nothing but memory.
pub const MOST_KEPT: usize = 4 << 20;
/// How much of a table stays resident, in bytes: four thousand elements. A command in Go has a table of all its functions, two thousand
/// and more, and uses them from the first to the last.
pub const TABLE_KEPT: usize = 32 << 10;
/// How many free slots keep their pages. More would hold memory for a load that is rare.
const WARM_SLOTS: u32 = 32;
/// The stack that WebAssembly may use, as wasmtime's own default: recursion beyond it ends with a trap.
const WASM_STACK: usize = 512 << 10;
/// A whole stack: half of it is left for host functions, which run on it as well.
const STACK: usize = 2 * WASM_STACK;
/// The most stacks of one instance. A host function that calls a function of the guest, as the builtins of Rego do, runs that on a stack
/// of its own, and wasmtime keeps it until the instance is gone.
pub const STACKS: u32 = 2;

impl Default for RunLimits {
    fn default() -> Self {
        Self { memory_bytes: 128 << 20, table_elements: 100_000, instances: 128, kept_bytes: MOST_KEPT }
    }
}

/// Whether the kernel tells which pages of a memory were written (`PAGEMAP_SCAN`, since Linux 6.7). The next instance's memory is then
/// cleared page by page, without giving it back to the kernel, which saves a third of the CPU time of a small policy.
///
/// The first call opens what this needs, `/proc/self/pagemap`: a process that confines itself calls it before.
pub fn finds_written_pages() -> bool {
    PoolingAllocationConfig::is_pagemap_scan_available()
}

/// Why the engine could not be started.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// wasmtime refuses the configuration, or the address space for the pool cannot be reserved.
    #[error("failed to set up the engine: {0:#}")]
    Setup(wasmtime::Error),
    /// The clock's thread cannot be started.
    #[error("failed to start the clock's thread: {0}")]
    Clock(std::io::Error),
}

/// The evaluator's engine. Its epoch moves every [`crate::TICK`] for as long as the engine lives: building the engine
/// starts the clock, so deadlines cannot be forgotten.
#[derive(Clone)]
pub struct RunningEngine {
    engine: Engine,
    ticks: Ticks,
    limits: RunLimits,
}

/// The time of the last tick, for a watcher with a clock of its own.
#[derive(Clone)]
pub struct Ticks {
    start: Instant,
    last_millis: Arc<AtomicU64>,
}

impl RunningEngine {
    /// An engine with room for `limits.instances` instances.
    ///
    /// # Errors
    /// When the address space for the pool cannot be reserved, or the clock's thread cannot be started.
    pub fn new(limits: RunLimits) -> Result<Self, EngineError> {
        Self::with_hook(limits, || {})
    }

    /// [`Self::new`] with a hook that the clock calls before each tick, where a test can make it stop.
    ///
    /// # Errors
    /// The same as those of [`Self::new`].
    pub fn with_hook(limits: RunLimits, before_tick: impl Fn() + Send + 'static) -> Result<Self, EngineError> {
        // Without the scan, all that is kept must be cleared, written or not.
        let most = if finds_written_pages() { MOST_KEPT } else { LEAST_KEPT };
        let mut pool = PoolingAllocationConfig::default();
        pool.total_core_instances(limits.instances)
            .total_memories(limits.instances)
            .total_tables(limits.instances.saturating_mul(TABLES))
            .total_stacks(limits.instances.saturating_mul(STACKS))
            .max_core_instance_size(crate::INSTANCE_BYTES)
            .max_tables_per_module(TABLES)
            .max_memories_per_module(1)
            .max_memory_size(limits.memory_bytes)
            .table_elements(limits.table_elements)
            .pagemap_scan(Enabled::Auto)
            .linear_memory_keep_resident(limits.kept_bytes.min(most))
            .table_keep_resident(TABLE_KEPT)
            .max_unused_warm_slots(limits.instances.min(WARM_SLOTS));
        let mut config = crate::shared_config();
        config
            .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
            .max_wasm_stack(WASM_STACK)
            .async_stack_size(STACK)
            .wasm_backtrace_max_frames(None);
        let engine = Engine::new(&config).map_err(EngineError::Setup)?;
        let ticks = Ticks { start: Instant::now(), last_millis: Arc::default() };
        let (weak, clock) = (engine.weak(), ticks.clone());
        thread::Builder::new()
            .name("epoch".into())
            .spawn(move || {
                while let Some(engine) = weak.upgrade() {
                    before_tick();
                    engine.increment_epoch();
                    drop(engine);
                    clock.note();
                    thread::sleep(crate::TICK);
                }
            })
            .map_err(EngineError::Clock)?;
        Ok(Self { engine, ticks, limits })
    }

    /// An engine of the same configuration without a pool. It accepts modules that the pool refuses as too large, so that the error can
    /// name what is too large. It is not for running guests.
    ///
    /// # Errors
    /// When the engine cannot be set up.
    pub fn unpooled(&self) -> Result<Engine, EngineError> {
        Engine::new(&crate::shared_config()).map_err(EngineError::Setup)
    }

    /// The wasmtime engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The clock's ticks, for a watcher.
    pub fn ticks(&self) -> &Ticks {
        &self.ticks
    }

    /// The limits of instances.
    pub fn limits(&self) -> RunLimits {
        self.limits
    }
}

impl Ticks {
    fn note(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(millis, Ordering::Relaxed);
    }

    /// The time since the last tick.
    pub fn age(&self) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(self.last_millis.load(Ordering::Relaxed)))
    }
}
