//! Signatures in Sigstore's own bundles: a statement about the manifest, its signer, and the entry in the transparency
//! log.

use std::collections::BTreeMap;

use portcullis_contract::Digest;
use serde::Deserialize;
use serde_json::value::RawValue;
use sigstore_verify::types::{Bundle, Sha256Hash, SignatureContent, VerificationMaterialContent};

use super::annotations::Names;
use super::identity::Identity;
use super::material::Layer;
use super::referrers::{BUNDLE, MAX_BUNDLE};
use super::refusal::Refusal;
use super::signed::{Certificate, Entry, Signed};
use super::trust::{Logged, MOST_CERTIFICATES, TrustRoot};

/// The type of a statement that is a signature, and not another attestation, for instance of a test, a build or a
/// vulnerability.
const SIGNATURE: &str = "https://sigstore.dev/cosign/sign/v1";
/// The form of such statements.
const STATEMENT: &str = "https://in-toto.io/Statement/v1";

/// The fields of a statement that are used here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement<'a> {
    #[serde(rename = "_type")]
    form: String,
    #[serde(borrow)]
    subject: Vec<Subject<'a>>,
    predicate_type: String,
}

#[derive(Deserialize)]
struct Subject<'a> {
    digest: Digests,
    #[serde(borrow)]
    annotations: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Digests {
    sha256: Option<String>,
}

/// Reads a bundle that was found beside a manifest, with those of its annotations that have these names. `None` if it is not about this
/// manifest, or is not a signature.
pub(super) fn read(layer: &Layer, manifest: &Digest, trust: Option<&TrustRoot>, names: &Names<'_>) -> Option<Signed> {
    if !layer.media_type.starts_with(BUNDLE) || layer.body.len() as u64 > MAX_BUNDLE {
        return None;
    }
    let bundle = Bundle::from_json(std::str::from_utf8(&layer.body).ok()?).ok()?;
    let SignatureContent::DsseEnvelope(envelope) = &bundle.content else { return None };
    let annotations = said(envelope.payload.as_bytes(), manifest, names)?;
    let certificate = match (&bundle.verification_material.content, trust) {
        (VerificationMaterialContent::PublicKey(_), _) | (_, None) => Certificate::None,
        (VerificationMaterialContent::X509CertificateChain { certificates }, _)
            if certificates.len() > MOST_CERTIFICATES =>
        {
            Certificate::Refused(Refusal::LongChain(MOST_CERTIFICATES))
        }
        (_, Some(trust)) => Certificate::of(check(&bundle, manifest, trust)),
    };
    Some(Signed {
        message: envelope.pae(),
        signature: envelope.signature.sig.as_bytes().to_vec(),
        annotations,
        certificate,
        // The check above covers the entry for certificates of the trust root. For a certificate that the policy names, it is not read.
        entry: Entry::InBundle,
    })
}

fn check(bundle: &Bundle, manifest: &Digest, trust: &TrustRoot) -> Result<Identity, Refusal> {
    let digest = Sha256Hash::from_hex(&manifest.hex()).map_err(|error| Refusal::Verifier(error.to_string()))?;
    trust.check(digest, bundle, Logged::Included)
}

/// The annotations of a statement that signs this manifest; `None` for any other statement.
fn said(payload: &[u8], manifest: &Digest, names: &Names<'_>) -> Option<BTreeMap<String, String>> {
    let statement: Statement<'_> = serde_json::from_slice(payload).ok()?;
    if statement.form != STATEMENT || statement.predicate_type != SIGNATURE {
        return None;
    }
    let hex = manifest.hex();
    let about = statement.subject.iter().find(|subject| subject.digest.sha256.as_ref() == Some(&hex))?;
    names.select(about.annotations)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Requirement;
    use super::*;

    #[test]
    fn only_a_signature_of_this_manifest_is_one() {
        let (manifest, other) = (Digest::of(b"manifest"), Digest::of(b"other"));
        let requirement = "allOf: [{kind: githubAction, owner: a, annotations: {env: prod}}]";
        let requirement = Requirement::from_yaml(requirement).expect("is one");
        let names = Names::of(&requirement);
        let statement = |form: &str, kind: &str, about: &Digest| {
            let subject = json!([{"digest": {"sha256": about.hex()}, "annotations": {"env": "prod"}}]);
            let statement = json!({"_type": form, "predicateType": kind, "subject": subject, "predicate": {}});
            said(statement.to_string().as_bytes(), &manifest, &names)
        };
        let good = statement(STATEMENT, SIGNATURE, &manifest).expect("is one");
        assert_eq!(good["env"], "prod");
        assert_eq!(statement(STATEMENT, SIGNATURE, &other), None);
        assert_eq!(statement(STATEMENT, "https://slsa.dev/provenance/v1", &manifest), None, "another attestation");
        assert_eq!(statement("https://example.com/Statement", SIGNATURE, &manifest), None);
        assert_eq!(said(b"no JSON", &manifest, &names), None);
    }
}
