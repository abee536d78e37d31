//! Turns what cosign writes beside a signature in the `.sig` artifact into one bundle: certificate, chain and log
//! entry.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_contract::Digest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sigstore_verify::types::Bundle;

use super::PublicKey;
use super::refusal::Refusal;
use super::trust::{MOST_CERTIFICATES, TrustRoot};
use crate::oci::{CERTIFICATE, CHAIN, LOG_ENTRY};

/// Longest of these texts, in bytes.
const LONGEST: usize = 64 << 10;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LogEntry {
    signed_entry_timestamp: String,
    payload: Payload,
}

/// The fields in the order in which a log signs them: by name.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Payload {
    body: String,
    integrated_time: i64,
    #[serde(rename = "logID")]
    log_id: String,
    log_index: u64,
}

/// An entry about a signature.
#[derive(Deserialize)]
struct HashedRekord {
    kind: String,
    spec: HashedRekordSpec,
}

#[derive(Deserialize)]
struct HashedRekordSpec {
    data: HashedRekordData,
    signature: HashedRekordSignature,
}

#[derive(Deserialize)]
struct HashedRekordData {
    hash: HashedRekordHash,
}

#[derive(Deserialize)]
struct HashedRekordHash {
    algorithm: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HashedRekordSignature {
    content: String,
    public_key: HashedRekordKey,
}

#[derive(Deserialize)]
struct HashedRekordKey {
    content: String,
}

/// A log's promise about a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Promise {
    /// The key that signed, from the entry's certificate or by itself in the entry.
    pub(super) key: PublicKey,
    /// When the log took the entry, in seconds since 1970.
    pub(super) time: i64,
}

/// The kind of entry in a body.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    kind: String,
    api_version: String,
}

/// The bundle of a signature over a statement with this digest. `None` if there is no certificate.
///
/// # Errors
/// What is wrong with the annotations.
pub(super) fn bundle(
    annotations: &BTreeMap<String, String>,
    statement: &Digest,
    signature: &[u8],
) -> Result<Option<Bundle>, Refusal> {
    let Some(certificate) = text(annotations, CERTIFICATE)? else { return Ok(None) };
    let mut certificates = certificates(certificate)?;
    if certificates.len() != 1 {
        return Err(Refusal::NotOneCertificate);
    }
    if let Some(chain) = text(annotations, CHAIN)? {
        certificates.extend(self::certificates(chain)?);
    }
    if certificates.len() > MOST_CERTIFICATES {
        return Err(Refusal::LongChain(MOST_CERTIFICATES));
    }
    let Some(entry) = text(annotations, LOG_ENTRY)? else {
        return Err(Refusal::NotLogged);
    };
    let LogEntry { signed_entry_timestamp, payload } =
        serde_json::from_str(entry).map_err(|_| Refusal::UnreadableEntry)?;
    let body = STANDARD.decode(&payload.body).map_err(|_| Refusal::UnreadableEntry)?;
    let Kind { kind, api_version } = serde_json::from_slice(&body).map_err(|_| Refusal::UnreadableEntry)?;
    let log_id = unhex(&payload.log_id).ok_or(Refusal::UnreadableEntry)?;
    let statement = unhex(&statement.hex()).ok_or(Refusal::UnreadableEntry)?;
    let bundle = json!({
        "mediaType": "application/vnd.dev.sigstore.bundle+json;version=0.1",
        "verificationMaterial": {
            "x509CertificateChain": {"certificates": certificates},
            "tlogEntries": [{
                "logIndex": payload.log_index.to_string(),
                "logId": {"keyId": STANDARD.encode(log_id)},
                "kindVersion": {"kind": kind, "version": api_version},
                "integratedTime": payload.integrated_time.to_string(),
                "inclusionPromise": {"signedEntryTimestamp": signed_entry_timestamp},
                "canonicalizedBody": payload.body,
            }],
        },
        "messageSignature": {
            "messageDigest": {"algorithm": "SHA2_256", "digest": STANDARD.encode(statement)},
            "signature": STANDARD.encode(signature),
        },
    });
    serde_json::from_value(bundle).map(Some).map_err(|_| Refusal::UnreadableEntry)
}

/// Whether a signature comes with an entry of a transparency log.
pub(super) fn has_entry(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(LOG_ENTRY).is_some_and(|entry| !entry.is_empty())
}

/// The promise of a log of the trust root about this signature over a statement with this digest. `None` if no entry comes with it.
///
/// # Errors
/// When the entry cannot be parsed, is about something else, or no log of the trust root has signed the promise.
pub(super) fn promise(
    annotations: &BTreeMap<String, String>,
    statement: &Digest,
    signature: &[u8],
    trust: &TrustRoot,
) -> Result<Option<Promise>, Refusal> {
    let Some(entry) = text(annotations, LOG_ENTRY)? else { return Ok(None) };
    let LogEntry { signed_entry_timestamp, payload } =
        serde_json::from_str(entry).map_err(|_| Refusal::UnreadableEntry)?;
    let id = unhex(&payload.log_id).ok_or(Refusal::UnreadableEntry)?;
    let log = trust.log(&id, payload.integrated_time).ok_or(Refusal::Lacks("its log is not one of the trust root"))?;
    let said = serde_json::to_vec(&payload).map_err(|_| Refusal::UnreadableEntry)?;
    let decoded = |text: &str| STANDARD.decode(text).map_err(|_| Refusal::UnreadableEntry);
    if !log.has_signed(&said, &decoded(&signed_entry_timestamp)?) {
        return Err(Refusal::Lacks("its log has not signed its entry"));
    }
    let HashedRekord { kind, spec } =
        serde_json::from_slice(&decoded(&payload.body)?).map_err(|_| Refusal::UnreadableEntry)?;
    let is_about = kind == "hashedrekord"
        && (spec.data.hash.algorithm.as_str(), spec.data.hash.value.as_str()) == ("sha256", statement.hex().as_str())
        && decoded(&spec.signature.content)? == signature;
    if !is_about {
        return Err(Refusal::Lacks("its log entry is about another signature"));
    }
    let key = decoded(&spec.signature.public_key.content)?;
    let key = std::str::from_utf8(&key).ok().and_then(|pem| PublicKey::of_holder(pem).ok());
    let key = key.ok_or(Refusal::UnreadableEntry)?;
    Ok(Some(Promise { key, time: payload.integrated_time }))
}

fn text<'a>(annotations: &'a BTreeMap<String, String>, name: &str) -> Result<Option<&'a str>, Refusal> {
    let text = annotations.get(name).map(String::as_str).filter(|text| !text.is_empty());
    match text {
        Some(text) if text.len() > LONGEST => Err(Refusal::TooLong { name: name.to_owned(), limit: LONGEST }),
        text => Ok(text),
    }
}

fn certificates(pem: &str) -> Result<Vec<serde_json::Value>, Refusal> {
    let mut certificates = Vec::new();
    for der in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let der = der.map_err(|_| Refusal::NotPem)?;
        certificates.push(json!({"rawBytes": STANDARD.encode(&der)}));
    }
    Ok(certificates)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    digits.chunks(2).map(byte).collect()
}
