//! Rego guests, compiled by OPA: the evaluation-context calls of its Wasm ABI 1.x (docs/design/policy-abi.md, section 7).
//!
//! Each call has a fresh instance, as with every guest: the data and the input go into its memory as JSON, entrypoint 0 is evaluated, and
//! the result comes back as JSON. Settings are small, so they are parsed again in each instance and not kept in an image of the memory.
//!
//! Rules cannot ask for objects of the cluster, so the host asks the broker for all that the policy may read, before there is an instance. An
//! evaluation without them fails: rules about missing objects would not deny anything.

mod abi;
mod data;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use portcullis_contract::{BROKER_MAX_REPLY, ExecutionMode};
use wasmtime::{InstancePre, Store};

use super::builtins::{self, Builtin};
use super::context::Limits;
use super::{CallError, Context, Host, Operation, Parts, Reply, instantiate, store};
use crate::capability::link::BrokerAnswer;
use crate::memory::InstanceMemory;

pub(super) use self::abi::{add_to_linker, check};

/// The number of the rule or package that `opa build -e` names first.
const ENTRYPOINT: i32 = 0;
/// How much longer than before the objects may be at least and still find room, in bytes.
const MORE: u64 = 64 << 10;
/// The error of a module that gives no result.
const NO_RESULT: &str = "the policy gave no result";

/// A Rego policy, linked.
pub(crate) struct RegoGuest {
    pre: InstancePre<Context>,
    limits: Limits,
    mode: ExecutionMode,
    /// The builtins that the module asks its host for; empty until the first instance has named them.
    builtins: OnceLock<Arc<HashMap<i32, Builtin>>>,
    /// The length of the objects that the broker gave last, in bytes; 0 before that.
    objects: AtomicU64,
}

impl RegoGuest {
    pub(super) fn new(pre: InstancePre<Context>, limits: Limits, mode: ExecutionMode) -> Self {
        Self { pre, limits, mode, builtins: OnceLock::new(), objects: AtomicU64::new(0) }
    }

    pub(super) async fn call(
        &self,
        host: &Arc<Host>,
        operation: Operation,
        payload: Parts,
        deadline: Instant,
        account: InstanceMemory,
    ) -> Result<Reply, CallError> {
        let objects = match operation {
            Operation::Validate if host.needs_objects => Some(self.objects(host, deadline).await?),
            _ => None,
        };
        let mut store = store(self.pre.module().engine(), Context::new(host, self.limits, deadline, account));
        self.start(&mut store).await?;
        let bytes = match (operation, payload.documents()) {
            (Operation::Validate, Some((request, settings))) => {
                self.evaluate(&mut store, &request, &settings, objects).await?
            }
            (Operation::Validate, None) => return Err(CallError::Host("a request has no settings".to_owned())),
            // Rego has no way to judge settings, so they are valid if they can be read. The module has started, so it can be served.
            (Operation::ValidateSettings, _) => {
                abi::push(&mut store, &[&payload.concat()]).await?;
                br#"{"valid":true}"#.to_vec()
            }
        };
        Ok(Reply::Rego { bytes, account: store.into_data().growth.into_account() })
    }

    /// The objects that the policy may read, as the broker has them.
    async fn objects(&self, host: &Host, deadline: Instant) -> Result<BrokerAnswer, CallError> {
        let objects = host.ask_for_objects(room(self.objects.load(Ordering::Relaxed)), deadline).await?;
        self.objects.store(u64::try_from(objects.bytes.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
        Ok(objects)
    }

    /// Makes the instance and finds out which builtins it asks the host for.
    async fn start(&self, store: &mut Store<Context>) -> Result<(), CallError> {
        let instance = instantiate(&self.pre, store).await.map_err(|error| CallError::of(&error).init("start"))?;
        store.data_mut().rego.instance = Some(instance);
        let known = match self.builtins.get() {
            Some(known) => Arc::clone(known),
            None => {
                let found = builtins::find(abi::builtins(store).await?)?;
                Arc::clone(self.builtins.get_or_init(|| Arc::new(found)))
            }
        };
        store.data_mut().rego.builtins = known;
        Ok(())
    }

    async fn evaluate(
        &self,
        store: &mut Store<Context>,
        request: &Bytes,
        settings: &Bytes,
        objects: Option<BrokerAnswer>,
    ) -> Result<Vec<u8>, CallError> {
        let length = objects.as_ref().map_or(0, |objects| objects.bytes.len());
        store.data_mut().growth.take_scratch(u64::try_from(length).unwrap_or(u64::MAX)).await?;
        let json = objects.as_ref().map(|objects| &*objects.bytes);
        let is_gatekeeper = self.mode == ExecutionMode::Gatekeeper;
        let before = if is_gatekeeper { data::for_gatekeeper(json) } else { data::for_opa(settings, json)? };
        let end: &[u8] = if json.is_some() { b"}" } else { b"" };
        let data = abi::push(store, &[&before, json.unwrap_or_default(), end]).await?;
        // The guest has a copy now, so the host does not need them any longer.
        drop(objects);
        let input: &[&[u8]] = match is_gatekeeper {
            true => &[b"{\"parameters\":", settings, b",\"review\":", request, b"}"],
            false => &[b"{\"request\":", request, b"}"],
        };
        let input = abi::push(store, input).await?;
        let result = abi::evaluate(store, ENTRYPOINT, input, data).await?;
        if result.is_empty() { Err(CallError::NoReply(NO_RESULT.to_owned())) } else { Ok(result) }
    }
}

/// The room for objects, in bytes, where the last ones took this much: some more, as there may be a few objects more now. The first time, as
/// much as a reply may take.
fn room(last: u64) -> u64 {
    let most = u64::try_from(BROKER_MAX_REPLY).unwrap_or(u64::MAX);
    if last == 0 { most } else { (last + last / 8 + MORE).min(most) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_a_few_objects_more() {
        assert_eq!((room(0), room(8 << 20), room(7 << 20)), (8 << 20, 8 << 20, (7 << 20) + (7 << 17) + MORE));
        assert_eq!(room(1), 1 + MORE);
    }
}
