//! Fetches a module that is an OCI artifact: its manifest, then its one layer, each by digest, and the layer only once
//! from each host.

use std::sync::Arc;

use portcullis_contract::{Digest, Reason};
use portcullis_registry::oci::{Image, Manifest};
use portcullis_registry::signature::{Material, Requirement};

use super::{JobContext, JobRunner, blocking};
use crate::plan::AttemptError;
use crate::source::{Fetched, Sink, SourceError, module_too_large, not_written};
use crate::volume::{KeptSignatures, Temporary};

impl JobRunner {
    /// Fetches the module that an artifact's name leads to now. A digest always names the same module; a tag is resolved once per fetch.
    ///
    /// Signatures are checked before the bytes are fetched, and also if the bytes are already on the volume.
    pub(super) async fn fetch_artifact(
        &self,
        image: &Image,
        signatures: Option<&Requirement>,
        context: &Arc<JobContext>,
    ) -> Result<Digest, AttemptError> {
        self.sources.check_allowed(image)?;
        let wanted = self.sources.requirements(signatures)?;
        let manifest = self.manifest(image, context).await?;
        let layer = manifest.module()?;
        let signatures = self.signatures(image, &manifest, &layer.digest, &wanted, context).await?;
        if layer.size > self.max_module_size {
            return Err(SourceError::new(Reason::ModuleTooLarge, module_too_large(self.max_module_size)).into());
        }
        let digest = layer.digest;
        self.fetch_layer(image, &digest, context).await?;
        self.keep_signed(image, manifest, digest, signatures, context).await?;
        Ok(digest)
    }

    /// Fetches modules that policies are pinned to, by their digests. It does not matter where the tag points now, nor whether the others can
    /// be had.
    pub(super) async fn fetch_pinned(
        &self,
        image: &Image,
        pins: &[Digest],
        context: &Arc<JobContext>,
    ) -> Vec<(Digest, Result<(), AttemptError>)> {
        let mut results = Vec::new();
        for pin in pins {
            let result = match self.sources.check_allowed(image) {
                Ok(()) => self.fetch_layer(image, pin, context).await,
                Err(error) => Err(error.into()),
            };
            results.push((*pin, result));
        }
        results
    }

    /// Keeps a module's manifest and signatures, so that the registry need not be asked again for the next policy that names it.
    pub(super) async fn keep_signed(
        &self,
        image: &Image,
        manifest: Manifest,
        module: Digest,
        signatures: Option<Material>,
        context: &JobContext,
    ) -> Result<(), AttemptError> {
        let (volume, claims) = (Arc::clone(&self.volume), context.claims());
        let signed = signatures.map(|signatures| KeptSignatures::at(image.address(), signatures));
        let keep = move || volume.keep_beside(&manifest, &module, signed.as_ref(), &claims);
        if let Err(error) = blocking(keep).await? {
            // Without it, the registry is asked again.
            tracing::debug!(%error, "failed to keep a manifest");
        }
        Ok(())
    }

    /// The manifest: from the volume if the image names it by digest and it is there, otherwise from the registry.
    pub(super) async fn manifest(&self, image: &Image, context: &Arc<JobContext>) -> Result<Manifest, AttemptError> {
        if let Some(digest) = image.digest
            && let Some(manifest) = self.kept_manifest(digest, context).await?
        {
            return Ok(manifest);
        }
        self.fetch_manifest(image, context).await
    }

    pub(super) async fn kept_manifest(
        &self,
        digest: Digest,
        context: &Arc<JobContext>,
    ) -> Result<Option<Manifest>, AttemptError> {
        self.read(context, move |volume| volume.oci_manifest(&digest)).await
    }

    /// The manifest from the registry or, if that fails and the image names a digest, from another loader.
    pub(super) async fn fetch_manifest(
        &self,
        image: &Image,
        context: &Arc<JobContext>,
    ) -> Result<Manifest, AttemptError> {
        let memory = self.memory(context);
        let fetched = self.sources.manifest(image, memory.clone()).await;
        match (fetched, image.digest) {
            (Err(error), Some(digest)) if error.reason.class().is_retryable() => {
                Ok(self.sources.manifest_of_others(&digest, memory).await.ok_or(error)?)
            }
            (result, _) => Ok(result?),
        }
    }

    pub(super) async fn fetch_layer(
        &self,
        image: &Image,
        digest: &Digest,
        context: &Arc<JobContext>,
    ) -> Result<(), AttemptError> {
        // If two names of a host lead to one module, the second waits for the fetch of the first. One of another host does not wait:
        // anybody's host can name the module of others, and send it slowly.
        let turn = self.layers.turn((*digest, image.host.clone()));
        let _turn = turn.lock().await;
        if self.has_module(digest, context).await? {
            return Ok(());
        }
        self.making_room(Some(context), || self.layer_onto_volume(image, digest, context)).await
    }

    async fn layer_onto_volume(
        &self,
        image: &Image,
        digest: &Digest,
        context: &JobContext,
    ) -> Result<(), AttemptError> {
        let temporary = self.volume.temporary();
        let mut sink = self.sink(&temporary, context)?;
        if let Err(error) = self.sources.blob(image, digest, &mut sink).await {
            let error = AttemptError::from(error);
            drop(sink);
            let is_had = error.may_others_help() && self.others_onto_volume(digest, context).await?;
            return if is_had { Ok(()) } else { Err(error) };
        }
        self.keep_fetched(temporary, sink, digest, &image.host).await
    }

    /// Fetches a module from another loader, for when its source cannot give it now. False if no other loader has it. Fails only where the
    /// module cannot be written, or is another one.
    pub(super) async fn others_onto_volume(&self, digest: &Digest, context: &JobContext) -> Result<bool, AttemptError> {
        let temporary = self.volume.temporary();
        let sink = self.sources.blob_of_others(digest, || self.sink(&temporary, context)).await?;
        match sink {
            Some(sink) => self.keep_fetched(temporary, sink, digest, "another loader").await.map(|()| true),
            None => Ok(false),
        }
    }

    pub(super) fn sink(&self, temporary: &Temporary, context: &JobContext) -> Result<Sink, SourceError> {
        let file = temporary.open().map_err(|error| not_written(&error))?;
        let reservation = self.volume.room().reserve_module(context.claims()).telling(&context.share_is_short);
        Ok(Sink::new(Some((file, reservation)), self.max_module_size, Arc::clone(&context.bytes)))
    }

    async fn keep_fetched(
        &self,
        temporary: Temporary,
        sink: Sink,
        digest: &Digest,
        who: &str,
    ) -> Result<(), AttemptError> {
        let fetched: Fetched = sink.finish().await?;
        if fetched.digest != *digest {
            let text = format!("{who} gave a module with the digest {} for {digest}", fetched.digest);
            return Err(SourceError::new(Reason::DigestMismatch, text).into());
        }
        self.keep_module(temporary, fetched).await.map(drop)
    }
}
