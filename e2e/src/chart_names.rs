//! Names of the chart's objects.

/// The service account of the policy server's pods.
pub const POLICY_SERVER_ACCOUNT: &str = "portcullis-policy-server";
/// The service account of the controller's pods.
pub const CONTROLLER_ACCOUNT: &str = "portcullis-controller";
/// The Service in front of the evaluators.
pub const SERVICE: &str = "portcullis-policy-server";
