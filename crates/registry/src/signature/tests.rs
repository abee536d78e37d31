//! Signatures of the tests' own Sigstore, and everything that may be wrong with them.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_contract::{Digest, Reason};
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};

use super::cosign::STATEMENT_TYPE;
use super::material::Layer;
use super::sigstore::{BUNDLE, GITHUB, Holder, Leaf, SIGN, Sigstore, days_ago, hashed_record};
use super::trust::NoTrustRoot;
use super::{Evidence, Material, Requirement, Signer, TrustRoot};
use crate::oci::Image;

const KIND: &str = "cosign container image signature";

fn manifest() -> Digest {
    Digest::of(b"manifest")
}

fn statement_of(digest: &Digest, kind: &str) -> Vec<u8> {
    let critical =
        json!({"identity": {"docker-reference": "x"}, "image": {"docker-manifest-digest": digest}, "type": kind});
    json!({"critical": critical, "optional": {"env": "prod"}}).to_string().into_bytes()
}

fn statement() -> Vec<u8> {
    statement_of(&manifest(), KIND)
}

fn beside(body: Vec<u8>, annotations: BTreeMap<String, String>) -> Material {
    material(Layer { media_type: STATEMENT_TYPE.to_owned(), annotations, body })
}

fn in_bundle(bundle: &Value) -> Material {
    let body = bundle.to_string().into_bytes();
    material(Layer { media_type: BUNDLE.to_owned(), annotations: BTreeMap::new(), body })
}

fn material(layer: Layer) -> Material {
    Material { layers: vec![layer], incomplete: None }
}

fn trust(sigstore: &Sigstore) -> Result<TrustRoot, NoTrustRoot> {
    Ok(TrustRoot::from_json(sigstore.trusted_root().to_string().as_bytes()).expect("a trust root"))
}

/// The evidence, or the reason and the text of the refusal.
fn ask(
    material: &Material,
    wanted: &str,
    trust: &Result<TrustRoot, NoTrustRoot>,
) -> Result<Vec<Evidence>, (Reason, String)> {
    let image: Image = "example.com/a:v1".parse().expect("a name");
    let wanted = Requirement::from_yaml(wanted).expect(wanted);
    let judged = material.judge_with(&image, &manifest(), &wanted, trust);
    let evidence = |proofs: Vec<super::Proof>| proofs.into_iter().map(|proof| proof.evidence).collect();
    judged.map(evidence).map_err(|error| (error.reason, error.message))
}

const WORKFLOW: &str = "allOf: [{kind: githubAction, owner: org, repo: repo}]";

#[track_caller]
fn refused(material: &Material, wanted: &str, trust: &Result<TrustRoot, NoTrustRoot>, words: &str) {
    let (reason, text) = ask(material, wanted, trust).expect_err("is not as it should be");
    assert_eq!(reason, Reason::SignatureInvalid, "{text}");
    assert!(text.contains(words), "want {words:?}: {text}");
}

#[test]
fn l21_only_the_right_key_over_the_right_digest_counts() {
    let none = Err(NoTrustRoot::Absent("no trust root is configured"));
    let (ours, theirs) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let signed = |body: Vec<u8>, pair: &KeyPair| {
        let signature = STANDARD.encode(pair.sign(&body).expect("signs"));
        beside(body, [("dev.cosignproject.cosign/signature".to_owned(), signature)].into())
    };
    let by = |more: &str| {
        let key = ours.public_key_pem().replace('\n', "\\n");
        format!("allOf: [{{kind: pubKey, key: \"{key}\"{more}}}]")
    };
    assert_eq!(ask(&signed(statement(), &ours), &by(""), &none), Ok(vec![Evidence::Key]));
    refused(&signed(statement(), &theirs), &by(""), &none, "pubKey");
    let other = statement_of(&Digest::of(b"other"), KIND);
    refused(&signed(other, &ours), &by(""), &none, "no signatures found");
    refused(&signed(statement_of(&manifest(), "x"), &ours), &by(""), &none, "no signatures found");
    refused(&Material::default(), &by(""), &none, "no signatures found");
    assert!(ask(&signed(statement(), &ours), &by(", annotations: {env: prod}"), &none).is_ok());
    refused(&signed(statement(), &ours), &by(", annotations: {env: test}"), &none, "pubKey");
    // Newer versions of cosign also put signatures by a key into a bundle.
    let sigstore = Sigstore::new();
    let leaf = sigstore.leaf(&Holder::workflow("org/repo"));
    let mut bundle = sigstore.bundle(&leaf, &manifest(), SIGN, json!({"env": "prod"}));
    let payload = STANDARD.decode(bundle["dsseEnvelope"]["payload"].as_str().expect("text")).expect("base64");
    let kind = "application/vnd.in-toto+json";
    let message = [format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len()).into_bytes(), payload].concat();
    bundle["dsseEnvelope"]["signatures"] = json!([{"sig": STANDARD.encode(ours.sign(&message).expect("signs"))}]);
    bundle["verificationMaterial"] = json!({"publicKey": {"hint": ""}, "tlogEntries": []});
    assert_eq!(ask(&in_bundle(&bundle), &by(", annotations: {env: prod}"), &none), Ok(vec![Evidence::Key]));
    refused(&in_bundle(&bundle), &by(", annotations: {env: test}"), &none, "one by a key");
    let theirs =
        by("").replace(&ours.public_key_pem().replace('\n', "\\n"), &theirs.public_key_pem().replace('\n', "\\n"));
    refused(&in_bundle(&bundle), &theirs, &none, "one by a key");
}

