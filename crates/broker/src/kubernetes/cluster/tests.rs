use std::slice;

use kube::Config;
use kube::config::KubeconfigError;
use kube::discovery::ApiResource;

use super::*;

/// An API server at an address where none listens, of which it is known which pods it has.
async fn cluster(pods: &ContextAwareResource) -> Cluster {
    let config = Config::new("http://127.0.0.1:9".parse().expect("an address"));
    let client = Client::try_from(config).expect("a client");
    let no_server =
        AccessError::File { file: "config".into(), source: Box::new(KubeconfigError::CurrentContextNotSet) };
    let metrics = Metrics::new(&prometheus::Registry::new()).expect("registers");
    let clients = Ok(Clients { whole: client.clone(), metadata: client });
    let cluster = Cluster { clients, ..Cluster::new(Err(no_server), Arc::default(), metrics) };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
    cluster.discovered.insert(pods.clone(), Ok(Discovered { resource, is_namespaced: true })).await;
    cluster
}

#[tokio::test]
async fn what_policies_need_is_in_no_policys_share_though_a_guest_asked_first() {
    let pods = ContextAwareResource { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
    let (cluster, guest) = (cluster(&pods).await, "cluster/guest".parse().expect("an id"));
    let needs = HashSet::from([ContextNeed { kind: pods.clone(), whole: true }]);
    let watched = cluster.watch(&guest, ListQuery::whole(pods)).await.expect("a watch");
    assert_eq!(watched.charged_to(), Some(&guest));
    cluster.keep(&needs).await;
    assert_eq!(watched.charged_to(), None);
    cluster.keep(&HashSet::new()).await;
    assert_eq!(watched.charged_to(), Some(&guest), "once the others are gone");
}

#[tokio::test]
async fn what_was_too_large_is_not_read_again_for_rules_before_its_pause_is_over() {
    let pods = ContextAwareResource { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
    let need = ContextNeed { kind: pods.clone(), whole: true };
    let cluster = cluster(&pods).await;
    let document = async || {
        let answer = cluster.document(&"cluster/a".parse().expect("an id"), Form::Opa, slice::from_ref(&pods)).await;
        answer.expect_err("no objects").to_string()
    };
    // The second refusal was 61 seconds ago, and the pause after it is two minutes.
    let second = Instant::now().checked_sub(Duration::from_secs(61)).expect("a time");
    for time in [second.checked_sub(Duration::from_secs(60)).expect("a time"), second] {
        let problem = ContextProblem::new(ContextReason::ContextTooLarge, "v1/Pod: more than 1 byte");
        lock(&cluster.refusals).report(&need, Some(problem), time);
    }
    assert_eq!(document().await, "Callback evaluation failure: failed to list v1/Pod: more than 1 byte");
    assert!(cluster.watches.find(&query_of(&need), None).is_none(), "it is not read");
    *lock(&cluster.refusals) = Refusals::default();
    let failed = document().await;
    assert!(failed.contains("failed to list v1/Pod: ") && !failed.contains("more than 1 byte"), "{failed}");
    assert!(cluster.watches.find(&query_of(&need), None).is_some(), "it is tried again after the pause");
}

#[test]
fn a_version_is_not_more_than_one() {
    let found = |api_version: &str| {
        let found = gvk(&ContextAwareResource { api_version: api_version.to_owned(), kind: "Pod".to_owned() });
        found.map(|found| (found.group, found.version))
    };
    assert_eq!(found("v1"), Some((String::new(), "v1".to_owned())));
    assert_eq!(found("apps/v1"), Some(("apps".to_owned(), "v1".to_owned())));
    for other in ["", "apps/", "apps/v1/deployments?watch=true", "v1?watch=true", "../api/v1", "apps/..", "v1#"] {
        assert_eq!(found(other), None, "{other}");
    }
}

#[test]
fn a_verdict_leaves_out_what_is_absent() {
    let status = SubjectAccessReviewStatus { allowed: true, ..SubjectAccessReviewStatus::default() };
    assert_eq!(review_reply(status), json!({"allowed": true}));
    let status = SubjectAccessReviewStatus {
        allowed: false,
        denied: Some(true),
        reason: Some("no".to_owned()),
        evaluation_error: None,
    };
    assert_eq!(review_reply(status), json!({"allowed": false, "denied": true, "reason": "no"}));
}
