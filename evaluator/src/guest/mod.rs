//! Runs guests: each call in a fresh instance, in one of the calling conventions that a policy may have.
//!
//! [`Guests`] links modules to what this host offers; a [`Guest`] is a module that fits, and [`loaded::Loaded`] one that serves. Nothing
//! of one call is left for the next: instance, memory and [`Context`] are made for each call.
//!
//! What this program keeps for one call beside the guest's own memory, all of it limited:
//!
//! | buffer | limit | above |
//! | --- | --- | --- |
//! | request and settings, which the guest reads | the largest body and the largest settings | never built |
//! | reply: of `__guest_response`, or standard output | 8 MiB: the largest body with room for more | `ResponseTooLarge` |
//! | replies of host calls that a command has not read | 64 KiB | trap |
//! | last reply or error of a host call, waPC | one text of 1 KiB | never built |
//! | error text of a guest | 64 KiB | dropped |
//! | standard error, and standard output where it is no reply | 64 KiB | dropped |
//! | a log event while it is decoded | 16 KiB | logged as it is, cut |
//! | one poll | 1,024 subscriptions | refused |
//! | arguments and result of a builtin, Rego | 2 MiB of JSON; taken from the instance's memory budget | error |
//!
//! A host call does a bounded amount of work and returns to the guest, where the deadline is checked: a guest that calls its host for
//! ever ends with its deadline, like one that loops.

mod builtins;
mod context;
mod error;
mod host;
mod linear_memory;
mod link;
pub(crate) mod loaded;
mod log;
mod parts;
mod preview1;
mod rego;
mod streams;
mod wapc;
mod wasi;

pub(crate) use context::Context;
pub(crate) use error::CallError;
pub(crate) use host::Grants;
pub(crate) use link::{Guest, Guests, LinkError};
pub(crate) use log::GuestLog;
pub(crate) use parts::Parts;

use std::sync::Arc;
use std::time::Instant;

use wasmtime::{Instance, Store, Trap, UpdateDeadline};

use crate::fair::claimant::Claimant;
use crate::memory::{GuestMemory, InstanceMemory, MemoryHold};

/// Largest reply of a guest, in bytes.
pub(crate) const MAX_REPLY: usize = 8 << 20;

/// The number of ticks until a guest yields for the first time. The first tick may come at once, so two is the least number that leaves a
/// short call alone for one whole tick.
const FIRST_YIELD: u64 = 2;

/// What a policy may do and where its output goes; the same for all its calls.
pub(crate) struct Host {
    /// The host capabilities it may use.
    pub(crate) grants: Grants,
    /// Where its log lines go.
    pub(crate) log: GuestLog,
    /// The memory of its instances, and the policy that takes it.
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) who: Arc<Claimant>,
}

impl Host {
    /// The same host for another generation.
    pub(crate) fn renumbered(&self, generation: i64) -> Self {
        let (memory, who) = (Arc::clone(&self.memory), Arc::clone(&self.who));
        Self { grants: self.grants.clone(), log: self.log.renumbered(generation), memory, who }
    }

    /// An account for an instance that must have ended at `deadline`.
    pub(crate) fn account(&self, deadline: Instant) -> (InstanceMemory, Arc<MemoryHold>) {
        self.memory.account(&self.who, deadline)
    }

    /// A host that grants nothing else, for tests.
    #[cfg(test)]
    pub(crate) fn test(grants: &[String]) -> Self {
        let metrics = crate::metrics::Metrics::new().expect("registers");
        Self {
            grants: Grants::new(grants),
            log: GuestLog::test(),
            memory: GuestMemory::new(crate::memory::MemoryPlan::unlimited(), &metrics),
            who: Claimant::new(&"cluster/a".parse().expect("an id")),
        }
    }
}

/// What a guest is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Judge a request; the payload is `{"request":…,"settings":…}`.
    Validate,
    /// Judge settings; the payload is the settings.
    ValidateSettings,
}

impl Guest {
    /// Calls a fresh instance once and gives its reply. The instance's memory is taken from `account`.
    ///
    /// # Errors
    /// When the guest cannot start, fails, takes longer than until `deadline`, or does not reply.
    pub(crate) async fn call(
        &self,
        host: &Arc<Host>,
        operation: Operation,
        payload: Parts,
        deadline: Instant,
        account: InstanceMemory,
    ) -> Result<Vec<u8>, CallError> {
        match self {
            Self::Wapc(guest) => guest.call(host, operation, payload, deadline, account).await,
            Self::Wasi(guest) => guest.call(host, operation, payload, deadline, account).await,
            Self::Rego(guest) => guest.call(host, operation, payload, deadline, account).await,
        }
    }
}

/// A store for one call.
fn store(pre: &wasmtime::InstancePre<Context>, context: Context) -> Store<Context> {
    let deadline = context.deadline;
    let mut store = Store::new(pre.module().engine(), context);
    configure(&mut store, deadline);
    store
}

/// Bounds what runs in a store: its growth, and its time until `deadline`.
fn configure(store: &mut Store<Context>, deadline: Instant) {
    store.limiter_async(|context| &mut context.growth);
    store.set_epoch_deadline(FIRST_YIELD);
    store.epoch_deadline_callback(move |_| {
        if Instant::now() >= deadline { Err(Trap::Interrupt.into()) } else { Ok(UpdateDeadline::Yield(1)) }
    });
}

/// A fresh instance; its start function has run.
async fn instantiate(
    pre: &wasmtime::InstancePre<Context>,
    store: &mut Store<Context>,
) -> Result<Instance, wasmtime::Error> {
    let instance = pre.instantiate_async(&mut *store).await?;
    let memory = instance.get_memory(&mut *store, "memory");
    store.data_mut().memory = memory;
    Ok(instance)
}
