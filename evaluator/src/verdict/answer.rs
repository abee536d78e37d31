//! The reply to an AdmissionReview, and its bytes (docs/design/policy-abi.md, section 4).

use std::collections::BTreeMap;

use bytes::Bytes;
use portcullis_contract::{GroupId, marker_message};
use serde::Serialize;

/// An admission response without its uid. Unset fields are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    /// Whether the request may pass.
    pub allowed: bool,
    /// `JSONPatch` where there is a patch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch_type: Option<&'static str>,
    /// A JSON Patch in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
    /// Why the request may not pass, or what is to be said if it may; none if there is nothing to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Annotations for the audit log.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub audit_annotations: BTreeMap<String, String>,
    /// Warnings for the user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The part of a Kubernetes `Status` that is used.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Status {
    /// What the user reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The HTTP code; without one, the API server uses 400.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// Further details, which clients may show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
}

/// `Status.details`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Details {
    /// Each denial, or the text that a custom message replaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// After how many seconds a client repeats the call by itself; none if it should not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
}

/// One of `Status.details.causes`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Cause {
    /// The reason in one word; none if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The message.
    pub message: String,
    /// The policy that it is about, in the answer of a match group, or the member of a policy group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

/// The JSON around an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Envelope {
    /// An AdmissionReview.
    Review,
    /// `{"response":…}`, for raw requests.
    Raw,
}

impl Answer {
    /// The denial by which the controller sees that this group's webhook is called.
    pub(crate) fn marker(group: &GroupId) -> Self {
        let status = Status { message: Some(marker_message(group)), code: Some(403), details: None };
        Self { status: Some(status), ..Self::default() }
    }

    /// The reply's body. `uid` is JSON text, echoed as it came.
    pub(crate) fn body(&self, uid: &str, envelope: Envelope) -> Bytes {
        let mut out = Vec::with_capacity(512);
        out.extend_from_slice(match envelope {
            Envelope::Review => {
                br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"#.as_slice()
            }
            Envelope::Raw => br#"{"response":{"uid":"#,
        });
        out.extend_from_slice(uid.as_bytes());
        let brace = out.len();
        serde_json::to_writer(&mut out, self).expect("an answer has text keys only, and a Vec takes any bytes");
        // `allowed` is always there, so the fields follow the uid after a comma.
        out[brace] = b',';
        out.push(b'}');
        Bytes::from(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_fields_are_left_out() {
        assert_eq!(
            &*Answer { allowed: true, ..Answer::default() }.body("\"a\\u0062\"", Envelope::Review),
            br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"a\u0062","allowed":true}}"#
        );
        assert_eq!(&*Answer::default().body("\"\"", Envelope::Raw), br#"{"response":{"uid":"","allowed":false}}"#);
    }

    #[test]
    fn a_marker_is_denied_with_the_name_of_its_group() {
        let group = "0123456789abcdef".parse().expect("a group");
        assert_eq!(
            String::from_utf8_lossy(&Answer::marker(&group).body("\"u\"", Envelope::Review)),
            concat!(
                r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":false,"#,
                r#""status":{"message":"portcullis marker 0123456789abcdef","code":403}}}"#,
            )
        );
    }

    #[test]
    fn names_are_those_of_kubernetes() {
        let answer = Answer {
            allowed: false,
            patch_type: Some("JSONPatch"),
            patch: Some("W10=".into()),
            status: Some(Status {
                message: Some("no".into()),
                code: Some(503),
                details: Some(Details {
                    causes: vec![Cause { reason: None, message: "why".into(), field: Some("cluster/a".into()) }],
                    retry_after_seconds: Some(1),
                }),
            }),
            audit_annotations: [("generation".into(), "7".into())].into(),
            warnings: vec!["w".into()],
        };
        assert_eq!(
            String::from_utf8_lossy(&answer.body("\"u\"", Envelope::Raw)),
            concat!(
                r#"{"response":{"uid":"u","allowed":false,"patchType":"JSONPatch","patch":"W10=","#,
                r#""status":{"message":"no","code":503,"details":{"causes":[{"message":"why","field":"cluster/a"}],"retryAfterSeconds":1}},"#,
                r#""auditAnnotations":{"generation":"7"},"warnings":["w"]}}"#,
            )
        );
    }
}
