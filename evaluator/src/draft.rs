//! The request's object on its way through the policies that may change it.

use std::borrow::Cow;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::admit::Mutation;
use crate::patch::{self, PatchError, Subject};

/// The object as it came, as the policies so far left it, and the patch between the two. Nothing is decoded before a
/// policy offers a change.
pub struct Draft<'a> {
    raw: Option<&'a RawValue>,
    subject: Subject,
    first: Option<Value>,
    current: Option<Value>,
    patch: Option<String>,
}

impl<'a> Draft<'a> {
    /// The object of a review; nothing on DELETE.
    pub fn object(raw: Option<&'a RawValue>) -> Self {
        Self { raw, subject: Subject::Object, first: None, current: None, patch: None }
    }

    /// A raw request, which is its own object.
    pub fn raw(raw: &'a RawValue) -> Self {
        Self { raw: Some(raw), subject: Subject::Raw, first: None, current: None, patch: None }
    }

    /// Takes what a policy made of the current object. It becomes the current one where `keep` says so; else it is only
    /// compared.
    ///
    /// # Errors
    /// When the mutation may not be applied; the draft stays as it was.
    pub fn offer(&mut self, mutated: &RawValue, keep: bool) -> Result<Mutation, PatchError> {
        let Some(raw) = self.raw else { return Ok(Mutation::OfNothing) };
        let first = match self.first.take() {
            Some(first) => first,
            None => patch::original(raw)?,
        };
        let first = self.first.insert(first);
        let Some(changed) = patch::change(self.current.as_ref().unwrap_or(first), mutated, self.subject)? else {
            return Ok(Mutation::None);
        };
        if keep {
            self.patch = if changed == *first { None } else { Some(patch::patch(first, &changed)?) };
            self.current = Some(changed);
        }
        Ok(Mutation::Changed)
    }

    /// The current object's JSON.
    pub fn text(&self) -> Option<Cow<'a, str>> {
        match &self.current {
            Some(current) => Some(Cow::Owned(current.to_string())),
            None => self.raw.map(|raw| Cow::Borrowed(raw.get())),
        }
    }

    /// The patch from the first object to the current one, in base64; nothing where they are the same.
    pub fn into_patch(self) -> Option<String> {
        self.patch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).expect("JSON")
    }

    fn patch(draft: Draft<'_>) -> Option<String> {
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::STANDARD.decode(draft.into_patch()?).expect("base64");
        Some(String::from_utf8(bytes).expect("UTF-8"))
    }

    #[test]
    fn each_policy_sees_what_the_ones_before_left_and_one_patch_leads_to_the_end() {
        let object = raw(r#"{"a": 1}"#);
        let mut draft = Draft::object(Some(&object));
        assert_eq!(draft.text().as_deref(), Some(r#"{"a": 1}"#));
        assert_eq!(draft.offer(&raw(r#"{"a":2}"#), true), Ok(Mutation::Changed));
        assert_eq!(draft.offer(&raw(r#"{"a":2}"#), true), Ok(Mutation::None));
        assert_eq!(draft.offer(&raw(r#"{"a":2,"b":3}"#), true), Ok(Mutation::Changed));
        assert_eq!(draft.text().as_deref(), Some(r#"{"a":2,"b":3}"#));
        assert_eq!(
            patch(draft).as_deref(),
            Some(r#"[{"op":"replace","path":"/a","value":2},{"op":"add","path":"/b","value":3}]"#)
        );
    }

    #[test]
    fn a_change_that_is_taken_back_is_none() {
        let object = raw(r#"{"a":1}"#);
        let mut draft = Draft::object(Some(&object));
        assert_eq!(draft.offer(&raw(r#"{"a":2}"#), true), Ok(Mutation::Changed));
        assert_eq!(draft.offer(&raw(r#"{"a":1}"#), true), Ok(Mutation::Changed));
        assert_eq!(patch(draft), None);
    }

    #[test]
    fn what_is_not_kept_leaves_the_draft_alone() {
        let object = raw(r#"{"a":1}"#);
        let mut draft = Draft::object(Some(&object));
        assert_eq!(draft.offer(&raw(r#"{"a":2}"#), false), Ok(Mutation::Changed));
        assert_eq!(draft.offer(&raw("[]"), true), Err(PatchError::NotAnObject));
        assert_eq!(draft.text().as_deref(), Some(r#"{"a":1}"#));
        assert_eq!(patch(draft), None);
    }

    #[test]
    fn there_is_nothing_to_mutate_on_delete() {
        assert_eq!(Draft::object(None).offer(&raw("{}"), true), Ok(Mutation::OfNothing));
    }

    #[test]
    fn a_raw_request_may_be_any_json() {
        let request = raw("[1]");
        let mut draft = Draft::raw(&request);
        assert_eq!(draft.offer(&raw("[1,2]"), true), Ok(Mutation::Changed));
        assert_eq!(patch(draft).as_deref(), Some(r#"[{"op":"add","path":"/1","value":2}]"#));
    }
}
