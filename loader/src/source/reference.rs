//! The address of a module, checked as far as is possible without opening it.

use std::path::{Component, Path, PathBuf};

use portcullis_contract::Reason;
use portcullis_registry::host_of;
use portcullis_registry::oci::Image;
use portcullis_registry::signature::Requirement;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::problem::Problem;

/// The address of a module.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reference {
    /// An absolute path without `..`. It may still leave the roots through a symbolic link.
    File(PathBuf),
    /// An `https` address (or `http`, for a host where that is allowed), without credentials.
    Web(Url),
    /// An OCI artifact.
    Registry(Image),
    /// An OCI artifact that must be signed.
    Signed {
        /// The artifact.
        image: Image,
        /// The required signers.
        signatures: Box<Requirement>,
    },
}

impl Reference {
    /// Reads what a user wrote. Relative paths begin at `folder`, which is absolute.
    ///
    /// # Errors
    /// When no source of this release knows the scheme, or the address holds credentials.
    pub(crate) fn parse(module: &str, folder: &Path) -> Result<Self, Problem> {
        let refused = |text: String| Err(Problem::new(Reason::SourceNotAllowed, text));
        let module = module.trim();
        if let Some(rest) = module.strip_prefix("file:") {
            return if rest.starts_with("//") {
                match Url::parse(module).ok().and_then(|url| url.to_file_path().ok()) {
                    Some(path) => Ok(Self::File(lexically_normal(&path))),
                    None => refused("module: want file:///path, with no host".to_owned()),
                }
            } else {
                Ok(Self::File(lexically_normal(&folder.join(rest))))
            };
        }
        if let Some((scheme, _)) = module.split_once("://") {
            return match scheme.to_ascii_lowercase().as_str() {
                "https" | "http" => web(module),
                "registry" | "oci" => image(module),
                _ => refused(format!(
                    "module: the scheme {:?} is not known: want registry://, https://, file:// or a path",
                    portcullis_contract::clean(scheme, 20)
                )),
            };
        }
        let is_path = module.starts_with(['/', '.']) || module.ends_with(".wasm");
        if is_path { Ok(Self::File(lexically_normal(&folder.join(module)))) } else { image(module) }
    }

    /// `host` or `host:port` of the server to ask; `None` for a file.
    pub(crate) fn host(&self) -> Option<String> {
        match self {
            Self::File(_) => None,
            Self::Web(url) => Some(host_of(url)),
            Self::Registry(image) | Self::Signed { image, .. } => Some(image.host.clone()),
        }
    }

    /// For logs: without a query, which often holds a secret.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Web(url) => shown(url.as_str()),
            Self::Registry(image) | Self::Signed { image, .. } => image.to_string(),
        }
    }

    /// The OCI artifact; `None` for a file or a web address.
    pub(crate) fn image(&self) -> Option<&Image> {
        match self {
            Self::File(_) | Self::Web(_) => None,
            Self::Registry(image) | Self::Signed { image, .. } => Some(image),
        }
    }

    /// The same address, with the signers that a policy requires.
    ///
    /// # Errors
    /// When modules from this kind of source cannot be signed.
    pub(crate) fn signed(self, signatures: Requirement) -> Result<Self, Problem> {
        match self {
            Self::Registry(image) => Ok(Self::Signed { image, signatures: Box::new(signatures) }),
            _ => Err(Problem::new(
                Reason::SpecInvalid,
                "spec.signatures: only a module in a registry can be signed: want spec.module: registry://…",
            )),
        }
    }

    /// The required signers as JSON; `None` if the policy requires none.
    pub(crate) fn signatures(&self) -> Option<String> {
        let Self::Signed { signatures, .. } = self else { return None };
        Some(serde_json::to_string(signatures).expect("has text keys only"))
    }
}

/// Reads an artifact's name, with or without `registry://`.
fn image(module: &str) -> Result<Reference, Problem> {
    match module.parse() {
        Ok(image) => Ok(Reference::Registry(image)),
        Err(error) => Err(Problem::new(Reason::SourceNotAllowed, format!("module: {error}"))),
    }
}

