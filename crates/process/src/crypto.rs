//! The one implementation of cryptography.

/// Makes ring the cryptography of everything that speaks TLS in this process. [`run`](crate::run) calls it; tests that make
/// clients of their own call it first. Calling it again changes nothing.
pub fn install_crypto() {
    // An error means that it is installed already: no other implementation is linked.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
