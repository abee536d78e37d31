//! Certificate authority and serving certificate of the policy server: made, renewed and rotated, or taken from cert-manager. The
//! same, with an authority of its own, for loaders that get modules from each other.
//!
//! Two Secrets hold the state, so that a controller that starts or takes over continues where the last one stopped.
//! The authority's Secret holds:
//!
//! | key | what |
//! | --- | --- |
//! | `ca.crt`, `ca.key` | the authority that signs new serving certificates |
//! | `previous.crt` | authorities that are trusted too, as replicas may still show certificates that they signed |
//!
//! The serving Secret is of type `kubernetes.io/tls` with `ca.crt` beside `tls.crt` and `tls.key`; pods mount it.
//!
//! ```text
//!  settled ──authority is due──► introducing ──every webhook trusts both, a pause──► settling ──a pause──► settled
//!                                (the old serving certificate)      (a new one; the old authority is still trusted)
//! ```
//!
//! A certificate that another program makes is in a third Secret. It is copied into the serving Secret when webhooks trust it, and not
//! earlier: the program changes certificate and authority at once, and a pod may see a changed Secret within a second.
//!
//! `decide::next` and `external::follow` decide the next step and know neither clock nor network; [`Keeper`] reads, asks, writes and
//! waits. A Secret is written only if it has not changed since it was read, so two controllers never make two authorities.
//!
//! Authorities that somebody has taken out of both Secrets stay trusted for a pause. They are in memory only, and webhooks tell the next leader.

mod args;
mod authority;
mod bundle;
mod certificate;
mod decide;
pub(crate) mod event;
mod external;
mod external_certificate;
mod keeper;
mod metrics;
pub(crate) mod own_webhooks;
mod rules;
pub(crate) mod secrets;
mod serving;
mod spread;
mod stored;
pub(crate) mod unchanged;

pub use args::{CertificateArgs, Form};
pub use bundle::CaBundle;
pub use keeper::{Keeper, KeeperParts};
pub use metrics::CertificateMetrics;
pub use rules::{Purpose, Rules};
