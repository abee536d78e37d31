//! A collection of objects of the API server, and its events.

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::discovery::ApiResource;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use portcullis_kubernetes::{Failures, ObjectText, Selection, watch};

use super::mask;
use super::read::ListQuery;

/// How many objects one page of a list has. Where that is too large for an answer, there are fewer.
const PAGE: u32 = 500;

/// A collection that a guest asks for.
pub(super) struct Collection {
    pub(super) query: ListQuery,
    /// The client for such a query: one that asks for metadata, or for whole objects.
    pub(super) client: Client,
    pub(super) discovered: Discovered,
}

/// What discovery says of a kind: its resource.
#[derive(Debug, Clone)]
pub(super) struct Discovered {
    pub(super) resource: ApiResource,
    pub(super) is_namespaced: bool,
}

/// The form in which objects of a collection are kept.
pub(super) struct Shape {
    pub(super) resource: ApiResource,
    pub(super) selection: Selection,
    /// Whether the API server sends only metadata, whose own type is not that of the object.
    pub(super) metadata_only: bool,
}

impl Collection {
    /// The form in which its objects are kept.
    pub(super) fn shape(&self) -> Shape {
        let ListQuery { masks, metadata_only, .. } = &self.query;
        let resource = self.discovered.resource.clone();
        Shape { resource, selection: mask::kept(masks), metadata_only: *metadata_only }
    }

    /// The events of the collection's objects, without end: first a list of them, then each change.
    pub(super) fn events(self, failures: Failures) -> BoxStream<'static, Event<ObjectText>> {
        let Self { query, client, discovered: Discovered { resource, .. } } = self;
        let ListQuery { namespace, label_selector, field_selector, .. } = query;
        let config = watcher::Config { label_selector, field_selector, ..watcher::Config::default() }.page_size(PAGE);
        let api = match namespace {
            Some(namespace) => Api::namespaced_with(client, &namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        watch(api, config, failures).boxed()
    }
}
