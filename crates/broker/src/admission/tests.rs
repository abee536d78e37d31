use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::config::KubeconfigError;
use portcullis_contract::Manifest;
use portcullis_kubernetes::{Access, AccessError, ApiServer};
use portcullis_process::telemetry::Collectors;
use portcullis_registry::oci::Registry;
use portcullis_registry::{Guard, Web, WebSettings};
use portcullis_util::lock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::grants::tests::manifest;

/// A limit for what comes by itself.
const LONG: Duration = Duration::from_secs(20);

/// A broker without a network, for one policy.
fn admission(policy: &str, grants: &[&str], kinds: &[&str], namespaced: &[&str]) -> Admission {
    let namespaced = namespaced.iter().map(|&pattern| pattern.to_owned()).collect();
    let services = Services { namespaced, ..nothing() };
    broker(services, &manifest(&[(policy, 1, grants, kinds)]))
}

/// A client whose attempts may take so long.
pub(crate) fn web(time: Duration) -> WebSettings {
    WebSettings {
        header: time,
        total: time,
        lowest_rate: 1,
        authorities: None,
        plain_hosts: Default::default(),
        allowed: Vec::new(),
        guard: Guard::new(Vec::new()),
        sources: None,
        name_server: Some(([127, 0, 0, 1], 9).into()),
        user_agent: "test",
    }
}

/// Services without a network.
pub(crate) fn nothing() -> Services {
    services(web(Duration::from_secs(1)))
}

fn services(web: WebSettings) -> Services {
    let source = Box::new(KubeconfigError::CurrentContextNotSet);
    Services {
        registry: Registry::new(Web::new(web), None),
        trust_root: None,
        name_server: Some(([127, 0, 0, 1], 9).into()),
        cluster: Err(AccessError::File { file: "config".into(), source }),
        namespaced: Vec::new(),
        session: Session::Live,
        collectors: Collectors::default(),
        contexts: watch::Sender::default(),
        checks: None,
    }
}

fn broker(services: Services, manifest: &Manifest) -> Admission {
    let published = Arc::new(PublishedGrants::default());
    published.publish(manifest);
    let metrics = Metrics::new(&prometheus::Registry::new()).expect("registers");
    Admission::new(services, published, metrics)
}

async fn ask(admission: &Admission, policy: &str, request: impl Into<BrokerRequest>, payload: &str) -> Answer {
    ask_within(Duration::from_secs(2), admission, policy, request, payload).await
}

async fn ask_within(
    limit: Duration,
    admission: &Admission,
    policy: &str,
    request: impl Into<BrokerRequest>,
    payload: &str,
) -> Answer {
    let (policy, request) = (policy.parse().expect("an id"), request.into());
    let millis = limit.as_millis().try_into().expect("a limit");
    let call = BrokerCall { number: 1, policy, generation: 1, member: None, request, millis };
    admission.answer(&call, Bytes::copy_from_slice(payload.as_bytes())).await
}

/// A registry on the loopback.
struct Source {
    host: String,
    /// How often it was asked.
    asked: Arc<AtomicUsize>,
    /// It answers once this is true.
    answers: watch::Sender<bool>,
}

