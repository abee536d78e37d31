//! Section 4: how often the loader sends requests to a source, and sources that ask it to wait.

use std::time::{Duration, Instant};

use portcullis_contract::{Digest, Phase, Reason};
use portcullis_tests::{Folder, Pod, Policy, Program, Reply, Source, eventually, heavy};
use serde_json::json;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// By how many the requests in a span of time exceeded `rate` a second, for the worst span. `lost` is added to each span, because a machine
/// that stood still or was busy with other programs delivers requests together that were sent apart.
fn above(rate: usize, moments: &[Instant], lost: Duration) -> f64 {
    let (mut sorted, mut most) = (moments.to_vec(), f64::MIN);
    sorted.sort_unstable();
    for (first, from) in sorted.iter().enumerate() {
        for (last, to) in sorted.iter().enumerate().skip(first) {
            let allowed = (*to - *from + lost).as_secs_f64() * rate as f64;
            most = most.max((last - first + 1) as f64 - allowed);
        }
    }
    most
}

#[test]
fn requests_are_above_a_rate_wherever_they_come_too_often() {
    let start = Instant::now();
    let every = |millis: u64| (0..40).map(|n| start + Duration::from_millis(n * millis)).collect::<Vec<_>>();
    assert!(above(5, &every(200), Duration::ZERO) <= 1.1);
    assert!(above(5, &every(100), Duration::ZERO) > 20.0, "twice as many");
    assert!(above(5, &every(10), Duration::ZERO) > 35.0);
    assert!(above(5, &every(0), Duration::from_secs(8)) <= 0.1, "the machine stood still for all of that time");
}

#[test]
fn fault_l24_two_hundred_failing_policies_are_no_storm() {
    const LIMIT: usize = 5;
    const SECOND: Duration = Duration::from_secs(1);
    let _alone = heavy();
    let source = Source::https();
    source.otherwise(|_| Reply::status(503));
    let folder = Folder::with_canary();
    for number in 0..200 {
        let address = source.url(&format!("/m{}.wasm", number % 20));
        folder.put(&Policy::cluster(&format!("p{number}")).module(&address));
    }
    // With these retries, the 20 modules would cause more than a hundred requests a second.
    let setup = Pod::on(&folder).loader("--source-ca", source.ca_file(&folder)).loader("--fetch-attempts", LIMIT);
    let pod = setup.loader("--retry-initial", "100ms").loader("--retry-cap", "100ms").begin();
    let since = pod.moment_with_test();
    pod.wait_ready();
    eventually("each module to be tried twice", || (source.asked().len() >= 40).then_some(()));
    let asked: Vec<Instant> = source.asked().iter().map(|asked| asked.at).collect();
    // The attempts of a second may come at once, with one more at each end of the span, and a busy machine may delay one.
    let above = above(LIMIT, &asked, since.allowed(SECOND, &pod.moment_with_test()).saturating_sub(SECOND));
    assert!(above <= (LIMIT + 3) as f64, "{above} attempts above {LIMIT} a second");

    pod.assert_unserved("cluster/p0", Reason::RegistryServerError);
    let path = format!("/healthz/sources/{}", source.host());
    let health = pod.probe(Program::Loader, &path).expect("answers");
    assert_eq!(health.status, 503, "{health:?}");
    assert!(health.headers.contains_key("retry-after"), "{health:?}");
    assert!(health.body.contains(&source.host()) && health.body.contains("policy cluster/p"), "{}", health.body);

    source.otherwise(|asked| Reply::module_named(&asked.path));
    pod.assert_recovers("all policies to serve", || pod.evaluator_state().filter(|state| state.current.len() == 201));
    assert_eq!(pod.probe(Program::Loader, &path).expect("answers").status, 200);
}

#[test]
fn fault_l05_registry_that_asks_for_time() {
    const LATER: Duration = Duration::from_secs(3);
    let source = Source::https();
    let module = Reply::module_bytes("later");
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.wasm.config.v1+json", "digest": Digest::of(b"{}"), "size": 2},
        "layers": [{
            "mediaType": "application/vnd.wasm.content.layer.v1+wasm", "digest": Digest::of(&module), "size": module.len(),
        }],
    });
    let (of_manifest, of_blob) = ("/v2/a/manifests/v1", format!("/v2/a/blobs/{}", Digest::of(&module)));
    let later = || Reply::status(429).header("retry-after", "3");
    source.answer(of_manifest, [later()]);
    source.answer(&of_blob, [later()]);
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").module(&format!("registry://{}/a:v1", source.host())));
    let pod = Pod::on(&folder).loader("--source-ca", source.ca_file(&folder)).begin();
    pod.wait_failure("cluster/remote", Reason::RegistryThrottled);
    source.answer(of_manifest, [Reply::ok(manifest.to_string()).header("content-type", MANIFEST)]);
    eventually("the blob to be asked for", || (!source.requests(&of_blob).is_empty()).then_some(()));
    source.answer(&of_blob, [Reply::ok(module)]);
    pod.assert_recovered("cluster/remote", 1);
    // The first request for each was refused, and so were those after it until the test changed the answer.
    for attempts in [source.requests(of_manifest), source.requests(&of_blob)] {
        assert!(attempts.len() > 1, "want two attempts");
        assert!(attempts[1] - attempts[0] >= LATER, "{:?}", attempts[1] - attempts[0]);
    }
}

/// While a slow download is within its time limit, the state and the log show its progress.
#[test]
fn fault_l03_a_slow_download_tells_how_far_it_is() {
    let source = Source::https();
    let module =
        std::fs::read(portcullis_tests::repository().join("examples/modules/no-privileged.wasm")).expect("reads");
    let total = module.len() as u64;
    // The download takes about 14 seconds.
    source.answer("/m.wasm", [Reply::ok(module).rate(total / 14)]);
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").module(&source.url("/m.wasm")));
    // It may take longer on a busy machine.
    let setup = Pod::on(&folder).loader("--source-ca", source.ca_file(&folder));
    let pod = setup.loader("--fetch-timeout", "5m").begin();
    let activity = || {
        let policies = pod.loader_state()?.policies.into_iter();
        let mut of_remote = policies.filter(|policy| policy.id.as_str() == "cluster/remote");
        of_remote.find(|policy| policy.phase == Phase::Fetching)?.activity
    };
    let first = eventually("bytes to come", || activity().filter(|activity| activity.bytes > 0));
    assert_eq!(first.total, Some(total));
    eventually("more bytes to come", || activity().filter(|now| now.bytes > first.bytes && now.bytes <= total));
    let line = pod
        .loader()
        .wait_for_log("a word about the download", |line| line["message"] == "a module is still being fetched");
    assert_eq!((&line["total"], line["module"].as_str()), (&total.into(), Some(&*source.url("/m.wasm"))), "{line}");
    pod.assert_recovered("cluster/remote", 1);
}
