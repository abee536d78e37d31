//! The waPC calling convention (docs/design/policy-abi.md, section 5).

use std::sync::Arc;
use std::time::Instant;

use wasmtime::{Caller, InstancePre, Linker, ModuleExport, Store, TypedFunc};

use super::context::Limits;
use super::error::quote;
use super::linear_memory::{OutOfBounds, index, parts, slice, slice_mut, write};
use super::{CallError, Context, Host, MAX_REPLY, Operation, Parts, Reply, host, instantiate, store};
use crate::memory::InstanceMemory;

/// Largest error text of a guest that is kept, in bytes; the rest is dropped. Errors quote the first kilobyte of it.
const MAX_ERROR: usize = 64 << 10;

/// A module of this convention, linked.
pub(crate) struct WapcGuest {
    pub(super) pre: InstancePre<Context>,
    pub(super) limits: Limits,
    /// `_start` and `wapc_init`, in this order, if the module has them.
    pub(super) inits: Vec<(&'static str, ModuleExport)>,
    /// `__guest_call`.
    pub(super) call: ModuleExport,
}

impl WapcGuest {
    pub(super) async fn call(
        &self,
        host: &Arc<Host>,
        operation: Operation,
        payload: Parts,
        deadline: Instant,
        account: InstanceMemory,
    ) -> Result<Reply, CallError> {
        let mut context = Context::new(host, self.limits, deadline, account);
        context.wapc.operation = match operation {
            Operation::Validate => "validate",
            Operation::ValidateSettings => "validate_settings",
        };
        context.wapc.payload = payload;
        let mut store = store(self.pre.module().engine(), context);
        let result = self.run(&mut store).await;
        store.data_mut().wasi.log_rest(host);
        match result {
            Err(error) => Err(error.after(&store.data().host_calls)),
            Ok(bytes) => {
                let failed_calls = std::mem::take(&mut store.data_mut().host_calls);
                Ok(Reply::Json { bytes, failed_calls })
            }
        }
    }

