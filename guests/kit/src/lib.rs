//! What the Rust guests have in common: registering with the host, checking settings, answering.
//!
//! A guest parses only the fields it judges, with borrowed text where it can. It holds no
//! state: the host starts every request on a fresh instance.

use kubewarden_policy_sdk::settings::{SettingsValidationResponse, Validatable};
use kubewarden_policy_sdk::wapc_guest::{CallResult, register_function};
use kubewarden_policy_sdk::{accept_request, mutate_request, protocol_version_guest, reject_request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What a policy says about one request.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    /// The request is accepted as it is.
    Accept,
    /// The request is refused, with this message for the user.
    Deny(String),
    /// The request is accepted, with this object to be stored instead.
    Mutate(Value),
}

impl Verdict {
    /// The reply that the host expects for this verdict.
    pub fn into_reply(self) -> CallResult {
        match self {
            Self::Accept => accept_request(),
            Self::Deny(message) => reject_request(Some(message), None, None, None),
            Self::Mutate(object) => mutate_request(object),
        }
    }
}

/// The kind of an object, as the request names it.
#[derive(Debug, Default, Deserialize)]
pub struct Kind {
    /// API group, empty for the core group.
    #[serde(default)]
    pub group: String,
    /// Kind, like `Pod`.
    pub kind: String,
}

/// Registers the three operations of the protocol; a guest calls it from `wapc_init`.
pub fn register<S: DeserializeOwned + Validatable>(validate: fn(&[u8]) -> CallResult) {
    register_function("protocol_version", protocol_version_guest);
    register_function("validate_settings", validate_settings::<S>);
    register_function("validate", validate);
}

/// Answers `validate_settings`. Settings that do not parse are invalid, with the parser's
/// message: the author of the policy should read what is wrong. With the SDK's own handler,
/// the call would fail.
fn validate_settings<S: DeserializeOwned + Validatable>(payload: &[u8]) -> CallResult {
    let message = check_settings::<S>(payload).err();
    Ok(serde_json::to_vec(&SettingsValidationResponse { valid: message.is_none(), message })?)
}

/// Parses and checks settings, or says what is wrong with them.
pub fn check_settings<S: DeserializeOwned + Validatable>(payload: &[u8]) -> Result<(), String> {
    let settings: S = serde_json::from_slice(payload).map_err(|error| {
        // The position refers to the JSON that the host made: it means nothing to the author.
        let text = error.to_string();
        text.split(" at line ").next().unwrap_or(&text).to_owned()
    })?;
    settings.validate()
}
