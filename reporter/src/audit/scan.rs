//! One scan: the policies, the resources that they name, and the objects of each.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::Client;
use kube::api::ApiResource;
use portcullis_api::kubernetes::{BoundedValue, ClusterPolicy, Outline, Policy};
use portcullis_api::{AuditSummary, Kind};
use portcullis_contract::PolicyId;
use portcullis_kubernetes::{CallError, Discovery, Failures, discover};
use portcullis_matching::{Resource, labels};
use portcullis_process::Now;
use portcullis_util::lock;

use super::LOADING;
use super::in_force::{Content, Found as FoundRevision, Wanted};
use super::memory::Unread;
use super::metrics::AuditMetrics;
use super::pages::Pages;
use super::plan::{KnownNamespaces, List, Plan};
use super::subject::{Left, Served, Site, Subject, Unloadable, read};
use super::tally::{Tally, left};
use super::worker::{Current, Worker};
use crate::facts::to_second;
use policies::Policies;

mod policies;

/// What a scan has found about a policy.
#[derive(Debug)]
pub(crate) struct Found {
    /// The policy.
    pub(crate) policy: PolicyId,
    /// Its uid.
    pub(crate) uid: String,
    /// What the scan found.
    pub(crate) news: News,
}

/// What is new about a policy after a scan.
#[derive(Debug)]
pub(crate) enum News {
    /// What the scan found.
    Summary(AuditSummary),
    /// The evaluator does not serve the policy and will not soon, so what is known stays. A user who has asked for this scan does not wait for
    /// another one.
    Unserved {
        /// The request for a scan at once that this scan handles; empty without one.
        request: String,
        /// When the scan ended.
        at: Timestamp,
    },
}

/// What a scan has found.
#[derive(Debug)]
pub(super) struct Scanned {
    pub(super) found: Vec<Found>,
    /// Whether it leaves a request for a scan to the next one, as the evaluator may soon serve the policy.
    pub(super) is_awaited: bool,
}

/// Does the scans.
pub(super) struct Scanner {
    pub(super) client: Client,
    pub(super) site: Site,
    pub(super) metrics: AuditMetrics,
    /// The failures of lists.
    pub(super) failures: Failures,
    /// The failures of reads of revisions.
    pub(super) revision_failures: Failures,
    pub(super) worker: Worker,
}

impl Scanner {
    /// Does one scan. `served` is what the evaluator serves, and `unloadable` what it cannot. The future can be dropped at any time: the next
    /// scan asks only about objects that this one has not judged.
    ///
    /// # Errors
    /// When the policies cannot be listed, or the API server does not say which resources it has.
    pub(super) async fn scan(&mut self, served: &Served, unloadable: &Unloadable) -> Result<Scanned, CallError> {
        let begin = Instant::now();
        self.worker.reading.begin(begin);
        self.worker.memory.begin();
        let Policies { subjects, left: not_asked, .. } = self.policies(served).await?;
        let discovery = self.discover(&subjects).await?;
        self.worker.writer.list().await;
        for (version, error) in &discovery.hidden {
            tracing::debug!(version, %error, "failed to ask for resources for the audit");
        }
        let hidden: Vec<String> = discovery.hidden.iter().map(|(name, _)| name.clone()).collect();
        let kept = not_asked.iter().filter(|left| left.keeps_reports).map(|left| left.id.clone());
        let plan = Plan { kept: kept.collect(), ..Plan::new(subjects, &resources(discovery)) };
        lock(&self.worker.budgets).begin(&plan.subjects, Instant::now());
        let mut tallies = vec![Tally::default(); plan.subjects.len()];
        let mut unread = Unread::default();
        for name in &hidden {
            hide(&plan, name, &mut tallies);
            unread.api_version(name);
        }
        let namespaces = self.namespaces(&plan, &mut tallies).await;
        let (mut was_forbidden, mut stays_forbidden) = (false, false);
        for list in &plan.lists {
            let current =
                Current { plan: &plan, list, namespaces: &namespaces, tallies: &mut tallies, judged: HashSet::new() };
            match self.list(current, stays_forbidden).await {
                Ok(()) => {
                    stays_forbidden |= was_forbidden;
                    self.worker.reading.stop(Instant::now());
                    self.worker.writer.delete_stale(&list.resource.api_version(), &list.resource.kind).await;
                    self.worker.reading.begin(Instant::now());
                }
                Err(error) => {
                    tracing::debug!(resource = list.resource.title(), %error, "failed to list objects for the audit");
                    unread.list(&list.resource);
                    was_forbidden |= error.code() == Some(403);
                    let title = list.resource.title();
                    list.asking.iter().for_each(|asking| tallies[asking.subject].unreadable(&title));
                }
            }
        }
        self.worker.reading.stop(Instant::now());
        // While an aggregated API server is away, its resources are unknown, so no report is deleted as superfluous. Nor is one while the kinds
        // of a policy are unknown.
        if hidden.is_empty() && plan.kept.is_empty() {
            let kind = |list: &List| (list.resource.api_version(), list.resource.kind.clone());
            let listed: Vec<_> = plan.lists.iter().map(kind).collect();
            self.worker.writer.delete_others(&listed).await;
        }
        self.worker.memory.end(&unread);
        self.metrics.scans.inc();
        self.metrics.seconds.set(begin.elapsed().as_secs_f64());
        Ok(self.scanned(&plan, &tallies, not_asked, unloadable))
    }

