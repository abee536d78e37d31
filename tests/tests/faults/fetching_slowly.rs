//! Section 4: sources that are slow, ask clients to come back later, do not have the module or a part of it yet, or redirect.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portcullis_contract::{Digest, Reason};
use portcullis_tests::{
    Folder, LIMIT, Pod, PodSetup, Policy, Program, Registry, Reply, Review, Source, Tls, Verdict, eventually,
    one_round_in_time,
};
use serde_json::json;

use crate::hostile::{MANIFEST, WASM, manifest};

const REMOTE: &str = "cluster/remote";

/// A pod whose loader trusts the source's authority, and a policy whose module is at `/m.wasm` there.
fn pod_with(folder: &Folder, source: &Source) -> PodSetup {
    folder.put(&Policy::cluster("remote").module(&source.url("/m.wasm")));
    Pod::on(folder).loader("--source-ca", source.ca_file(folder))
}

/// With the loader's own time limit.
#[test]
fn fault_l02_source_never_answers() {
    const UPDATED: &str = "cluster/updated";
    const PATIENCE: Duration = Duration::from_secs(10);
    let (silent, healthy) = (Source::https(), Source::https());
    silent.otherwise(|_| Reply::silence());
    healthy.otherwise(|asked| Reply::module_named(&asked.path));
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let pod = pod_with(&folder, &silent).start();
    pod.wait_current(UPDATED, 1);
    folder.put(&Policy::cluster("updated").module(&silent.url("/updated.wasm")));
    // Many waiting downloads do not hold up other policies.
    for number in 0..5 {
        folder.put(&Policy::cluster(&format!("waits-{number}")).module(&silent.url(&format!("/{number}.wasm"))));
    }
    one_round_in_time(|round| {
        let before = silent.asked().len();
        eventually("a download to wait", || (silent.asked().len() > before).then_some(()));
        let policy = Policy::cluster(&format!("healthy-{round}"));
        folder.put(&policy.clone().module(&healthy.url(&format!("/{round}.wasm"))));
        pod.timed(Duration::from_secs(2), || {
            pod.wait_current(&policy.id(), 1);
            pod.wait_condition(&policy.id(), "Ready", "True", "Active");
        })
        .1
    });

    // The limit of the whole download has another text.
    let text = format!("{}: no answer for {} s", silent.host(), PATIENCE.as_secs());
    for failure in [
        pod.assert_unserved(REMOTE, Reason::RegistryTimeout),
        pod.assert_kept(UPDATED, Reason::RegistryTimeout, 1, |verdict| verdict.message == "generation one"),
    ] {
        assert!(failure.message.contains(&text), "no {text:?} in {}", failure.message);
    }
    eventually("a second attempt", || (silent.requests("/m.wasm").len() > 1).then_some(()));
    let attempts = silent.requests("/m.wasm");
    // The limit counts from before the handshake, which takes a while on a busy machine.
    assert!(attempts[1] - attempts[0] >= PATIENCE / 2, "again after {:?}", attempts[1] - attempts[0]);
    silent.otherwise(|asked| Reply::module_named(&asked.path));
    pod.assert_recovered(REMOTE, 1);
    pod.assert_recovered(UPDATED, 2);
}

#[test]
fn fault_l03_one_byte_a_second() {
    let source = Source::https();
    source.answer("/m.wasm", [Reply::module().rate(1)]);
    let folder = Folder::with_canary();
    let pod = pod_with(&folder, &source).loader("--fetch-timeout", "2s").begin();
    let failure = pod.assert_unserved(REMOTE, Reason::RegistryTimeout);
    assert!(failure.message.contains("the module did not come whole for 2 s"), "{}", failure.message);
    // Slow, but not too slow: the whole module arrives within the limit.
    source.answer("/m.wasm", [Reply::module().after(Duration::from_millis(300)).rate(10_000)]);
    pod.assert_recovered(REMOTE, 1);
    drop(pod);

    // Without such a limit, the rate ends the attempt.
    source.answer("/m.wasm", [Reply::module().rate(1)]);
    let folder = Folder::with_canary();
    let pod = pod_with(&folder, &source).loader("--fetch-timeout", "1h").begin();
    let failure = pod.assert_unserved(REMOTE, Reason::RegistryTimeout);
    let text = format!("{} sends less than 1024 bytes a second", source.host());
    assert!(failure.message.contains(&text), "no {text:?} in {}", failure.message);
    source.answer("/m.wasm", [Reply::module()]);
    pod.assert_recovered(REMOTE, 1);
}

