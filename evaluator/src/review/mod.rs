//! What the API server asks: from the bytes of an AdmissionReview to what the guest sees (docs/design/policy-abi.md, section 4).
//!
//! The body is parsed once. Every field stays the JSON text that it was: only what is needed is decoded, and a guest gets exactly what
//! was sent, every digit of it.

pub(crate) mod applied;
pub(crate) mod json;
mod payload;

use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;
use serde_json::value::RawValue;

use crate::review::json::{Object, Type, is_deeper};

/// The deepest nesting of objects and lists. Rust guests accept 128 levels, the API server 10 000.
const MAX_DEPTH: usize = 1000;

/// A parsed review; its parts are JSON texts within the body.
#[derive(Debug)]
pub(crate) struct Review<'a> {
    uid: &'a str,
    pub(crate) wire: Request<'a>,
    /// Group, version, and kind or resource, of `kind`, `resource`, `requestKind` and `requestResource`.
    pub(crate) kinds: [Option<[Option<&'a RawValue>; 3]>; 4],
    pub(crate) user: User<'a>,
}

/// A raw request: any JSON, for policies that judge something else than Kubernetes objects.
#[derive(Debug)]
pub(crate) struct RawReview<'a> {
    uid: &'a str,
    request: &'a RawValue,
}

/// Why a body is not a review. The text names the field and quotes nothing of the objects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReviewError {
    /// The body is empty.
    #[error("the body is empty; want an AdmissionReview")]
    Empty,
    /// The body is not UTF-8.
    #[error("the body is not UTF-8 at byte {0}")]
    NotUtf8(usize),
    /// The body is not JSON.
    #[error("the body is not valid JSON at line {line}, column {column}")]
    NotJson {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
    },
    /// The body is JSON of another form.
    #[error(
        "the body does not have the form of an AdmissionReview at line {line}, column {column}; want an object whose `request` is an object, each field once"
    )]
    OtherForm {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
    },
    /// The body is nested too deeply.
    #[error("the body is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// A required field is missing.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A field has another type.
    #[error("`{field}` is not {want}")]
    WrongType {
        /// The field's path.
        field: &'static str,
        /// The expected type, with its article.
        want: &'static str,
    },
    /// The review has a version or kind that this program does not know.
    #[error("`{field}` is {found:?}, want {want:?}")]
    OtherVersion {
        /// `apiVersion` or `kind`.
        field: &'static str,
        /// The value that was sent.
        found: String,
        /// The value that is known.
        want: &'static str,
    },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(borrow)]
    api_version: Option<&'a RawValue>,
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    request: Option<Object<Request<'a>>>,
}

#[derive(Debug, Deserialize)]
struct RawEnvelope<'a> {
    /// Absent is not null, which is a request like any other.
    #[serde(borrow, default, deserialize_with = "present")]
    request: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct UidOnly<'a> {
    #[serde(borrow)]
    uid: Option<&'a RawValue>,
}

/// The fields of the request that a guest may see; others are ignored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request<'a> {
    #[serde(borrow)]
    pub(crate) uid: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) kind: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) resource: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) sub_resource: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) request_kind: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) request_resource: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) request_sub_resource: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) name: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) namespace: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) operation: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) user_info: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) object: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) old_object: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) dry_run: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) options: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Kind<'a> {
    #[serde(borrow)]
    group: Option<&'a RawValue>,
    #[serde(borrow)]
    version: Option<&'a RawValue>,
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    resource: Option<&'a RawValue>,
}

/// The author of the request.
#[derive(Debug, Deserialize)]
pub(crate) struct User<'a> {
    #[serde(borrow)]
    pub(crate) username: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) uid: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) groups: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) extra: Option<&'a RawValue>,
}

