//! The connection to the broker: calls, exports and checks go out, replies come back in any order.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use portcullis_contract::{
    BROKER_MAX_ERROR, BROKER_MAX_FRAME, BROKER_MAX_PAYLOAD, BrokerCall, BrokerCheck, BrokerExport, BrokerOutcome,
    BrokerReply, BrokerRequest, CALLBACK_FAILURE, CheckVerdict, FrameError, PolicyCheck, PolicyId, Signal, clean,
    decode_frame, encode_frame,
};
use portcullis_util::lock;
use serde::Serialize;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{timeout, timeout_at};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::peer::{BrokerSocket, is_of};
use crate::fair::claimant::Claimant;
use crate::fair::policies::Claim;
use crate::fair::pool::{PolicyPermit, PolicyPool};
use crate::metrics::Metrics;

/// How long a call or a check waits for the broker to connect. The loader is back within that when it restarts.
const CONNECT: Duration = Duration::from_secs(1);
/// How long an export waits for its reply: longer than the loader waits for the collector.
const EXPORT: Duration = Duration::from_secs(65);
/// The most messages that wait to be written to the socket.
const QUEUE: usize = 64;
/// The most bytes of replies that no guest has taken yet, of all policies together. They are shared as memory is, so that policies which
/// wait for memory while they hold replies leave room for those of others. It is nine times the largest reply: a namespace gets room for four, and some is
/// left for its small ones.
const UNCLAIMED: u64 = 72 << 20;
/// Largest verdict on a policy that is applied, in bytes.
const MAX_VERDICT: usize = 64 << 10;
/// One part in so many of its time is left after a call for the guest, which can still say what failed, and after a check for the way
/// back of its verdict.
const LEFT_TO_CALLER: u32 = 20;

/// The evaluator's end of the broker's socket.
pub struct BrokerLink {
    numbers: AtomicU64,
    /// The queue of messages to the current connection; none while there is no connection.
    writer: watch::Sender<Option<mpsc::Sender<Bytes>>>,
    waiting: Mutex<HashMap<u64, WaitingMessage>>,
    unclaimed: Arc<PolicyPool>,
    /// Whether guests' questions about certificates go this way too.
    pub(crate) takes_certificates: bool,
    metrics: Metrics,
}

type Reply = Result<BrokerAnswer, LinkFailure>;

/// A message that waits for its reply.
struct WaitingMessage {
    sender: oneshot::Sender<Reply>,
    /// Whose share the reply counts in; none where it is for this program itself, which keeps it for a moment only.
    account: Option<ReplyAccount>,
}

/// The policy that a reply is for.
struct ReplyAccount {
    who: Arc<Claimant>,
    /// What was taken for the reply before it was asked for; none if it must find room when it comes.
    room: Option<PolicyPermit>,
}

/// A reply that the guest gets.
pub(crate) struct BrokerAnswer {
    /// Its bytes.
    pub bytes: Bytes,
    /// Its part of [`UNCLAIMED`]; none where nothing is counted.
    _unclaimed: Option<PolicyPermit>,
}

/// Why there is nothing that the guest asked for. The text is for the guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkFailure {
    /// The policy has no grant for it.
    #[error("{0}")]
    Denied(String),
    /// The answer is no, which guests get as an error: what was asked about does not exist, or is not signed as it must be.
    #[error("{0}")]
    Negative(String),
    /// The call failed.
    #[error("{0}")]
    Failed(String),
}

impl LinkFailure {
    /// A failure with this cause.
    pub(crate) fn failed(cause: &str) -> Self {
        Self::Failed(format!("{CALLBACK_FAILURE}{}", clean(cause, BROKER_MAX_ERROR)))
    }

    /// The text for others than guests, without the prefix for guests.
    pub(crate) fn cause(&self) -> &str {
        let (Self::Denied(text) | Self::Negative(text) | Self::Failed(text)) = self;
        text.strip_prefix(CALLBACK_FAILURE).unwrap_or(text)
    }

    fn outcome(&self) -> BrokerOutcome {
        match self {
            Self::Denied(_) => BrokerOutcome::Denied,
            Self::Negative(_) => BrokerOutcome::Negative,
            Self::Failed(_) => BrokerOutcome::Failed,
        }
    }
}

/// There is no room for a reply at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many large replies of the loader wait for this policy or its namespace on this replica")]
pub(crate) struct NoRoom;

/// Who calls, and for how long.
pub(crate) struct Caller<'a> {
    /// The policy.
    pub policy: &'a PolicyId,
    /// The one whose share of the replies this one counts in.
    pub who: &'a Arc<Claimant>,
    /// Its generation.
    pub generation: i64,
    /// The member of a policy group; none if the policy is not a group.
    pub member: Option<&'a str>,
    /// When its reply must be there.
    pub deadline: Instant,
}

