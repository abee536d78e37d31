//! Where modules come from.

mod file;
mod reference;
mod sink;

use std::path::PathBuf;

use portcullis_contract::{Digest, Reason};
use portcullis_registry::oci::{Image, Manifest, Registry};
use portcullis_registry::{DockerConfig, Web, WebSettings, host_of};
use url::Url;

pub(crate) use self::file::FileSource;
pub(crate) use self::reference::{Reference, shown};
pub(crate) use self::sink::{Fetched, Progress, Sink};

/// Why a module was not brought.
pub(crate) use portcullis_registry::FetchError as SourceError;

/// What a download may take, and from whom.
#[derive(Debug, Clone)]
pub struct Fetching {
    /// Limits of one attempt, and whom it may ask.
    pub web: WebSettings,
    /// Logins.
    pub docker: Option<DockerConfig>,
    /// Most attempts a second at one host.
    pub attempts: u32,
}

/// The sources of this loader.
pub(crate) struct Sources {
    /// For [`Reference::File`].
    pub file: FileSource,
    registry: Registry,
    /// Most attempts a second at one host.
    pub attempts: u32,
}

impl Fetching {
    /// The files whose change may help what failed.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let docker = self.docker.as_ref().map(DockerConfig::path);
        self.web.authorities.iter().chain(&self.web.sources).cloned().chain(docker).collect()
    }
}

impl Sources {
    /// Sources below `roots`, which are canonical, and on the network.
    pub(crate) fn new(roots: Vec<PathBuf>, fetching: Fetching) -> Self {
        let registry = Registry::new(Web::new(fetching.web), fetching.docker);
        Self { file: FileSource::new(roots), registry, attempts: fetching.attempts }
    }

    /// Brings a file or the content of an address.
    ///
    /// # Errors
    /// When it cannot be had whole.
    pub(crate) async fn fetch(&self, reference: &Reference, sink: &mut Sink) -> Result<(), SourceError> {
        match reference {
            Reference::File(path) => self.file.fetch(path, sink).await,
            Reference::Web(url) => self.web(url, sink).await,
            Reference::Registry(_) => {
                Err(SourceError::new(Reason::InternalError, "an artifact is brought by its parts"))
            }
        }
    }

    async fn web(&self, url: &Url, sink: &mut Sink) -> Result<(), SourceError> {
        let (web, host) = (self.registry.web(), host_of(url));
        web.check_allowed(&format!("{}://{host}{}", url.scheme(), url.path()), &host)?;
        web.in_time(&host, web.get(url, sink)).await
    }

    /// The manifest of an artifact.
    ///
    /// # Errors
    /// When it cannot be had, or is none of a module.
    pub(crate) async fn manifest(&self, image: &Image) -> Result<Manifest, SourceError> {
        self.registry.web().in_time(&image.host, self.registry.manifest(image)).await
    }

    /// The module of an artifact, by its digest, which the sink computes and the caller checks.
    ///
    /// # Errors
    /// When it cannot be had whole.
    pub(crate) async fn blob(&self, image: &Image, digest: &Digest, sink: &mut Sink) -> Result<(), SourceError> {
        self.registry.web().in_time(&image.host, self.registry.blob(image, digest, sink)).await
    }

    /// Whether modules may come from where a reference names, which is judged also for what is on the volume already.
    ///
    /// # Errors
    /// `SourceNotAllowed`.
    pub(crate) fn check_allowed(&self, image: &Image) -> Result<(), SourceError> {
        self.registry.web().check_allowed(&image.address(), &image.host)
    }
}
