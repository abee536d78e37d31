//! Whether a policy may have the module that it is pinned to, even if the bytes are already on the volume: its address and the module's
//! signatures decide.
//!
//! The digest comes from the status of the policy. A user or program that can write that status must not be able to give the policy another
//! tenant's module, or one that a source gave for another policy. So where no signature is required, the policy's own address must lead to
//! the digest.

use std::sync::Arc;

use portcullis_contract::{Digest, Reason};
use portcullis_registry::oci::{Image, Manifest};
use portcullis_registry::signature::{Material, Requirement};
use portcullis_registry::{address_of, host_of};
use portcullis_util::lock;
use url::Url;

use super::{JobContext, JobRunner, PinSource, mistake};
use crate::plan::{Admission, AttemptError, is_against_rules};
use crate::source::{Reference, SourceError};
use crate::volume::{KeptSignatures, SignedManifest};

impl JobRunner {
    /// [`Job::Admit`](crate::plan::Job::Admit). Logs that a check is due which could not be made, and that it was made after all.
    pub(super) async fn admit(
        &self,
        reference: &Reference,
        module: &Digest,
        again: bool,
        context: &Arc<JobContext>,
    ) -> Result<Admission, AttemptError> {
        let result = self.check(reference, module, again, context).await;
        let unknown = match &result {
            Ok(Admission::Trusted(error)) => Some(error),
            Err(error) if again && !is_against_rules(error) => Some(error),
            _ => None,
        };
        let check = (reference.clone(), *module);
        let mut unchecked = lock(&self.unchecked);
        if let Some(error) = unknown {
            if unchecked.insert(check) {
                tracing::warn!(
                    module = reference.label(),
                    digest = %module,
                    reason = %error.reason,
                    message = error.message,
                    "whether a module may serve could not be checked; it stays where it is, and the check is tried again"
                );
            }
        } else if is_made(&result, again) && unchecked.remove(&check) {
            tracing::info!(module = reference.label(), digest = %module, "the check of a module that was due was made");
        }
        drop(unchecked);
        result
    }

    /// Checks a module that a policy is pinned to against the rules of the installation and of the policy. Where it must be signed,
    /// the signatures on the volume are tried first, then those of the registry, then those of other loaders.
    async fn check(
        &self,
        reference: &Reference,
        module: &Digest,
        again: bool,
        context: &Arc<JobContext>,
    ) -> Result<Admission, AttemptError> {
        if again && !self.sources.rules_are_known() {
            // No refusal: what was admitted before the file of the rules broke stays.
            let text = "the module is checked again when sources.yml can be used";
            return Err(SourceError::new(Reason::SignatureUnavailable, text).into());
        }
        let is_found = again || self.pins == PinSource::Loader;
        let (image, wanted) = match reference {
            Reference::File(_) => return Ok(Admission::Checked),
            Reference::Web(url) if is_found => {
                self.sources.check_web(url)?;
                return Ok(Admission::Checked);
            }
            Reference::Web(url) => return self.web_leads_to(reference, url, module, context).await,
            Reference::Registry(image) => (image, None),
            Reference::Signed { image, signatures } => (image, Some(&**signatures)),
        };
        self.sources.check_allowed(image)?;
        let wanted = self.sources.requirements(wanted)?;
        if wanted.is_empty() {
            return if is_found { Ok(Admission::Checked) } else { self.image_leads_to(image, module, context).await };
        }
        let digest = *module;
        let kept = self.read(context, move |volume| volume.signed_manifests(&digest)).await?;
        if self.first_signed(kept, image, module, &wanted, context).await?.is_some() {
            return Ok(Admission::Checked);
        }
        let _turn = self.hosts.turn(image.host.clone(), context).await;
        let Err(error) = self.ask_registry(image, module, &wanted, context).await else {
            return Ok(Admission::Checked);
        };
        if is_against_rules(&error) {
            return Err(error);
        }
        let others = self.sources.signed_of_others(module, self.memory(context)).await;
        let Some((manifest, signatures)) = self.first_signed(others, image, module, &wanted, context).await? else {
            return Err(error);
        };
        self.keep_signed(image, manifest, digest, Some(signatures), context).await?;
        Ok(Admission::Checked)
    }

