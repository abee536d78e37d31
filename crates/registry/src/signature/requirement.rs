//! `verification.yml` and a policy's `signatures`: the required signers.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use portcullis_process::files;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use url::Url;

use super::{KeyError, PublicKey};

/// Largest file, in bytes.
const LARGEST: u64 = 1 << 20;
/// Most signers of one requirement.
const MOST: usize = 100;

/// The required signers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requirement {
    /// The version of the form: `v1`, only in a file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    api_version: Option<String>,
    /// Signers who must all have signed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub all_of: Option<Vec<Signer>>,
    /// Signers, a minimum number of which must have signed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub any_of: Option<AnyOf>,
}

/// Some of these signers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AnyOf {
    /// How many of them must have signed.
    #[serde(default = "one")]
    pub minimum_matches: u32,
    /// The signers.
    pub signatures: Vec<Signer>,
}

/// A signer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum Signer {
    /// The holder of a key.
    PubKey {
        /// The signer's name, for messages.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        owner: Option<String>,
        /// The public key, in PEM.
        key: String,
        /// Annotations that the signature must have too.
        #[serde(skip_serializing_if = "BTreeMap::is_empty", default, deserialize_with = "or_null")]
        annotations: BTreeMap<String, String>,
    },
    /// The holder of a certificate that was checked before. Files and policies cannot name such a signer.
    #[serde(skip)]
    Certificate {
        /// The key of the certificate, in PEM.
        key: String,
        /// When the certificate becomes valid, in seconds since 1970.
        not_before: i64,
        /// When the certificate expires, in seconds since 1970.
        not_after: i64,
        /// Whether a transparency log must attest that it was signed within that time.
        must_be_logged: bool,
        /// Annotations that the signature must have too.
        annotations: BTreeMap<String, String>,
    },
    /// An identity that an issuer vouches for.
    GenericIssuer {
        /// The issuer.
        issuer: String,
        /// The identity, or its prefix.
        subject: Subject,
        /// Annotations that the signature must have too.
        #[serde(skip_serializing_if = "BTreeMap::is_empty", default, deserialize_with = "or_null")]
        annotations: BTreeMap<String, String>,
    },
    /// A workflow of a repository.
    GithubAction {
        /// The repository's owner.
        owner: String,
        /// The repository; `None` for any of the owner's.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        repo: Option<String>,
        /// Annotations that the signature must have too.
        #[serde(skip_serializing_if = "BTreeMap::is_empty", default, deserialize_with = "or_null")]
        annotations: BTreeMap<String, String>,
    },
}

/// The accepted identities of an issuer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Subject {
    /// This identity.
    Equal(String),
    /// All addresses below this one.
    UrlPrefix(String),
}

/// A requirement that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequirementError {
    /// It does not have the right form.
    #[error("{0}")]
    Form(String),
    /// No signer is named.
    #[error("config is missing signatures in both allOf and anyOff list")]
    Nobody,
    /// It demands more signatures than there are signers.
    #[error("anyOf: minimumMatches is {wanted}, and there are {there} signatures: want 1 to {there}")]
    Minimum {
        /// The number of signatures that it demands.
        wanted: u32,
        /// The number of signers.
        there: usize,
    },
    /// There are too many signers.
    #[error("more than {MOST} signatures")]
    TooMany,
    /// A public key cannot be parsed.
    #[error("pubKey {owner}: {error}")]
    Key {
        /// The name of its signer.
        owner: String,
        /// Why it cannot be parsed.
        error: KeyError,
    },
    /// A part of a signer would match no identity, or all of them.
    #[error("{signer}: {problem}")]
    Signer {
        /// The signer with that part.
        signer: String,
        /// What is wrong, and what is wanted.
        problem: &'static str,
    },
}

/// Whether a requirement is met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequirementStatus {
    /// It is met.
    Met,
    /// It is not met, whatever else may be found.
    Unmet(String),
    /// It may be met: these signatures could not be checked.
    Unknown(String),
}

/// Whether one signer has signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Yes,
    No,
    Unknown,
}

fn one() -> u32 {
    1
}

