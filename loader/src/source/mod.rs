//! Where modules come from.

mod file;
mod reference;
mod sink;

use std::path::PathBuf;
use std::sync::Arc;

use portcullis_contract::{Digest, Reason, Stage};
use portcullis_registry::oci::{Image, MAX_MANIFEST, Manifest, Registry};
use portcullis_registry::signature::{self, Material, Requirement, RequirementError};
use portcullis_registry::{
    BodyMemory, DockerConfig, PeerContent, Peers, Receive as _, Web, WebSettings, Whole, address_of, host_of,
};
use url::Url;

pub(crate) use self::file::FileSource;
pub(crate) use self::reference::{Reference, shown};
pub(crate) use self::sink::{Fetched, Progress, Sink, module_too_large, not_written};

use crate::volume::{MAX_SIGNATURES, SignedManifest};

/// Why a module was not fetched.
pub(crate) use portcullis_registry::FetchError as SourceError;

/// Limits of a download, and the hosts that it may use.
#[derive(Debug, Clone)]
pub struct Fetching {
    /// Limits of one attempt, and the hosts that it may use.
    pub web: WebSettings,
    /// Logins.
    pub docker: Option<DockerConfig>,
    /// `verification.yml`: the required signers of every module. Read again for each module.
    pub verification: Option<PathBuf>,
    /// `trusted_root.json`: the authorities that vouch for signers without a key of their own. Read again for each module.
    pub trust_root: Option<PathBuf>,
    /// Other loaders, for modules that registries cannot give now; `None` if there are none to ask.
    pub peers: Option<Peers>,
    /// Most attempts a second at one host.
    pub attempts: u32,
}

#[cfg(test)]
impl Fetching {
    /// For tests that ask no source: no logins, no rules and no other loaders.
    pub(crate) fn alone() -> Self {
        let time = std::time::Duration::from_secs(5);
        let web = WebSettings {
            header: time,
            total: time,
            lowest_rate: 1,
            authorities: None,
            plain_hosts: std::collections::BTreeSet::new(),
            allowed: Vec::new(),
            guard: portcullis_registry::Guard::new(Vec::new()),
            sources: None,
            name_server: None,
            user_agent: "tests",
        };
        Self { web, docker: None, verification: None, trust_root: None, peers: None, attempts: 1 }
    }
}

/// The sources of this loader.
pub(crate) struct Sources {
    /// For [`Reference::File`].
    pub file: FileSource,
    registry: Registry,
    verification: Option<PathBuf>,
    trust_root: Option<PathBuf>,
    peers: Option<Peers>,
    /// Most attempts a second at one host.
    pub attempts: u32,
}

/// Checks signatures of manifests of one image.
pub(crate) struct Judge {
    image: Image,
    wanted: Vec<Requirement>,
    trust_root: Option<PathBuf>,
}

impl Fetching {
    /// The files whose change may make a failed fetch work.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let docker = self.docker.iter().flat_map(DockerConfig::paths);
        let sources = self.web.sources.iter().map(|file| file.path().to_owned());
        let files = [&self.web.authorities, &self.verification, &self.trust_root];
        files.into_iter().flatten().cloned().chain(sources).chain(docker).collect()
    }
}

impl Sources {
    /// Sources: files below `roots`, which are canonical, and the network.
    pub(crate) fn new(roots: Vec<PathBuf>, fetching: Fetching) -> Self {
        let Fetching { web, docker, verification, trust_root, peers, attempts } = fetching;
        Self {
            file: FileSource::new(roots),
            registry: Registry::new(Web::new(web), docker),
            verification,
            trust_root,
            peers,
            attempts,
        }
    }

    /// Fetches a file or the content of a web address.
    ///
    /// # Errors
    /// When it cannot be had whole.
    pub(crate) async fn fetch(&self, reference: &Reference, sink: &mut Sink) -> Result<(), SourceError> {
        match reference {
            Reference::File(_) if self.verification.is_some() => Err(nobody_signs()),
            Reference::File(path) => self.file.fetch(path, sink).await,
            Reference::Web(url) => self.web(url, sink).await,
            Reference::Registry(_) | Reference::Signed { .. } => {
                Err(SourceError::new(Reason::InternalError, "an artifact is brought by its parts"))
            }
        }
    }

