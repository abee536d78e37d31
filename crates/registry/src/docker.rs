//! Reads logins from a Docker `config.json` in a mounted folder, which is read again for each login.

mod helper;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_contract::Reason;
use portcullis_process::files;
use serde::Deserialize;

use crate::FetchError;
use crate::hub::{HUB, HUB_API, HUB_EARLIER};

/// Largest file, in bytes.
const LARGEST: u64 = 1 << 20;
/// The names of the file: Docker's own, and the key of a Kubernetes pull secret.
const NAMES: [&str; 2] = ["config.json", ".dockerconfigjson"];
/// The names of Docker's own registry.
const HUB_NAMES: [&str; 3] = [HUB, HUB_EARLIER, HUB_API];
/// The name of Docker's registry for credential helpers.
const HUB_SERVER: &str = "https://index.docker.io/v1/";

/// How to log in at a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// A user and a password.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// A token that is exchanged for another one at the registry's token service.
    Identity(String),
    /// A token for the registry itself.
    Bearer(String),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Basic { .. } => "Basic(…)",
            Self::Identity(_) => "Identity(…)",
            Self::Bearer(_) => "Bearer(…)",
        })
    }
}

/// The folder with the file.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    folder: PathBuf,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    auths: BTreeMap<String, Entry>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "lowercase", default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

/// Where the login for a registry is.
enum LoginSource {
    Entry(Entry),
    Helper(String),
}

impl DockerConfig {
    /// The configuration in `folder`, whether the file is there yet or not.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The paths at which the file may be, for watching.
    pub fn paths(&self) -> [PathBuf; 2] {
        NAMES.map(|name| self.folder.join(name))
    }

    /// The path of the file, for messages.
    pub fn path(&self) -> PathBuf {
        let names = self.paths();
        let [first, _] = &names;
        names.iter().find(|path| path.exists()).unwrap_or(first).clone()
    }

