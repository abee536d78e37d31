//! What evaluator and broker say to each other: calls of guests that the evaluator cannot answer itself, and what it needs for guests
//! that cannot call.
//!
//! Both directions carry frames: a length of four bytes (big endian), a header in JSON, a line feed, and a body. The body of a call is
//! what the guest gave, and that of a reply what it gets.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{BrokerCheck, Capability, PolicyId};

/// The largest payload of a call, in bytes.
pub const BROKER_MAX_PAYLOAD: usize = 1 << 20;
/// The largest reply, in bytes.
pub const BROKER_MAX_REPLY: usize = 8 << 20;
/// The largest header of a frame, in bytes.
pub const BROKER_MAX_HEADER: usize = 4 << 10;
/// The largest frame, in bytes, without its length field.
pub const BROKER_MAX_FRAME: usize =
    BROKER_MAX_HEADER + if BROKER_MAX_PAYLOAD > BROKER_MAX_REPLY { BROKER_MAX_PAYLOAD } else { BROKER_MAX_REPLY };
/// The largest body of an export, in bytes.
pub const MAX_EXPORT: usize = 1 << 20;
/// The longest error text in a reply, in bytes.
pub const BROKER_MAX_ERROR: usize = 900;

/// The prefix of the error text of a failed call, the same as upstream's.
pub const CALLBACK_FAILURE: &str = "Callback evaluation failure: ";

/// What the broker is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BrokerRequest {
    /// The objects of the policy's `contextAwareResources`, as data of its Rego. The evaluator asks for them itself; guests have no name for
    /// this request. The payload is empty, as kinds and form are those that the loader published.
    #[serde(rename = "context/objects")]
    ContextObjects,
    /// A guest's call.
    #[serde(untagged)]
    Capability(Capability),
}

impl BrokerRequest {
    /// The name in logs and metrics.
    pub fn path(self) -> &'static str {
        match self {
            Self::ContextObjects => "context/objects",
            Self::Capability(capability) => capability.path(),
        }
    }
}

impl fmt::Display for BrokerRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path())
    }
}

impl From<Capability> for BrokerRequest {
    fn from(capability: Capability) -> Self {
        Self::Capability(capability)
    }
}

/// A call of the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerCall {
    /// The number of the message, unique on its connection; the reply has the same.
    pub number: u64,
    /// The policy that calls, or on whose behalf the evaluator does.
    pub policy: PolicyId,
    /// Its generation.
    pub generation: i64,
    /// The member of a policy group that calls; absent if the policy is not a group.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub member: Option<String>,
    /// What is asked for.
    pub request: BrokerRequest,
    /// How long the evaluator waits for the reply, in milliseconds.
    pub millis: u64,
}

/// The header of a frame that the evaluator sends.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum BrokerMessage {
    /// A call.
    Call(BrokerCall),
    /// An export.
    Export(BrokerExport),
    /// A question about a policy that is applied.
    Check(BrokerCheck),
}

impl BrokerMessage {
    /// The number of the message, which its reply has too.
    pub fn number(&self) -> u64 {
        match self {
            Self::Call(call) => call.number,
            Self::Export(export) => export.number,
            Self::Check(check) => check.number,
        }
    }
}

/// Telemetry of the evaluator, which the loader posts to the collector that its own settings name. The body of the message is the one
/// to post, of at most [`MAX_EXPORT`] bytes; that of the reply is empty, or an error text for the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerExport {
    /// The number of the message, unique on its connection; the reply has the same.
    pub number: u64,
    /// What kind of telemetry the body is.
    pub export: Signal,
}

/// A kind of telemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    /// Spans, as an `ExportTraceServiceRequest`.
    Traces,
    /// Metrics, as an `ExportMetricsServiceRequest`.
    Metrics,
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ReplyHeader", into = "ReplyHeader")]
pub struct BrokerReply {
    /// The number of the call.
    pub number: u64,
    /// The outcome, which says what the body is.
    pub outcome: BrokerOutcome,
}

/// A reply on the wire: an answer of no is a failure with a mark, so that an evaluator of an earlier release, which does not know the mark, still
/// reads it.
#[derive(Clone, Serialize, Deserialize)]
struct ReplyHeader {
    number: u64,
    outcome: BrokerOutcome,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    negative: bool,
}

impl From<BrokerReply> for ReplyHeader {
    fn from(BrokerReply { number, outcome }: BrokerReply) -> Self {
        match outcome {
            BrokerOutcome::Negative => Self { number, outcome: BrokerOutcome::Failed, negative: true },
            outcome => Self { number, outcome, negative: false },
        }
    }
}

