//! The HTTP client for other programs of the same pod.

use std::time::Duration;

/// Longest time for a connection.
const CONNECT: Duration = Duration::from_secs(2);

/// A client of programs on the loopback, whose answers take at most `longest`.
pub(crate) fn client(longest: Duration) -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .no_proxy()
        // It never uses TLS, and a container may have no certificate authorities at all, which would otherwise be an error.
        .tls_certs_only([])
        .connect_timeout(CONNECT)
        .timeout(longest)
        .build()
}
