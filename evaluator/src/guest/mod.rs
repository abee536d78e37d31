//! Runs guests: each call in a fresh instance, in one of the calling conventions that a policy may have.
//!
//! [`Guests`] links modules to what this host offers; a [`Guest`] is a module that fits, and [`loaded::Loaded`] one that serves. No call
//! leaves anything for the next one: instance, memory and [`Context`] are made for each call.
//!
//! What this program keeps for one call beside the guest's own memory, all of it limited:
//!
//! | buffer | limit | above |
//! | --- | --- | --- |
//! | request and settings, which the guest reads | the largest body and the largest settings | never built |
//! | reply: of `__guest_response`, or standard output | 8 MiB: the largest body with room for more | `ResponseTooLarge` |
//! | payload of a host call, twice, and its reply | 1 MiB and 8 MiB, taken from the instance's memory budget | error |
//! | replies of host calls that a command has not read | one, or 64 KiB of several; taken from the same | trap |
//! | error text of a guest | 64 KiB | dropped |
//! | standard error, and standard output where it is not the reply | 64 KiB | dropped |
//! | a log event while it is decoded | 16 KiB | logged as it is, cut |
//! | one poll | 1,024 subscriptions | refused |
//! | names of builtins, Rego | 64 KiB of JSON; taken from the same | error |
//! | arguments and result of a builtin, Rego | 2 MiB of JSON; taken from the instance's memory budget | error |
//! | what wasmtime has for an instance: globals, functions, passive elements | 1.5 MiB (`portcullis_engine::INSTANCE_BYTES`) | refused by the loader |
//! | objects of the cluster, Rego | 8 MiB of JSON; taken from the same | error |
//!
//! A host call does a bounded amount of work, or waits without a thread and no longer than the deadline. Then it returns to the guest, where
//! the deadline is checked: a guest that calls its host for ever ends with its deadline, like one that loops. A builtin whose work may grow
//! faster than its arguments also looks at the deadline while it works.

mod builtins;
mod context;
mod error;
mod failed_calls;
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
pub(crate) use failed_calls::FailedCalls;
pub(crate) use link::{Guest, Guests, LinkError};
pub(crate) use log::{Excess, GuestLog, LogShares};
pub(crate) use parts::Parts;

use std::sync::Arc;
use std::time::Instant;

use portcullis_contract::{BrokerRequest, PolicyId};
use wasmtime::{Engine, Instance, Store, Trap, UpdateDeadline};

use crate::capability::BrokerLink;
use crate::capability::cache::PolicyCache;
use crate::capability::link::{BrokerAnswer, Caller, LinkFailure};
use crate::fair::claimant::Claimant;
use crate::fair::pool::PolicyPermit;
use crate::memory::{GuestMemory, InstanceMemory, MemoryHold};

/// Largest reply of a guest, in bytes.
pub(crate) const MAX_REPLY: usize = 8 << 20;

/// The error of an evaluator that no loader can reach.
pub(crate) const NO_BROKER: &str = "this evaluator has no connection to a loader; start it with --broker-socket";

/// The number of ticks until a guest yields for the first time. The first tick may come at once, so two is the least number that leaves a
/// short call alone for one whole tick.
const FIRST_YIELD: u64 = 2;

/// What a policy may do and where its output goes; the same for all its calls.
pub(crate) struct Host {
    /// The host capabilities it may use.
    pub(crate) grants: Grants,
    /// Where its log lines go.
    pub(crate) log: GuestLog,
    /// The memory that its instances share with others, and the policy for which they take it.
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) who: Arc<Claimant>,
    /// The policy and its generation.
    pub(crate) policy: PolicyId,
    pub(crate) generation: i64,
    /// The member of a policy group; none if the policy is not a group.
    pub(crate) member: Option<String>,
    /// The connection for host capabilities that this program cannot provide itself; none without a broker.
    pub(crate) broker: Option<Arc<BrokerLink>>,
    /// Whether objects of the cluster are part of its data: its rules are in Rego and cannot ask for them.
    pub(crate) needs_objects: bool,
    /// The values that it keeps from one request to the next.
    pub(crate) cache: Arc<PolicyCache>,
}

/// The host capabilities that a policy may use, as patterns whose form was checked. Empty lists grant nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Grants {
    /// What its own spec grants.
    pub(crate) granted: Vec<String>,
    /// What the operator allows to policies of a namespace; none if it belongs to no namespace, and so is not limited.
    pub(crate) allowed: Option<Arc<[String]>>,
}

