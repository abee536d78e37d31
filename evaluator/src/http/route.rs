//! What the path and the query of a request ask for. Pure.

use std::borrow::Cow;
use std::time::Duration;

use portcullis_contract::{ADMIT_PATH, MARKER_PATH, PathKey};

use crate::http::path_keys::AcceptedKeys;

/// The longest part of a path that an answer quotes, in bytes.
const QUOTED: usize = 200;

/// What a path asks for; its id is decoded and not looked up yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// `/validate/<id>`
    Validate(Cow<'a, str>),
    /// `/audit/<id>`
    Audit(Cow<'a, str>),
    /// `/validate_raw/<id>`
    ValidateRaw(Cow<'a, str>),
    /// `/admit/<group>`, with keys `/admit/<group>/<code>`
    Admit(Cow<'a, str>),
    /// `/marker/<group>`, with keys `/marker/<group>/<code>`
    Marker(Cow<'a, str>),
    /// `/check/policies`, with keys `/check/policies/<code>`
    Check,
}

/// Which paths are open. Those of match groups always are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OpenPaths {
    /// `/validate/<id>`
    pub validate: bool,
    /// `/audit/<id>`
    pub audit: bool,
    /// `/validate_raw/<id>`
    pub validate_raw: bool,
    /// `/check/policies`
    pub check: bool,
}

impl OpenPaths {
    /// The route of an open path. A closed path has none: no policy and no group is looked up for it. With `keys`, the path of a match
    /// group needs a code made by one of them, and so does that of checks.
    pub(crate) fn route<'a>(&self, path: &'a str, keys: Option<&AcceptedKeys>) -> Option<Route<'a>> {
        if self.check && keys.map_or_else(|| PathKey::Plain.opens_check(path), |keys| keys.opens_check(path)) {
            return Some(Route::Check);
        }
        let opened = keys.map(|keys| keys.opened(path));
        if let Some(Some((root, group))) = opened {
            return Some(if root == MARKER_PATH { Route::Marker(group.into()) } else { Route::Admit(group.into()) });
        }
        Route::parse(path).filter(|route| match route {
            Route::Validate(_) => self.validate,
            Route::Audit(_) => self.audit,
            Route::ValidateRaw(_) => self.validate_raw,
            Route::Admit(_) | Route::Marker(_) => opened.is_none(),
            Route::Check => false,
        })
    }
}

impl<'a> Route<'a> {
    /// The route of a path that names a policy or a match group; none for other paths, and for any attempt to lead elsewhere: an encoded
    /// slash, dots, or bytes that are not UTF-8.
    pub(crate) fn parse(path: &'a str) -> Option<Self> {
        let (root, id) = path.strip_prefix('/')?.split_once('/')?;
        let route = match root {
            "validate" => Self::Validate,
            "audit" => Self::Audit,
            "validate_raw" => Self::ValidateRaw,
            ADMIT_PATH => Self::Admit,
            MARKER_PATH => Self::Marker,
            _ => return None,
        };
        let id = decoded(id)?;
        let leads_elsewhere = id.split('/').any(|segment| matches!(segment, "" | "." | ".."));
        (!leads_elsewhere).then(|| route(id))
    }
}

/// A path with its percent signs decoded; none where one of them hides a slash.
pub(crate) fn decoded(path: &str) -> Option<Cow<'_, str>> {
    if !path.contains('%') {
        return Some(Cow::Borrowed(path));
    }
    let mut out = Vec::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let decoded = digit(bytes.next()?)? << 4 | digit(bytes.next()?)?;
        if matches!(decoded, b'/' | b'\\' | 0) {
            return None;
        }
        out.push(decoded);
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

/// An id from outside, cleaned and cut for an answer or a log line.
pub(crate) fn quoted(id: &str) -> String {
    portcullis_contract::clean(id, QUOTED)
}

/// The `timeout` of a query, as Go writes durations; none where it is absent or zero.
///
/// # Errors
/// When the value is not a duration.
pub(crate) fn timeout(query: &str) -> Result<Option<Duration>, &'static str> {
    const ERROR: &str = "`timeout` is not a duration like 10s or 500ms";
    let Some(text) = query.split('&').find_map(|pair| pair.strip_prefix("timeout=")) else { return Ok(None) };
    let duration = decoded(text).and_then(|text| go_duration(&text)).ok_or(ERROR)?;
    Ok(Some(duration).filter(|duration| !duration.is_zero()))
}

/// Parses a duration as Go writes it: `1m30s`, `1.5s`, `500ms`, `0`.
fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut sum = Duration::ZERO;
    let mut any = false;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(unit_at);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        sum = sum.checked_add(part)?;
        (any, rest) = (true, tail);
    }
    any.then_some(sum)
}

#[cfg(test)]
mod tests {
    use portcullis_contract::PathKey;

    use super::*;
    use crate::http::path_keys;

    #[test]
    fn the_five_routes_with_a_name() {
        for (path, route) in [
            ("/validate/cluster/a", Route::Validate("cluster/a".into())),
            ("/audit/namespaced/team-a/b", Route::Audit("namespaced/team-a/b".into())),
            ("/validate_raw/clusterwide-a", Route::ValidateRaw("clusterwide-a".into())),
            ("/admit/0123456789abcdef", Route::Admit("0123456789abcdef".into())),
            ("/marker/0123456789abcdef", Route::Marker("0123456789abcdef".into())),
            ("/validate/a%C3%A4", Route::Validate("aä".into())),
        ] {
            assert_eq!(Route::parse(path), Some(route));
        }
    }