    fn scanned(&self, plan: &Plan, tallies: &[Tally], not_asked: Vec<Left>, unloadable: &Unloadable) -> Scanned {
        let now = Now { instant: Instant::now(), wall: to_second(Timestamp::now()) };
        let budgets = lock(&self.worker.budgets);
        let subjects = || plan.subjects.iter().enumerate();
        // A policy that is not served now keeps its last summary.
        let asked = subjects().filter(|(_, subject)| subject.generation > 0);
        let violations = asked.map(|(number, subject)| (subject.id.to_string(), tallies[number].violations()));
        self.metrics.show(&violations.collect::<BTreeMap<_, _>>());
        let problem = self.worker.writer.problem();
        let news = |number: usize, subject: &Subject| {
            let request = subject.requested.clone();
            if subject.generation == 0 {
                return News::Unserved { request, at: now.wall };
            }
            let is_asking = |list: &&List| list.asking.iter().any(|asking| asking.subject == number);
            let lists = plan.lists.iter().filter(is_asking).count();
            let over = budgets.over(subject);
            let summary = tallies[number].summary(subject.generation, lists, over.as_ref(), problem, now);
            News::Summary(AuditSummary { handled_request: request, ..summary })
        };
        // Its request is for the scan that will ask it.
        let may_come = |subject: &Subject| subject.generation == 0 && subject.may_come(unloadable, now.wall, LOADING);
        let of_subjects = subjects().filter(|(_, subject)| !may_come(subject)).map(|(number, subject)| {
            let (policy, uid) = (subject.id.clone(), subject.uid.clone());
            Found { policy, uid, news: news(number, subject) }
        });
        let others = not_asked.into_iter().map(|Left { id, uid, requested, why, .. }| {
            let summary = AuditSummary { handled_request: requested, ..left(&why, now.wall) };
            Found { policy: id, uid, news: News::Summary(summary) }
        });
        let is_awaited = plan.subjects.iter().any(|subject| !subject.requested.is_empty() && may_come(subject));
        Scanned { found: of_subjects.chain(others).collect(), is_awaited }
    }

    /// The policies of this installation.
    async fn policies(&mut self, served: &Served) -> Result<Policies, CallError> {
        let mut policies = Policies::default();
        for kind in [Kind::ClusterPolicy, Kind::Policy] {
            let resource = match kind {
                Kind::ClusterPolicy => ApiResource::erase::<ClusterPolicy>(&()),
                Kind::Policy => ApiResource::erase::<Policy>(&()),
            };
            let mut pages = Pages::new(&self.client, &resource, None, &mut self.failures);
            while let Some(objects) = pages.next().await? {
                for object in objects {
                    // An outline of an object is always readable.
                    let Ok(outline) = serde_json::from_str::<Outline>(object.json().get()) else { continue };
                    policies.take(kind, outline.into(), &self.site, served);
                }
            }
        }
        // Not between the pages of a list, which becomes too old in some minutes.
        for (kind, object, wanted) in std::mem::take(&mut policies.rolled_back) {
            let content = self.content(wanted).await;
            policies.add(read(kind, &object, &content, &self.site, served));
        }
        Ok(policies)
    }

