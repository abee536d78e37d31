//! A collection of objects of the API server, and its events.

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::core::DynamicResourceScope;
use kube::discovery::ApiResource;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use portcullis_kubernetes::{Failures, watch};

use super::read::ListQuery;

/// How many objects one page of a list has.
const PAGE: u32 = 500;

/// A collection that a guest asks for.
pub(super) struct Collection {
    pub(super) query: ListQuery,
    pub(super) client: Client,
    pub(super) discovered: Discovered,
}

/// What discovery says of a kind: its resource.
#[derive(Debug, Clone)]
pub(super) struct Discovered {
    pub(super) resource: ApiResource,
    pub(super) is_namespaced: bool,
}

impl Collection {
    /// The events of the collection's objects, without end: first a list of them, then each change.
    pub(super) fn events(self, failures: Failures) -> BoxStream<'static, Event<DynamicObject>> {
        let Self { query, client, discovered: Discovered { resource, .. } } = self;
        let ListQuery { namespace, label_selector, field_selector, .. } = query;
        let config = watcher::Config { label_selector, field_selector, ..watcher::Config::default() }.page_size(PAGE);
        if query.metadata_only {
            let api: Api<PartialObjectMeta<DynamicObject>> = api(client, namespace, &resource);
            return watch(api, config, failures).map(as_objects).boxed();
        }
        watch(api(client, namespace, &resource), config, failures).boxed()
    }
}

fn api<K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>>(
    client: Client,
    namespace: Option<String>,
    resource: &ApiResource,
) -> Api<K> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client, &namespace, resource),
        None => Api::all_with(client, resource),
    }
}

/// Objects with nothing but their metadata. Their type says that they are metadata, and not what kind of object they
/// belong to.
fn as_objects(event: Event<PartialObjectMeta<DynamicObject>>) -> Event<DynamicObject> {
    let object = |object: PartialObjectMeta<DynamicObject>| DynamicObject {
        types: None,
        metadata: object.metadata,
        data: serde_json::json!({}),
    };
    match event {
        Event::Init => Event::Init,
        Event::InitApply(metadata) => Event::InitApply(object(metadata)),
        Event::InitDone => Event::InitDone,
        Event::Apply(metadata) => Event::Apply(object(metadata)),
        Event::Delete(metadata) => Event::Delete(object(metadata)),
    }
}
