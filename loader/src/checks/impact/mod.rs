//! What a policy that a user applies would do to objects that exist: some of them are listed, and the trial is asked about each.
//!
//! ```text
//!  pages of lists ◄─ API server          POST /audit/check/<number> ─► evaluator
//!       └─► sample (which page is next) ─► objects ─┘       └─► tally (figures, words) ─► memory (until the policy is stored)
//! ```
//!
//! As in an API server, rules, selectors and match conditions decide which objects the trial is asked about.
//!
//! Only the names of objects and the messages of the policy itself are ever shown. Secrets are never read.

mod condition_time;
mod memory;
mod sample;
mod tally;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use portcullis_api::kubernetes::BoundedValue;
use portcullis_contract::{AUDIT_PATH, AuditVerdict, Digest, ImpactFigures, MatchPart, Mode, PolicyId};
use portcullis_kubernetes::{CallError, ObjectText};
use portcullis_matching::{Conditions, Existing, Parts, Resource, Scope, about};
use portcullis_process::{PostError, Poster};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};

use self::condition_time::ConditionTime;
pub(super) use self::memory::{Memory, Stored};
use self::sample::{Cursor, Sample};
use self::tally::{Effect, Tally};
use super::discovery::Discovery;

/// Most objects that one check reads.
const MOST_OBJECTS: usize = 1000;
/// Most kinds whose objects one check reads.
const MOST_KINDS: usize = 64;
/// Most namespaces that are listed, and how many of them are on a page.
const MOST_NAMESPACES: usize = 5000;
const PAGE_OF_NAMESPACES: u32 = 500;
/// How many objects the evaluator is asked about at once: half of its queue for checks.
const AT_ONCE: usize = 8;
/// The user name in the requests that the trial is asked about.
const USER: &str = "portcullis-impact";
/// Longest time for one answer of the evaluator.
const LONGEST_ANSWER: Duration = Duration::from_secs(10);
/// Longest pause after the evaluator was too busy to answer.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks about objects that exist.
pub(crate) struct Impact {
    poster: Poster,
    /// The namespace of the installation, whose objects no policy is asked about.
    installation: String,
    /// One page of objects is read at a time. Then each check keeps the rest of its page while it asks about the objects, so that a policy that is
    /// slow to answer holds up no other check. As a page is small ([`Sample::may_keep`]), all of them together need little memory.
    pages: Semaphore,
    /// One object is decoded at a time: decoded, it may take a hundred times its text. The match conditions of one check get little time with it
    /// ([`ConditionTime`]), since all others wait for them.
    decoding: Semaphore,
}

/// The policy whose impact is counted.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    /// Its own id; the trial has another one.
    pub(super) id: PolicyId,
    /// The fingerprint of its spec.
    pub(super) fingerprint: Digest,
    /// Which requests would reach it.
    pub(super) part: MatchPart,
    /// Its mode.
    pub(super) mode: Mode,
    /// Whether it reads objects of the cluster, which trials do not get.
    pub(super) reads_cluster: bool,
    /// Whether it is suspended, and so is not asked.
    pub(super) is_suspended: bool,
}

/// What a check found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// What the author of the policy is warned of.
    pub(super) warnings: Vec<String>,
    /// The figures for the status of the policy; `None` where no objects could be counted.
    pub(super) figures: Option<ImpactFigures>,
}

impl Found {
    /// No objects are counted, because a trial has no grants: its host would not answer it as it answers the stored policy.
    pub(super) fn unknown(does: &str) -> Self {
        let text =
            format!("what it would do to objects that exist is not known, as it {does}; `portcullis impact` counts it");
        Self { warnings: vec![text], figures: None }
    }
}

/// A part of a list.
struct Page {
    objects: Vec<ObjectText>,
    /// Where the next page begins; empty after the last.
    next: String,
    /// How many objects there are in all; `None` where the API server does not say.
    total: Option<usize>,
}

/// The namespaces of a cluster, as far as they are known.
enum Namespaces {
    /// They have not been listed yet.
    NotAsked,
    /// Their names.
    Known(Vec<String>),
    /// They cannot be listed.
    Unknown,
}

