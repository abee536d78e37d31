//! Sections 5, 12 and 15: host capabilities that policies use, and the broker that provides them.

use std::thread;
use std::time::Duration;

use portcullis_contract::Reason;
use portcullis_tests::sigstore::{Holder, Leaf, Sigstore, days_ago};
use portcullis_tests::{
    Authority, Folder, Pod, PodSetup, Policy, Program, Registry, Reply, Review, SdkGuest, Source, Verdict, eventually,
    rego,
};
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::resolving::NameServer;

pub(crate) const ASKS: &str = "cluster/asks";

/// A policy that makes these calls, and denies with their answers in annotations.
pub(crate) fn asks(policy: Policy, grants: &[&str], calls: &Value) -> Policy {
    calling(policy.example("host-capabilities"), grants, calls)
}

/// The policy, with settings that name these calls.
fn calling(policy: Policy, grants: &[&str], calls: &Value) -> Policy {
    // A guest in Go takes a while to start, and much longer on a busy machine.
    policy.spec("hostCapabilities", json!(grants)).timeout(20).settings(json!({ "calls": calls }))
}

fn raw(capability: &str, payload: &Value) -> Value {
    let (namespace, operation) = capability.split_once('/').expect("a path");
    json!({"raw": {"namespace": namespace, "operation": operation, "payload": payload}})
}

pub(crate) fn ask(pod: &Pod, id: &str) -> Verdict {
    pod.ask(id, &Review::pod()).verdict()
}

fn in_team() -> Review {
    Review::pod().with("/namespace", "team")
}

/// The answers to a policy's calls.
pub(crate) fn lines(verdict: &Verdict) -> Vec<String> {
    assert!(!verdict.allowed, "{verdict:?}");
    let answers = (0..).map_while(|number| verdict.annotations.get(&format!("call-{number}")));
    answers.cloned().collect()
}

pub(crate) fn pod_with(folder: &Folder, registry: &Registry) -> PodSetup {
    Pod::on(folder).loader("--source-ca", registry.ca_file())
}

#[test]
fn promise_a_policy_remembers_values_and_nobody_else_sees_them() {
    let (folder, guests) = (Folder::empty(), SdkGuest::all());
    let get = raw("cache/get", &json!({"key": "seen"}));
    let calls = json!([get, raw("cache/set", &json!({"key": "seen", "value": [7, 8], "ttl": 600}))]);
    for guest in &guests {
        folder.put(&calling(guest.policy("asks"), &["cache/*"], &calls));
        folder.put(&calling(guest.policy("other"), &["cache/*"], &json!([get])));
        folder.put(&calling(guest.policy("refused"), &[], &json!([get])));
    }
    let pod = Pod::on(&folder).start();
    pod.wait_broker();
    let first = |id: &str| lines(&ask(&pod, id)).remove(0);
    for guest in &guests {
        let [asks, other, refused] = ["asks", "other", "refused"].map(|name| guest.policy(name).id());
        for id in [&asks, &other, &refused] {
            pod.wait_current(id, 1);
        }
        assert!(first(&asks).contains("Value not found"));
        assert!(first(&asks).contains("Value found") && first(&asks).contains("[7,8]"), "{}", first(&asks));
        assert!(first(&other).contains("Value not found"));
        assert!(first(&refused).contains("has not been granted"));
        // The next generation does not see the values of this one, also where it has the same settings.
        folder.put(&calling(guest.policy("asks"), &["cache/*"], &calls).ignoring_failure());
        pod.wait_current(&asks, 2);
        assert!(first(&asks).contains("Value not found"));
        assert!(first(&asks).contains("Value found"));
        folder.put(&calling(guest.policy("asks"), &["cache/get"], &json!([get])));
        pod.wait_current(&asks, 3);
        assert!(first(&asks).contains("Value not found"));
    }
}

