//! Whether a module fits this host: imports, exports and their types (docs/design/policy-abi.md, sections 3, 5 and 6).

use portcullis_contract::{ExecutionMode, Reason, clean};
use portcullis_engine::RunningEngine;
use wasmtime::{ExternType, Linker, Module, UnknownImportError, ValType};

use super::context::{Context, Limits};
use super::preview1;
use super::rego::{self, RegoGuest};
use super::wapc::{self, WapcGuest};
use super::wasi::{self, WasiGuest};

/// Longest name of an import or export that an error quotes, in bytes.
const MAX_NAME: usize = 256;

/// What this host offers to modules.
pub(crate) struct Guests {
    engine: RunningEngine,
    wapc: Linker<Context>,
    wasi: Linker<Context>,
    /// Without the memory, which each instance has of its own.
    rego: Linker<Context>,
}

/// A module that fits, ready to be instantiated.
pub(crate) enum Guest {
    /// A module of mode `kubewarden-wapc`.
    Wapc(WapcGuest),
    /// A module of mode `wasi`.
    Wasi(WasiGuest),
    /// A module of mode `opa` or `gatekeeper`.
    Rego(Box<RegoGuest>),
}

/// Why a module does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkError {
    /// It imports something that this host does not have; most often the module is made for another host.
    #[error("the module imports {0}, which this host does not have")]
    UnknownImport(String),
    /// It imports something with another type.
    #[error("the module's imports do not fit: {0}")]
    Import(String),
    /// It lacks an export that its calling convention needs, or has it with another type.
    #[error("the module has no export {export}, which execution mode {} needs; check the mode in its metadata", mode.as_str())]
    Export {
        /// The export, with its type.
        export: &'static str,
        /// The calling convention.
        mode: ExecutionMode,
    },
}

impl LinkError {
    /// The reason of the failure.
    pub(crate) fn reason(&self) -> Reason {
        Reason::ModuleUnsupported
    }
}

impl Guests {
    /// The host functions of every calling convention.
    ///
    /// # Errors
    /// Never, with the names defined here.
    pub(crate) fn new(engine: RunningEngine) -> Result<Self, wasmtime::Error> {
        let mut wapc = Linker::new(engine.engine());
        wapc::add_to_linker(&mut wapc)?;
        preview1::add_to_linker(&mut wapc)?;
        let mut wasi = Linker::new(engine.engine());
        wasi::add_to_linker(&mut wasi)?;
        preview1::add_to_linker(&mut wasi)?;
        let mut rego = Linker::new(engine.engine());
        rego::add_to_linker(&mut rego)?;
        Ok(Self { engine, wapc, wasi, rego })
    }

    /// Links a module.
    ///
    /// # Errors
    /// When its imports or exports are not those of `mode`.
    pub(crate) fn link(&self, module: &Module, mode: ExecutionMode) -> Result<Guest, LinkError> {
        let limits = self.engine.limits();
        let limits = Limits { memory_bytes: limits.memory_bytes, table_elements: limits.table_elements };
        let need = |export, found| if found { Ok(()) } else { Err(LinkError::Export { export, mode }) };
        match mode {
            ExecutionMode::KubewardenWapc => {
                let pre = self.wapc.instantiate_pre(module).map_err(|error| import_error(&error))?;
                need("memory (a memory)", has_memory(module))?;
                need("__guest_call (a function of two i32 that gives an i32)", is_guest_call(module))?;
                let call = module.get_export_index("__guest_call");
                let call = call.ok_or(LinkError::Export { export: "__guest_call", mode })?;
                let mut inits = Vec::new();
                for name in ["_start", "wapc_init"] {
                    if let Some(export) = module.get_export_index(name) {
                        need("_start or wapc_init without parameters and results", is_procedure(module, name))?;
                        inits.push((name, export));
                    }
                }
                Ok(Guest::Wapc(WapcGuest { pre, limits, inits, call }))
            }
            ExecutionMode::Wasi => {
                let pre = self.wasi.instantiate_pre(module).map_err(|error| import_error(&error))?;
                need("memory (a memory)", has_memory(module))?;
                need("_start (a function without parameters and results)", is_procedure(module, "_start"))?;
                Ok(Guest::Wasi(WasiGuest { pre, limits }))
            }
            ExecutionMode::Opa | ExecutionMode::Gatekeeper => {
                let is_offered = |import: &wasmtime::ImportType<'_>| {
                    import.module() == "env" && (import.name() == "memory" || import.name().starts_with("opa_"))
                };
                if let Some(import) = module.imports().find(|import| !is_offered(import)) {
                    return Err(unknown_import(import.module(), import.name()));
                }
                rego::check(module).map_err(|export| LinkError::Export { export, mode })?;
                let pre = self.rego.instantiate_pre(module).map_err(|error| import_error(&error))?;
                Ok(Guest::Rego(Box::new(RegoGuest::new(pre, limits, mode))))
            }
        }
    }
}

fn import_error(error: &wasmtime::Error) -> LinkError {
    match error.downcast_ref::<UnknownImportError>() {
        Some(import) => unknown_import(import.module(), import.name()),
        None => LinkError::Import(clean(&format!("{error:#}"), MAX_NAME)),
    }
}

fn unknown_import(module: &str, name: &str) -> LinkError {
    let name = format!("{}::{}", clean(module, MAX_NAME), clean(name, MAX_NAME));
    LinkError::UnknownImport(clean(&name, MAX_NAME))
}

fn has_memory(module: &Module) -> bool {
    matches!(module.get_export("memory"), Some(ExternType::Memory(_)))
}

fn is_procedure(module: &Module, name: &str) -> bool {
    matches!(module.get_export(name), Some(ExternType::Func(ty)) if ty.params().len() == 0 && ty.results().len() == 0)
}

fn is_guest_call(module: &Module) -> bool {
    let Some(ExternType::Func(ty)) = module.get_export("__guest_call") else { return false };
    let is_i32 = |ty: ValType| matches!(ty, ValType::I32);
    ty.params().len() == 2 && ty.params().all(is_i32) && ty.results().len() == 1 && ty.results().all(is_i32)
}
