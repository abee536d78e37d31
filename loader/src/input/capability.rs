//! Patterns of `hostCapabilities` (docs/design/policy-abi.md, section 8).

/// Every capability that a pattern can name. `tracing/log` needs no grant.
const KNOWN: &[&str] = &[
    "oci/v1/verify",
    "oci/v2/verify",
    "oci/v1/manifest_digest",
    "oci/v1/oci_manifest",
    "oci/v1/oci_manifest_config",
    "net/v1/dns_lookup_host",
    "crypto/v1/is_certificate_trusted",
    "kubernetes/list_resources_by_namespace",
    "kubernetes/list_resources_all",
    "kubernetes/get_resource",
    "kubernetes/can_i",
    "tracing/log",
];

/// A pattern that names no capability.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "hostCapabilities: {0:?} is none of `*`, a prefix like `oci/*` or `oci/v1/*`, and a whole path like `{example}`",
    example = KNOWN[0]
)]
pub(crate) struct UnknownCapability(String);

/// Checks that each pattern is `*`, a known prefix with `/*`, or a known path.
///
/// # Errors
/// The first that is none of them.
pub(crate) fn check(patterns: &[String]) -> Result<(), UnknownCapability> {
    match patterns.iter().find(|pattern| !is_known(pattern)) {
        None => Ok(()),
        Some(pattern) => Err(UnknownCapability(portcullis_contract::clean(pattern, 100))),
    }
}

fn is_known(pattern: &str) -> bool {
    match pattern.strip_suffix("/*") {
        Some(prefix) => KNOWN.iter().any(|path| path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))),
        None => pattern == "*" || KNOWN.contains(&pattern),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_segments_only() {
        for good in ["*", "oci/*", "oci/v1/*", "oci/v2/verify", "kubernetes/*", "net/v1/dns_lookup_host"] {
            assert_eq!(check(&[good.to_owned()]), Ok(()), "{good}");
        }
        for bad in ["", "oci", "oci/v1", "oci*", "oc/*", "oci/v3/*", "oci/v1/ver*", "/*", "**", "oci/v1/verify/*"] {
            assert!(check(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }
}
