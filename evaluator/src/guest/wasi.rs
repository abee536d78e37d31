//! The WASI calling convention: a command that is run once a call (docs/design/policy-abi.md, section 6).

use std::sync::Arc;
use std::time::Instant;

use wasmtime::{Caller, InstancePre, Linker, Store};

use super::context::Limits;
use super::error::quote;
use super::{CallError, Context, Host, Operation, Parts, Reply, host, instantiate, store};
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
    ) -> Result<Reply, CallError> {
        let mut context = Context::new(host, self.limits, deadline, account);
        let argument = match operation {
            Operation::Validate => "validate",
            Operation::ValidateSettings => "validate-settings",
        };
        context.wasi.command(argument, payload);
        let mut store = store(self.pre.module().engine(), context);
        let result = run(&self.pre, &mut store).await;
        let failures = std::mem::take(&mut store.data_mut().host_calls);
        let streams = &mut store.data_mut().wasi;
        let said = quote(streams.stderr().trim_ascii());
        streams.log_rest(host);
        match result {
            Ok(()) | Err(CallError::Exit(0)) => {
                Ok(Reply::Json { bytes: streams.take_stdout(), failed_calls: failures })
            }
            // The error text is what the command wrote to standard error; if it wrote nothing, the host's own text is kept.
            Err(error @ (CallError::Exit(_) | CallError::Trap(_))) => {
                let error = if said.is_empty() { error } else { CallError::Guest(said) };
                Err(error.after(&failures))
            }
            Err(error) => Err(error.after(&failures)),
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
        linker.func_wrap_async(
            module,
            "call",
            |mut caller: Caller<'_, Context>,
             (bd, bd_len, ns, ns_len, op, op_len, ptr, len): (i32, i32, i32, i32, i32, i32, i32, i32)| {
                Box::new(async move {
                    let pairs = [(bd, bd_len), (ns, ns_len), (op, op_len), (ptr, len)];
                    let reply = host::call(&mut caller, "host.call", pairs).await?;
                    let failure = i32::from(reply.is_err());
                    let reply = reply.unwrap_or_else(String::into_bytes);
                    let context = caller.data_mut();
                    // Replies that were not read before are kept too, and this one is there twice for a moment.
                    let unread = u64::try_from(context.wasi.unread() + 2 * reply.len()).unwrap_or(u64::MAX);
                    context.growth.take_scratch(unread).await.map_err(wasmtime::Error::new)?;
                    context.wasi.push_reply(&reply).map_err(wasmtime::Error::new)?;
                    Ok::<_, wasmtime::Error>(failure)
                })
            },
        )?;
    }
    Ok(())
}
