//! The Sigstore of the tests: an authority that issues certificates to signers, and the logs that attest them.
//!
//! It signs as `cosign sign` does with an identity, both in the older way (annotations beside a statement) and in the
//! newer one (a bundle). Tests of `crates/registry` compile this file too.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_contract::Digest;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, PublicKeyData as _, SanType, SigningKey as _, date_time_ymd,
};
use serde_json::{Value, json};

/// The media type of a bundle.
pub const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
/// The media type of an in-toto statement.
const IN_TOTO: &str = "application/vnd.in-toto+json";
/// The type of a statement that is a signature.
pub const SIGN: &str = "https://sigstore.dev/cosign/sign/v1";
/// The issuer of the identities of GitHub's workflows.
pub const GITHUB: &str = "https://token.actions.githubusercontent.com";

/// An authority and logs.
pub struct Sigstore {
    /// The root of all certificates.
    pub root: Authority,
    /// The authority that issues certificates to signers.
    pub intermediate: Authority,
    /// The certificate transparency log.
    pub ct: Log,
    /// The transparency log of signatures.
    pub rekor: Log,
}

/// An issuer of certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
    spki: Vec<u8>,
}

/// A log with its key.
pub struct Log {
    key: KeyPair,
}

/// The content of a certificate.
#[derive(Clone)]
pub struct Holder {
    /// The issuer of the identity.
    pub issuer: String,
    /// A mail address (with `@`) or a URI.
    pub subject: String,
    /// `owner/repository`, in certificates of workflows.
    pub repository: Option<String>,
    /// When the certificate becomes valid, in seconds since 1970. It expires ten minutes later.
    pub from: u64,
    /// Whether the certificate has been logged in a certificate transparency log.
    pub is_logged: bool,
    /// Whether it may sign code.
    pub may_sign_code: bool,
    /// The kind of its key.
    pub algorithm: &'static rcgen::SignatureAlgorithm,
}

/// A certificate with its key.
pub struct Leaf {
    certificate: Vec<u8>,
    key: KeyPair,
    /// The certificates above it, as PEM.
    chain: String,
    /// When it becomes valid, in seconds since 1970.
    pub from: u64,
}

impl Holder {
    /// A workflow of a repository on GitHub, some days ago.
    pub fn workflow(repository: &str) -> Self {
        Self {
            issuer: GITHUB.to_owned(),
            subject: format!("https://github.com/{repository}/.github/workflows/release.yml@refs/tags/v1"),
            repository: Some(repository.to_owned()),
            from: days_ago(3),
            is_logged: true,
            may_sign_code: true,
            algorithm: &rcgen::PKCS_ECDSA_P256_SHA256,
        }
    }

    /// A person's identity with a mail address.
    pub fn person(issuer: &str, mail: &str) -> Self {
        let (issuer, subject) = (issuer.to_owned(), mail.to_owned());
        Self { issuer, subject, repository: None, ..Self::workflow("none/none") }
    }
}

/// A time some days ago, in seconds since 1970. Certificates from then have expired.
pub fn days_ago(days: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    now.as_secs() - days * 24 * 3600
}

impl Sigstore {
    /// A new Sigstore, with new keys.
    pub fn new() -> Self {
        let root = Authority::new("tests root", None);
        let intermediate = Authority::new("tests intermediate", Some(&root));
        Self { root, intermediate, ct: Log::new(), rekor: Log::new() }
    }

