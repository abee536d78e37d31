use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use portcullis_contract::PolicyId;
use portcullis_registry::{BodyMemory as _, Guard, Web, WebSettings};
use rcgen::{KeyPair, SigningKey as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::*;
use crate::admission::tests::web;
use crate::cache::Answers;
use crate::share::{CALLS, Shares};

fn wanted(capability: Capability, payload: &Value) -> Result<(String, Vec<Signer>), String> {
    let verify = Verify::parse(capability, payload.to_string().as_bytes()).map_err(|error| error.to_string())?;
    verify.wanted().map_err(|error| error.to_string())
}

#[test]
fn both_versions_name_an_image_and_signers() {
    let fields = json!({"image": "ghcr.io/a/b:1", "pub_keys": ["one", "two"], "annotations": {"env": "prod"}});
    let mut second = fields.clone();
    second["type"] = json!("SigstorePubKeyVerify");
    for (capability, payload) in
        [(Capability::OciVerifyV1, json!({"SigstorePubKeyVerify": fields})), (Capability::OciVerifyV2, second)]
    {
        let (image, signers) = wanted(capability, &payload).expect("can be read");
        assert_eq!(image, "ghcr.io/a/b:1");
        let [Signer::PubKey { key, annotations, .. }, Signer::PubKey { .. }] = signers.as_slice() else {
            panic!("{signers:?}")
        };
        assert_eq!((key.as_str(), annotations["env"].as_str()), ("one", "prod"));
    }
    let prefix = json!({"type": "SigstoreKeylessPrefixVerify", "image": "a", "annotations": null,
        "keyless_prefix": [{"issuer": "https://i", "url_prefix": "https://github.com/org"}]});
    let (_, signers) = wanted(Capability::OciVerifyV2, &prefix).expect("can be read");
    assert!(matches!(&signers[..], [Signer::GenericIssuer { subject: Subject::UrlPrefix(_), .. }]), "{signers:?}");
    let github = json!({"type": "SigstoreGithubActionsVerify", "image": "a", "owner": "o"});
    let (_, signers) = wanted(Capability::OciVerifyV2, &github).expect("can be read");
    assert!(matches!(&signers[..], [Signer::GithubAction { repo: None, .. }]), "{signers:?}");
}

#[test]
fn a_call_says_which_registry_it_asks() {
    let asked = |capability, payload: Value| registry(capability, payload.to_string().as_bytes());
    let verify = json!({"type": "SigstorePubKeyVerify", "image": "ghcr.io/a/b:1", "pub_keys": ["k"]});
    assert_eq!(asked(Capability::OciVerifyV2, verify.clone()).as_deref(), Some("ghcr.io"));
    let verify = json!({"SigstorePubKeyVerify": verify});
    assert_eq!(asked(Capability::OciVerifyV1, verify).as_deref(), Some("ghcr.io"));
    assert_eq!(asked(Capability::OciManifest, json!("localhost:5000/a:1")).as_deref(), Some("localhost:5000"));
    assert_eq!(asked(Capability::OciManifest, json!({})), None);
    assert_eq!(asked(Capability::OciVerifyV2, json!({})), None);
}

#[test]
fn no_call_asks_a_registry_in_whose_share_it_is_not() {
    let twice = r#""image": "a.example/a:1", "image": "b.example/b:1", "pub_keys": ["k"]"#;
    let first = format!(r#"{{"SigstorePubKeyVerify": {{{twice}}}}}"#);
    let second = format!(r#"{{"type": "SigstorePubKeyVerify", {twice}}}"#);
    let variants =
        r#"{"SigstorePubKeyVerify": {"image": "a.example/a:1", "pub_keys": ["k"]}, "SigstoreKeylessVerify": {}}"#;
    for (capability, payload) in [
        (Capability::OciVerifyV1, first.as_str()),
        (Capability::OciVerifyV1, variants),
        (Capability::OciVerifyV1, r#"{"SigstorePubKeyVerify": ["a.example/a:1", ["k"], null]}"#),
        (Capability::OciVerifyV2, &second),
        (Capability::OciVerifyV2, r#"["SigstorePubKeyVerify", "a.example/a:1", ["k"], null]"#),
    ] {
        let asked = Verify::parse(capability, payload.as_bytes()).ok();
        let asked = asked.map(|verify| parse(verify.image()).expect("a name").api_host().to_owned());
        assert_eq!(registry(capability, payload.as_bytes()), asked, "{payload}");
    }
    Verify::parse(Capability::OciVerifyV1, first.as_bytes()).expect_err("an image is named once");
}

#[test]
fn what_is_missing_is_named_as_upstream_does() {
    for (payload, text) in [
        (json!({"type": "SigstorePubKeyVerify", "image": "a", "pub_keys": []}), "Must provide at least one pub key"),
        (json!({"type": "SigstoreKeylessVerify", "image": "a", "keyless": []}), "Must provide keyless info"),
        (json!({"type": "SigstoreGithubActionsVerify", "image": "a", "owner": ""}), "Must provide owner info"),
        (json!({"type": "SigstorePubKeyVerify", "image": "a", "pub_keys": vec!["k"; 101]}), "the limit is 100"),
        (json!({"type": "Other", "image": "a"}), "unknown variant"),
    ] {
        let error = wanted(Capability::OciVerifyV2, &payload).expect_err(text);
        assert!(error.contains(text), "{error}");
    }
    for payload in
        [json!({}), json!({"Other": {}}), json!({"SigstoreGithubActionsVerify": {"image": "a", "owner": "o"}})]
    {
        assert!(wanted(Capability::OciVerifyV1, &payload).is_err(), "{payload}");
    }
}

#[test]
fn neither_many_signers_nor_many_annotations_are_multiplied_with_each_other() {
    let many = |count: usize| (0..count).map(|number| (number.to_string(), json!(""))).collect::<Value>();
    let long = json!({"env": "x".repeat(MAX_ANNOTATION_BYTES - 3)});
    let longer = json!({"env": "x".repeat(MAX_ANNOTATION_BYTES - 2)});
    for (one, list, signer) in [
        (json!({"type": "SigstorePubKeyVerify"}), "pub_keys", json!("k")),
        (json!({"type": "SigstoreKeylessVerify"}), "keyless", json!({"issuer": "i", "subject": "s"})),
        (json!({"type": "SigstoreKeylessPrefixVerify"}), "keyless_prefix", json!({"issuer": "i", "url_prefix": "p"})),
        (json!({"type": "SigstoreGithubActionsVerify", "owner": "o"}), "", json!(null)),
        (
            json!({"type": "SigstoreCertificateVerify", "certificate": [], "require_rekor_bundle": true}),
            "",
            json!(null),
        ),
    ] {
        let ask = |signers: usize, annotations: &Value| {
            let mut payload = one.clone();
            payload["image"] = json!("a");
            payload["annotations"] = annotations.clone();
            if !list.is_empty() {
                payload[list] = vec![signer.clone(); signers].into();
            }
            wanted(Capability::OciVerifyV2, &payload).map(|(_, signers)| signers.len())
        };
        let refused = |signers, annotations: &Value, words: &str| {
            let error = ask(signers, annotations).expect_err(words);
            assert!(error.ends_with(words), "{one}: {error}");
        };
        refused(1, &many(65), "65 annotations are required, the limit is 64");
        refused(1, &longer, "the annotations that are required have 16385 bytes, the limit is 16384");
        if !list.is_empty() {
            assert_eq!((ask(100, &many(64)), ask(100, &long)), (Ok(100), Ok(100)));
            refused(101, &many(65), "101 signers are named, the limit is 100");
            refused(101, &longer, "101 signers are named, the limit is 100");
        }
    }
}

#[tokio::test]
async fn what_is_to_be_verified_is_decoded_in_the_turn_of_a_check() {
    let (images, _) = images(String::new(), String::new()).await;
    let policy: PolicyId = "cluster/a".parse().expect("an id");
    let taken = images.work.0.take(&policy, None).await;
    let (askers, nonsense) = (Askers::only(&policy), Bytes::from_static(b"{nonsense"));
    let mut answer = Box::pin(images.provide(&askers, Capability::OciVerifyV2, &nonsense));
    timeout(Duration::from_millis(50), answer.as_mut()).await.expect_err("it waits for its turn");
    drop(taken);
    answer.await.expect_err("it is not JSON");
}

/// A registry on the loopback that answers by the address, after a pause if that is a blob's. Its host.
async fn serve(answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static, pause: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let host = listener.local_addr().expect("an address").to_string();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let length = stream.read(&mut request).await.unwrap_or_default();
                let request = String::from_utf8_lossy(&request[..length]);
                // The client tries TLS first, which ends here.
                let Some(address) = request.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) else {
                    return;
                };
                if address.contains("/blobs/") {
                    sleep(pause).await;
                }
                let (status, body) = answer(address).map_or(("404 Not Found", String::new()), |body| ("200 OK", body));
                let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/vnd.oci.image.manifest.v1+json");
                let answer = format!("{head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
                // A question that waits for memory reads nothing more, so the connection may end.
                _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    host
}

/// Images of a registry on the loopback that has one manifest and one configuration; and its host.
async fn images(manifest: String, config: String) -> (Images, String) {
    let answer = move |address: &str| {
        let body = if address.contains("/manifests/") { &manifest } else { &config };
        Some(body.clone())
    };
    let host = serve(answer, Duration::ZERO).await;
    (images_of(&host), host)
}

/// Images of a registry on the loopback.
fn images_of(host: &str) -> Images {
    let web = WebSettings {
        plain_hosts: [host.to_owned()].into_iter().collect(),
        guard: Guard::new(vec!["127.0.0.1".parse().expect("an address")]),
        ..web(Duration::from_secs(30))
    };
    Images::new(Registry::new(Web::new(web), None), None, Arc::default())
}

/// A registry on the loopback that sends half of each manifest, 1 MiB, and then nothing; only that of the tag `small` is whole. Its host.
async fn stalling() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let host = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let length = stream.read(&mut request).await.unwrap_or_default();
                let request = String::from_utf8_lossy(&request[..length]);
                // The client tries TLS first, which ends here.
                if !request.starts_with("GET ") {
                    return;
                }
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length:";
                let answer = match request.contains("/manifests/small ") {
                    true => format!("{head} 2\r\n\r\n{{}}"),
                    false => format!("{head} {}\r\n\r\n{}", 2 << 20, " ".repeat(1 << 20)),
                };
                // A question that waits for memory reads nothing more, so the connection may end.
                _ = stream.write_all(answer.as_bytes()).await;
                _ = stream.read(&mut [0]).await;
            });
        }
    });
    host
}