/// What a guest replied.
pub(crate) enum Reply {
    /// The JSON of a waPC guest or a command.
    Json {
        /// Its bytes.
        bytes: Vec<u8>,
        /// Which of its host calls failed before it replied.
        failed_calls: FailedCalls,
    },
    /// The result of a Rego policy, which makes no host calls.
    Rego {
        /// Its bytes, also JSON.
        bytes: Vec<u8>,
        /// The account of the instance, from which work of the host on the result is taken.
        account: InstanceMemory,
    },
}

impl Reply {
    /// Its bytes, and which host calls failed before.
    pub(crate) fn into_parts(self) -> (Vec<u8>, FailedCalls) {
        match self {
            Self::Json { bytes, failed_calls } => (bytes, failed_calls),
            Self::Rego { bytes, .. } => (bytes, FailedCalls::default()),
        }
    }
}

impl Host {
    /// The same host for another generation, which remembers nothing of this one's values.
    pub(crate) fn renumbered(&self, generation: i64) -> Self {
        Self {
            grants: self.grants.clone(),
            log: self.log.renumbered(generation),
            memory: Arc::clone(&self.memory),
            who: Arc::clone(&self.who),
            policy: self.policy.clone(),
            generation,
            member: self.member.clone(),
            broker: self.broker.clone(),
            needs_objects: self.needs_objects,
            cache: Arc::new(self.cache.of_next_generation()),
        }
    }

    /// Asks the broker for this policy.
    pub(crate) async fn ask_broker(
        &self,
        request: BrokerRequest,
        payload: &[u8],
        deadline: Instant,
    ) -> Result<BrokerAnswer, LinkFailure> {
        self.ask_with_room(request, payload, deadline, None).await
    }

    /// Asks the broker for the objects of the cluster that this policy may read. There is room for a reply of `length` bytes before they are
    /// asked for.
    pub(crate) async fn ask_for_objects(&self, length: u64, deadline: Instant) -> Result<BrokerAnswer, CallError> {
        let room = match &self.broker {
            Some(broker) => Some(broker.room(&self.who, length, deadline).await),
            None => None,
        };
        let room = room.transpose().map_err(|error| CallError::Overloaded(error.to_string()))?;
        self.ask_with_room(BrokerRequest::ContextObjects, b"", deadline, room).await.map_err(|failure| match failure {
            LinkFailure::Denied(text) => CallError::Denied(text),
            // Rules make no calls, so the text for guests, that a call failed, does not fit.
            failed @ (LinkFailure::Negative(_) | LinkFailure::Failed(_)) => {
                let text = format!("objects of the cluster are missing: {}", failed.cause());
                CallError::Unprovided { text, may_pass: None }
            }
        })
    }

    async fn ask_with_room(
        &self,
        request: BrokerRequest,
        payload: &[u8],
        deadline: Instant,
        room: Option<PolicyPermit>,
    ) -> Result<BrokerAnswer, LinkFailure> {
        let Some(broker) = &self.broker else { return Err(LinkFailure::failed(NO_BROKER)) };
        let (policy, who, member) = (&self.policy, &self.who, self.member.as_deref());
        let caller = Caller { policy, who, generation: self.generation, member, deadline };
        broker.call(&caller, request, payload, room).await
    }

    /// Whether the broker is asked about certificates too, as it records calls or answers them from a recording.
    pub(crate) fn hands_over_certificates(&self) -> bool {
        self.broker.as_ref().is_some_and(|broker| broker.takes_certificates)
    }

    /// An account for an instance that must have ended at `deadline`.
    pub(crate) fn account(&self, deadline: Instant) -> (InstanceMemory, Arc<MemoryHold>) {
        self.memory.account(&self.who, deadline)
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
    ) -> Result<Reply, CallError> {
        match self {
            Self::Wapc(guest) => guest.call(host, operation, payload, deadline, account).await,
            Self::Wasi(guest) => guest.call(host, operation, payload, deadline, account).await,
            Self::Rego(guest) => guest.call(host, operation, payload, deadline, account).await,
        }
    }
}

/// A store for one call. What runs in it is bounded in its growth, and in its time by the deadline of the context.
fn store(engine: &Engine, context: Context) -> Store<Context> {
    let deadline = context.deadline;
    let mut store = Store::new(engine, context);
    store.limiter_async(|context| &mut context.growth);
    store.set_epoch_deadline(FIRST_YIELD);
    store.epoch_deadline_callback(move |_| {
        if Instant::now() >= deadline { Err(Trap::Interrupt.into()) } else { Ok(UpdateDeadline::Yield(1)) }
    });
    store
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
