//! Admits calls, and gives each to the part of the broker that answers it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use portcullis_contract::{BrokerCall, BrokerOutcome, BrokerRequest, Capability, PolicyId};
use prometheus::IntGauge;
use serde_json::json;
use tokio::time::timeout;

use crate::cache::{Answer, Answers};
use crate::dns::Names;
use crate::grants::{Grants, PublishedGrants};
use crate::kubernetes::{Cluster, Form, Read};
use crate::oci::Images;
use crate::share::{CALLS, Shares};
use crate::work::Work;
use crate::{Contexts, Metrics, ProvideError, Services, Session};

/// The longest time for a call, even if the evaluator allows more.
const LONGEST: Duration = Duration::from_secs(30);

/// The interval at which watches that no policy needs any longer are ended.
const SWEEP: Duration = Duration::from_secs(30);
/// The interval at which the broker checks whether the objects that policies read are here. A watch does not signal that it
/// works or has failed.
const KEEP: Duration = Duration::from_millis(250);

/// Everything that is needed to answer a call.
pub(crate) struct Admission {
    published: Arc<PublishedGrants>,
    namespaced: Vec<String>,
    shares: Shares,
    work: Arc<Work>,
    answers: Answers,
    images: Images,
    names: Names,
    cluster: Cluster,
    session: Session,
    metrics: Metrics,
}

impl Admission {
    pub(crate) fn new(services: Services, published: Arc<PublishedGrants>, metrics: Metrics) -> Self {
        let work = Arc::<Work>::default();
        Self {
            cluster: Cluster::new(services.cluster, Arc::clone(&published), metrics.clone()),
            published,
            namespaced: services.namespaced,
            shares: Shares::new(CALLS),
            answers: Answers::default(),
            images: Images::new(services.registry, services.trust_root, Arc::clone(&work)),
            work,
            names: Names::new(services.name_server),
            session: services.session,
            metrics,
        }
    }

    /// Answers a call within its time limit.
    pub(crate) async fn answer(&self, call: &BrokerCall, payload: Bytes) -> Answer {
        let _running = Running::new(&self.metrics.running);
        let late = || ProvideError::failed(format!("'{}' took longer than the policy's time allows", call.request));
        let limit = Duration::from_millis(call.millis).min(LONGEST);
        let answer = timeout(limit, self.provide(call, payload)).await.unwrap_or_else(|_| Err(late()));
        let outcome = match answer.as_ref().map_err(ProvideError::outcome) {
            Ok(_) => "done",
            Err(BrokerOutcome::Denied) => "denied",
            Err(_) => "failed",
        };
        self.metrics.calls.with_label_values(&[call.request.path(), outcome]).inc();
        answer
    }

    /// Ends the watches that no policy needs any longer, again and again. Never returns.
    pub(crate) async fn sweep(&self) {
        loop {
            tokio::time::sleep(SWEEP).await;
            self.cluster.sweep();
        }
    }

    /// Keeps the watches of the objects that policies read, and records what is wrong with them. Never returns.
    pub(crate) async fn keep(&self) {
        let mut changes = self.published.changes();
        let mut needs = self.published.needs();
        loop {
            let contexts = match self.session {
                Session::Replay(_) => Contexts(needs.iter().map(|need| (need.clone(), None)).collect()),
                Session::Live | Session::Record { .. } => Box::pin(self.cluster.keep(&needs)).await,
            };
            self.published.set_contexts(contexts);
            if timeout(KEEP, changes.changed()).await.is_ok() {
                needs = self.published.needs();
            }
        }
    }

    async fn provide(&self, call: &BrokerCall, payload: Bytes) -> Answer {
        let unknown =
            || ProvideError::failed(format!("the loader does not know generation {} of this policy", call.generation));
        let grants =
            self.published.grants(&call.policy, call.generation, call.member.as_deref()).ok_or_else(unknown)?;
        let BrokerRequest::Capability(capability) = call.request else { return self.objects(call, &grants).await };
        grants.check(&call.policy, capability, &self.namespaced)?;
        let read = match capability.is_of_cluster() {
            true => Some(self.admit_read(&call.policy, capability, &grants, &payload)?),
            false => None,
        };
        if let Some(answer) = self.session.recorded(call.request, &payload) {
            return answer;
        }
        let answer = self.ask(&call.policy, capability, read, payload.clone()).await;
        self.session.note(call.request, &payload, &answer);
        answer
    }

