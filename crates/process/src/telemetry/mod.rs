//! Export of spans and metrics by OTLP over HTTP, set by the standard `OTEL_…` variables (docs/telemetry.md).
//!
//! ```text
//!  spans ──► a bounded queue ──► batches ──┬──► Outlet: POST to the collector, or the broker's socket
//!  registry, each minute ──────────────────┘
//! ```
//!
//! Nothing here waits for a collector but the task that exports. Where it is away or slow, spans are dropped and counted. No setting of it
//! ends a program: one that cannot be used is logged, and its signal is not exported.

mod ids;
mod metrics;
#[cfg(feature = "client")]
mod post;
mod resource;
mod settings;
mod traces;

use std::future::Future;

use bytes::Bytes;

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

/// Why telemetry was not exported. The texts are for the log.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The metrics could not be encoded.
    #[error("failed to encode them: {0}")]
    Encode(#[source] tokio::task::JoinError),
    /// There is no connection to the collector, or no answer in time.
    #[error("{place}: {cause}")]
    Unreachable {
        /// Its URL, without a login.
        place: String,
        /// What happened.
        cause: String,
    },
    /// The collector rejects them.
    #[error("{place} answers {status}")]
    Rejected {
        /// Its URL, without a login.
        place: String,
        /// The status of its answer.
        status: http::StatusCode,
    },
    /// The broker does not take them; its reason.
    #[error("{0}")]
    Broker(String),
}
