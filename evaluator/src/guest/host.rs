//! Calls of a guest to its host (docs/design/policy-abi.md, section 8).
//!
//! Grants are checked first: a guest without a grant learns that, and not whether the capability exists.

use std::fmt::Display;
use std::time::Instant;

use portcullis_certificate::is_trusted;
use portcullis_contract::{BROKER_MAX_PAYLOAD, Capability, clean, is_granted, not_for_namespaces, not_granted};
use portcullis_process::failpoint;
use wasmtime::Caller;

use super::failed_calls::FailedCalls;
use super::linear_memory::{OutOfBounds, parts, slice};
use super::{CallError, Context, Grants, Host};
use crate::capability::link::{BrokerAnswer, LinkFailure};
use crate::fair::claimant::Claimant;
use crate::verdict::offload;

/// Longest name that an error quotes, in bytes.
const MAX_NAME: usize = 256;
/// A call, whose parts are still in the guest's memory.
struct Call<'a> {
    binding: &'a [u8],
    namespace: &'a [u8],
    operation: &'a [u8],
    payload: &'a [u8],
}

/// What a guest gets: the reply, or an error text.
pub(super) type Reply = Result<Vec<u8>, String>;

/// Answers the call at these four pairs of pointer and length.
///
/// # Errors
/// When a pointer leads out of the guest's memory, and when there is no memory for the reply: both end the guest.
pub(super) async fn call(
    caller: &mut Caller<'_, Context>,
    function: &str,
    pairs: [(i32, i32); 4],
) -> wasmtime::Result<Reply> {
    let (memory, context) = parts(caller)?;
    let call = Call::read(memory, pairs).map_err(|_| {
        let text = format!("{function}: a pointer leads out of the guest's memory");
        wasmtime::Error::new(CallError::Trap(text))
    })?;
    let admitted = call.admit(&context.host.grants, &mut context.host_calls);
    if let Ok(capability) = &admitted {
        failpoint::hit_of("evaluator.host_call", capability);
    }
    let capability = match admitted {
        Ok(Capability::Log) => {
            context.host.log.event(call.payload);
            return Ok(Ok(Vec::new()));
        }
        Ok(capability) => capability,
        Err(text) => return Ok(Err(text)),
    };
    if call.payload.len() > BROKER_MAX_PAYLOAD {
        return Ok(Err(format!(
            "Callback evaluation failure: the request for '{capability}' has {} bytes, the limit is {BROKER_MAX_PAYLOAD}",
            call.payload.len()
        )));
    }
    // Memory for this copy, and for the message to the broker, which is another one.
    let asked = 2 * call.payload.len();
    context.growth.take_scratch(bytes(asked)).await.map_err(wasmtime::Error::new)?;
    let payload = call.payload.to_vec();
    let reply = provide(&context.host, context.deadline, capability, payload).await;
    match reply {
        Ok(answer) => {
            // The memory is taken from the instance's budget before the answer is copied.
            context.growth.take_scratch(bytes(asked + answer.len())).await.map_err(wasmtime::Error::new)?;
            Ok(Ok(answer.to_vec()))
        }
        Err(error) => {
            context.host_calls.note(capability, &error);
            Ok(Err(error.to_string()))
        }
    }
}

/// A reply, with the permit for its bytes if it came from the broker; that is held until the reply is copied.
enum Provided {
    Here(Vec<u8>),
    Broker(BrokerAnswer),
}

impl std::ops::Deref for Provided {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::Broker(answer) => &answer.bytes,
        }
    }
}

async fn provide(
    host: &Host,
    deadline: Instant,
    capability: Capability,
    payload: Vec<u8>,
) -> Result<Provided, LinkFailure> {
    let here = match capability {
        Capability::CacheSet => host.cache.set(&payload, Instant::now()),
        Capability::CacheGet => host.cache.get(&payload, Instant::now()),
        Capability::CertificateTrusted if !host.hands_over_certificates() => {
            judge(&host.who, payload, is_trusted).await
        }
        _ => return host.ask_broker(capability.into(), &payload, deadline).await.map(Provided::Broker),
    };
    here.map(Provided::Here)
}

/// Whether a certificate can be trusted. A few kilobytes of certificates may ask for thousands of paths and a hundred signatures, so this is
/// never done where the evaluation runs.
async fn judge<E: Display + Send + 'static>(
    who: &Claimant,
    payload: Vec<u8>,
    is_trusted: fn(&[u8]) -> Result<Vec<u8>, E>,
) -> Result<Vec<u8>, LinkFailure> {
    let size = payload.len().max(offload::SMALL + 1);
    let answer = offload::work(who, size, move || is_trusted(&payload)).await;
    answer.map_err(|error| LinkFailure::failed(&error.to_string()))
}

