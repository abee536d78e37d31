//! Watches a collection for as long as the program runs.
//!
//! kube's `watcher` lists in pages, resumes where it was, lists again after 410, and notices a silent watch. This module adds, for
//! all programs: the pace of retries follows what the API server asks for, failures are counted and logged once, and a watch whose
//! events cannot be read is listed again, where kube would resume it at the same event for ever; and a list is begun again in smaller pages
//! where a page is larger than an answer may be.
//!
//! The known objects stay valid until a new list is complete: [`Event::Init`] begins the list, [`Event::InitDone`] ends
//! it.

use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::error::{ANSWER_LIMIT, LineTooLong};
use crate::{CallError, Failures, Retry};

/// Longest pause before the list that replaces an expired watch. The pause is random, so that not all clients list at
/// the same time.
const TOO_OLD_PAUSE: Duration = Duration::from_secs(1);
/// How many times smaller the next page is where one was too large.
const SHRINK: u32 = 4;
/// A silent watch counts as working again when no failure came for longer than a call can take.
const SETTLED: Duration = Duration::from_secs(ANSWER_LIMIT.as_secs() + 5);

/// The events of a collection, without end. The client's limits of time and size apply.
pub fn watch<K>(api: Api<K>, config: watcher::Config, failures: Failures) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let events = watcher(api.clone(), config.clone()).boxed();
    let watch = Watch { api, config, events, failures, retry: Retry::default() };
    stream::unfold(watch, |mut watch| async move { Some((watch.next().await, watch)) })
}

struct Watch<K> {
    api: Api<K>,
    config: watcher::Config,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    failures: Failures,
    retry: Retry,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    async fn next(&mut self) -> Event<K> {
        loop {
            let next = tokio::select! {
                next = self.events.next() => next,
                () = tokio::time::sleep(SETTLED) => {
                    self.works();
                    continue;
                }
            };
            match next {
                Some(Ok(event)) => {
                    // Pages of a list do not show yet that it works, as one of the next pages may fail, and then the list begins again.
                    if matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_)) {
                        self.works();
                    }
                    return event;
                }
                Some(Err(error)) => self.fail(error).await,
                None => self.restart(),
            }
        }
    }

    fn works(&mut self) {
        self.failures.over();
        self.retry.reset();
    }

    /// Notes the failure, and waits before the next try.
    async fn fail(&mut self, error: watcher::Error) {
        let is_unreadable = is_unreadable(&error);
        let error = CallError::from(error);
        if let (CallError::TooLarge(_), Some(size @ 2..)) = (&error, self.config.page_size) {
            self.config.page_size = Some((size / SHRINK).max(1));
            return self.restart();
        }
        let is_too_old = error.code() == Some(410);
        if is_too_old || is_unreadable {
            self.restart();
        }
        let pause = if is_too_old {
            TOO_OLD_PAUSE.mul_f64(fastrand::f64())
        } else {
            self.failures.failed(&error);
            self.retry.pause(&error, fastrand::f64())
        };
        tokio::time::sleep(pause).await;
    }

    fn restart(&mut self) {
        self.events = watcher(self.api.clone(), self.config.clone()).boxed();
    }
}

/// Whether an event of the watch is too long, or not what an API server sends.
fn is_unreadable(error: &watcher::Error) -> bool {
    let watcher::Error::WatchFailed(error) = error else { return false };
    matches!(error, kube::Error::SerdeError(_)) || is_caused_by::<LineTooLong>(error)
}