#[test]
fn l21_an_identity_counts_that_a_certificate_proves() {
    let sigstore = Sigstore::new();
    let trust = trust(&sigstore);
    let leaf = sigstore.leaf(&Holder::workflow("org/repo"));
    let older = beside(statement(), sigstore.annotations(&leaf, &statement()));
    let newer = in_bundle(&sigstore.bundle(&leaf, &manifest(), SIGN, json!({"env": "prod"})));
    for material in [&older, &newer] {
        for wanted in [
            WORKFLOW,
            "allOf: [{kind: githubAction, owner: org, annotations: {env: prod}}]",
            &format!(
                "allOf: [{{kind: genericIssuer, issuer: '{GITHUB}', subject: {{urlPrefix: 'https://github.com/org'}}}}]"
            ),
            "anyOf: {signatures: [{kind: githubAction, owner: other}, {kind: githubAction, owner: org}]}",
        ] {
            let evidence = ask(material, wanted, &trust).expect(wanted);
            let [Evidence::Certificate(identity)] = evidence.as_slice() else { panic!("{evidence:?}") };
            assert_eq!(identity.repository.as_deref(), Some("org/repo"));
            assert_eq!(identity.signed_at.as_second() as u64, leaf.from + 60);
        }
        for wanted in [
            "allOf: [{kind: githubAction, owner: other}]",
            "allOf: [{kind: githubAction, owner: org, repo: other}]",
            "allOf: [{kind: githubAction, owner: org, annotations: {env: test}}]",
            "allOf: [{kind: genericIssuer, issuer: 'https://accounts.example', subject: {urlPrefix: 'https://github.com/org'}}]",
            &format!(
                "allOf: [{{kind: genericIssuer, issuer: '{GITHUB}', subject: {{equal: 'https://github.com/org/repo'}}}}]"
            ),
        ] {
            // The error names the identity that has signed.
            refused(material, wanted, &trust, "one of https://github.com/org/repo/");
        }
    }
    let person = sigstore.leaf(&Holder::person("https://accounts.example", "me@example.com"));
    let signed = beside(statement(), sigstore.annotations(&person, &statement()));
    let wants = |mail: &str| {
        format!("allOf: [{{kind: genericIssuer, issuer: 'https://accounts.example', subject: {{equal: '{mail}'}}}}]")
    };
    assert!(ask(&signed, &wants("me@example.com"), &trust).is_ok());
    refused(&signed, &wants("you@example.com"), &trust, "me@example.com by https://accounts.example");
    // Another organisation whose name begins like ours.
    let evil = sigstore.leaf(&Holder::workflow("org-evil/repo"));
    let signed = beside(statement(), sigstore.annotations(&evil, &statement()));
    let prefix = format!(
        "allOf: [{{kind: genericIssuer, issuer: '{GITHUB}', subject: {{urlPrefix: 'https://github.com/org'}}}}]"
    );
    refused(&signed, &prefix, &trust, "org-evil");
}

/// Both forms of a signature by this certificate.
fn both(sigstore: &Sigstore, leaf: &Leaf) -> [Material; 2] {
    let older = beside(statement(), sigstore.annotations(leaf, &statement()));
    [older, in_bundle(&sigstore.bundle(leaf, &manifest(), SIGN, json!({})))]
}

