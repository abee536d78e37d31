//! Which bodies are taken: JSON and nothing else, not compressed. Pure.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

/// Why a body with these headers is not taken; none if it is.
pub(crate) fn problem(headers: &HeaderMap) -> Option<&'static str> {
    if headers.get_all(CONTENT_ENCODING).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Some("compressed bodies are not taken");
    }
    let essence = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()?.split(';').next());
    match essence {
        Some(essence) if essence.trim().eq_ignore_ascii_case("application/json") => None,
        _ => Some("the content type must be application/json"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_taken(headers: &[(http::HeaderName, &str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().expect("a value"))).collect();
        problem(&headers).is_none()
    }

    #[test]
    fn json_and_nothing_else() {
        for good in ["application/json", "Application/JSON", "application/json; charset=utf-8"] {
            assert!(is_taken(&[(CONTENT_TYPE, good)]), "{good}");
        }
        for bad in ["", "text/plain", "application/jsonx", "application/json-patch+json", "*/*"] {
            assert!(!is_taken(&[(CONTENT_TYPE, bad)]), "{bad}");
        }
        assert!(!is_taken(&[]));
    }

    #[test]
    fn compressed_bodies_are_not_taken() {
        let json = (CONTENT_TYPE, "application/json");
        assert!(!is_taken(&[json.clone(), (CONTENT_ENCODING, "gzip")]));
        assert!(is_taken(&[json, (CONTENT_ENCODING, "identity")]));
    }
}
