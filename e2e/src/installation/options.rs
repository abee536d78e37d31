//! The options of an installation.

use std::time::Duration;

/// The options of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallationOptions {
    /// Its namespace, of at most 40 characters, which no other installation of the cluster has.
    pub name: String,
    /// Its name as a policy server, of at most 40 characters, which no other installation of the cluster has.
    pub policy_server: String,
    /// Where the certificate of the evaluators comes from.
    pub certificates: Certificates,
    /// The `--policy-checks` of controller and loaders; their default if absent.
    pub policy_checks: Option<String>,
    /// The `--policy-checks-timeout` of the controller; its default if absent.
    pub policy_checks_timeout: Option<Duration>,
    /// The format of reports on objects; if absent, objects are not audited.
    pub audit: Option<String>,
}

/// Where the certificate of the evaluators comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certificates {
    /// The controller makes it.
    Controller,
    /// The test makes it, once: for installations without a controller.
    OfTheTest,
}

impl Default for InstallationOptions {
    /// The defaults of the chart.
    fn default() -> Self {
        Self { policy_server: "default".to_owned(), ..Self::named("portcullis") }
    }
}

impl InstallationOptions {
    /// The defaults with this name. Each test must use a name of its own.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            policy_server: name.to_owned(),
            certificates: Certificates::Controller,
            policy_checks: None,
            policy_checks_timeout: None,
            audit: None,
        }
    }

    /// Uses a certificate that the test makes: for installations without a controller.
    #[must_use]
    pub fn certified_by_the_test(self) -> Self {
        Self { certificates: Certificates::OfTheTest, ..self }
    }

    /// Checks policies when they are applied, in this mode: `warn` or `deny`.
    #[must_use]
    pub fn checking_policies(self, mode: &str) -> Self {
        Self { policy_checks: Some(mode.to_owned()), ..self }
    }

    /// Lets API servers wait so long for the answer of a check: for checks with a lot to do on a busy machine.
    #[must_use]
    pub fn checking_within(self, timeout: Duration) -> Self {
        Self { policy_checks_timeout: Some(timeout), ..self }
    }

    /// Audits objects, with reports of this format: `openreports` or `wgpolicy`. The time between two scans is longer than a test.
    #[must_use]
    pub fn auditing(self, format: &str) -> Self {
        Self { audit: Some(format.to_owned()), ..self }
    }
}
