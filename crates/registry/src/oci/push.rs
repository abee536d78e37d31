//! Pushes a module to a registry.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderValue, Method, StatusCode};
use portcullis_contract::{Digest, Reason};

use super::pull::placeholder;
use super::{Image, MANIFEST_TYPE, Manifest, Registry};
use crate::{FetchError, Request, client, host_of};

impl Registry {
    /// Pushes a module with its manifest, and returns the manifest's digest.
    ///
    /// # Errors
    /// When the registry does not accept it.
    pub async fn push(&self, image: &Image, module: Vec<u8>, manifest: &Manifest) -> Result<Digest, FetchError> {
        self.push_blob(image, Bytes::from_static(b"{}")).await?;
        self.push_blob(image, Bytes::from(module)).await?;
        self.push_manifest(image, manifest).await?;
        Ok(manifest.digest)
    }

    /// Pushes a manifest under the image's tag, or its digest.
    ///
    /// # Errors
    /// When the registry does not accept it.
    pub async fn push_manifest(&self, image: &Image, manifest: &Manifest) -> Result<(), FetchError> {
        let pointer = image.tag.clone().unwrap_or_else(|| manifest.digest.to_string());
        self.put_manifest(image, &pointer, MANIFEST_TYPE, manifest.bytes.clone()).await
    }

    /// Pushes a manifest of any media type under a tag or its digest.
    pub(super) async fn put_manifest(
        &self,
        image: &Image,
        pointer: &str,
        kind: &'static str,
        bytes: Vec<u8>,
    ) -> Result<(), FetchError> {
        let mut request = put(Bytes::from(bytes));
        request.headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        taken(self.ask(image, &format!("manifests/{pointer}"), request, true).await?)
    }

    /// Pushes a blob, unless the registry has it already.
    ///
    /// # Errors
    /// When the registry does not accept it.
    pub async fn push_blob(&self, image: &Image, bytes: Bytes) -> Result<(), FetchError> {
        let digest = Digest::of(&bytes);
        let head = Request { method: Method::HEAD, ..Request::get(placeholder()) };
        if self.ask(image, &format!("blobs/{digest}"), head, true).await?.status() == StatusCode::OK {
            return Ok(());
        }
        let begin = Request { method: Method::POST, body: Some(Bytes::new()), ..Request::get(placeholder()) };
        let answer = self.ask(image, "blobs/uploads/", begin, true).await?;
        if answer.status() != StatusCode::ACCEPTED {
            return Err(self.refused(image, &answer));
        }
        let location = answer.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        let no_place = || {
            let text = format!("{} returned no Location for the upload", image.host);
            FetchError::new(Reason::RegistryServerError, text)
        };
        let mut url = location.and_then(|location| answer.url().join(location).ok()).ok_or_else(no_place)?;
        url.query_pairs_mut().append_pair("digest", &digest.to_string());
        let same_host = host_of(&url) == host_of(answer.url());
        let mut request = put(bytes);
        request.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        request.url = url;
        // The login is only for the registry, and not for other hosts that it names.
        taken(if same_host { self.ask_at(image, request, true).await? } else { self.web.send(&request).await? })
    }
}

fn put(body: Bytes) -> Request {
    Request { method: Method::PUT, body: Some(body), ..Request::get(placeholder()) }
}

fn taken(answer: reqwest::Response) -> Result<(), FetchError> {
    if answer.status().is_success() {
        return Ok(());
    }
    let (host, status) = (host_of(answer.url()), answer.status());
    let mut error = client::refused(&host, status, answer.headers());
    error.message = format!("{host} does not take the push (status {})", status.as_u16());
    Err(error)
}
