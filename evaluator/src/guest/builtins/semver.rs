//! `semver.*`, after semver.org 2.0.0. As in OPA, a `v` may come before a version.

use std::cmp::Ordering;

use ::semver::Version;

use super::{Arguments, BuiltinError, Outcome};

pub(super) fn is_valid(arguments: &Arguments) -> Outcome {
    Ok(arguments.value(0)?.as_str().is_some_and(|text| parse(text, 0).is_ok()).into())
}

/// -1, 0 or 1. Build metadata does not count.
pub(super) fn compare(arguments: &Arguments) -> Outcome {
    let version = |place: usize| parse(arguments.text(place)?, place);
    Ok(match version(0)?.cmp_precedence(&version(1)?) {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }
    .into())
}

fn parse(text: &str, place: usize) -> Result<Version, BuiltinError> {
    let version = Version::parse(text.strip_prefix('v').unwrap_or(text));
    let version = version.map_err(|source| BuiltinError::Version { number: place + 1, source })?;
    // OPA's numbers have a sign.
    if [version.major, version.minor, version.patch].into_iter().any(|number| i64::try_from(number).is_err()) {
        return Err(BuiltinError::Range("a number of a version is too large"));
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::run;

    #[test]
    fn versions() {
        let compare = |one, other| run("semver.compare", json!([one, other]));
        assert_eq!(compare("1.0.0", "2.0.0"), Ok(json!(-1)));
        assert_eq!(compare("1.0.0", "1.0.0-rc.1"), Ok(json!(1)));
        assert_eq!(compare("1.0.0+a", "1.0.0+b"), Ok(json!(0)));
        assert!(compare("1", "1.0.0").is_err());
        assert_eq!(run("semver.is_valid", json!(["1.1.12-rc1+foo"])), Ok(json!(true)));
        assert_eq!(run("semver.is_valid", json!([1])), Ok(json!(false)));
    }

    /// What OPA 1.22.2 answers (internal/semver/semver.go).
    #[test]
    fn a_v_may_come_before_a_version() {
        let compare = |one, other| run("semver.compare", json!([one, other]));
        assert_eq!(compare("v1.30.0", "1.29.0"), Ok(json!(1)));
        assert_eq!(compare("v1.0.0-rc.2", "v1.0.0-rc.10"), Ok(json!(-1)));
        assert_eq!(compare("v1.0.0", "1.0.0"), Ok(json!(0)));
        for (text, expected) in [
            ("v1.2.3", true),
            ("vv1.2.3", false),
            ("V1.2.3", false),
            ("v", false),
            ("1.0.0-0a", true),
            // Releases of OPA before 1.21 took these two.
            ("1.0.0-01", false),
            ("01.0.0", false),
            ("1.0.0-", false),
            ("1.0.0+", false),
            ("1.0.0+01", true),
            ("9223372036854775807.0.0", true),
            ("9223372036854775808.0.0", false),
        ] {
            assert_eq!(run("semver.is_valid", json!([text])), Ok(json!(expected)), "{text}");
        }
    }
}