#[test]
fn l21_certificates_that_prove_nothing() {
    let (sigstore, other) = (Sigstore::new(), Sigstore::new());
    let trust = trust(&sigstore);
    let good = Holder::workflow("org/repo");
    for (leaf, words) in [
        (other.leaf_seen_by(&sigstore.ct, &good), "no authority of the trust root"),
        (sigstore.leaf(&Holder { may_sign_code: false, ..good.clone() }), "not for signing code"),
        (sigstore.leaf(&Holder { is_logged: false, ..good.clone() }), "no certificate transparency log"),
        (sigstore.leaf_seen_by(&other.ct, &good), "no certificate transparency log"),
    ] {
        for material in both(&sigstore, &leaf) {
            refused(&material, WORKFLOW, &trust, words);
        }
    }
    for holder in [Holder { algorithm: &rcgen::PKCS_ED25519, ..good.clone() }, good] {
        for material in both(&sigstore, &sigstore.leaf(&holder)) {
            assert!(ask(&material, WORKFLOW, &trust).is_ok());
        }
    }
}

#[test]
fn l21_log_entries_that_prove_nothing() {
    let (sigstore, other) = (Sigstore::new(), Sigstore::new());
    // A trust root without the intermediate authority, which then must come with the signature.
    let mut root = sigstore.trusted_root();
    let certificates = root.pointer_mut("/certificateAuthorities/0/certChain/certificates");
    certificates.and_then(Value::as_array_mut).expect("is there").remove(0);
    let trust = Ok(TrustRoot::from_json(root.to_string().as_bytes()).expect("a trust root"));
    let holder = Holder::workflow("org/repo");
    let (leaf, second) = (sigstore.leaf(&holder), sigstore.leaf(&holder));
    let (signature, at) = (leaf.sign(&statement()), leaf.from + 60);
    let body = hashed_record(&statement(), &signature, &leaf.pem());
    let with =
        |log: &Sigstore, body: &[u8], at: u64| beside(statement(), log.annotations_with(&leaf, &signature, body, at));
    assert!(ask(&with(&sigstore, &body, at), WORKFLOW, &trust).is_ok());
    let of_another = [
        hashed_record(b"another", &signature, &leaf.pem()),
        hashed_record(&statement(), &second.sign(&statement()), &leaf.pem()),
        hashed_record(&statement(), &signature, &second.pem()),
    ];
    for body in &of_another {
        refused(&with(&sigstore, body, at), WORKFLOW, &trust, "something else");
    }
    refused(&with(&other, &body, at), WORKFLOW, &trust, "no transparency log of the trust root");
    // The certificate has expired long ago, but that does not matter: what matters is when the signature was logged.
    refused(&with(&sigstore, &body, leaf.from + 3600), WORKFLOW, &trust, "was not valid when it was signed");
    refused(&with(&sigstore, &body, leaf.from - 60), WORKFLOW, &trust, "was not valid when it was signed");
    let no_kind = json!({"kind": "other", "apiVersion": "0.0.1"}).to_string();
    refused(&with(&sigstore, no_kind.as_bytes(), at), WORKFLOW, &trust, "cannot be read");
    refused(&with(&sigstore, b"no JSON", at), WORKFLOW, &trust, "cannot be read");

    // A signature of another key, with a good certificate and a matching log entry.
    let forged = second.sign(&statement());
    let body = hashed_record(&statement(), &forged, &leaf.pem());
    let material = beside(statement(), sigstore.annotations_with(&leaf, &forged, &body, at));
    refused(&material, WORKFLOW, &trust, "not by the key of its certificate");

    let change = |name: &str, value: Option<&str>| {
        let mut annotations = sigstore.annotations(&leaf, &statement());
        let old = annotations.remove(name).expect(name);
        annotations.extend(value.map(|value| (name.to_owned(), value.replace("OLD", &old))));
        beside(statement(), annotations)
    };
    let large = "x".repeat(100 << 10);
    for (name, value, words) in [
        ("dev.sigstore.cosign/bundle", None, "nothing says when"),
        ("dev.sigstore.cosign/bundle", Some("{}"), "cannot be read"),
        ("dev.sigstore.cosign/bundle", Some(large.as_str()), "is longer than"),
        ("dev.sigstore.cosign/certificate", None, "one by a key"),
        ("dev.sigstore.cosign/certificate", Some("OLDOLD"), "exactly one certificate"),
        ("dev.sigstore.cosign/certificate", Some("x"), "exactly one certificate"),
        (
            "dev.sigstore.cosign/certificate",
            Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "cannot be read",
        ),
        ("dev.sigstore.cosign/certificate", Some(large.as_str()), "is longer than"),
        ("dev.sigstore.cosign/chain", None, "no authority of the trust root"),
        ("dev.sigstore.cosign/chain", Some("OLDOLDOLDOLD"), "more than 8 certificates"),
    ] {
        refused(&change(name, value), WORKFLOW, &trust, words);
    }
    // A promise for another time.
    let mut annotations = sigstore.annotations(&leaf, &statement());
    let entry = annotations.get_mut("dev.sigstore.cosign/bundle").expect("is there");
    *entry = entry.replace(&format!("\"integratedTime\":{at}"), &format!("\"integratedTime\":{}", at + 1));
    refused(&beside(statement(), annotations), WORKFLOW, &trust, "no transparency log of the trust root");
}