impl Source {
    async fn start(answers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let host = listener.local_addr().expect("an address").to_string();
        let (asked, answers) = (Arc::new(AtomicUsize::new(0)), watch::Sender::new(answers));
        let source = Self { host, asked: Arc::clone(&asked), answers: answers.clone() };
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let (asked, mut answers) = (Arc::clone(&asked), answers.subscribe());
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    // The client tries TLS first, which ends here.
                    if stream.read(&mut request).await.is_ok_and(|length| request[..length].starts_with(b"GET ")) {
                        asked.fetch_add(1, Ordering::Relaxed);
                        answers.wait_for(|answers| *answers).await.expect("the sender is here");
                        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.oci.image.manifest.v1+json";
                        let answer = format!(
                            "{head}\r\nContent-Length: 20\r\nConnection: close\r\n\r\n{{\"schemaVersion\": 2}}"
                        );
                        stream.write_all(answer.as_bytes()).await.expect("writes");
                    }
                });
            }
        });
        source
    }

    fn image(&self, tag: usize) -> String {
        format!("\"{}/apps/web:v{tag}\"", self.host)
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// A broker for ClusterPolicies `a` to `d`, which may ask these registries.
fn broker_with(sources: &[&Source]) -> Arc<Admission> {
    let web = WebSettings {
        plain_hosts: sources.iter().map(|source| source.host.clone()).collect(),
        guard: Guard::new(vec!["127.0.0.1".parse().expect("an address")]),
        ..web(LONG * 2)
    };
    let (grants, kinds): ([&str; 1], [&str; 1]) = (["*"], ["Pod"]);
    let of = |policy| (policy, 1, &grants[..], &kinds[..]);
    Arc::new(broker(services(web), &manifest(&["cluster/a", "cluster/b", "cluster/c", "cluster/d"].map(of))))
}

#[tokio::test]
async fn a_registry_that_never_answers_holds_up_only_what_goes_to_it() {
    let (silent, healthy) = (Source::start(false).await, Source::start(true).await);
    let broker = broker_with(&[&silent, &healthy]);
    let digest = Capability::OciManifestDigest;
    ask_within(LONG, &broker, "cluster/b", digest, &healthy.image(1)).await.expect("a digest");
    let policies = ["cluster/a", "cluster/b", "cluster/c"];
    for (number, policy) in policies.into_iter().enumerate() {
        for call in 0..CALLS.policy {
            let (broker, image) = (Arc::clone(&broker), silent.image(number * CALLS.policy + call));
            tokio::spawn(async move { ask_within(LONG * 2, &broker, policy, digest, &image).await });
        }
    }
    let all = async {
        while silent.asked() < CALLS.of_host().tenant {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, all).await.expect("all shares of the registry are taken");
    // What is in memory, and another registry.
    let soon = async |policy, capability, payload: &str| {
        let answer = ask_within(LONG, &broker, policy, capability, payload).await;
        answer.map_err(|error| error.to_string())
    };
    let listed = soon("cluster/d", Capability::ListAll, LIST_PODS).await.expect_err("there is no cluster");
    assert!(listed.contains("kubeconfig"), "{listed}");
    for policy in policies {
        soon(policy, digest, &healthy.image(1)).await.expect("what is cached");
        soon(policy, digest, &healthy.image(2)).await.expect("an answer of the healthy registry");
    }
    assert_eq!((healthy.asked(), silent.asked()), (2, CALLS.of_host().tenant));
}

#[tokio::test]
async fn a_slow_registry_is_asked_once_and_its_answer_is_there_for_the_next_call() {
    let slow = Source::start(false).await;
    let broker = broker_with(&[&slow]);
    let image = slow.image(1);
    let ask = async |limit| ask_within(limit, &broker, "cluster/a", Capability::OciManifestDigest, &image).await;
    while slow.asked() == 0 {
        let late = ask(Duration::from_millis(50)).await.expect_err("in time").to_string();
        assert!(late.contains("took longer than the policy's time allows"), "{late}");
    }
    slow.answers.send_replace(true);
    ask(LONG).await.expect("an answer");
    ask(LONG).await.expect("an answer");
    assert_eq!(slow.asked(), 1);
}

/// An API server on the loopback with the namespace `prod`, none that is called `absent`, one that may not be read, and Secrets at all other
/// addresses; and the addresses that it was asked for.
async fn api_server() -> (ApiServer, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let server = format!("http://{}", listener.local_addr().expect("an address"));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = vec![0; 16384];
            let length = stream.read(&mut request).await.expect("a request");
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let address = request.split(' ').nth(1).expect("an address");
            lock(&noted).push(address.to_owned());
            let mut status = "200 OK";
            let mut refused = |line, code: u16, reason: &str| {
                status = line;
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": reason, "code": code})
            };
            let body = match address {
                "/api/v1/namespaces/absent" => refused("404 Not Found", 404, "NotFound"),
                "/api/v1/namespaces/hidden" => refused("403 Forbidden", 403, "Forbidden"),
                "/api/v1" => {
                    let resources = json!([
                        {"name": "namespaces", "singularName": "", "kind": "Namespace", "namespaced": false, "verbs": ["get"]},
                        {"name": "pods", "singularName": "", "kind": "Pod", "namespaced": true, "verbs": ["get"]},
                    ]);
                    json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources})
                }
                "/api/v1/namespaces/prod" => {
                    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "prod"}})
                }
                _ => {
                    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "data": {"password": "aGk="}})
                }
            };
            let (body, head) = (body.to_string(), format!("HTTP/1.1 {status}\r\nContent-Type: application/json"));
            let answer = format!("{head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.expect("writes");
        }
    });
    let kubeconfig = json!({
        "clusters": [{"name": "a", "cluster": {"server": server}}], "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}], "current-context": "a",
    });
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), kubeconfig.to_string()).expect("writes");
    let access = Access { kubeconfig: Some(file.path().to_owned()) };
    (access.connect("test").await.expect("a client"), asked)
}

