//! Host capabilities: what a guest may ask its host for (docs/design/policy-abi.md, section 8).
//!
//! ```text
//!  guest ──► guest/host.rs ──► grant? ──► certificates, cache.rs, or the log: answered here
//!                                     └─► link.rs ──► Unix socket ──► broker in the loader: network, registries, API server
//! ```
//!
//! This program has no way out of the pod, so it listens: the broker connects to it and waits for calls. A guest that waits for the
//! broker holds no thread, and waits no longer than its deadline. The same socket takes telemetry to the loader, and policies that it is
//! to check.

pub(crate) mod cache;
pub(crate) mod link;
mod outlet;
mod peer;

pub use self::link::BrokerLink;
pub(crate) use self::link::LinkFailure;
pub(crate) use self::outlet::BrokerOutlet;
pub(crate) use self::peer::BrokerSocket;