    async fn run(&self, store: &mut Store<Context>) -> Result<Vec<u8>, CallError> {
        let instance = instantiate(&self.pre, store).await.map_err(|error| CallError::of(&error).init("start"))?;
        let typed = |error: wasmtime::Error| CallError::Host(format!("failed to find an export: {error:#}"));
        for (name, export) in &self.inits {
            let init: TypedFunc<(), ()> = function(&instance, store, export).map_err(typed)?;
            match init.call_async(&mut *store, ()).await.map_err(|error| CallError::of(&error)) {
                Ok(()) | Err(CallError::Exit(0)) => {}
                Err(error) => return Err(error.init(name)),
            }
        }
        let call: TypedFunc<(i32, i32), i32> = function(&instance, store, &self.call).map_err(typed)?;
        let exchange = &store.data().wapc;
        let lengths = (length(exchange.operation.len()), length(exchange.payload.len()));
        let result = call.call_async(&mut *store, lengths).await.map_err(|error| CallError::of(&error))?;
        let exchange = &mut store.data_mut().wapc;
        let error = exchange.error.take().map(|text| quote(&text));
        match (result, exchange.reply.take()) {
            (0, _) => {
                Err(CallError::Guest(error.unwrap_or_else(|| "No error message set for call failure".to_owned())))
            }
            (_, Some(reply)) => Ok(reply),
            (_, None) => Err(CallError::NoReply(
                error.unwrap_or_else(|| "No error message OR response set for call success".to_owned()),
            )),
        }
    }
}

fn function<P, R>(
    instance: &wasmtime::Instance,
    store: &mut Store<Context>,
    export: &ModuleExport,
) -> wasmtime::Result<TypedFunc<P, R>>
where
    P: wasmtime::WasmParams,
    R: wasmtime::WasmResults,
{
    let function = instance.get_module_export(&mut *store, export).and_then(wasmtime::Extern::into_func);
    function.ok_or_else(|| wasmtime::Error::msg("it is not a function"))?.typed(&*store)
}

/// A length as the guest takes it. Payloads are far below 4 GiB, as bodies and settings have limits.
fn length(len: usize) -> i32 {
    u32::try_from(len).unwrap_or(u32::MAX).cast_signed()
}

/// Defines the imports of module `wapc`.
pub(super) fn add_to_linker(linker: &mut Linker<Context>) -> wasmtime::Result<()> {
    let module = "wapc";
    linker.func_wrap(module, "__guest_request", |mut caller: Caller<'_, Context>, op: i32, msg: i32| {
        let (memory, context) = parts(&mut caller)?;
        let exchange = &context.wapc;
        write(memory, op, exchange.operation.as_bytes())
            .and_then(|()| slice_mut(memory, msg, exchange.payload.len()))
            .map(|buffer| exchange.payload.write(buffer))
            .map_err(|error| outside("__guest_request", error))
    })?;
    linker.func_wrap_async(module, "__guest_response", |mut caller: Caller<'_, Context>, (ptr, len): (i32, i32)| {
        Box::new(async move {
            let (memory, context) = parts(&mut caller)?;
            let reply = slice(memory, ptr, len).map_err(|_| {
                wasmtime::Error::new(CallError::BadReply(format!(
                    "__guest_response: {} bytes at {} are not inside the guest's memory",
                    index(len),
                    index(ptr)
                )))
            })?;
            if reply.len() > MAX_REPLY {
                return Err(wasmtime::Error::new(CallError::ReplyTooLarge));
            }
            // The previous reply is dropped before the new one is copied, so there is never more than one.
            context.wapc.reply = None;
            context.growth.take_copies(reply.len()).await.map_err(wasmtime::Error::new)?;
            context.wapc.reply = Some(reply.to_vec());
            Ok(())
        })
    })?;
    linker.func_wrap(module, "__guest_error", |mut caller: Caller<'_, Context>, ptr: i32, len: i32| {
        let (memory, context) = parts(&mut caller)?;
        let text = slice(memory, ptr, len).map_err(|error| outside("__guest_error", error))?;
        context.wapc.error = Some(text[..text.len().min(MAX_ERROR)].to_vec());
        Ok(())
    })?;
    linker.func_wrap_async(
        module,
        "__host_call",
        |mut caller: Caller<'_, Context>,
         (bd, bd_len, ns, ns_len, op, op_len, ptr, len): (i32, i32, i32, i32, i32, i32, i32, i32)| {
            Box::new(async move {
                let pairs = [(bd, bd_len), (ns, ns_len), (op, op_len), (ptr, len)];
                let exchange = &mut caller.data_mut().wapc;
                // The previous ones are dropped before the call, so there is never more than one.
                (exchange.host_reply, exchange.host_error) = (None, None);
                let reply = host::call(&mut caller, "__host_call", pairs).await?;
                let exchange = &mut caller.data_mut().wapc;
                let success = i32::from(reply.is_ok());
                match reply {
                    Ok(reply) => exchange.host_reply = Some(reply),
                    Err(text) => exchange.host_error = Some(text),
                }
                Ok::<_, wasmtime::Error>(success)
            })
        },
    )?;
    linker.func_wrap(module, "__host_response_len", |caller: Caller<'_, Context>| {
        length(caller.data().wapc.host_reply.as_ref().map_or(0, Vec::len))
    })?;
    linker.func_wrap(module, "__host_response", |mut caller: Caller<'_, Context>, ptr: i32| {
        let (memory, context) = parts(&mut caller)?;
        let reply = context.wapc.host_reply.as_deref().unwrap_or_default();
        write(memory, ptr, reply).map_err(|error| outside("__host_response", error))
    })?;
    linker.func_wrap(module, "__host_error_len", |caller: Caller<'_, Context>| {
        length(caller.data().wapc.host_error.as_ref().map_or(0, String::len))
    })?;
    linker.func_wrap(module, "__host_error", |mut caller: Caller<'_, Context>, ptr: i32| {
        let (memory, context) = parts(&mut caller)?;
        let error = context.wapc.host_error.as_deref().unwrap_or_default();
        write(memory, ptr, error.as_bytes()).map_err(|error| outside("__host_error", error))
    })?;
    linker.func_wrap(module, "__console_log", |mut caller: Caller<'_, Context>, ptr: i32, len: i32| {
        let (memory, context) = parts(&mut caller)?;
        let text = slice(memory, ptr, len).map_err(|error| outside("__console_log", error))?;
        context.host.log.console(text);
        Ok::<_, wasmtime::Error>(())
    })?;
    Ok(())
}

fn outside(function: &str, _: OutOfBounds) -> wasmtime::Error {
    wasmtime::Error::new(CallError::Trap(format!("{function}: a pointer leads out of the guest's memory")))
}
