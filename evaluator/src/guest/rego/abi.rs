//! The functions by which a module and its host call each other, with every address taken as hostile.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde_json::Value;
use wasmtime::{AsContextMut, Caller, ExternType, Linker, Module, Store};

use super::super::builtins::{self, BuiltinError, Effort, MAX_TEXT, Work};
use super::super::error::quote;
use super::super::linear_memory::{exported, index};
use super::super::{CallError, Context, MAX_REPLY};
use crate::verdict::offload;
use crate::verdict::reply::decode_any;

/// Longest text of the names of the builtins that a module asks for, in bytes: modules name a few of a hundred. It is read where the evaluation
/// runs.
const MAX_NAMES: usize = 64 << 10;
/// Longest text of `print`, `trace` or an abort that is read, in bytes.
const MAX_LOGGED: usize = 64 << 10;

/// The names of the exports with their types, as an error shows them.
const EXPORTS: [(&str, usize, usize, &str); 10] = [
    ("opa_malloc", 1, 1, "opa_malloc (a function of an i32 that gives an i32)"),
    ("opa_json_parse", 2, 1, "opa_json_parse (a function of two i32 that gives an i32)"),
    ("opa_json_dump", 1, 1, "opa_json_dump (a function of an i32 that gives an i32)"),
    ("builtins", 0, 1, "builtins (a function that gives an i32)"),
    ("opa_eval_ctx_new", 0, 1, "opa_eval_ctx_new (a function that gives an i32)"),
    ("opa_eval_ctx_set_input", 2, 0, "opa_eval_ctx_set_input (a function of two i32)"),
    ("opa_eval_ctx_set_data", 2, 0, "opa_eval_ctx_set_data (a function of two i32)"),
    ("opa_eval_ctx_set_entrypoint", 2, 0, "opa_eval_ctx_set_entrypoint (a function of two i32)"),
    ("eval", 1, 1, "eval (a function of an i32 that gives an i32)"),
    ("opa_eval_ctx_get_result", 1, 1, "opa_eval_ctx_get_result (a function of an i32 that gives an i32)"),
];

/// The export that a module lacks, or has with another type.
pub(in super::super) fn check(module: &Module) -> Result<(), &'static str> {
    let is_i32 = |ty: wasmtime::ValType| matches!(ty, wasmtime::ValType::I32);
    for (name, params, results, shown) in EXPORTS {
        let Some(ExternType::Func(ty)) = module.get_export(name) else { return Err(shown) };
        let fits = ty.params().len() == params && ty.results().len() == results;
        if !fits || !ty.params().chain(ty.results()).all(is_i32) {
            return Err(shown);
        }
    }
    match module.get_export("memory") {
        Some(ExternType::Memory(memory)) if !memory.is_64() && !memory.is_shared() && memory.page_size_log2() == 16 => {
            Ok(())
        }
        _ => Err("memory (a memory of 32 bits for itself)"),
    }
}

/// Calls an export of the instance.
async fn call<P, R>(store: &mut impl AsContextMut<Data = Context>, export: &str, parameters: P) -> Result<R, CallError>
where
    P: wasmtime::WasmParams + Sync,
    R: wasmtime::WasmResults + Sync,
{
    let mut context = store.as_context_mut();
    // A start function may call a builtin before there is an instance.
    let started = context.data().rego.instance;
    let instance =
        started.ok_or_else(|| CallError::Trap("the module calls its host before it has started".to_owned()))?;
    let missing = |error: wasmtime::Error| CallError::Host(format!("failed to find an export: {error:#}"));
    let function = instance.get_typed_func::<P, R>(&mut context, export).map_err(missing)?;
    function.call_async(context, parameters).await.map_err(|error| CallError::of(&error))
}

/// Puts a JSON text into the guest's memory as a value, and gives its address. The text is given in parts, one after the other.
pub(super) async fn push(store: &mut impl AsContextMut<Data = Context>, parts: &[&[u8]]) -> Result<i32, CallError> {
    let length = parts.iter().map(|part| part.len()).sum::<usize>();
    let length = i32::try_from(length).map_err(|_| CallError::Limit("a value is above 2 GiB".to_owned()))?;
    let address = call(store, "opa_malloc", length).await?;
    let memory = memory(store)?;
    let mut at = index(address);
    for part in parts {
        let written = memory.write(store.as_context_mut(), at, part);
        written.map_err(|_| CallError::Trap("opa_malloc: an address leads out of the guest's memory".to_owned()))?;
        at += part.len();
    }
    match call(store, "opa_json_parse", (address, length)).await? {
        0 => Err(CallError::Guest("the module's JSON parser refuses a value".to_owned())),
        value => Ok(value),
    }
}

