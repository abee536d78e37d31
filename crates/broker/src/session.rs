//! Recorded calls: written to a file as they happen, or answered from one. The form is that of kwctl, so that its recordings work here.
//!
//! Objects for rules in Rego are recorded as `!ContextObjects`, which only this program knows: kwctl records how it lists
//! them.
//!
//! ```yaml
//! - type: Exchange
//!   request: |
//!     !KubernetesGetResource
//!     api_version: v1
//!     kind: Namespace
//!     name: default
//!   response: {type: Success, payload: '{…}'}
//! ```

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bytes::Bytes;
use portcullis_contract::{BrokerRequest, Capability};
use portcullis_process::files;
use portcullis_util::lock;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::ProvideError;
use crate::cache::Answer;

/// The largest file, in bytes.
const LARGEST: u64 = 64 << 20;

/// What happens to calls.
pub enum Session {
    /// They are answered and not recorded.
    Live,
    /// They are answered, and each is written to the file.
    Record {
        /// The file to write.
        path: PathBuf,
        /// The exchanges that the file holds so far.
        exchanges: Mutex<Vec<Exchange>>,
    },
    /// They are answered from a file, in its order, without any connection.
    Replay(Mutex<VecDeque<Exchange>>),
}

/// A recorded call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
#[serde(rename = "Exchange")]
pub struct Exchange {
    /// The request in YAML, with its kind as a tag in front.
    request: String,
    response: Response,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
enum Response {
    Success { payload: String },
    Error { message: String },
}

/// A file of recorded calls that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}", path = path.display())]
pub struct SessionError {
    path: PathBuf,
    problem: FileProblem,
}

/// What is wrong with a file of recorded calls.
#[derive(Debug, thiserror::Error)]
enum FileProblem {
    /// It is not there, is not a regular file, or is too long.
    #[error("{}", .0.kind())]
    Read(io::Error),
    /// It is something else than a recording.
    #[error(transparent)]
    Decode(#[from] portcullis_yaml::ReadError),
    /// A call or its answer has no form in YAML.
    #[error(transparent)]
    Encode(#[from] portcullis_yaml::WriteError),
    /// It cannot be written: its folder is not there, or the disk is full.
    #[error(transparent)]
    Write(#[from] io::Error),
}

impl Session {
    /// Records into a file, which is overwritten.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn record(path: &Path) -> Result<Self, SessionError> {
        write(path, &[]).map_err(|problem| SessionError { path: path.to_owned(), problem })?;
        Ok(Self::Record { path: path.to_owned(), exchanges: Mutex::default() })
    }

    /// Answers from a file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn replay(path: &Path) -> Result<Self, SessionError> {
        let exchanges = read(path).map_err(|problem| SessionError { path: path.to_owned(), problem })?;
        Ok(Self::Replay(Mutex::new(exchanges)))
    }

    /// The recorded answer to a call; `None` where calls are not answered from a file.
    pub(crate) fn recorded(&self, asked: BrokerRequest, payload: &[u8]) -> Option<Answer> {
        let Self::Replay(exchanges) = self else { return None };
        let next = lock(exchanges).pop_front();
        Some(answer(next, asked, payload))
    }

    /// Records a call and its answer, if calls are recorded.
    pub(crate) fn note(&self, asked: BrokerRequest, payload: &[u8], answer: &Answer) {
        let Self::Record { path, exchanges } = self else { return };
        let Ok(request) = request(asked, payload) else { return };
        let response = match answer {
            Ok(bytes) => Response::Success { payload: String::from_utf8_lossy(bytes).into_owned() },
            Err(error) => Response::Error { message: error.cause() },
        };
        let mut exchanges = lock(exchanges);
        exchanges.push(Exchange { request: text(&request), response });
        if let Err(problem) = write(path, &exchanges) {
            let problem = problem.to_string();
            tracing::warn!(file = %path.display(), problem, "failed to record a call of a policy");
        }
    }
}

fn read(path: &Path) -> Result<VecDeque<Exchange>, FileProblem> {
    let bytes = files::read_regular(path, LARGEST).map_err(|error| FileProblem::Read(error.source))?;
    Ok(portcullis_yaml::read(bytes)?)
}

fn write(path: &Path, exchanges: &[Exchange]) -> Result<(), FileProblem> {
    std::fs::write(path, portcullis_yaml::write(exchanges)?)?;
    Ok(())
}

fn answer(next: Option<Exchange>, asked: BrokerRequest, payload: &[u8]) -> Answer {
    let exchange = next.ok_or_else(|| ProvideError::failed("the list of recorded responses is empty"))?;
    let (expected, asked) = (parse(&exchange.request)?, request(asked, payload)?);
    if expected != asked {
        return Err(ProvideError::failed(format!(
            "the policy asks for {} and the next recorded call is {}",
            text(&asked).replace('\n', " "),
            exchange.request.replace('\n', " "),
        )));
    }
    match exchange.response {
        Response::Success { payload } => Ok(Bytes::from(payload)),
        Response::Error { message } => Err(ProvideError::failed(message)),
    }
}

/// A request: its kind as kwctl names it, and its fields without those that are null or at their default.
type Request = (String, Map<String, Value>);

fn text((kind, fields): &Request) -> String {
    let fields = portcullis_yaml::write(fields).unwrap_or_default();
    format!("!{kind}\n{fields}")
}

fn parse(text: &str) -> Result<Request, ProvideError> {
    let no_tag =
        || ProvideError::failed("a recorded request does not begin with its kind, like !KubernetesGetResource");
    let (kind, fields) = text.trim_start().strip_prefix('!').ok_or_else(no_tag)?.split_once('\n').ok_or_else(no_tag)?;
    let fields: Map<String, Value> = portcullis_yaml::read(fields).map_err(ProvideError::failed)?;
    Ok((kind.trim().to_owned(), plain(fields)))
}

fn request(asked: BrokerRequest, payload: &[u8]) -> Result<Request, ProvideError> {
    let value: Value = serde_json::from_slice(payload).map_err(ProvideError::failed)?;
    let named = |field: &str| Map::from_iter([(field.to_owned(), value.clone())]);
    let fields = || value.as_object().cloned().unwrap_or_default();
    let BrokerRequest::Capability(capability) = asked else { return Ok(("ContextObjects".to_owned(), fields())) };
    let (kind, fields) = match capability {
        Capability::DnsLookupHost => ("DNSLookupHost".to_owned(), named("host")),
        Capability::OciManifestDigest => ("OciManifestDigest".to_owned(), named("image")),
        Capability::OciManifest => ("OciManifest".to_owned(), named("image")),
        Capability::OciManifestConfig => ("OciManifestAndConfig".to_owned(), named("image")),
        Capability::OciVerifyV1 => match fields().into_iter().next() {
            Some((kind, Value::Object(fields))) => (kind, fields),
            _ => return Err(ProvideError::failed("want {\"SigstorePubKeyVerify\": {…}}")),
        },
        Capability::OciVerifyV2 => {
            let mut fields = fields();
            let kind = fields.shift_remove("type").as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
            (kind, fields)
        }
        Capability::ListByNamespace => ("KubernetesListResourceNamespace".to_owned(), fields()),
        Capability::ListAll => ("KubernetesListResourceAll".to_owned(), fields()),
        Capability::GetResource => ("KubernetesGetResource".to_owned(), fields()),
        Capability::CanI => {
            let mut fields = fields();
            let review = fields.shift_remove("subject_access_review").unwrap_or_default();
            fields.insert("request".to_owned(), review);
            ("KubernetesCanI".to_owned(), fields)
        }
        Capability::CertificateTrusted => ("CryptoIsCertificateTrusted".to_owned(), named("request")),
        Capability::CacheSet | Capability::CacheGet | Capability::Log => {
            return Err(ProvideError::failed("the evaluator answers this itself"));
        }
    };
    Ok((kind, plain(fields)))
}

/// The fields without those that mean nothing: null, and `disable_cache: false`. Field masks are sorted, as kwctl writes them.
fn plain(fields: Map<String, Value>) -> Map<String, Value> {
    let says =
        |(name, value): &(String, Value)| !(value.is_null() || name == "disable_cache" && *value == json!(false));
    let inner = |(name, value): (String, Value)| match value {
        Value::Object(fields) => (name, Value::Object(plain(fields))),
        Value::Array(mut masks) if name == "field_masks" => {
            masks.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
            masks.dedup();
            (name, Value::Array(masks))
        }
        other => (name, other),
    };
    fields.into_iter().filter(says).map(inner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: &str = r#"
- type: Exchange
  request: |
    !KubernetesGetResource
    api_version: v1
    kind: Namespace
    name: test-policy
    namespace: null
    disable_cache: false
  response:
    type: Success
    payload: '{"kind":"Namespace"}'
- type: Exchange
  request: |
    !OciManifestDigest
    image: ghcr.io/a/b:1
  response:
    type: Error
    message: "not found"
"#;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("session.yml");
        std::fs::write(&path, text).expect("writes");
        (folder, path)
    }

    const GET: &[u8] = br#"{"api_version": "v1", "kind": "Namespace", "name": "test-policy", "namespace": null, "disable_cache": false, "field_masks": null}"#;

    #[test]
    fn a_recording_of_kwctl_is_replayed_in_its_order() {
        let (_folder, path) = file(RECORDED);
        let session = Session::replay(&path).expect("reads");
        let ask =
            |capability: Capability, payload: &[u8]| session.recorded(capability.into(), payload).expect("it replays");
        assert_eq!(ask(Capability::GetResource, GET), Ok(Bytes::from_static(b"{\"kind\":\"Namespace\"}")));
        let error = ask(Capability::OciManifestDigest, br#""ghcr.io/a/b:1""#).expect_err("recorded so");
        assert_eq!(error.to_string(), "Callback evaluation failure: not found");
        let error = ask(Capability::GetResource, GET).expect_err("nothing is left").to_string();
        assert!(error.contains("the list of recorded responses is empty"), "{error}");
    }

    #[test]
    fn questions_about_rights_and_field_masks_are_recorded_as_kwctl_does() {
        let recorded = r#"
- type: Exchange
  request: |
    !KubernetesCanI
    request:
      groups: null
      resource_attributes:
        group: ''
        name: null
        namespace: team
        resource: pods
        subresource: null
        verb: create
        version: null
      user: alice
    disable_cache: false
  response:
    type: Success
    payload: '{"allowed":true}'
- type: Exchange
  request: |
    !KubernetesListResourceAll
    api_version: v1
    kind: Pod
    label_selector: null
    field_selector: null
    disable_cache: false
    field_masks: [metadata.name, spec.nodeName]
  response:
    type: Success
    payload: '{"items":[]}'
"#;
        let (_folder, path) = file(recorded);
        let session = Session::replay(&path).expect("reads");
        let asked = br#"{"subject_access_review": {"user": "alice", "groups": null, "resource_attributes":
            {"group": "", "namespace": "team", "resource": "pods", "verb": "create"}}, "disable_cache": false}"#;
        let answer = session.recorded(Capability::CanI.into(), asked);
        assert_eq!(answer, Some(Ok(Bytes::from_static(b"{\"allowed\":true}"))));
        let list = br#"{"api_version": "v1", "kind": "Pod", "field_masks": ["spec.nodeName", "metadata.name"]}"#;
        let answer = session.recorded(Capability::ListAll.into(), list);
        assert_eq!(answer, Some(Ok(Bytes::from_static(b"{\"items\":[]}"))));
    }

