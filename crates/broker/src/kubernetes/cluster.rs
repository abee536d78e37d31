//! The API server, read on behalf of guests.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::api::PostParams;
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client};
use moka::Expiry;
use moka::future::Cache;
use portcullis_contract::{ContextAwareResource, ContextProblem, ContextReason, PolicyId};
use portcullis_kubernetes::{AccessError, AnswerLimits, ApiServer, CallError, ObjectText, is_path_segment};
use portcullis_util::lock;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::collection::{Collection, Discovered};
use super::data::{self, Form, Listed};
use super::freshness::reason_of;
use super::mask;
use super::objects::SELECT_LESS;
use super::read::{GetQuery, ListQuery, Read, ReviewQuery};
use super::refusals::Refusals;
use super::watches::{Watched, Watches, failed_to_list};
use crate::cache::Answer;
use crate::{ContextNeed, Contexts, Metrics, ProvideError, PublishedGrants};

/// The most kinds of which the answer of discovery is cached.
const KINDS: u64 = 1024;
/// How long the resource of a kind is cached.
const KNOWN: Duration = Duration::from_secs(300);
/// The size of all cached documents for policies in Rego together, in bytes.
const DOCUMENTS: u64 = 32 << 20;
/// How long a document that is not asked for stays cached.
const UNUSED: Duration = Duration::from_secs(60);
/// How long the broker waits for the API server to say which kinds it has, before it reports that in the policy's
/// status.
const DISCOVERY: Duration = Duration::from_secs(10);
/// How long it is cached that a kind does not exist, or could not be looked up.
const UNKNOWN: Duration = Duration::from_secs(5);

/// The largest answer with objects, in bytes. Lists are read in pages, and a page that is larger is asked for in smaller ones.
const LARGEST_ANSWER: usize = 16 << 20;
/// How many answers are read at the same time.
const ANSWERS: usize = 4;

/// The API server, with what is cached of it.
pub(crate) struct Cluster {
    clients: Result<Clients, AccessError>,
    discovered: Cache<ContextAwareResource, Result<Discovered, DiscoveryError>>,
    watches: Watches,
    documents: Cache<Document, Answer>,
    refusals: Mutex<Refusals>,
}

/// The clients for objects of tenants.
struct Clients {
    whole: Client,
    /// For lists and watches of metadata.
    metadata: Client,
}

impl Clients {
    fn of(server: &ApiServer) -> Self {
        let limits = AnswerLimits { largest: LARGEST_ANSWER, at_once: Arc::new(Semaphore::new(ANSWERS)) };
        Self { whole: server.client_within(limits.clone()), metadata: server.metadata_client_within(limits) }
    }
}

/// A document of objects: its form, and its kinds with the versions of their collections.
type Document = (Form, Vec<(ContextAwareResource, u64)>);

/// Why the resource of a kind is not known.
#[derive(Debug, Clone)]
struct DiscoveryError {
    reason: ContextReason,
    error: ProvideError,
}

impl DiscoveryError {
    fn not_synced(error: ProvideError) -> Self {
        Self { reason: ContextReason::ContextNotSynced, error }
    }

    fn problem(&self, kind: &ContextAwareResource) -> ContextProblem {
        let advice = match self.reason {
            ContextReason::ContextKindUnknown => {
                "; install its CustomResourceDefinition, or correct contextAwareResources"
            }
            _ => "",
        };
        let (name, cause) = (format!("{}/{}", kind.api_version, kind.kind), self.error.cause());
        ContextProblem::new(self.reason, format!("{name}: {cause}{advice}"))
    }
}

impl From<DiscoveryError> for ProvideError {
    fn from(error: DiscoveryError) -> Self {
        error.error
    }
}

/// Why there is no watch of objects that policies need.
enum NoWatch {
    /// There are too many of them, and it is too early to try again.
    Refused(ContextProblem),
    /// Their kind could not be looked up, or there are too many watches.
    Undiscovered(DiscoveryError),
}

impl From<NoWatch> for ProvideError {
    fn from(no_watch: NoWatch) -> Self {
        match no_watch {
            NoWatch::Refused(problem) => Self::failed(format!("failed to list {}", problem.message)),
            NoWatch::Undiscovered(error) => error.into(),
        }
    }
}