/// The JSON text of a value in the guest's memory, of at most `limit` bytes. The host keeps it beside texts of `kept` bytes.
async fn pull(
    store: &mut impl AsContextMut<Data = Context>,
    value: i32,
    limit: usize,
    kept: usize,
) -> Result<Option<Vec<u8>>, CallError> {
    let address = call(store, "opa_json_dump", value).await?;
    let memory = memory(store)?;
    let mut context = store.as_context_mut();
    let Some(length) = text(memory.data(&context), address, limit)?.map(<[u8]>::len) else { return Ok(None) };
    // The memory is taken from the instance's budget before the text is copied.
    context.data_mut().growth.take_copies(kept + length).await?;
    Ok(Some(memory.data(&context)[index(address)..][..length].to_vec()))
}

/// The text at an address, which ends with a zero byte; none if it is longer than `limit`.
fn text(memory: &[u8], address: i32, limit: usize) -> Result<Option<&[u8]>, CallError> {
    let outside = || CallError::Trap("a text leads out of the guest's memory".to_owned());
    let from = memory.get(index(address)..).ok_or_else(outside)?;
    let window = &from[..from.len().min(limit + 1)];
    match window.iter().position(|byte| *byte == 0) {
        Some(end) => Ok(Some(&window[..end])),
        None if window.len() > limit => Ok(None),
        None => Err(outside()),
    }
}

fn memory(store: &mut impl AsContextMut<Data = Context>) -> Result<wasmtime::Memory, CallError> {
    let memory = store.as_context_mut().data().memory;
    memory.ok_or_else(|| CallError::Host("a Rego instance has no memory".to_owned()))
}

/// The names and numbers of the builtins that a module asks its host for.
pub(super) async fn builtins(store: &mut Store<Context>) -> Result<BTreeMap<String, i32>, CallError> {
    let address = call(store, "builtins", ()).await?;
    let too_many =
        || CallError::Limit(format!("builtins: the names that the module gives are above {MAX_NAMES} bytes"));
    let named = pull(store, address, MAX_NAMES, 0).await?.ok_or_else(too_many)?;
    let unreadable =
        || CallError::Trap("builtins: what the module gives is not an object of names and numbers".to_owned());
    serde_json::from_slice(&named).map_err(|_| unreadable())
}

/// Evaluates an entrypoint, and gives the JSON text of the result.
pub(super) async fn evaluate(
    store: &mut Store<Context>,
    entrypoint: i32,
    input: i32,
    data: i32,
) -> Result<Vec<u8>, CallError> {
    let context: i32 = call(store, "opa_eval_ctx_new", ()).await?;
    call::<_, ()>(store, "opa_eval_ctx_set_input", (context, input)).await?;
    call::<_, ()>(store, "opa_eval_ctx_set_data", (context, data)).await?;
    call::<_, ()>(store, "opa_eval_ctx_set_entrypoint", (context, entrypoint)).await?;
    call::<_, i32>(store, "eval", context).await?;
    let address = call(store, "opa_eval_ctx_get_result", context).await?;
    pull(store, address, MAX_REPLY, 0).await?.ok_or(CallError::ReplyTooLarge)
}

/// Runs a builtin. A builtin that is called while another one runs ends the call: no module that OPA made does that, and each level would
/// take stack of the host.
async fn run_builtin(caller: &mut Caller<'_, Context>, id: i32, arguments: &[i32]) -> Result<i32, CallError> {
    if std::mem::replace(&mut caller.data_mut().rego.in_builtin, true) {
        return Err(CallError::Trap("the module calls a builtin while another one runs".to_owned()));
    }
    let result = answer(caller, id, arguments).await;
    caller.data_mut().rego.in_builtin = false;
    result
}