    async fn web(&self, url: &Url, sink: &mut Sink) -> Result<(), SourceError> {
        self.check_web(url)?;
        let (web, host) = (self.registry.web(), host_of(url));
        web.write_in_time(&host, &sink.write_time(), web.get(url, sink)).await
    }

    /// The manifest of an artifact.
    ///
    /// # Errors
    /// When it cannot be fetched, or is not the manifest of a module.
    pub(crate) async fn manifest(&self, image: &Image, memory: Arc<dyn BodyMemory>) -> Result<Manifest, SourceError> {
        let registry = self.registry.within(memory);
        registry.web().in_time(&image.host, registry.manifest(image)).await
    }

    /// The module of an artifact, by its digest, which the sink computes and the caller checks.
    ///
    /// # Errors
    /// When it cannot be had whole.
    pub(crate) async fn blob(&self, image: &Image, digest: &Digest, sink: &mut Sink) -> Result<(), SourceError> {
        let (web, written) = (self.registry.web(), sink.write_time());
        web.write_in_time(&image.host, &written, self.registry.blob(image, digest, sink)).await
    }

    /// Whether the repository of an artifact has a module.
    ///
    /// # Errors
    /// When its registry does not say.
    pub(crate) async fn has_blob(&self, image: &Image, digest: &Digest) -> Result<bool, SourceError> {
        self.registry.web().in_time(&image.host, self.registry.has_blob(image, digest)).await
    }

    /// The manifest with this digest, from another loader; `None` if there are no others, or none has it.
    pub(crate) async fn manifest_of_others(&self, digest: &Digest, memory: Arc<dyn BodyMemory>) -> Option<Manifest> {
        let receive = || Ok(Whole::new("the manifest", MAX_MANIFEST).within(Some(Arc::clone(&memory))));
        let body =
            self.peers.as_ref()?.fetch(self.registry.web(), PeerContent::Manifest, digest, receive).await.ok()?;
        let (bytes, found) = body.finish();
        if found == *digest { Manifest::parse(bytes).ok() } else { None }
    }

