//! The connection to the broker: calls go out, replies come back in any order.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use portcullis_contract::{
    BROKER_MAX_ERROR, BROKER_MAX_FRAME, BrokerCall, BrokerExport, BrokerOutcome, BrokerReply, BrokerRequest,
    CALLBACK_FAILURE, PolicyId, Signal, clean, decode_frame, encode_frame,
};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{timeout, timeout_at};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::peer::{BrokerSocket, is_of};
use crate::metrics::Metrics;

/// How long a call waits for the broker to connect. The loader is back within that when it restarts.
const CONNECT: Duration = Duration::from_secs(1);
/// How long an export waits for its reply: longer than the loader does for the collector.
const EXPORT: Duration = Duration::from_secs(65);
/// Calls that wait to be written.
const QUEUE: usize = 64;
/// Bytes of replies that no guest has taken yet, of all policies together.
const UNCLAIMED: usize = 64 << 20;
/// The part of its time that a call leaves to the guest, so that it can still say what failed.
const LEFT_TO_GUEST: u32 = 20;

/// The evaluator's end of the broker's socket.
pub struct BrokerLink {
    numbers: AtomicU64,
    /// The writer of the present connection.
    writer: watch::Sender<Option<mpsc::Sender<Bytes>>>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Reply>>>,
    unclaimed: Arc<Semaphore>,
    metrics: Metrics,
}

type Reply = Result<BrokerAnswer, LinkFailure>;

/// A reply that the guest gets.
#[derive(Debug)]
pub(crate) struct BrokerAnswer {
    /// Its bytes.
    pub bytes: Bytes,
    /// Its part of what may wait unclaimed.
    _unclaimed: OwnedSemaphorePermit,
}

/// Why the broker gave no reply. The text is for the guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkFailure {
    /// The policy has no right to it.
    #[error("{0}")]
    Denied(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
}

impl LinkFailure {
    /// A failure with this cause.
    pub(crate) fn failed(cause: &str) -> Self {
        Self::Failed(format!("{CALLBACK_FAILURE}{}", clean(cause, BROKER_MAX_ERROR)))
    }
}

/// Who calls, and for how long.
pub(crate) struct Caller<'a> {
    /// The policy.
    pub policy: &'a PolicyId,
    /// Its generation.
    pub generation: i64,
    /// The member of a policy group.
    pub member: Option<&'a str>,
    /// When its reply must be there.
    pub deadline: Instant,
}

/// Takes a call out of the list when its guest stops waiting.
struct Waiting<'a>(&'a BrokerLink, u64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting().remove(&self.1);
    }
}

impl BrokerLink {
    /// A link without a connection.
    pub(crate) fn new(metrics: &Metrics) -> Arc<Self> {
        Arc::new(Self {
            numbers: AtomicU64::new(0),
            writer: watch::Sender::new(None),
            waiting: Mutex::default(),
            unclaimed: Arc::new(Semaphore::new(UNCLAIMED)),
            metrics: metrics.clone(),
        })
    }