    #[test]
    fn questions_about_certificates_are_replayed_and_recorded_as_kwctl_does() {
        let recorded = r#"
- type: Exchange
  request: |
    !CryptoIsCertificateTrusted
    request:
      cert:
        encoding: Pem
        data:
        - 45
        - 255
      cert_chain:
      - encoding: Der
        data:
        - 48
      not_after: null
  response:
    type: Success
    payload: '{"trusted":false,"reason":"Certificate is not trusted by the provided cert chain"}'
"#;
        let asked =
            br#"{"cert": {"encoding": "Pem", "data": [45, 255]}, "cert_chain": [{"encoding": "Der", "data": [48]}]}"#;
        let question = BrokerRequest::from(Capability::CertificateTrusted);
        let (_folder, path) = file(recorded);
        let session = Session::replay(&path).expect("reads");
        let answer = session.recorded(question, asked).expect("replays").expect("an answer");
        assert!(answer.starts_with(br#"{"trusted":false"#), "{answer:?}");
        let (_folder, path) = file("");
        Session::record(&path).expect("writes").note(question, asked, &Ok(answer.clone()));
        let text = std::fs::read_to_string(&path).expect("was written");
        assert!(text.contains("!CryptoIsCertificateTrusted"), "{text}");
        let replay = Session::replay(&path).expect("reads");
        assert_eq!(replay.recorded(question, asked), Some(Ok(answer)));
        // The same question about another certificate, or at another time, is a different one.
        let other =
            br#"{"cert": {"encoding": "Pem", "data": [45, 255]}, "cert_chain": [{"encoding": "Der", "data": [48]}],
            "not_after": "2030-01-01T00:00:00Z"}"#;
        let session = Session::replay(&path).expect("reads");
        let error = session.recorded(question, other).expect("replays").expect_err("other").to_string();
        assert!(error.contains("!CryptoIsCertificateTrusted"), "{error}");
    }

    #[test]
    fn another_call_than_the_recorded_one_is_named() {
        let (_folder, path) = file(RECORDED);
        let session = Session::replay(&path).expect("reads");
        let error = session
            .recorded(Capability::DnsLookupHost.into(), br#""example.com""#)
            .expect("replays")
            .expect_err("other");
        let text = error.to_string();
        assert!(text.contains("!DNSLookupHost host: example.com") && text.contains("!KubernetesGetResource"), "{text}");
    }

    #[test]
    fn what_was_recorded_can_be_replayed() {
        let (_folder, path) = file("");
        let session = Session::record(&path).expect("writes");
        assert!(session.recorded(Capability::GetResource.into(), GET).is_none());
        let verify = br#"{"type": "SigstorePubKeyVerify", "image": "a", "pub_keys": ["k"], "annotations": null}"#;
        let right = Ok(Bytes::from_static(b"{\"yes\":\"no: on\"}"));
        session.note(Capability::GetResource.into(), GET, &right);
        session.note(Capability::OciVerifyV2.into(), verify, &Err(ProvideError::failed("no signatures found")));
        let (objects, kinds) =
            (BrokerRequest::ContextObjects, br#"{"form": "opa", "kinds": [{"apiVersion": "v1", "kind": "Pod"}]}"#);
        session.note(objects, kinds, &Ok(Bytes::from_static(b"{\"pods\":{}}")));
        let replay = Session::replay(&path).expect("reads");
        assert_eq!(replay.recorded(Capability::GetResource.into(), GET), Some(right));
        // A call of version 1 is recorded in the same way.
        let first = br#"{"SigstorePubKeyVerify": {"image": "a", "pub_keys": ["k"]}}"#;
        let answer = replay.recorded(Capability::OciVerifyV1.into(), first).expect("replays");
        assert_eq!(answer, Err(ProvideError::failed("no signatures found")));
        assert_eq!(replay.recorded(objects, kinds), Some(Ok(Bytes::from_static(b"{\"pods\":{}}"))));
    }

    #[test]
    fn a_file_that_is_none_is_named() {
        for text in ["nonsense", "- {type: Other}", "{}"] {
            let (_folder, path) = file(text);
            let error = Session::replay(&path).err().expect("refused").to_string();
            assert!(error.contains("session.yml"), "{error}");
        }
        let (_folder, path) = file("- {type: Exchange, request: 'no tag', response: {type: Success, payload: ''}}");
        let session = Session::replay(&path).expect("reads");
        assert!(session.recorded(Capability::GetResource.into(), GET).expect("replays").is_err());
    }
}
