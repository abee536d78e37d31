//! Random ids of traces, spans and processes.

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::trace::IdGenerator;

/// Makes ids from the random numbers that the standard library's hash maps use. The SDK's own generator may open
/// `/dev/urandom`, which a confined program may not.
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
