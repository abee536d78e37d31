//! The id under which a policy is called, counted and shown.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A policy's id: `cluster/<name>`, `namespaced/<namespace>/<name>`, or a name of a Kubewarden `policies.yml`, which has no slash. A
/// policy that is only checked, because a user applies it, is `check/<number>` or `check/<namespace>/<number>`; the loader makes these
/// ids. Ids of different policies never collide. An id is checked on construction and safe as a URL path and a file name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyId(Arc<str>);

/// The text is not a policy id.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is not a policy id: want cluster/<name>, namespaced/<namespace>/<name>, or a name without a slash; <name> has at most 63 \
     characters: lower case letters, digits, `-` and `.`, with a letter or a digit at both ends and on both sides of each `.`"
)]
pub struct PolicyIdError(String);

impl PolicyId {
    /// The id of a ClusterPolicy.
    ///
    /// # Errors
    /// When `name` is not a DNS subdomain of at most 63 characters.
    pub fn cluster(name: &str) -> Result<Self, PolicyIdError> {
        format!("cluster/{name}").parse()
    }

    /// The id of a Policy.
    ///
    /// # Errors
    /// When one of the names is not a DNS name of at most 63 characters.
    pub fn namespaced(namespace: &str, name: &str) -> Result<Self, PolicyIdError> {
        format!("namespaced/{namespace}/{name}").parse()
    }

    /// The id for checking a policy that a user applies, in a namespace or cluster-scoped. The number is unique in this
    /// pod.
    ///
    /// # Errors
    /// When `namespace` is not a DNS label of at most 63 characters.
    pub fn check(namespace: Option<&str>, number: u64) -> Result<Self, PolicyIdError> {
        match namespace {
            Some(namespace) => format!("check/{namespace}/{number}"),
            None => format!("check/{number}"),
        }
        .parse()
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The policy's own name: the last segment.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The namespace of a Policy; `None` for the others.
    pub fn namespace(&self) -> Option<&str> {
        let rest = self.0.strip_prefix("namespaced/").or_else(|| self.0.strip_prefix("check/"))?;
        Some(rest.split_once('/')?.0)
    }

    /// Whether the policy is only checked, because a user applies it. No object has this id, and no webhook may call
    /// it.
    pub fn is_check(&self) -> bool {
        self.0.starts_with("check/")
    }

    /// Whether the id is one of a Kubewarden `policies.yml`.
    pub fn is_bare(&self) -> bool {
        !self.0.contains('/')
    }
}

/// A DNS subdomain (RFC 1123) of at most 63 characters.
fn is_dns_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 63
        && name.split('.').all(|label| {
            let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
            let bytes = label.as_bytes();
            bytes.first().is_some_and(inner)
                && bytes.last().is_some_and(inner)
                && bytes.iter().all(|b| inner(b) || *b == b'-')
        })
}

/// A DNS label (RFC 1123).
fn is_dns_label(name: &str) -> bool {
    is_dns_name(name) && !name.contains('.')
}

/// A decimal number that fits in 64 bits.
fn is_number(text: &str) -> bool {
    text.parse::<u64>().is_ok_and(|number| number.to_string() == text)
}

/// Whether this can be the name of a policy in a `policies.yml`. Upstream forbids only the slash; here, characters that
/// are unsafe in paths and terminals are forbidden too.
fn is_bare_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && name
            .chars()
            .all(|c| !c.is_control() && !c.is_whitespace() && !matches!(c, '/' | '\\' | '?' | '#' | '%' | '"'))
}

impl FromStr for PolicyId {
    type Err = PolicyIdError;

    fn from_str(text: &str) -> Result<Self, PolicyIdError> {
        let mut segments = text.split('/');
        let valid = match (segments.next(), segments.next(), segments.next(), segments.next()) {
            (Some("cluster"), Some(name), None, None) => is_dns_name(name),
            (Some("namespaced"), Some(namespace), Some(name), None) => is_dns_label(namespace) && is_dns_name(name),
            (Some("check"), Some(number), None, None) => is_number(number),
            (Some("check"), Some(namespace), Some(number), None) => is_dns_label(namespace) && is_number(number),
            (Some(name), None, None, None) => is_bare_name(name),
            _ => false,
        };
        if valid { Ok(Self(text.into())) } else { Err(PolicyIdError(crate::clean(text, 200))) }
    }
}

impl Borrow<str> for PolicyId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for PolicyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PolicyId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms() {
        for good in ["cluster/no-privileged", "namespaced/team-a/labels", "clusterwide-group-x", "cluster"] {
            assert_eq!(good.parse::<PolicyId>().map(|id| id.to_string()).as_deref(), Ok(good));
        }
    }

    #[test]
    fn a_policy_that_is_tried_belongs_to_its_namespace_and_is_no_object() {
        let (cluster, team) =
            (PolicyId::check(None, 7).expect("an id"), PolicyId::check(Some("team-a"), 8).expect("an id"));
        assert_eq!((cluster.as_str(), cluster.namespace()), ("check/7", None));
        assert_eq!((team.as_str(), team.namespace()), ("check/team-a/8", Some("team-a")));
        assert!(cluster.is_check() && team.is_check());
        for other in ["cluster/check", "namespaced/check/7", "check", "cluster/a"] {
            let id: PolicyId = other.parse().expect("an id");
            assert!(!id.is_check(), "{other}");
        }
        for bad in ["check/", "check/a", "check/07", "check/+7", "check/a.b/7", "check/a/b", "check/a/7/8", "check/-1"]
        {
            assert!(bad.parse::<PolicyId>().is_err(), "{bad}");
        }
        assert!(PolicyId::check(Some("A"), 1).is_err());
    }

    #[test]
    fn names_that_collide_upstream_stay_apart() {
        let a = PolicyId::namespaced("a", "b-c").expect("valid");
        let b = PolicyId::namespaced("a-b", "c").expect("valid");
        assert_ne!(a, b);
        assert_eq!((a.namespace(), a.name()), (Some("a"), "b-c"));
    }

    #[test]
    fn the_error_says_what_a_name_may_be() {
        for bad in ["a".repeat(64), "No_Name".to_owned(), "-a".to_owned(), "a..b".to_owned()] {
            let told = PolicyId::cluster(&bad).expect_err("refused").to_string();
            assert!(
                told.contains("<name> has at most 63 characters: lower case letters, digits, `-` and `.`"),
                "{told}"
            );
        }
        for good in ["a".repeat(63), "a.b-c.7".to_owned()] {
            PolicyId::cluster(&good).expect(&good);
        }
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for bad in [
            "",
            "..",
            "cluster/..",
            "cluster/",
            "cluster/a/b",
            "namespaced/a",
            "namespaced/a/../b",
            "a b",
            "a%2fb",
            "x/y",
            "Cluster/x",
        ] {
            assert!(bad.parse::<PolicyId>().is_err(), "{bad}");
        }
    }
}