    /// The module with this digest, from another loader, into a sink that `receive` makes; the caller checks the digest. `None` if there are
    /// no others, or none has it.
    ///
    /// # Errors
    /// When it cannot be written here: that is no failure of the others.
    pub(crate) async fn blob_of_others(
        &self,
        digest: &Digest,
        receive: impl Fn() -> Result<Sink, SourceError>,
    ) -> Result<Option<Sink>, SourceError> {
        let Some(peers) = &self.peers else { return Ok(None) };
        match peers.fetch(self.registry.web(), PeerContent::Module, digest, receive).await {
            Ok(sink) => Ok(Some(sink)),
            Err(error) if error.reason.stage() == Stage::Volume => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Manifests that name the module with this digest, and their signatures, from another loader. Empty if there are no others, or none has any.
    pub(crate) async fn signed_of_others(&self, module: &Digest, memory: Arc<dyn BodyMemory>) -> Vec<SignedManifest> {
        let receive = || Ok(Whole::new("signatures", MAX_SIGNATURES).within(Some(Arc::clone(&memory))));
        let Some(peers) = &self.peers else { return Vec::new() };
        let body = peers.fetch(self.registry.web(), PeerContent::Signatures, module, receive).await;
        let read = |body: Whole| serde_json::from_slice(&body.finish().0).ok();
        body.ok().and_then(read).unwrap_or_default()
    }

    /// The signatures of a manifest, from the registry.
    ///
    /// # Errors
    /// `SignatureUnavailable` when they cannot be had now.
    pub(crate) async fn signatures(
        &self,
        image: &Image,
        manifest: &Digest,
        memory: Arc<dyn BodyMemory>,
    ) -> Result<Material, SourceError> {
        let registry = self.registry.within(memory);
        let fetched = registry.web().in_time(&image.host, signature::fetch(&registry, image, manifest)).await;
        fetched.map_err(|error| match error.reason {
            Reason::RegistryTimeout => SourceError { reason: Reason::SignatureUnavailable, ..error },
            _ => error,
        })
    }

    /// The requirements on a module's signers, for a policy that adds `wanted`. All must be met; empty means that none are needed.
    ///
    /// # Errors
    /// `SignatureUnavailable` where the installation's own list cannot be read: what cannot be checked is refused.
    pub(crate) fn requirements(&self, wanted: Option<&Requirement>) -> Result<Vec<Requirement>, SourceError> {
        let unusable = |error: RequirementError| {
            SourceError::new(Reason::SignatureUnavailable, format!("--verification: {error}"))
        };
        let everybody = self.verification.as_deref().map(Requirement::read).transpose().map_err(unusable)?;
        Ok(everybody.into_iter().chain(wanted.cloned()).collect())
    }

    /// What checks the signatures of manifests of an image, which must meet all of these requirements.
    pub(crate) fn judge(&self, image: &Image, wanted: &[Requirement]) -> Judge {
        Judge { image: image.clone(), wanted: wanted.to_vec(), trust_root: self.trust_root.clone() }
    }

    /// Checks whether a web address may be fetched, as far as the address alone shows.
    ///
    /// # Errors
    /// `SourceNotAllowed`; `SignatureInvalid` where everything must be signed.
    pub(crate) fn check_web(&self, url: &Url) -> Result<(), SourceError> {
        if self.verification.is_some() {
            return Err(nobody_signs());
        }
        let (web, host) = (self.registry.web(), host_of(url));
        web.check_allowed(&address_of(url), &host)?;
        web.check(url)
    }

    /// Whether it is known where modules may come from. It is not while `sources.yml` could never be used.
    pub(crate) fn rules_are_known(&self) -> bool {
        self.registry.web().sources().is_ok()
    }

    /// Checks whether modules may come from an image's repository. That is also checked for modules that are already on the volume.
    ///
    /// # Errors
    /// `SourceNotAllowed`.
    pub(crate) fn check_allowed(&self, image: &Image) -> Result<(), SourceError> {
        self.registry.web().check_allowed(&image.address(), &image.host)
    }
}

impl Judge {
    /// Checks that a manifest has all required signatures. No network is needed, but it may take a processor for seconds.
    ///
    /// # Errors
    /// `SignatureInvalid`, or `SignatureUnavailable` where that cannot be known: what cannot be checked is refused.
    pub(crate) fn judge(&self, manifest: &Digest, signatures: &Material) -> Result<(), SourceError> {
        for requirement in &self.wanted {
            signatures.judge(&self.image, manifest, requirement, self.trust_root.as_deref())?;
        }
        Ok(())
    }
}

fn nobody_signs() -> SourceError {
    let text = "--verification wants signatures, and only a module in a registry can be signed";
    SourceError::new(Reason::SignatureInvalid, text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use portcullis_registry::{PEER_NAME, PeerAddress, PeerKeys};

    use super::*;

    #[tokio::test]
    async fn that_a_module_has_no_room_here_is_not_taken_for_a_failure_of_other_loaders() {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = PeerKeys::new(folder.path().to_owned(), PEER_NAME).expect("a name");
        let place = PeerAddress::Address(([127, 0, 0, 1], 1).into());
        let peers = Some(Peers::new(vec![place], BTreeSet::new(), keys, None));
        let fetching = Fetching { peers, ..Fetching::alone() };
        let (sources, digest) = (Sources::new(Vec::new(), fetching), Digest::of(b"module"));
        let asked = async |failure: Option<Reason>| {
            let sink = || Ok(Sink::new(None, 10, Arc::default()));
            let receive = || failure.map_or_else(sink, |reason| Err(SourceError::new(reason, "no")));
            let found = sources.blob_of_others(&digest, receive).await;
            found.map(|sink| sink.is_some()).map_err(|error| error.reason)
        };
        assert_eq!(asked(None).await, Ok(false), "there are no certificates");
        assert_eq!(asked(Some(Reason::VolumeFull)).await, Err(Reason::VolumeFull));
    }
}