#[test]
fn promise_guests_log_by_each_sdk_and_read_the_answers_to_their_own_calls() {
    let (folder, guests) = (Folder::empty(), SdkGuest::all());
    for guest in &guests {
        // Empty answers and errors come between other answers.
        let log = raw("tracing/log", &json!({"level": "warning", "message": "hello", "from": guest.sdk}));
        let set = raw("cache/set", &json!({"key": "seen", "value": [1], "ttl": 600}));
        let calls = json!([log, set, log, {"lookupHost": "web.example"}, log, set]);
        folder.put(&calling(guest.policy("logs"), &["cache/*"], &calls));
    }
    let pod = Pod::on(&folder).start();
    pod.wait_broker();
    for guest in &guests {
        let id = guest.policy("logs").id();
        pod.wait_current(&id, 1);
        let answers = lines(&ask(&pod, &id));
        assert_eq!(answers.len(), 6, "{answers:#?}");
        for number in [0, 2, 4] {
            assert_eq!(answers[number], "", "{answers:#?}");
        }
        for number in [1, 5] {
            assert!(answers[number].contains(r#""code":0"#), "{answers:#?}");
        }
        assert!(answers[3].starts_with("error: ") && answers[3].contains("has not been granted"), "{answers:#?}");
        let is_of_guest = |line: &Value| line["message"] == "policy log" && line["policy"] == id.as_str();
        let line = pod.evaluator().wait_for_log("a line of the guest", is_of_guest);
        assert_eq!(
            (&line["level"], &line["said"]),
            (&json!("WARN"), &json!(format!(r#"hello {{"from":"{}"}}"#, guest.sdk)))
        );
    }
}

#[test]
fn promise_policies_ask_registries_name_servers_and_for_trust_in_certificates() {
    let (registry, names) = (Registry::tls(), NameServer::new([192, 0, 2, 7]));
    names.answer_one_of(1);
    let (ours, theirs) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let (digest, layer) = registry.push("apps/web:v1", b"not a module, for all the registry knows");
    registry.sign("apps/web", &digest, &ours);
    let image = format!("{}/apps/web:v1", registry.host());
    let authority = Authority::shared();
    let certificate = authority.identity(&["web.example"]).certificate;
    let (folder, guests) = (Folder::empty(), SdkGuest::all());
    let calls = json!([
        {"lookupHost": "web.example"},
        {"manifestDigest": image},
        {"manifest": image},
        raw("oci/v1/oci_manifest_config", &json!(image)),
        {"verifyKeys": {"image": image, "keys": [ours.public_key_pem()]}},
        raw("oci/v1/verify", &json!({"SigstorePubKeyVerify": {"image": image, "pub_keys": [ours.public_key_pem()]}})),
        {"verifyKeys": {"image": image, "keys": [theirs.public_key_pem()]}},
        {"verifyCertificate": {"certificate": certificate, "chain": [authority.pem]}},
    ]);
    for guest in &guests {
        folder.put(&calling(guest.policy("asks"), &["oci/*", "net/v1/*", "crypto/*"], &calls));
    }
    let pod = pod_with(&folder, &registry).loader("--name-server", names.address).start();
    pod.wait_broker();
    for guest in &guests {
        let id = guest.policy("asks").id();
        pod.wait_current(&id, 1);
        let answers = lines(&ask(&pod, &id));
        let answer = |number: usize| {
            let parsed = serde_json::from_str::<Value>(&answers[number]);
            parsed.unwrap_or_else(|_| panic!("{}: {answers:#?}", guest.sdk))
        };
        assert_eq!(answer(0), json!({"ips": ["192.0.2.7"]}));
        assert_eq!(answer(1), json!({ "digest": digest }));
        assert_eq!(answer(2)["layers"][0]["digest"], json!(layer));
        assert_eq!((&answer(3)["digest"], &answer(3)["config"]), (&json!(digest), &json!({})));
        for number in [4, 5] {
            assert_eq!(answer(number), json!({"is_trusted": true, "digest": digest}));
        }
        let refused = &answers[6];
        assert!(refused.starts_with("error: ") && refused.contains("Callback evaluation failure"), "{refused}");
        // Each SDK has a type of its own for this answer.
        let trusted = if guest.sdk == "rust" { json!("True") } else { json!({"trusted": true, "reason": ""}) };
        assert_eq!(answer(7), trusted);
        // The broker caches the answers of registries for a while.
        let given = registry.manifests_given();
        assert_eq!(lines(&ask(&pod, &id)), answers);
        assert_eq!(registry.manifests_given(), given, "nothing was asked again");
    }
}

#[test]
fn promise_policies_verify_images_by_a_certificate_its_chain_and_the_log() {
    let (registry, sigstore) = (Registry::tls(), Sigstore::new());
    let folder = Folder::empty();
    folder.write("trusted_root.json", sigstore.trusted_root().to_string());
    // One certificate that is valid now, and one that has expired since it signed.
    let [fresh, old] =
        [0, 3].map(|days| sigstore.leaf(&Holder { from: days_ago(days), ..Holder::workflow("org/repo") }));
    let images = [("fresh", Some(&fresh)), ("old", Some(&old)), ("unlogged", None)].map(|(name, leaf)| {
        let name = format!("apps/{name}");
        let (digest, _) = registry.push(&format!("{name}:v1"), name.as_bytes());
        match leaf {
            Some(leaf) => registry.sign_with_certificate(&name, &digest, &sigstore, leaf),
            None => registry.sign(&name, &digest, fresh.key()),
        }
        (format!("{}/{name}:v1", registry.host()), digest)
    });
    let chain = [&sigstore.intermediate, &sigstore.root].map(|authority| authority.der().to_vec());
    let verify = |image: usize, leaf: &Leaf, chain: Option<&[Vec<u8>]>, require_rekor_bundle: bool| {
        let payload = json!({
            "type": "SigstoreCertificateVerify", "image": images[image].0, "certificate": leaf.pem().into_bytes(),
            "certificate_chain": chain, "require_rekor_bundle": require_rekor_bundle,
        });
        raw("oci/v2/verify", &payload)
    };
    let calls = json!([
        verify(0, &fresh, Some(&chain), true),
        verify(1, &old, None, true),
        verify(2, &fresh, Some(&chain), false),
        verify(2, &fresh, Some(&chain), true),
        verify(1, &old, Some(&chain), true),
        verify(0, &fresh, Some(&chain[..1][..0]), false),
        verify(0, &old, None, false),
    ]);
    folder.put(&asks(Policy::cluster("asks"), &["oci/*"], &calls));
    let pod = pod_with(&folder, &registry).loader("--trust-root", folder.path("trusted_root.json").display()).start();
    pod.wait_current(ASKS, 1);
    pod.wait_broker();
    let answers = lines(&ask(&pod, ASKS));
    for number in [0, 1, 2] {
        let answer: Value = serde_json::from_str(&answers[number]).unwrap_or_else(|_| panic!("{answers:#?}"));
        assert_eq!(answer, json!({"is_trusted": true, "digest": images[number].1}));
    }
    for (number, text) in [
        (3, "with a log entry within its validity"),
        (4, "not trusted by certificate_chain"),
        (5, "not trusted by certificate_chain"),
        (6, "the certificate"),
    ] {
        assert!(answers[number].starts_with("error: ") && answers[number].contains(text), "{number}: {answers:#?}");
    }
}

#[test]
fn fault_m27_capabilities_that_were_not_granted_and_no_packet_leaves() {
    let (source, names) = (Source::https(), NameServer::new([192, 0, 2, 7]));
    names.answer_one_of(1);
    let image = format!("{}/apps/web:v1", source.host());
    let folder = Folder::with_canary();
    let calls = json!([
        {"manifestDigest": image},
        {"lookupHost": "web.example"},
        raw("kubernetes/list_resources_all", &json!({"api_version": "v1", "kind": "Secret"})),
    ]);
    // The capability is granted, but not for this kind.
    let list = json!([raw("kubernetes/list_resources_all", &json!({"api_version": "v1", "kind": "Secret"}))]);
    let kinds = json!([{"apiVersion": "v1", "kind": "Pod"}]);
    let guests = SdkGuest::all();
    for guest in &guests {
        folder.put(&calling(guest.policy("asks"), &[], &calls));
        folder.put(&calling(guest.policy("reads"), &["*"], &list).spec("contextAwareResources", kinds.clone()));
    }
    let pod =
        Pod::on(&folder).loader("--source-ca", source.ca_file(&folder)).loader("--name-server", names.address).start();
    pod.wait_broker();
    for guest in &guests {
        let [asks, reads] = ["asks", "reads"].map(|name| guest.policy(name).id());
        pod.wait_current(&asks, 1);
        let answers = lines(&ask(&pod, &asks));
        assert_eq!(answers.len(), 3, "{answers:#?}");
        for line in answers {
            assert!(line.contains("Policy has not been granted access to the '"), "{line}");
        }
        pod.wait_current(&reads, 1);
        let verdict = ask(&pod, &reads);
        assert!(
            lines(&verdict)[0].contains(
                "Policy has not been granted access to Kubernetes v1/Secret resources. The violation has been reported."
            ),
            "{verdict:?}"
        );
    }
    assert_eq!((source.connections(), names.queries()), (0, 0));

    // A guest that does not catch the refusal fails, with its reason.
    let fails = Policy::cluster("fails").guest("fails_with_its_capability");
    let ignored = fails.renamed("ignored").ignoring_failure();
    folder.put(&fails);
    folder.put(&ignored);
    let review = Review::pod();
    pod.wait_current(&fails.id(), 1);
    pod.ask(&fails.id(), &review).assert_not_judged(&review, &fails.id(), Reason::CapabilityDenied);
    pod.wait_current(&ignored.id(), 1);
    pod.ask(&ignored.id(), &review).assert_ignored(&review, &ignored.id(), Reason::CapabilityDenied);
    for id in [fails.id(), ignored.id()] {
        assert!(pod.evaluation_errors(&id, Reason::CapabilityDenied) > 0.0, "{}", pod.metrics(Program::Evaluator));
    }
    assert_eq!((source.connections(), names.queries()), (0, 0));
}

#[test]
fn fault_x07_the_author_of_a_namespaced_policy_grants_himself_everything() {
    let (source, names) = (Source::https(), NameServer::new([192, 0, 2, 7]));
    names.answer_one_of(1);
    let folder = Folder::with_canary();
    let id = "namespaced/team/asks";
    let calls = json!([
        {"lookupHost": "web.example"},
        {"manifestDigest": format!("{}/apps/web:v1", source.host())},
        raw("kubernetes/list_resources_all", &json!({"api_version": "v1", "kind": "Secret"})),
        raw("crypto/v1/is_certificate_trusted", &json!({})),
        raw("cache/get", &json!({"key": "seen"})),
    ]);
    folder.put(&asks(Policy::namespaced("team", "asks"), &["*"], &calls));
    let fails = Policy::namespaced("team", "fails").guest("fails_with_its_capability");
    folder.put(&fails.clone().spec("hostCapabilities", json!(["net/*"])));
    let answers = |allowed: &[&str]| {
        let setup = Pod::on(&folder).loader("--source-ca", source.ca_file(&folder));
        let setup = setup.loader("--name-server", names.address);
        let flag = "--namespaced-capability";
        let add = |setup: PodSetup, capability: &&str| setup.loader(flag, capability).evaluator(flag, capability);
        let pod = allowed.iter().fold(setup, add).start();
        pod.wait_current(id, 1);
        pod.wait_broker();
        pod.wait_current(&fails.id(), 1);
        // With its capability this one fails as well, since it looks up a host without a name.
        let reason = if allowed.is_empty() { Reason::CapabilityDenied } else { Reason::CapabilityUnavailable };
        let review = in_team();
        pod.ask(&fails.id(), &review).assert_not_judged(&review, &fails.id(), reason);
        lines(&pod.ask(id, &review).verdict())
    };
    let assert_denied = |answers: &[String], paths: &[&str]| {
        assert_eq!(answers.len(), paths.len(), "{answers:#?}");
        for (line, path) in answers.iter().zip(paths) {
            let denied = format!("Policy has not been granted access to the '{path}' host capability.");
            let way = line.contains("may not have it") && line.contains("--namespaced-capability");
            assert!(line.contains(&denied) && way, "{line}");
        }
    };
    let paths = [
        "net/v1/dns_lookup_host",
        "oci/v1/manifest_digest",
        "kubernetes/list_resources_all",
        "crypto/v1/is_certificate_trusted",
        "cache/get",
    ];
    assert_denied(&answers(&[]), &paths);
    assert_eq!((source.connections(), names.queries()), (0, 0));
    let answers = answers(&["net/*"]);
    assert_eq!(answers[0], r#"{"ips":["192.0.2.7"]}"#);
    assert_denied(&answers[1..], &paths[1..]);
    assert_eq!(source.connections(), 0);
}

#[test]
fn fault_b01_the_broker_dies_and_comes_back() {
    let registry = Registry::tls();
    let (digest, _) = registry.push("apps/web:v1", b"bytes");
    let image = format!("{}/apps/web:v1", registry.host());
    let folder = Folder::with_canary();
    folder.put(&asks(Policy::cluster("asks"), &["oci/*"], &json!([{"manifestDigest": image}])));
    let swallows = asks(Policy::cluster("swallows"), &["oci/*"], &json!([{"manifestDigest": image}]));
    folder.put(&swallows.settings(json!({"calls": [{"manifestDigest": image}], "swallow": true})));
    let pod = pod_with(&folder, &registry).start();
    let right = json!({ "digest": digest }).to_string();
    for id in [ASKS, "cluster/swallows"] {
        pod.wait_current(id, 1);
    }
    pod.wait_broker();
    assert_eq!(lines(&ask(&pod, ASKS)), std::slice::from_ref(&right));
    let evaluator = pod.evaluator().pid();
    pod.loader().kill();
    // The call fails early, so that the guest has time left.
    let verdict = pod.within(Duration::from_secs(4), "a call without a loader", || ask(&pod, ASKS));
    assert!(lines(&verdict)[0].contains("Callback evaluation failure: the loader of this pod"), "{verdict:?}");
    // If the policy does not mention the failure, the audit annotation does.
    let verdict = ask(&pod, "cluster/swallows");
    let annotation = verdict.annotations.get("capability-unavailable").unwrap_or_else(|| panic!("{verdict:?}"));
    assert!(annotation.starts_with("oci/v1/manifest_digest: "), "{annotation}");
    pod.loader().start_again();
    eventually("the broker to answer again", || (lines(&ask(&pod, ASKS)) == [right.clone()]).then_some(()));
    assert!(!ask(&pod, "cluster/swallows").annotations.contains_key("capability-unavailable"));
    assert_eq!(pod.evaluator().pid(), evaluator);
    // When the evaluator dies, the broker connects again.
    pod.canary().pause();
    pod.evaluator().kill();
    pod.evaluator().start_again();
    pod.wait_current(ASKS, 1);
    pod.resume_canary();
    eventually("the broker to answer the new evaluator", || (lines(&ask(&pod, ASKS)) == [right.clone()]).then_some(()));
}

#[test]
fn fault_b02_a_registry_that_never_answers_and_a_flood_of_one_policy() {
    let (source, names) = (Source::https(), NameServer::new([192, 0, 2, 7]));
    names.answer_one_of(1);
    source.otherwise(|_| Reply::silence());
    let folder = Folder::with_canary();
    let image = |tag: usize| format!("{}/apps/web:v{tag}", source.host());
    let slow = asks(Policy::cluster("slow"), &["oci/*"], &json!([{"manifestDigest": image(1)}]));
    folder.put(&slow);
    folder.put(&asks(Policy::cluster("asks"), &["net/*"], &json!([{"lookupHost": "web.example"}])));
    // With eight cores, all callers are evaluated at the same time, and those that the broker has no room for wait there.
    let setup = Pod::on(&folder).loader("--source-ca", source.ca_file(&folder)).evaluator("--cores", 8);
    // The registry's own limit comes later than that of the policy, which is 20 seconds.
    let setup = setup.loader("--name-server", names.address).loader("--fetch-header-timeout", "60s");
    let pod = setup.start();
    for id in [ASKS, "cluster/slow"] {
        pod.wait_current(id, 1);
    }
    pod.wait_broker();
    thread::scope(|scope| {
        let callers: Vec<_> = (0..24)
            .map(|_| {
                let (pod, client) = (&pod, pod.new_client());
                // Connects first, because the call is to be measured without the handshake, and there are many handshakes at once.
                client.get("/").expect("connects");
                scope.spawn(move || {
                    let ask = || client.try_ask("cluster/slow", &Review::pod()).expect("an answer");
                    pod.within(Duration::from_secs(25), "a call of twenty seconds", ask).verdict()
                })
            })
            .collect();
        eventually("the registry to be asked", || (source.connections() > 0).then_some(()));
        // Other policies get answers in the meantime.
        let mut meanwhile = 0;
        while callers.iter().any(|caller| !caller.is_finished()) {
            let verdict = pod.within(Duration::from_secs(2), "a call of another policy", || ask(&pod, ASKS));
            assert_eq!(lines(&verdict), [r#"{"ips":["192.0.2.7"]}"#]);
            meanwhile += usize::from(callers.iter().any(|caller| !caller.is_finished()));
        }
        assert!(meanwhile > 0, "no other policy was answered beside the callers");
        for caller in callers {
            let verdict = caller.join().expect("an answer");
            let answers = lines(&verdict);
            let late = "'oci/v1/manifest_digest' took longer than the policy's time allows";
            assert!(matches!(&answers[..], [answer] if answer.contains(late)), "{verdict:?}");
        }
    });
    let failed =
        pod.metric(r#"portcullis_capability_calls_total{capability="oci/v1/manifest_digest",outcome="failed"}"#);
    assert!(failed > 0.0);
}

#[test]
fn fault_b03_a_process_of_another_user_at_the_socket() {
    let folder = Folder::with_canary();
    folder.put(&asks(Policy::cluster("asks"), &["net/*"], &json!([{"lookupHost": "web.example"}])));
    // The loader runs as the user of this test, but the evaluator expects another user.
    let pod = Pod::on(&folder).evaluator("--broker-user", 4711).start();
    pod.wait_current(ASKS, 1);
    let line = lines(&ask(&pod, ASKS)).remove(0);
    assert!(line.contains("the loader of this pod does not answer"), "{line}");
    pod.evaluator().wait_for_log("the refusal", |log| {
        log["message"].as_str().is_some_and(|text| text.starts_with("a process of another user connected"))
    });
}

#[test]
fn fault_b04_a_policy_that_fails_when_its_capability_does() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("fails").guest("fails_with_its_capability").spec("hostCapabilities", json!(["net/*"])));
    let pod = Pod::on(&folder).start();
    pod.wait_current("cluster/fails", 1);
    let review = Review::pod();
    pod.ask("cluster/fails", &review).assert_not_judged(&review, "cluster/fails", Reason::CapabilityUnavailable);
    let errors = |reason| pod.evaluation_errors("cluster/fails", reason);
    let counted = (errors(Reason::CapabilityUnavailable), errors(Reason::EvaluationTrapped));
    assert_eq!(counted, (1.0, 0.0), "{}", pod.metrics(Program::Evaluator));
}

#[test]
fn fault_b07_rules_in_rego_without_a_cluster_do_not_judge() {
    let folder = Folder::with_canary();
    let kinds = json!([{"apiVersion": "v1", "kind": "LimitRange"}, {"apiVersion": "v1", "kind": "Namespace"}]);
    folder.put(&Policy::cluster("rego").bytes(rego("unique-names")).spec("contextAwareResources", kinds));
    let pod = Pod::on(&folder).start();
    pod.wait_current("cluster/rego", 1);
    pod.wait_broker();
    let verdict = ask(&pod, "cluster/rego");
    assert!(!verdict.allowed && verdict.code == 503, "{verdict:?}");
    assert!(
        verdict.message.contains("objects of the cluster are missing")
            && verdict.message.contains("kube::Client was not initialized properly"),
        "{verdict:?}"
    );
    let errors = pod.evaluation_errors("cluster/rego", Reason::CapabilityUnavailable);
    assert!(errors > 0.0, "{}", pod.metrics(Program::Evaluator));
    // If the loader does not come back, the policy does not judge without objects either.
    pod.loader().kill();
    let verdict = ask(&pod, "cluster/rego");
    assert!(!verdict.allowed && verdict.message.contains("the loader of this pod does not answer"), "{verdict:?}");
    pod.loader().start_again();
}
