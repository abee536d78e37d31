//! The settings of certificates.

use std::time::Duration;

use clap::{Args, ValueEnum};
use portcullis_kubernetes::siblings_name;
use portcullis_process::{SettingError, parse_duration};

use super::rules::{Purpose, Rules};

/// The shortest lifetime of a certificate. A shorter one would be renewed all the time.
const SHORTEST: Duration = Duration::from_secs(10);

/// Where the certificates come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// This controller makes them.
    Own,
    /// Another program, for instance cert-manager, writes a Secret with `ca.crt`.
    External,
}

/// How the policy server gets its certificates.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Certificates")]
pub struct CertificateArgs {
    /// Where the certificates come from: made by this controller, or by another program like cert-manager that writes the external Secret.
    #[arg(long, env = "PORTCULLIS_CERTIFICATES", value_name = "WHO", value_enum, default_value_t = Form::Own)]
    pub certificates: Form,

    /// The Secret of the certificate authority. [default: portcullis-<policy server>-ca]
    #[arg(long, env = "PORTCULLIS_CA_SECRET", value_name = "NAME")]
    pub ca_secret: Option<String>,

    /// The Secret of the serving certificate; pods mount it. [default: portcullis-<policy server>-tls]
    #[arg(long, env = "PORTCULLIS_TLS_SECRET", value_name = "NAME")]
    pub tls_secret: Option<String>,

    /// The Secret that the other program writes. Its content is passed on to the pods once every webhook trusts it.
    /// [default: portcullis-<policy server>-external]
    #[arg(long, env = "PORTCULLIS_EXTERNAL_SECRET", value_name = "NAME")]
    pub external_secret: Option<String>,

    /// Makes certificates, with an authority of their own, that let loaders get modules from each other while a registry is down.
    #[arg(long, env = "PORTCULLIS_SIBLINGS")]
    pub siblings: bool,

    /// The Secret of the loaders' authority. [default: portcullis-<policy server>-siblings-ca]
    #[arg(long, env = "PORTCULLIS_SIBLINGS_CA_SECRET", value_name = "NAME")]
    pub siblings_ca_secret: Option<String>,

    /// The Secret of the loaders' certificate; pods mount it. [default: portcullis-<policy server>-siblings]
    #[arg(long, env = "PORTCULLIS_SIBLINGS_SECRET", value_name = "NAME")]
    pub siblings_secret: Option<String>,

    /// How long a certificate authority is valid. It is replaced when a third of that time is left.
    #[arg(long, env = "PORTCULLIS_CA_LIFETIME", value_name = "TIME", default_value = "365d", value_parser = parse_duration)]
    pub ca_lifetime: Duration,

    /// How long a serving certificate is valid. It is renewed when a third of that time is left.
    #[arg(long, env = "PORTCULLIS_TLS_LIFETIME", value_name = "TIME", default_value = "90d", value_parser = parse_duration)]
    pub tls_lifetime: Duration,

    /// How long every webhook must have trusted a new authority before it signs certificates.
    #[arg(long, env = "PORTCULLIS_CA_PAUSE", value_name = "TIME", default_value = "1m", value_parser = parse_duration)]
    pub ca_pause: Duration,

    /// How long a new serving certificate may take to reach every pod. It must be longer than the kubelet's sync period and the age of its
    /// cache together.
    #[arg(long, env = "PORTCULLIS_TLS_PAUSE", value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    pub tls_pause: Duration,

    /// An event warns when a certificate that should have been renewed has less time left than this.
    #[arg(long, env = "PORTCULLIS_CERTIFICATE_WARNING", value_name = "TIME", default_value = "30d", value_parser = parse_duration)]
    pub certificate_warning: Duration,
}

impl CertificateArgs {
    /// The name of the authority's Secret.
    pub fn ca_secret(&self, policy_server: &str) -> String {
        self.ca_secret.clone().unwrap_or_else(|| format!("portcullis-{policy_server}-ca"))
    }

    /// The name of the serving Secret.
    pub fn tls_secret(&self, policy_server: &str) -> String {
        self.tls_secret.clone().unwrap_or_else(|| format!("portcullis-{policy_server}-tls"))
    }

    /// The name of the Secret that another program writes; `None` if this controller makes the certificates.
    pub fn external_secret(&self, policy_server: &str) -> Option<String> {
        let name = || self.external_secret.clone().unwrap_or_else(|| format!("portcullis-{policy_server}-external"));
        (self.certificates == Form::External).then(name)
    }

    /// The name of the Secret of the loaders' authority.
    pub fn siblings_ca_secret(&self, policy_server: &str) -> String {
        self.siblings_ca_secret.clone().unwrap_or_else(|| format!("portcullis-{policy_server}-siblings-ca"))
    }

    /// The name of the Secret of the loaders' certificate.
    pub fn siblings_secret(&self, policy_server: &str) -> String {
        self.siblings_secret.clone().unwrap_or_else(|| format!("portcullis-{policy_server}-siblings"))
    }

