//! Certificate authority and serving certificate of the policy server: made, renewed and rotated, or taken from cert-manager. The
//! same, with an authority of its own, for the loaders that help each other.
//!
//! Two Secrets are the truth, so that a controller that starts, or another one that takes over, goes on where the last one stopped.
//! The authority's Secret holds:
//!
//! | key | what |
//! | --- | --- |
//! | `ca.crt`, `ca.key` | the authority that signs the serving certificate from now on |
//! | `previous.crt` | authorities that are trusted beside it, as replicas may still show a certificate of theirs |
//!
//! The serving Secret is of type `kubernetes.io/tls` with `ca.crt` beside `tls.crt` and `tls.key`; pods mount it.
//!
//! ```text
//!  settled ──authority is due──► introducing ──every webhook trusts both, a pause──► settling ──a pause──► settled
//!                                (the old serving certificate)      (a new one; the old authority is still trusted)
//! ```
//!
//! What somebody else makes is in a third Secret. It is copied into the serving Secret when webhooks trust it, and never earlier: whoever
//! makes it changes certificate and authority at once, and a pod may have a changed Secret within a second.
//!
//! What to do next is decided by `decide::next` and `external::follow`, which know neither clock nor network; [`Keeper`] reads, asks, writes and waits.
//! A Secret is written only as the one that was read, so two controllers never make two authorities.

mod args;
mod authority;
mod bundle;
mod certificate;
mod decide;
mod event;
mod external;
mod external_certificate;
mod keeper;
mod metrics;
pub(crate) mod quiet;
mod rules;
mod serving;
mod spread;
pub(crate) mod store;
mod stored;

pub use args::{CertificateArgs, Form};
pub use bundle::CaBundle;
pub use keeper::{Keeper, KeeperParts};
pub use metrics::CertificateMetrics;
pub use rules::{Purpose, Rules};
