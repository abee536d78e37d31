//! The content of the Secrets of an installation: of an authority, and of a serving certificate.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_e2e::Installation;
use serde_json::{Value, json};

/// The Secrets at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Secrets {
    /// `ca.crt` of the authority's Secret; empty if it is missing.
    pub(crate) authority: String,
    /// `previous.crt` of the authority's Secret.
    pub(crate) previous: String,
    /// `tls.crt` of the serving Secret.
    pub(crate) leaf: String,
    /// `ca.crt` of the serving Secret.
    pub(crate) shown: String,
}

impl Secrets {
    /// The Secrets for webhooks.
    pub(crate) fn of(installation: &Installation<'_>) -> Self {
        Self::named(installation, "ca", "tls")
    }

    /// The Secrets for loaders.
    pub(crate) fn of_siblings(installation: &Installation<'_>) -> Self {
        Self::named(installation, "siblings-ca", "siblings")
    }

    fn named(installation: &Installation<'_>, authority: &str, serving: &str) -> Self {
        let secret = |kind: &str| installation.api().find(&path(installation, kind)).unwrap_or_default();
        let (ca, tls) = (secret(authority), secret(serving));
        Self {
            authority: text(&ca, "ca.crt"),
            previous: text(&ca, "previous.crt"),
            leaf: text(&tls, "tls.crt"),
            shown: text(&tls, "ca.crt"),
        }
    }

    /// Whether no change is under way: there is one authority, and it issued the serving certificate.
    pub(crate) fn are_settled(&self) -> bool {
        !self.authority.is_empty() && self.previous.is_empty() && self.shown == self.authority && !self.leaf.is_empty()
    }
}

/// The path of the Secret of an authority (`ca`, `siblings-ca`) or of a serving certificate (`tls`, `siblings`).
pub(crate) fn path(installation: &Installation<'_>, kind: &str) -> String {
    format!("/api/v1/namespaces/{}/secrets/{}", installation.namespace(), name(installation, kind))
}

/// The name of that Secret.
pub(crate) fn name(installation: &Installation<'_>, kind: &str) -> String {
    format!("portcullis-{}-{kind}", installation.policy_server())
}

/// A value of a Secret as text; empty if the Secret does not have it.
pub(crate) fn text(secret: &Value, key: &str) -> String {
    let bytes = secret["data"][key].as_str().map(|text| STANDARD.decode(text).unwrap());
    bytes.map(|bytes| String::from_utf8(bytes).unwrap()).unwrap_or_default()
}

/// Replaces values of a Secret.
pub(crate) fn put(installation: &Installation<'_>, kind: &str, texts: &[(&str, &str)]) {
    let data: serde_json::Map<String, Value> =
        texts.iter().map(|(key, text)| ((*key).to_owned(), STANDARD.encode(text).into())).collect();
    let patched = installation.api().patch(&path(installation, kind), &json!({ "data": data }));
    patched.unwrap().expect("a patched Secret");
}

/// The `caBundle` of each entry of each webhook configuration.
pub(crate) fn bundles(installation: &Installation<'_>) -> Vec<String> {
    let entries = |webhook: Value| webhook["webhooks"].as_array().cloned().unwrap_or_default();
    let bundle = |entry: Value| {
        let text = entry["clientConfig"]["caBundle"].as_str().unwrap_or_default().to_owned();
        String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
    };
    installation.webhooks().into_iter().flat_map(entries).map(bundle).collect()
}
