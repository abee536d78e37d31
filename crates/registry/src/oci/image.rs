//! The name of an artifact: `host[:port]/repository[:tag][@digest]`.

use std::fmt;
use std::str::FromStr;

use portcullis_contract::Digest;
use serde::{Deserialize, Serialize};

use crate::hub::{HUB, HUB_API, HUB_EARLIER};

/// Where the hub has the repositories that are named without a folder.
const HUB_FOLDER: &str = "library";
/// Longest repository, in bytes, according to the specification.
const LONGEST: usize = 255;

/// An artifact in a registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Image {
    /// The registry, as `host` or `host:port`.
    pub host: String,
    /// The repository, for instance `policies/no-privileged`.
    pub repository: String,
    /// The tag; absent if only a digest names the artifact.
    pub tag: Option<String>,
    /// The manifest's digest; it takes precedence over the tag.
    pub digest: Option<Digest>,
}

/// A name that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ImageError(&'static str);

impl Image {
    /// The host that is asked.
    pub fn api_host(&self) -> &str {
        if self.host == HUB { HUB_API } else { &self.host }
    }

    /// The last part of the manifest's address: the digest, or the tag.
    pub fn pointer(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => "latest".to_owned(),
        }
    }

    /// The name as in a policy, without its digest.
    pub fn address_with_tag(&self) -> String {
        match &self.tag {
            Some(tag) => format!("{}:{tag}", self.address()),
            None => self.address(),
        }
    }

    /// Host and repository, for the lists of allowed addresses.
    pub fn address(&self) -> String {
        format!("registry://{}/{}", self.host, self.repository)
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl From<Image> for String {
    fn from(image: Image) -> Self {
        image.to_string()
    }
}

impl TryFrom<String> for Image {
    type Error = ImageError;

    fn try_from(text: String) -> Result<Self, ImageError> {
        text.parse()
    }
}

impl FromStr for Image {
    type Err = ImageError;

    /// Parses a name, with or without `registry://` before it. Short names, and names with a host of Docker Hub, are expanded as Docker and
    /// containerd do, since the names of images come from pods.
    fn from_str(text: &str) -> Result<Self, ImageError> {
        let text = text.strip_prefix("registry://").or_else(|| text.strip_prefix("oci://")).unwrap_or(text);
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (
                name,
                Some(digest.parse().map_err(|_| ImageError("want sha256: and 64 lower-case hex digits after @"))?),
            ),
            None => (text, None),
        };
        // A colon before the last slash belongs to a port.
        let after_slash = name.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match name[after_slash..].split_once(':') {
            Some((last, tag)) => (&name[..after_slash + last.len()], Some(tag)),
            None => (name, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(ImageError(
                "a tag has at most 128 letters, digits, '_', '.' and '-', and begins with none of the last two",
            ));
        }
        let (host, repository) = match name.split_once('/') {
            Some((host, rest)) if host == "localhost" || host.contains(['.', ':']) => {
                (host.to_ascii_lowercase(), rest.to_owned())
            }
            Some(_) | None => (HUB.to_owned(), name.to_owned()),
        };
        let host = if host == HUB_EARLIER { HUB.to_owned() } else { host };
        let repository =
            if host == HUB && !repository.contains('/') { format!("{HUB_FOLDER}/{repository}") } else { repository };
        if !is_host(&host) {
            return Err(ImageError("the host is missing or not valid: want for instance registry.example:5000"));
        }
        let is_part = |part: &str| {
            part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte))
                && part.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        };
        if repository.len() > LONGEST || !repository.split('/').all(is_part) {
            return Err(ImageError(
                "the repository is missing or not valid: want lower-case letters, digits, '.', '_', '-', with / between names",
            ));
        }
        let tag = match (tag, digest) {
            (None, None) => Some("latest".to_owned()),
            (tag, _) => tag.map(str::to_owned),
        };
        Ok(Self { host, repository, tag, digest })
    }
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&tag.len())
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || byte == b'.' || byte == b'-')
}

fn is_host(host: &str) -> bool {
    // Valid if the URL parser, which knows addresses and names, reads the same host and port.
    let Ok(url) = url::Url::parse(&format!("https://{host}/")) else { return false };
    url.username().is_empty()
        && url.password().is_none()
        && url.path() == "/"
        && url.query().is_none()
        && url.fragment().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn names_and_what_they_stand_for() {
        for (name, full) in [
            ("ghcr.io/a/b:v1", "ghcr.io/a/b:v1"),
            ("registry://ghcr.io:443/a/b", "ghcr.io:443/a/b:latest"),
            ("localhost/a", "localhost/a:latest"),
            ("127.0.0.1:5000/a:v1", "127.0.0.1:5000/a:v1"),
            ("[::1]:5000/a:v1", "[::1]:5000/a:v1"),
            ("busybox", "docker.io/library/busybox:latest"),
            ("a/b:v1", "docker.io/a/b:v1"),
            ("docker.io/busybox", "docker.io/library/busybox:latest"),
            ("docker.io/a/b:v1", "docker.io/a/b:v1"),
            ("index.docker.io/busybox", "docker.io/library/busybox:latest"),
            ("index.docker.io/a/b:v1", "docker.io/a/b:v1"),
            ("registry://Index.Docker.IO/busybox:1", "docker.io/library/busybox:1"),
            ("registry-1.docker.io/busybox", "registry-1.docker.io/busybox:latest"),
        ] {
            assert_eq!(name.parse::<Image>().map(|image| image.to_string()).as_deref(), Ok(full), "{name}");
        }
        let pinned: Image = format!("ghcr.io/a/b:v1@{DIGEST}").parse().expect("parses");
        assert_eq!((pinned.pointer().as_str(), pinned.tag.as_deref()), (DIGEST, Some("v1")));
        let image: Image = format!("ghcr.io/a/b@{DIGEST}").parse().expect("parses");
        assert_eq!((image.tag, image.host.as_str()), (None, "ghcr.io"));
        for name in ["busybox", "docker.io/busybox", "index.docker.io/a/b"] {
            assert_eq!(name.parse::<Image>().expect("parses").api_host(), HUB_API, "{name}");
        }
        let pinned: Image = format!("docker.io/busybox@{DIGEST}").parse().expect("parses");
        assert_eq!(pinned.to_string(), format!("docker.io/library/busybox@{DIGEST}"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for name in [
            "",
            "ghcr.io/",
            "docker.io/",
            "index.docker.io/:v1",
            "ghcr.io/A",
            "ghcr.io/a:",
            "ghcr.io/a:-x",
            "ghcr.io/a@sha256:1",
            "u:p@ghcr.io/a",
            "ghcr.io/a//b",
            "ghcr.io/../a",
            "gh cr.io/a",
            "ghcr.io/a?x",
        ] {
            assert!(name.parse::<Image>().is_err(), "{name}");
        }
    }
}