    /// Takes the broker's connections, one after the other; a new one replaces the one before. Never returns.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub(crate) async fn serve(self: Arc<Self>, socket: BrokerSocket) -> io::Result<()> {
        let (listener, user) = socket.into_listener()?;
        let mut current: Option<tokio::task::JoinHandle<()>> = None;
        let mut is_logged = false;
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            if !is_of(&stream, user) {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!(user, "a process of another user connected to the broker's socket and was refused");
                }
                continue;
            }
            is_logged = false;
            if let Some(before) = current.take() {
                before.abort();
                let _ = before.await;
            }
            tracing::info!("the broker is connected");
            current = Some(tokio::spawn(Arc::clone(&self).connection(stream)));
        }
    }

    async fn connection(self: Arc<Self>, stream: UnixStream) {
        let codec = LengthDelimitedCodec::builder().max_frame_length(BROKER_MAX_FRAME).new_codec();
        let (mut sink, mut frames) = Framed::new(stream, codec).split::<Bytes>();
        let (sender, mut calls) = mpsc::channel::<Bytes>(QUEUE);
        self.metrics.broker_connected.set(1);
        let _end = OnDrop(|| {
            self.writer.send_replace(None);
            self.metrics.broker_connected.set(0);
            for (_, waiting) in self.waiting().drain() {
                let _ = waiting.send(Err(LinkFailure::failed(
                    "the loader of this pod ended the connection; it may be restarting",
                )));
            }
        });
        self.writer.send_replace(Some(sender));
        loop {
            tokio::select! {
                frame = frames.next() => match frame {
                    Some(Ok(frame)) => {
                        if let Err(problem) = self.take(frame.freeze()) {
                            tracing::warn!(problem, "the broker sent what makes no sense; its connection is closed");
                            return;
                        }
                    }
                    Some(Err(_)) | None => return,
                },
                call = calls.recv() => {
                    let Some(call) = call else { return };
                    if sink.send(call).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn take(&self, frame: Bytes) -> Result<(), String> {
        let (reply, start) = decode_frame::<BrokerReply>(&frame).map_err(|error| error.to_string())?;
        // Its guest may have stopped waiting.
        let Some(waiting) = self.waiting().remove(&reply.number) else { return Ok(()) };
        let body = frame.slice(start..);
        let text = || clean(&String::from_utf8_lossy(&body), BROKER_MAX_ERROR);
        let _ = waiting.send(match reply.outcome {
            BrokerOutcome::Denied => Err(LinkFailure::Denied(text())),
            BrokerOutcome::Failed => Err(LinkFailure::Failed(text())),
            BrokerOutcome::Done => self.answer(body),
        });
        Ok(())
    }

    fn answer(&self, bytes: Bytes) -> Reply {
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        match Arc::clone(&self.unclaimed).try_acquire_many_owned(size) {
            Ok(permit) => Ok(BrokerAnswer { bytes, _unclaimed: permit }),
            Err(_) => Err(LinkFailure::failed("too many large replies wait for their policies on this replica")),
        }
    }

    /// Asks the broker. The reply comes some time before the deadline, or a failure does.
    ///
    /// # Errors
    /// When the policy may not, or the broker cannot.
    pub(crate) async fn call(&self, caller: &Caller<'_>, request: BrokerRequest, payload: &[u8]) -> Reply {
        let result = self.ask(caller, request, payload).await;
        let outcome = match &result {
            Ok(_) => "done",
            Err(LinkFailure::Denied(_)) => "denied",
            Err(LinkFailure::Failed(_)) => "failed",
        };
        self.metrics.capability_calls.with_label_values(&[request.path(), outcome]).inc();
        result
    }

    async fn ask(&self, caller: &Caller<'_>, request: BrokerRequest, payload: &[u8]) -> Reply {
        let left = caller.deadline.saturating_duration_since(Instant::now());
        let until = Instant::now() + (left - left / LEFT_TO_GUEST);
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut writer = self.writer.subscribe();
        let connected = timeout(patience(left), writer.wait_for(Option::is_some));
        let sender = match connected.await {
            Ok(Ok(sender)) => sender.clone(),
            _ => None,
        };
        let Some(sender) = sender else {
            return Err(LinkFailure::failed("the loader of this pod does not answer; the policy can be asked again"));
        };
        let call = BrokerCall {
            number,
            policy: caller.policy.clone(),
            generation: caller.generation,
            member: caller.member.map(str::to_owned),
            request,
            millis: u64::try_from(until.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(u64::MAX),
        };
        let frame = encode_frame(&call, payload).map_err(|error| LinkFailure::failed(&error.to_string()))?;
        let (reply, replied) = oneshot::channel();
        self.waiting().insert(number, reply);
        let _waiting = Waiting(self, number);
        let exchange = async {
            sender
                .send(frame.into())
                .await
                .map_err(|_| LinkFailure::failed("the loader of this pod ended the connection"))?;
            replied.await.unwrap_or_else(|_| Err(LinkFailure::failed("the loader of this pod ended the connection")))
        };
        let late = |_| Err(LinkFailure::failed(&format!("'{request}' took longer than the policy's time allows")));
        timeout_at(until.into(), exchange).await.unwrap_or_else(late)
    }

    /// Hands an export to the broker.
    ///
    /// # Errors
    /// When nothing is connected, or the collector does not take it.
    pub(super) async fn export(&self, signal: Signal, body: &[u8]) -> Result<(), LinkFailure> {
        let sender = self.writer.borrow().clone();
        let sender = sender.ok_or_else(|| LinkFailure::Failed("the loader of this pod is not connected".to_owned()))?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let frame = encode_frame(&BrokerExport { number, export: signal }, body);
        let frame = frame.map_err(|error| LinkFailure::Failed(error.to_string()))?;
        let (reply, replied) = oneshot::channel();
        self.waiting().insert(number, reply);
        let _waiting = Waiting(self, number);
        let ended = || LinkFailure::Failed("the loader of this pod ended the connection".to_owned());
        let exchange = async {
            sender.send(frame.into()).await.map_err(|_| ended())?;
            replied.await.unwrap_or_else(|_| Err(ended())).map(drop)
        };
        let late = |_| Err(LinkFailure::Failed("the loader of this pod gave no answer".to_owned()));
        timeout(EXPORT, exchange).await.unwrap_or_else(late)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Reply>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a call with this much time left waits for the broker to connect.
fn patience(left: Duration) -> Duration {
    CONNECT.min(left / 2)
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;

    use super::*;

    const LOOKUP: BrokerRequest = BrokerRequest::Capability(portcullis_contract::Capability::DnsLookupHost);

    type Frames = Framed<UnixStream, LengthDelimitedCodec>;

    struct Rig {
        _folder: tempfile::TempDir,
        path: std::path::PathBuf,
        link: Arc<BrokerLink>,
        server: JoinHandle<io::Result<()>>,
    }

    impl Rig {
        fn new(user: Option<u32>) -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("broker.sock");
            let socket = BrokerSocket::bind(&path, user).expect("binds");
            let link = BrokerLink::new(&Metrics::new().expect("registers"));
            let server = tokio::spawn(Arc::clone(&link).serve(socket));
            Self { _folder: folder, path, link, server }
        }

        async fn connect(&self) -> Frames {
            let stream = UnixStream::connect(&self.path).await.expect("connects");
            let codec = LengthDelimitedCodec::builder().max_frame_length(16 << 20).new_codec();
            Framed::new(stream, codec)
        }

        fn call(&self, payload: &'static str, millis: u64) -> JoinHandle<Result<Bytes, LinkFailure>> {
            let link = Arc::clone(&self.link);
            let policy: PolicyId = "cluster/a".parse().expect("an id");
            tokio::spawn(async move {
                let deadline = Instant::now() + Duration::from_millis(millis);
                let caller = Caller { policy: &policy, generation: 1, member: None, deadline };
                link.call(&caller, LOOKUP, payload.as_bytes()).await.map(|answer| answer.bytes)
            })
        }
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            self.server.abort();
        }
    }

    async fn next(frames: &mut Frames) -> (BrokerCall, Vec<u8>) {
        let frame = frames.next().await.expect("a frame").expect("whole");
        let (call, start) = decode_frame::<BrokerCall>(&frame).expect("a call");
        (call, frame[start..].to_vec())
    }

    async fn reply(frames: &mut Frames, number: u64, outcome: BrokerOutcome, body: &[u8]) {
        let frame = encode_frame(&BrokerReply { number, outcome }, body).expect("encodes");
        frames.send(Bytes::from(frame)).await.expect("sends");
    }

    fn text(result: Result<Bytes, LinkFailure>) -> String {
        result.expect_err("a failure").to_string()
    }

    #[tokio::test]
    async fn replies_come_in_any_order() {
        let rig = Rig::new(None);
        let mut broker = rig.connect().await;
        let (one, other) = (rig.call("one", 60_000), rig.call("other", 60_000));
        let calls = [next(&mut broker).await, next(&mut broker).await];
        for (call, payload) in calls.iter().rev() {
            assert!(call.millis < 60_000 && call.request == LOOKUP);
            reply(&mut broker, call.number, BrokerOutcome::Done, payload).await;
        }
        assert_eq!(one.await.expect("ends").expect("a reply"), "one");
        assert_eq!(other.await.expect("ends").expect("a reply"), "other");
        assert!(rig.link.waiting().is_empty());
    }

    #[tokio::test]
    async fn a_refusal_is_logged_from_a_failure() {
        let rig = Rig::new(None);
        let mut broker = rig.connect().await;
        for outcome in [BrokerOutcome::Denied, BrokerOutcome::Failed] {
            let call = rig.call("", 60_000);
            let (header, _) = next(&mut broker).await;
            reply(&mut broker, header.number, outcome, b"no\x1b[2J").await;
            let error = call.await.expect("ends").expect_err("a failure");
            assert_eq!(matches!(error, LinkFailure::Denied(_)), outcome == BrokerOutcome::Denied);
            assert!(!error.to_string().contains('\x1b'));
        }
    }

    #[tokio::test]
    async fn without_a_broker_the_guest_learns_it_before_its_deadline() {
        let rig = Rig::new(None);
        let start = Instant::now();
        assert!(text(rig.call("", 60_000).await.expect("ends")).contains("the loader of this pod does not answer"));
        assert!(start.elapsed() < Duration::from_secs(60));
        assert_eq!(patience(Duration::from_secs(60)), CONNECT);
        assert_eq!(patience(Duration::from_millis(400)), Duration::from_millis(200));
    }

    #[tokio::test]
    async fn a_slow_broker_leaves_time_to_the_guest_and_its_late_reply_is_dropped() {
        let rig = Rig::new(None);
        let mut broker = rig.connect().await;
        let call = rig.call("", 2000);
        let (header, _) = next(&mut broker).await;
        assert!(text(call.await.expect("ends")).contains("took longer than the policy's time allows"));
        reply(&mut broker, header.number, BrokerOutcome::Done, b"late").await;
        let call = rig.call("again", 60_000);
        let (header, payload) = next(&mut broker).await;
        reply(&mut broker, header.number, BrokerOutcome::Done, &payload).await;
        assert_eq!(call.await.expect("ends").expect("a reply"), "again");
    }

    #[tokio::test]
    async fn a_broker_that_dies_fails_what_waits_and_its_successor_goes_on() {
        let rig = Rig::new(None);
        let mut broker = rig.connect().await;
        let call = rig.call("", 60_000);
        next(&mut broker).await;
        drop(broker);
        assert!(text(call.await.expect("ends")).contains("ended the connection"));
        // It comes back while a guest already waits.
        let call = rig.call("again", 60_000);
        let mut broker = rig.connect().await;
        let (header, payload) = next(&mut broker).await;
        reply(&mut broker, header.number, BrokerOutcome::Done, &payload).await;
        assert_eq!(call.await.expect("ends").expect("a reply"), "again");
    }

    #[tokio::test]
    async fn a_broker_that_sends_nonsense_is_disconnected() {
        for nonsense in [&b"{}\n"[..], b"no header", b""] {
            let rig = Rig::new(None);
            let mut broker = rig.connect().await;
            let call = rig.call("", 60_000);
            next(&mut broker).await;
            broker.send(Bytes::from_static(nonsense)).await.expect("sends");
            assert!(text(call.await.expect("ends")).contains("ended the connection"));
            assert!(broker.next().await.is_none_or(|frame| frame.is_err()));
        }
    }

    #[tokio::test]
    async fn replies_for_nobody_and_large_ones_in_number_have_a_limit() {
        let rig = Rig::new(None);
        let mut broker = rig.connect().await;
        reply(&mut broker, 4711, BrokerOutcome::Done, b"for nobody").await;
        let held = Arc::clone(&rig.link.unclaimed).try_acquire_many_owned((UNCLAIMED - 4) as u32).expect("free");
        let call = rig.call("", 60_000);
        let (header, _) = next(&mut broker).await;
        reply(&mut broker, header.number, BrokerOutcome::Done, b"12345").await;
        assert!(text(call.await.expect("ends")).contains("too many large replies"));
        drop(held);
        let call = rig.call("", 60_000);
        let (header, _) = next(&mut broker).await;
        reply(&mut broker, header.number, BrokerOutcome::Done, b"12345").await;
        assert_eq!(call.await.expect("ends").expect("a reply"), "12345");
        assert_eq!(rig.link.unclaimed.available_permits(), UNCLAIMED);
    }

    #[tokio::test]
    async fn another_user_is_refused() {
        let rig = Rig::new(Some(rustix::process::geteuid().as_raw() + 1));
        let mut stranger = rig.connect().await;
        assert!(stranger.next().await.is_none_or(|frame| frame.is_err()));
    }
}