/// Takes a message out of the list when its sender stops waiting.
struct Waiting<'a>(&'a BrokerLink, u64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting().remove(&self.1);
    }
}

impl BrokerLink {
    /// A link without a connection. `takes_certificates` says whether guests' questions about certificates, which need no broker, go this
    /// way too.
    pub(crate) fn new(metrics: &Metrics, takes_certificates: bool) -> Arc<Self> {
        Arc::new(Self {
            numbers: AtomicU64::new(0),
            writer: watch::Sender::new(None),
            waiting: Mutex::default(),
            // Each evaluation waits for one reply at a time, so the number of instances limits the queue.
            unclaimed: PolicyPool::new(UNCLAIMED, UNCLAIMED / 8, usize::MAX),
            takes_certificates,
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
        self.metrics.broker_connected.set(1);
        // Declared before the queue, so dropped after it: with the queue closed, a call that comes too late for this answer fails by itself
        // instead of waiting for its timeout.
        let _end = OnDrop(|| {
            self.writer.send_replace(None);
            self.metrics.broker_connected.set(0);
            for (_, waiting) in self.waiting().drain() {
                let _ = waiting.sender.send(Err(LinkFailure::failed(
                    "the loader of this pod ended the connection; it may be restarting",
                )));
            }
        });
        let (sender, mut calls) = mpsc::channel::<Bytes>(QUEUE);
        self.writer.send_replace(Some(sender));
        loop {
            tokio::select! {
                frame = frames.next() => match frame {
                    Some(Ok(frame)) => {
                        if let Err(problem) = self.take(frame.freeze()) {
                            let problem = problem.to_string();
                            tracing::warn!(problem, "the broker sent an invalid message; its connection is closed");
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

    fn take(&self, frame: Bytes) -> Result<(), FrameError> {
        let (reply, start) = decode_frame::<BrokerReply>(&frame)?;
        // Its guest may have stopped waiting.
        let Some(waiting) = self.waiting().remove(&reply.number) else { return Ok(()) };
        let body = frame.slice(start..);
        let text = || clean(&String::from_utf8_lossy(&body), BROKER_MAX_ERROR);
        let _ = waiting.sender.send(match reply.outcome {
            BrokerOutcome::Denied => Err(LinkFailure::Denied(text())),
            BrokerOutcome::Negative => Err(LinkFailure::Negative(text())),
            BrokerOutcome::Failed => Err(LinkFailure::Failed(text())),
            BrokerOutcome::Done => self.answer(body, waiting.account),
        });
        Ok(())
    }

    fn answer(&self, bytes: Bytes, account: Option<ReplyAccount>) -> Reply {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let Some(ReplyAccount { who, mut room }) = account.filter(|_| length > 0) else {
            return Ok(BrokerAnswer { bytes, _unclaimed: None });
        };
        let has = room.as_ref().map_or(0, PolicyPermit::amount);
        if length > has {
            let more = self.unclaimed.try_take(&Claim { who, amount: length - has, has });
            let more = more.ok_or_else(|| {
                LinkFailure::failed(
                    "too many large replies wait for this policy or its namespace on this replica; the policy can be asked again",
                )
            })?;
            match &mut room {
                Some(room) => room.merge(more),
                None => room = Some(more),
            }
        } else if let Some(room) = &mut room {
            room.reduce_to(length);
        }
        Ok(BrokerAnswer { bytes, _unclaimed: room })
    }

    /// Takes room for a reply of `amount` bytes that is asked for next, or waits for it.
    ///
    /// # Errors
    /// When there is none in time.
    pub(crate) async fn room(
        &self,
        who: &Arc<Claimant>,
        amount: u64,
        deadline: Instant,
    ) -> Result<PolicyPermit, NoRoom> {
        let claim = Claim { who: Arc::clone(who), amount: amount.min(UNCLAIMED), has: 0 };
        if let Some(room) = self.unclaimed.try_take(&claim) {
            return Ok(room);
        }
        let until = Instant::now() + without_way_back(left_until(deadline));
        self.unclaimed.take(&claim, Some(until)).await.map_err(|_| NoRoom)
    }

    /// Asks the broker. The reply comes some time before the deadline, or a failure does. It needs no more room than `room` if it is not
    /// longer than that.
    ///
    /// # Errors
    /// When the policy may not ask for this, the broker cannot answer, or its answer is no.
    pub(crate) async fn call(
        &self,
        caller: &Caller<'_>,
        request: BrokerRequest,
        payload: &[u8],
        room: Option<PolicyPermit>,
    ) -> Reply {
        let result = self.ask(caller, request, payload, room).await;
        let outcome = result.as_ref().map_or_else(LinkFailure::outcome, |_| BrokerOutcome::Done);
        self.metrics.capability_calls.with_label_values(&[request.path(), outcome.as_str()]).inc();
        result
    }

    async fn ask(
        &self,
        caller: &Caller<'_>,
        request: BrokerRequest,
        payload: &[u8],
        room: Option<PolicyPermit>,
    ) -> Reply {
        let left = left_until(caller.deadline);
        let until = Instant::now() + without_way_back(left);
        let Some(sender) = self.connected(left).await else {
            return Err(LinkFailure::failed("the loader of this pod does not answer; the policy can be asked again"));
        };
        let call = |number| BrokerCall {
            number,
            policy: caller.policy.clone(),
            generation: caller.generation,
            member: caller.member.map(str::to_owned),
            request,
            millis: millis(left_until(until)),
        };
        let late = || format!("'{request}' took longer than the policy's time allows");
        let account = ReplyAccount { who: Arc::clone(caller.who), room };
        self.exchange(sender, call, Some(account), payload, until, late).await
    }

    /// Asks the loader about a policy that somebody applies, whose JSON is `object`. The verdict, or a failure, comes by the deadline.
    ///
    /// # Errors
    /// When the policy is too large to be sent, and when the loader gives no verdict in time.
    pub(crate) async fn check(&self, object: &str, deadline: Instant) -> Result<CheckVerdict, LinkFailure> {
        if object.len() > BROKER_MAX_PAYLOAD {
            let text = format!("it has {} bytes, and at most {BROKER_MAX_PAYLOAD} can be checked", object.len());
            return Err(LinkFailure::failed(&text));
        }
        let Some(sender) = self.connected(left_until(deadline)).await else {
            return Err(LinkFailure::failed("the loader of this pod does not answer"));
        };
        let check = |number| {
            let millis = millis(without_way_back(left_until(deadline)));
            BrokerCheck { number, check: PolicyCheck { millis } }
        };
        let late = || "the loader of this pod gave no answer in time".to_owned();
        let reply = self.exchange(sender, check, None, object.as_bytes(), deadline, late).await?;
        if reply.bytes.len() > MAX_VERDICT {
            return Err(LinkFailure::failed("the loader of this pod gave an answer that is too long"));
        }
        serde_json::from_slice(&reply.bytes)
            .map_err(|_| LinkFailure::failed("the loader of this pod gave an answer of another form"))
    }

    /// Hands an export to the broker.
    ///
    /// # Errors
    /// When nothing is connected, or the collector does not take it.
    pub(super) async fn export(&self, signal: Signal, body: &[u8]) -> Result<(), LinkFailure> {
        let sender = self.writer.borrow().clone();
        let sender = sender.ok_or_else(|| LinkFailure::failed("the loader of this pod is not connected"))?;
        let export = |number| BrokerExport { number, export: signal };
        let late = || "the loader of this pod gave no answer".to_owned();
        self.exchange(sender, export, None, body, Instant::now() + EXPORT, late).await.map(drop)
    }

    /// The queue of messages to the broker; none if it does not connect soon enough for a message with this much time left.
    async fn connected(&self, left: Duration) -> Option<mpsc::Sender<Bytes>> {
        let mut writer = self.writer.subscribe();
        let connected = timeout(patience(left), writer.wait_for(Option::is_some));
        match connected.await {
            Ok(Ok(sender)) => sender.clone(),
            _ => None,
        }
    }

    /// Sends a message, whose header is made with its number, and waits for its reply. `late` gives the error text if none comes by `until`.
    async fn exchange<H: Serialize>(
        &self,
        sender: mpsc::Sender<Bytes>,
        header: impl FnOnce(u64) -> H,
        account: Option<ReplyAccount>,
        body: &[u8],
        until: Instant,
        late: impl FnOnce() -> String,
    ) -> Reply {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let frame = encode_frame(&header(number), body).map_err(|error| LinkFailure::failed(&error.to_string()))?;
        let (reply, replied) = oneshot::channel();
        self.waiting().insert(number, WaitingMessage { sender: reply, account });
        let _waiting = Waiting(self, number);
        let ended = || LinkFailure::failed("the loader of this pod ended the connection");
        let exchange = async {
            sender.send(frame.into()).await.map_err(|_| ended())?;
            replied.await.unwrap_or_else(|_| Err(ended()))
        };
        timeout_at(until.into(), exchange).await.unwrap_or_else(|_| Err(LinkFailure::failed(&late())))
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, WaitingMessage>> {
        lock(&self.waiting)
    }
}

fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The time in which the broker must reply: `left` without the part that is left to the caller.
fn without_way_back(left: Duration) -> Duration {
    left - left / LEFT_TO_CALLER
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// How long a message with this much time left waits for the broker to connect.
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
mod tests;
