//! What the host knows of one call.

use std::sync::Arc;
use std::time::Instant;

use wasmtime::{Memory, ResourceLimiter};

use super::preview1::Streams;
use super::wapc::Exchange;
use super::{CallError, Host};

/// The host's side of one instance.
pub(crate) struct Context {
    /// When the answer must be there.
    pub(super) deadline: Instant,
    /// What the instance may use.
    pub(super) limits: Limits,
    /// The exported memory, once the instance is there.
    pub(super) memory: Option<Memory>,
    /// The policy's rights and log.
    pub(super) host: Arc<Host>,
    /// Whether the guest was refused a capability.
    pub(super) denied: bool,
    /// waPC: what goes back and forth.
    pub(super) wapc: Exchange,
    /// WASI: arguments and streams.
    pub(super) wasi: Streams,
}

impl Context {
    /// The context of a call that has not begun.
    pub(super) fn new(host: &Arc<Host>, limits: Limits, deadline: Instant) -> Self {
        Self {
            deadline,
            limits,
            memory: None,
            host: Arc::clone(host),
            denied: false,
            wapc: Exchange::default(),
            wasi: Streams::default(),
        }
    }
}

/// Bounds on what an instance may grow to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Linear memory, in bytes.
    pub(crate) memory_bytes: usize,
    /// Elements of one table.
    pub(crate) table_elements: usize,
}

/// Growth beyond a limit ends the call. WebAssembly could also be told "no" (a growth of -1), but a guest that does not
/// look at the result would then ask for ever, and one that does ends with a trap that hides the cause: so the trap comes
/// from here and names the limit.
impl ResourceLimiter for Limits {
    fn memory_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        if desired <= self.memory_bytes {
            return Ok(true);
        }
        Err(wasmtime::Error::new(CallError::Trap(format!(
            "memory grew beyond its limit of {} bytes",
            self.memory_bytes
        ))))
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        if desired <= self.table_elements {
            return Ok(true);
        }
        let text = format!("a table grew beyond its limit of {} elements", self.table_elements);
        Err(wasmtime::Error::new(CallError::Trap(text)))
    }
}
