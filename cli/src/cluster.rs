//! A cluster that the kubeconfig names: a few requests, each with its own way to fail.

mod connect;
mod error;
mod events;
mod objects;
mod policies;
mod revisions;

use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use portcullis_api::kubernetes::BoundedValue;
use serde_json::Value;

pub use connect::{check_namespace, contexts};
pub use error::{Action, ClusterError};
pub use objects::{Discovered, Page, Selection};
pub use policies::Found;

/// Maximum number of attempts at a request that a busy API server puts off (429), and the pause between two.
const TRIES: u32 = 4;
const BUSY: Duration = Duration::from_secs(1);

/// Most objects that one answer of a list has.
const PAGE: &str = "500";

/// A cluster and the namespace in which Policies are looked for.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    /// The URL of the API server, for errors.
    server: String,
    /// The namespace of the option, or else that of the context.
    namespace: String,
}

impl Cluster {
    /// The namespace in which Policies are looked for.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The object or list of an action.
    async fn get(&self, action: &Action, query: &[(&str, &str)]) -> Result<Value, ClusterError> {
        self.ask(action, Method::GET, query, None).await
    }

    /// All objects of a list, page by page. Objects of a list do not say their kind, so it is given.
    async fn list(&self, action: &Action, kind: &str, query: &[(&str, &str)]) -> Result<Vec<Value>, ClusterError> {
        let mut objects = Vec::new();
        let mut next = String::new();
        loop {
            let page = self.page(action, kind, query, &next).await?;
            objects.extend(page.objects);
            if page.next.is_empty() {
                return Ok(objects);
            }
            next = page.next;
        }
    }

    /// One page of a list. `next` is empty for the first.
    async fn page(
        &self,
        action: &Action,
        kind: &str,
        query: &[(&str, &str)],
        next: &str,
    ) -> Result<Page, ClusterError> {
        let mut query = query.to_vec();
        query.push(("limit", PAGE));
        if !next.is_empty() {
            query.push(("continue", next));
        }
        Ok(Page::of(self.get(action, &query).await?, kind))
    }

    async fn ask(
        &self,
        action: &Action,
        method: Method,
        query: &[(&str, &str)],
        body: Option<(&str, Vec<u8>)>,
    ) -> Result<Value, ClusterError> {
        let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        let mark = if query.is_empty() { "" } else { "?" };
        let mut request = Request::builder().method(method).uri(format!("{}{mark}{query}", action.path()));
        let bytes = body.map_or_else(Vec::new, |(media_type, bytes)| {
            if let Some(headers) = request.headers_mut() {
                let value = http::HeaderValue::from_str(media_type).expect("media types are plain");
                headers.insert(http::header::CONTENT_TYPE, value);
            }
            bytes
        });
        let request = request.body(bytes).map_err(|error| ClusterError::other(&self.server, &error))?;
        let mut tries = 1;
        loop {
            // Settings may be nested to any depth. A policy with such settings must not hide the others.
            let answer: Result<BoundedValue, _> = self.client.request(request.clone()).await;
            match answer {
                // A busy API server has done nothing yet.
                Err(kube::Error::Api(status)) if status.code == 429 && tries < TRIES => tries += 1,
                Err(error) => return Err(ClusterError::of(&self.server, action, error)),
                Ok(value) => return Ok(value.0),
            }
            tokio::time::sleep(BUSY).await;
        }
    }
}