    /// Finds the spec in force of a policy that is rolled back.
    async fn content(&mut self, mut wanted: Wanted) -> Content {
        loop {
            let failures = &mut self.revision_failures;
            let found = revision(&self.client, &self.site.namespace, &wanted.name(), failures).await;
            match wanted.content(found) {
                Ok(content) => return content,
                Err(other) => wanted = other,
            }
        }
    }

    async fn discover(&mut self, subjects: &[Subject]) -> Result<Discovery, CallError> {
        if subjects.is_empty() {
            return Ok(Discovery::default());
        }
        let is_wanted = |group: &str, version: &str| subjects.iter().any(|one| one.scope.is_of(group, version));
        Ok(discover(&self.client, is_wanted).await?)
    }

    /// The namespaces with their labels, if a policy selects by them.
    async fn namespaces(&mut self, plan: &Plan, tallies: &mut [Tally]) -> KnownNamespaces {
        let mut namespaces = KnownNamespaces::default();
        if !plan.needs_namespaces() {
            return namespaces;
        }
        let resource = Resource::namespaces();
        let mut pages = Pages::of(&self.client, &resource, &mut self.failures);
        loop {
            match pages.next().await {
                Ok(Some(objects)) => namespaces.labels.extend(objects.into_iter().filter_map(|object| {
                    let object = BoundedValue::read(object.json())?;
                    let metadata = &object["metadata"];
                    Some((metadata["name"].as_str()?.to_owned(), labels(metadata)))
                })),
                Ok(None) => return namespaces,
                Err(error) => {
                    tracing::debug!(%error, "failed to list namespaces for the audit");
                    let selecting = plan.subjects.iter().zip(tallies);
                    let selecting = selecting.filter(|(subject, _)| subject.scope.namespaces().is_some());
                    selecting.for_each(|(_, tally)| tally.unreadable(&resource.title()));
                    namespaces.is_cut = true;
                    return namespaces;
                }
            }
        }
    }

    /// Judges the objects of a list.
    ///
    /// Once a list of this scan was forbidden, and another one was read after it, the next ones are tried once: their pauses would lengthen the
    /// scan, and the rest after it, by seconds for each resource.
    async fn list(&mut self, mut current: Current<'_>, stays_forbidden: bool) -> Result<(), CallError> {
        let mut pages = Pages::of(&self.client, &current.list.resource, &mut self.failures);
        if stays_forbidden {
            pages.forbidden_tries = 1;
        }
        while let Some(objects) = pages.next().await? {
            self.worker.page(&mut current, objects).await;
        }
        Ok(())
    }
}

/// The revision of this name.
async fn revision(client: &Client, namespace: &str, name: &str, failures: &mut Failures) -> FoundRevision {
    let resource = ApiResource::erase::<ControllerRevision>(&());
    let found = match Pages::named(client, &resource, namespace, name, failures).next().await {
        Ok(found) => found.unwrap_or_default(),
        Err(error) => {
            tracing::debug!(%error, name, "failed to read a revision for the audit");
            return FoundRevision::Unreadable;
        }
    };
    let Some(object) = found.first() else { return FoundRevision::Nothing };
    match serde_json::from_str::<Outline>(object.json().get()) {
        Ok(outline) if !outline.is_cut() => FoundRevision::Revision(outline.into()),
        _ => FoundRevision::Unreadable,
    }
}

/// The resources that were discovered.
fn resources(discovery: Discovery) -> Vec<Resource> {
    let resources = discovery.resources.into_iter().map(|(group, version, found)| Resource {
        group,
        version,
        name: found.name,
        kind: found.kind,
        namespaced: found.namespaced,
    });
    resources.collect()
}

/// Notes for the policies that name resources of a group and version that these are unknown.
fn hide(plan: &Plan, name: &str, tallies: &mut [Tally]) {
    let (group, version) = name.split_once('/').unwrap_or(("", name));
    for (subject, tally) in plan.subjects.iter().zip(tallies) {
        if subject.scope.is_of(group, version) {
            tally.unreadable(name);
        }
    }
}

#[cfg(test)]
mod tests;
