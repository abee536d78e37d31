//! Decodes what users write; errors name the field that is wrong.

use portcullis_contract::Reason;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::problem::Problem;

/// Decodes a value. An error begins with the path of the field that does not fit.
pub(crate) fn decode<T: DeserializeOwned>(value: Value) -> Result<T, Problem> {
    portcullis_api::decode_value(value).map_err(|error| Problem::new(Reason::SpecInvalid, error.to_string()))
}
