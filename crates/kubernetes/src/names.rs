//! The names under which the programs write to an API server, and the name in the certificates of loaders.

/// The field manager of the controller; also the value of [`MANAGED_BY_LABEL`] on its webhook configurations.
pub const CONTROLLER_MANAGER: &str = "portcullis-controller";
/// The field manager of the status, which the reporter that holds the Lease writes.
pub const STATUS_MANAGER: &str = "portcullis-status";
/// The field manager of a reporter's own report.
pub const REPORT_MANAGER: &str = "portcullis-reporter";
/// The field manager of the audit's reports on objects.
pub const AUDIT_MANAGER: &str = "portcullis-audit";
/// `reportingController` of the controller's events.
pub const CONTROLLER_REPORTING: &str = "policies.portcullis.dev/controller";
/// `reportingController` of the reporter's events.
pub const REPORTER_REPORTING: &str = "policies.portcullis.dev/reporter";
/// The label of objects that a program created and may change and remove.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";

/// The DNS name in the certificates of an installation's loaders. The controller issues them, and each loader requires the name of
/// its siblings.
pub fn siblings_name(policy_server: &str, namespace: &str) -> String {
    format!("siblings.{policy_server}.{namespace}.portcullis").to_ascii_lowercase()
}

/// Whether an object can have this name: a DNS subdomain, as most kinds require.
pub fn is_object_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    bytes.len() <= 253 && bytes.iter().copied().all(is_inner) && is_end(bytes.first()) && is_end(bytes.last())
}

/// Whether this is one part of the path of an address, and nothing else: what would lead to another address is not. A few kinds have such
/// names that [`is_object_name`] refuses, like `system:node`.
pub fn is_path_segment(name: &str) -> bool {
    let is_special = |c: char| matches!(c, '/' | '\\' | '%' | '?' | '#') || c.is_control() || c.is_whitespace();
    !matches!(name, "" | "." | "..") && !name.contains(is_special)
}

/// Whether a namespace can have this name: a DNS label.
pub fn is_namespace_name(name: &str) -> bool {
    name.len() <= 63 && !name.contains('.') && is_object_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_cannot_be_a_path_is_refused() {
        assert!(["a", "pod-a.eu", "0"].into_iter().all(is_object_name));
        let longest = "a".repeat(253);
        assert!(is_object_name(&longest) && !is_object_name(&format!("{longest}a")));
        assert!(!["", "../a", "A", "a/b", "-a", "a.", "a_b"].into_iter().any(is_object_name));
    }

    #[test]
    fn what_leads_to_another_address_is_no_part_of_a_path() {
        assert!(["a", "pod-a.eu", "system:node", "A_b", "...", "a;b", "é"].into_iter().all(is_path_segment));
        let other = ["", ".", "..", "a/b", "a\\b", "a%2fb", "a?b", "a#b", "a b", "a\u{a0}b", "a\n", "\0"];
        assert_eq!(other.into_iter().find(|name| is_path_segment(name)), None);
    }

    #[test]
    fn namespaces_have_names_of_one_label() {
        let longest = "a".repeat(63);
        assert!(["a", "kube-system", "0", &longest].into_iter().all(is_namespace_name));
        let other = ["", "a.b", "A", "-a", "a-", "a/b", "a?b", "..", &format!("{longest}a")];
        assert_eq!(other.into_iter().find(|name| is_namespace_name(name)), None);
    }
}
