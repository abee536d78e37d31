//! How telemetry leaves a program without connections: over the broker's socket, to the loader.

use std::sync::Arc;

use bytes::Bytes;
use portcullis_contract::Signal;
use portcullis_process::telemetry::{ExportError, Outlet};

use super::link::BrokerLink;

/// Hands one kind of telemetry to the broker.
pub(crate) struct BrokerOutlet {
    /// The connection to it.
    pub(crate) link: Arc<BrokerLink>,
    /// What is exported.
    pub(crate) signal: Signal,
}

impl Outlet for BrokerOutlet {
    async fn send(&self, body: Bytes) -> Result<(), ExportError> {
        self.link.export(self.signal, &body).await.map_err(|failure| ExportError::Broker(failure.cause().to_owned()))
    }
}
