//! What the host keeps for one call, beside the instance.

use std::collections::HashMap;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use portcullis_process::format_bytes;
use wasmtime::{Instance, Memory, ResourceLimiterAsync};

use super::builtins::{Builtin, Drawn};
use super::failed_calls::FailedCalls;
use super::streams::Streams;
use super::{CallError, Host, Parts};
use crate::memory::InstanceMemory;

/// Bytes of one element of a table.
const ELEMENT: u64 = 8;

/// The host's side of one instance.
pub(crate) struct Context {
    /// When the reply must be there.
    pub(super) deadline: Instant,
    /// What the instance may use of memory and tables, and what it has taken.
    pub(super) growth: Growth,
    /// The exported memory; none before the instance is made.
    pub(super) memory: Option<Memory>,
    /// The policy's rights and log.
    pub(super) host: Arc<Host>,
    /// How the guest's host calls failed.
    pub(super) host_calls: FailedCalls,
    /// waPC: what guest and host hand to each other.
    pub(super) wapc: Exchange,
    /// WASI: arguments and streams.
    pub(super) wasi: Streams,
    /// Rego: the instance and its builtins.
    pub(super) rego: Rego,
}

impl Context {
    /// The context of a call that has not begun.
    pub(super) fn new(host: &Arc<Host>, limits: Limits, deadline: Instant, account: InstanceMemory) -> Self {
        Self {
            deadline,
            growth: Growth { limits, account, scratch: 0, copies: 0 },
            memory: None,
            host: Arc::clone(host),
            host_calls: FailedCalls::default(),
            wapc: Exchange::default(),
            wasi: Streams::default(),
            rego: Rego::default(),
        }
    }
}

/// What the host knows of a Rego instance.
#[derive(Default)]
pub(super) struct Rego {
    /// The instance; none before it is made.
    pub(super) instance: Option<Instance>,
    /// The builtins by the numbers that the module gave them.
    pub(super) builtins: Arc<HashMap<i32, Builtin>>,
    /// Whether a builtin runs, which calls functions of the module for its arguments and its result.
    pub(super) in_builtin: bool,
    /// What is the same for all builtins of the call.
    pub(super) drawn: Drawn,
}

/// What a waPC guest and its host hand to each other in one call.
#[derive(Default)]
pub(super) struct Exchange {
    pub(super) operation: &'static str,
    pub(super) payload: Parts,
    /// The guest's reply, and its error text; none as long as it has given none.
    pub(super) reply: Option<Vec<u8>>,
    pub(super) error: Option<Vec<u8>>,
    /// The reply of the last host call, or its error text.
    pub(super) host_reply: Option<Vec<u8>>,
    pub(super) host_error: Option<String>,
}

/// Bounds on what an instance may grow to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Linear memory, in bytes.
    pub(crate) memory_bytes: usize,
    /// Elements of one table.
    pub(crate) table_elements: usize,
}

/// The growth of an instance: within its limits, and when memory is available.
pub(crate) struct Growth {
    limits: Limits,
    account: InstanceMemory,
    /// Taken for work of the host beside the instance, in bytes.
    scratch: u64,
    /// Taken for texts of the guest of which the host keeps a copy: its reply, or the arguments of a builtin, in bytes.
    copies: u64,
}

/// Gives, once it is known, whether an instance may grow.
type Decision<'a> = Pin<Box<dyn Future<Output = wasmtime::Result<bool>> + Send + 'a>>;

impl Growth {
    /// Takes memory for work that the host does for the instance. Only one such piece of work runs at a time, so memory that an earlier one
    /// took is used again, and only what it lacks is taken.
    pub(super) async fn take_scratch(&mut self, bytes: u64) -> Result<(), CallError> {
        self.take(bytes.saturating_sub(self.scratch)).await?;
        self.scratch = self.scratch.max(bytes);
        Ok(())
    }

    /// Takes memory for copies of the guest's texts, `length` bytes in all, which are kept beside all other work: those of the arguments of a
    /// builtin, or that of the reply until the end. What comes in place of an earlier one takes only what it is longer.
    pub(super) async fn take_copies(&mut self, length: usize) -> Result<(), CallError> {
        let length = bytes(length);
        self.take(length.saturating_sub(self.copies)).await?;
        self.copies = self.copies.max(length);
        Ok(())
    }

    async fn take(&mut self, more: u64) -> Result<(), CallError> {
        if more > 0 {
            self.account.grow(more).await.map_err(|error| CallError::Overloaded(error.to_string()))?;
        }
        Ok(())
    }

    /// The account, with all that was taken from it.
    pub(super) fn into_account(self) -> InstanceMemory {
        self.account
    }

    /// Gives the instance `more` bytes, now or when they become available.
    fn grow<'a>(&'a mut self, more: u64) -> Decision<'a> {
        Box::pin(async move {
            let grown = self.account.grow(more).await;
            grown.map(|()| true).map_err(|error| wasmtime::Error::new(CallError::Overloaded(error.to_string())))
        })
    }
}

/// Growth beyond a limit ends the call. `memory.grow` could also return -1, but a guest that ignores the result would then ask for ever,
/// and one that checks it ends with a trap that hides the cause: so the trap comes from here and names the limit.
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
        refuse(format!("memory grew beyond its limit of {}", format_bytes(bytes(limit))))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fair::claimant::Claimant;
    use crate::memory::{GuestMemory, MemoryPlan};
    use crate::metrics::Metrics;

    const MIB: u64 = 1 << 20;

    #[tokio::test]
    async fn a_reply_is_taken_beside_the_work_of_the_host_and_once() {
        let metrics = Metrics::new().expect("registers");
        let memory = GuestMemory::new(MemoryPlan { floor: 4 * MIB, shared: 0, bodies: 0 }, &metrics);
        let who = Claimant::new(&"cluster/a".parse().expect("an id"));
        let (account, _hold) = memory.account(&who, Instant::now() + Duration::from_millis(50));
        let limits = Limits { memory_bytes: 0, table_elements: 0 };
        let mut growth = Growth { limits, account, scratch: 0, copies: 0 };
        assert_eq!(growth.take_scratch(2 * MIB).await, Ok(()));
        assert_eq!(growth.take_copies(1 << 20).await, Ok(()));
        assert_eq!(growth.take_copies(2 << 20).await, Ok(()), "in place of the first one");
        assert_eq!(growth.take_scratch(MIB).await, Ok(()), "it was taken before");
        assert!(matches!(growth.take_copies(3 << 20).await, Err(CallError::Overloaded(_))), "both are above the floor");
    }
}
