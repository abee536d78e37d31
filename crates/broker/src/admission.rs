//! Admits calls, and gives each to the part of the broker that answers it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use portcullis_contract::{BrokerCall, BrokerOutcome, BrokerRequest, Capability, PolicyId};
use portcullis_process::set_if_new;
use prometheus::IntGauge;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::cache::{Answer, Answers, PATIENCE, Question};
use crate::dns::Names;
use crate::grants::{Grants, PublishedGrants};
use crate::kubernetes::{Cluster, Form, Read};
use crate::oci::{self, Images};
use crate::share::{Askers, CALLS, Share, Shares};
use crate::work::Work;
use crate::{Contexts, Metrics, ProvideError, Services, Session};

/// The interval at which watches that no policy needs any longer are ended.
const SWEEP: Duration = Duration::from_secs(30);
/// The interval at which the broker checks whether the objects that policies read are here. A watch does not signal that it
/// works or has failed.
const KEEP: Duration = Duration::from_millis(250);

/// Everything that is needed to answer a call.
pub(crate) struct Admission {
    published: Arc<PublishedGrants>,
    contexts: watch::Sender<Arc<Contexts>>,
    namespaced: Vec<String>,
    shares: Shares,
    work: Arc<Work>,
    answers: Answers,
    images: Arc<Images>,
    names: Names,
    cluster: Arc<Cluster>,
    session: Session,
    metrics: Metrics,
}

impl Admission {
    pub(crate) fn new(services: Services, published: Arc<PublishedGrants>, metrics: Metrics) -> Self {
        let work = Arc::<Work>::default();
        Self {
            cluster: Arc::new(Cluster::new(services.cluster, Arc::clone(&published), metrics.clone())),
            published,
            contexts: services.contexts,
            namespaced: services.namespaced,
            shares: Shares::new(CALLS),
            answers: Answers::default(),
            images: Arc::new(Images::new(services.registry, services.trust_root, Arc::clone(&work))),
            work,
            names: Names::new(services.name_server),
            session: services.session,
            metrics,
        }
    }

    /// Answers a call within its time limit.
    pub(crate) async fn answer(&self, call: &BrokerCall, payload: Bytes) -> Answer {
        let _running = Running::new(&self.metrics.running);
        let answer = timeout(limit(call), self.provide(call, payload)).await.unwrap_or_else(|_| Err(late(call)));
        let outcome = answer.as_ref().map_or_else(ProvideError::outcome, |_| BrokerOutcome::Done);
        self.metrics.calls.with_label_values(&[call.request.path(), outcome.as_str()]).inc();
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
            set_if_new(&self.contexts, Arc::new(contexts));
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
        if let Err(error) = grants.check(&call.policy, capability, &self.namespaced) {
            if matches!(error, ProvideError::NotForChecks(_)) {
                self.published.refused_as_check(&call.policy);
            }
            return Err(error);
        }
        let read = match capability.is_of_cluster() {
            true => Some(self.admit_read(&call.policy, capability, &grants, &payload)?),
            false => None,
        };
        if let Some(answer) = self.session.recorded(call.request, &payload) {
            return answer;
        }
        let answer = self.ask(call, capability, read, payload.clone()).await;
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
        let answer = Box::pin(self.cluster.document(&call.policy, form, kinds)).await;
        self.session.note(call.request, payload.as_bytes(), &answer);
        answer
    }

    /// Asks the network, or the cache. Only what goes to the network needs a share.
    async fn ask(&self, call: &BrokerCall, capability: Capability, read: Option<Read>, payload: Bytes) -> Answer {
        let policy = &call.policy;
        match (capability, read) {
            // Lists come from watches, which have limits of their own, and are begun once for all that want the same.
            (_, Some(read @ Read::List(_))) => Box::pin(self.cluster.read(policy, read)).await,
            (_, Some(read)) if read.skips_cache() => {
                let _share = self.shares.take(policy, None).await;
                Box::pin(self.cluster.read(policy, read)).await
            }
            (_, Some(read)) => {
                let (cluster, policy) = (Arc::clone(&self.cluster), policy.clone());
                let find = |_| async move { Box::pin(cluster.read(&policy, read)).await };
                self.find(call, (capability, payload), self.shares.take(&call.policy, None), find).await
            }
            // The evaluator answers this itself unless calls are recorded.
            (Capability::CertificateTrusted, _) => {
                let check =
                    move || portcullis_certificate::is_trusted(&payload).map(Bytes::from).map_err(ProvideError::failed);
                self.work.run(&Askers::only(policy), check).await
            }
            (Capability::DnsLookupHost, _) => {
                let _share = self.shares.take(policy, None).await;
                Box::pin(self.names.look_up(&payload)).await
            }
            (_, None) => {
                let (images, asked) = (Arc::clone(&self.images), payload.clone());
                let find = move |askers| async move { Box::pin(images.provide(&askers, capability, &asked)).await };
                let share = async {
                    let registry = oci::registry(capability, &payload);
                    self.shares.take(policy, registry.as_deref()).await
                };
                self.find(call, (capability, payload.clone()), share, find).await
            }
        }
    }

    /// Asks for an answer that the cache may have, and will have.
    async fn find<F: Future<Output = Answer> + Send + 'static>(
        &self,
        call: &BrokerCall,
        question: Question,
        share: impl Future<Output = Share>,
        find: impl FnOnce(Askers) -> F,
    ) -> Answer {
        let answer = self.answers.get(&call.policy, limit(call), question, share, find).await;
        answer.unwrap_or_else(|| Err(late(call)))
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

/// The time that a call may take.
fn limit(call: &BrokerCall) -> Duration {
    Duration::from_millis(call.millis).min(PATIENCE.asked)
}

fn late(call: &BrokerCall) -> ProvideError {
    ProvideError::failed(format!("'{}' took longer than the policy's time allows", call.request))
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
pub(crate) mod tests;