impl<'a> Call<'a> {
    fn read(memory: &'a [u8], pairs: [(i32, i32); 4]) -> Result<Self, OutOfBounds> {
        let [binding, namespace, operation, payload] = pairs.map(|(ptr, len)| slice(memory, ptr, len));
        Ok(Self { binding: binding?, namespace: namespace?, operation: operation?, payload: payload? })
    }

    /// The capability, if the policy may use it and it exists; else the error text for the guest.
    fn admit(&self, grants: &Grants, failures: &mut FailedCalls) -> Result<Capability, String> {
        let [binding, namespace, operation] = [self.binding, self.namespace, self.operation].map(name);
        if binding != "kubewarden" {
            return Err(format!("unknown binding: {binding}"));
        }
        let path = format!("{namespace}/{operation}");
        if namespace != "tracing" {
            if !is_granted(&grants.granted, &path) {
                failures.denied = true;
                return Err(not_granted(&path));
            }
            if grants.allowed.as_ref().is_some_and(|allowed| !is_granted(allowed, &path)) {
                failures.denied = true;
                return Err(not_for_namespaces(&path));
            }
        }
        if !Capability::has_namespace(&namespace) {
            return Err(format!("unknown namespace: {namespace}"));
        }
        Capability::from_path(&path).ok_or_else(|| format!("unknown operation: {operation}"))
    }
}

fn name(bytes: &[u8]) -> String {
    clean(&String::from_utf8_lossy(&bytes[..bytes.len().min(4 * MAX_NAME)]), MAX_NAME)
}