struct DiscoveryLifetime;

impl Expiry<ContextAwareResource, Result<Discovered, DiscoveryError>> for DiscoveryLifetime {
    fn expire_after_create(
        &self,
        _: &ContextAwareResource,
        discovered: &Result<Discovered, DiscoveryError>,
        _: Instant,
    ) -> Option<Duration> {
        Some(if discovered.is_ok() { KNOWN } else { UNKNOWN })
    }
}

impl Cluster {
    pub(crate) fn new(
        server: Result<ApiServer, AccessError>,
        published: Arc<PublishedGrants>,
        metrics: Metrics,
    ) -> Self {
        Self {
            clients: server.map(|server| Clients::of(&server)),
            discovered: Cache::builder().max_capacity(KINDS).expire_after(DiscoveryLifetime).build(),
            watches: Watches::new(published, metrics),
            documents: Cache::builder()
                .max_capacity(DOCUMENTS)
                .weigher(|_, answer: &Answer| {
                    answer.as_ref().map_or(1024, |json| u32::try_from(json.len()).unwrap_or(u32::MAX))
                })
                .time_to_idle(UNUSED)
                .build(),
            refusals: Mutex::default(),
        }
    }

    /// Answers a call for which the policy was found to have the right.
    ///
    /// # Errors
    /// When the API server does not have what is asked for, refuses, or does not answer.
    pub(crate) async fn read(&self, policy: &PolicyId, read: Read) -> Answer {
        match read {
            Read::List(query) => self.list(policy, query).await,
            Read::Get(query) => self.get(query).await,
            Read::Review(query) => self.review(query).await,
        }
    }

    /// All objects of these kinds, as data of a policy in Rego. The document is rendered again only when one of the
    /// objects has changed.
    ///
    /// # Errors
    /// When a kind cannot be listed, or there are too many objects.
    pub(crate) async fn document(&self, policy: &PolicyId, form: Form, kinds: &[ContextAwareResource]) -> Answer {
        let mut named = HashSet::new();
        let kinds = kinds.iter().filter(|kind| named.insert(*kind));
        let watched = try_join_all(kinds.map(|kind| self.watched(policy, kind))).await?;
        let versions = watched.iter().map(|&(kind, ref watched)| {
            let (version, bytes) = watched.version().map_err(|why| failed_to_list(kind, why))?;
            Ok(((kind.clone(), version), (kind, bytes)))
        });
        let (versions, sizes): (Vec<_>, Vec<_>) = versions.collect::<Result<_, ProvideError>>()?;
        data::check_size(&sizes, sizes.iter().map(|(_, bytes)| bytes).sum())?;
        let render = async {
            let listed = watched.iter().map(|&(kind, ref watched)| {
                let discovered = &watched.discovered;
                let objects = watched.snapshot().map_err(|why| failed_to_list(kind, why))?;
                Ok(Listed {
                    kind,
                    plural: &discovered.resource.plural,
                    is_namespaced: discovered.is_namespaced,
                    objects,
                })
            });
            let document = data::render(form, &listed.collect::<Result<Vec<_>, ProvideError>>()?)?;
            data::check_size(&sizes, document.len())?;
            Ok(document)
        };
        self.documents.get_with((form, versions), render).await
    }

    /// Ends the watches that are no longer wanted.
    pub(crate) fn sweep(&self) {
        self.watches.sweep();
    }

    fn clients(&self) -> Result<&Clients, ProvideError> {
        match &self.clients {
            Ok(clients) => Ok(clients),
            Err(why) => Err(ProvideError::failed(format!("kube::Client was not initialized properly: {why}"))),
        }
    }

    async fn list(&self, policy: &PolicyId, query: ListQuery) -> Answer {
        let kind = query.kind.clone();
        Watches::wait(self.watch(policy, query).await?, &kind, SELECT_LESS).await?.list(&kind)
    }

    /// The watch of what a guest's query selects. A running watch is used even while discovery fails.
    async fn watch(&self, policy: &PolicyId, query: ListQuery) -> Result<Arc<Watched>, ProvideError> {
        match self.watches.find(&query, Some(policy)) {
            Some(found) => Ok(found),
            None => self.watches.begin(Some(policy), self.collection(query).await?),
        }
    }