#[test]
fn fault_l05_come_back_later() {
    const UPDATED: &str = "cluster/updated";
    const LATER: Duration = Duration::from_secs(7);
    for status in [429, 503] {
        let source = Source::https();
        let paths = ["/m.wasm", "/updated.wasm"];
        paths.iter().for_each(|path| source.answer(path, [Reply::status(status).header("retry-after", "7")]));
        let folder = Folder::with_canary();
        folder.put(&Policy::cluster("updated").denying("generation one"));
        let pod = pod_with(&folder, &source).start();
        pod.wait_current(UPDATED, 1);
        folder.put(&Policy::cluster("updated").module(&source.url("/updated.wasm")));
        let failure = pod.assert_unserved(REMOTE, Reason::RegistryThrottled);
        // The failure says the same time.
        let told = failure.next_retry_time.expect("it is tried again").duration_since(failure.since);
        assert!(told.unsigned_abs() >= LATER, "{status}: {failure:?}");
        pod.assert_kept(UPDATED, Reason::RegistryThrottled, 1, |verdict| verdict.message == "generation one");
        paths.iter().for_each(|path| source.answer(path, [Reply::module()]));
        pod.assert_recovered(REMOTE, 1);
        pod.assert_recovered(UPDATED, 2);
        for attempts in paths.map(|path| source.requests(path)) {
            assert!(attempts.len() > 1, "want two attempts");
            for pair in attempts.windows(2) {
                assert!(pair[1] - pair[0] >= LATER, "{status}: again after {:?}", pair[1] - pair[0]);
            }
        }
    }
}

#[test]
fn fault_l05_another_policy_with_the_address_is_not_held_back() {
    let source = Source::https();
    source.answer("/m.wasm", [Reply::status(429).header("retry-after", "600")]);
    let folder = Folder::with_canary();
    let pod = pod_with(&folder, &source).start();
    let failure = pod.assert_unserved(REMOTE, Reason::RegistryThrottled);
    let wait = failure.next_retry_time.expect("it is tried again").duration_since(failure.since);
    assert!(wait.unsigned_abs() > LIMIT, "too soon for this test: {failure:?}");
    source.answer("/m.wasm", [Reply::module()]);
    assert_eq!(source.requests("/m.wasm").len(), 1);
    folder.put(&Policy::cluster("second").module(&source.url("/m.wasm")));
    pod.within(Duration::from_secs(10), "a request for the second policy", || {
        eventually("a request", || (source.requests("/m.wasm").len() > 1).then_some(()));
    });
    for id in ["cluster/second", REMOTE] {
        pod.assert_recovered(id, 1);
        assert!(pod.ask(id, &Review::pod()).verdict().allowed, "{id}");
    }
    assert_eq!(source.requests("/m.wasm").len(), 2, "both have the same module");
}

#[test]
fn fault_l08_nothing_there_yet() {
    let source = Source::https();
    let folder = Folder::with_canary();
    let pod = pod_with(&folder, &source).begin();
    pod.assert_unserved(REMOTE, Reason::NotFound);
    source.answer("/m.wasm", [Reply::module()]);
    pod.assert_recovered(REMOTE, 1);
}

