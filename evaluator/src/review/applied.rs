//! The policy that somebody applies, and whether it must be checked. Pure.

use portcullis_contract::Tenant;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::review::Review;
use crate::review::json::Object;

/// Longest `spec` that is compared as JSON, in bytes. API servers write equal ones alike, so comparing texts is nearly always enough.
const MAX_COMPARED: usize = 256 << 10;

/// A policy that somebody applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AppliedPolicy<'a> {
    /// The name of the user, as the API server sent it, neither cleaned nor cut; empty where there is none.
    pub(crate) user: String,
    /// The namespace of a Policy; for a ClusterPolicy, the tenant of all of them.
    pub(crate) tenant: Tenant,
    /// The policy as JSON text.
    pub(crate) object: &'a str,
}

/// The parts of a policy that are read here.
#[derive(Deserialize)]
struct PolicyParts<'a> {
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    deletion_timestamp: Option<&'a RawValue>,
}

impl<'a> Review<'a> {
    /// The policy to check. None where there is nothing to check or nothing changes: the operation is neither CREATE nor UPDATE, there is no
    /// object, its `spec` stays the same, or it is being deleted and an update only removes its finalizers.
    pub(crate) fn applied_policy(&self) -> Option<AppliedPolicy<'a>> {
        let object = self.wire.object?;
        let has_new_spec = match decoded(self.wire.operation).as_str() {
            "CREATE" => true,
            "UPDATE" => !self.wire.old_object.is_some_and(|old| has_same_spec(old, object)),
            _ => false,
        };
        let is_due = has_new_spec && !is_being_deleted(object);
        is_due.then(|| AppliedPolicy {
            user: decoded(self.user.username),
            tenant: tenant(decoded(self.wire.namespace)),
            object: object.get(),
        })
    }
}

fn tenant(namespace: String) -> Tenant {
    if namespace.is_empty() { Tenant::Cluster } else { Tenant::Namespace(namespace.into()) }
}

fn is_being_deleted(object: &RawValue) -> bool {
    let metadata = parts::<PolicyParts<'_>>(object).and_then(|object| parts::<Metadata<'_>>(object.metadata?));
    metadata.is_some_and(|metadata| metadata.deletion_timestamp.is_some())
}

fn has_same_spec(one: &RawValue, other: &RawValue) -> bool {
    let (Some(one), Some(other)) = (parts::<PolicyParts<'_>>(one), parts::<PolicyParts<'_>>(other)) else {
        return false;
    };
    match (one.spec.map(RawValue::get), other.spec.map(RawValue::get)) {
        (None, None) => true,
        (Some(one), Some(other)) => one == other || is_same_json(one, other),
        _ => false,
    }
}

/// Whether two texts are the same JSON, as far as they are small and flat enough to be decoded.
fn is_same_json(one: &str, other: &str) -> bool {
    if one.len().max(other.len()) > MAX_COMPARED {
        return false;
    }
    // Its limit on nesting is serde_json's own, of 128 levels.
    let decoded = |text: &str| serde_json::from_str::<Value>(text).ok();
    decoded(one).is_some_and(|one| decoded(other) == Some(one))
}

/// Some fields of an object; none where it is not an object, or where one of these fields occurs twice.
fn parts<'a, T: Deserialize<'a>>(json: &'a RawValue) -> Option<T> {
    serde_json::from_str::<Object<T>>(json.get()).ok().map(|object| object.0)
}

/// A decoded string; empty where it is absent or cannot be decoded, for instance because of half a surrogate pair.
fn decoded(json: Option<&RawValue>) -> String {
    json.and_then(|json| serde_json::from_str(json.get()).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::review::tests::{LEAST, with};

    fn is_checked(body: &str) -> bool {
        Review::parse(body.as_bytes()).expect("a review").applied_policy().is_some()
    }

    fn update(old: &str, new: &str) -> String {
        with(&format!("\"oldObject\":{old},\"object\":{new}")).replace("CREATE", "UPDATE")
    }

    #[test]
    fn a_new_policy_is_checked_as_it_is_written() {
        let object = r#"{"spec": {"module": "a"}, "metadata":{"name":"x","deletionTimestamp":null}}"#;
        let body = with(&format!("\"object\":{object}"));
        let body = body.replace("\"userInfo\":{}", r#""namespace":"team-a","userInfo":{"username":"\u0061lice"}"#);
        let review = Review::parse(body.as_bytes()).expect("a review");
        let tenant = Tenant::Namespace("team-a".into());
        assert_eq!(review.applied_policy(), Some(AppliedPolicy { user: "alice".into(), tenant, object }));
        let review = with("\"object\":{}");
        let review = Review::parse(review.as_bytes()).expect("a review");
        assert_eq!(
            review.applied_policy(),
            Some(AppliedPolicy { user: String::new(), tenant: Tenant::Cluster, object: "{}" })
        );
    }

    #[test]
    fn an_update_is_checked_where_the_spec_is_another() {
        for (old, new) in [
            (r#"{"spec":{"a":1}}"#, r#"{"spec":{"a":2}}"#),
            (r#"{"spec":{"a":1}}"#, r#"{"spec":{"a":"1"}}"#),
            (r#"{"spec":{"a":1}}"#, "{}"),
            (r#"{}"#, r#"{"spec":{}}"#),
            ("null", r#"{"spec":{}}"#),
        ] {
            assert!(is_checked(&update(old, new)), "{old} {new}");
        }
        for (old, new) in [
            (r#"{"spec":{"a":1},"status":{}}"#, r#"{"metadata":{"labels":{"a":"b"}},"spec":{"a":1}}"#),
            (r#"{"spec":{"a":1,"b":[2]}}"#, r#"{"spec": {"b": [2], "\u0061": 1}}"#),
            (r#"{}"#, r#"{"spec":null}"#),
        ] {
            assert!(!is_checked(&update(old, new)), "{old} {new}");
        }
    }

    #[test]
    fn what_cannot_be_compared_is_checked() {
        let large = |first: &str| format!("{{\"spec\":{{{first}\"c\":\"{}\"}}}}", "x".repeat(MAX_COMPARED));
        assert!(is_checked(&update(&large("\"a\":1,\"b\":2,"), &large("\"b\":2,\"a\":1,"))));
        assert!(!is_checked(&update(&large("\"a\":1,"), &large("\"a\":1,"))), "the texts are the same");
        let deep = |space: &str| format!("{{\"spec\":{space}{}{}}}", "[".repeat(200), format!("{space}]").repeat(200));
        assert!(is_checked(&update(&deep(""), &deep(" "))));
        let twice = r#"{"spec":{},"spec":{}}"#;
        assert!(is_checked(&update(twice, twice)));
    }

    #[test]
    fn nothing_is_checked_where_nothing_is_applied() {
        let object = "\"object\":{\"spec\":{}}";
        for operation in ["DELETE", "CONNECT", "", "create"] {
            assert!(!is_checked(&with(object).replace("CREATE", operation)), "{operation}");
        }
        assert!(is_checked(&with(object).replace("CREATE", "CRE\\u0041TE")));
        assert!(!is_checked(LEAST) && !is_checked(&with("\"object\":null")));
        let leaving = r#"{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"a":1}}"#;
        assert!(!is_checked(&update(r#"{"spec":{"a":2}}"#, leaving)));
        assert!(!is_checked(&with(&format!("\"object\":{leaving}"))));
    }
}
