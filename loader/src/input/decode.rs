//! Decodes what users write; errors name the field that is wrong.

use portcullis_contract::Reason;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::problem::Problem;

/// Decodes a value. An error begins with the path of the field that does not fit.
pub(crate) fn decode<T: DeserializeOwned>(value: Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner().to_string();
        Problem::new(Reason::SpecInvalid, if path == "." { inner } else { format!("{path}: {inner}") })
    })
}
