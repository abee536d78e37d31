//! The identity in a certificate, and whether it is that of a required signer.

use std::fmt;

use jiff::Timestamp;
use url::Url;

use super::requirement::{Signer, Subject, with_slash};

/// The issuer of the identities of GitHub's workflows.
const GITHUB: &str = "https://token.actions.githubusercontent.com";
/// The prefix of the addresses of GitHub's repositories.
const GITHUB_REPOSITORIES: &str = "https://github.com/";

/// The identity of a signer, from a certificate that was checked together with the signature against the trust root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The issuer of the identity, for instance https://accounts.google.com
    pub issuer: String,
    /// A mail address or a URI.
    pub subject: String,
    /// Whether the subject is a URI.
    pub is_uri: bool,
    /// `owner/repository` of the workflow, in certificates of workflows.
    pub repository: Option<String>,
    /// The time of the signature, as the transparency log or a timestamp authority attests it.
    pub signed_at: Timestamp,
}

impl Identity {
    /// Whether this is the identity that `signer` names.
    pub(super) fn is(&self, signer: &Signer) -> bool {
        match signer {
            Signer::PubKey { .. } | Signer::Certificate { .. } => false,
            Signer::GenericIssuer { issuer, subject, .. } => {
                self.issuer == *issuer
                    && match subject {
                        Subject::Equal(subject) => self.subject == *subject,
                        Subject::UrlPrefix(prefix) => self.is_uri && is_below(&self.subject, prefix),
                    }
            }
            Signer::GithubAction { owner, repo, .. } => {
                let of = self.repository.as_deref().and_then(|repository| repository.split_once('/'));
                let is_same = |(found_owner, found_repo): (&str, &str)| {
                    found_owner == owner && repo.as_ref().is_none_or(|repo| found_repo == repo)
                };
                self.issuer == GITHUB && self.is_uri && of.is_some_and(is_same)
            }
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.subject, self.issuer)
    }
}

/// The `owner/repository` from the two extensions of a certificate that may hold it. `None` if they disagree.
pub(super) fn repository(workflow: Option<&str>, source: Option<&str>) -> Option<String> {
    let from_source = source.and_then(|uri| uri.strip_prefix(GITHUB_REPOSITORIES));
    let name = match (workflow, source) {
        (Some(workflow), None) => Some(workflow),
        (Some(workflow), Some(_)) => from_source.filter(|source| *source == workflow),
        (None, _) => from_source,
    };
    let is_name = |name: &&str| {
        let mut parts = name.split('/');
        let two = [parts.next(), parts.next()];
        parts.next().is_none() && two.iter().all(|part| part.is_some_and(|part| !part.is_empty()))
    };
    name.filter(is_name).map(str::to_owned)
}

/// Whether an address is below a prefix, both as it is written and after `..` and the like are resolved.
fn is_below(subject: &str, prefix: &str) -> bool {
    let Some(prefix) = with_slash(prefix) else { return false };
    let (Ok(subject_url), Ok(prefix_url)) = (Url::parse(subject), Url::parse(&prefix)) else { return false };
    subject.starts_with(&prefix) && subject_url.as_str().starts_with(prefix_url.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::Requirement;

    fn workflow(subject: &str, repository: &str) -> Identity {
        Identity {
            issuer: GITHUB.to_owned(),
            subject: subject.to_owned(),
            is_uri: true,
            repository: Some(repository.to_owned()),
            signed_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn signer(text: &str) -> Signer {
        let requirement = Requirement::from_yaml(&format!("allOf: [{text}]")).expect(text);
        requirement.all_of.expect("one").remove(0)
    }

    #[test]
    fn an_identity_is_its_issuer_and_its_subject() {
        let mail = Identity { is_uri: false, ..workflow("me@example.com", "a/b") };
        let wants = |issuer: &str, subject: &str| {
            signer(&format!("{{kind: genericIssuer, issuer: '{issuer}', subject: {{equal: '{subject}'}}}}"))
        };
        assert!(mail.is(&wants(GITHUB, "me@example.com")));
        for (issuer, subject) in [
            (GITHUB, "Me@example.com"),
            (GITHUB, "me@example.com.evil.example"),
            ("https://token.actions.githubusercontent.com/", "me@example.com"),
            ("https://accounts.example.com", "me@example.com"),
        ] {
            assert!(!mail.is(&wants(issuer, subject)), "{issuer} {subject}");
        }
    }

    #[test]
    fn a_prefix_ends_at_a_slash() {
        let wants = |prefix: &str| {
            signer(&format!("{{kind: genericIssuer, issuer: '{GITHUB}', subject: {{urlPrefix: '{prefix}'}}}}"))
        };
        let good = workflow("https://github.com/org/repo/.github/workflows/a.yml@refs/heads/main", "org/repo");
        for prefix in
            ["https://github.com/org", "https://github.com/org/", "https://github.com", "https://github.com/org/repo"]
        {
            assert!(good.is(&wants(prefix)), "{prefix}");
        }
        for subject in [
            "https://github.com/org-evil/repo",
            "https://github.com/org",
            "https://github.com/org/../org-evil/repo",
            "https://github.com/org/%2e%2e/org-evil/repo",
            "https://github.com.evil.example/org/repo",
            "https://github.com@evil.example/org/repo",
            "http://github.com/org/repo",
            "https://GitHub.com/org/repo",
            "github.com/org/repo",
        ] {
            assert!(!workflow(subject, "org/repo").is(&wants("https://github.com/org")), "{subject}");
        }
        let mail = Identity { is_uri: false, ..good };
        assert!(!mail.is(&wants("https://github.com/org")), "a mail address is below nothing");
    }

    #[test]
    fn a_workflow_is_of_its_repository() {
        let found = workflow("https://github.com/other/shared/.github/workflows/a.yml@refs/heads/main", "org/repo");
        let wants = |text: &str| signer(&format!("{{kind: githubAction, {text}}}"));
        assert!(found.is(&wants("owner: org")) && found.is(&wants("owner: org, repo: repo")));
        for text in ["owner: other", "owner: org, repo: repo2", "owner: or", "owner: org, repo: other", "owner: Org"] {
            assert!(!found.is(&wants(text)), "{text}");
        }
        let elsewhere = Identity { issuer: "https://gitlab.example".to_owned(), ..found.clone() };
        assert!(!elsewhere.is(&wants("owner: org")), "another issuer may name any repository");
        assert!(!Identity { is_uri: false, ..found.clone() }.is(&wants("owner: org")));
        assert!(!Identity { repository: None, ..found }.is(&wants("owner: org")));
    }

    #[test]
    fn a_repository_has_an_owner_and_a_name() {
        let url = |name: &str| format!("https://github.com/{name}");
        assert_eq!(repository(Some("a/b"), None).as_deref(), Some("a/b"));
        assert_eq!(repository(None, Some(&url("a/b"))).as_deref(), Some("a/b"));
        assert_eq!(repository(Some("a/b"), Some(&url("a/b"))).as_deref(), Some("a/b"));
        for (workflow, source) in [
            (None, None),
            (Some("a"), None),
            (Some("a/b/c"), None),
            (Some("/b"), None),
            (Some("a/"), None),
            (Some("a/b"), Some("https://github.com/c/d")),
            (Some("a/b"), Some("https://gitlab.example/a/b")),
            (None, Some("https://github.com.evil.example/a/b")),
        ] {
            assert_eq!(repository(workflow, source), None, "{workflow:?} {source:?}");
        }
    }
}
