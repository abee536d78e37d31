//! What the host knows of one call.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use wasmtime::{Memory, ResourceLimiterAsync};

use super::preview1::Streams;
use super::wapc::Exchange;
use super::{CallError, Host};
use crate::memory::Lease;

/// Bytes of one element of a table.
const ELEMENT: u64 = 8;

/// The host's side of one instance.
pub(crate) struct Context {
    /// When the answer must be there.
    pub(super) deadline: Instant,
    /// What the instance may use, and has of it.
    pub(super) growth: Growth,
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
    pub(super) fn new(host: &Arc<Host>, limits: Limits, deadline: Instant, lease: Lease) -> Self {
        Self {
            deadline,
            growth: Growth { limits, lease },
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

/// An instance's growth: within its limits, and when there is memory.
pub(crate) struct Growth {
    limits: Limits,
    lease: Lease,
}

/// Whether an instance may grow, once that is known.
type Decision<'a> = Pin<Box<dyn Future<Output = wasmtime::Result<bool>> + Send + 'a>>;

impl Growth {
    /// Lets the instance have `more` bytes, now or when there are some.
    fn grow<'a>(&'a mut self, more: u64) -> Decision<'a> {
        Box::pin(async move {
            let grown = self.lease.grow(more).await;
            grown.map(|()| true).map_err(|error| wasmtime::Error::new(CallError::Overloaded(error.to_string())))
        })
    }
}

/// Growth beyond a limit ends the call. WebAssembly could also be told "no" (a growth of -1), but a guest that does not
/// look at the result would then ask for ever, and one that does ends with a trap that hides the cause: so the trap comes
/// from here and names the limit.
impl ResourceLimiterAsync for Growth {
    fn memory_growing<'a, 'r>(&'a mut self, current: usize, desired: usize, _: Option<usize>) -> Decision<'r>
    where
        'a: 'r,
        Self: 'r,
    {
        let limit = self.limits.memory_bytes;
        if desired <= limit {
            return self.grow(bytes(desired.saturating_sub(current)));
        }
        refuse(format!("memory grew beyond its limit of {limit} bytes"))
    }

    fn table_growing<'a, 'r>(&'a mut self, current: usize, desired: usize, _: Option<usize>) -> Decision<'r>
    where
        'a: 'r,
        Self: 'r,
    {
        let limit = self.limits.table_elements;
        if desired <= limit {
            return self.grow(bytes(desired.saturating_sub(current)) * ELEMENT);
        }
        refuse(format!("a table grew beyond its limit of {limit} elements"))
    }
}

fn refuse<'a>(text: String) -> Decision<'a> {
    Box::pin(ready(Err(wasmtime::Error::new(CallError::Trap(text)))))
}

fn bytes(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
