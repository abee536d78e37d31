//! The objects of a resource, page by page.

use std::fmt::Debug;

use kube::api::{ApiResource, ListParams};
use kube::{Api, Client};
use portcullis_api::kubernetes::{BoundedObject, Outline};
use portcullis_kubernetes::{CallError, Failures, Retry};
use portcullis_matching::Resource;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Most objects of a page.
const MOST: u32 = 200;
/// Most policies of a page. A policy can have 1.5 MB, most of which is not kept, so that what is kept does not show how large they are.
const MOST_POLICIES: u32 = 20;
/// Objects of the first page, before it is known how large they are.
const FIRST: u32 = 50;
/// The wanted size of a page, in bytes.
const WANTED_BYTES: usize = 4 << 20;
/// Most tries of a page that fails.
const TRIES: u32 = 6;
/// How often a list may be begun again because it became too old.
const RESTARTS: u32 = 5;

/// The pages of one list.
pub(super) struct Pages<'f, K = BoundedObject> {
    api: Api<K>,
    api_version: String,
    kind: String,
    labels: Option<String>,
    failures: &'f mut Failures,
    most: u32,
    limit: u32,
    next: String,
    is_over: bool,
    restarts: u32,
}

impl<'f> Pages<'f, Outline> {
    /// All policies of a kind, without their settings.
    pub(super) fn of_policies(client: &Client, resource: ApiResource, failures: &'f mut Failures) -> Self {
        Self::at_most(MOST_POLICIES, client, resource, None, failures)
    }
}

impl<'f> Pages<'f> {
    /// All objects of a resource, in all namespaces.
    pub(super) fn of(client: &Client, resource: &Resource, failures: &'f mut Failures) -> Self {
        let resource = ApiResource {
            group: resource.group.clone(),
            version: resource.version.clone(),
            api_version: resource.api_version(),
            kind: resource.kind.clone(),
            plural: resource.name.clone(),
        };
        Self::new(client, resource, None, failures)
    }

    /// The objects of a resource with these labels, or all.
    pub(super) fn new(
        client: &Client,
        resource: ApiResource,
        labels: Option<String>,
        failures: &'f mut Failures,
    ) -> Self {
        Self::at_most(MOST, client, resource, labels, failures)
    }
}

impl<'f, K> Pages<'f, K>
where
    K: kube::Resource<DynamicType = ApiResource> + Clone + DeserializeOwned + Debug + Into<Value>,
{
    fn at_most(
        most: u32,
        client: &Client,
        resource: ApiResource,
        labels: Option<String>,
        failures: &'f mut Failures,
    ) -> Self {
        Self {
            api: Api::all_with(client.clone(), &resource),
            api_version: resource.api_version,
            kind: resource.kind,
            labels,
            failures,
            most,
            limit: FIRST.min(most),
            next: String::new(),
            is_over: false,
            restarts: 0,
        }
    }

    /// The next page; none after the last. A list that became too old is begun again, so objects can come twice.
    ///
    /// # Errors
    /// When the API server refuses the list, or does not answer for a while.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Value>>, CallError> {
        if self.is_over {
            return Ok(None);
        }
        let (mut retry, mut tries) = (Retry::default(), 0);
        loop {
            let mut params = ListParams::default().limit(self.limit);
            if let Some(labels) = &self.labels {
                params = params.labels(labels);
            }
            if !self.next.is_empty() {
                params = params.continue_token(&self.next);
            }
            let error = match self.api.list(&params).await.map_err(CallError::from) {
                Ok(list) => {
                    self.failures.over();
                    self.next = list.metadata.continue_.unwrap_or_default();
                    self.is_over = self.next.is_empty();
                    let objects = list.items.into_iter().map(|object| self.whole(object)).collect();
                    return Ok(Some(self.measured(objects)));
                }
                Err(error) => error,
            };
            match error.code() {
                Some(410) if self.restarts < RESTARTS => {
                    self.restarts += 1;
                    self.next.clear();
                    continue;
                }
                Some(400 | 403 | 404 | 405 | 406 | 410) => return Err(error),
                _ => {}
            }
            self.failures.failed(&error);
            tries += 1;
            if tries >= TRIES {
                return Err(error);
            }
            // The page may have failed because it is too large to be read.
            self.limit = (self.limit / 4).max(1);
            tokio::time::sleep(retry.pause(&error, fastrand::f64())).await;
        }
    }

    /// An object of a list with `apiVersion` and `kind`, which objects in lists do not have.
    fn whole(&self, object: K) -> Value {
        let mut object: Value = object.into();
        object["apiVersion"] = json!(self.api_version);
        object["kind"] = json!(self.kind);
        object
    }

    /// Sets the size of the next page by the size of these objects, which it returns.
    fn measured(&mut self, objects: Vec<Value>) -> Vec<Value> {
        let bytes = objects.iter().map(|object| object.to_string().len()).sum();
        self.limit = limit(objects.len(), bytes).min(self.most);
        objects
    }
}

/// How many objects the next page has, if this one had `objects` objects of `bytes` bytes in all.
fn limit(objects: usize, bytes: usize) -> u32 {
    let each = (bytes / objects.max(1)).max(1);
    u32::try_from(WANTED_BYTES / each).unwrap_or(MOST).clamp(1, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_large_objects_are_small() {
        assert_eq!(limit(50, 50 * 4096), MOST);
        assert_eq!(limit(50, 50 << 20), 4);
        assert_eq!(limit(1, 100 << 20), 1);
        assert_eq!(limit(0, 0), MOST);
    }
}
