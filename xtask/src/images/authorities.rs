//! The certificate authorities that an image trusts: those of Mozilla, as the crate `webpki-root-certs` has them, so that they depend
//! on `Cargo.lock` and not on the machine.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The package with the authorities.
pub(super) const PACKAGE: &str = "webpki-root-certs";

/// The path where programs look for authorities first.
pub(super) const PATH: &str = "etc/ssl/certs/ca-certificates.crt";

/// All authorities as PEM.
pub(super) fn bundle() -> String {
    webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().map(|certificate| pem(certificate)).collect()
}

/// The length of a line of PEM (RFC 7468).
fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line) + "\n");
    format!("-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_short_and_between_marks() {
        let expected = format!("-----BEGIN CERTIFICATE-----\n{}\nAAAA\n-----END CERTIFICATE-----\n", "A".repeat(64),);
        assert_eq!(pem(&[0; 51]), expected);
    }

    #[test]
    fn the_bundle_has_every_authority() {
        let count = bundle().matches("-----BEGIN CERTIFICATE-----\n").count();
        assert_eq!(count, webpki_root_certs::TLS_SERVER_ROOT_CERTS.len());
        assert!(count > 50, "{count}");
    }
}