/// With the loader's own times: it tries again after ten minutes, for which the test does not wait.
#[test]
fn fault_l08_tag_or_blob_absent_until_it_is_pushed_and_the_spec_touched() {
    const UPDATED: &str = "cluster/updated";
    /// Ten minutes, in seconds.
    const LONGEST: u64 = 600;
    let registry = Registry::tls();
    let source = Source::https();
    let module = Reply::module_bytes("l08");
    let blob = format!("/v2/policies/a/blobs/{}", Digest::of(&module));
    let described = Reply::ok(manifest(&module, &[WASM]).to_string()).header("content-type", MANIFEST);
    source.answer("/v2/policies/a/manifests/v1", [described]);
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let setup = Pod::on(&folder).loader("--source-ca", registry.ca_file());
    let pod = setup.by_default(Program::Loader, "--retry-outside").start();
    pod.wait_current(UPDATED, 1);

    let without_blob = format!("registry://{}/policies/a:v1", source.host());
    let remote = Policy::cluster("remote").module(&registry.module("policies/a:v1"));
    let blobless = Policy::cluster("blobless").module(&without_blob);
    let updated = Policy::cluster("updated").module(&registry.module("policies/b:v1"));
    let updated_blobless = Policy::cluster("updated-blobless").denying("generation one");
    folder.put(&updated_blobless);
    pod.wait_current("cluster/updated-blobless", 1);
    let updated_blobless = updated_blobless.module(&without_blob);
    let all = [&remote, &blobless, &updated, &updated_blobless];
    all.iter().for_each(|policy| folder.put(policy));
    let as_before = |verdict: &Verdict| verdict.message == "generation one";
    let failures = [
        pod.assert_unserved(REMOTE, Reason::NotFound),
        pod.assert_unserved("cluster/blobless", Reason::NotFound),
        pod.assert_kept(UPDATED, Reason::NotFound, 1, as_before),
        pod.assert_kept("cluster/updated-blobless", Reason::NotFound, 1, as_before),
    ];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs();
    for failure in failures {
        // None is tried again before the end of the test, and each within ten minutes.
        let next = failure.next_retry_time.expect("it is tried again").as_second().cast_unsigned();
        assert!((now + LONGEST / 2..=now + LONGEST).contains(&next), "at {now}: {failure:?}");
    }
    assert!(!source.requests(&blob).is_empty(), "the manifest was there, and the blob was asked for");

    for name in ["policies/a:v1", "policies/b:v1"] {
        registry.push(name, &module);
    }
    source.answer(&blob, [Reply::ok(module)]);
    all.iter().for_each(|policy| folder.put(&(*policy).clone().settings(json!({"touched": true}))));
    let (unserved, kept) = all.split_at(2);
    unserved.iter().for_each(|policy| pod.assert_recovered(&policy.id(), 2));
    kept.iter().for_each(|policy| pod.assert_recovered(&policy.id(), 3));
    for policy in all {
        assert!(pod.ask(&policy.id(), &Review::pod()).verdict().allowed, "{}", policy.id());
    }
}

#[test]
fn fault_l14_redirects_without_end() {
    let source = Source::https();
    source.answer("/m.wasm", [Reply::redirect("/m.wasm")]);
    let folder = Folder::with_canary();
    let pod = pod_with(&folder, &source).loader("--retry-outside", "10m").begin();
    pod.assert_unserved(REMOTE, Reason::RedirectRefused);
    // The first request and five hops.
    assert_eq!(source.requests("/m.wasm").len(), 6);
    // A redirect that ends is followed.
    source.answer("/elsewhere.wasm", [Reply::redirect("/here.wasm")]);
    source.answer("/here.wasm", [Reply::module()]);
    folder.put(&Policy::cluster("remote").module(&source.url("/elsewhere.wasm")));
    pod.assert_recovered(REMOTE, 2);
}

#[test]
fn fault_l15_redirect_to_plain_http() {
    let (source, target) = (Source::https(), Source::new(Tls::Off));
    target.answer("/m.wasm", [Reply::module()]);
    source.answer("/m.wasm", [Reply::redirect(&target.url("/m.wasm"))]);
    let folder = Folder::with_canary();
    // Redirects to plain HTTP are refused even to a host that policies may use with plain HTTP themselves.
    let pod = pod_with(&folder, &source).loader("--allow-http-host", target.host()).begin();
    pod.assert_unserved(REMOTE, Reason::RedirectRefused);
    assert_eq!(target.connections(), 0);
}
