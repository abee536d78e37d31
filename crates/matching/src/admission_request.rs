//! A request as the members of a shared webhook look at it. Its parts are parsed when needed, and once for all members.
//!
//! Users decide what is in the metadata of an object. When they are decoded, many small labels take much time, and far more memory than
//! their text. So the text is found first: memory can be taken for it, and there is a pause before it is decoded.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use bytes::Bytes;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::conditions::{Pace, Subject, for_conditions};
use crate::request::Asked;
use crate::selector::{Labels, labels};

/// Most metadata of an object that conditions are evaluated on, in bytes, without the managed fields. API servers store much less.
pub(crate) const MAX_METADATA: usize = 1 << 20;
/// Most fields of metadata. Kubernetes knows fewer than twenty, and API servers send no others.
const MAX_FIELDS: usize = 256;
/// Most metadata of both objects, in bytes, that are decoded at once, which takes a few milliseconds at most.
const SMALL: usize = 64 << 10;
/// How much of the metadata is decoded in a step of a [`Pace`], in bytes, where it is all small labels.
const PER_STEP: u64 = 3;

/// A request, with the parts that selectors and conditions look at.
pub struct AdmissionRequest {
    object: Option<Bytes>,
    old: Option<Bytes>,
    json: Bytes,
    request: OnceLock<Option<Request>>,
    fields: OnceLock<Option<[Metadata<Fields>; 2]>>,
    metadata: OnceLock<Option<[Metadata<Decoded>; 2]>>,
    subject: OnceLock<Option<Subject>>,
}

/// The request of an AdmissionReview without its objects.
pub(crate) struct Request {
    json: Value,
    pub(crate) asked: Asked,
}

/// The part of an object that is read, as JSON or decoded.
#[derive(Debug)]
pub(crate) enum Metadata<T> {
    /// There is no object.
    NoObject,
    /// The object has no metadata.
    Absent,
    /// The object has metadata.
    Present(T),
}

/// The JSON of each field of metadata, without that of the managed fields, which nothing here looks at.
type Fields = BTreeMap<String, Bytes>;

/// Decoded metadata.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// An object that has only the metadata, and these without the managed fields.
    object: Value,
    labels: Labels,
}

/// The part of an object that is parsed.
#[derive(Deserialize)]
struct Partial<'a> {
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
}

impl AdmissionRequest {
    /// A request about these objects, which are JSON, as is the AdmissionReview's request without them.
    pub fn new(object: Option<Bytes>, old: Option<Bytes>, json: Bytes) -> Self {
        let (request, fields, metadata, subject) = Default::default();
        Self { object, old, json, request, fields, metadata, subject }
    }

    /// The fields of the metadata that may be decoded, each with its JSON: of the object, and of the old object.
    pub fn metadata_fields(&self) -> impl Iterator<Item = (&String, &Bytes)> {
        self.fields().into_iter().flatten().filter_map(Metadata::present).flatten()
    }

    /// Whether the metadata are so large that memory is to be taken before they are decoded. They are not decoded for that.
    pub fn has_large_metadata(&self) -> bool {
        let whole = [&self.object, &self.old].into_iter().flatten();
        whole.map(Bytes::len).sum::<usize>() > SMALL && self.length() > SMALL
    }

    /// The request without its objects; `None` if it cannot be parsed.
    pub(crate) fn request(&self) -> Option<&Request> {
        let read = || {
            let json = serde_json::from_slice(&self.json).ok()?;
            Some(Request { asked: Asked::read(&json)?, json })
        };
        self.request.get_or_init(read).as_ref()
    }

    /// The metadata of the object and of the old object, decoded at once; `None` if they cannot be.
    pub(crate) fn metadata(&self) -> Option<&[Metadata<Decoded>; 2]> {
        let decode = || {
            let [object, old] = self.fields()?;
            Some([object.decoded()?, old.decoded()?])
        };
        self.metadata.get_or_init(decode).as_ref()
    }

    /// The same, after a pause if they are not decoded yet.
    pub(crate) async fn metadata_after(&self, pace: &mut impl Pace) -> Option<&[Metadata<Decoded>; 2]> {
        if self.metadata.get().is_none() {
            pace.before(self.steps()).await;
        }
        self.metadata()
    }

    /// The variables of conditions, after a pause before each part of them that is not there yet; `None` if something cannot be parsed.
    pub(crate) async fn subject_after(&self, pace: &mut impl Pace) -> Option<&Subject> {
        let [object, old] = self.metadata_after(pace).await?;
        if self.subject.get().is_none() {
            pace.before(self.steps()).await;
        }
        let make = || Some(Subject::new(&for_conditions(&self.request()?.json), &object.object(), &old.object()));
        self.subject.get_or_init(make).as_ref()
    }