    /// The trust root that knows it: `trusted_root.json`.
    pub fn trusted_root(&self) -> Value {
        let from = json!({"start": "2020-01-01T00:00:00Z"});
        let log = |log: &Log, url: &str| {
            json!({
                "baseUrl": url,
                "hashAlgorithm": "SHA2_256",
                "publicKey": {
                    "rawBytes": STANDARD.encode(log.spki()), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": from,
                },
                "logId": {"keyId": STANDARD.encode(log.id())},
            })
        };
        let certificates =
            [&self.intermediate, &self.root].map(|authority| json!({"rawBytes": STANDARD.encode(authority.der())}));
        json!({
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(&self.rekor, "https://rekor.example")],
            "certificateAuthorities": [{
                "subject": {"organization": "tests", "commonName": "tests root"},
                "uri": "https://fulcio.example",
                "certChain": {"certificates": certificates},
                "validFor": from,
            }],
            "ctlogs": [log(&self.ct, "https://ct.example")],
            "timestampAuthorities": [],
        })
    }

    /// A certificate.
    pub fn leaf(&self, holder: &Holder) -> Leaf {
        self.leaf_seen_by(&self.ct, holder)
    }

    /// A certificate that has been logged in another certificate transparency log.
    pub fn leaf_seen_by(&self, log: &Log, holder: &Holder) -> Leaf {
        let key = KeyPair::generate_for(holder.algorithm).expect("a key");
        let params = params(holder);
        let mut certificate = sign(&params, &key, &self.intermediate);
        if holder.is_logged {
            let mut params = params;
            let seen = log.sees(to_be_signed(&certificate), &self.intermediate.spki, holder.from);
            params.custom_extensions.push(seen);
            certificate = sign(&params, &key, &self.intermediate);
        }
        let chain = format!("{}{}", self.intermediate.certificate.pem(), self.root.certificate.pem());
        Leaf { certificate, key, chain, from: holder.from }
    }

    /// The annotations of a statement that this holder signs and logs, as cosign writes them.
    pub fn annotations(&self, leaf: &Leaf, statement: &[u8]) -> BTreeMap<String, String> {
        let signature = leaf.sign(statement);
        let body = hashed_record(statement, &signature, &leaf.pem());
        self.annotations_with(leaf, &signature, &body, leaf.from + 60)
    }

    /// The same annotations with any signature, log entry and time.
    pub fn annotations_with(&self, leaf: &Leaf, signature: &[u8], body: &[u8], at: u64) -> BTreeMap<String, String> {
        let payload = payload(&self.rekor, body, at, 7);
        let promise = STANDARD.encode(self.rekor.sign(payload.to_string().as_bytes()));
        let entry = json!({"SignedEntryTimestamp": promise, "Payload": payload});
        [
            ("dev.cosignproject.cosign/signature", STANDARD.encode(signature)),
            ("dev.sigstore.cosign/certificate", leaf.pem()),
            ("dev.sigstore.cosign/chain", leaf.chain.clone()),
            ("dev.sigstore.cosign/bundle", entry.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// A bundle with a statement of type `kind` by this holder about a manifest, as newer versions of cosign write it.
    pub fn bundle(&self, leaf: &Leaf, manifest: &Digest, kind: &str, annotations: Value) -> Value {
        let subject = json!([{"digest": {"sha256": manifest.hex()}, "annotations": annotations}]);
        let statement = json!({"_type": "https://in-toto.io/Statement/v1", "subject": subject, "predicateType": kind, "predicate": {}});
        let statement = statement.to_string();
        let signed = format!("DSSEv1 {} {IN_TOTO} {} {statement}", IN_TOTO.len(), statement.len());
        let signature = STANDARD.encode(leaf.sign(signed.as_bytes()));
        let hash = |text: &str| json!({"algorithm": "sha256", "value": Digest::of(text.as_bytes()).hex()});
        let body = json!({
            "apiVersion": "0.0.1",
            "kind": "dsse",
            "spec": {
                "envelopeHash": hash("any"),
                "payloadHash": hash(&statement),
                "signatures": [{"signature": signature, "verifier": STANDARD.encode(leaf.pem())}],
            },
        });
        json!({
            "mediaType": BUNDLE,
            "verificationMaterial": {
                "certificate": {"rawBytes": STANDARD.encode(&leaf.certificate)},
                "tlogEntries": [self.entry("dsse", body.to_string().as_bytes(), leaf.from + 60)],
            },
            "dsseEnvelope": {
                "payload": STANDARD.encode(&statement), "payloadType": IN_TOTO, "signatures": [{"sig": signature}],
            },
        })
    }

    /// An entry in a log of two entries, with the proof of inclusion.
    fn entry(&self, kind: &str, body: &[u8], at: u64) -> Value {
        let (leaf, other) = (hash(&[&[0], body]), hash(&[&[0], b"another"]));
        let root = STANDARD.encode(hash(&[&[1], &leaf, &other]));
        let head = format!("rekor.example - 1\n2\n{root}\n");
        let hint = [&self.rekor.id()[..4], &self.rekor.sign(head.as_bytes())].concat();
        let envelope = format!("{head}\n\u{2014} rekor.example {}\n", STANDARD.encode(hint));
        let promise = self.rekor.sign(payload(&self.rekor, body, at, 0).to_string().as_bytes());
        json!({
            "logIndex": "0",
            "logId": {"keyId": STANDARD.encode(self.rekor.id())},
            "kindVersion": {"kind": kind, "version": "0.0.1"},
            "integratedTime": at.to_string(),
            "inclusionPromise": {"signedEntryTimestamp": STANDARD.encode(promise)},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": root,
                "treeSize": "2",
                "hashes": [STANDARD.encode(&other)],
                "checkpoint": {"envelope": envelope},
            },
            "canonicalizedBody": STANDARD.encode(body),
        })
    }
}

impl Default for Sigstore {
    fn default() -> Self {
        Self::new()
    }
}

impl Leaf {
    /// The certificate, in PEM.
    pub fn pem(&self) -> String {
        let text = STANDARD.encode(&self.certificate);
        let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    }

    /// Its key.
    pub fn key(&self) -> &KeyPair {
        &self.key
    }

    /// A signature by its key.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.key.sign(message).expect("signs")
    }
}

