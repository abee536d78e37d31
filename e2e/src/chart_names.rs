//! Names of the chart's objects, and what it sets for programs.

/// The service account of the policy server's pods.
pub const POLICY_SERVER_ACCOUNT: &str = "portcullis-policy-server";
/// The service account of the controller's pods.
pub const CONTROLLER_ACCOUNT: &str = "portcullis-controller";
/// The Service in front of the evaluators.
pub const SERVICE: &str = "portcullis-policy-server";
/// The variable, and its value, with which the loader gives memory back to the system as soon as it is free.
pub const LOADER_MEMORY: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "131072");
