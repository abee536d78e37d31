//! Explains the errors of the verifier in plain words.

use sigstore_verify::{CertificateError, Error, TimestampError, TransparencyLogError};

use super::refusal::Refusal;

/// Longest cause that is quoted, in bytes. It may hold untrusted text.
const LONGEST: usize = 200;

/// The refusal for an error of the verifier.
pub(super) fn refusal(error: &Error) -> Refusal {
    let (text, cause) = match error {
        Error::Certificate(error) => certificate(error),
        Error::TransparencyLog(error) => log(error),
        Error::Timestamp(error) => match error {
            TimestampError::NoVerifiedTimestamp(_) => {
                ("neither a log nor a timestamp authority of the trust root says when it was signed", None)
            }
            other => ("its timestamp is by no authority of the trust root", Some(other.to_string())),
        },
        Error::SignatureInvalid(cause) => ("it is not by the key of its certificate", Some(cause.clone())),
        Error::ArtifactMismatch(cause) => ("it is over something else", Some(cause.clone())),
        Error::Bundle(error) => ("what came with it is not whole", Some(error.to_string())),
        other => ("it cannot be checked", Some(other.to_string())),
    };
    Refusal::Verifier(match cause {
        Some(cause) => format!("{text} ({})", portcullis_contract::clean(&cause, LONGEST)),
        None => text.to_owned(),
    })
}

fn certificate(error: &CertificateError) -> (&'static str, Option<String>) {
    let text = match error {
        CertificateError::Malformed(_) => "its certificate cannot be read",
        CertificateError::ChainInvalid(_) => {
            "its certificate is by no authority of the trust root, or was not valid when it was signed, or is not for \
             signing code"
        }
        CertificateError::NoValidAuthority { .. } => {
            "no authority of the trust root was valid at the time of the signature"
        }
        CertificateError::NotYetValid { .. } | CertificateError::Expired { .. } => {
            "its certificate was not valid at the time of the signature"
        }
        CertificateError::Sct(_) => "its certificate is in no certificate transparency log of the trust root",
        _ => "its certificate is refused",
    };
    (text, Some(error.to_string()))
}

fn log(error: &TransparencyLogError) -> (&'static str, Option<String>) {
    let text = match error {
        TransparencyLogError::EntryMismatch(_) | TransparencyLogError::MalformedEntry(_) => {
            "its entry of the transparency log is about something else"
        }
        TransparencyLogError::IntegratedTime(_) => "its certificate was not valid when it was logged",
        _ => "no transparency log of the trust root has signed its entry",
    };
    (text, Some(error.to_string()))
}
