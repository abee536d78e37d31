//! The one implementation of cryptography.

/// Chooses ring for whatever speaks TLS in this process. [`run`](crate::run) does it; tests that make clients of their own call it
/// first. Calling it again changes nothing.
pub fn install_crypto() {
    // An error says that it is installed already; no other implementation is linked.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
