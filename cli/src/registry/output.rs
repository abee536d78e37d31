//! The results of the commands, as text or as JSON.

use portcullis_contract::Digest;
use portcullis_registry::oci::Image;
use portcullis_registry::signature::{Evidence, Proof};
use serde_json::{Value, json};

use crate::args::ResultForm;

/// An artifact that was pushed, saved or checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Artifact {
    /// Its name, without a digest.
    name: String,
    /// The digest of its manifest.
    manifest: Digest,
    /// Its earlier name, if that was another one.
    from: Option<String>,
}

impl Artifact {
    pub(super) fn new(image: &Image, manifest: Digest) -> Self {
        Self { name: image.address_with_tag(), manifest, from: None }
    }

    /// The same artifact, which had this name in another place.
    pub(super) fn from(self, name: &str) -> Self {
        Self { from: Some(format!("registry://{name}")), ..self }
    }

    /// `registry://host/repository:tag@digest`, as a policy may name it.
    pub(super) fn name(&self) -> String {
        format!("{}@{}", self.name, self.manifest)
    }

    fn json(&self) -> Value {
        let mut json = json!({"image": self.name(), "manifestDigest": self.manifest});
        if let Some(from) = &self.from {
            json["from"] = from.as_str().into();
        }
        json
    }
}

/// One artifact with more information about it: as words after its name, or as further fields.
pub(super) fn one(form: ResultForm, artifact: &Artifact, words: &str, fields: Value) -> anyhow::Result<String> {
    match form {
        ResultForm::Text => Ok(format!("{}{words}\n", artifact.name())),
        ResultForm::Json => object(artifact.json(), fields),
    }
}

/// Several artifacts, a line each.
pub(super) fn list(form: ResultForm, artifacts: &[Artifact]) -> anyhow::Result<String> {
    match form {
        ResultForm::Text => Ok(artifacts.iter().map(|artifact| artifact.name() + "\n").collect()),
        ResultForm::Json => {
            object(json!({"artifacts": artifacts.iter().map(Artifact::json).collect::<Vec<_>>()}), Value::Null)
        }
    }
}

/// A result as words, or as a JSON object.
pub(super) fn either(form: ResultForm, words: String, json: Value) -> anyhow::Result<String> {
    match form {
        ResultForm::Text => Ok(words + "\n"),
        ResultForm::Json => object(json, Value::Null),
    }
}

/// The signers that were proved: as a text that follows the name of the artifact, and as fields.
pub(super) fn proved(proofs: &[Proof]) -> (String, Value) {
    let mut words = " is signed as wanted".to_owned();
    for Proof { signer, evidence } in proofs {
        words.push_str(&format!("\n  {signer}: {evidence}"));
    }
    let field = |Proof { signer, evidence }: &Proof| match evidence {
        Evidence::Key => json!({"signer": signer, "by": "key"}),
        Evidence::Certificate(identity) => json!({
            "signer": signer,
            "by": "certificate",
            "subject": identity.subject,
            "issuer": identity.issuer,
            "repository": identity.repository,
            "signedAt": identity.signed_at.to_string(),
        }),
    };
    (words, json!({"signed": true, "proofs": proofs.iter().map(field).collect::<Vec<_>>()}))
}

fn object(mut json: Value, fields: Value) -> anyhow::Result<String> {
    for (name, value) in fields.as_object().into_iter().flatten() {
        json[name] = value.clone();
    }
    Ok(serde_json::to_string_pretty(&json)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_json_say_the_same() {
        let digest = Digest::of(b"manifest");
        let artifact = Artifact::new(&"a.example/b:v1".parse().expect("a name"), digest);
        let name = format!("registry://a.example/b:v1@{digest}");
        assert_eq!(
            one(ResultForm::Text, &artifact, " is good", Value::Null).expect("words"),
            format!("{name} is good\n")
        );
        let text = one(ResultForm::Json, &artifact, " is good", json!({"good": true})).expect("JSON");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(json, json!({"image": name, "manifestDigest": digest, "good": true}));
        let moved = artifact.from("c.example/b:v1");
        let json: Value = serde_json::from_str(&list(ResultForm::Json, &[moved]).expect("JSON")).expect("JSON");
        assert_eq!(json["artifacts"][0]["from"], "registry://c.example/b:v1");
    }

    #[test]
    fn what_was_proved_is_told() {
        let proof = Proof { signer: "pubKey of us".to_owned(), evidence: Evidence::Key };
        let (words, fields) = proved(&[proof]);
        assert_eq!(words, " is signed as wanted\n  pubKey of us: with this key");
        assert_eq!(fields, json!({"signed": true, "proofs": [{"signer": "pubKey of us", "by": "key"}]}));
    }
}
