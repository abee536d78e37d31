//! Names under which the programs write to an API server.

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