    /// A value that differs when the file has changed; `None` if there is no file.
    pub(crate) fn stamp(&self) -> Option<(u64, u64, i64, i64)> {
        let metadata = self.path().metadata().ok()?;
        Some((metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
    }

    /// The login for a repository of a registry (`host` or `host:port`); `None` if the file has none.
    ///
    /// # Errors
    /// `CredentialsMissing` when the file is absent or malformed.
    pub async fn credential(&self, host: &str, repository: &str) -> Result<Option<Credential>, FetchError> {
        let path = self.path();
        let missing = |text: String| FetchError::new(Reason::CredentialsMissing, text);
        // Mounted secrets are symbolic links.
        let real = path.canonicalize();
        let real = real.map_err(|error| missing(format!("failed to find {}: {}", path.display(), error.kind())))?;
        let bytes = files::read_regular(&real, LARGEST);
        let bytes =
            bytes.map_err(|error| missing(format!("failed to read {}: {}", path.display(), error.source.kind())))?;
        // The parser's error text could quote the content.
        let malformed = |what: &str| missing(format!("{} {what}", path.display()));
        let no_json = || malformed("is not a Docker configuration in JSON");
        // serde would read a JSON list as the fields in their order, so it must be a map.
        let file: serde_json::Map<_, _> = serde_json::from_slice(&bytes).map_err(|_| no_json())?;
        let file: File = serde_json::from_value(file.into()).map_err(|_| no_json())?;
        match file.find(host, repository) {
            None => Ok(None),
            Some(LoginSource::Entry(entry)) => {
                entry.credential(|what| malformed(&format!("has an entry for {host} {what}")))
            }
            Some(LoginSource::Helper(name)) => helper(&name, host, &path).await,
        }
    }
}

impl File {
    fn find(&self, host: &str, repository: &str) -> Option<LoginSource> {
        let fits = |key: &String| fit(key, host, repository);
        if let Some((_, helper)) = best(self.cred_helpers.iter(), fits) {
            return Some(LoginSource::Helper(helper.clone()));
        }
        // An empty entry means that the credential store has the login.
        let entry = best(self.auths.iter().filter(|(_, entry)| !entry.is_empty()), fits);
        match (entry, &self.creds_store) {
            (Some((_, entry)), _) => Some(LoginSource::Entry(entry.clone())),
            (None, Some(store)) if !store.is_empty() => Some(LoginSource::Helper(store.clone())),
            _ => None,
        }
    }
}

impl Entry {
    fn is_empty(&self) -> bool {
        let Self { auth, username, password, identitytoken, registrytoken } = self;
        [auth, username, password, identitytoken, registrytoken]
            .iter()
            .all(|field| field.as_deref().is_none_or(str::is_empty))
    }

    fn credential(self, malformed: impl Fn(&str) -> FetchError) -> Result<Option<Credential>, FetchError> {
        let filled = |field: Option<String>| field.filter(|text| !text.is_empty());
        if let Some(token) = filled(self.registrytoken) {
            return Ok(Some(Credential::Bearer(token)));
        }
        if let Some(token) = filled(self.identitytoken) {
            return Ok(Some(Credential::Identity(token)));
        }
        if let (Some(user), Some(password)) = (filled(self.username), filled(self.password)) {
            return Ok(Some(Credential::Basic { user, password }));
        }
        let auth = filled(self.auth).ok_or_else(|| malformed("without a password"))?;
        let decoded = STANDARD.decode(auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
        let (user, password) = pair.ok_or_else(|| malformed("whose auth is not the base64 of user:password"))?;
        let password = password.trim_end_matches('\0').to_owned();
        Ok(Some(Credential::Basic { user: user.to_owned(), password }))
    }
}

/// How well a key of the file fits a repository. The longest path is the best; of keys with the same path, one without patterns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    path: usize,
    is_exact: bool,
}

/// The entry whose key fits best; of those that fit equally well the first.
fn best<'f, T>(
    entries: impl Iterator<Item = (&'f String, T)>,
    fit: impl Fn(&String) -> Option<Fit>,
) -> Option<(&'f String, T)> {
    let mut best = None;
    for (key, entry) in entries {
        if let Some(found) = fit(key)
            && best.as_ref().is_none_or(|(known, _)| found > *known)
        {
            best = Some((found, (key, entry)));
        }
    }
    best.map(|(_, entry)| entry)
}

/// How well a key of the file (`host`, `host/path`, `*.host/path`, `https://host/v1/`) fits a repository, as kubelets match the keys of pull
/// secrets; `None` if it is for others. A path is the beginning of the repository, in whole parts. A `*` stands for letters within one label of
/// the host, also for a part of it.
fn fit(key: &str, host: &str, repository: &str) -> Option<Fit> {
    let bare = key.trim_start_matches("https://").trim_start_matches("http://");
    let (pattern, path) = bare.split_once('/').unwrap_or((bare, ""));
    // Docker writes the version of the API after the host.
    let path = path.trim_end_matches('/');
    let path = if matches!(path, "v1" | "v2") { "" } else { path };
    let is_within = || repository.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if !path.is_empty() && !is_within() {
        return None;
    }
    let is_exact = pattern.eq_ignore_ascii_case(host) || (HUB_NAMES.contains(&pattern) && HUB_NAMES.contains(&host));
    (is_exact || globs(pattern, host)).then_some(Fit { path: path.len(), is_exact })
}

/// Whether a pattern of a host stands for this host: as many labels, the same port, and each label as its pattern says.
fn globs(pattern: &str, host: &str) -> bool {
    let parts = |text: &str| {
        text.rsplit_once(':').map_or((text.to_owned(), None), |(name, port)| (name.to_owned(), Some(port.to_owned())))
    };
    let ((pattern, wanted), (host, port)) = (parts(&pattern.to_ascii_lowercase()), parts(&host.to_ascii_lowercase()));
    let (patterns, labels): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), host.split('.').collect());
    wanted == port
        && patterns.len() == labels.len()
        && patterns.iter().zip(&labels).all(|(pattern, label)| is_label(pattern, label))
}