impl Authority {
    fn new(name: &str, above: Option<&Self>) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        let key = KeyPair::generate().expect("a key");
        let certificate = match above {
            Some(above) => params.signed_by(&key, &above.issuer),
            None => params.self_signed(&key),
        };
        let spki = key.subject_public_key_info();
        Self { certificate: certificate.expect("a certificate"), spki, issuer: Issuer::new(params, key) }
    }

    /// Its certificate, as DER.
    pub fn der(&self) -> &[u8] {
        self.certificate.der()
    }
}

impl Log {
    fn new() -> Self {
        Self { key: KeyPair::generate().expect("a key") }
    }

    fn spki(&self) -> Vec<u8> {
        self.key.subject_public_key_info()
    }

    fn id(&self) -> Vec<u8> {
        hash(&[&self.spki()])
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.key.sign(message).expect("signs")
    }

    /// The extension that proves that this log has logged a certificate (RFC 6962, section 3.2).
    fn sees(&self, to_be_signed: &[u8], issuer_spki: &[u8], at: u64) -> CustomExtension {
        let time = (at * 1000).to_be_bytes();
        let length = u32::try_from(to_be_signed.len()).expect("is small").to_be_bytes();
        let issuer = hash(&[issuer_spki]);
        let signed = [&[0, 0], &time[..], &[0, 1], &issuer, &length[1..], to_be_signed, &[0, 0]].concat();
        let signature = self.sign(&signed);
        let two = |length: usize| u16::try_from(length).expect("is small").to_be_bytes();
        let algorithm = [4, 3];
        let one = [&[0], &self.id()[..], &time, &[0, 0], &algorithm, &two(signature.len()), &signature].concat();
        let list = [&two(one.len() + 2)[..], &two(one.len()), &one].concat();
        CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 11129, 2, 4, 2], der(4, &list))
    }
}

/// The body of a log entry about a signature over `statement`.
pub fn hashed_record(statement: &[u8], signature: &[u8], pem: &str) -> Vec<u8> {
    let body = json!({
        "apiVersion": "0.0.1",
        "kind": "hashedrekord",
        "spec": {
            "data": {"hash": {"algorithm": "sha256", "value": Digest::of(statement).hex()}},
            "signature": {
                "content": STANDARD.encode(signature), "publicKey": {"content": STANDARD.encode(pem)},
            },
        },
    });
    body.to_string().into_bytes()
}

/// The data that a log signs as its promise, in canonical form: with sorted names.
fn payload(log: &Log, body: &[u8], at: u64, index: u64) -> Value {
    let id: String = log.id().iter().map(|byte| format!("{byte:02x}")).collect();
    json!({"body": STANDARD.encode(body), "integratedTime": at, "logID": id, "logIndex": index})
}

fn params(holder: &Holder) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let subject = holder.subject.as_str().try_into().expect("is ASCII");
    let is_mail = holder.subject.contains('@') && !holder.subject.contains("://");
    params.subject_alt_names = vec![if is_mail { SanType::Rfc822Name(subject) } else { SanType::URI(subject) }];
    params.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(holder.from);
    params.not_after = params.not_before + Duration::from_secs(600);
    let purpose = match holder.may_sign_code {
        true => ExtendedKeyUsagePurpose::CodeSigning,
        false => ExtendedKeyUsagePurpose::ServerAuth,
    };
    params.extended_key_usages = vec![purpose];
    let extension = |number: u64, content: Vec<u8>| {
        CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 57264, 1, number], content)
    };
    params.custom_extensions =
        vec![extension(1, holder.issuer.clone().into_bytes()), extension(8, der(12, holder.issuer.as_bytes()))];
    if let Some(repository) = &holder.repository {
        let uri = format!("https://github.com/{repository}");
        params.custom_extensions.push(extension(5, repository.clone().into_bytes()));
        params.custom_extensions.push(extension(12, der(12, uri.as_bytes())));
    }
    params
}

fn sign(params: &CertificateParams, key: &KeyPair, authority: &Authority) -> Vec<u8> {
    params.signed_by(key, &authority.issuer).expect("a certificate").der().to_vec()
}

/// The first part of a certificate, which is the signed part.
fn to_be_signed(certificate: &[u8]) -> &[u8] {
    let (start, _) = content(certificate);
    let inner = &certificate[start..];
    let (start, length) = content(inner);
    &inner[..start + length]
}

/// Where the content of a DER value begins, and how long it is.
fn content(der: &[u8]) -> (usize, usize) {
    match der[1] {
        short @ 0..0x80 => (2, usize::from(short)),
        long => {
            let bytes = &der[2..2 + usize::from(long & 0x7f)];
            (2 + bytes.len(), bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
        }
    }
}

/// A short DER value.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let head = match u8::try_from(length).expect("is short") {
        short @ 0..0x80 => vec![tag, short],
        long => vec![tag, 0x81, long],
    };
    [&head, content].concat()
}

/// SHA-256.
fn hash(parts: &[&[u8]]) -> Vec<u8> {
    let hex = Digest::of(&parts.concat()).hex();
    hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(&String::from_utf8_lossy(pair), 16).expect("hex")).collect()
}