#[test]
fn l21_bundles_that_prove_nothing() {
    let (sigstore, other) = (Sigstore::new(), Sigstore::new());
    let trust = trust(&sigstore);
    let leaf = sigstore.leaf(&Holder::workflow("org/repo"));
    let of = |manifest: &Digest, kind: &str| in_bundle(&sigstore.bundle(&leaf, manifest, kind, json!({})));
    refused(&of(&Digest::of(b"other"), SIGN), WORKFLOW, &trust, "no signatures found");
    refused(&of(&manifest(), "https://slsa.dev/provenance/v1"), WORKFLOW, &trust, "no signatures found");
    refused(&in_bundle(&other.bundle(&leaf, &manifest(), SIGN, json!({}))), WORKFLOW, &trust, "no transparency log");
    let change = |path: &str, value: Value| {
        let mut bundle = sigstore.bundle(&leaf, &manifest(), SIGN, json!({}));
        *bundle.pointer_mut(path).expect(path) = value;
        in_bundle(&bundle)
    };
    let entry = "/verificationMaterial/tlogEntries/0";
    let good = sigstore.bundle(&leaf, &manifest(), SIGN, json!({}));
    let entries = vec![good["verificationMaterial"]["tlogEntries"][0].clone(); 9];
    let second = sigstore.bundle(&sigstore.leaf(&Holder::workflow("org/repo")), &manifest(), SIGN, json!({}));
    let of_second = |path: &str| second.pointer(path).expect(path).clone();
    let hash = STANDARD.encode([7; 32]);
    for (path, value, words) in [
        ("/verificationMaterial/tlogEntries", json!([]), "not whole"),
        ("/verificationMaterial/tlogEntries", json!(entries), "more than 8"),
        ("/verificationMaterial/tlogEntries", of_second("/verificationMaterial/tlogEntries"), "something else"),
        ("/verificationMaterial/certificate", of_second("/verificationMaterial/certificate"), "not by the key"),
        (&format!("{entry}/inclusionProof"), Value::Null, "not whole"),
        (&format!("{entry}/inclusionProof/hashes"), json!([hash]), "no transparency log"),
        (&format!("{entry}/inclusionProof/rootHash"), json!(hash), "not whole"),
        (&format!("{entry}/inclusionPromise"), Value::Null, "when it was signed"),
        (&format!("{entry}/integratedTime"), json!((leaf.from + 61).to_string()), "no transparency log"),
        ("/dsseEnvelope/signatures/0/sig", json!(STANDARD.encode([1; 70])), "not by the key"),
    ] {
        refused(&change(path, value), WORKFLOW, &trust, words);
    }
    let large = in_bundle(&sigstore.bundle(&leaf, &manifest(), SIGN, json!({"x": "x".repeat(100 << 10)})));
    refused(&large, WORKFLOW, &trust, "no signatures found");
}

