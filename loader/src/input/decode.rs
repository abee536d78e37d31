//! Decodes what users write; errors name the field that is wrong.

use portcullis_api::DecodeError;
use portcullis_contract::Reason;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::problem::Problem;

/// Decodes a value. An error begins with the path of the field that does not fit.
pub(crate) fn decode<T: DeserializeOwned>(value: Value) -> Result<T, Problem> {
    portcullis_api::decode_value(value).map_err(|error| Problem::new(Reason::SpecInvalid, error.to_string()))
}

/// The text of an error in a spec, which begins with the path of the field in the whole object.
pub(crate) fn in_spec(error: &DecodeError) -> String {
    let DecodeError { path, problem } = error;
    if path == "." { format!("spec: {problem}") } else { format!("spec.{path}: {problem}") }
}