/// `null` stands for none, as `kwctl scaffold verification-config` writes it.
fn or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl Requirement {
    /// Parses a policy's `signatures`.
    ///
    /// # Errors
    /// When they are not valid.
    pub fn from_value(value: Value) -> Result<Self, RequirementError> {
        let form =
            |error: serde_json::Error| RequirementError::Form(portcullis_contract::clean(&error.to_string(), 300));
        serde_json::from_value::<Self>(value).map_err(form)?.checked()
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// When it is not valid.
    pub fn from_yaml(text: &str) -> Result<Self, RequirementError> {
        let form = |error: portcullis_yaml::ReadError| {
            RequirementError::Form(portcullis_contract::clean(&error.to_string(), 300))
        };
        let value: Value = portcullis_yaml::read(text).map_err(form)?;
        Self::from_value(value)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read or is not valid.
    pub fn read(path: &Path) -> Result<Self, RequirementError> {
        let failed = |problem: String| RequirementError::Form(format!("{}: {problem}", path.display()));
        let real = path.canonicalize().map_err(|error| failed(error.kind().to_string()))?;
        let bytes = files::read_regular(&real, LARGEST).map_err(|error| failed(error.source.kind().to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| failed("it is not UTF-8".to_owned()))?;
        Self::from_yaml(&text).map_err(|error| failed(error.to_string()))
    }

    /// The requirement of one signer.
    ///
    /// # Errors
    /// When the signer is not valid.
    pub fn signer(signer: Signer) -> Result<Self, RequirementError> {
        Self::all_of(vec![signer])
    }

    /// The requirement of all of these signers.
    ///
    /// # Errors
    /// When the list of signers is empty, or a signer is not valid.
    pub fn all_of(signers: Vec<Signer>) -> Result<Self, RequirementError> {
        Self { api_version: None, all_of: Some(signers), any_of: None }.checked()
    }

    /// All signers that are named, those of `anyOf` last.
    pub(super) fn signers(&self) -> impl Iterator<Item = &Signer> {
        let some = self.any_of.iter().flat_map(|any| &any.signatures);
        self.all_of.iter().flatten().chain(some)
    }

    /// Whether a signer without a key is named.
    pub fn needs_trust_root(&self) -> bool {
        self.signers().any(Signer::needs_trust_root)
    }

    /// Whether a trust root matters for any signer that is named.
    pub(super) fn uses_trust_root(&self) -> bool {
        self.signers().any(|signer| !matches!(signer, Signer::PubKey { .. }))
    }

    fn checked(self) -> Result<Self, RequirementError> {
        if let Some(version) = self.api_version.as_deref().filter(|version| *version != "v1") {
            return Err(RequirementError::Form(format!("apiVersion: {version:?} is not v1")));
        }
        let all = self.all_of.as_deref().unwrap_or_default();
        let any = self.any_of.as_ref().map(|any| any.signatures.as_slice()).unwrap_or_default();
        if all.is_empty() && any.is_empty() {
            return Err(RequirementError::Nobody);
        }
        if all.len() + any.len() > MOST {
            return Err(RequirementError::TooMany);
        }
        if let Some(AnyOf { minimum_matches: wanted, .. }) = self.any_of
            && (wanted == 0 || wanted as usize > any.len())
        {
            return Err(RequirementError::Minimum { wanted, there: any.len() });
        }
        all.iter().chain(any).try_for_each(Signer::check)?;
        Ok(self)
    }

    /// Decides whether the requirement is met, given whether each signer has signed. Asks about each signer at most once, in the order of
    /// [`Self::signers`].
    pub(super) fn decide<'a>(&'a self, mut found: impl FnMut(&'a Signer) -> Found) -> RequirementStatus {
        let (mut missing, mut unknown) = (Vec::new(), Vec::new());
        for signer in self.all_of.iter().flatten() {
            match found(signer) {
                Found::Yes => {}
                Found::No => missing.push(signer.to_string()),
                Found::Unknown => unknown.push(signer.to_string()),
            }
        }
        if !missing.is_empty() {
            return RequirementStatus::Unmet(format!(
                "Image verification failed: missing signatures: {}",
                missing.join(", ")
            ));
        }
        if let Some(any) = &self.any_of {
            let each: Vec<(&Signer, Found)> = any.signatures.iter().map(|signer| (signer, found(signer))).collect();
            let count = |wanted: Found| each.iter().filter(|(_, found)| *found == wanted).count();
            let (yes, perhaps, needed) = (count(Found::Yes), count(Found::Unknown), any.minimum_matches as usize);
            if yes + perhaps < needed {
                let text = "Image verification failed: minimum number of signatures not reached";
                return RequirementStatus::Unmet(format!("{text}: needed {needed}, got {yes}"));
            }
            if yes < needed {
                let signers = each.iter().filter(|(_, found)| *found == Found::Unknown);
                unknown.extend(signers.map(|(signer, _)| signer.to_string()));
            }
        }
        if unknown.is_empty() { RequirementStatus::Met } else { RequirementStatus::Unknown(unknown.join(", ")) }
    }
}

impl Signer {
    /// Whether only a trust root can prove the signer: the identity, as there is no key, or the time of the signature.
    pub(super) fn needs_trust_root(&self) -> bool {
        match self {
            Self::PubKey { .. } => false,
            Self::Certificate { must_be_logged, .. } => *must_be_logged,
            Self::GenericIssuer { .. } | Self::GithubAction { .. } => true,
        }
    }

    /// Annotations that the signature must have too.
    pub(super) fn annotations(&self) -> &BTreeMap<String, String> {
        match self {
            Self::PubKey { annotations, .. }
            | Self::Certificate { annotations, .. }
            | Self::GenericIssuer { annotations, .. }
            | Self::GithubAction { annotations, .. } => annotations,
        }
    }

    fn check(&self) -> Result<(), RequirementError> {
        let problem = match self {
            Self::PubKey { owner, key, .. } => {
                let owner = || owner.clone().unwrap_or_else(|| "without owner".to_owned());
                PublicKey::from_pem(key).map_err(|error| RequirementError::Key { owner: owner(), error })?;
                return Ok(());
            }
            Self::Certificate { key, .. } => {
                let owner = "of the certificate".to_owned();
                PublicKey::from_pem(key).map_err(|error| RequirementError::Key { owner, error })?;
                return Ok(());
            }
            Self::GenericIssuer { issuer, .. } if issuer.is_empty() => "issuer is empty",
            Self::GenericIssuer { subject: Subject::Equal(subject), .. } if subject.is_empty() => "subject is empty",
            Self::GenericIssuer { subject: Subject::UrlPrefix(prefix), .. } if with_slash(prefix).is_none() => {
                "urlPrefix is not the address of a host: want for instance https://github.com/organization"
            }
            Self::GithubAction { owner, .. } if owner.is_empty() || owner.contains('/') => "owner is no name",
            Self::GithubAction { repo: Some(repo), .. } if repo.is_empty() || repo.contains('/') => {
                "repo is no name: want it without its owner"
            }
            Self::GenericIssuer { .. } | Self::GithubAction { .. } => return Ok(()),
        };
        Err(RequirementError::Signer { signer: self.to_string(), problem })
    }
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PubKey { owner: Some(owner), .. } => write!(f, "pubKey of {owner}"),
            Self::PubKey { owner: None, .. } => f.write_str("pubKey"),
            Self::Certificate { must_be_logged: true, .. } => {
                f.write_str("the certificate, with a log entry within its validity")
            }
            Self::Certificate { .. } => f.write_str("the certificate"),
            Self::GenericIssuer { issuer, subject: Subject::Equal(subject), .. } => write!(f, "{subject} by {issuer}"),
            Self::GenericIssuer { issuer, subject: Subject::UrlPrefix(prefix), .. } => {
                write!(f, "{}/* by {issuer}", prefix.trim_end_matches('/'))
            }
            Self::GithubAction { owner, repo: Some(repo), .. } => write!(f, "githubAction of {owner}/{repo}"),
            Self::GithubAction { owner, repo: None, .. } => write!(f, "githubAction of {owner}"),
        }
    }
}

/// The prefix with a slash at its end, so that only addresses below it match. `None` if the prefix is not an address.
pub(super) fn with_slash(prefix: &str) -> Option<String> {
    let url = Url::parse(prefix).ok()?;
    let has_more = url.query().is_some() || url.fragment().is_some();
    if url.host_str().is_none_or(str::is_empty) || has_more || !url.username().is_empty() {
        return None;
    }
    Some(if prefix.ends_with('/') { prefix.to_owned() } else { format!("{prefix}/") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> String {
        rcgen::KeyPair::generate().expect("a key").public_key_pem().replace('\n', "\\n")
    }

    fn parse(text: &str) -> Result<Requirement, RequirementError> {
        Requirement::from_yaml(&text.replace("KEY", &format!("\"{}\"", key())))
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "{}",
            "apiVersion: v1\nallOf: []",
            "apiVersion: v2\nallOf: [{kind: pubKey, key: KEY}]",
            "allOf: [{kind: pubKey, key: x}]",
            "allOf: [{kind: pubKey}]",
            "allOf: [{kind: other}]",
            "allOf: [{kind: githubAction, owner: a, other: b}]",
            "allOf: [{kind: genericIssuer, issuer: a, subject: {other: b}}]",
            "anyOf: {minimumMatches: 0, signatures: [{kind: githubAction, owner: a}]}",
            "anyOf: {minimumMatches: 2, signatures: [{kind: githubAction, owner: a}]}",
            "other: 1",
            "allOf: [{kind: genericIssuer, issuer: '', subject: {equal: b}}]",
            "allOf: [{kind: genericIssuer, issuer: a, subject: {equal: ''}}]",
            "allOf: [{kind: genericIssuer, issuer: a, subject: {urlPrefix: ''}}]",
            "allOf: [{kind: genericIssuer, issuer: a, subject: {urlPrefix: 'https://'}}]",
            "allOf: [{kind: genericIssuer, issuer: a, subject: {urlPrefix: 'github.com/org'}}]",
            "allOf: [{kind: genericIssuer, issuer: a, subject: {urlPrefix: 'https://github.com/?a='}}]",
            "allOf: [{kind: githubAction, owner: ''}]",
            "allOf: [{kind: githubAction, owner: a, repo: a/b}]",
        ] {
            parse(text).expect_err(text);
        }
        parse("apiVersion: v1\nallOf: [{kind: pubKey, key: KEY, annotations: {env: prod}}]").expect("good");
    }

    /// The text that `kwctl scaffold verification-config` writes.
    #[test]
    fn what_kwctl_writes_is_read() {
        let scaffold = "# Default Kubewarden verification config\n#\n# With this config, the only valid policies are those signed by Kubewarden\n\
             # infrastructure.\n---\napiVersion: v1\nallOf:\n- kind: githubAction\n  owner: kubewarden\n  repo: null\n  annotations: null\n\
             anyOf: null\n";
        let plain = "apiVersion: v1\nallOf: [{kind: githubAction, owner: kubewarden}]";
        for text in [scaffold.to_owned(), scaffold.replace("null", "~"), scaffold.replace("null", "")] {
            assert_eq!(parse(&text), parse(plain), "{text}");
        }
        for signer in ["kind: pubKey, owner: null, key: KEY", "kind: genericIssuer, issuer: a, subject: {equal: b}"] {
            parse(&format!("allOf: null\nanyOf: {{signatures: [{{{signer}, annotations: null}}]}}")).expect(signer);
        }
        parse("allOf: null\nanyOf: null").expect_err("nobody is named");
    }

    #[test]
    fn all_and_enough_of_some_must_be_found() {
        let names = |signer: &Signer, name: &str| matches!(signer, Signer::GithubAction { owner, .. } if owner == name);
        let decide = |text: &str, yes: &str, unknown: &str| {
            parse(text).expect(text).decide(|signer| {
                if yes.split(' ').any(|name| names(signer, name)) {
                    Found::Yes
                } else if unknown.split(' ').any(|name| names(signer, name)) {
                    Found::Unknown
                } else {
                    Found::No
                }
            })
        };
        let action = |name: &str| format!("{{kind: githubAction, owner: {name}}}");
        let (a, b, c) = (action("a"), action("b"), action("c"));
        let all = format!("allOf: [{a}, {b}]");
        assert_eq!(decide(&all, "a b", ""), RequirementStatus::Met);
        assert!(matches!(decide(&all, "a", ""), RequirementStatus::Unmet(text) if text.ends_with("githubAction of b")));
        assert!(matches!(decide(&all, "a", "b"), RequirementStatus::Unknown(_)));
        assert!(matches!(decide(&all, "", "b"), RequirementStatus::Unmet(_)), "what is missing for sure comes first");
        let any = format!("anyOf: {{minimumMatches: 2, signatures: [{a}, {b}, {c}]}}");
        assert_eq!(decide(&any, "a c", "b"), RequirementStatus::Met);
        assert!(matches!(decide(&any, "a", ""), RequirementStatus::Unmet(text) if text.ends_with("needed 2, got 1")));
        assert!(matches!(decide(&any, "a", "b"), RequirementStatus::Unknown(_)));
        let both = format!("allOf: [{a}]\nanyOf: {{signatures: [{b}]}}");
        assert!(matches!(decide(&both, "a", ""), RequirementStatus::Unmet(_)));
        assert_eq!(decide(&both, "a b", ""), RequirementStatus::Met);
    }
}