impl<'a> Review<'a> {
    /// Reads a body.
    ///
    /// # Errors
    /// When it is not an AdmissionReview of version v1 with a request.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, ReviewError> {
        let Envelope { api_version, kind, request } = decode(checked(body)?)?;
        version("apiVersion", api_version, "admission.k8s.io/v1")?;
        version("kind", kind, "AdmissionReview")?;
        let wire = request.ok_or(ReviewError::Missing("request"))?.0;
        Self::of(wire)
    }

    fn of(wire: Request<'a>) -> Result<Self, ReviewError> {
        let uid = typed("request.uid", wire.uid, Type::String)?.ok_or(ReviewError::Missing("request.uid"))?;
        typed("request.operation", wire.operation, Type::String)?.ok_or(ReviewError::Missing("request.operation"))?;
        for (field, value, want) in [
            ("request.subResource", wire.sub_resource, Type::String),
            ("request.requestSubResource", wire.request_sub_resource, Type::String),
            ("request.name", wire.name, Type::String),
            ("request.namespace", wire.namespace, Type::String),
            ("request.object", wire.object, Type::Object),
            ("request.oldObject", wire.old_object, Type::Object),
            ("request.dryRun", wire.dry_run, Type::Bool),
            ("request.options", wire.options, Type::Object),
        ] {
            typed(field, value, want)?;
        }
        let kinds = [
            named("request.kind", wire.kind, "kind")?,
            named("request.resource", wire.resource, "resource")?,
            named("request.requestKind", wire.request_kind, "kind")?,
            named("request.requestResource", wire.request_resource, "resource")?,
        ];
        kinds[0].ok_or(ReviewError::Missing("request.kind"))?;
        kinds[1].ok_or(ReviewError::Missing("request.resource"))?;
        let user: User<'a> =
            object("request.userInfo", wire.user_info)?.ok_or(ReviewError::Missing("request.userInfo"))?;
        typed("request.userInfo.username", user.username, Type::String)?;
        typed("request.userInfo.uid", user.uid, Type::String)?;
        typed("request.userInfo.groups", user.groups, Type::List)?;
        typed("request.userInfo.extra", user.extra, Type::Object)?;
        Ok(Self { uid, wire, kinds, user })
    }

    /// The request's uid as JSON text, quotes included, to be echoed as it came.
    pub(crate) fn uid(&self) -> &'a str {
        self.uid
    }

    /// Whether the request is about an object in this namespace.
    pub(crate) fn is_in(&self, namespace: &str) -> bool {
        let Some(text) = self.wire.namespace.map(RawValue::get) else { return false };
        let plain = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        // API servers write no escapes into a namespace, but JSON allows them.
        plain == Some(namespace) || serde_json::from_str::<String>(text).is_ok_and(|text| text == namespace)
    }

    /// The namespace as JSON text; none for objects without one.
    pub(crate) fn namespace(&self) -> Option<&'a str> {
        self.wire.namespace.map(RawValue::get)
    }

    /// The object as JSON text; none on DELETE.
    pub(crate) fn object(&self) -> Option<&'a RawValue> {
        self.wire.object
    }
}

impl<'a> RawReview<'a> {
    /// Reads a body of the form `{"request": <any JSON>}`.
    ///
    /// # Errors
    /// When it has another form.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, ReviewError> {
        let envelope: RawEnvelope<'a> = decode(checked(body)?)?;
        let request = envelope.request.ok_or(ReviewError::Missing("request"))?;
        let uid = if Type::of(request) == Some(Type::Object) {
            let UidOnly { uid } = decode(request.get())?;
            uid.filter(|uid| Type::of(uid) == Some(Type::String))
        } else {
            None
        };
        Ok(Self { uid: uid.map_or("\"\"", RawValue::get), request })
    }

    /// The request's uid as JSON text; that of an empty string if it is absent or not a string.
    pub(crate) fn uid(&self) -> &'a str {
        self.uid
    }

    /// The whole request.
    pub(crate) fn request(&self) -> &'a RawValue {
        self.request
    }

    /// What the guest sees: the request as it is.
    pub(crate) fn payload(&self) -> Bytes {
        Bytes::copy_from_slice(self.request.get().as_bytes())
    }
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

fn typed<'a>(field: &'static str, value: Option<&'a RawValue>, want: Type) -> Result<Option<&'a str>, ReviewError> {
    match value {
        Some(value) if Type::of(value) != Some(want) => Err(ReviewError::WrongType { field, want: want.in_words() }),
        value => Ok(value.map(RawValue::get)),
    }
}