#[tokio::test]
async fn a_registry_that_sends_much_and_then_nothing_leaves_memory_to_others() {
    let host = stalling().await;
    let images = Images { room: Arc::new(Room::new(Duration::from_millis(200))), ..images_of(&host) };
    let ask = |capability, number: usize, tag: String| {
        let (images, name) = (&images, Bytes::from(format!("\"{host}/apps/web:{tag}\"")));
        let askers = Askers::only(&format!("namespaced/n{number}/a").parse().expect("an id"));
        async move { images.provide(&askers, capability, &name).await.map_err(|error| error.to_string()) }
    };
    let capabilities = [Capability::OciManifestDigest, Capability::OciManifest, Capability::OciManifestConfig];
    let large = (0..8).map(|number| ask(capabilities[number % 3], number, format!("v{number}")));
    let mut large: FuturesUnordered<_> = large.collect();
    for _ in 0..4 {
        let error = large.next().await.expect("there are eight").expect_err("there is no memory");
        assert!(error.contains("waited for memory"), "{error}");
    }
    timeout(Duration::from_millis(50), large.next()).await.expect_err("four have memory and wait for the registry");
    ask(Capability::OciManifest, 0, "small".to_owned()).await.expect("what is small needs none");
}

#[tokio::test]
async fn that_others_waited_for_memory_in_vain_is_no_answer_for_who_has_memory() {
    let (images, host) = images(format!("{{}}{}", " ".repeat(300 << 10)), String::new()).await;
    let room = Arc::new(Room::new(Duration::from_millis(50)));
    let of = |policy: String| Askers::only(&policy.parse().expect("an id"));
    let large = (0..4).map(|n| QuestionMemory::new(&room, &of(format!("cluster/p{n}")), &format!("h{n}")));
    let large: Vec<_> = large.collect();
    for memory in &large {
        memory.take(1 << 20).await.expect("a place");
    }
    let images = Arc::new(Images { room, ..images });
    let (answers, shares) = (Answers::default(), Shares::new(CALLS));
    let name = Bytes::from(format!("\"{host}/apps/web:v1\""));
    let ask = async |policy: &str| {
        let (policy, images, asked) = (policy.parse().expect("an id"), Arc::clone(&images), name.clone());
        let find =
            |askers: Askers| async move { Box::pin(images.provide(&askers, Capability::OciManifest, &asked)).await };
        let question = (Capability::OciManifest, name.clone());
        let share = shares.take(&policy, Some(&host));
        answers.get(&policy, Duration::from_secs(30), question, share, find).await.expect("it is not in vain")
    };
    let error = ask("cluster/a").await.expect_err("ClusterPolicies have no place left");
    assert!(error.to_string().contains("waited for memory"), "{error}");
    ask("namespaced/b/x").await.expect("its namespace has places");
}

