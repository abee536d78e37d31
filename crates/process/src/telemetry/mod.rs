//! Export of spans by OTLP over HTTP, set by the standard `OTEL_…` variables (docs/telemetry.md).
//!
//! ```text
//!  spans ──► a bounded queue ──► batches ──► Outlet: POST to the collector, or the broker's socket
//! ```
//!
//! Nothing here waits for a collector but the task that exports. Where it is away or slow, spans are dropped and counted. No setting of it
//! ends a program: one that cannot be used is logged, and nothing is exported.

#[cfg(feature = "client")]
mod post;
mod settings;
mod traces;

use std::future::Future;

use bytes::Bytes;

#[cfg(feature = "client")]
pub use post::OtlpClient;
pub use settings::{OtlpSettings, OtlpTarget, traces_are_off};
pub use traces::{Traces, adopt_parent};

/// The way to the collector.
pub trait Outlet: Send + Sync {
    /// Sends spans as an encoded `ExportTraceServiceRequest` of at most [`portcullis_contract::MAX_EXPORT`] bytes.
    ///
    /// # Errors
    /// A sentence for the log.
    fn send(&self, body: Bytes) -> impl Future<Output = Result<(), String>> + Send;
}