    /// The most steps that it takes to decode the metadata, or to make the variables of conditions from them.
    fn steps(&self) -> u64 {
        u64::try_from(self.length()).unwrap_or(u64::MAX) / PER_STEP
    }

    /// The bytes of the metadata that may be decoded, with quotes, colon and comma of each field.
    fn length(&self) -> usize {
        length(self.metadata_fields())
    }

    /// The fields of the metadata; `None` if an object cannot be parsed, or has too many of them.
    fn fields(&self) -> Option<&[Metadata<Fields>; 2]> {
        let find = || Some([Metadata::of(self.object.as_ref())?, Metadata::of(self.old.as_ref())?]);
        self.fields.get_or_init(find).as_ref()
    }
}

impl<T> Metadata<T> {
    /// The metadata, if there are some.
    fn present(&self) -> Option<&T> {
        match self {
            Self::Present(metadata) => Some(metadata),
            Self::NoObject | Self::Absent => None,
        }
    }
}

impl Metadata<Fields> {
    fn of(object: Option<&Bytes>) -> Option<Self> {
        let Some(object) = object else { return Some(Self::NoObject) };
        let Some(raw) = serde_json::from_slice::<Partial<'_>>(object).ok()?.metadata else { return Some(Self::Absent) };
        let RawFields(mut fields) = serde_json::from_str(raw.get()).ok()?;
        fields.remove("managedFields");
        let text = |(name, raw): (_, &RawValue)| (name, object.slice_ref(raw.get().as_bytes()));
        let fields: Fields = fields.into_iter().map(text).collect();
        (length(&fields) <= MAX_METADATA).then_some(Self::Present(fields))
    }

    fn decoded(&self) -> Option<Metadata<Decoded>> {
        Some(match self {
            Self::NoObject => Metadata::NoObject,
            Self::Absent => Metadata::Absent,
            Self::Present(fields) => Metadata::Present(Decoded::of(fields)?),
        })
    }
}

impl Metadata<Decoded> {
    /// The labels. An object without metadata, for instance the options of `kubectl exec`, is not selected by any label
    /// selector.
    pub(crate) fn labels(&self) -> Option<&Labels> {
        self.present().map(|decoded| &decoded.labels)
    }

    /// The object for conditions that look only at its metadata.
    fn object(&self) -> Cow<'_, Value> {
        match self {
            Self::NoObject => Cow::Owned(Value::Null),
            Self::Absent => Cow::Owned(Value::Object(Map::new())),
            Self::Present(decoded) => Cow::Borrowed(&decoded.object),
        }
    }
}

impl Decoded {
    fn of(fields: &Fields) -> Option<Self> {
        let decoded = |(name, text): (&String, &Bytes)| Some((name.clone(), serde_json::from_slice(text).ok()?));
        let metadata = Value::Object(fields.iter().map(decoded).collect::<Option<_>>()?);
        let labels = labels(&metadata);
        // Moved and not copied: the metadata may be large.
        let object = Map::from_iter([("metadata".to_owned(), metadata)]).into();
        Some(Self { object, labels })
    }
}

/// The bytes of fields, with the quotes, colon and comma of each.
fn length<'f>(fields: impl IntoIterator<Item = (&'f String, &'f Bytes)>) -> usize {
    fields.into_iter().map(|(name, text)| name.len() + text.len() + 4).sum()
}

/// The fields of metadata, at most [`MAX_FIELDS`], which are read before memory is taken.
struct RawFields<'a>(BTreeMap<String, &'a RawValue>);

