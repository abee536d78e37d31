//! Bringing a module that is an OCI artifact: its manifest, then its one layer, each by digest and each only once.

use std::sync::Arc;

use portcullis_contract::{Digest, Reason};
use portcullis_registry::oci::{Image, Manifest};
use portcullis_registry::signature::{Material, Requirement};

use super::{Gauge, Workshop, blocking};
use crate::plan::Setback;
use crate::source::{Fetched, Sink, SourceError};
use crate::store::{MAX_SIGNATURES, Temporary};

impl Workshop {
    /// Brings the module that an artifact is now. A digest names it for ever; a tag is resolved here, once a fetch.
    ///
    /// Signatures are checked before the bytes are fetched, also when those are on the volume already.
    pub(super) async fn fetch_artifact(
        &self,
        image: &Image,
        signatures: Option<&Requirement>,
        gauge: &Arc<Gauge>,
    ) -> Result<Digest, Setback> {
        self.sources.check_allowed(image)?;
        let wanted = self.sources.requirements(signatures)?;
        let manifest = self.manifest(image, gauge).await?;
        let layer = manifest.module()?;
        let signatures = self.signatures(image, &manifest, &layer.digest, &wanted, gauge).await?;
        if layer.size > self.max_module_size {
            let text = format!("the module is above the limit of {} bytes (--max-module-size)", self.max_module_size);
            return Err(SourceError::new(Reason::ModuleTooLarge, text).into());
        }
        let digest = layer.digest;
        self.fetch_layer(image, &digest, gauge).await?;
        self.keep_signed(image, manifest, digest, signatures, gauge).await?;
        Ok(digest)
    }

    /// Brings modules that policies are pinned to, by their digests. Wherever the tag is now does not matter.
    pub(super) async fn fetch_pinned(&self, image: &Image, pins: &[Digest], gauge: &Arc<Gauge>) -> Result<(), Setback> {
        self.sources.check_allowed(image)?;
        for pin in pins {
            self.fetch_layer(image, pin, gauge).await?;
        }
        Ok(())
    }

    /// Keeps what the registry said about this module, so that the next policy that names it need not ask again.
    pub(super) async fn keep_signed(
        &self,
        image: &Image,
        manifest: Manifest,
        module: Digest,
        signatures: Option<Material>,
        gauge: &Gauge,
    ) -> Result<(), Setback> {
        let (volume, place) = (Arc::clone(&self.volume), image.address());
        let taken = volume.room().take(gauge.claims());
        let keep = move || {
            let signatures_size = serde_json::to_vec(&signatures).map_or(MAX_SIGNATURES, |text| text.len() as u64);
            taken.check(manifest.bytes.len() as u64 + signatures_size)?;
            volume.keep_oci_manifest(&manifest, &module)?;
            let keep = |signatures| volume.keep_signatures(&manifest.digest, &module, place, signatures);
            signatures.map_or(Ok(()), keep)
        };
        if let Err(error) = blocking(keep).await? {
            // Without it, the registry is asked again.
            tracing::debug!(%error, "failed to keep a manifest");
        }
        Ok(())
    }

    /// The manifest: from the volume, where a digest names one that is there, or from the registry.
    pub(super) async fn manifest(&self, image: &Image, gauge: &Arc<Gauge>) -> Result<Manifest, Setback> {
        if let Some(digest) = image.digest
            && let Some(manifest) = self.kept_manifest(digest, gauge).await?
        {
            return Ok(manifest);
        }
        self.fetch_manifest(image).await
    }

    pub(super) async fn kept_manifest(&self, digest: Digest, gauge: &Arc<Gauge>) -> Result<Option<Manifest>, Setback> {
        self.read(gauge, move |volume| volume.oci_manifest(&digest)).await
    }

    /// The manifest from the registry, or from another loader.
    pub(super) async fn fetch_manifest(&self, image: &Image) -> Result<Manifest, Setback> {
        match (self.sources.manifest(image).await, image.digest) {
            (Err(error), Some(digest)) if error.reason.class().is_retryable() => {
                Ok(self.sources.manifest_of_others(&digest).await.ok_or(error)?)
            }
            (result, _) => Ok(result?),
        }
    }

    pub(super) async fn fetch_layer(&self, image: &Image, digest: &Digest, gauge: &Arc<Gauge>) -> Result<(), Setback> {
        // Two names of one module wait for the same fetch.
        let turn = self.layers.turn(*digest);
        let _turn = turn.lock().await;
        if self.has_module(digest, gauge).await? {
            return Ok(());
        }
        self.making_room(|| self.layer_onto_volume(image, digest, gauge)).await
    }

    async fn layer_onto_volume(&self, image: &Image, digest: &Digest, gauge: &Gauge) -> Result<(), Setback> {
        let temporary = self.volume.temporary();
        let mut sink = self.sink(&temporary, gauge)?;
        if let Err(error) = self.sources.blob(image, digest, &mut sink).await {
            let setback = Setback::from(error);
            drop(sink);
            let is_had = setback.may_others_help() && self.others_onto_volume(digest, gauge).await?;
            return if is_had { Ok(()) } else { Err(setback) };
        }
        self.keep_fetched(temporary, sink, digest, &image.host).await
    }

    /// What a source cannot give now, another loader may have. False where none has it.
    pub(super) async fn others_onto_volume(&self, digest: &Digest, gauge: &Gauge) -> Result<bool, Setback> {
        let temporary = self.volume.temporary();
        let sink = self.sources.blob_of_others(digest, || self.sink(&temporary, gauge)).await;
        match sink {
            Some(sink) => self.keep_fetched(temporary, sink, digest, "another loader").await.map(|()| true),
            None => Ok(false),
        }
    }

    pub(super) fn sink(&self, temporary: &Temporary, gauge: &Gauge) -> Result<Sink, SourceError> {
        let file = temporary.open().map_err(|error| {
            SourceError::new(
                crate::volume_error::volume_reason(&error),
                format!("failed to write to the volume: {error}"),
            )
        })?;
        let taken = self.volume.room().take(gauge.claims());
        Ok(Sink::new(Some((file, taken)), self.max_module_size, Arc::clone(&gauge.bytes)))
    }

    async fn keep_fetched(&self, temporary: Temporary, sink: Sink, digest: &Digest, who: &str) -> Result<(), Setback> {
        let fetched: Fetched = sink.finish().await?;
        if fetched.digest != *digest {
            let text = format!("{who} gave a module with the digest {} for {digest}", fetched.digest);
            return Err(SourceError::new(Reason::DigestMismatch, text).into());
        }
        self.keep_module(temporary, fetched).await.map(drop)
    }
}
