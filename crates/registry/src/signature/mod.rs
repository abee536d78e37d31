//! The required signers of a module, and whether they have signed it (docs/design/policy-abi.md, section 14).
//!
//! ```text
//!  cosign     artifact with the tag sha256-<digest>.sig ─┐
//!  referrers  bundles that name the manifest ────────────┴► Material ─► Signed ─► Requirement ─► Proof, or why not
//!                                                     TrustRoot ─► certificates, logs
//! ```
//!
//! Signers have a public key, or a certificate that an authority of the trust root gave them for the minute in which they
//! signed. Such a certificate counts only if logs of the trust root attest both it and the signature. These logs are not
//! asked over the network: the data that come with a signature must suffice, and a signature that cannot be checked is not
//! accepted.

mod annotations;
mod bundle;
mod cosign;
mod crypto;
mod explain;
mod identity;
mod key;
mod legacy;
mod material;
mod referrers;
mod refusal;
mod requirement;
mod signed;
mod trust;
mod verify;

#[cfg(test)]
#[allow(unreachable_pub, reason = "it is a part of the black-box tests' library too")]
#[path = "../../../../tests/src/sigstore.rs"]
mod sigstore;
#[cfg(test)]
mod tests;

pub use identity::Identity;
pub use key::{KeyError, PublicKey};
pub use material::Material;
pub use referrers::bundles;
pub use requirement::{AnyOf, Requirement, RequirementError, Signer, Subject};
pub use signed::{Evidence, Proof};
pub use trust::{TrustRoot, TrustRootError};
pub use verify::{fetch, verify};

use portcullis_contract::Reason;

use crate::FetchError;
use crate::oci::Image;

/// The error when signatures cannot be fetched. Only a failure that may pass becomes `SignatureUnavailable`.
fn unavailable(image: &Image, error: FetchError) -> FetchError {
    let reason = if error.reason.class().is_retryable() { Reason::SignatureUnavailable } else { error.reason };
    let text = format!("failed to fetch the signatures of {image}: {}", error.message);
    FetchError { retry_after: error.retry_after, ..FetchError::new(reason, text) }
}

/// The error when the list of signatures cannot be read, or is something else.
fn unlisted(image: &Image, error: FetchError) -> FetchError {
    match error.reason {
        Reason::ManifestUnsupported | Reason::ModuleTooLarge => {
            FetchError::new(Reason::SignatureInvalid, format!("the signatures of {image}: {}", error.message))
        }
        _ => unavailable(image, error),
    }
}