impl<'de> Deserialize<'de> for RawFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = RawFields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the metadata of an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some((name, raw)) = map.next_entry()? {
            fields.insert(name, raw);
            if fields.len() > MAX_FIELDS {
                return Err(A::Error::custom("too many fields"));
            }
        }
        Ok(RawFields(fields))
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::FutureExt as _;
    use portcullis_contract::{MatchCondition, MemberMatch};
    use serde_json::json;

    use super::*;
    use crate::conditions::Decision;
    use crate::member::MemberMatcher;

    /// A pace that notes the steps, and waits from the given call on.
    struct Stops {
        noted: Vec<u64>,
        at: usize,
    }

    impl Pace for Stops {
        async fn before(&mut self, steps: u64) {
            self.noted.push(steps);
            if self.noted.len() > self.at {
                pending().await
            }
        }
    }

    /// A request about an object with about so many bytes of small labels.
    fn labelled(bytes: usize) -> AdmissionRequest {
        let labels: Map<_, _> = (0..bytes / 11).map(|number| (format!("{number:05x}"), json!(""))).collect();
        let object = json!({"metadata": {"labels": labels}, "spec": {"data": "x".repeat(100_000)}});
        let json = json!({"operation": "CREATE", "resource": {"group": "", "version": "v1", "resource": "pods"}});
        AdmissionRequest::new(Some(object.to_string().into()), None, json.to_string().into())
    }

    fn matcher(selector: Option<Value>, conditions: &[&str]) -> MemberMatcher {
        let condition = |text: &&str| MatchCondition { name: "c".to_owned(), expression: (*text).to_owned() };
        let match_conditions = conditions.iter().map(condition).collect();
        let member = MemberMatch { rules: Vec::new(), object_selector: selector, match_conditions };
        MemberMatcher::of(&member).expect("judged")
    }

    #[test]
    fn z25_there_is_a_pause_before_large_metadata_are_decoded() {
        let selector = || Some(json!({"matchLabels": {"00001": ""}}));
        for (matcher, pauses) in [(matcher(selector(), &[]), 1), (matcher(None, &["has(object.metadata.labels)"]), 3)] {
            let request = labelled(MAX_METADATA - 100);
            let mut pace = Stops { noted: Vec::new(), at: 0 };
            assert_eq!(matcher.decide(&request, &mut pace).now_or_never(), None);
            assert!(request.fields.get().is_some() && request.metadata.get().is_none());
            assert!(pace.noted == [request.steps()] && pace.noted[0] > 300_000, "{:?}", pace.noted);

            let mut pace = Stops { noted: Vec::new(), at: 1 };
            let decided = matcher.decide(&request, &mut pace).now_or_never();
            assert!(request.metadata.get().is_some() && request.subject.get().is_none());
            assert_eq!(decided, (pauses == 1).then_some(Decision::Matches));

            // The metadata are there now.
            let mut pace = Stops { noted: Vec::new(), at: 9 };
            assert_eq!(matcher.decide(&request, &mut pace).now_or_never(), Some(Decision::Matches));
            assert_eq!(pace.noted.len(), pauses - 1);
        }
    }

    #[test]
    fn what_is_large_is_known_without_being_decoded() {
        assert!(!labelled(SMALL - 100).has_large_metadata(), "the rest of the object does not count");
        let large = labelled(SMALL + 100);
        assert!(large.has_large_metadata() && large.metadata.get().is_none());
        assert_eq!(large.metadata_fields().count(), 1);
        let none = AdmissionRequest::new(None, None, Bytes::new());
        assert!(!none.has_large_metadata() && none.metadata_fields().count() == 0);
        assert!(!labelled(MAX_METADATA + 1000).has_large_metadata(), "these are never decoded");
    }

    #[test]
    fn managed_fields_do_not_count_and_are_not_decoded() {
        let managed = vec![json!({"manager": "m", "fieldsV1": {"f:x": {}}}); 6_000];
        let object =
            json!({"metadata": {"managedFields": managed, "name": "n", "labels": {"app": "shop"}}}).to_string();
        assert!(object.len() > 200_000);
        // As with all fields, the last of two with one name counts.
        let object = object.replace(r#""name":"n""#, r#""name":"first","name":"n""#);
        let json = json!({"operation": "UPDATE", "resource": {"group": "", "version": "v1", "resource": "pods"}});
        let (object, json) = (Bytes::from(object), Bytes::from(json.to_string()));
        let request = AdmissionRequest::new(Some(object.clone()), Some(object), json);
        assert!(!request.has_large_metadata());
        let names: Vec<_> = request.metadata_fields().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["labels", "name", "labels", "name"]);
        let [decoded, _] = request.metadata().expect("decoded");
        let expected = json!({"metadata": {"labels": {"app": "shop"}, "name": "n"}});
        assert_eq!(*decoded.object(), expected);
        assert_eq!(decoded.labels(), Some(&Labels::from([("app".to_owned(), "shop".to_owned())])));
    }

    #[test]
    fn selectors_exclude_without_a_pause_by_small_metadata_only() {
        let matcher = matcher(Some(json!({"matchLabels": {"app": "shop"}})), &[]);
        assert!(matcher.excludes(&labelled(SMALL - 100)));
        let large = labelled(SMALL + 100);
        assert!(!matcher.excludes(&large) && large.metadata.get().is_none());
    }
}
