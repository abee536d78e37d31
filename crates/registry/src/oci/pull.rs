//! Fetches a manifest or a blob from a registry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use http::header::{ACCEPT, AUTHORIZATION};
use http::{HeaderValue, Method, StatusCode};
use portcullis_contract::{Digest, Reason};
use portcullis_util::lock;
use url::Url;

use super::challenge::Challenge;
use super::login::Logins;
use super::{Image, MAX_MANIFEST, Manifest};
use crate::{BodyMemory, DockerConfig, FetchError, Receive, Redirects, Request, Web, Whole, client, host_of};

/// The media types to accept for a manifest. Indexes are included, so that an index is refused as such and not by a
/// 404.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json, \
     application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json";

/// Talks to registries. Clones share what they have learned.
#[derive(Clone)]
pub struct Registry {
    pub(super) web: Arc<Web>,
    docker: Option<DockerConfig>,
    logins: Arc<Logins>,
    /// Whether each known host speaks plain HTTP.
    plain: Arc<Mutex<HashMap<String, bool>>>,
    /// What counts the bytes of manifests, lists and signatures; `None` where nothing does.
    memory: Option<Arc<dyn BodyMemory>>,
}

impl Registry {
    /// A client that logs in with the logins of `docker`.
    pub fn new(web: Web, docker: Option<DockerConfig>) -> Self {
        Self { web: Arc::new(web), docker, logins: Arc::default(), plain: Arc::default(), memory: None }
    }

    /// The same client, where something counts the bytes of manifests, lists and signatures.
    #[must_use]
    pub fn within(&self, memory: Arc<dyn BodyMemory>) -> Self {
        Self { memory: Some(memory), ..self.clone() }
    }

    /// A receiver of at most `limit` bytes of `what`.
    pub(crate) fn whole(&self, what: &'static str, limit: u64) -> Whole {
        Whole::new(what, limit).within(self.memory.clone())
    }

    /// The HTTP client.
    pub fn web(&self) -> &Web {
        &self.web
    }

    /// The manifest of an image, checked against its digest.
    ///
    /// # Errors
    /// When it cannot be fetched, is too large, has another digest, or is not a module's.
    pub async fn manifest(&self, image: &Image) -> Result<Manifest, FetchError> {
        Manifest::parse(self.manifest_bytes(image).await?.0)
    }

    /// The manifest of any image, or its index: the bytes, checked against the digest that the image names, and their digest.
    ///
    /// # Errors
    /// When it cannot be fetched, is too large, or has another digest.
    pub async fn manifest_bytes(&self, image: &Image) -> Result<(Vec<u8>, Digest), FetchError> {
        self.manifest_within(image, MAX_MANIFEST).await
    }

    /// The same for a manifest of at most `limit` bytes.
    pub(crate) async fn manifest_within(&self, image: &Image, limit: u64) -> Result<(Vec<u8>, Digest), FetchError> {
        // What a tag refers to, only the registry says; a digest is checked below.
        let redirects = if image.digest.is_some() { Redirects::Anywhere } else { Redirects::Allowed };
        let answer = self.get(image, &format!("manifests/{}", image.pointer()), MANIFESTS, redirects).await?;
        let mut body = self.whole("the manifest", limit);
        self.web.body(&image.host, answer, &mut body).await?;
        let (bytes, digest) = body.finish();
        match image.digest {
            Some(wanted) if wanted != digest => {
                let text = format!("{} gave a manifest with the digest {digest} for {wanted}", image.host);
                Err(FetchError::new(Reason::DigestMismatch, text))
            }
            _ => Ok((bytes, digest)),
        }
    }

    /// A blob. The receiver must check its digest.
    ///
    /// # Errors
    /// When it cannot be fetched completely.
    pub async fn blob(&self, image: &Image, digest: &Digest, receive: &mut impl Receive) -> Result<(), FetchError> {
        let answer = self.get(image, &format!("blobs/{digest}"), "*/*", Redirects::Anywhere).await?;
        self.web.body(&image.host, answer, receive).await
    }

