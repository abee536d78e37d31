//! How an installation is to be.

/// How an installation is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallationOptions {
    /// Its namespace: at most 40 letters, the same for no other of the cluster.
    pub name: String,
    /// Its name as a policy server: at most 40 letters, the same for no other of the cluster.
    pub policy_server: String,
    /// Who makes the certificate of the evaluators.
    pub certificates: Certificates,
}

/// Who makes the certificate of the evaluators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certificates {
    /// The controller.
    Controller,
    /// The test, once: for installations without a controller.
    OfTheTest,
}

impl Default for InstallationOptions {
    /// As an operator has it who changes nothing.
    fn default() -> Self {
        Self { policy_server: "default".to_owned(), ..Self::named("portcullis") }
    }
}

impl InstallationOptions {
    /// A name of its own for each test; the rest as by default.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), policy_server: name.to_owned(), certificates: Certificates::Controller }
    }

    /// With a certificate that the test makes: for installations without a controller.
    #[must_use]
    pub fn certified_by_the_test(self) -> Self {
        Self { certificates: Certificates::OfTheTest, ..self }
    }
}