    /// The objects that rules in Rego judge by. They need no grant of a capability, as the rules cannot call one.
    async fn objects(&self, call: &BrokerCall, grants: &Grants) -> Answer {
        let form = Form::of(grants.mode)
            .ok_or_else(|| ProvideError::failed("this policy is not in Rego and lists objects itself"))?;
        let kinds = grants.kinds(&call.policy)?;
        // This payload is only for recordings: the real one is empty.
        let payload = json!({"form": form, "kinds": kinds}).to_string();
        if let Some(answer) = self.session.recorded(call.request, payload.as_bytes()) {
            return answer;
        }
        let _share = self.shares.take(&call.policy).await;
        let answer = Box::pin(self.cluster.document(&call.policy, form, kinds)).await;
        self.session.note(call.request, payload.as_bytes(), &answer);
        answer
    }

    /// Asks the network, or the cache.
    async fn ask(&self, policy: &PolicyId, capability: Capability, read: Option<Read>, payload: Bytes) -> Answer {
        let _share = self.shares.take(policy).await;
        match (capability, read) {
            (_, Some(read)) if read.skips_cache() => Box::pin(self.cluster.read(policy, read)).await,
            (_, Some(read)) => self.answers.get(capability, payload, Box::pin(self.cluster.read(policy, read))).await,
            // The evaluator answers this itself unless calls are recorded.
            (Capability::CertificateTrusted, _) => {
                let check =
                    move || portcullis_certificate::is_trusted(&payload).map(Bytes::from).map_err(ProvideError::failed);
                self.work.run(policy, check).await
            }
            (Capability::DnsLookupHost, _) => Box::pin(self.names.look_up(&payload)).await,
            (_, None) => {
                let images = &self.images;
                let answer = Box::pin(images.provide(policy, capability, &payload));
                self.answers.get(capability, payload.clone(), answer).await
            }
        }
    }

    /// Parses what is asked of the API server, and checks that the policy may read it.
    fn admit_read(
        &self,
        policy: &PolicyId,
        capability: Capability,
        grants: &Grants,
        payload: &[u8],
    ) -> Result<Read, ProvideError> {
        let read = Read::parse(capability, payload)?;
        if let Some(kind) = read.kind() {
            grants.check_kind(policy, kind)?;
        }
        // A policy of a namespace must not learn about rights in other namespaces.
        if let (Some(own), Some(asked)) = (policy.namespace(), read.namespace_of_review())
            && own != asked
        {
            return Err(ProvideError::OtherNamespace);
        }
        Ok(read)
    }
}

/// Counts a call in the gauge until it is dropped, however the call ends.
struct Running<'a>(&'a IntGauge);

impl<'a> Running<'a> {
    fn new(gauge: &'a IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use kube::config::KubeconfigError;
    use portcullis_kubernetes::AccessError;
    use portcullis_registry::oci::Registry;
    use portcullis_registry::{Guard, Web, WebSettings};

    use super::*;
    use crate::grants::tests::manifest;
    use portcullis_process::telemetry::Collectors;

    /// A broker without a network, for one policy.
    fn admission(policy: &str, grants: &[&str], kinds: &[&str], namespaced: &[&str]) -> Admission {
        let published = Arc::new(PublishedGrants::default());
        published.publish(&manifest(&[(policy, 1, grants, kinds)]));
        let second = Duration::from_secs(1);
        let web = Web::new(WebSettings {
            header: second,
            total: second,
            lowest_rate: 1,
            authorities: None,
            plain_hosts: Default::default(),
            allowed: Vec::new(),
            guard: Guard::new(Vec::new()),
            sources: None,
            name_server: Some(([127, 0, 0, 1], 9).into()),
            user_agent: "test",
        });
        let source = Box::new(KubeconfigError::CurrentContextNotSet);
        let services = Services {
            registry: Registry::new(web, None),
            trust_root: None,
            name_server: Some(([127, 0, 0, 1], 9).into()),
            cluster: Err(AccessError::File { file: "config".into(), source }),
            namespaced: namespaced.iter().map(|&pattern| pattern.to_owned()).collect(),
            session: Session::Live,
            collectors: Collectors::default(),
            checks: None,
        };
        let metrics = Metrics::new(&prometheus::Registry::new()).expect("registers");
        Admission::new(services, published, metrics)
    }

    async fn ask(
        admission: &Admission,
        policy: &str,
        request: impl Into<BrokerRequest>,
        payload: &'static str,
    ) -> Answer {
        let (policy, request) = (policy.parse().expect("an id"), request.into());
        let call = BrokerCall { number: 1, policy, generation: 1, member: None, request, millis: 2000 };
        admission.answer(&call, Bytes::from_static(payload.as_bytes())).await
    }

    const LIST_PODS: &str = r#"{"api_version": "v1", "kind": "Pod"}"#;

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
            let taken = all.work.0.take(&"cluster/a".parse().expect("an id")).await;
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
}
