//! A collection of the API server, listed in pages and then watched, for ever.
//!
//! A watch that ends is resumed where it was; one that cannot be, or that the API server calls too old, is listed anew. What is
//! known stays known until the new list is complete, so that nothing seems to vanish meanwhile. A watch has a time limit of its
//! own, as a connection may be dead without a word.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use kube::client::Body;
use portcullis_api::kubernetes::BoundedValue;
use serde_json::Value;
use tokio::sync::mpsc;

use super::backoff::{Backoff, dice};
use super::call::{CallError, Server};
use super::trouble::Trouble;

/// Longest line of a watch, in bytes: an object of etcd has 1.5 MiB, and JSON may be longer than what is stored.
const LONGEST_LINE: usize = 8 << 20;
/// How long after its own end the API server's silence is waited for.
const SLACK: Duration = Duration::from_secs(5);
/// A watch that ends before this is not resumed at once.
const SHORT: Duration = Duration::from_secs(1);

/// A collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collection {
    /// For instance `/api/v1/namespaces/a/pods`.
    pub(crate) path: String,
    /// A label selector; empty for all.
    pub(crate) labels: String,
    /// Objects of a page.
    pub(crate) page: u32,
    /// Longest watch.
    pub(crate) longest: Duration,
}

/// What a collection has to tell.
#[derive(Debug)]
pub(crate) enum News {
    /// All objects there are.
    Listed(Vec<Value>),
    /// An object is new or has changed.
    Put(Value),
    /// An object is gone.
    Gone(Value),
}

/// Why a watch has ended.
enum End {
    /// It can be resumed from this version.
    Resume(String),
    /// It has to be listed anew: its version is too old.
    TooOld,
    /// A call without success; what is known stays, and the watch goes on from this version if there is one.
    Failed(CallError, Option<String>),
    /// Nobody listens any more.
    Unheard,
}

/// Lists and watches until nobody listens any more. `wrap` says of which collection the news are.
pub(crate) async fn follow<T: Send + 'static>(
    server: Arc<Server>,
    collection: Collection,
    mut trouble: Trouble,
    wrap: impl Fn(News) -> T + Send,
    sender: mpsc::Sender<T>,
) {
    let mut backoff = Backoff::default();
    let mut version = None;
    loop {
        let begun = Instant::now();
        let end = match version.take() {
            Some(version) => watch(&server, &collection, version, &wrap, &sender).await,
            None => match list(&server, &collection).await {
                Ok((items, listed)) => {
                    if sender.send(wrap(News::Listed(items))).await.is_err() {
                        End::Unheard
                    } else {
                        End::Resume(listed)
                    }
                }
                Err(error) if error.code() == Some(410) => End::TooOld,
                Err(error) => End::Failed(error, None),
            },
        };
        match end {
            End::Unheard => return,
            End::Resume(resumed) => {
                let watched = begun.elapsed() > SHORT;
                trouble.over();
                backoff.reset();
                version = Some(resumed);
                if !watched {
                    tokio::time::sleep(SHORT.mul_f64(dice() / 10.0)).await;
                }
            }
            End::TooOld => tokio::time::sleep(SHORT.mul_f64(dice())).await,
            End::Failed(error, resumed) => {
                version = resumed;
                trouble.is(&error);
                tokio::time::sleep(backoff.pause(&error, dice())).await;
            }
        }
        if sender.is_closed() {
            return;
        }
    }
}

/// All objects, page by page, and the version of the list.
async fn list(server: &Server, collection: &Collection) -> Result<(Vec<Value>, String), CallError> {
    let mut items = Vec::new();
    let mut next = String::new();
    loop {
        let mut page = server.get(&list_path(collection, &next)).await?;
        if let Some(Value::Array(found)) = page.get_mut("items").map(Value::take) {
            items.extend(found);
        }
        let text = |name: &str| page["metadata"][name].as_str().unwrap_or_default().to_owned();
        next = text("continue");
        if next.is_empty() {
            return Ok((items, text("resourceVersion")));
        }
    }
}

fn list_path(collection: &Collection, next: &str) -> String {
    let Collection { path, labels, page, .. } = collection;
    format!("{path}?limit={page}&labelSelector={}&continue={}", encoded(labels), encoded(next))
}

fn watch_path(collection: &Collection, version: &str, longest: Duration) -> String {
    let Collection { path, labels, .. } = collection;
    let (labels, version, seconds) = (encoded(labels), encoded(version), longest.as_secs().max(1));
    format!(
        "{path}?watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}&labelSelector={labels}"
    )
}

/// Text as a value of a query.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

