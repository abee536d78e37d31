//! Requests to the programs' local ports.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use portcullis_process::format_bytes;
use serde::de::DeserializeOwned;

/// Largest answer that is read, in bytes.
const LARGEST: usize = 64 << 20;

/// A client for local ports.
#[derive(Debug, Clone)]
pub struct Http(reqwest::Client);

impl Http {
    /// A client that gives up on a request after `patience`.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(patience: Duration) -> anyhow::Result<Self> {
        // TLS is never used, so no certificate authorities are needed.
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).timeout(patience).build();
        Ok(Self(client.context("failed to make an HTTP client")?))
    }

    /// Status and body of `GET http://<address><path>`.
    ///
    /// # Errors
    /// When there is no answer, or it is too large.
    pub async fn get(&self, address: SocketAddr, path: &str) -> anyhow::Result<(u16, Vec<u8>)> {
        read(self.0.get(format!("http://{address}{path}"))).await
    }

    /// Status and body of a `POST` of JSON.
    ///
    /// # Errors
    /// When there is no answer, or it is too large.
    pub async fn post(&self, address: SocketAddr, path: &str, body: Vec<u8>) -> anyhow::Result<(u16, Vec<u8>)> {
        let request = self.0.post(format!("http://{address}{path}")).header("content-type", "application/json");
        read(request.body(body)).await
    }

    /// The state that a program serves.
    ///
    /// # Errors
    /// When there is no answer, or it cannot be read as such a state.
    pub async fn state<T: DeserializeOwned>(&self, address: SocketAddr) -> anyhow::Result<T> {
        let (_, body) = self.get(address, "/v1/state?since=0").await?;
        serde_json::from_slice(&body).with_context(|| format!("failed to decode the state at {address}"))
    }
}

async fn read(request: reqwest::RequestBuilder) -> anyhow::Result<(u16, Vec<u8>)> {
    let mut response = request.send().await?;
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        anyhow::ensure!(
            body.len() + piece.len() <= LARGEST,
            "the answer is larger than {}",
            format_bytes(LARGEST as u64)
        );
        body.extend_from_slice(&piece);
    }
    Ok((response.status().as_u16(), body))
}
