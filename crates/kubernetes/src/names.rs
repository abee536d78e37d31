//! Names under which the programs write to an API server, and one by which loaders know each other.

/// Field manager of what the controller writes; also the value of [`MANAGED_BY_LABEL`] on its webhook configurations.
pub const CONTROLLER_MANAGER: &str = "portcullis-controller";
/// Field manager of the status that the reporter holding the Lease writes.
pub const STATUS_MANAGER: &str = "portcullis-status";
/// Field manager of a reporter's own report.
pub const REPORT_MANAGER: &str = "portcullis-reporter";
/// `reportingController` of the controller's events.
pub const CONTROLLER_REPORTING: &str = "policies.portcullis.dev/controller";
/// `reportingController` of the reporter's events.
pub const REPORTER_REPORTING: &str = "policies.portcullis.dev/reporter";
/// Label of objects that a program made and may change and remove.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";

/// The DNS name in the certificates of an installation's loaders: the controller has it certified, and a loader wants it of
/// whoever it asks and answers.
pub fn siblings_name(policy_server: &str, namespace: &str) -> String {
    format!("siblings.{policy_server}.{namespace}.portcullis").to_ascii_lowercase()
}