fn object<'a, T: Deserialize<'a>>(field: &'static str, value: Option<&'a RawValue>) -> Result<Option<T>, ReviewError> {
    let Some(text) = typed(field, value, Type::Object)? else { return Ok(None) };
    // It is known to be valid JSON: all that can be wrong is a key that occurs twice.
    let wrong = |_| ReviewError::WrongType { field, want: "an object with each field once" };
    serde_json::from_str::<Object<T>>(text).map(|object| Some(object.0)).map_err(wrong)
}

/// Group, version and `last` of a kind or resource.
fn named<'a>(
    field: &'static str,
    value: Option<&'a RawValue>,
    last: &str,
) -> Result<Option<[Option<&'a RawValue>; 3]>, ReviewError> {
    let Some(kind) = object::<Kind<'a>>(field, value)? else { return Ok(None) };
    let parts = [kind.group, kind.version, if last == "kind" { kind.kind } else { kind.resource }];
    for part in parts {
        if typed(field, part, Type::String).is_err() {
            return Err(ReviewError::WrongType { field, want: "an object of strings" });
        }
    }
    Ok(Some(parts))
}

fn version(field: &'static str, value: Option<&RawValue>, want: &'static str) -> Result<(), ReviewError> {
    let Some(text) = typed(field, value, Type::String)? else { return Ok(()) };
    let found: String = serde_json::from_str(text).unwrap_or_default();
    if found == want {
        Ok(())
    } else {
        Err(ReviewError::OtherVersion { field, found: portcullis_contract::clean(&found, 64), want })
    }
}

fn decode<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, ReviewError> {
    serde_json::from_str::<Object<T>>(text).map(|object| object.0).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        match error.classify() {
            Category::Data => ReviewError::OtherForm { line, column },
            Category::Syntax | Category::Eof | Category::Io => ReviewError::NotJson { line, column },
        }
    })
}

