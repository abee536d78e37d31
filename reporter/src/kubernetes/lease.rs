//! The Lease, with the reporter's own calls: which of the reporters leads (docs/design/status-api.md, section 2.3).

use std::sync::Arc;

use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use portcullis_kubernetes::LeaseCalls;
use serde_json::json;

use super::call::{CallError, Content, Server};
use super::trouble::Trouble;

/// Leases of one namespace.
pub(crate) struct Leases {
    server: Arc<Server>,
    path: String,
    trouble: Trouble,
}

impl Leases {
    /// Of this namespace.
    pub(crate) fn new(server: Arc<Server>, namespace: &str, trouble: Trouble) -> Self {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        Self { server, path, trouble }
    }

    async fn write(&self, method: Method, path: &str, lease: &Lease) -> Result<bool, CallError> {
        match self.server.send(method, path, Content::Json, &json!(lease)).await {
            Ok(_) => Ok(true),
            // Somebody was faster. The next look tells who.
            Err(error) if error.code() == Some(409) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl LeaseCalls for Leases {
    type Error = CallError;

    async fn get(&self, name: &str) -> Result<Option<Lease>, CallError> {
        match self.server.get(&format!("{}/{name}", self.path)).await {
            Ok(found) => {
                serde_json::from_value(found).map(Some).map_err(|error| CallError::Malformed(error.to_string()))
            }
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, lease: &Lease) -> Result<bool, CallError> {
        self.write(Method::POST, &self.path, lease).await
    }

    async fn replace(&self, lease: &Lease) -> Result<bool, CallError> {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        self.write(Method::PUT, &format!("{}/{name}", self.path), lease).await
    }

    fn failed(&mut self, error: Option<CallError>) {
        self.trouble.is(&error.unwrap_or(CallError::TimedOut));
    }

    fn works(&mut self) {
        self.trouble.over();
    }
}
