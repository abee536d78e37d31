//! One evaluation in bare wasmtime: fresh pooled instance, initialisation, one call. No server can be faster.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use portcullis_engine::{RunLimits, RunningEngine};
use serde::Serialize;
use wasmtime::{Caller, Extern, InstancePre, Linker, Module, Store};

use crate::report::{Output, Samples, median, print};

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A waPC module. [default: the example against privileged containers]
    #[arg(long)]
    module: Option<PathBuf>,

    /// The number of calls in a round.
    #[arg(long, default_value_t = 3000)]
    calls: usize,

    /// The number of rounds; the medians of their figures are printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

#[derive(Serialize)]
struct Row {
    what: &'static str,
    p50_ms: f64,
    p99_ms: f64,
    per_second: f64,
}

#[derive(Default)]
struct Guest {
    operation: &'static [u8],
    payload: std::sync::Arc<Vec<u8>>,
    response: Vec<u8>,
}

impl Args {
    pub(crate) fn run(&self, output: &Output) -> anyhow::Result<()> {
        let path = self.module.clone().unwrap_or_else(|| crate::pod::examples().join("modules/no-privileged.wasm"));
        let bytes = std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
        let (p50, p99, mean) = measure(&bytes, self.calls, self.rounds)?;
        print(
            output,
            "floor",
            &[Row { what: "fresh instance, init, one call", p50_ms: p50, p99_ms: p99, per_second: 1e3 / mean }],
        )
    }
}

/// p50, p99 and mean in milliseconds, on one core: the medians of the rounds.
pub(crate) fn measure(module: &[u8], calls: usize, rounds: usize) -> anyhow::Result<(f64, f64, f64)> {
    let engine = RunningEngine::new(RunLimits::default()).map_err(anyhow::Error::msg)?;
    let module = Module::new(engine.engine(), module).map_err(|error| anyhow::anyhow!("{error:#}"))?;
    let pre = linker(&engine)
        .and_then(|linker| linker.instantiate_pre(&module))
        .map_err(|error| anyhow::anyhow!("{error:#}"))?;
    let review: serde_json::Value = serde_json::from_slice(&crate::review::pod(false))?;
    let payload =
        std::sync::Arc::new(serde_json::json!({"request": review["request"], "settings": {}}).to_string().into_bytes());
    call(&engine, &pre, &payload).map_err(|error| anyhow::anyhow!("{error:#}"))?;
    let (mut p50, mut p99, mut mean) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut samples = Samples::default();
        let round = Instant::now();
        for _ in 0..calls {
            let start = Instant::now();
            call(&engine, &pre, &payload).map_err(|error| anyhow::anyhow!("{error:#}"))?;
            samples.push(start.elapsed());
        }
        #[expect(clippy::cast_precision_loss, reason = "far fewer calls than a float has exact integers")]
        mean.push(round.elapsed().as_secs_f64() * 1e3 / calls as f64);
        p50.push(samples.quantile(0.5));
        p99.push(samples.quantile(0.99));
    }
    Ok((median(p50), median(p99), median(mean)))
}

fn call(engine: &RunningEngine, pre: &InstancePre<Guest>, payload: &std::sync::Arc<Vec<u8>>) -> wasmtime::Result<()> {
    let guest = Guest { operation: b"validate", payload: std::sync::Arc::clone(payload), response: Vec::new() };
    let mut store = Store::new(engine.engine(), guest);
    // A deadline that is never reached.
    store.set_epoch_deadline(1 << 20);
    let instance = pre.instantiate(&mut store)?;
    for name in ["_start", "wapc_init"] {
        if let Some(function) = instance.get_func(&mut store, name) {
            function.typed::<(), ()>(&store)?.call(&mut store, ())?;
        }
    }
    let function = instance.get_typed_func::<(i32, i32), i32>(&mut store, "__guest_call")?;
    let lengths = (i32::try_from("validate".len())?, i32::try_from(payload.len())?);
    let result = function.call(&mut store, lengths)?;
    let response: serde_json::Value = serde_json::from_slice(&store.data().response)?;
    wasmtime::ensure!(result == 1 && response["accepted"] == true, "the policy answered {response}");
    Ok(())
}

fn linker(engine: &RunningEngine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine.engine());
    linker.func_wrap(
        "wapc",
        "__guest_request",
        |mut caller: Caller<'_, Guest>, operation: i32, payload: i32| -> wasmtime::Result<()> {
            let (name, bytes) = (caller.data().operation, std::sync::Arc::clone(&caller.data().payload));
            let memory = memory(&mut caller)?;
            memory.write(&mut caller, address(operation), name)?;
            memory.write(&mut caller, address(payload), &bytes)?;
            Ok(())
        },
    )?;
    linker.func_wrap(
        "wapc",
        "__guest_response",
        |mut caller: Caller<'_, Guest>, at: i32, length: i32| -> wasmtime::Result<()> {
            let memory = memory(&mut caller)?;
            let response = memory.data(&caller).get(address(at)..address(at) + address(length)).map(<[u8]>::to_vec);
            caller.data_mut().response = response.unwrap_or_default();
            Ok(())
        },
    )?;
    linker.func_wrap("wapc", "__guest_error", |_: i32, _: i32| ())?;
    linker.func_wrap("wapc", "__console_log", |_: i32, _: i32| ())?;
    linker.func_wrap("wapc", "__host_call", |_: i32, _: i32, _: i32, _: i32, _: i32, _: i32, _: i32, _: i32| 0)?;
    linker.func_wrap("wapc", "__host_response_len", || 0)?;
    linker.func_wrap("wapc", "__host_response", |_: i32| ())?;
    linker.func_wrap("wapc", "__host_error_len", || 0)?;
    linker.func_wrap("wapc", "__host_error", |_: i32| ())?;
    Ok(linker)
}

fn memory(caller: &mut Caller<'_, Guest>) -> wasmtime::Result<wasmtime::Memory> {
    caller
        .get_export("memory")
        .and_then(Extern::into_memory)
        .ok_or_else(|| wasmtime::format_err!("no memory is exported"))
}

/// A guest's pointer or length: its 32 bits, unsigned.
fn address(value: i32) -> usize {
    usize::try_from(value.cast_unsigned()).unwrap_or(usize::MAX)
}