async fn watch<T>(
    server: &Server,
    collection: &Collection,
    version: String,
    wrap: &impl Fn(News) -> T,
    sender: &mpsc::Sender<T>,
) -> End {
    // Not all at the same time, and never longer than the limit.
    let asked = collection.longest.saturating_sub(SLACK).mul_f64(0.8 + 0.2 * dice());
    let mut body = match server.stream(&watch_path(collection, &version, asked)).await {
        Ok(response) => response.into_body(),
        Err(error) if error.code() == Some(410) => return End::TooOld,
        Err(error) => return End::Failed(error, Some(version)),
    };
    let mut version = version;
    let mut lines = Lines::default();
    let limit = tokio::time::Instant::now() + asked + SLACK;
    loop {
        let piece = tokio::select! {
            piece = next_piece(&mut body) => piece,
            () = tokio::time::sleep_until(limit) => return End::Resume(version),
            () = sender.closed() => return End::Unheard,
        };
        match piece {
            Ok(Some(piece)) => lines.add(&piece),
            Ok(None) => return End::Resume(version),
            Err(error) => return End::Failed(error, Some(version)),
        }
        loop {
            let event = match lines.next() {
                None => break,
                Some(Ok(event)) => event,
                Some(Err(error)) => return End::Failed(error, None),
            };
            let news = match told(event) {
                Told::News(news, seen) => {
                    version = seen;
                    news
                }
                Told::Bookmark(seen) => {
                    version = seen;
                    continue;
                }
                Told::End(end) => return end,
            };
            if sender.send(wrap(news)).await.is_err() {
                return End::Unheard;
            }
        }
    }
}

async fn next_piece(body: &mut Body) -> Result<Option<Vec<u8>>, CallError> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => {
                return Err(CallError::Unreachable(portcullis_contract::clean(&error.to_string(), 512)));
            }
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data.to_vec()));
                }
            }
        }
    }
}

enum Told {
    News(News, String),
    Bookmark(String),
    End(End),
}

/// What an event of a watch says.
fn told(mut event: Value) -> Told {
    let object = event["object"].take();
    let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    match event["type"].as_str() {
        Some("ADDED" | "MODIFIED") => Told::News(News::Put(object), version),
        Some("DELETED") => Told::News(News::Gone(object), version),
        Some("BOOKMARK") => Told::Bookmark(version),
        _ => {
            let code = object["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
            if code == 410 {
                return Told::End(End::TooOld);
            }
            let message = portcullis_contract::clean(object["message"].as_str().unwrap_or("the watch failed"), 512);
            Told::End(End::Failed(CallError::Refused { code, retry_after: None, message }, None))
        }
    }
}

/// Lines of a body that comes in pieces.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    read: usize,
}

impl Lines {
    fn add(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(piece);
    }

    /// The next whole line.
    fn next(&mut self) -> Option<Result<Value, CallError>> {
        loop {
            let rest = &self.bytes[self.read..];
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                let too_long = rest.len() > LONGEST_LINE;
                return too_long
                    .then(|| Err(CallError::Malformed(format!("an event of more than {LONGEST_LINE} bytes"))));
            };
            let line = &rest[..end];
            self.read += end + 1;
            if !line.iter().all(u8::is_ascii_whitespace) {
                let read = serde_json::from_slice::<BoundedValue>(line).map(|value| value.0);
                return Some(read.map_err(|error| CallError::Malformed(error.to_string())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_come_in_pieces() {
        let mut lines = Lines::default();
        lines.add(b"{\"a\":1}\n\n{\"a\"");
        assert_eq!(lines.next().and_then(Result::ok), Some(json!({"a": 1})));
        assert!(lines.next().is_none());
        lines.add(b":2}\n");
        assert_eq!(lines.next().and_then(Result::ok), Some(json!({"a": 2})));
        lines.add(b"nonsense\n");
        assert!(lines.next().is_some_and(|line| line.is_err()));
        lines.add(&vec![b' '; LONGEST_LINE + 1]);
        assert!(lines.next().is_some_and(|line| line.is_err()), "a line without end");
    }

    #[test]
    fn an_event_too_old_is_listed_anew_and_another_error_waits() {
        let event = |kind: &str, object: Value| told(json!({"type": kind, "object": object}));
        let object = json!({"metadata": {"resourceVersion": "7"}});
        assert!(matches!(event("ADDED", object.clone()), Told::News(News::Put(_), version) if version == "7"));
        assert!(matches!(event("DELETED", object.clone()), Told::News(News::Gone(_), _)));
        assert!(matches!(event("BOOKMARK", object), Told::Bookmark(version) if version == "7"));
        assert!(matches!(event("ERROR", json!({"code": 410})), Told::End(End::TooOld)));
        assert!(matches!(event("ERROR", json!({"code": 500})), Told::End(End::Failed(_, None))));
    }

    #[test]
    fn queries_are_encoded() {
        let collection =
            Collection { path: "/p".into(), labels: "a/b=c".into(), page: 5, longest: Duration::from_secs(1) };
        assert_eq!(list_path(&collection, "x+y="), "/p?limit=5&labelSelector=a%2Fb%3Dc&continue=x%2By%3D");
    }
}