/// The body as text, if it is UTF-8 and not nested too deeply.
fn checked(body: &[u8]) -> Result<&str, ReviewError> {
    if body.is_empty() {
        return Err(ReviewError::Empty);
    }
    let text = std::str::from_utf8(body).map_err(|error| ReviewError::NotUtf8(error.valid_up_to()))?;
    if is_deeper(body, MAX_DEPTH) {
        return Err(ReviewError::TooDeep);
    }
    Ok(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const LEAST: &str = r#"{"request":{"uid":"u","kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},"operation":"CREATE","userInfo":{}}}"#;

    /// The least request with `more` before its first field.
    pub(super) fn with(more: &str) -> String {
        LEAST.replace("{\"uid\"", &format!("{{{more},\"uid\""))
    }

    fn refused(body: &str) -> String {
        Review::parse(body.as_bytes()).expect_err("refused").to_string()
    }

    #[test]
    fn the_namespace_is_what_was_meant_however_it_is_written() {
        let is_in = |field: &str, namespace: &str| {
            let body = with(field);
            Review::parse(body.as_bytes()).expect("a review").is_in(namespace)
        };
        assert!(is_in(r#""namespace":"team-a""#, "team-a") && !is_in(r#""namespace":"team-a""#, "team-b"));
        assert!(is_in(r#""namespace":"team-\u0061""#, "team-a"));
        for none in [r#""namespace":"""#, r#""namespace":null"#, r#""name":"x""#] {
            assert!(!is_in(none, "team-a"), "{none}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        for (field, part) in [
            ("uid", r#""uid":"u","#),
            ("kind", r#""kind":{"group":"","version":"v1","kind":"Pod"},"#),
            ("resource", r#""resource":{"group":"","version":"v1","resource":"pods"},"#),
            ("operation", r#""operation":"CREATE","#),
            ("userInfo", r#","userInfo":{}"#),
        ] {
            assert!(LEAST.contains(part));
            assert_eq!(refused(&LEAST.replace(part, "")), format!("`request.{field}` is missing"));
        }
        assert_eq!(refused("{}"), "`request` is missing");
        assert_eq!(refused(r#"{"request":null}"#), "`request` is missing");
    }

    #[test]
    fn another_type_is_named() {
        for (more, error) in [
            (r#""name":1"#, "`request.name` is not a string"),
            (r#""object":[]"#, "`request.object` is not an object"),
            (r#""object":"secret""#, "`request.object` is not an object"),
            (r#""dryRun":"no""#, "`request.dryRun` is not true or false"),
            (r#""requestKind":{"group":1}"#, "`request.requestKind` is not an object of strings"),
            (
                r#""requestKind":{"group":"a","group":"b"}"#,
                "`request.requestKind` is not an object with each field once",
            ),
        ] {
            assert_eq!(refused(&with(more)), error);
        }
        assert_eq!(
            refused(&LEAST.replace("\"userInfo\":{}", "\"userInfo\":[]")),
            "`request.userInfo` is not an object"
        );
        assert_eq!(refused(&LEAST.replace("\"uid\":\"u\"", "\"uid\":7")), "`request.uid` is not a string");
    }

    #[test]
    fn other_versions_and_kinds_are_named() {
        let version = |field: &str, value: &str| refused(&LEAST.replacen('{', &format!("{{\"{field}\":{value},"), 1));
        assert_eq!(
            version("apiVersion", r#""admission.k8s.io/v1beta1""#),
            r#"`apiVersion` is "admission.k8s.io/v1beta1", want "admission.k8s.io/v1""#
        );
        assert_eq!(version("kind", r#""Pod""#), r#"`kind` is "Pod", want "AdmissionReview""#);
        assert_eq!(version("kind", "1"), "`kind` is not a string");
    }

    #[test]
    fn what_is_no_review_is_refused_and_never_quoted() {
        for body in [
            "",
            "secret",
            "[]",
            "\"secret\"",
            "{",
            "{\"request\":\"secret\"}",
            "{\"request\":[\"u\"]}",
            "\u{feff}{}",
            "{}x",
        ] {
            assert!(!refused(body).contains("secret"), "{body}");
        }
        assert_eq!(Review::parse(b"{\"a\":\"\xff\"}").expect_err("refused"), ReviewError::NotUtf8(6));
        assert!(matches!(Review::parse(b"{\"a\":\"\0\"}").expect_err("refused"), ReviewError::NotJson { .. }));
        let cut = &LEAST[..LEAST.len() - 10];
        assert!(matches!(Review::parse(cut.as_bytes()).expect_err("refused"), ReviewError::NotJson { .. }));
    }

    #[test]
    fn a_field_that_stands_twice_is_refused() {
        assert!(matches!(
            Review::parse(with(r#""uid":"v""#).as_bytes()).expect_err("refused"),
            ReviewError::OtherForm { .. }
        ));
    }

    #[test]
    fn deep_nesting_is_refused_without_using_the_stack() {
        let nested =
            |levels: usize| with(&format!("\"object\":{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels)));
        assert_eq!(refused(&nested(100_000)), "the body is nested deeper than 1000 levels");
        assert!(Review::parse(nested(900).as_bytes()).is_ok());
        // Brackets in strings do not count as nesting, and many small lists side by side are not deep.
        assert!(Review::parse(with(&format!("\"name\":\"\\\"{}\"", "[".repeat(5000))).as_bytes()).is_ok());
        assert!(Review::parse(with(&format!("\"object\":{{\"a\":[{}[]]}}", "[],".repeat(5000))).as_bytes()).is_ok());
    }

    #[test]
    fn a_raw_request_is_any_json() {
        for (body, uid, request) in [
            (r#"{"request":[1, 2]}"#, "\"\"", "[1, 2]"),
            (r#"{"request":{"uid":"x","a":1}}"#, "\"x\"", r#"{"uid":"x","a":1}"#),
            (r#"{"request":"text"}"#, "\"\"", "\"text\""),
            (r#"{"request":{"uid":1000}}"#, "\"\"", r#"{"uid":1000}"#),
            (r#"{"request":{"uid":null}}"#, "\"\"", r#"{"uid":null}"#),
            (r#"{"request":null}"#, "\"\"", "null"),
        ] {
            let review = RawReview::parse(body.as_bytes()).expect("a raw review");
            assert_eq!((review.uid(), &*review.payload()), (uid, request.as_bytes()));
        }
        assert_eq!(RawReview::parse(b"{}").expect_err("refused"), ReviewError::Missing("request"));
    }
}