#[tokio::test]
async fn no_name_leads_to_an_object_of_another_kind() {
    let (server, asked) = api_server().await;
    let services = Services { cluster: Ok(server), ..nothing() };
    let broker = broker(services, &manifest(&[("cluster/a", 1, &["*"], &["Namespace", "Pod"])]));
    let ask = async |capability, payload: serde_json::Value| {
        let answer = ask_within(LONG, &broker, "cluster/a", capability, &payload.to_string()).await;
        answer.map_err(|error| error.to_string())
    };
    let get = async |name: &str| {
        ask(Capability::GetResource, json!({"api_version": "v1", "kind": "Namespace", "name": name})).await
    };
    let list = async |namespace: &str| {
        let query = json!({"api_version": "v1", "kind": "Pod", "namespace": namespace});
        ask(Capability::ListByNamespace, query).await
    };
    let pod = json!({"api_version": "v1", "kind": "Pod", "name": "db", "namespace": "prod/secrets/db?"});
    for refused in [
        get("prod/secrets/db").await,
        get("prod/pods?watch=true").await,
        get("..").await,
        list("prod/secrets?x=").await,
        list("prod%2fsecrets").await,
        ask(Capability::GetResource, pod).await,
    ] {
        let error = refused.expect_err("refused");
        assert!(error.contains("is not the name of a"), "{error}");
    }
    assert_eq!(*lock(&asked), [""; 0], "nothing is asked");
    let found = get("prod").await.expect("the namespace");
    assert_eq!(found, r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"prod"}}"#);
    assert_eq!(*lock(&asked), ["/api/v1", "/api/v1/namespaces/prod"]);
    // Whatever leads to an object of another kind, it is not for this policy.
    let error = get("system:node").await.expect_err("a Secret");
    assert!(error.ends_with("the API server gave something else for v1/Namespace named 'system:node'"), "{error}");
    assert_eq!(lock(&asked).last().map(String::as_str), Some("/api/v1/namespaces/system:node"));
}

#[tokio::test]
async fn an_object_that_does_not_exist_is_counted_as_an_answer_and_a_missing_right_as_a_failure() {
    let (server, _) = api_server().await;
    let services = Services { cluster: Ok(server), ..nothing() };
    let broker = broker(services, &manifest(&[("cluster/a", 1, &["*"], &["Namespace"])]));
    let get = async |name: &str| {
        let payload = json!({"api_version": "v1", "kind": "Namespace", "name": name}).to_string();
        ask_within(LONG, &broker, "cluster/a", Capability::GetResource, &payload).await
    };
    let absent = get("absent").await.expect_err("it does not exist");
    assert_eq!(absent.to_string(), "Callback evaluation failure: Cannot find v1/Namespace named 'absent'");
    let hidden = get("hidden").await.expect_err("refused").to_string();
    assert!(hidden.contains("the API server refused with 403"), "{hidden}");
    get("prod").await.expect("it is there");
    let counted = ["done", "negative", "denied", "failed"]
        .map(|outcome| broker.metrics.calls.with_label_values(&["kubernetes/get_resource", outcome]).get());
    assert_eq!(counted, [1, 1, 0, 1]);
}

const LIST_PODS: &str = r#"{"api_version": "v1", "kind": "Pod"}"#;

#[tokio::test]
async fn a_policy_that_is_only_being_checked_gets_nothing_and_its_check_learns_that_it_asked() {
    let all = admission("check/1", &["*"], &["Pod"], &[]);
    let id = "check/1".parse().expect("an id");
    let denied = ask(&all, "check/2", Capability::ListAll, LIST_PODS).await.expect_err("it is not known");
    assert!(denied.to_string().contains("does not know generation 1") && !all.published.was_refused_as_check(&id));
    let denied = ask(&all, "check/1", Capability::ListAll, LIST_PODS).await.expect_err("denied");
    assert_eq!(
        (denied.to_string().as_str(), denied.outcome()),
        (
            "'kubernetes/list_resources_all' is not available to a policy that is only being checked",
            BrokerOutcome::Denied
        )
    );
    assert!(all.published.was_refused_as_check(&id));
    // What its own spec does not grant is refused for that reason, and the check may say so.
    let none = admission("check/1", &[], &[], &[]);
    assert!(ask(&none, "check/1", Capability::ListAll, LIST_PODS).await.is_err());
    assert!(!none.published.was_refused_as_check(&id));
}

#[tokio::test]
async fn fault_x10_nothing_is_asked_without_both_grants() {
    let all = admission("cluster/a", &["*"], &["Namespace"], &[]);
    let denied = ask(&all, "cluster/a", Capability::ListAll, LIST_PODS).await.expect_err("denied");
    assert_eq!(
        denied.to_string(),
        "Policy has not been granted access to Kubernetes v1/Pod resources. The violation has been reported."
    );
    let none = admission("cluster/a", &[], &["Pod"], &[]);
    let denied = ask(&none, "cluster/a", Capability::ListAll, LIST_PODS).await.expect_err("denied");
    assert_eq!(denied, ProvideError::NotGranted("kubernetes/list_resources_all"));
    let error = ask(&all, "cluster/b", Capability::ListAll, LIST_PODS).await.expect_err("unknown");
    assert_eq!(error.outcome(), BrokerOutcome::Failed, "{error}");
}

