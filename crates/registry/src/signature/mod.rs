//! Who must have signed a module, and whether he has (policy-abi section 14).
//!
//! Signatures are those of cosign: an artifact with the tag `sha256-<manifest digest>.sig`, whose layers are statements about
//! that digest. What is checked here are public keys. Signers without a key of their own (issuer and subject of a certificate)
//! can be asked for; as long as nothing here can check a certificate against a trust root, nothing that needs one is let
//! through.

mod cosign;
mod key;
mod material;
mod requirement;

pub use cosign::{fetch, verify};
pub use key::{KeyError, PublicKey};
pub use material::Material;
pub use requirement::{Requirement, RequirementError, Signer};
