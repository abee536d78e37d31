//! Random ids of traces, spans and processes.

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::trace::IdGenerator;

/// Ids that ask the kernel for nothing but what the standard library's hash maps ask it for. The SDK's own generator may open
/// `/dev/urandom`, which a program that has shut itself in may not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ids;

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        TraceId::from(fastrand::u128(1..))
    }

    fn new_span_id(&self) -> SpanId {
        SpanId::from(fastrand::u64(1..))
    }
}
