//! What the connections of a proxy share: rules, open watches, and the requests that came.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustls::{ClientConfig, ServerConfig};
use serde_json::Value;

use super::message::Head;
use super::rule::Rule;
use crate::lock;

/// A request that went through the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The method, for instance `GET`.
    pub method: String,
    /// The path, with its query.
    pub path: String,
    /// Its header `Accept`; empty if it has none.
    pub accept: String,
    /// Its bearer token; empty if it has none.
    pub bearer: String,
    /// Its body, as far as it is text.
    pub body: String,
    /// When it came.
    pub at: Instant,
    /// The status of the answer, from a rule or the API server; absent while there is no answer, and if it was cut.
    pub status: Option<u16>,
}

/// The state that all connections of a proxy share.
pub(super) struct Shared {
    pub(super) upstream: SocketAddr,
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
    pub(super) rules: Mutex<Vec<Rule>>,
    pub(super) requests: Mutex<Vec<Request>>,
    pub(super) watches: Mutex<Vec<Arc<Watch>>>,
    pub(super) held: Mutex<Vec<String>>,
    pub(super) is_closed: AtomicBool,
    pub(super) has_ended: AtomicBool,
}

/// An open watch.
pub(super) struct Watch {
    pub(super) path: String,
    pub(super) injected: Mutex<Vec<Value>>,
    pub(super) is_cut: AtomicBool,
    pub(super) has_ended: AtomicBool,
}

impl Shared {
    pub(super) fn is_held(&self, path: &str) -> bool {
        lock(&self.held).iter().any(|part| path.contains(part.as_str()))
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst) || self.has_ended.load(Ordering::SeqCst)
    }

    /// Records a request and returns its number.
    pub(super) fn came(&self, head: &Head, body: &[u8]) -> usize {
        let bearer = head.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let mut requests = lock(&self.requests);
        requests.push(Request {
            method: head.word(0).to_owned(),
            path: head.word(1).to_owned(),
            accept: head.header("accept").unwrap_or_default().to_owned(),
            bearer: bearer.unwrap_or_default().to_owned(),
            body: String::from_utf8_lossy(body).into_owned(),
            at: Instant::now(),
            status: None,
        });
        requests.len() - 1
    }

    pub(super) fn answered(&self, number: usize, status: u16) {
        lock(&self.requests)[number].status = Some(status);
    }
}