/// Whether this is the error, or one of its causes.
fn is_caused_by<T: Error + 'static>(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<T>() {
            return true;
        }
        next = match error.downcast_ref::<std::io::Error>() {
            // Its `source` skips the error that it was made from.
            Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Client;
    use kube::client::Body;

    use super::*;
    use crate::client::{AnswerLimits, limited};

    /// An API server with an empty collection, whose watches return these bodies one after the other. It records what it was
    /// asked.
    fn api(watches: Vec<Vec<u8>>, asked: &Arc<Mutex<Vec<&'static str>>>) -> Api<ConfigMap> {
        let (watches, asked) = (Mutex::new(watches.into_iter()), Arc::clone(asked));
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            asked.lock().expect("no test panics in it").push(if is_watch { "watch" } else { "list" });
            let body = match is_watch {
                true => watches.lock().expect("no test panics in it").next(),
                false => Some(br#"{"metadata": {"resourceVersion": "5"}, "items": []}"#.to_vec()),
            };
            async move {
                let Some(body) = body else { return std::future::pending().await };
                limited(Response::new(Body::from(body)), is_watch, &AnswerLimits::default()).await
            }
        });
        Api::default_namespaced(Client::new(service, "default"))
    }

    /// What was asked, and the labels of failures, until an object comes.
    async fn followed(mut watches: Vec<Vec<u8>>) -> (Vec<&'static str>, Vec<String>) {
        let object = r#"{"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "6"}}}"#;
        watches.push(format!("{object}\n").into_bytes());
        let (asked, failed) = (Arc::default(), Arc::new(Mutex::new(Vec::new())));
        let count = {
            let failed = Arc::clone(&failed);
            move |error: &CallError| failed.lock().expect("no test panics in it").push(error.label())
        };
        let failures = Failures::new("watch", count);
        let mut events = pin!(watch(api(watches, &asked), watcher::Config::default(), failures));
        let object = async { while !matches!(events.next().await, Some(Event::Apply(_))) {} };
        tokio::time::timeout(Duration::from_secs(60), object).await.expect("an object");
        (asked.lock().expect("no test panics in it").clone(), failed.lock().expect("no test panics in it").clone())
    }

    #[tokio::test]
    async fn a_watch_that_ends_is_resumed() {
        assert_eq!(followed(vec![Vec::new()]).await, (vec!["list", "watch", "watch"], vec![]));
    }

    #[tokio::test]
    async fn a_watch_with_an_event_that_is_too_long_is_listed_again() {
        let endless = vec![b' '; (8 << 20) + 1];
        let (asked, failed) = followed(vec![endless]).await;
        assert_eq!((asked, failed), (vec!["list", "watch", "list", "watch"], vec!["unreachable".to_owned()]));
    }

    #[tokio::test]
    async fn a_watch_with_an_event_that_cannot_be_read_is_listed_again() {
        let (asked, failed) = followed(vec![b"nonsense\n".to_vec()]).await;
        assert_eq!((asked, failed), (vec!["list", "watch", "list", "watch"], vec!["malformed".to_owned()]));
    }

    #[tokio::test]
    async fn a_watch_that_is_too_old_is_listed_again_and_is_no_failure() {
        let gone = br#"{"type": "ERROR", "object": {"status": "Failure", "code": 410, "message": "too old"}}"#;
        assert_eq!(followed(vec![gone.to_vec()]).await, (vec!["list", "watch", "list", "watch"], vec![]));
    }

    #[tokio::test]
    async fn a_list_whose_second_page_fails_is_one_row_of_failures_until_it_is_complete() {
        const FAILURES: usize = 3;
        let tries = Mutex::new(0);
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_first = !request.uri().query().is_some_and(|query| query.contains("continue="));
            let mut tries = tries.lock().expect("no test panics in it");
            *tries += usize::from(is_first);
            let item = |name| format!(r#"{{"metadata": {{"name": "{name}", "resourceVersion": "1"}}}}"#);
            let list = |more, items| format!(r#"{{"metadata": {{"resourceVersion": "5"{more}}}, "items": [{items}]}}"#);
            let (status, body) = match is_first {
                true => (200, list(r#", "continue": "2""#, item("a"))),
                false if *tries > FAILURES => (200, list("", item("b"))),
                false => (500, r#"{"status": "Failure", "code": 500, "message": "no quorum"}"#.to_owned()),
            };
            let response = Response::builder().status(status).body(Body::from(body.into_bytes()));
            let response = response.expect("a response");
            async move { limited(response, false, &AnswerLimits::default()).await }
        });
        let api = Api::<ConfigMap>::default_namespaced(Client::new(service, "default"));
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = |word: &'static str| {
            let told = Arc::clone(&told);
            move || told.lock().expect("no test panics in it").push(word)
        };
        let (failed, over) = (tell("failed"), tell("over"));
        let failures = Failures::new("watch", move |_: &CallError| failed()).and_over(over);
        let told = || told.lock().expect("no test panics in it").clone();
        let config = watcher::Config::default().page_size(1);
        let events = watcher(api.clone(), config.clone()).boxed();
        let mut watch = Watch { api, config, events, failures, retry: Retry::default() };
        while told().len() < FAILURES {
            watch.next().await;
        }
        let mut grown = Retry::default();
        for _ in 0..FAILURES {
            grown.pause(&CallError::TimedOut, 0.0);
        }
        assert_eq!((told(), watch.retry), (vec!["failed"; FAILURES], grown), "each pause is longer than the last one");
        while !matches!(watch.next().await, Event::InitDone) {}
        assert_eq!((told().last(), watch.retry), (Some(&"over"), Retry::default()));
    }

    #[tokio::test]
    async fn a_page_that_is_too_large_is_asked_for_in_smaller_ones() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let service = {
            let asked = Arc::clone(&asked);
            tower::service_fn(move |request: Request<Body>| {
                let query = request.uri().query().unwrap_or_default().to_owned();
                let size = query.split('&').find_map(|pair| pair.strip_prefix("limit=")?.parse::<usize>().ok());
                let size = size.expect("lists have a limit");
                asked.lock().expect("no test panics in it").push(size);
                let item = |number| format!(r#"{{"metadata": {{"name": "{number}", "resourceVersion": "1"}}}}"#);
                let items = (0..size).map(item).collect::<Vec<_>>().join(",");
                let body = format!(r#"{{"metadata": {{"resourceVersion": "5"}}, "items": [{items}]}}"#);
                let limits = AnswerLimits { largest: 1000, ..AnswerLimits::default() };
                async move { limited(Response::new(Body::from(body.into_bytes())), false, &limits).await }
            })
        };
        let api = Api::<ConfigMap>::default_namespaced(Client::new(service, "default"));
        let failures = Failures::new("watch", |error: &CallError| panic!("{error}"));
        let mut events = pin!(watch(api, watcher::Config::default().page_size(200), failures));
        let mut names = Vec::new();
        loop {
            match events.next().await.expect("it has no end") {
                Event::Init => names.clear(),
                Event::InitApply(object) => names.extend(object.metadata.name),
                Event::InitDone => break,
                Event::Apply(_) | Event::Delete(_) => panic!("the list comes first"),
            }
        }
        assert_eq!(*asked.lock().expect("no test panics in it"), [200, 50, 12]);
        assert_eq!(names.len(), 12);
    }
}