    /// Whether the repository of an image has a blob. Blobs in other repositories of the registry do not count.
    ///
    /// # Errors
    /// When the registry does not give a clear answer.
    pub async fn has_blob(&self, image: &Image, digest: &Digest) -> Result<bool, FetchError> {
        let request = Request { method: Method::HEAD, redirects: Redirects::Anywhere, ..Request::get(placeholder()) };
        let answer = self.ask(image, &format!("blobs/{digest}"), request, false).await?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(false),
            status if status.is_success() => Ok(true),
            _ => Err(self.refused(image, &answer)),
        }
    }

    pub(super) async fn get(
        &self,
        image: &Image,
        path: &str,
        accept: &'static str,
        redirects: Redirects,
    ) -> Result<reqwest::Response, FetchError> {
        let mut request = Request { redirects, ..Request::get(placeholder()) };
        request.headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let answer = self.ask(image, path, request, false).await?;
        if answer.status().is_success() { Ok(answer) } else { Err(self.refused(image, &answer)) }
    }

    /// The error for an answer that is not what was asked for.
    pub(super) fn refused(&self, image: &Image, answer: &reqwest::Response) -> FetchError {
        let (host, status) = (host_of(answer.url()), answer.status());
        let error = client::refused(&host, status, answer.headers());
        if host != image.api_host() {
            if error.reason != Reason::Unauthorized {
                return error;
            }
            let text = format!("{}; {} redirects there, and a login is never sent on", error.message, image.host);
            return FetchError { message: text, ..error };
        }
        // Without a login, the message already says what is missing.
        let text = match (status, &self.docker) {
            (StatusCode::UNAUTHORIZED, Some(docker)) => {
                format!("{host} refuses the login that {} has for it (status 401)", docker.path().display())
            }
            (StatusCode::FORBIDDEN, Some(_)) => {
                format!("{host} does not let this login have {} (status 403)", image.repository)
            }
            _ => return error,
        };
        FetchError { retry_after: error.retry_after, ..FetchError::new(error.reason, text) }
    }

    /// Asks the registry, and logs in if it demands that. `path` is below the repository.
    pub(super) async fn ask(
        &self,
        image: &Image,
        path: &str,
        request: Request,
        push: bool,
    ) -> Result<reqwest::Response, FetchError> {
        self.web.check_allowed(&image.address(), &image.host)?;
        let host = image.api_host();
        let known_plain = lock(&self.plain).get(host).copied();
        let may_be_plain = self.web.is_plain(host);
        let schemes: &[&str] = match (may_be_plain, known_plain) {
            (false, _) => &["https"],
            (true, Some(true)) => &["http", "https"],
            (true, _) => &["https", "http"],
        };
        let mut last = None;
        for scheme in schemes {
            let url = Url::parse(&format!("{scheme}://{host}/v2/{}/{path}", image.repository));
            let url = url.map_err(|_| FetchError::new(Reason::SourceNotAllowed, format!("{host} is not a host")))?;
            match self.ask_at(image, Request { url, ..request.clone() }, push).await {
                Err(error) if is_other_protocol(error.reason) => last = Some(error),
                result => {
                    if may_be_plain {
                        let mut plain = lock(&self.plain);
                        plain.insert(host.to_owned(), *scheme == "http");
                    }
                    return result;
                }
            }
        }
        Err(last.unwrap_or_else(|| FetchError::new(Reason::InternalError, "no scheme is left to ask with")))
    }

    /// Asks one address, and logs in if it demands that.
    pub(super) async fn ask_at(
        &self,
        image: &Image,
        mut request: Request,
        push: bool,
    ) -> Result<reqwest::Response, FetchError> {
        if let Some(header) = self.logins.known(self.docker.as_ref(), image, push) {
            request.headers.insert(AUTHORIZATION, header);
        }
        let mut answer = self.web.send(&request).await?;
        let asked = host_of(&request.url);
        // The login is only for the host that was asked, and not for the target of a redirect.
        let is_asked = |answer: &reqwest::Response| host_of(answer.url()) == asked;
        if answer.status() == StatusCode::UNAUTHORIZED && is_asked(&answer) {
            self.logins.forget(image, push);
            let challenge = Challenge::of(answer.headers());
            let header = self.logins.log_in(&self.web, self.docker.as_ref(), image, push, challenge).await?;
            request.headers.insert(AUTHORIZATION, header);
            answer = self.web.send(&request).await?;
        }
        let is_refused =
            matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) && is_asked(&answer);
        // Registries give a token to any client, and only now say that it does not give the right to this.
        match is_refused.then(|| self.logins.forget(image, push)).flatten() {
            Some(missing) => Err(missing),
            None => Ok(answer),
        }
    }
}

/// Whether a failure may mean that the host speaks the other protocol.
fn is_other_protocol(reason: Reason) -> bool {
    matches!(reason, Reason::TLSFailed | Reason::RegistryUnreachable | Reason::BlobTruncated)
}

/// An address that is replaced before it is used.
pub(super) fn placeholder() -> Url {
    Url::parse("https://localhost/").expect("is an address")
}