    /// The rules for the certificates of a policy server's loaders; `None` if they get none.
    ///
    /// # Errors
    /// When settings contradict each other.
    pub fn siblings_rules(&self, policy_server: &str, namespace: &str) -> Result<Option<Rules>, SettingError> {
        if !self.siblings {
            return Ok(None);
        }
        let names = [
            ("--ca-secret", self.ca_secret(policy_server)),
            ("--tls-secret", self.tls_secret(policy_server)),
            ("--siblings-ca-secret", self.siblings_ca_secret(policy_server)),
            ("--siblings-secret", self.siblings_secret(policy_server)),
        ];
        for (number, (setting, name)) in names.iter().enumerate() {
            if let Some((other, _)) = names[..number].iter().find(|(_, earlier)| earlier == name) {
                return Err(SettingError::new(*setting, format!("is also the Secret of {other}: choose another name")));
            }
        }
        // Loaders get both the authority and the certificate from the Secret that they mount.
        let pauses = self.tls_pause.saturating_mul(2);
        if pauses >= self.ca_lifetime / 3 {
            let problem = format!(
                "is too short for --siblings: an authority is replaced in its last third, and that takes {pauses:?} (twice --tls-pause)"
            );
            return Err(SettingError::new("--ca-lifetime", problem));
        }
        Ok(Some(Rules {
            purpose: Purpose::Siblings,
            names: vec![siblings_name(policy_server, namespace)],
            policy_server: policy_server.to_owned(),
            ca_lifetime: self.ca_lifetime,
            serving_lifetime: self.tls_lifetime,
            bundle_pause: self.tls_pause,
            replica_pause: self.tls_pause,
            warning: self.certificate_warning,
        }))
    }

    /// The rules for the certificates of a policy server's Service.
    ///
    /// # Errors
    /// When settings contradict each other.
    pub fn rules(&self, policy_server: &str, namespace: &str, service: &str) -> Result<Rules, SettingError> {
        if self.ca_secret(policy_server) == self.tls_secret(policy_server) {
            return Err(SettingError::new("--ca-secret", "is also the Secret of --tls-secret: choose another name"));
        }
        if self.external_secret(policy_server).is_some_and(|name| name == self.tls_secret(policy_server)) {
            let problem = "is also the Secret of --tls-secret, which pods mount: choose another name";
            return Err(SettingError::new("--external-secret", problem));
        }
        for (setting, lifetime) in [("--ca-lifetime", self.ca_lifetime), ("--tls-lifetime", self.tls_lifetime)] {
            if lifetime < SHORTEST {
                return Err(SettingError::new(setting, format!("is {lifetime:?}: want at least {SHORTEST:?}")));
            }
        }
        let pauses = self.ca_pause.saturating_add(self.tls_pause);
        if pauses >= self.ca_lifetime / 3 {
            let problem = format!(
                "is too short: an authority is replaced in its last third, and that takes {pauses:?} (--ca-pause and --tls-pause)"
            );
            return Err(SettingError::new("--ca-lifetime", problem));
        }
        Ok(Rules {
            purpose: Purpose::Webhooks,
            names: vec![format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.cluster.local")],
            policy_server: policy_server.to_owned(),
            ca_lifetime: self.ca_lifetime,
            serving_lifetime: self.tls_lifetime,
            bundle_pause: self.ca_pause,
            replica_pause: self.tls_pause,
            warning: self.certificate_warning,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        certificates: CertificateArgs,
    }

    fn rules(args: &[&str]) -> Result<Rules, String> {
        let program = Program::parse_from(std::iter::once("program").chain(args.iter().copied()));
        program.certificates.rules("default", "gate", "guard").map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_is_a_year_and_a_quarter() {
        let rules = rules(&[]).expect("the defaults fit together");
        assert_eq!(rules.names, ["guard.gate.svc", "guard.gate.svc.cluster.local"]);
        assert_eq!(rules.ca_lifetime, Duration::from_secs(365 * 24 * 3600));
        assert_eq!(rules.serving_lifetime, Duration::from_secs(90 * 24 * 3600));
    }

    #[test]
    fn loaders_get_certificates_where_they_are_wanted() {
        let siblings = |args: &[&str]| {
            let program = Program::parse_from(std::iter::once("program").chain(args.iter().copied()));
            program.certificates.siblings_rules("default", "gate").map_err(|error| error.to_string())
        };
        assert_eq!(siblings(&[]), Ok(None));
        let rules = siblings(&["--siblings"]).expect("the defaults fit together").expect("rules");
        assert_eq!(
            (rules.purpose, rules.names),
            (Purpose::Siblings, vec!["siblings.default.gate.portcullis".to_owned()])
        );
        assert_eq!((rules.bundle_pause, rules.replica_pause), (Duration::from_secs(300), Duration::from_secs(300)));
        for (args, named) in [
            (["--siblings", "--siblings-secret=portcullis-default-tls", "--tls-lifetime=90d"], "--siblings-secret"),
            (["--siblings", "--siblings-ca-secret=x", "--siblings-secret=x"], "--siblings-secret"),
            (["--siblings", "--ca-lifetime=60s", "--tls-pause=12s"], "--ca-lifetime"),
        ] {
            assert!(siblings(&args).is_err_and(|error| error.starts_with(named)), "{args:?}");
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_named() {
        for (args, named) in [
            (vec!["--ca-secret=x", "--tls-secret=x"], "--ca-secret"),
            (vec!["--certificates=external", "--external-secret=x", "--tls-secret=x"], "--external-secret"),
            (vec!["--tls-lifetime=1s"], "--tls-lifetime"),
            (vec!["--ca-lifetime=10m"], "--ca-lifetime"),
        ] {
            assert!(rules(&args).is_err_and(|error| error.starts_with(named)), "{args:?}");
        }
        assert!(rules(&["--ca-lifetime=60s", "--ca-pause=2s", "--tls-pause=3s", "--tls-lifetime=20s"]).is_ok());
    }
}