    #[test]
    fn other_paths_lead_nowhere() {
        for path in [
            "",
            "/",
            "*",
            "/validate",
            "/validate/",
            "/validate//a",
            "/validate/cluster/a/",
            "/validate/../etc/passwd",
            "/validate/cluster/..",
            "/validate/cluster/%2e%2e",
            "/validate/cluster%2fa",
            "/validate/cluster%2Fa",
            "/validate/cluster%5ca",
            "/validate/a%00",
            "/validate/a%",
            "/validate/a%2",
            "/validate/a%zz",
            "/validate/a%ff",
            "/healthz/a",
            "/check/policies",
            "/Validate/a",
        ] {
            assert_eq!(Route::parse(path), None, "{path}");
        }
    }

    #[test]
    fn paths_of_policies_answer_where_they_are_open() {
        const POLICY: [&str; 3] = ["/validate/cluster/a", "/audit/cluster/a", "/validate_raw/cluster/a"];
        let open = |paths: OpenPaths| POLICY.map(|path| paths.route(path, None).is_some());
        let closed = OpenPaths::default();
        assert_eq!(open(closed), [false; 3]);
        assert_eq!(open(OpenPaths { validate: true, ..closed }), [true, false, false]);
        assert_eq!(open(OpenPaths { audit: true, ..closed }), [false, true, false]);
        assert_eq!(open(OpenPaths { validate_raw: true, ..closed }), [false, false, true]);
        for path in ["/admit/0123456789abcdef", "/marker/0123456789abcdef"] {
            assert_eq!(closed.route(path, None), Route::parse(path), "{path}");
        }
    }

    #[test]
    fn z12_with_keys_a_path_of_a_group_answers_by_its_code_alone() {
        let group = "0123456789abcdef".parse().expect("a group");
        let [key, other] = [1, 2].map(|byte| PathKey::Secret([byte; 32]));
        let keys = path_keys::with(key);
        let (closed, all) =
            (OpenPaths::default(), OpenPaths { validate: true, audit: true, validate_raw: true, check: true });
        for paths in [closed, all] {
            let route = |path: &str| paths.route(path, Some(&keys)).is_some();
            assert!(route(&key.path(ADMIT_PATH, &group)) && route(&key.path(MARKER_PATH, &group)));
            for root in [ADMIT_PATH, MARKER_PATH] {
                assert!(!route(&other.path(root, &group)) && !route(&PathKey::Plain.path(root, &group)), "{root}");
                assert!(!route(&format!("/{root}/cluster/a")), "{root}");
            }
            assert_eq!(route("/validate/cluster/a"), paths.validate);
        }
        let marker = key.path(MARKER_PATH, &group);
        assert_eq!(closed.route(&marker, Some(&keys)), Some(Route::Marker("0123456789abcdef".into())));
    }

    #[test]
    fn the_path_of_checks_answers_by_its_code_alone_where_checks_are_open() {
        let [key, other] = [1, 2].map(|byte| PathKey::Secret([byte; 32]));
        let keys = path_keys::with(key);
        let (closed, open) = (OpenPaths::default(), OpenPaths { check: true, ..OpenPaths::default() });
        let (path, plain) = (key.check_path(), PathKey::Plain.check_path());
        assert_eq!(open.route(&path, Some(&keys)), Some(Route::Check));
        assert_eq!(open.route(&plain, None), Some(Route::Check));
        for wrong in [plain.clone(), other.check_path(), format!("{path}/"), path.replace('/', "%2f"), "/check".into()]
        {
            assert_eq!(open.route(&wrong, Some(&keys)), None, "{wrong}");
        }
        for wrong in [path.as_str(), "/check/policies/", "/check/policies/x", "/check/cluster/a", "/Check/policies"] {
            assert_eq!(open.route(wrong, None), None, "{wrong}");
        }
        assert_eq!((closed.route(&path, Some(&keys)), closed.route(&plain, None)), (None, None));
        let waiting = AcceptedKeys::new(std::path::PathBuf::new());
        assert_eq!((open.route(&path, Some(&waiting)), open.route(&plain, Some(&waiting))), (None, None));
    }

    #[test]
    fn what_is_encoded_twice_is_decoded_once() {
        assert_eq!(Route::parse("/validate/a%252fb"), Some(Route::Validate("a%2fb".into())));
    }

    #[test]
    fn durations_of_go() {
        for (query, millis) in [
            ("timeout=10s", 10_000),
            ("timeout=1m30s", 90_000),
            ("a=b&timeout=500ms", 500),
            ("timeout=1.5s", 1500),
            ("timeout=2h", 7_200_000),
            ("timeout=2000us", 2),
            ("timeout=2000%C2%B5s", 2),
        ] {
            assert_eq!(timeout(query), Ok(Some(Duration::from_millis(millis))), "{query}");
        }
        for query in ["", "dryRun=All", "timeout=0", "timeout=0s", "xtimeout=1s"] {
            assert_eq!(timeout(query), Ok(None), "{query}");
        }
        for query in ["timeout=", "timeout=10", "timeout=-1s", "timeout=1x", "timeout=.s", "timeout=1e9h", "timeout=s"]
        {
            assert!(timeout(query).is_err(), "{query}");
        }
    }
}
