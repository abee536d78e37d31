//! The arguments that name the signers of a module.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use clap::Args;
use portcullis_process::SettingError;
use portcullis_registry::signature::{Requirement, Signer, Subject, TrustRoot};

/// The required signers.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Signers")]
#[group(skip)]
pub struct SignerArgs {
    /// A public key (PEM) that must have signed it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["verification", "issuer", "github_owner"])]
    pub key: Option<PathBuf>,

    /// A verification.yml that names the required signers.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["issuer", "github_owner"])]
    pub verification: Option<PathBuf>,

    /// The issuer of the signer's identity, for instance https://accounts.google.com. Needs --subject or --subject-prefix,
    /// and --trust-root.
    #[arg(long, value_name = "URL", conflicts_with = "github_owner")]
    pub issuer: Option<String>,

    /// The signer's identity: a mail address or a URI.
    #[arg(long, value_name = "SUBJECT", requires = "issuer", conflicts_with = "subject_prefix")]
    pub subject: Option<String>,

    /// All identities below this address, for instance https://github.com/organization
    #[arg(long, value_name = "URL", requires = "issuer")]
    pub subject_prefix: Option<String>,

    /// The owner of the GitHub repository whose workflow must have signed it. Needs --trust-root.
    #[arg(long, value_name = "NAME")]
    pub github_owner: Option<String>,

    /// That repository; without it, all of the owner's.
    #[arg(long, value_name = "NAME", requires = "github_owner")]
    pub github_repo: Option<String>,

    /// What the signature must say besides. May be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = annotation, conflicts_with = "verification")]
    pub annotation: Vec<(String, String)>,

    /// A trusted_root.json of Sigstore: authorities and logs that vouch for signers without a key of their own.
    #[arg(long, env = "PORTCULLIS_TRUST_ROOT", value_name = "FILE")]
    pub trust_root: Option<PathBuf>,
}

/// The rules for the signatures of all modules, beside those of the policies themselves, in the flags of the loader.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Signatures")]
#[group(skip)]
pub struct SignatureArgs {
    /// A verification.yml that names the required signers of every module.
    #[arg(long, env = "PORTCULLIS_VERIFICATION", value_name = "FILE")]
    pub verification: Option<PathBuf>,

    /// A trusted_root.json of Sigstore: authorities and logs that vouch for signers without a key of their own.
    #[arg(long, env = "PORTCULLIS_TRUST_ROOT", value_name = "FILE")]
    pub trust_root: Option<PathBuf>,
}

impl SignatureArgs {
    /// The same for a loader.
    pub(crate) fn for_loader(&self) -> Vec<OsString> {
        let files = [("--verification", &self.verification), ("--trust-root", &self.trust_root)];
        let given = files.into_iter().filter_map(|(flag, file)| Some([flag.into(), file.clone()?.into()]));
        given.flatten().collect()
    }
}

impl SignerArgs {
    /// The requirement that the arguments describe.
    ///
    /// # Errors
    /// A [`SettingError`] that names the argument that cannot be used.
    pub(crate) fn requirement(&self) -> anyhow::Result<Requirement> {
        if let Some(path) = &self.trust_root {
            TrustRoot::read(path).map_err(|error| SettingError::new("--trust-root", error.to_string()))?;
        }
        if let Some(path) = &self.verification {
            return Ok(Requirement::read(path).map_err(|error| SettingError::new("--verification", error.to_string()))?);
        }
        let annotations = self.annotation.iter().cloned().collect();
        let (flag, signer) = if let Some(path) = &self.key {
            let failed = |error| SettingError::new("--key", format!("failed to read {}: {error}", path.display()));
            let key = fs::read_to_string(path).map_err(failed)?;
            ("--key", Signer::PubKey { owner: None, key, annotations })
        } else if let Some(issuer) = self.issuer.clone() {
            let subject = match (&self.subject, &self.subject_prefix) {
                (Some(subject), _) => Subject::Equal(subject.clone()),
                (None, Some(prefix)) => Subject::UrlPrefix(prefix.clone()),
                (None, None) => {
                    return Err(SettingError::new("--issuer", "want --subject or --subject-prefix with it").into());
                }
            };
            ("--issuer", Signer::GenericIssuer { issuer, subject, annotations })
        } else if let Some(owner) = self.github_owner.clone() {
            ("--github-owner", Signer::GithubAction { owner, repo: self.github_repo.clone(), annotations })
        } else {
            let flags = "--key, --verification, --issuer or --github-owner";
            return Err(SettingError::new("name who must have signed it", flags).into());
        };
        Ok(Requirement::signer(signer).map_err(|error| SettingError::new(flag, error.to_string()))?)
    }
}

fn annotation(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("want NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        signer: SignerArgs,
    }

    fn ask(line: &str) -> Result<Requirement, String> {
        let line = Line::try_parse_from(std::iter::once("x").chain(line.split(' ')));
        line.map_err(|error| error.to_string())?.signer.requirement().map_err(|error| error.to_string())
    }

    #[test]
    fn signers_are_named_in_one_way() {
        for line in [
            "--issuer https://a.example --subject me@a.example",
            "--issuer https://a.example --subject-prefix https://github.com/org --annotation env=prod",
            "--github-owner org --github-repo repo",
        ] {
            let requirement = ask(line).expect(line);
            assert!(requirement.needs_trust_root(), "{line}");
        }
        for (line, words) in [
            ("--annotation a=b", "name who must have signed it: --key, --verification, --issuer or --github-owner"),
            ("--key /nowhere", "--key: failed to read /nowhere: "),
            ("--issuer https://a.example", "--subject"),
            ("--subject me@a.example", "--issuer"),
            ("--github-owner org --issuer https://a.example --subject me", "cannot be used with"),
            ("--issuer https://a.example --subject-prefix org", "urlPrefix"),
            ("--github-owner org --trust-root /nowhere", "--trust-root"),
            ("--github-owner org --annotation a", "NAME=VALUE"),
        ] {
            let error = ask(line).expect_err(line);
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
