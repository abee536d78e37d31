//! Export of spans and metrics by OTLP over HTTP, set by the standard `OTEL_…` variables (docs/telemetry.md).
//!
//! ```text
//!  spans ──► a bounded queue ──► batches ──┬──► Outlet: POST to the collector, or the broker's socket
//!  registry, each minute ──────────────────┘
//! ```
//!
//! Nothing here waits for a collector except the task that exports. If the collector is unavailable or slow, spans are dropped and
//! counted. A bad setting never ends a program: it is logged, and its signal is not exported.

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

/// Sends telemetry to the collector, directly or through the broker.
pub trait Outlet: Send + Sync {
    /// Sends an encoded `ExportTraceServiceRequest` or `ExportMetricsServiceRequest`, always the same of the two, of at most
    /// [`portcullis_contract::MAX_EXPORT`] bytes.
    ///
    /// # Errors
    /// When the collector does not accept it.
    fn send(&self, body: Bytes) -> impl Future<Output = Result<(), ExportError>> + Send;
}