/// Runs a builtin on values in the guest's memory. The memory that the host needs is taken from the instance's budget first.
async fn answer(caller: &mut Caller<'_, Context>, id: i32, arguments: &[i32]) -> Result<i32, CallError> {
    let found = caller.data().rego.builtins.get(&id).copied();
    let builtin =
        found.ok_or_else(|| CallError::Trap(format!("the module calls the builtin {id}, which it did not name")))?;
    let failed = |error: BuiltinError| match error {
        BuiltinError::TimedOut => CallError::TimedOut { may_pass: None },
        error => CallError::Guest(format!("{}: {error}", builtin.name)),
    };
    let too_large = || CallError::Limit(format!("{}: its values are above {MAX_TEXT} bytes", builtin.name));
    let (mut values, mut size) = (Vec::with_capacity(arguments.len()), 0);
    for argument in arguments {
        let text = pull(caller, *argument, MAX_TEXT - size, size).await?.ok_or_else(too_large)?;
        size += text.len();
        values.push(text);
    }
    let context = caller.data_mut();
    let (once, deadline, memory) = (context.rego.drawn.get(), context.deadline, builtins::memory_for(&values));
    let arguments = Arc::new(values);
    let values = Arc::clone(&arguments);
    let run = move |effort| -> Result<Option<Vec<u8>>, BuiltinError> {
        let work = Work::new(effort, deadline);
        // It may have waited for its thread.
        work.in_time()?;
        let values = values.iter().map(|text| decode_any(text)).collect::<Result<Vec<Value>, _>>()?;
        encoded(&(builtin.run)(&builtins::Arguments::new(values, once, work))?)
    };
    let little = if size <= offload::SMALL {
        context.growth.take_scratch(memory + Effort::Little.memory()).await?;
        Some(run(Effort::Little)).filter(|done| !done.as_ref().is_err_and(BuiltinError::is_effort))
    } else {
        None
    };
    let done = match little {
        Some(done) => done,
        // Small arguments may mean much work: then it begins again on a thread of its own.
        None => {
            context.growth.take_scratch(memory + Effort::Full.memory()).await?;
            let who = Arc::clone(&context.host.who);
            offload::work(&who, size.max(offload::SMALL + 1), move || run(Effort::Full)).await
        }
    };
    let text = done.map_err(failed)?.ok_or_else(too_large)?;
    if let Some(line) = (builtin.log_line)(&arguments, &text) {
        caller.data().host.log.console(line.as_bytes());
    }
    push(caller, &[&text]).await
}

/// The JSON text of a builtin's result; none if it is above the limit.
fn encoded(value: &Value) -> Result<Option<Vec<u8>>, BuiltinError> {
    let mut text = Bounded(Vec::new());
    match serde_json::to_writer(&mut text, value) {
        Ok(()) => Ok(Some(text.0)),
        Err(error) if error.is_io() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A text that takes no more than [`MAX_TEXT`]: escapes make a text of a few megabytes six times as long.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if more.len() > MAX_TEXT - self.0.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Defines the imports of module `env`, except for the memory: the loader changes modules so that they have their own.
pub(in super::super) fn add_to_linker(linker: &mut Linker<Context>) -> wasmtime::Result<()> {
    let module = "env";
    linker.func_wrap(module, "opa_abort", |mut caller: Caller<'_, Context>, address: i32| {
        let message = message(&mut caller, address);
        Err::<(), _>(wasmtime::Error::new(CallError::Guest(message)))
    })?;
    linker.func_wrap(module, "opa_println", |mut caller: Caller<'_, Context>, address: i32| {
        let message = message(&mut caller, address);
        caller.data().host.log.console(message.as_bytes());
    })?;
    linker.func_wrap_async(module, "opa_builtin0", |mut caller, (id, _): (i32, i32)| {
        Box::new(async move { run_builtin(&mut caller, id, &[]).await.map_err(wasmtime::Error::new) })
    })?;
    linker.func_wrap_async(module, "opa_builtin1", |mut caller, (id, _, a): (i32, i32, i32)| {
        Box::new(async move { run_builtin(&mut caller, id, &[a]).await.map_err(wasmtime::Error::new) })
    })?;
    linker.func_wrap_async(module, "opa_builtin2", |mut caller, (id, _, a, b): (i32, i32, i32, i32)| {
        Box::new(async move { run_builtin(&mut caller, id, &[a, b]).await.map_err(wasmtime::Error::new) })
    })?;
    linker.func_wrap_async(module, "opa_builtin3", |mut caller, (id, _, a, b, c): (i32, i32, i32, i32, i32)| {
        Box::new(async move { run_builtin(&mut caller, id, &[a, b, c]).await.map_err(wasmtime::Error::new) })
    })?;
    linker.func_wrap_async(
        module,
        "opa_builtin4",
        |mut caller, (id, _, a, b, c, d): (i32, i32, i32, i32, i32, i32)| {
            Box::new(async move { run_builtin(&mut caller, id, &[a, b, c, d]).await.map_err(wasmtime::Error::new) })
        },
    )?;
    Ok(())
}

/// A message of the guest, cleaned and cut for users.
fn message(caller: &mut Caller<'_, Context>, address: i32) -> String {
    let Ok(memory) = exported(caller) else { return String::new() };
    match text(memory.data(&*caller), address, MAX_LOGGED) {
        Ok(Some(text)) => quote(text),
        Ok(None) => "a text that is too long to show".to_owned(),
        Err(error) => error.to_string(),
    }
}