fn bytes(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use portcullis_util::lock;
    use wasmtime::{Engine, Func, Memory, MemoryType, Store};

    use super::super::context::Limits;
    use super::super::{GuestLog, NO_BROKER};
    use super::*;
    use crate::capability::cache::PolicyCache;
    use crate::memory::{GuestMemory, MemoryPlan};
    use crate::metrics::Metrics;

    const MIB: usize = 1 << 20;

    /// The answer to a call with the largest payload, of an instance that may use `memory` bytes beside its own.
    async fn answer_with(memory: usize) -> Result<Reply, CallError> {
        let metrics = Metrics::new().expect("registers");
        let plan = MemoryPlan { floor: bytes(memory), shared: 0, bodies: 0 };
        let policy = "cluster/a".parse().expect("an id");
        let host = Arc::new(Host {
            grants: Grants { granted: texts(&["*"]), allowed: None },
            log: GuestLog::test(),
            memory: GuestMemory::new(plan, &metrics),
            who: Claimant::new(&policy),
            generation: 1,
            member: None,
            broker: None,
            needs_objects: false,
            cache: Arc::new(PolicyCache::new(&Arc::default(), &policy)),
            policy,
        });
        let deadline = Instant::now() + Duration::from_millis(50);
        let (account, _hold) = host.account(deadline);
        let limits = Limits { memory_bytes: 0, table_elements: 0 };
        let mut store = Store::new(&Engine::default(), Context::new(&host, limits, deadline, account));
        let guest = Memory::new_async(&mut store, MemoryType::new(17, None)).await.expect("a memory");
        guest.write(&mut store, 0, b"kubewardenociv1/verify").expect("inside");
        store.data_mut().memory = Some(guest);
        let replies = Arc::new(Mutex::new(None));
        let given = Arc::clone(&replies);
        let function = Func::wrap_async(&mut store, move |mut caller: Caller<'_, Context>, (): ()| {
            let given = Arc::clone(&given);
            Box::new(async move {
                let payload = i32::try_from(MIB).expect("a length");
                let reply = super::call(&mut caller, "call", [(0, 10), (10, 3), (13, 9), (64 << 10, payload)]).await?;
                *lock(&given) = Some(reply);
                Ok::<_, wasmtime::Error>(())
            })
        });
        let called = function.typed::<(), ()>(&store).expect("a function").call_async(&mut store, ()).await;
        called.map_err(|error| CallError::of(&error))?;
        Ok(lock(&replies).take().expect("a reply"))
    }

    #[tokio::test]
    async fn a_payload_is_taken_from_the_memory_twice_before_it_is_copied() {
        assert!(matches!(answer_with(2 * MIB - 1).await, Err(CallError::Overloaded(_))));
        let reply = answer_with(2 * MIB).await.expect("there is memory");
        assert!(reply.expect_err("nobody answers").contains(NO_BROKER));
    }

    fn call(granted: &[&str], binding: &str, namespace: &str, operation: &str) -> (Result<Capability, String>, bool) {
        call_of(&Grants { granted: texts(granted), allowed: None }, binding, namespace, operation)
    }

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|&text| text.to_owned()).collect()
    }

    fn call_of(grants: &Grants, binding: &str, namespace: &str, operation: &str) -> (Result<Capability, String>, bool) {
        let call = Call {
            binding: binding.as_bytes(),
            namespace: namespace.as_bytes(),
            operation: operation.as_bytes(),
            payload: b"{}",
        };
        let mut failures = FailedCalls::default();
        let result = call.admit(grants, &mut failures);
        (result, failures.denied)
    }

    fn error(grants: &[&str], binding: &str, namespace: &str, operation: &str) -> String {
        call(grants, binding, namespace, operation).0.expect_err("refused")
    }

    #[test]
    fn the_binding_comes_first_then_the_grant_then_the_name() {
        assert_eq!(error(&[], "other", "oci", "v1/verify"), "unknown binding: other");
        let text =
            "Policy has not been granted access to the 'weather/v1' host capability. The violation has been reported.";
        assert_eq!(error(&[], "kubewarden", "weather", "v1"), text);
        assert_eq!(error(&["*"], "kubewarden", "weather", "v1"), "unknown namespace: weather");
        assert_eq!(error(&["oci/*"], "kubewarden", "oci", "v9"), "unknown operation: v9");
        assert_eq!(error(&[], "kubewarden", "tracing", "shout"), "unknown operation: shout");
    }

    #[test]
    fn the_log_needs_no_grant() {
        assert_eq!(call(&[], "kubewarden", "tracing", "log"), (Ok(Capability::Log), false));
        let none = Grants { granted: Vec::new(), allowed: Some(Arc::default()) };
        assert_eq!(call_of(&none, "kubewarden", "tracing", "log"), (Ok(Capability::Log), false));
    }

    #[test]
    fn policies_of_a_namespace_have_only_what_the_operator_allows() {
        let of = |granted: &[&str], allowed: &[&str], capability: Capability| {
            let grants = Grants { granted: texts(granted), allowed: Some(texts(allowed).into()) };
            let (namespace, operation) = capability.path().split_once('/').expect("a path");
            call_of(&grants, "kubewarden", namespace, operation)
        };
        for &capability in Capability::ALL.iter().filter(|&&capability| capability != Capability::Log) {
            let (refused, is_denied) = of(&["*"], &[], capability);
            let text = refused.expect_err("not allowed");
            assert!(is_denied && text.starts_with(not_granted(capability.path()).trim_end_matches('.')), "{text}");
            assert!(text.contains("--namespaced-capability"), "{text}");
            assert_eq!(of(&["*"], &["*"], capability), (Ok(capability), false));
            assert_eq!(of(&[], &["*"], capability), (Err(not_granted(capability.path())), true));
        }
        assert_eq!(of(&["cache/*"], &["cache/get"], Capability::CacheGet), (Ok(Capability::CacheGet), false));
        assert!(of(&["cache/*"], &["cache/get"], Capability::CacheSet).1);
    }

    #[tokio::test]
    async fn a_certificate_is_judged_beside_the_lanes() {
        let who = Claimant::new(&"cluster/a".parse().expect("an id"));
        let thread = || format!("{:?}", std::thread::current().id());
        let there = judge(&who, b"{}".to_vec(), |_| Err(format!("{:?}", std::thread::current().id()))).await;
        let there = there.expect_err("as told").cause().to_owned();
        assert!(there.starts_with("ThreadId(") && there != thread(), "{there}");
        assert!(judge(&who, b"{}".to_vec(), is_trusted).await.is_err(), "it is no question");
    }

    #[test]
    fn a_refusal_is_remembered() {
        assert!(call(&[], "kubewarden", "oci", "v1/verify").1);
        assert!(!call(&["oci/v1/verify"], "kubewarden", "oci", "v1/verify").1);
    }

    /// The host keeps error texts for the guest: the last one in waPC, and in WASI all those that a command leaves unread.
    #[test]
    fn no_error_text_is_long_whatever_the_guest_asks_for() {
        let long = "\u{fffd}\n".repeat(1 << 20);
        for (binding, namespace, operation) in
            [(&*long, "", ""), ("kubewarden", &long, &long), ("kubewarden", "oci", &long), ("kubewarden", &long, "")]
        {
            for grants in [&[][..], &["*"]] {
                assert!(error(grants, binding, namespace, operation).len() <= 1024);
            }
        }
    }
}
