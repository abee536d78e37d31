//! Checks a policy of a folder as the API server would.

use portcullis_contract::{MatchCondition, PolicyId};

use super::validate::validate;
use super::{SPEC, rules};
use crate::{API_VERSION, Policy, SpecError};

impl Policy {
    /// Checks what a schema can check: the same limits and rules as the API server, and the rules with the same messages.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<PolicyId, SpecError> {
        let id = self.id()?;
        let field = |field: &str, problem: String| Err(SpecError::Field { field: field.to_owned(), problem });
        if self.api_version != API_VERSION {
            return field("apiVersion", format!("want {API_VERSION}"));
        }
        match serde_json::to_value(&self.spec) {
            Ok(spec) => validate(&SPEC, &spec, "spec")?,
            Err(error) => return field("spec", error.to_string()),
        }
        let conditions = &self.spec.match_conditions;
        let twice =
            |(index, one): (usize, &MatchCondition)| conditions[..index].iter().any(|other| other.name == one.name);
        if conditions.iter().enumerate().any(twice) {
            return field("spec.matchConditions", "has two conditions with one name: name them apart".to_owned());
        }
        rules::check(self)?;
        Ok(id)
    }
}