/// One look at objects that exist.
struct Look<'a> {
    impact: &'a Impact,
    client: &'a Client,
    trial: &'a PolicyId,
    part: &'a MatchPart,
    scope: &'a Scope,
    conditions: Arc<Conditions>,
    condition_time: ConditionTime,
    /// The namespaces that the policy's selector selects; `None` without a selector.
    selected: Option<BTreeSet<String>>,
    namespaces: Namespaces,
}

impl Impact {
    /// Will ask the evaluator whose state port is at `evaluator`.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub(crate) fn new(evaluator: SocketAddr, installation: &str) -> Result<Self, PostError> {
        let poster = Poster::new(evaluator, LONGEST_ANSWER)?;
        let (pages, decoding) = (Semaphore::new(1), Semaphore::new(1));
        Ok(Self { poster, installation: installation.to_owned(), pages, decoding })
    }

    /// Finds out what a trial that serves would do, as far as that can be counted before `until`.
    pub(super) async fn look(
        &self,
        trial: &PolicyId,
        subject: &Subject,
        discovery: &Discovery,
        until: Instant,
    ) -> Found {
        if subject.is_suspended {
            return Found::default();
        }
        if subject.reads_cluster {
            return Found::unknown("reads objects of the cluster");
        }
        let mut tally = Tally::default();
        if timeout_at(until, self.count(trial, &subject.part, discovery, &mut tally)).await.is_err() {
            tally.be_late();
        }
        Found { warnings: tally.warnings(subject.mode), figures: tally.figures(Timestamp::now()) }
    }

    async fn count(&self, trial: &PolicyId, part: &MatchPart, discovery: &Discovery, tally: &mut Tally) {
        let (Some(client), Some(served)) = (discovery.client(), discovery.known().await) else { return };
        let parts = Parts {
            id: trial,
            rules: &part.rules,
            object_selector: part.object_selector.as_ref(),
            namespace_selector: part.namespace_selector.as_ref(),
            installation: &self.installation,
            namespace: None,
        };
        // An API server would refuse a webhook with such a selector.
        let Ok(scope) = Scope::of(&parts) else { return };
        let mut kinds = scope.resources(&served.listable());
        kinds.retain(|(resource, _)| !is_secret(resource));
        if kinds.len() > MOST_KINDS {
            kinds.truncate(MOST_KINDS);
            tally.cut();
        }
        let selected = match scope.namespaces() {
            Some(selector) if !kinds.is_empty() => match namespaces(client, &selector.query()).await {
                Ok(names) => Some(names.into_iter().collect()),
                Err(error) if error.code() == Some(403) => return tally.forbid(&Resource::namespaces()),
                Err(_) => return tally.miss(&Resource::namespaces()),
            },
            _ => None,
        };
        let look = Look {
            impact: self,
            client,
            trial,
            part,
            scope: &scope,
            conditions: Arc::new(Conditions::of(&part.match_conditions)),
            condition_time: ConditionTime::default(),
            selected,
            namespaces: Namespaces::NotAsked,
        };
        look.all(&kinds, tally).await;
    }

    /// Asks the trial about an object.
    async fn ask(&self, trial: &PolicyId, namespace: String, name: String, review: Vec<u8>) -> Effect {
        let verdict = self.verdict(trial, review).await;
        let (outcome, message) = verdict.map_or((None, None), |verdict| (Some(verdict.outcome), verdict.message));
        Effect { namespace, name, outcome, message }
    }

    /// The verdict on a review; `None` if the evaluator cannot give one. While the evaluator is busy, this tries again.
    async fn verdict(&self, trial: &PolicyId, review: Vec<u8>) -> Option<AuditVerdict> {
        let path = format!("{AUDIT_PATH}{trial}");
        loop {
            let answer = self.poster.post(&path, review.clone()).await.ok()?;
            match answer.status {
                200 => return serde_json::from_slice(&answer.body).ok(),
                503 => sleep(answer.retry_after.unwrap_or(PAUSE).min(PAUSE)).await,
                _ => return None,
            }
        }
    }
}