/// What a registry has of an image with so many signatures of 8 KiB each, by the last part of the address; and the signer's key.
fn signed(signatures: usize) -> (HashMap<String, String>, String) {
    let key = KeyPair::generate().expect("a key");
    let manifest = json!({"schemaVersion": 2}).to_string();
    let digest = Digest::of(manifest.as_bytes());
    let (mut answers, mut layers) = (HashMap::from([("v1".to_owned(), manifest)]), Vec::new());
    for number in 0..signatures {
        let critical = json!({"identity": {"docker-reference": ""}, "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature"});
        let optional = json!({"number": number, "padding": "x".repeat(8 << 10)});
        let statement = json!({"critical": critical, "optional": optional}).to_string();
        let signature = STANDARD.encode(key.sign(statement.as_bytes()).expect("a signature"));
        let blob = Digest::of(statement.as_bytes());
        layers.push(json!({"mediaType": "application/vnd.dev.cosign.simplesigning.v1+json", "digest": blob,
            "size": statement.len(), "annotations": {"dev.cosignproject.cosign/signature": signature}}));
        answers.insert(blob.to_string(), statement);
    }
    let config =
        json!({"mediaType": "application/vnd.oci.image.config.v1+json", "digest": Digest::of(b"{}"), "size": 2});
    let list = json!({"schemaVersion": 2, "config": config, "layers": layers});
    answers.insert(format!("sha256-{}.sig", digest.hex()), list.to_string());
    (answers, key.public_key_pem())
}