    /// The first of these manifests that is the module's and has the signatures of all required signers, and its signatures.
    async fn first_signed(
        &self,
        signed: Vec<SignedManifest>,
        image: &Image,
        module: &Digest,
        wanted: &[Requirement],
        context: &Arc<JobContext>,
    ) -> Result<Option<(Manifest, Material)>, AttemptError> {
        let judge = Arc::new(self.sources.judge(image, wanted));
        for signed in signed.into_iter().filter(|signed| signed.kept.places.contains(&image.address())) {
            let (judge, place, module) = (Arc::clone(&judge), image.address(), *module);
            let is_proof = move || {
                let manifest = signed.manifest_of(&module, &place)?;
                let judged = judge.judge(&manifest.digest, &signed.kept.signatures);
                judged.is_ok().then_some((manifest, signed.kept.signatures))
            };
            let found = self.judging(is_proof, context).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Checks the signatures of one manifest, on a thread that may block. Tenants take turns, as with files of the volume. The turn ends with
    /// the check, even if the job has gone meanwhile.
    async fn judging<T: Send + 'static>(
        &self,
        judge: impl FnOnce() -> T + Send + 'static,
        context: &Arc<JobContext>,
    ) -> Result<T, AttemptError> {
        let turn = self.readers.turn(context).await;
        let judge = move || {
            let _turn = turn;
            judge()
        };
        let judged = tokio::task::spawn_blocking(judge).await;
        judged.map_err(|_| mistake(Reason::InternalError, "checking signatures"))
    }

    /// Checks that an image's repository has a module, and fetches it from there if the volume does not have it. While the registry cannot be
    /// reached the pin is trusted, so that a replica that starts during an outage can serve what the others have.
    async fn image_leads_to(
        &self,
        image: &Image,
        module: &Digest,
        context: &Arc<JobContext>,
    ) -> Result<Admission, AttemptError> {
        if let Some(named) = image.digest {
            self.manifest_names(image, &named, module, context).await?;
            return Ok(Admission::Checked);
        }
        let _turn = self.hosts.turn(image.host.clone(), context).await;
        let is_there = if self.has_module(module, context).await? {
            self.sources.has_blob(image, module).await.map_err(AttemptError::from)
        } else {
            self.fetch_layer(image, module, context).await.map(|()| true)
        };
        match is_there {
            Ok(true) => Ok(Admission::Checked),
            Ok(false) => Err(leads_elsewhere(&image.address(), "has no such module", module)),
            Err(error) if error.may_others_help() => Ok(Admission::Trusted(error)),
            Err(error) => Err(error),
        }
    }

    /// Checks that the manifest that a policy names by digest is the module's. The manifest may come from anywhere, as its digest proves it.
    async fn manifest_names(
        &self,
        image: &Image,
        named: &Digest,
        module: &Digest,
        context: &Arc<JobContext>,
    ) -> Result<(), AttemptError> {
        let leads_to = |manifest: &Manifest| match manifest.module()?.digest {
            found if found == *module => Ok(()),
            found => Err(leads_elsewhere(&image.to_string(), &format!("is the module {found}"), module)),
        };
        if let Some(kept) = self.kept_manifest(*named, context).await? {
            return leads_to(&kept);
        }
        let _turn = self.hosts.turn(image.host.clone(), context).await;
        let manifest = self.fetch_manifest(image, context).await?;
        leads_to(&manifest)?;
        self.keep_signed(image, manifest, *module, None, context).await
    }

    /// Checks that a web address gives a module, and keeps it if the volume does not have it. While the source cannot be reached the pin is
    /// trusted, as with an image.
    async fn web_leads_to(
        &self,
        reference: &Reference,
        url: &Url,
        module: &Digest,
        context: &Arc<JobContext>,
    ) -> Result<Admission, AttemptError> {
        self.sources.check_web(url)?;
        let _turn = self.hosts.turn(host_of(url), context).await;
        let found = if self.has_module(module, context).await? {
            self.measure(reference, context).await.map(|fetched| fetched.digest)
        } else {
            self.fetch_making_room(reference, context).await
        };
        match found {
            Ok(found) if found == *module => Ok(Admission::Checked),
            Ok(found) => Err(leads_elsewhere(&address_of(url), &format!("gives the module {found}"), module)),
            Err(error) if error.may_others_help() => Ok(Admission::Trusted(error)),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn has_module(&self, module: &Digest, context: &Arc<JobContext>) -> Result<bool, AttemptError> {
        let (limit, digest) = (self.max_module_size, *module);
        Ok(self.read(context, move |volume| volume.has_module(&digest, limit)).await??)
    }

    async fn ask_registry(
        &self,
        image: &Image,
        module: &Digest,
        wanted: &[Requirement],
        context: &Arc<JobContext>,
    ) -> Result<(), AttemptError> {
        let manifest = self.manifest(image, context).await?;
        let found = manifest.module()?.digest;
        if found != *module {
            let text = format!(
                "{image} now leads to the module {found}, so it does not show who signed {module}, which this generation \
                 is pinned to: name the digest of the signed manifest in spec.module"
            );
            return Err(SourceError::new(Reason::DigestMismatch, text).into());
        }
        let signatures = self.signatures(image, &manifest, module, wanted, context).await?;
        self.keep_signed(image, manifest, found, signatures, context).await
    }

    /// Checks that a manifest has the signatures of all required signers. Tries the signatures on the volume first, then those of the registry,
    /// then those of other loaders. Returns signatures that are not yet kept for this repository; `None` if there is nothing to keep.
    pub(super) async fn signatures(
        &self,
        image: &Image,
        manifest: &Manifest,
        module: &Digest,
        wanted: &[Requirement],
        context: &Arc<JobContext>,
    ) -> Result<Option<Material>, AttemptError> {
        if wanted.is_empty() {
            return Ok(None);
        }
        let judge = Arc::new(self.sources.judge(image, wanted));
        let judged = async |signatures: Material| {
            let (judge, of) = (Arc::clone(&judge), manifest.digest);
            self.judging(move || judge.judge(&of, &signatures).map(|()| signatures), context).await
        };
        let (of, digest) = (manifest.digest, *module);
        let mut kept = self.read(context, move |volume| volume.signatures(&of, &digest)).await?;
        let place = image.address();
        // Those of this repository first: they need not be kept again.
        kept.sort_by_key(|kept| !kept.places.contains(&place));
        for KeptSignatures { places, signatures } in kept {
            if let Ok(signatures) = judged(signatures).await? {
                return Ok(Some(signatures).filter(|_| !places.contains(&place)));
            }
        }
        let memory = self.memory(context);
        let fetched = match self.sources.signatures(image, &manifest.digest, memory.clone()).await {
            Ok(signatures) => judged(signatures).await?,
            Err(error) => Err(error),
        };
        let error = match fetched {
            Ok(signatures) => return Ok(Some(signatures)),
            Err(error) => error,
        };
        if error.reason.class().is_retryable() {
            for signed in self.sources.signed_of_others(module, memory).await {
                let other = signed.manifest_of(module, &place);
                let is_it = other.is_some_and(|other| other.digest == manifest.digest);
                if is_it && let Ok(signatures) = judged(signed.kept.signatures).await? {
                    return Ok(Some(signatures));
                }
            }
        }
        Err(error.into())
    }
}

/// Whether a check has been made: it says that the module may serve, or refuses it. After any other error it is still due. As in the plan, that
/// an address leads elsewhere refuses only what it was never found to lead to.
fn is_made(result: &Result<Admission, AttemptError>, again: bool) -> bool {
    match result {
        Ok(Admission::Checked) => true,
        Ok(Admission::Trusted(_)) => false,
        Err(error) => is_against_rules(error) || (!again && error.reason == Reason::DigestMismatch),
    }
}

fn leads_elsewhere(address: &str, what: &str, module: &Digest) -> AttemptError {
    let text = format!(
        "{address} {what}, and this generation is pinned to the module {module}: if the pin is right, make the address give \
         that module again; if it is not, change spec.module, and the new generation is resolved again"
    );
    SourceError::new(Reason::DigestMismatch, text).into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_check_is_made_when_it_allows_or_refuses() {
        let error = |reason| AttemptError { reason, message: "no".to_owned(), retry_after: None };
        assert!([true, false].iter().all(|again| is_made(&Ok(Admission::Checked), *again)));
        assert!(!is_made(&Ok(Admission::Trusted(error(Reason::RegistryTimeout))), false));
        for (reason, first, again) in [
            (Reason::SignatureInvalid, true, true),
            (Reason::SourceNotAllowed, true, true),
            (Reason::DigestMismatch, true, false),
            (Reason::RegistryUnreachable, false, false),
            (Reason::SignatureUnavailable, false, false),
            (Reason::VolumeFull, false, false),
        ] {
            assert_eq!([false, true].map(|again| is_made(&Err(error(reason)), again)), [first, again], "{reason}");
        }
        // What a name server says may be wrong for a while.
        let led_inside = AttemptError { retry_after: Some(Duration::ZERO), ..error(Reason::SourceNotAllowed) };
        assert!([true, false].iter().all(|again| !is_made(&Err(led_inside.clone()), *again)));
    }
}
