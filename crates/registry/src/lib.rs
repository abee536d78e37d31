//! Fetches modules over the network: each address is checked before it is connected to, each answer has limits of size
//! and time.
//!
//! ```text
//!  loader, portcullis pull ──► Registry ──► Web ──► guarded resolver ──► the network
//!                              OCI, logins   hops, TLS, limits
//! ```
//!
//! The answers of a source are untrusted. Nothing here trusts a length, a digest, a redirect or a name before it was
//! checked, and no text that leaves this crate holds a credential.
#![forbid(unsafe_code)]

mod address;
mod client;
mod docker;
mod error;
mod hub;
pub mod oci;
mod peers;
mod proxies;
mod receive;
mod resolve;
pub mod signature;
mod sources;
#[cfg(test)]
mod test_server;
mod tls;
mod write_time;

pub use address::{Allowed, AllowedError, Guard, Range};
pub use client::{Redirects, Request, Web, WebSettings, address_of, host_of};
pub use docker::{Credential, DockerConfig};
pub use error::FetchError;
pub use peers::{PEER_NAME, PeerAddress, PeerAddressError, PeerContent, PeerKeys, PeerNameError, PeerTls, Peers};
pub use receive::{BodyMemory, Receive, Whole};
pub use resolve::CurrentResolver;
pub use sources::{Sources, SourcesError, SourcesFile};
pub use write_time::WriteTime;