impl Look<'_> {
    async fn all(mut self, kinds: &[(Resource, &'static str)], tally: &mut Tally) {
        let mut left = MOST_OBJECTS;
        for (number, (resource, _)) in kinds.iter().enumerate() {
            let share = left / (kinds.len() - number);
            match self.kind(resource, share, tally).await {
                Ok(read) => left = left.saturating_sub(read),
                Err(error) => {
                    tracing::debug!(%error, kind = resource.title(), "failed to list objects for the check of a policy");
                    let is_named =
                        self.part.rules.iter().flat_map(|rule| &rule.resources).any(|name| *name == resource.name);
                    match error.code() {
                        // A rule for all kinds is checked with those kinds that this program may list.
                        Some(403) if !is_named => {}
                        Some(403) => tally.forbid(resource),
                        _ => tally.miss(resource),
                    }
                }
            }
            if tally.is_hopeless() {
                break;
            }
        }
    }

    /// Asks about at most `most` objects of a kind. Returns how many were read.
    async fn kind(&mut self, resource: &Resource, most: usize, tally: &mut Tally) -> Result<usize, CallError> {
        let operations = self.scope.operations(resource);
        let mut sample = Sample::of(self.scope.namespace(), most);
        let (mut read, mut total, mut is_first) = (0, None, true);
        while let Some((cursor, limit)) = sample.next() {
            // The semaphore is never closed.
            let turn = self.impact.pages.acquire().await;
            let page = match self.page(resource, &cursor, limit).await {
                Err(CallError::TooLarge(_)) if limit > 1 => {
                    sample.was_too_large(cursor, limit);
                    continue;
                }
                page => page?,
            };
            if !Sample::may_keep(limit, page.objects.iter().map(|object| object.json().get().len()).sum()) {
                sample.was_too_large(cursor, limit);
                continue;
            }
            drop(turn);
            if std::mem::take(&mut is_first) {
                tally.begin(resource);
                total = page.total;
                let is_whole = page.next.is_empty() || page.total.is_some_and(|total| total <= most);
                if !is_whole
                    && resource.namespaced
                    && self.scope.namespace().is_none()
                    && let Some(names) = self.namespaces().await
                {
                    sample = Sample::over(names, most);
                    continue;
                }
            }
            let count = page.objects.len();
            read += count;
            let sizes = self.judge(resource, &operations, page.objects, tally).await;
            sample.took(Cursor { next: page.next, ..cursor }, count, sizes);
            if tally.is_hopeless() {
                break;
            }
        }
        let is_complete = sample.is_complete();
        tally.end(is_complete, if is_complete { Some(read) } else { total });
        Ok(read)
    }

    /// Asks about the objects of a page. Returns how many of them rules and selectors choose, and their size in bytes.
    async fn judge(
        &mut self,
        resource: &Resource,
        operations: &[&'static str],
        objects: Vec<ObjectText>,
        tally: &mut Tally,
    ) -> (usize, usize) {
        let (mut known, mut bytes, mut asking) = (0, 0, Vec::new());
        for object in objects {
            let Ok(raw) = object.whole(&resource.api_version(), &resource.kind) else { continue };
            let impact = self.impact;
            let turn = impact.decoding.acquire().await;
            let Some(object) = BoundedValue::read(&raw) else {
                tally.leave_too_large();
                continue;
            };
            if !self.scope.covers(resource, &object, self.selected.as_ref()) {
                continue;
            }
            known += 1;
            bytes += raw.get().len();
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if self.condition_time.is_used_up() {
                tally.leave_costly();
                continue;
            }
            let existing = self.existing(resource, operations, object).await;
            drop(turn);
            match existing {
                Existing::Asked(asked) => {
                    let review = about(USER, &asked, &resource.kind, &name, raw.get());
                    asking.push((asked.namespace, name, review));
                }
                Existing::LeftOut => tally.leave_out(),
                Existing::Undecided(condition) => tally.leave_undecided(&condition),
            }
            if asking.len() == AT_ONCE {
                self.ask(std::mem::take(&mut asking), tally).await;
                if tally.is_hopeless() {
                    break;
                }
            }
        }
        self.ask(asking, tally).await;
        (known, bytes)
    }

    /// Asks about objects, each by its namespace, its name and the review.
    async fn ask(&self, asking: Vec<(String, String, Vec<u8>)>, tally: &mut Tally) {
        let ask = |(namespace, name, review)| self.impact.ask(self.trial, namespace, name, review);
        for effect in join_all(asking.into_iter().map(ask)).await {
            tally.add(effect);
        }
    }

    /// What the policy would be asked about an object. Match conditions may take many milliseconds, so they are judged on a thread of their own:
    /// the broker must go on answering requests.
    async fn existing(&mut self, resource: &Resource, operations: &[&'static str], object: Value) -> Existing {
        if self.conditions.is_empty() {
            return self.conditions.existing(resource, operations, &object);
        }
        let conditions = Arc::clone(&self.conditions);
        let (resource, operations) = (resource.clone(), operations.to_vec());
        let decide = move || {
            let begin = std::time::Instant::now();
            let existing = conditions.existing(&resource, &operations, &object);
            // The time in which a thread for it was awaited does not count.
            (existing, begin.elapsed())
        };
        // The closure does not panic, so an error means that the program is ending.
        let Ok((existing, took)) = spawn_blocking(decide).await else { return Existing::Undecided(String::new()) };
        self.condition_time.took(took);
        existing
    }

    async fn page(&self, resource: &Resource, cursor: &Cursor, limit: usize) -> Result<Page, CallError> {
        let described = ApiResource {
            group: resource.group.clone(),
            version: resource.version.clone(),
            api_version: resource.api_version(),
            kind: resource.kind.clone(),
            plural: resource.name.clone(),
        };
        let api: Api<ObjectText> = match &cursor.namespace {
            Some(namespace) if resource.namespaced => Api::namespaced_with(self.client.clone(), namespace, &described),
            _ => Api::all_with(self.client.clone(), &described),
        };
        let params = params(&self.scope.objects().query(), u32::try_from(limit).unwrap_or(u32::MAX), &cursor.next);
        let list = api.list(&params).await?;
        let remaining = list.metadata.remaining_item_count.and_then(|count| usize::try_from(count).ok());
        let next = list.metadata.continue_.unwrap_or_default();
        let known = if next.is_empty() { Some(0) } else { remaining };
        let total = known.map(|remaining| remaining.saturating_add(list.items.len()));
        Ok(Page { objects: list.items, next, total })
    }

    /// The namespaces that objects may be taken from; `None` if they cannot be listed.
    async fn namespaces(&mut self) -> Option<&[String]> {
        if matches!(self.namespaces, Namespaces::NotAsked) {
            let names = match &self.selected {
                Some(selected) => Ok(selected.iter().cloned().collect()),
                None => namespaces(self.client, "").await,
            };
            self.namespaces = names.map_or(Namespaces::Unknown, Namespaces::Known);
        }
        match &self.namespaces {
            Namespaces::Known(names) => Some(names.as_slice()),
            Namespaces::Unknown | Namespaces::NotAsked => None,
        }
    }
}

/// The names of the namespaces that a selector selects (as in a query; empty for all), up to [`MOST_NAMESPACES`] and the rest of a page.
async fn namespaces(client: &Client, selector: &str) -> Result<Vec<String>, CallError> {
    let api: Api<Namespace> = Api::all(client.clone());
    let (mut names, mut next) = (Vec::new(), String::new());
    loop {
        let list = api.list_metadata(&params(selector, PAGE_OF_NAMESPACES, &next)).await?;
        names.extend(list.items.into_iter().filter_map(|namespace| namespace.metadata.name));
        next = list.metadata.continue_.unwrap_or_default();
        if next.is_empty() || names.len() >= MOST_NAMESPACES {
            return Ok(names);
        }
    }
}

fn params(selector: &str, limit: u32, next: &str) -> ListParams {
    let params = ListParams::default().limit(limit);
    let params = if selector.is_empty() { params } else { params.labels(selector) };
    if next.is_empty() { params } else { params.continue_token(next) }
}

fn is_secret(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.name == "secrets"
}

#[cfg(test)]
pub(super) mod tests;