#[tokio::test]
async fn without_a_cluster_the_guest_learns_why() {
    let all = admission("cluster/a", &["*"], &["Pod"], &[]);
    let error = ask(&all, "cluster/a", Capability::ListAll, LIST_PODS).await.expect_err("no cluster").to_string();
    assert!(error.contains("was not initialized properly: failed to read the kubeconfig config"), "{error}");
}

#[tokio::test]
async fn fault_x07_x10_a_namespace_asks_about_itself_only() {
    let policy = "namespaced/team/a";
    let admission = admission(policy, &["*"], &["Pod"], &["kubernetes/*"]);
    let denied = ask(&admission, policy, Capability::ListAll, LIST_PODS).await.expect_err("denied");
    assert!(matches!(denied, ProvideError::KindNotGranted(_)), "{denied}");
    let review = r#"{"subject_access_review": {"user": "u", "resource_attributes":
        {"namespace": "other", "resource": "pods", "verb": "get"}}, "disable_cache": true}"#;
    assert_eq!(ask(&admission, policy, Capability::CanI, review).await, Err(ProvideError::OtherNamespace));
    let cluster_wide = r#"{"subject_access_review": {"user": "u", "resource_attributes":
        {"resource": "nodes", "verb": "get"}}, "disable_cache": true}"#;
    assert_eq!(ask(&admission, policy, Capability::CanI, cluster_wide).await, Err(ProvideError::OtherNamespace));
    let own = r#"{"subject_access_review": {"user": "u", "resource_attributes":
        {"namespace": "team", "resource": "pods", "verb": "get"}}, "disable_cache": true}"#;
    let error = ask(&admission, policy, Capability::CanI, own).await.expect_err("no cluster");
    assert_eq!(error.outcome(), BrokerOutcome::Failed);
}

#[tokio::test]
async fn objects_are_for_rules_in_rego_that_may_read_their_kinds() {
    let objects = BrokerRequest::ContextObjects;
    let other = admission("cluster/a", &["*"], &["Pod"], &[]);
    let error = ask(&other, "cluster/a", objects, "").await.expect_err("no Rego").to_string();
    assert!(error.contains("lists objects itself"), "{error}");
    let rego = |policy: &str| {
        let admission = admission(policy, &[], &["Pod"], &["*"]);
        let mut manifest = manifest(&[(policy, 1, &[], &["Pod"])]);
        let content = &mut manifest.policies[0].candidates[0].content;
        let portcullis_contract::CandidateContent::Module(module) = content else { panic!("it is not a module") };
        module.execution_mode = portcullis_contract::ExecutionMode::Opa;
        admission.published.publish(&manifest);
        admission
    };
    let error = ask(&rego("cluster/a"), "cluster/a", objects, "").await.expect_err("no cluster").to_string();
    assert!(error.contains("failed to read the kubeconfig"), "{error}");
    let policy = "namespaced/team/a";
    let denied = ask(&rego(policy), policy, objects, "").await.expect_err("denied");
    assert!(matches!(denied, ProvideError::KindNotGranted(_)), "{denied}");
}

#[tokio::test]
async fn certificates_are_checked_in_the_threads_for_checks() {
    let all = admission("cluster/a", &["*"], &[], &[]);
    let signer =
        r#"{"type": "SigstoreCertificateVerify", "image": "a", "certificate": [0], "require_rekor_bundle": false}"#;
    let trusted = r#"{"cert": {"encoding": "Der", "data": [0]}}"#;
    for (capability, payload, text) in
        [(Capability::OciVerifyV2, signer, "certificate: "), (Capability::CertificateTrusted, trusted, "cert: ")]
    {
        let taken = all.work.0.take(&"cluster/a".parse().expect("an id"), None).await;
        let waits = timeout(Duration::from_millis(50), ask(&all, "cluster/a", capability, payload));
        assert!(waits.await.is_err(), "{capability} waits for a thread");
        drop(taken);
        let error = ask(&all, "cluster/a", capability, payload).await.expect_err("nonsense").to_string();
        assert!(error.contains(text), "{capability}: {error}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_said() {
    let all = admission("cluster/a", &["*"], &["Pod"], &[]);
    for capability in Capability::ALL.iter().filter(|capability| capability.needs_broker()) {
        let error = ask(&all, "cluster/a", *capability, "{nonsense").await.expect_err("nonsense");
        assert_eq!(error.outcome(), BrokerOutcome::Failed, "{capability}: {error}");
    }
}
