//! The objects of a resource, page by page.

use kube::api::{ApiResource, ListParams};
use kube::{Api, Client};
use portcullis_kubernetes::{CallError, Failures, ObjectText, Retry};
use portcullis_matching::Resource;

/// Most objects of a page.
const MOST: u32 = 200;
/// Objects of the first page, before it is known how large they are.
const FIRST: u32 = 50;
/// The wanted size of a page, in bytes.
const WANTED_BYTES: usize = 4 << 20;
/// The most tries of a page that fails.
const TRIES: u32 = 6;
/// The most tries of a first page that is forbidden. An API server that has just started forbids everything until it has read its RBAC rules; after
/// that, only an administrator can help.
const FORBIDDEN_TRIES: u32 = 3;
/// How often in succession a list may be begun again because it became too old, without getting further than before.
const RESTARTS: u32 = 5;

/// The pages of one list.
pub(super) struct Pages<'f> {
    api: Api<ObjectText>,
    selection: ListParams,
    failures: &'f mut Failures,
    limit: u32,
    next: String,
    is_over: bool,
    /// The most tries of the first page while it is forbidden.
    pub(super) forbidden_tries: u32,
    /// How many objects were given since the list was begun or begun again, and the most before it was begun again.
    given: usize,
    furthest: usize,
    restarts: u32,
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
        Self::new(client, &resource, None, failures)
    }

    /// The objects of a resource with these labels, or all.
    pub(super) fn new(
        client: &Client,
        resource: &ApiResource,
        labels: Option<String>,
        failures: &'f mut Failures,
    ) -> Self {
        let selection = ListParams { label_selector: labels, ..ListParams::default() };
        Self::selected(Api::all_with(client.clone(), resource), selection, failures)
    }

    /// The object with a name, or none. A list of one object, unlike a get, needs only the verb `list`.
    pub(super) fn named(
        client: &Client,
        resource: &ApiResource,
        namespace: &str,
        name: &str,
        failures: &'f mut Failures,
    ) -> Self {
        let selection = ListParams::default().fields(&format!("metadata.name={name}"));
        Self::selected(Api::namespaced_with(client.clone(), namespace, resource), selection, failures)
    }

    fn selected(api: Api<ObjectText>, selection: ListParams, failures: &'f mut Failures) -> Self {
        let (limit, next) = (FIRST, String::new());
        let (is_over, forbidden_tries) = (false, FORBIDDEN_TRIES);
        Self { api, selection, failures, limit, next, is_over, forbidden_tries, given: 0, furthest: 0, restarts: 0 }
    }

    /// The next page; none after the last. A list that became too old is begun again, so objects can come twice. That happens every few minutes where
    /// its caller takes long between the pages, so it may happen as often as the list gets further.
    ///
    /// # Errors
    /// When the API server refuses the list, or does not answer for a while.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<ObjectText>>, CallError> {
        if self.is_over {
            return Ok(None);
        }
        // Failures before the API server came back must not leave fewer tries for what it forbids then.
        let (mut retry, mut tries, mut forbidden) = (Retry::default(), 0, 0);
        loop {
            let mut params = self.selection.clone().limit(self.limit);
            if !self.next.is_empty() {
                params = params.continue_token(&self.next);
            }
            let error = match self.api.list(&params).await.map_err(CallError::from) {
                Ok(list) => {
                    self.failures.over();
                    self.next = list.metadata.continue_.unwrap_or_default();
                    self.is_over = self.next.is_empty();
                    self.given += list.items.len();
                    let bytes = list.items.iter().map(|object| object.json().get().len()).sum();
                    self.limit = limit(list.items.len(), bytes);
                    return Ok(Some(list.items));
                }
                Err(error) => error,
            };
            match error {
                CallError::TooLarge(_) if self.limit > 1 => {
                    self.limit = smaller(self.limit);
                    continue;
                }
                CallError::Refused { code: 410, .. } if self.begin_again() => continue,
                CallError::Refused { code: 400 | 405 | 406 | 410, .. } => return Err(error),
                CallError::Refused { code: 404, .. } if self.next.is_empty() => return Err(error),
                CallError::Refused { code: 403 | 404, .. } => {
                    forbidden += 1;
                    // Where there were pages before, these were not refused.
                    let most = if self.next.is_empty() { self.forbidden_tries } else { TRIES };
                    if forbidden >= most {
                        return Err(error);
                    }
                }
                _ => {
                    self.failures.failed(&error);
                    tries += 1;
                    if tries >= TRIES {
                        return Err(error);
                    }
                }
            }
            // The page may have failed because it is too large to be sent in time.
            self.limit = smaller(self.limit);
            tokio::time::sleep(retry.pause(&error, fastrand::f64())).await;
        }
    }

    /// Goes back to the first page, unless that was done too often without getting further.
    fn begin_again(&mut self) -> bool {
        if self.given > self.furthest {
            (self.furthest, self.restarts) = (self.given, 0);
        }
        self.restarts += 1;
        self.given = 0;
        self.next.clear();
        self.restarts <= RESTARTS
    }
}

/// How many objects a page has after one of `objects` objects that was too large.
fn smaller(objects: u32) -> u32 {
    (objects / 4).max(1)
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
