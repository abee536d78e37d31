//! `net/v1/dns_lookup_host`.

use std::net::SocketAddr;

use bytes::Bytes;
use hickory_resolver::TokioResolver;
use hickory_resolver::net::NetError;
use serde_json::json;
use tokio::sync::OnceCell;

use crate::ProvideError;

/// The longest name, in bytes (RFC 1035, section 2.3.4).
const LONGEST: usize = 253;
/// The most addresses in a reply.
const MOST: usize = 256;

/// Looks up names.
pub(crate) struct Names {
    name_server: Option<SocketAddr>,
    resolver: OnceCell<TokioResolver>,
}

impl Names {
    /// A resolver that asks `name_server`, or the system's name servers if it is `None`.
    pub(crate) fn new(name_server: Option<SocketAddr>) -> Self {
        Self { name_server, resolver: OnceCell::new() }
    }

    /// The addresses of the host that the payload names.
    ///
    /// # Errors
    /// When it is not a valid name, or has no address now.
    pub(crate) async fn look_up(&self, payload: &[u8]) -> Result<Bytes, ProvideError> {
        let host: String = serde_json::from_slice(payload).map_err(ProvideError::failed)?;
        if host.is_empty() || host.len() > LONGEST {
            return Err(ProvideError::failed(format!("want the name of a host, of 1 to {LONGEST} bytes")));
        }
        let failed = |error: NetError| ProvideError::failed(format!("failed to look up {host}: {error}"));
        let resolver = self.resolver.get_or_try_init(|| async { self.build() }).await.map_err(failed)?;
        let found = resolver.lookup_ip(host.as_str()).await.map_err(failed)?;
        let mut ips: Vec<String> = found.iter().take(MOST).map(|ip| ip.to_string()).collect();
        ips.sort();
        Ok(Bytes::from(json!({ "ips": ips }).to_string()))
    }

    fn build(&self) -> Result<TokioResolver, NetError> {
        portcullis_registry::resolver(self.name_server)?.build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_no_name_is_an_error() {
        let names = Names::new(Some(([127, 0, 0, 1], 9).into()));
        for payload in ["", "{}", "\"\"", &format!("\"{}\"", "a".repeat(LONGEST + 1))] {
            assert!(names.look_up(payload.as_bytes()).await.is_err(), "{payload}");
        }
    }

    #[tokio::test]
    async fn an_address_is_its_own() {
        let names = Names::new(Some(([127, 0, 0, 1], 9).into()));
        assert_eq!(names.look_up(b"\"192.0.2.7\"").await.expect("an address"), r#"{"ips":["192.0.2.7"]}"#);
    }
}