    /// The collection of the objects that a query selects.
    async fn collection(&self, query: ListQuery) -> Result<Collection, ProvideError> {
        let Clients { whole, metadata } = self.clients()?;
        let client = if query.metadata_only { metadata } else { whole };
        let discovered = self.discover(&query.kind).await?;
        if query.namespace.is_some() && !discovered.is_namespaced {
            return Err(ProvideError::failed(format!(
                "resource {}/{} is cluster wide. Cannot search for it inside of a namespace",
                query.kind.api_version, query.kind.kind
            )));
        }
        Ok(Collection { query, client: client.clone(), discovered })
    }

    /// Begins the watches that policies need, keeps them in use, and returns what is wrong with each.
    pub(crate) async fn keep(&self, needs: &HashSet<ContextNeed>) -> Contexts {
        let tried = {
            let (mut refusals, now) = (lock(&self.refusals), Instant::now());
            refusals.retain(needs);
            // What is too large for now is in no collection that ends others, should a guest try to read it meanwhile.
            needs.iter().filter(|need| refusals.standing(need, now).is_none()).map(query_of).collect()
        };
        self.watches.note_needs(&tried);
        let kept = needs.iter().map(async |need| (need.clone(), self.problem(need).await));
        Contexts(join_all(kept).await.into_iter().collect())
    }

    async fn problem(&self, need: &ContextNeed) -> Option<ContextProblem> {
        let kind = &need.kind;
        let problem = match self.needed(need, None).await {
            Ok(watched) => watched.problem(kind),
            Err(NoWatch::Refused(problem)) => return Some(problem),
            Err(NoWatch::Undiscovered(error)) => Some(error.problem(kind)),
        };
        lock(&self.refusals).report(need, problem, Instant::now())
    }

    /// The watch of objects that published policies need. It begins unless it is too early to try again to read them. `asker` is the policy
    /// that asks for them now, if one does.
    async fn needed(&self, need: &ContextNeed, asker: Option<&PolicyId>) -> Result<Arc<Watched>, NoWatch> {
        let query = query_of(need);
        if let Some(found) = self.watches.find(&query, asker) {
            return Ok(found);
        }
        if let Some(problem) = lock(&self.refusals).standing(need, Instant::now()) {
            return Err(NoWatch::Refused(problem));
        }
        self.begin(query).await.map_err(NoWatch::Undiscovered)
    }

    async fn begin(&self, query: ListQuery) -> Result<Arc<Watched>, DiscoveryError> {
        let late =
            || DiscoveryError::not_synced(ProvideError::failed("the API server does not say which kinds it has"));
        timeout(DISCOVERY, self.discover(&query.kind)).await.unwrap_or_else(|_| Err(late()))?;
        let collection = self.collection(query).await.map_err(DiscoveryError::not_synced)?;
        self.watches.begin(None, collection).map_err(DiscoveryError::not_synced)
    }