#[test]
fn l22_what_cannot_be_known_lets_nothing_through() {
    let sigstore = Sigstore::new();
    let leaf = sigstore.leaf(&Holder::workflow("org/repo"));
    let none = Err(NoTrustRoot::Absent("there is no trust root"));
    for material in both(&sigstore, &leaf) {
        let (reason, text) = ask(&material, WORKFLOW, &none).expect_err("is not checked");
        assert_eq!(reason, Reason::SignatureUnavailable, "{text}");
        assert!(text.contains("there is no trust root") && text.contains("githubAction of org/repo"), "{text}");
        let image: Image = "example.com/a:v1".parse().expect("a name");
        let wanted = Requirement::from_yaml(WORKFLOW).expect("good");
        let judge =
            |material: &Material, file| material.judge(&image, &manifest(), &wanted, file).expect_err("is not checked");
        let without = judge(&material, None);
        assert_eq!(without.reason, Reason::SignatureUnavailable);
        assert!(without.message.contains("--trust-root"), "{without}");
        let away = judge(&material, Some(Path::new("/nowhere")));
        assert_eq!(away.reason, Reason::SignatureUnavailable);
        assert!(away.message.contains("/nowhere"), "{away}");
        // With a trust root that identifies the signer: first all signatures, then with some that could not be fetched.
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("trusted_root.json");
        std::fs::write(&file, sigstore.trusted_root().to_string()).expect("writes");
        let proofs = material.judge(&image, &manifest(), &wanted, Some(&file)).expect("is signed");
        assert_eq!(proofs[0].signer, "githubAction of org/repo");
        let part = Material { incomplete: Some("away".to_owned()), layers: Vec::new() };
        let part = judge(&part, Some(&file));
        assert!(part.reason == Reason::SignatureUnavailable && part.message.contains("away"), "{part}");
    }
}

#[test]
fn a_trust_root_says_what_it_lacks() {
    let sigstore = Sigstore::new();
    let good = sigstore.trusted_root();
    let read =
        |root: &Value| TrustRoot::from_json(root.to_string().as_bytes()).map(|_| ()).map_err(|error| error.to_string());
    assert_eq!(read(&good), Ok(()));
    assert_eq!(read(&json!({"mediaType": "x", "trustedRoot": good})), Ok(()), "a client's trust configuration");
    let without = |name: &str| {
        let mut root = good.clone();
        root[name] = json!([]);
        root
    };
    let mut no_key = good.clone();
    no_key["tlogs"][0]["publicKey"]["rawBytes"] = "AAAA".into();
    for (root, words) in [
        (json!([]), "trusted_root.json"),
        (json!({}), "trusted_root.json"),
        (without("certificateAuthorities"), "certificateAuthorities"),
        (without("tlogs"), "tlogs"),
        (without("ctlogs"), "ctlogs"),
        (no_key, "trusted_root.json"),
    ] {
        let error = read(&root).expect_err(words);
        assert!(error.contains(words), "{error}");
    }
    // Each authority and log in it is valid only for its own period.
    let leaf = sigstore.leaf(&Holder::workflow("org/repo"));
    let [older, newer] = both(&sigstore, &leaf);
    let ended = json!({"start": "2020-01-01T00:00:00Z", "end": "2021-01-01T00:00:00Z"});
    for (path, words) in [
        ("/certificateAuthorities/0/validFor", "no authority of the trust root was valid"),
        ("/tlogs/0/publicKey/validFor", "no transparency log of the trust root"),
        ("/ctlogs/0/publicKey/validFor", "no certificate transparency log"),
    ] {
        let mut root = good.clone();
        *root.pointer_mut(path).expect(path) = ended.clone();
        let trust = Ok(TrustRoot::from_json(root.to_string().as_bytes()).expect("a trust root"));
        refused(&older, WORKFLOW, &trust, words);
        refused(&newer, WORKFLOW, &trust, words);
    }
    assert!(leaf.from < days_ago(2), "the certificates of these tests have ended");
}

