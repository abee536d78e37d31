use serde_json::json;

use super::*;

/// A manifest with one candidate for each of these: policy, generation, capabilities, kinds of `v1`.
pub(crate) fn manifest(candidates: &[(&str, i64, &[&str], &[&str])]) -> Manifest {
    let policies = candidates.iter().map(|(id, generation, capabilities, kinds)| {
        let kinds: Vec<_> = kinds.iter().map(|kind| json!({"apiVersion": "v1", "kind": kind})).collect();
        let digest = format!("sha256:{}", "0".repeat(64));
        json!({
            "id": id, "uid": "u", "generation": generation, "mode": "protect", "failurePolicy": "Fail", "failures": [],
            "candidates": [{
                "generation": generation, "digest": digest, "executionMode": "wasi", "settings": {}, "mutating": false,
                "artifact": {"file": "a", "sha256": digest, "size": 1},
                "hostCapabilities": capabilities, "contextAwareResources": kinds,
            }],
        })
    });
    let policies: Vec<_> = policies.collect();
    serde_json::from_value(json!({"number": 1, "policies": policies, "groups": []})).expect("a manifest")
}

fn id(text: &str) -> PolicyId {
    text.parse().expect("an id")
}

/// The state of an evaluator that serves this generation of `cluster/a` although there is a newer one.
fn serves(generation: i64) -> EvaluatorState {
    let deviation = json!({"id": "cluster/a", "uid": "u", "generation": 2, "serving": generation, "state": "Previous",
        "since": "2026-01-01T00:00:00Z"});
    let deviations = vec![serde_json::from_value(deviation).expect("a deviation")];
    EvaluatorState { deviations, ..EvaluatorState::default() }
}

/// Whether each of these generations of `cluster/a` has a capability; `None` where its grants are not known.
fn known<const N: usize>(published: &PublishedGrants, generations: [i64; N]) -> [Option<bool>; N] {
    generations.map(|generation| {
        let grants = published.grants(&id("cluster/a"), generation, None)?;
        Some(grants.check(&id("cluster/a"), Capability::CanI, &[]).is_ok())
    })
}

const FIRST: (&str, i64, &[&str], &[&str]) = ("cluster/a", 1, &["kubernetes/*"], &["Pod"]);
const SECOND: (&str, i64, &[&str], &[&str]) = ("cluster/a", 2, &["oci/*"], &[]);

