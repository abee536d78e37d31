//! Host capabilities, and the patterns that grant them (docs/design/policy-abi.md, section 8).

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! capabilities {
    ($($(#[doc = $doc:literal])+ $name:ident = $path:literal;)+) => {
        /// Something that a policy may ask its host for. Its path is what a grant names.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Capability {
            $($(#[doc = $doc])+ #[serde(rename = $path)] $name,)+
        }

        impl Capability {
            /// Every capability.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// `<namespace>/<operation>`, as guests and grants name it.
            pub fn path(self) -> &'static str {
                match self {
                    $(Self::$name => $path,)+
                }
            }
        }
    };
}

capabilities! {
    /// Checks the signatures of an image.
    OciVerifyV1 = "oci/v1/verify";
    /// Checks the signatures of an image, with more kinds of signers than version 1.
    OciVerifyV2 = "oci/v2/verify";
    /// The digest of an image's manifest.
    OciManifestDigest = "oci/v1/manifest_digest";
    /// The manifest of an image, or its index.
    OciManifest = "oci/v1/oci_manifest";
    /// The manifest of an image, and its configuration.
    OciManifestConfig = "oci/v1/oci_manifest_config";
    /// The addresses of a host.
    DnsLookupHost = "net/v1/dns_lookup_host";
    /// Whether a certificate can be trusted.
    CertificateTrusted = "crypto/v1/is_certificate_trusted";
    /// The objects of a kind in one namespace.
    ListByNamespace = "kubernetes/list_resources_by_namespace";
    /// The objects of a kind in all namespaces.
    ListAll = "kubernetes/list_resources_all";
    /// One object.
    GetResource = "kubernetes/get_resource";
    /// Whether a user may do something, by the rules of the API server.
    CanI = "kubernetes/can_i";
    /// Remembers a value for later requests.
    CacheSet = "cache/set";
    /// Reads a value that was remembered.
    CacheGet = "cache/get";
    /// Writes a line to the log. It needs no grant.
    Log = "tracing/log";
}

/// A pattern that does not match any capability.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "hostCapabilities: {0:?} is none of `*`, a prefix like `oci/*` or `oci/v1/*`, and a whole path like `oci/v1/verify`"
)]
pub struct UnknownCapability(String);

impl Capability {
    /// The capability with this path.
    pub fn from_path(path: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|capability| capability.path() == path)
    }

    /// Whether any capability's path begins with this namespace, that is the part before the first slash.
    pub fn has_namespace(namespace: &str) -> bool {
        Self::ALL.iter().any(|capability| capability.path().split('/').next() == Some(namespace))
    }

    /// Whether it needs a connection to something outside the pod: only the broker can provide it.
    pub fn needs_broker(self) -> bool {
        !matches!(self, Self::Log | Self::CertificateTrusted | Self::CacheSet | Self::CacheGet)
    }

    /// Whether the API server answers it.
    pub fn is_of_cluster(self) -> bool {
        matches!(self, Self::ListByNamespace | Self::ListAll | Self::GetResource | Self::CanI)
    }

    /// Checks that each pattern is `*`, a known prefix with `/*`, or a known path.
    ///
    /// # Errors
    /// When one is not; the error names the first of them.
    pub fn check_patterns(patterns: &[String]) -> Result<(), UnknownCapability> {
        match patterns.iter().find(|pattern| !is_known(pattern)) {
            None => Ok(()),
            Some(pattern) => Err(UnknownCapability(crate::clean(pattern, 100))),
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path())
    }
}

/// The error text for a guest that was not granted the capability with this path; it is upstream's text.
pub fn not_granted(path: &str) -> String {
    format!("Policy has not been granted access to the '{path}' host capability. The violation has been reported.")
}

/// The error text for a guest of a policy in a namespace, where the operator does not allow the capability with this path to such policies.
pub fn not_for_namespaces(path: &str) -> String {
    format!(
        "Policy has not been granted access to the '{path}' host capability. The violation has been reported: policies of a namespace \
         may not have it; the operator can allow it with --namespaced-capability"
    )
}

/// Whether any of the patterns grants a path: `*`, a prefix that ends in `/*`, or the path itself. Without patterns, nothing
/// is granted.
pub fn is_granted(patterns: &[String], path: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some("") => true,
        Some(prefix) => prefix.ends_with('/') && path.starts_with(prefix),
        None => pattern == path,
    })
}

fn is_known(pattern: &str) -> bool {
    let mut paths = Capability::ALL.iter().map(|capability| capability.path());
    match pattern.strip_suffix("/*") {
        Some(prefix) => paths.any(|path| path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))),
        None => pattern == "*" || paths.any(|path| path == pattern),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_whole_segments() {
        for good in ["*", "oci/*", "oci/v1/*", "oci/v2/verify", "kubernetes/*", "net/v1/dns_lookup_host"] {
            assert_eq!(Capability::check_patterns(&[good.to_owned()]), Ok(()), "{good}");
        }
        for bad in ["", "oci", "oci/v1", "oci*", "oc/*", "oci/v3/*", "oci/v1/ver*", "/*", "**", "oci/v1/verify/*"] {
            assert!(Capability::check_patterns(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pattern_grants_what_lies_below_it() {
        let granted = |pattern: &str| is_granted(&[pattern.to_owned()], "oci/v1/verify");
        for pattern in ["*", "oci/*", "oci/v1/*", "oci/v1/verify"] {
            assert!(granted(pattern), "{pattern}");
        }
        for pattern in ["oci", "oci*", "oci/v1", "oci/v2/*", "", "net/*"] {
            assert!(!granted(pattern), "{pattern}");
        }
        assert!(!is_granted(&[], "oci/v1/verify"));
    }

    #[test]
    fn the_wire_form_is_the_path() {
        for capability in Capability::ALL {
            assert_eq!(serde_json::to_string(capability).expect("encodes"), format!("\"{capability}\""));
            assert_eq!(Capability::from_path(capability.path()), Some(*capability));
        }
    }
}
