//! Export of spans and metrics by OTLP over HTTP, set by the standard `OTEL_…` variables (docs/telemetry.md).
//!
//! ```text
//!  spans ──► a bounded queue ──► batches ──┬──► Outlet: POST to the collector, or the broker's socket
//!  registry, each minute ──────────────────┘
//! ```
//!
//! Nothing here waits for a collector but the task that exports. Where it is away or slow, spans are dropped and counted. No setting of it
//! ends a program: one that cannot be used is logged, and its signal is not exported.

mod error;
mod ids;
mod metrics;
#[cfg(feature = "client")]
mod post;
mod resource;
mod settings;
mod traces;

use std::future::Future;

use bytes::Bytes;

pub use error::{ExportError, OtlpError};
pub use metrics::export_metrics;
#[cfg(feature = "client")]
pub use post::{Collectors, OtlpClient};
pub use settings::{OtlpSettings, OtlpTarget, is_off};
pub use traces::{Traces, adopt_parent};

/// The way to the collector.
pub trait Outlet: Send + Sync {
    /// Sends an encoded `ExportTraceServiceRequest` or `ExportMetricsServiceRequest`, always the same of the two, of at most [`portcullis_contract::MAX_EXPORT`] bytes.
    ///
    /// # Errors
    /// When the collector does not take it.
    fn send(&self, body: Bytes) -> impl Future<Output = Result<(), ExportError>> + Send;
}