fn web(module: &str) -> Result<Reference, Problem> {
    let refused = |text: &str| Err(Problem::new(Reason::SourceNotAllowed, text));
    let Ok(mut url) = Url::parse(module) else { return refused("module: the address cannot be read") };
    if !url.username().is_empty() || url.password().is_some() {
        return refused(
            "module: the address holds a user name or a password, which everyone who can read the policy sees",
        );
    }
    if url.host_str().is_none_or(str::is_empty) {
        return refused("module: the address has no host");
    }
    // A fragment is never sent. It is kept because users may add one to have a changed address fetched again.
    if url.fragment().is_some_and(str::is_empty) {
        url.set_fragment(None);
    }
    Ok(Reference::Web(url))
}

/// What a user wrote as a module, safe to show: without credentials and without a query, which often holds one.
pub(crate) fn shown(module: &str) -> String {
    let Ok(mut url) = Url::parse(module) else {
        return portcullis_contract::clean(module, 512);
    };
    // These fail only for a URL without a host, which has no credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    if url.query().is_some() {
        url.set_query(Some("…"));
    }
    let text = if url.query().is_some() { url.as_str().replace("%E2%80%A6", "…") } else { url.to_string() };
    portcullis_contract::clean(if module.contains(['@', '?']) { &text } else { module }, 512)
}

/// The path without `.` and `..`, without looking at the file system.
fn lexically_normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(module: &str) -> Result<Reference, Problem> {
        Reference::parse(module, Path::new("/policies"))
    }

    #[test]
    fn paths() {
        for (module, path) in [
            ("modules/a.wasm", "/policies/modules/a.wasm"),
            ("./a", "/policies/a"),
            ("/abs/a.wasm", "/abs/a.wasm"),
            ("file:a.wasm", "/policies/a.wasm"),
            ("file:///abs/a%20b.wasm", "/abs/a b.wasm"),
            ("../../etc/passwd.wasm", "/etc/passwd.wasm"),
        ] {
            assert_eq!(parse(module), Ok(Reference::File(path.into())), "{module}");
        }
    }

    #[test]
    fn web_addresses_and_their_hosts() {
        assert_eq!(parse("https://example.com/a").expect("parses").host().as_deref(), Some("example.com"));
        assert_eq!(parse("https://example.com:8443/a").expect("parses").host().as_deref(), Some("example.com:8443"));
    }

    #[test]
    fn artifacts() {
        for (module, host) in [
            ("registry://ghcr.io/a/b:v1", "ghcr.io"),
            ("registry://localhost:5000/a/b", "localhost:5000"),
            ("ghcr.io:443/a/b:v1", "ghcr.io:443"),
            ("busybox", "docker.io"),
        ] {
            let reference = parse(module).expect(module);
            assert!(matches!(reference, Reference::Registry(_)), "{module}");
            assert_eq!(reference.host().as_deref(), Some(host), "{module}");
            let text = serde_json::to_string(&reference).expect("serialises");
            assert_eq!(serde_json::from_str::<Reference>(&text).expect("parses"), reference);
        }
    }

    #[test]
    fn l23_other_schemes_and_credentials_are_refused_with_what_helps() {
        for module in [
            "registry://u:p@ghcr.io/a/b:v1",
            "ghcr.io/a/b:",
            "Bad Name",
            "ftp://example.com/a",
            "file://host/a",
            "https://u:p@example.com/a",
            "https://token@example.com/a",
            "https:///a b",
        ] {
            let problem = parse(module).expect_err(module);
            assert_eq!(problem.reason, Reason::SourceNotAllowed, "{module}");
            assert!(!problem.message.contains("u:p") && !problem.message.contains("token"), "{problem:?}");
        }
    }

    #[test]
    fn i4_credentials_are_not_shown() {
        assert_eq!(shown("https://u:p@example.com/a?token=x"), "https://example.com/a?…");
        assert_eq!(shown("modules/a.wasm"), "modules/a.wasm");
    }
}