#[test]
fn a_certificate_of_ones_own_counts_with_its_key_and_with_a_log_entry_in_its_time() {
    let sigstore = Sigstore::new();
    let leaf = sigstore.leaf(&Holder::workflow("org/repo"));
    let from = i64::try_from(leaf.from).expect("a time");
    let wants = |leaf: &Leaf, must_be_logged, not_after| {
        let key = leaf.key().public_key_pem();
        let annotations = [("env".to_owned(), "prod".to_owned())].into();
        let signer = Signer::Certificate { key, not_before: from, not_after, must_be_logged, annotations };
        Requirement::signer(signer).expect("a signer")
    };
    let judge = |material: &Material, wanted: &Requirement, trust: &Result<TrustRoot, NoTrustRoot>| {
        let image: Image = "example.com/a:v1".parse().expect("a name");
        material.judge_with(&image, &manifest(), wanted, trust).map(drop)
    };
    let judged =
        |annotations: &BTreeMap<String, String>, wanted: &Requirement, trust: &Result<TrustRoot, NoTrustRoot>| {
            judge(&beside(statement(), annotations.clone()), wanted, trust).map_err(|error| error.reason)
        };
    let (trust, none) = (trust(&sigstore), Err(NoTrustRoot::Absent("no trust root is configured")));
    let (logged, plain) = (wants(&leaf, true, from + 600), wants(&leaf, false, from + 600));
    let whole = sigstore.annotations(&leaf, &statement());
    assert_eq!(judged(&whole, &logged, &trust), Ok(()));
    assert_eq!(judged(&whole, &plain, &trust), Ok(()));
    assert_eq!(judged(&whole, &plain, &none), Ok(()));
    let (invalid, unavailable) = (Err(Reason::SignatureInvalid), Err(Reason::SignatureUnavailable));
    assert_eq!(judged(&whole, &logged, &none), unavailable, "no log is trusted");
    // Without an entry.
    let mut bare = whole.clone();
    bare.remove("dev.sigstore.cosign/bundle");
    assert_eq!((judged(&bare, &plain, &trust), judged(&bare, &logged, &trust)), (Ok(()), invalid));
    // A trust root that is configured but cannot be used: an entry that is there cannot be checked.
    let unusable = TrustRoot::from_json(b"{}").map_err(NoTrustRoot::Unusable);
    assert_eq!(judged(&whole, &plain, &unusable), unavailable);
    assert_eq!((judged(&bare, &plain, &unusable), judged(&bare, &logged, &unusable)), (Ok(()), unavailable));
    let other = sigstore.leaf(&Holder::workflow("org/repo"));
    assert_eq!(judged(&whole, &wants(&other, false, from + 600), &unusable), invalid, "it has not signed at all");
    // A Sigstore bundle proves nothing about such a certificate.
    let newer = in_bundle(&sigstore.bundle(&leaf, &manifest(), SIGN, json!({"env": "prod"})));
    assert!(judge(&newer, &plain, &trust).is_ok());
    let error = judge(&newer, &logged, &trust).expect_err("no entry counts");
    assert!(error.reason == Reason::SignatureInvalid && error.message.contains("in a Sigstore bundle"), "{error}");
    // If there is an entry, it must be right, whether one is required or not.
    let refused = |annotations: &BTreeMap<String, String>, leaf: &Leaf, not_after, words: &str| {
        for must_be_logged in [true, false] {
            let wanted = wants(leaf, must_be_logged, not_after);
            let error = judge(&beside(statement(), annotations.clone()), &wanted, &trust).expect_err(words);
            assert_eq!(error.reason, Reason::SignatureInvalid, "{error}");
            assert!(error.message.contains(words), "want {words:?}: {error}");
        }
    };
    refused(&whole, &leaf, from + 59, "not logged within the validity of the certificate");
    refused(&whole, &other, from + 600, "not by the key of the certificate");
    let theirs = Sigstore::new().annotations(&leaf, &statement());
    refused(&theirs, &leaf, from + 600, "its log is not one of the trust root");
    let signature = leaf.sign(&statement());
    for (body, words) in [
        (hashed_record(b"another statement", &signature, &leaf.pem()), "about another signature"),
        (hashed_record(&statement(), &other.sign(&statement()), &leaf.pem()), "about another signature"),
        (hashed_record(&statement(), &signature, &other.pem()), "about another certificate"),
        (b"nonsense".to_vec(), "cannot be read"),
    ] {
        let annotations = sigstore.annotations_with(&leaf, &signature, &body, leaf.from + 60);
        refused(&annotations, &leaf, from + 600, words);
    }
    let record = hashed_record(&statement(), &signature, &leaf.pem());
    let mut late = sigstore.annotations_with(&leaf, &signature, &record, leaf.from + 900);
    refused(&late, &leaf, from + 600, "not logged within the validity of the certificate");
    let moved =
        late["dev.sigstore.cosign/bundle"].replace(&(leaf.from + 900).to_string(), &(leaf.from + 60).to_string());
    late.insert("dev.sigstore.cosign/bundle".to_owned(), moved);
    refused(&late, &leaf, from + 600, "its log has not signed its entry");
}