    /// The watch of all objects of a kind, which a policy in Rego needs, once it is complete.
    async fn watched<'a>(
        &self,
        policy: &PolicyId,
        kind: &'a ContextAwareResource,
    ) -> Result<(&'a ContextAwareResource, Arc<Watched>), ProvideError> {
        let watched = self.needed(&ContextNeed { kind: kind.clone(), whole: true }, Some(policy)).await?;
        Ok((kind, Watches::wait(watched, kind, data::READ_LESS).await?))
    }

    async fn get(&self, query: GetQuery) -> Answer {
        let client = &self.clients()?.whole;
        let Discovered { resource, is_namespaced } = self.discover(&query.kind).await?;
        let ContextAwareResource { api_version, kind } = &query.kind;
        let api: Api<ObjectText> = match &query.namespace {
            None if is_namespaced => {
                let text = format!("Resource {api_version}/{kind} is namespaced, but no namespace was provided");
                return Err(ProvideError::failed(text));
            }
            Some(namespace) if is_namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
            _ => Api::all_with(client.clone(), &resource),
        };
        let name = &query.name;
        let found = api.get_opt(name).await.map_err(failed)?.ok_or_else(|| {
            let place = query.namespace.as_ref().map(|namespace| format!(" inside of namespace '{namespace}'"));
            ProvideError::negative(format!(
                "Cannot find {api_version}/{kind} named '{name}'{}",
                place.unwrap_or_default()
            ))
        })?;
        // The policy was found to have the right to this kind alone, so that nothing else may come back, whatever led to it.
        if !found.is_a(&resource.api_version, &resource.kind) {
            let text = format!("the API server gave something else for {api_version}/{kind} named '{name}'");
            return Err(ProvideError::failed(text));
        }
        let kept = mask::named(&query.masks).apply(found.json()).map_err(ProvideError::failed)?;
        Ok(Bytes::from(Box::<str>::from(kept).into_string()))
    }

    async fn review(&self, query: ReviewQuery) -> Answer {
        let asked = query.subject_access_review;
        let resource = asked.resource_attributes;
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(asked.user),
                groups: asked.groups,
                resource_attributes: Some(ResourceAttributes {
                    group: resource.group,
                    name: resource.name,
                    namespace: resource.namespace,
                    resource: Some(resource.resource),
                    subresource: resource.subresource,
                    verb: Some(resource.verb),
                    version: resource.version,
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.clients()?.whole.clone());
        let answered = api.create(&PostParams::default(), &review).await.map_err(failed)?;
        let status = answered.status.ok_or_else(|| ProvideError::failed("the API server gave no answer"))?;
        Ok(Bytes::from(review_reply(status).to_string()))
    }

    /// The resource of a kind, by discovery.
    async fn discover(&self, kind: &ContextAwareResource) -> Result<Discovered, DiscoveryError> {
        let client = &self.clients().map_err(DiscoveryError::not_synced)?.whole;
        let find = async {
            let unknown = || {
                let text = format!("Cannot find resource {}/{}", kind.api_version, kind.kind);
                let (reason, error) = (ContextReason::ContextKindUnknown, ProvideError::failed(text));
                DiscoveryError { reason, error }
            };
            let found = match pinned_kind(client, &gvk(kind).ok_or_else(unknown)?).await {
                Ok((resource, capabilities)) => {
                    Ok(Discovered { resource, is_namespaced: capabilities.scope == Scope::Namespaced })
                }
                Err(kube::Error::Api(status)) if status.code != 404 => Err(CallError::from(kube::Error::Api(status))),
                Err(kube::Error::Api(_) | kube::Error::Discovery(_)) => return Err(unknown()),
                Err(error) => Err(CallError::from(error)),
            };
            found.map_err(|error| DiscoveryError { reason: reason_of(&error), error: ProvideError::failed(error) })
        };
        self.discovered.get_with(kind.clone(), find).await
    }
}

/// The kind as discovery takes it; `None` if its version would lead to another address. Policies name it, and no schema limits it.
fn gvk(kind: &ContextAwareResource) -> Option<GroupVersionKind> {
    let (group, version) = kind.api_version.split_once('/').unwrap_or(("", &kind.api_version));
    let is_valid = is_path_segment(version) && (group.is_empty() || is_path_segment(group));
    is_valid.then(|| GroupVersionKind::gvk(group, version, &kind.kind))
}

/// What is watched for a need.
fn query_of(need: &ContextNeed) -> ListQuery {
    let kind = need.kind.clone();
    if need.whole { ListQuery::whole(kind) } else { ListQuery::probe(kind) }
}

/// The error for guests when a call of the API server failed.
pub(super) fn failed(error: kube::Error) -> ProvideError {
    ProvideError::failed(CallError::from(error))
}

/// A verdict in the form that guests read; absent fields are left out.
fn review_reply(status: SubjectAccessReviewStatus) -> Value {
    let mut reply = json!({ "allowed": status.allowed });
    if let Some(denied) = status.denied {
        reply["denied"] = json!(denied);
    }
    for (field, text) in [("reason", status.reason), ("evaluationError", status.evaluation_error)] {
        if let Some(text) = text {
            reply[field] = json!(text);
        }
    }
    reply
}

#[cfg(test)]
mod tests;
