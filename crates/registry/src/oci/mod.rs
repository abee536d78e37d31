//! Modules as OCI artifacts (docs/design/policy-abi.md, section 1, OCI distribution specification 1.1).

mod challenge;
mod image;
mod login;
mod manifest;
mod pull;
mod push;
mod referrers;

pub(crate) use manifest::{CERTIFICATE, CHAIN, LOG_ENTRY, SIGNATURE};

pub use image::{Image, ImageError};
pub use manifest::{CONFIG_TYPE, Descriptor, INDEX_TYPE, LAYER_TYPE, MANIFEST_TYPE, MAX_MANIFEST, Manifest};
pub use pull::Registry;
