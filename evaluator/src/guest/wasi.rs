//! The WASI calling convention: a command that is run once a call (docs/design/policy-abi.md, section 6).

use std::sync::Arc;
use std::time::Instant;

use wasmtime::{Caller, InstancePre, Linker, Store};

use super::context::Limits;
use super::error::quote;
use super::linear_memory::parts;
use super::{CallError, Context, Host, Operation, Parts, host, instantiate, store};
use crate::memory::InstanceMemory;

/// A command, linked.
pub(crate) struct WasiGuest {
    pub(super) pre: InstancePre<Context>,
    pub(super) limits: Limits,
}

impl WasiGuest {
    pub(super) async fn call(
        &self,
        host: &Arc<Host>,
        operation: Operation,
        payload: Parts,
        deadline: Instant,
        account: InstanceMemory,
    ) -> Result<Vec<u8>, CallError> {
        let mut context = Context::new(host, self.limits, deadline, account);
        let argument = match operation {
            Operation::Validate => "validate",
            Operation::ValidateSettings => "validate-settings",
        };
        context.wasi.command(argument, payload);
        let mut store = store(&self.pre, context);
        let result = run(&self.pre, &mut store).await;
        let denied = store.data().denied;
        let streams = &mut store.data_mut().wasi;
        let said = quote(streams.stderr().trim_ascii());
        streams.log_rest(host);
        match result {
            Ok(()) | Err(CallError::Exit(0)) => Ok(streams.take_stdout()),
            // What a command says about its own end is its error text; one that says nothing gets the host's words.
            Err(error @ (CallError::Exit(_) | CallError::Trap(_))) => {
                let error = if said.is_empty() { error } else { CallError::Guest(said) };
                Err(if denied { error.after_denial() } else { error })
            }
            Err(error) => Err(error),
        }
    }
}

async fn run(pre: &InstancePre<Context>, store: &mut Store<Context>) -> Result<(), CallError> {
    let instance = instantiate(pre, store).await.map_err(|error| CallError::of(&error).init("start"))?;
    let start = instance
        .get_typed_func::<(), ()>(&mut *store, "_start")
        .map_err(|error| CallError::Host(format!("failed to find an export: {error:#}")))?;
    start.call_async(&mut *store, ()).await.map_err(|error| CallError::of(&error))
}

/// Defines the host call under both of its names. Its result is 0 on success, unlike waPC's; reply or error text is added
/// to the guest's standard input.
pub(super) fn add_to_linker(linker: &mut Linker<Context>) -> wasmtime::Result<()> {
    for module in ["host", "kubewarden:javy/host"] {
        linker.func_wrap(
            module,
            "call",
            |mut caller: Caller<'_, Context>,
             bd: i32,
             bd_len: i32,
             ns: i32,
             ns_len: i32,
             op: i32,
             op_len: i32,
             ptr: i32,
             len: i32| {
                let (memory, context) = parts(&mut caller)?;
                let call =
                    host::Call::read(memory, [(bd, bd_len), (ns, ns_len), (op, op_len), (ptr, len)]).map_err(|_| {
                        let text = "host.call: a pointer leads out of the guest's memory".to_owned();
                        wasmtime::Error::new(CallError::Trap(text))
                    })?;
                let result = call.run(&context.host, &mut context.denied);
                let failure = i32::from(result.is_err());
                let reply = result.unwrap_or_else(String::into_bytes);
                context.wasi.push_reply(&reply).map_err(wasmtime::Error::new)?;
                Ok::<_, wasmtime::Error>(failure)
            },
        )?;
    }
    Ok(())
}
