//! The connection to the evaluator: calls come in, replies go out in any order.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use portcullis_contract::{
    BROKER_MAX_FRAME, BROKER_MAX_PAYLOAD, BROKER_MAX_REPLY, BrokerMessage, BrokerOutcome, BrokerReply, MAX_EXPORT,
    decode_frame, encode_frame,
};
use portcullis_process::Shutdown;
use portcullis_util::Backoff;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::admission::Admission;
use crate::check::Checks;
use crate::exports::Exports;
use crate::{ProvideError, Socket};

/// The pauses between two tries to connect; only connections that end as soon as they are made lead to longer ones.
const PAUSES: Backoff = Backoff { shortest: Duration::from_millis(100), longest: Duration::from_secs(5) };
/// A connection that lasted this long has worked, so the next pause is a short one.
const SETTLED: Duration = Duration::from_secs(1);
/// Replies that wait to be written; each becomes a frame when its turn comes. A call whose reply finds no room waits, while the
/// reader goes on.
const QUEUE: usize = 16;
/// The most calls and exports at the same time; the evaluator has fewer instances. The same number again may wait to be refused: an
/// evaluator that sends even more is not reading its replies.
const MOST: usize = 4096;

/// The handlers of messages that are not calls of policies.
pub(crate) struct Handlers {
    pub(crate) exports: Exports,
    pub(crate) checks: Checks,
}

/// Answers the evaluator's calls, and connects again whenever the connection ends, until the shutdown. A connection that there is then is
/// answered to its end.
pub(crate) async fn answer_all(socket: Socket, admission: Arc<Admission>, handlers: Arc<Handlers>, shutdown: Shutdown) {
    let user = socket.user.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    // A connection that has worked begins the tries again.
    let (mut refused, mut tries) = (false, 1_u32);
    while !shutdown.has_begun() {
        if let Some(stream) = connect(&socket.path, user, &mut refused).await {
            let connected = Instant::now();
            // An evaluator that refuses this program accepts the connection and closes it at once.
            if tries == 1 {
                tracing::info!(socket = %socket.path.display(), "connected to the evaluator");
            }
            answer(stream, &admission, &handlers).await;
            tries = if connected.elapsed() > SETTLED { 1 } else { tries.saturating_add(1) };
            tracing::debug!("the evaluator ended the connection");
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSES.bound(tries)) => {}
            () = shutdown.begun() => {}
        }
    }
}

async fn connect(path: &Path, user: u32, refused: &mut bool) -> Option<UnixStream> {
    let stream = UnixStream::connect(path).await.ok()?;
    // In a pod the evaluator is a process of another container, so it has no process id here.
    if stream.peer_cred().is_ok_and(|peer| peer.uid() == user) {
        return Some(stream);
    }
    if !std::mem::replace(refused, true) {
        tracing::warn!(socket = %path.display(), user, "the socket belongs to a process of another user and is not used");
    }
    None
}

/// Answers the calls of one connection until it ends.
async fn answer(stream: UnixStream, admission: &Arc<Admission>, handlers: &Arc<Handlers>) {
    let codec = LengthDelimitedCodec::builder().max_frame_length(BROKER_MAX_FRAME).new_codec();
    let (mut sink, mut frames) = Framed::new(stream, codec).split::<Bytes>();
    let (replies, mut outgoing) = mpsc::channel(QUEUE);
    // Dropping the set with the connection aborts the calls that still run.
    let mut calls = JoinSet::new();
    let write = async move {
        while let Some((number, answer)) = outgoing.recv().await {
            if sink.send(reply(number, answer)).await.is_err() {
                return;
            }
        }
    };
    let read = async {
        loop {
            tokio::select! {
                // First, so that calls that have ended are not counted below.
                biased;
                Some(_) = calls.join_next() => {}
                frame = frames.next() => {
                    let Some(Ok(frame)) = frame else { return };
                    let Ok((message, start)) = decode_frame::<BrokerMessage>(&frame) else {
                        tracing::warn!("the evaluator sent a message that cannot be decoded; its connection is closed");
                        return;
                    };
                    if calls.len() >= 2 * MOST {
                        tracing::warn!("the evaluator calls and reads no replies; its connection is closed");
                        return;
                    }
                    let payload = admitted(&message, &frame[start..], calls.len() >= MOST);
                    let (admission, handlers, replies) = (Arc::clone(admission), Arc::clone(handlers), replies.clone());
                    calls.spawn(async move {
                        let number = message.number();
                        let answer = match (message, payload) {
                            (_, Err(refusal)) => Err(refusal),
                            (BrokerMessage::Call(call), Ok(payload)) => admission.answer(&call, payload).await,
                            (BrokerMessage::Export(export), Ok(payload)) => {
                                handlers.exports.post(export.export, payload).await
                            }
                            (BrokerMessage::Check(check), Ok(payload)) => handlers.checks.ask(check.check, payload).await,
                        };
                        // The connection may have ended.
                        let _ = replies.send((number, answer)).await;
                    });
                }
            }
        }
    };
    tokio::select! {
        () = write => {}
        () = read => {}
    }
}

/// The payload of a message, or why it is refused. It is a copy, because a slice of a frame would keep the whole read buffer in
/// memory.
fn admitted(message: &BrokerMessage, payload: &[u8], is_full: bool) -> Result<Bytes, ProvideError> {
    if is_full {
        return Err(ProvideError::failed("too many calls are under way"));
    }
    let (name, limit) = match message {
        BrokerMessage::Call(_) => ("call", BROKER_MAX_PAYLOAD),
        BrokerMessage::Export(_) => ("export", MAX_EXPORT),
        BrokerMessage::Check(_) => ("policy", BROKER_MAX_PAYLOAD),
    };
    match payload.len() > limit {
        true => Err(ProvideError::failed(format!("the {name} has {} bytes, the limit is {limit}", payload.len()))),
        false => Ok(Bytes::copy_from_slice(payload)),
    }
}

fn reply(number: u64, answer: Result<Bytes, ProvideError>) -> Bytes {
    let answer = answer.and_then(|body| match body.len() > BROKER_MAX_REPLY {
        true => Err(ProvideError::failed(format!(
            "the reply has {} bytes, the limit is {BROKER_MAX_REPLY}; ask for less, for instance with field_masks",
            body.len()
        ))),
        false => Ok(body),
    });
    let (outcome, body) = match answer {
        Ok(body) => (BrokerOutcome::Done, body),
        Err(error) => (error.outcome(), Bytes::from(error.to_string())),
    };
    let frame = encode_frame(&BrokerReply { number, outcome }, &body);
    Bytes::from(frame.expect("the header is plain fields"))
}

#[cfg(test)]
mod tests {
    use portcullis_contract::{BrokerExport, Signal};

    use super::*;

    #[test]
    fn a_message_that_is_too_large_or_one_too_many_is_refused() {
        let export = BrokerMessage::Export(BrokerExport { number: 1, export: Signal::Metrics });
        let payload = vec![b'x'; MAX_EXPORT + 1];
        assert_eq!(admitted(&export, &payload[1..], false).expect("admitted"), payload[1..]);
        let error = admitted(&export, &payload, false).expect_err("too large");
        assert!(error.to_string().contains("1048577 bytes"), "{error}");
        let error = admitted(&export, &[], true).expect_err("full");
        assert!(error.to_string().contains("too many"), "{error}");
    }
}