#[test]
fn a_generation_has_its_own_grants_as_long_as_it_may_serve() {
    let (published, begun) = (PublishedGrants::default(), Instant::now());
    let at = |seconds| begun + Duration::from_secs(seconds);
    published.replace(&manifest(&[FIRST]), None, at(0));
    assert_eq!(known(&published, [1, 2]), [Some(true), None]);
    // The newest generation cannot be loaded, for long, and the volume takes no manifest for a while.
    for second in 1..1000 {
        published.replace(&manifest(&[SECOND]), Some(&serves(1)), at(second));
    }
    published.written(at(1000));
    published.replace(&manifest(&[SECOND]), Some(&serves(1)), at(2000));
    assert_eq!(known(&published, [1, 2]), [Some(true), Some(false)], "it still serves");
    let pod = ContextAwareResource { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
    assert!(published.needs().len() == 1 && published.reads(&pod), "its objects are still watched");
    // Once it no longer serves, requests may be under way.
    published.replace(&manifest(&[SECOND]), Some(&serves(2)), at(3000));
    published.written(at(3001));
    published.replace(&manifest(&[SECOND]), Some(&serves(2)), at(3060));
    assert_eq!(known(&published, [1, 2]), [Some(true), Some(false)], "requests may be under way");
    assert!(published.needs().is_empty() && !published.reads(&pod));
    published.replace(&manifest(&[SECOND]), Some(&serves(2)), at(3062));
    assert_eq!(known(&published, [1, 2]), [None, Some(false)]);
}

#[test]
fn grants_of_a_deleted_policy_end_in_time_although_nothing_else_happens() {
    let published = PublishedGrants::default();
    published.publish(&manifest(&[FIRST]));
    published.publish(&manifest(&[]));
    assert_eq!(known(&published, [1]), [Some(true)], "the volume does not have the manifest yet");
    published.written(Instant::now());
    assert_eq!(known(&published, [1]), [Some(true)], "requests may be under way");

    published.publish(&manifest(&[FIRST]));
    published.publish(&manifest(&[]));
    published.written(Instant::now().checked_sub(2 * KEPT).expect("a time"));
    assert_eq!(known(&published, [1]), [None]);
}

#[test]
fn what_a_deleted_policy_read_is_watched_until_the_evaluator_no_longer_serves_it() {
    let (published, begun) = (PublishedGrants::default(), Instant::now());
    published.publish(&manifest(&[FIRST]));
    published.replace(&manifest(&[]), Some(&serves(1)), begun);
    published.written(begun);
    published.follow(&serves(1), begun + 2 * KEPT);
    assert_eq!((known(&published, [1]), published.needs().len()), ([Some(true)], 1), "it still serves");
    published.follow(&EvaluatorState::default(), begun + 3 * KEPT);
    assert_eq!((known(&published, [1]), published.needs().len()), ([Some(true)], 0), "requests may be under way");
    published.follow(&EvaluatorState::default(), begun + 4 * KEPT);
    assert_eq!(known(&published, [1]), [None]);
}

#[test]
fn what_was_never_published_is_not_known_whatever_the_evaluator_says() {
    let (published, now) = (PublishedGrants::default(), Instant::now());
    published.replace(&manifest(&[SECOND]), Some(&serves(1)), now);
    assert_eq!(known(&published, [1, 2]), [None, Some(false)]);
}

#[test]
fn a_restarted_loader_knows_the_generation_that_serves() {
    let (published, now) = (PublishedGrants::default(), Instant::now());
    let remembered = EarlierModule {
        policy: id("cluster/a"),
        generation: 1,
        member: None,
        host_capabilities: vec!["kubernetes/*".to_owned()],
        context_aware_resources: Vec::new(),
        execution_mode: ExecutionMode::Wasi,
    };
    let in_the_manifest = EarlierModule { generation: 2, ..remembered.clone() };
    published.remember([remembered, in_the_manifest], now);
    published.replace(&manifest(&[SECOND]), None, now);
    assert_eq!(known(&published, [1, 2]), [Some(true), Some(false)], "the manifest counts more");
    published.replace(&manifest(&[SECOND]), Some(&serves(1)), now + 2 * KEPT);
    assert_eq!(known(&published, [1, 2]), [Some(true), Some(false)]);
    published.replace(&manifest(&[SECOND]), Some(&serves(2)), now + 3 * KEPT);
    published.written(now + 3 * KEPT);
    published.replace(&manifest(&[SECOND]), Some(&serves(2)), now + 4 * KEPT);
    assert_eq!(known(&published, [1, 2]), [None, Some(false)]);
}

#[test]
fn what_is_kept_of_earlier_generations_has_a_limit_and_what_serves_comes_first() {
    let (published, now) = (PublishedGrants::default(), Instant::now());
    let long = "x".repeat(MOST_EARLIER / 4);
    let (long, none): ([&str; 1], [&str; 0]) = ([&long], []);
    let policies = ["cluster/a", "cluster/b", "cluster/c", "cluster/d", "cluster/e"];
    published.replace(&manifest(&policies.map(|policy| (policy, 1, &long[..], &none[..]))), None, now);
    published.replace(&manifest(&[]), Some(&serves(1)), now);
    let kept = policies.map(|policy| published.grants(&id(policy), 1, None).is_some());
    assert!(kept[0], "it serves");
    assert_eq!(kept.iter().filter(|kept| **kept).count(), 3);
}

#[test]
fn policies_of_a_namespace_have_what_the_installation_allows_and_no_kinds() {
    let published = PublishedGrants::default();
    published.publish(&manifest(&[("namespaced/team/a", 1, &["*"], &["Pod"])]));
    let policy = id("namespaced/team/a");
    let grants = published.grants(&policy, 1, None).expect("published");
    let denied = grants.check(&policy, Capability::DnsLookupHost, &[]).expect_err("denied").to_string();
    assert!(denied.contains("--namespaced-capability"), "{denied}");
    assert_eq!(grants.check(&policy, Capability::DnsLookupHost, &["net/*".to_owned()]), Ok(()));
    let pod = ContextAwareResource { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
    assert!(grants.check_kind(&policy, &pod).is_err());
    assert!(published.reads(&pod));
}

#[test]
fn a_policy_that_is_only_being_checked_has_no_grants_whatever_its_spec_says() {
    let published = PublishedGrants::default();
    let (all, kinds) = (&["kubernetes/*", "oci/*"][..], &["Secret"][..]);
    let secret = ContextAwareResource { api_version: "v1".to_owned(), kind: "Secret".to_owned() };
    published.publish(&manifest(&[("check/1", 1, all, kinds), ("check/team/2", 1, all, kinds)]));
    assert!(published.needs().is_empty() && !published.reads(&secret), "nothing is watched for it");
    for (policy, error) in [
        ("check/1", ProvideError::NotForChecks("oci/v2/verify")),
        ("check/team/2", ProvideError::NotForNamespaces("oci/v2/verify")),
    ] {
        let policy = id(policy);
        let grants = published.grants(&policy, 1, None).expect("published");
        assert_eq!(grants.check(&policy, Capability::OciVerifyV2, &[]), Err(error));
        assert!(Capability::ALL.iter().all(|capability| grants.check(&policy, *capability, &["*".into()]).is_err()));
        assert!(grants.check_kind(&policy, &secret).is_err() && grants.kinds(&policy).is_err());
    }
    // The same grants of a policy of the installation count.
    let policy = id("cluster/a");
    published.publish(&manifest(&[("cluster/a", 1, all, kinds), ("check/1", 1, all, kinds)]));
    let grants = published.grants(&policy, 1, None).expect("published");
    assert_eq!(grants.check(&policy, Capability::GetResource, &[]), Ok(()));
    assert!(grants.check_kind(&policy, &secret).is_ok() && published.reads(&secret));
}