/// Whether a label is what a pattern stands for, in which each `*` stands for any letters.
fn is_label(pattern: &str, label: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = label.strip_prefix(first) else { return false };
    let Some(last) = pieces.next_back() else { return rest.is_empty() };
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

/// Asks the credential helper of this name.
async fn helper(name: &str, host: &str, path: &Path) -> Result<Option<Credential>, FetchError> {
    let missing = |text: String| FetchError::new(Reason::CredentialsMissing, text);
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        return Err(missing(format!("{} names a credential helper that is not a plain name", path.display())));
    }
    let program = format!("docker-credential-{name}");
    let server = if HUB_NAMES.contains(&host) { HUB_SERVER } else { host };
    match helper::ask(OsStr::new(&program), server, helper::LONGEST).await {
        Ok(credential) => Ok(Some(credential)),
        Err(error) => Err(missing(format!("{program}, which {} names for {host}, {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    async fn credential(text: &str, host: &str) -> Result<Option<Credential>, FetchError> {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("config.json"), text).expect("writes");
        let (host, repository) = host.split_once('/').unwrap_or((host, "org/policy"));
        DockerConfig::new(folder.path().to_owned()).credential(host, repository).await
    }

    fn basic(user: &str, password: &str) -> Option<Credential> {
        Some(Credential::Basic { user: user.to_owned(), password: password.to_owned() })
    }

    #[tokio::test]
    async fn entries_in_their_forms() {
        // The `auth` of the first entry decodes to "u:p:q".
        let text = r#"{"auths": {"a.example": {"auth": "dTpwOnE="}, "https://b.example/v1/": {"username": "u", "password": "p"},
            "c.example:5000": {"identitytoken": "t"}, "d.example": {"registrytoken": "r"}, "https://index.docker.io/v1/": {"auth": "dTpw"},
            "e.example": {}}}"#;
        assert_eq!(credential(text, "a.example").await, Ok(basic("u", "p:q")));
        assert_eq!(credential(text, "b.example").await, Ok(basic("u", "p")));
        assert_eq!(credential(text, "c.example:5000").await, Ok(Some(Credential::Identity("t".into()))));
        assert_eq!(credential(text, "c.example").await, Ok(None));
        assert_eq!(credential(text, "d.example").await, Ok(Some(Credential::Bearer("r".into()))));
        assert_eq!(credential(text, "docker.io").await, Ok(basic("u", "p")));
        assert_eq!(credential(text, "e.example").await, Ok(None));
        // Docker writes the version of the API after the host, which is no path.
        assert_eq!(credential(text, "b.example/v1/policy").await, Ok(basic("u", "p")));
        // As kubelets match the keys of pull secrets: by the longest path in whole parts, and by patterns in the labels of a host.
        let of = |user: &str| format!(r#"{{"username": "{user}", "password": "p"}}"#);
        let keys = [
            "a.example",
            "a.example/team",
            "a.example/team/one",
            "*.cloud.example",
            "reg*.b.example:5000/x",
            "https://c.example/team/",
            "*.d.example",
            "one.d.example",
            "d*.e*e.example",
        ];
        let entries: Vec<_> = keys.map(|key| format!("\"{key}\": {}", of(key))).into_iter().collect();
        let text = format!(r#"{{"auths": {{{}}}}}"#, entries.join(", "));
        for (image, key) in [
            ("a.example/other/policy", Some("a.example")),
            ("a.example/team", Some("a.example/team")),
            ("a.example/team/policy", Some("a.example/team")),
            ("a.example/teams/policy", Some("a.example")),
            ("a.example/team/one/policy", Some("a.example/team/one")),
            ("eu.cloud.example/policy", Some("*.cloud.example")),
            ("a.eu.cloud.example/policy", None),
            ("cloud.example/policy", None),
            ("eu.cloud.example:5000/policy", None),
            ("registry.B.example:5000/x/policy", Some("reg*.b.example:5000/x")),
            ("registry.b.example:5000/y/policy", None),
            ("c.example/team/policy", Some("https://c.example/team/")),
            ("c.example/policy", None),
            ("one.d.example/policy", Some("one.d.example")),
            ("two.d.example/policy", Some("*.d.example")),
            ("dd.ee.example/policy", Some("d*.e*e.example")),
            ("dd.e.example/policy", None),
        ] {
            assert_eq!(credential(&text, image).await, Ok(key.and_then(|key| basic(key, "p"))), "{image}");
        }
        let helpers = r#"{"credHelpers": {"*.example/a": "portcullis-no-such", "b.example": "portcullis-other"}}"#;
        let error = credential(helpers, "a.example/a/policy").await.expect_err("no such helper");
        assert!(error.message.contains("docker-credential-portcullis-no-such"), "{error}");
        assert_eq!(credential(helpers, "a.example/b").await, Ok(None));
    }

    #[tokio::test]
    async fn l25_what_is_malformed_is_named_and_not_quoted() {
        for text in [
            "{\"auths\": sekret",
            r#"{"auths": {"h": {"auth": "sekret"}}}"#,
            r#"{"credHelpers": {"h": "../sekret"}}"#,
            "[]",
        ] {
            let error = credential(text, "h").await.expect_err(text);
            assert_eq!(error.reason, Reason::CredentialsMissing, "{text}");
            assert!(error.message.contains("config.json") && !error.message.contains("sekret"), "{error}");
        }
        let error = DockerConfig::new("/nowhere".into()).credential("h", "a").await.expect_err("absent");
        assert!(error.message.contains("/nowhere/config.json"), "{error}");
        let error = credential(r#"{"credsStore": "portcullis-no-such"}"#, "h").await.expect_err("no such helper");
        assert!(error.message.contains("docker-credential-portcullis-no-such"), "{error}");
    }
}
