//! Parses a registry's demand for a login: `WWW-Authenticate`.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;

/// How to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User and password with each request.
    Basic,
    /// A token from the service at `realm`.
    Bearer {
        /// The address of the token service.
        realm: String,
        /// The registry's name at that service.
        service: Option<String>,
        /// What the token is for.
        scope: Option<String>,
    },
}

impl Challenge {
    /// The first challenge of a known kind.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok()).find_map(Self::parse)
    }

    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        for (name, value) in parameters(rest) {
            match name.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
        }
        Some(Self::Bearer { realm: realm?, service, scope })
    }
}

/// Parses `a="b",c=d` into pairs. Commas in quotes do not separate.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => {
                let end = quoted.find('"').unwrap_or(quoted.len());
                (&quoted[..end], quoted.get(end + 1..).unwrap_or_default())
            }
            None => after.split_at(after.find(',').unwrap_or(after.len())),
        };
        found.push((name.trim().to_owned(), value.trim().to_owned()));
        rest = next.trim_start().trim_start_matches(',');
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges() {
        assert_eq!(Challenge::parse("Basic realm=\"x\""), Some(Challenge::Basic));
        let text =
            r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull,push""#;
        let expected = Challenge::Bearer {
            realm: "https://auth.example/token".into(),
            service: Some("registry.example".into()),
            scope: Some("repository:a/b:pull,push".into()),
        };
        assert_eq!(Challenge::parse(text), Some(expected));
        assert_eq!(Challenge::parse("Bearer service=x"), None);
        assert_eq!(Challenge::parse("Digest realm=x"), None);
        assert_eq!(
            Challenge::parse("Bearer realm=\""),
            Some(Challenge::Bearer { realm: String::new(), service: None, scope: None })
        );
    }
}
