//! Whether a policy may have a module whose bytes may be on the volume already: what its address allows, and who signed it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use portcullis_contract::{Digest, Reason};
use portcullis_registry::oci::{Image, Manifest};
use portcullis_registry::signature::{Material, Requirement};

use super::{Gauge, Workshop};
use crate::plan::Setback;
use crate::source::{Reference, SourceError};
use crate::store::SignedManifest;

impl Workshop {
    /// Asks the rules of the installation and of the policy about a module that the policy is pinned to. The signatures that
    /// were kept with it are asked first, then the registry, then other loaders.
    pub(super) async fn admit(
        &self,
        reference: &Reference,
        module: &Digest,
        gauge: &Arc<Gauge>,
    ) -> Result<(), Setback> {
        let (image, wanted) = match reference {
            Reference::File(_) => return Ok(()),
            Reference::Web(url) => return Ok(self.sources.check_web(url)?),
            Reference::Registry(image) => (image, None),
            Reference::Signed { image, signatures } => (image, Some(&**signatures)),
        };
        self.sources.check_allowed(image)?;
        let wanted = self.sources.requirements(wanted)?;
        if wanted.is_empty() {
            return Ok(());
        }
        let digest = *module;
        let kept = self.read(gauge, move |volume| volume.signed_manifests(&digest)).await?;
        let is_proof = |manifest: &Manifest, signatures: &Material| {
            self.sources.judge(image, &manifest.digest, signatures, &wanted).is_ok()
        };
        let place = image.address();
        let proves = |signed: &SignedManifest| {
            let manifest = signed.manifest_of(module, &place);
            manifest.is_some_and(|manifest| is_proof(&manifest, &signed.kept.signatures))
        };
        if kept.iter().any(proves) {
            return Ok(());
        }
        let _turn = self.hosts.turn(image.host.clone(), gauge).await;
        gauge.runs.store(true, Ordering::Relaxed);
        let Err(setback) = self.ask_registry(image, module, &wanted, gauge).await else { return Ok(()) };
        if matches!(setback.reason, Reason::SignatureInvalid | Reason::SourceNotAllowed) {
            return Err(setback);
        }
        for signed in self.sources.signed_of_others(module).await {
            let Some(manifest) = signed.manifest_of(module, &place) else { continue };
            if is_proof(&manifest, &signed.kept.signatures) {
                return self.keep_signed(image, manifest, digest, Some(signed.kept.signatures), gauge).await;
            }
        }
        Err(setback)
    }

    async fn ask_registry(
        &self,
        image: &Image,
        module: &Digest,
        wanted: &[Requirement],
        gauge: &Arc<Gauge>,
    ) -> Result<(), Setback> {
        let manifest = self.manifest(image, gauge).await?;
        let found = manifest.module()?.digest;
        if found != *module {
            let text = format!(
                "{image} is the module {found} by now, so that it does not tell who signed {module}, which this generation \
                 is pinned to: name the digest of the signed manifest in spec.module"
            );
            return Err(SourceError::new(Reason::DigestMismatch, text).into());
        }
        let signatures = self.signatures(image, &manifest, module, wanted, gauge).await?;
        self.keep_signed(image, manifest, found, signatures, gauge).await
    }

    /// Checks that a manifest is signed by everybody who must have signed it, and gives the signatures where they are not on the
    /// volume as this artifact's already. Those that are there are asked first, then the registry, then other loaders.
    pub(super) async fn signatures(
        &self,
        image: &Image,
        manifest: &Manifest,
        module: &Digest,
        wanted: &[Requirement],
        gauge: &Arc<Gauge>,
    ) -> Result<Option<Material>, Setback> {
        if wanted.is_empty() {
            return Ok(None);
        }
        let judge = |signatures: &Material| self.sources.judge(image, &manifest.digest, signatures, wanted);
        let (of, digest) = (manifest.digest, *module);
        let kept = self.read(gauge, move |volume| volume.signatures(&of, &digest)).await?;
        let place = image.address();
        if let Some(kept) = kept.filter(|kept| judge(&kept.signatures).is_ok()) {
            return Ok(Some(kept.signatures).filter(|_| !kept.places.contains(&place)));
        }
        let fetched = self.sources.signatures(image, &manifest.digest).await;
        let error = match fetched.and_then(|signatures| judge(&signatures).map(|()| signatures)) {
            Ok(signatures) => return Ok(Some(signatures)),
            Err(error) => error,
        };
        if error.reason.class().is_retryable() {
            for signed in self.sources.signed_of_others(module).await {
                let other = signed.manifest_of(module, &place);
                let is_it = other.is_some_and(|other| other.digest == manifest.digest);
                if is_it && judge(&signed.kept.signatures).is_ok() {
                    return Ok(Some(signed.kept.signatures));
                }
            }
        }
        Err(error.into())
    }
}
