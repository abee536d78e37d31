//! `semver.*`, after semver.org 2.0.0.

use std::cmp::Ordering;

use ::semver::Version;

use super::{Arguments, BuiltinError, Outcome};

pub(super) fn is_valid(arguments: &Arguments) -> Outcome {
    Ok(arguments.value(0)?.as_str().is_some_and(|text| Version::parse(text).is_ok()).into())
}

/// -1, 0 or 1. Build metadata does not count.
pub(super) fn compare(arguments: &Arguments) -> Outcome {
    let version = |place: usize| {
        Version::parse(arguments.text(place)?).map_err(|source| BuiltinError::Version { number: place + 1, source })
    };
    Ok(match version(0)?.cmp_precedence(&version(1)?) {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }
    .into())
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
}
