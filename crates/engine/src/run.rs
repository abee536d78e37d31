//! The evaluator's half: an engine with pooled instances that owns its clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use wasmtime::{Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

/// What one instance may use, and how many there are.
#[derive(Debug, Clone, Copy)]
pub struct RunLimits {
    /// Linear memory of one instance, in bytes.
    pub memory_bytes: usize,
    /// Elements of one table.
    pub table_elements: usize,
    /// Instances at the same time, and stacks for them.
    pub instances: u32,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self { memory_bytes: 128 << 20, table_elements: 100_000, instances: 128 }
    }
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
    /// When the address space for the pool cannot be had, or no thread for the clock.
    pub fn new(limits: RunLimits) -> Result<Self, String> {
        Self::with_hook(limits, || {})
    }

    /// [`Self::new`] with a hook that the clock calls before each tick, where a test can make it stop.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_hook(limits: RunLimits, before_tick: impl Fn() + Send + 'static) -> Result<Self, String> {
        let mut pool = PoolingAllocationConfig::default();
        pool.total_core_instances(limits.instances)
            .total_memories(limits.instances)
            .total_tables(limits.instances.saturating_mul(2))
            .total_stacks(limits.instances)
            .max_core_instance_size(4 << 20)
            .max_tables_per_module(2)
            .max_memories_per_module(1)
            .max_memory_size(limits.memory_bytes)
            .table_elements(limits.table_elements)
            // Pages that an instance is likely to touch again are cleared in place, which is cheaper than to give them
            // back and fault them in anew.
            .linear_memory_keep_resident(256 << 10)
            .table_keep_resident(16 << 10)
            .max_unused_warm_slots(limits.instances.min(32));
        let mut config = crate::shared_config();
        config
            .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
            .max_wasm_stack(512 << 10)
            .async_stack_size(1 << 20)
            .wasm_backtrace_max_frames(None);
        let engine = Engine::new(&config).map_err(|error| format!("failed to set up the engine: {error:#}"))?;
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
            .map_err(|error| format!("failed to start the clock's thread: {error}"))?;
        Ok(Self { engine, ticks, limits })
    }

    /// An engine of the same configuration without a pool: it takes modules that the pool refuses as too large, so that
    /// one can say what is. Not for running.
    ///
    /// # Errors
    /// When the engine cannot be set up.
    pub fn unpooled(&self) -> Result<Engine, String> {
        Engine::new(&crate::shared_config()).map_err(|error| format!("failed to set up the engine: {error:#}"))
    }

    /// The wasmtime engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The clock, to be watched.
    pub fn ticks(&self) -> &Ticks {
        &self.ticks
    }

    /// What instances may use.
    pub fn limits(&self) -> RunLimits {
        self.limits
    }
}

impl Ticks {
    fn note(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(millis, Ordering::Relaxed);
    }

    /// How long ago the last tick was.
    pub fn age(&self) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(self.last_millis.load(Ordering::Relaxed)))
    }
}