#[tokio::test]
async fn questions_about_images_with_many_signatures_do_not_wait_for_memory() {
    let (answers, key) = signed(10);
    let answer = move |address: &str| address.rsplit('/').next().and_then(|last| answers.get(last).cloned());
    let host = serve(answer, Duration::from_millis(50)).await;
    // With no patience, a question that must wait fails at once.
    let images = Images { room: Arc::new(Room::new(Duration::ZERO)), ..images_of(&host) };
    let askers = Askers::only(&"cluster/a".parse().expect("an id"));
    let ask = |number: usize| {
        let image = format!("{host}/apps/web{number}:v1");
        let payload = json!({"type": "SigstorePubKeyVerify", "image": image, "pub_keys": [key]}).to_string();
        let (images, askers) = (&images, &askers);
        async move { Box::pin(images.provide(askers, Capability::OciVerifyV2, &Bytes::from(payload))).await }
    };
    for answer in join_all((0..4).map(ask)).await {
        answer.expect("it is signed");
    }
}

#[tokio::test]
async fn that_an_image_is_missing_or_not_signed_is_an_answer_and_that_it_cannot_be_found_out_is_none() {
    let (answers, key) = signed(1);
    let stranger = KeyPair::generate().expect("a key").public_key_pem();
    let manifest = answers["v1"].clone();
    let answer = move |address: &str| {
        let last = address.rsplit('/').next()?;
        let is_signed = address.contains("/signed/");
        (is_signed || last == "v1").then(|| answers.get(last).cloned()).flatten()
    };
    let host = serve(answer, Duration::ZERO).await;
    let images = images_of(&host);
    let askers = Askers::only(&"cluster/a".parse().expect("an id"));
    let ask = async |capability, payload: Value| {
        Box::pin(images.provide(&askers, capability, &Bytes::from(payload.to_string()))).await
    };
    let verify = async |name: &str, key: &str| {
        let image = format!("{host}/{name}:v1");
        ask(Capability::OciVerifyV2, json!({"type": "SigstorePubKeyVerify", "image": image, "pub_keys": [key]})).await
    };
    let is_no = |answer: Answer, text: &str| {
        let error = answer.expect_err(text);
        assert!(matches!(&error, ProvideError::Negative(said) if said.contains(text)), "{error:?}");
        assert!(error.to_string().starts_with("Callback evaluation failure: "), "{error}");
    };
    verify("signed", &key).await.expect("it is signed");
    is_no(verify("signed", &stranger).await, "missing signatures: pubKey");
    is_no(verify("unsigned", &key).await, "no signatures found for image");
    let name = |tag: &str| json!(format!("{host}/unsigned:{tag}"));
    for capability in [Capability::OciManifestDigest, Capability::OciManifest, Capability::OciManifestConfig] {
        is_no(ask(capability, name("v2")).await, "(status 404)");
    }
    is_no(ask(Capability::OciManifestConfig, name("v1")).await, "names no configuration");
    assert_eq!(ask(Capability::OciManifest, name("v1")).await.expect("it is there"), manifest);
    // A registry that cannot be reached, or may not be asked.
    for image in ["127.0.0.1:9/apps/web:v1", "192.168.0.1/apps/web:v1"] {
        let error = ask(Capability::OciManifestDigest, json!(image)).await.expect_err(image);
        assert!(matches!(error, ProvideError::Failed(_)), "{error:?}");
    }
}

#[tokio::test]
async fn manifest_and_configuration_are_passed_on_as_they_are_without_decoding_them() {
    // A tree of values cannot be so deep, and has no digits that mean nothing.
    let nested = format!("{}1.50{}", "[".repeat(1000), "]".repeat(1000));
    let config = format!(r#"{{"os": "linux", "nested": {nested}}}"#);
    let digest = Digest::of(config.as_bytes());
    let manifest = format!(r#"{{"schemaVersion": 2, "config": {{"digest": "{digest}"}}, "nested": {nested}}}"#);
    let (images, host) = images(manifest.clone(), config.clone()).await;
    let askers = Askers::only(&"cluster/a".parse::<PolicyId>().expect("an id"));
    let name = format!("\"{host}/apps/web:v1\"");
    let reply = images.provide(&askers, Capability::OciManifestConfig, &Bytes::from(name)).await.expect("a reply");
    let digest = Digest::of(manifest.as_bytes());
    assert_eq!(reply, format!(r#"{{"manifest":{manifest},"digest":"{digest}","config":{config}}}"#));
}
