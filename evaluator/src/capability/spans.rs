//! The way of spans out of a program without connections: over the broker's socket, to the loader.

use std::sync::Arc;

use bytes::Bytes;
use portcullis_contract::{CALLBACK_FAILURE, Signal};
use portcullis_process::telemetry::Outlet;

use super::link::BrokerLink;

/// Hands spans to the broker.
pub(crate) struct SpanOutlet(pub(crate) Arc<BrokerLink>);

impl Outlet for SpanOutlet {
    async fn send(&self, body: Bytes) -> Result<(), String> {
        self.0.export(Signal::Traces, &body).await.map_err(|failure| {
            let text = failure.to_string();
            text.strip_prefix(CALLBACK_FAILURE).unwrap_or(&text).to_owned()
        })
    }
}
