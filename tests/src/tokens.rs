//! A token service like those that registries name in a challenge (Docker's token and OAuth2 specifications). It issues JSON web
//! tokens, which a real registry checks.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{CertificateParams, KeyPair, SigningKey as _};
use serde_json::{Value, json};

use crate::{Asked, Reply, Secret, Source};

/// The registry's name at the service.
pub(crate) const SERVICE: &str = "tests";
/// The issuer of the tokens.
pub(crate) const ISSUER: &str = "token service of the tests";

/// A running token service. Everyone may pull from repositories below `public/`; users with a login may do everything.
pub struct TokenService {
    source: Source,
    /// The certificate of its key, PEM.
    certificate: String,
    identity: Secret,
}

/// The state of the service.
struct Issuer {
    key: KeyPair,
    certificate_der: Vec<u8>,
    basic: String,
    identity: Secret,
}

impl TokenService {
    /// A service that accepts this user and password, and a new identity token.
    ///
    /// # Panics
    /// When it cannot listen.
    pub fn new(user: &str, password: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let certificate = CertificateParams::default().self_signed(&key).expect("a certificate");
        let identity = Secret::planted_in("identity-token");
        let issuer = Arc::new(Issuer {
            key,
            certificate_der: certificate.der().to_vec(),
            basic: format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))),
            identity: identity.clone(),
        });
        let source = Source::https();
        source.otherwise(move |asked| issuer.answer(asked));
        Self { source, certificate: certificate.pem(), identity }
    }

    /// Its address.
    pub fn realm(&self) -> String {
        self.source.url("/token")
    }

    /// The certificate of the key that signs its tokens, as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The identity token that it accepts.
    pub fn identity(&self) -> &Secret {
        &self.identity
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.source.asked()
    }
}

impl Issuer {
    fn answer(&self, asked: &Asked) -> Reply {
        let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
        let is_known = match asked.method.as_str() {
            _ if path != "/token" => return Reply::status(404),
            "POST" => {
                let right = field(&asked.body, "grant_type").as_deref() == Some("refresh_token")
                    && field(&asked.body, "refresh_token").as_deref() == Some(self.identity.text());
                if !right {
                    return Reply::status(401);
                }
                true
            }
            _ => match asked.header("authorization") {
                Some(login) if login != self.basic => return Reply::status(401),
                login => login.is_some(),
            },
        };
        let form = if asked.method == "POST" { &asked.body } else { query };
        let scope = field(form, "scope").unwrap_or_default();
        let token = self.token(&granted(&scope, is_known));
        Reply::ok(json!({"token": token, "access_token": token, "expires_in": 300}).to_string())
    }

    fn token(&self, access: &Value) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs();
        let header = json!({"typ": "JWT", "alg": "ES256", "x5c": [STANDARD.encode(&self.certificate_der)]});
        let claims = json!({
            "iss": ISSUER, "sub": "tests", "aud": SERVICE, "jti": now.to_string(),
            "iat": now - 10, "nbf": now - 10, "exp": now + 300, "access": access,
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(&claims));
        let signature = raw_signature(&self.key.sign(signed.as_bytes()).expect("signs"));
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// The value of a field of a form.
fn field(form: &str, name: &str) -> Option<String> {
    let value = form.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?.1;
    let value = value.replace('+', " ").replace("%3A", ":").replace("%2F", "/").replace("%2C", ",");
    Some(value.replace("%20", " "))
}

/// The actions of `repository:<name>:<actions>` that are granted.
fn granted(scope: &str, is_known: bool) -> Value {
    let mut parts = scope.splitn(3, ':');
    let (kind, name, actions) = (parts.next(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let is_public = |action: &&str| name.starts_with("public/") && *action == "pull";
    let actions: Vec<&str> = actions.split(',').filter(|action| is_known || is_public(action)).collect();
    json!([{"type": kind, "name": name, "actions": actions}])
}

/// The two numbers of an ECDSA signature in ASN.1, as 32 bytes each, the form that JSON web tokens need.
fn raw_signature(asn1: &[u8]) -> Vec<u8> {
    let mut rest = &asn1[2..];
    let mut raw = Vec::new();
    for _ in 0..2 {
        let (number, next) = rest[2..].split_at(usize::from(rest[1]));
        let significant = &number[number.len().saturating_sub(32)..];
        raw.extend(std::iter::repeat_n(0, 32 - significant.len()).chain(significant.iter().copied()));
        rest = next;
    }
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_may_pull_what_is_public() {
        let actions = |scope, is_known| granted(scope, is_known)[0]["actions"].clone();
        assert_eq!(actions("repository:public/a:pull,push", false), json!(["pull"]));
        assert_eq!(actions("repository:a:pull", false), json!([]));
        assert_eq!(actions("repository:a:pull,push", true), json!(["pull", "push"]));
    }

    #[test]
    fn signatures_have_two_numbers_of_the_same_length() {
        let asn1 = [&[0x30, 0x26, 0x02, 0x21, 0][..], &[0xff; 32], &[0x02, 0x01, 7]].concat();
        let raw = raw_signature(&asn1);
        assert_eq!((raw.len(), raw[0], raw[31], raw[32], raw[63]), (64, 0xff, 0xff, 0, 7));
    }
}