impl From<ReplyHeader> for BrokerReply {
    fn from(ReplyHeader { number, outcome, negative }: ReplyHeader) -> Self {
        match outcome {
            BrokerOutcome::Failed if negative => Self { number, outcome: BrokerOutcome::Negative },
            outcome => Self { number, outcome },
        }
    }
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BrokerOutcome {
    /// The body is what the guest gets.
    Done,
    /// The answer is no: what was asked about does not exist, or is not signed as it must be. The body is the error text for the guest.
    #[serde(skip)]
    Negative,
    /// The policy has no right to it; the body is the error text for the guest.
    Denied,
    /// It failed; the body is the error text for the guest.
    Failed,
}

impl BrokerOutcome {
    /// The name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Negative => "negative",
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }
}

/// A frame that cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// There is no header, or it is too long.
    #[error("the frame has no header of at most {BROKER_MAX_HEADER} bytes")]
    Header,
    /// The header is not the expected JSON.
    #[error("failed to read the header of a frame: {0}")]
    Json(#[from] serde_json::Error),
}

/// The bytes of a frame, without its length field.
///
/// # Errors
/// None that these headers can cause.
pub fn encode_frame(header: &impl Serialize, body: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let mut frame = serde_json::to_vec(header)?;
    frame.reserve_exact(1 + body.len());
    frame.push(b'\n');
    frame.extend_from_slice(body);
    Ok(frame)
}

/// The header of a frame, and where its body begins.
///
/// # Errors
/// When the frame has no header, or not one of this type.
pub fn decode_frame<T: DeserializeOwned>(frame: &[u8]) -> Result<(T, usize), FrameError> {
    let head = &frame[..frame.len().min(BROKER_MAX_HEADER)];
    let end = head.iter().position(|byte| *byte == b'\n').ok_or(FrameError::Header)?;
    Ok((serde_json::from_slice(&head[..end])?, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_read() {
        let call = BrokerCall {
            number: 7,
            policy: "cluster/a".parse().expect("an id"),
            generation: 3,
            member: None,
            request: Capability::DnsLookupHost.into(),
            millis: 1500,
        };
        let frame = encode_frame(&call, b"\"a\nb\"").expect("encodes");
        let (read, body) = decode_frame::<BrokerCall>(&frame).expect("decodes");
        assert_eq!((read, &frame[body..]), (call, &b"\"a\nb\""[..]));
    }

    #[test]
    fn every_request_has_one_path_and_no_guest_can_name_the_objects() {
        let capabilities = Capability::ALL.iter().copied().map(BrokerRequest::from);
        for request in capabilities.chain([BrokerRequest::ContextObjects]) {
            let json = serde_json::to_string(&request).expect("encodes");
            assert_eq!(json, format!("\"{request}\""));
            assert_eq!(serde_json::from_str::<BrokerRequest>(&json).expect("decodes"), request);
        }
        let path = BrokerRequest::ContextObjects.path();
        assert_eq!(Capability::from_path(path), None);
        assert!(Capability::check_patterns(&[path.to_owned()]).is_err());
    }

    #[test]
    fn an_answer_of_no_is_a_failure_to_an_earlier_release() {
        for (outcome, json) in [
            (BrokerOutcome::Done, r#"{"number":1,"outcome":"done"}"#),
            (BrokerOutcome::Denied, r#"{"number":1,"outcome":"denied"}"#),
            (BrokerOutcome::Failed, r#"{"number":1,"outcome":"failed"}"#),
            (BrokerOutcome::Negative, r#"{"number":1,"outcome":"failed","negative":true}"#),
        ] {
            let reply = BrokerReply { number: 1, outcome };
            assert_eq!(serde_json::to_string(&reply).expect("encodes"), json);
            assert_eq!(serde_json::from_str::<BrokerReply>(json).expect("decodes"), reply);
        }
    }

    #[test]
    fn a_frame_without_a_header_is_refused() {
        assert!(matches!(decode_frame::<BrokerReply>(b""), Err(FrameError::Header)));
        assert!(matches!(decode_frame::<BrokerReply>(&[b' '; BROKER_MAX_HEADER + 1]), Err(FrameError::Header)));
        assert!(matches!(decode_frame::<BrokerReply>(b"{}\n"), Err(FrameError::Json(_))));
    }
}
