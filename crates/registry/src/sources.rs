//! `sources.yml`: how each host is trusted (docs/design/policy-abi.md, section 13), and which addresses modules may come
//! from.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portcullis_process::files;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;

use crate::proxies::{Proxies, ProxyError};

/// Largest file, in bytes.
const LARGEST: u64 = 4 << 20;

/// How hosts are trusted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// Hosts (`host` or `host:port`) whose certificate is not checked, and that are asked over plain HTTP if they do not
    /// speak TLS.
    pub insecure: BTreeSet<String>,
    /// The only authorities for a host, instead of the system's.
    pub authorities: BTreeMap<String, Vec<CertificateDer<'static>>>,
    /// Outbound proxies, instead of those of the environment.
    pub proxies: Option<Proxies>,
    /// The addresses that are allowed; empty allows all. A pattern that ends in `*` is a prefix.
    pub allowed: Vec<String>,
}

/// A `sources.yml` that was read. What it said then counts until it is read again, so that nothing more is allowed while it is away. If it could
/// not be used then, nothing may be fetched until it can.
#[derive(Clone, PartialEq, Eq)]
pub struct SourcesFile {
    path: PathBuf,
    first: Result<Arc<Sources>, SourcesError>,
}

/// A file of sources that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}", path = path.display())]
pub struct SourcesError {
    path: PathBuf,
    problem: Problem,
}

/// What is wrong with a file of sources.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Problem {
    /// The file, or one that it names, cannot be read.
    #[error("{0}")]
    Unreadable(String),
    #[error("it is not UTF-8")]
    NotText,
    /// It is not YAML, or not of this form, with the parser's text.
    #[error("{0}")]
    Form(String),
    #[error("{host}: {problem}")]
    Authority { host: String, problem: Box<Problem> },
    #[error("Raw certificate is not in PEM nor in DER encoding")]
    NotCertificate,
    #[error("allowed_sources: {0:?} names no whole host: want for instance https://example.com/*")]
    Pattern(String),
    #[error(transparent)]
    Proxies(#[from] ProxyError),
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    insecure_sources: BTreeSet<String>,
    source_authorities: BTreeMap<String, Vec<WrittenAuthority>>,
    proxies: Option<Proxies>,
    allowed_sources: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum WrittenAuthority {
    Path { path: PathBuf },
    Data { data: String },
}

impl Sources {
    /// Reads the file and the certificates that it names.
    ///
    /// # Errors
    /// When one of them cannot be read or is malformed.
    pub fn read(path: &Path) -> Result<Self, SourcesError> {
        let failed = |problem: Problem| SourcesError { path: path.to_owned(), problem };
        let bytes = read(path).map_err(failed)?;
        let text = String::from_utf8(bytes).map_err(|_| failed(Problem::NotText))?;
        let written: Option<Written> = portcullis_yaml::read(&text)
            .map_err(|error| failed(Problem::Form(portcullis_contract::clean(&error.to_string(), 300))))?;
        let written = written.unwrap_or_default();
        let mut authorities = BTreeMap::new();
        for (host, list) in written.source_authorities {
            let of_host = |problem| failed(Problem::Authority { host: host.clone(), problem: Box::new(problem) });
            let mut certificates = Vec::new();
            for authority in list {
                let bytes = match authority {
                    WrittenAuthority::Path { path } => read(&path).map_err(of_host)?,
                    WrittenAuthority::Data { data } => data.into_bytes(),
                };
                certificates.extend(certificates_of(&bytes).map_err(of_host)?);
            }
            authorities.insert(host, certificates);
        }
        if let Some(pattern) = written.allowed_sources.iter().find(|pattern| !is_pattern(pattern)) {
            return Err(failed(Problem::Pattern(pattern.clone())));
        }
        written.proxies.as_ref().map_or(Ok(()), Proxies::check).map_err(|error| failed(error.into()))?;
        Ok(Self {
            insecure: written.insecure_sources,
            authorities,
            proxies: written.proxies,
            allowed: written.allowed_sources,
        })
    }
}

impl SourcesFile {
    /// Reads the file and the certificates that it names.
    ///
    /// # Errors
    /// When one of them cannot be read or is malformed.
    pub fn read(path: &Path) -> Result<Self, SourcesError> {
        Ok(Self { path: path.to_owned(), first: Ok(Arc::new(Sources::read(path)?)) })
    }

    /// A file that cannot be used yet, and why.
    pub fn unusable(path: &Path, error: SourcesError) -> Self {
        Self { path: path.to_owned(), first: Err(error) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it said when it was read.
    pub(crate) fn first(&self) -> Result<Arc<Sources>, SourcesError> {
        self.first.clone()
    }
}

/// Shows no content, which may hold a password.
impl fmt::Debug for SourcesFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SourcesFile").field(&self.path).finish()
    }
}

/// Whether the pattern of an address names a whole host.
fn is_pattern(pattern: &str) -> bool {
    pattern.split_once("://").is_some_and(|(_, rest)| rest.contains('/'))
}

fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    // Mounted files are symbolic links.
    let failed = |error| Problem::Unreadable(format!("failed to find {}: {error}", path.display()));
    let real = path.canonicalize().map_err(failed)?;
    files::read_regular(&real, LARGEST).map_err(|error| Problem::Unreadable(error.to_string()))
}

/// Parses PEM with one certificate or more, or one certificate in DER.
fn certificates_of(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let pem: Vec<_> = CertificateDer::pem_slice_iter(bytes).filter_map(Result::ok).collect();
    let certificates = if pem.is_empty() { vec![CertificateDer::from(bytes.to_vec())] } else { pem };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|_| Problem::NotCertificate)?;
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn parse(text: &str) -> Result<Sources, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sources.yml");
        fs::write(&path, text).expect("writes");
        Sources::read(&path).map_err(|error| error.problem.to_string())
    }

    #[test]
    fn a_file_is_read() {
        let sources = parse(
            "insecure_sources: ['registry.dev:5000']\nproxies: {https_proxy: 'http://proxy:3128'}\nallowed_sources: ['registry://ghcr.io/*']\n",
        )
        .expect("good");
        assert!(sources.insecure.contains("registry.dev:5000"));
        assert_eq!(sources.proxies.expect("proxies").https_proxy.as_deref(), Some("http://proxy:3128"));
        assert_eq!(parse(""), Ok(Sources::default()));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, words) in [
            ("insecure: []", "unknown field"),
            ("source_authorities: {h: [{type: Data, data: x}]}", "not in PEM nor in DER"),
            ("source_authorities: {h: [{type: Path, path: /nowhere}]}", "/nowhere"),
            ("allowed_sources: ['https://example.com*']", "whole host"),
            ("proxies: {https_proxy: 'socks5://proxy'}", "https_proxy"),
            ("proxies: {ftp_proxy: x}", "unknown field"),
            ("[", ""),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.contains(words), "{text}: {problem}");
        }
    }
}
