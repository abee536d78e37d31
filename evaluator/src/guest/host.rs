//! Calls of a guest to its host (docs/design/policy-abi.md, section 8).
//!
//! Only the log exists so far. Grants are checked all the same, and first: a guest without a right learns that, and not whether the
//! capability exists.

use super::Host;
use super::linear_memory::{OutOfBounds, slice};

/// Longest name that an error quotes, in bytes.
const MAX_NAME: usize = 256;

/// The known namespaces and their operations.
const CAPABILITIES: &[(&str, &[&str])] = &[
    ("oci", &["v1/verify", "v2/verify", "v1/manifest_digest", "v1/oci_manifest", "v1/oci_manifest_config"]),
    ("net", &["v1/dns_lookup_host"]),
    ("crypto", &["v1/is_certificate_trusted"]),
    ("kubernetes", &["list_resources_by_namespace", "list_resources_all", "get_resource", "can_i"]),
    ("tracing", &["log"]),
];

/// The capabilities that a policy may use: `*`, prefixes ending in `/*`, exact paths. Empty grants nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Grants(Vec<String>);

impl Grants {
    /// Grants by the patterns of the manifest, whose form the loader has checked.
    pub(crate) fn new(patterns: &[String]) -> Self {
        Self(patterns.to_vec())
    }

    fn allow(&self, path: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some("") => true,
            Some(prefix) => prefix.ends_with('/') && path.starts_with(prefix),
            None => pattern == path,
        })
    }
}

/// A call as it lies in the guest's memory.
pub(super) struct Call<'a> {
    binding: &'a [u8],
    namespace: &'a [u8],
    operation: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Call<'a> {
    /// Reads the four pairs of pointer and length.
    pub(super) fn read(memory: &'a [u8], pairs: [(i32, i32); 4]) -> Result<Self, OutOfBounds> {
        let [binding, namespace, operation, payload] = pairs.map(|(ptr, len)| slice(memory, ptr, len));
        Ok(Self { binding: binding?, namespace: namespace?, operation: operation?, payload: payload? })
    }

    /// The reply, or the error text for the guest. Sets `denied` if a right was missing.
    pub(super) fn run(&self, host: &Host, denied: &mut bool) -> Result<Vec<u8>, String> {
        let [binding, namespace, operation] = [self.binding, self.namespace, self.operation].map(name);
        if binding != "kubewarden" {
            return Err(format!("unknown binding: {binding}"));
        }
        let path = format!("{namespace}/{operation}");
        if namespace != "tracing" && !host.grants.allow(&path) {
            *denied = true;
            return Err(format!(
                "Policy has not been granted access to the '{path}' host capability. The violation has been reported."
            ));
        }
        let Some((_, operations)) = CAPABILITIES.iter().find(|(known, _)| *known == namespace) else {
            return Err(format!("unknown namespace: {namespace}"));
        };
        if !operations.contains(&operation.as_str()) {
            return Err(format!("unknown operation: {operation}"));
        }
        if namespace == "tracing" {
            host.log.event(self.payload);
            return Ok(Vec::new());
        }
        Err(format!("Callback evaluation failure: this release does not offer the host capability '{path}' yet"))
    }
}

fn name(bytes: &[u8]) -> String {
    portcullis_contract::clean(&String::from_utf8_lossy(&bytes[..bytes.len().min(4 * MAX_NAME)]), MAX_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(grants: &[&str], binding: &str, namespace: &str, operation: &str) -> (Result<Vec<u8>, String>, bool) {
        let grants: Vec<_> = grants.iter().map(|&pattern| pattern.to_owned()).collect();
        let host = Host::test(&grants);
        let call = Call {
            binding: binding.as_bytes(),
            namespace: namespace.as_bytes(),
            operation: operation.as_bytes(),
            payload: b"{}",
        };
        let mut denied = false;
        let result = call.run(&host, &mut denied);
        (result, denied)
    }

    fn error(grants: &[&str], binding: &str, namespace: &str, operation: &str) -> String {
        call(grants, binding, namespace, operation).0.expect_err("refused")
    }

    #[test]
    fn the_binding_comes_first_then_the_grant_then_the_name() {
        assert_eq!(error(&[], "other", "oci", "v1/verify"), "unknown binding: other");
        let text =
            "Policy has not been granted access to the 'weather/v1' host capability. The violation has been reported.";
        assert_eq!(error(&[], "kubewarden", "weather", "v1"), text);
        assert_eq!(error(&["*"], "kubewarden", "weather", "v1"), "unknown namespace: weather");
        assert_eq!(error(&["oci/*"], "kubewarden", "oci", "v9"), "unknown operation: v9");
        assert_eq!(error(&[], "kubewarden", "tracing", "shout"), "unknown operation: shout");
    }

    #[test]
    fn the_log_needs_no_grant() {
        assert_eq!(call(&[], "kubewarden", "tracing", "log"), (Ok(Vec::new()), false));
    }

    #[test]
    fn a_refusal_is_remembered() {
        assert!(call(&[], "kubewarden", "oci", "v1/verify").1);
        assert!(!call(&["oci/v1/verify"], "kubewarden", "oci", "v1/verify").1);
    }

    /// Both calling conventions keep the last one, and a command may leave some unread.
    #[test]
    fn no_error_text_is_long_whatever_the_guest_asks_for() {
        let long = "\u{fffd}\n".repeat(1 << 20);
        for (binding, namespace, operation) in
            [(&*long, "", ""), ("kubewarden", &long, &long), ("kubewarden", "oci", &long), ("kubewarden", &long, "")]
        {
            for grants in [&[][..], &["*"]] {
                assert!(error(grants, binding, namespace, operation).len() <= 1024);
            }
        }
    }

    #[test]
    fn patterns() {
        let allow = |pattern: &str, path| Grants(vec![pattern.to_owned()]).allow(path);
        assert!(allow("*", "oci/v1/verify"));
        assert!(allow("oci/*", "oci/v1/verify"));
        assert!(allow("oci/v1/*", "oci/v1/verify"));
        assert!(allow("oci/v1/verify", "oci/v1/verify"));
        for pattern in ["oci", "oci*", "oci/v1", "oci/v2/*", "", "net/*"] {
            assert!(!allow(pattern, "oci/v1/verify"), "{pattern}");
        }
    }
}
