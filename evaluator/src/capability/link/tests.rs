use portcullis_contract::Reason;
use tokio::task::JoinHandle;

use super::*;

const LOOKUP: BrokerRequest = BrokerRequest::Capability(portcullis_contract::Capability::DnsLookupHost);
const POLICY: &str = r#"{"kind":"Policy"}"#;

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
        let link = BrokerLink::new(&Metrics::new().expect("registers"), false);
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
        let who = who("cluster/a");
        tokio::spawn(async move {
            let deadline = Instant::now() + Duration::from_millis(millis);
            let caller = Caller { policy: &who.policy, who: &who, generation: 1, member: None, deadline };
            link.call(&caller, LOOKUP, payload.as_bytes(), None).await.map(|answer| answer.bytes)
        })
    }

    fn check(&self, millis: u64) -> JoinHandle<Result<CheckVerdict, LinkFailure>> {
        let link = Arc::clone(&self.link);
        let deadline = Instant::now() + Duration::from_millis(millis);
        tokio::spawn(async move { link.check(POLICY, deadline).await })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn who(id: &str) -> Arc<Claimant> {
    Claimant::new(&id.parse().expect("an id"))
}

async fn next(frames: &mut Frames) -> (BrokerCall, Vec<u8>) {
    message(frames).await
}

async fn message<T: serde::de::DeserializeOwned>(frames: &mut Frames) -> (T, Vec<u8>) {
    let frame = frames.next().await.expect("a frame").expect("whole");
    let (message, start) = decode_frame(&frame).expect("a message");
    (message, frame[start..].to_vec())
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
async fn a_refusal_and_an_answer_of_no_are_told_from_a_failure() {
    let rig = Rig::new(None);
    let mut broker = rig.connect().await;
    for outcome in [BrokerOutcome::Denied, BrokerOutcome::Negative, BrokerOutcome::Failed] {
        let call = rig.call("", 60_000);
        let (header, _) = next(&mut broker).await;
        reply(&mut broker, header.number, outcome, b"no\x1b[2J").await;
        let error = call.await.expect("ends").expect_err("a failure");
        assert_eq!(error.outcome(), outcome);
        let counted = rig.link.metrics.capability_calls.with_label_values(&[LOOKUP.path(), outcome.as_str()]);
        assert_eq!(counted.get(), 1, "{outcome:?}");
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
    // The broker comes back while a guest already waits.
    let call = rig.call("again", 60_000);
    let mut broker = rig.connect().await;
    let (header, payload) = next(&mut broker).await;
    reply(&mut broker, header.number, BrokerOutcome::Done, &payload).await;
    assert_eq!(call.await.expect("ends").expect("a reply"), "again");
}

/// Otherwise a call that is made in between would wait in a queue that nobody reads, until its time is over.
#[tokio::test]
async fn the_queue_is_closed_before_waiting_calls_fail() {
    struct Told(mpsc::Sender<Bytes>, std::sync::Mutex<Option<bool>>);
    impl std::task::Wake for Told {
        fn wake(self: Arc<Self>) {
            *lock(&self.1) = Some(self.0.is_closed());
        }
    }
    let rig = Rig::new(None);
    let broker = rig.connect().await;
    let queue = rig.link.connected(Duration::from_secs(60)).await.expect("a connection");
    let (sender, mut reply) = oneshot::channel();
    rig.link.waiting().insert(u64::MAX, WaitingMessage { sender, account: None });
    let told = Arc::new(Told(queue, std::sync::Mutex::default()));
    let waker = std::task::Waker::from(Arc::clone(&told));
    let mut context = std::task::Context::from_waker(&waker);
    assert!(std::pin::Pin::new(&mut reply).poll(&mut context).is_pending());
    drop(broker);
    let telling = async {
        while lock(&told.1).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), telling).await.expect("an answer for those that wait");
    assert_eq!(*lock(&told.1), Some(true));
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
    let take = |amount| rig.link.unclaimed.try_take(&Claim { who: who("cluster/a"), amount, has: 0 }).expect("free");
    let held = take(UNCLAIMED - 4);
    let call = rig.call("", 60_000);
    let (header, _) = next(&mut broker).await;
    reply(&mut broker, header.number, BrokerOutcome::Done, b"12345").await;
    assert!(text(call.await.expect("ends")).contains("too many large replies"));
    drop(held);
    let call = rig.call("", 60_000);
    let (header, _) = next(&mut broker).await;
    reply(&mut broker, header.number, BrokerOutcome::Done, b"12345").await;
    assert_eq!(call.await.expect("ends").expect("a reply"), "12345");
    drop(take(UNCLAIMED));
}

#[tokio::test]
async fn a_namespace_that_holds_all_the_replies_it_may_leaves_room_for_those_of_others() {
    let link = BrokerLink::new(&Metrics::new().expect("registers"), false);
    let largest = Bytes::from(vec![b'x'; 8 << 20]);
    let answer = |id: &str| link.answer(largest.clone(), Some(ReplyAccount { who: who(id), room: None }));
    let hoard = |name: &str| -> Vec<BrokerAnswer> {
        (0..10).map_while(|number| answer(&format!("namespaced/{name}/{number}")).ok()).collect()
    };
    let held = hoard("a");
    assert_eq!(held.len(), 4, "half of all");
    assert!(answer("namespaced/b/x").is_ok() && answer("cluster/x").is_ok());
    let others = hoard("b");
    assert_eq!(others.len(), 2, "half of the rest");
    assert!(answer("namespaced/c/x").is_ok());
    drop(held);
    assert!(answer("namespaced/a/x").is_ok(), "what was taken came back");
}

#[tokio::test]
async fn room_that_one_policy_has_reserved_leaves_some_for_small_replies_of_its_namespace() {
    let link = BrokerLink::new(&Metrics::new().expect("registers"), false);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut rooms = Vec::new();
    for _ in 0..4 {
        rooms.push(link.room(&who("namespaced/a/x"), 8 << 20, deadline).await.expect("free"));
    }
    let account = ReplyAccount { who: who("namespaced/a/y"), room: None };
    assert!(link.answer(vec![b'x'; 1 << 10].into(), Some(account)).is_ok());
}

#[tokio::test]
async fn large_replies_that_are_asked_for_at_the_same_time_wait_for_each_other() {
    const LENGTH: usize = 4 << 20;
    let rig = Rig::new(None);
    let mut broker = rig.connect().await;
    let ask = |_| {
        let (link, who) = (Arc::clone(&rig.link), who("cluster/a"));
        tokio::spawn(async move {
            let deadline = Instant::now() + Duration::from_secs(60);
            let room =
                link.room(&who, 8 << 20, deadline).await.map_err(|error| LinkFailure::failed(&error.to_string()))?;
            let caller = Caller { policy: &who.policy, who: &who, generation: 1, member: None, deadline };
            let answer = link.call(&caller, BrokerRequest::ContextObjects, b"", Some(room)).await?;
            // As long as it takes to copy it for the guest.
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok::<_, LinkFailure>(answer.bytes.len())
        })
    };
    let asked: Vec<_> = (0..12).map(ask).collect();
    let body = vec![b'x'; LENGTH];
    for _ in 0..asked.len() {
        let (header, _) = next(&mut broker).await;
        reply(&mut broker, header.number, BrokerOutcome::Done, &body).await;
    }
    for judged in asked {
        assert_eq!(judged.await.expect("ends"), Ok(LENGTH));
    }
    drop(
        rig.link
            .unclaimed
            .try_take(&Claim { who: who("cluster/a"), amount: UNCLAIMED, has: 0 })
            .expect("all came back"),
    );
}

#[tokio::test]
async fn a_reply_may_be_shorter_or_longer_than_its_room() {
    let link = BrokerLink::new(&Metrics::new().expect("registers"), false);
    let a = who("cluster/a");
    let deadline = Instant::now() + Duration::from_millis(50);
    for (room, length) in [(100, 40), (100, 100), (100, 300), (0, 300)] {
        let room = if room > 0 { Some(link.room(&a, room, deadline).await.expect("free")) } else { None };
        let answer = link.answer(vec![b'x'; length].into(), Some(ReplyAccount { who: Arc::clone(&a), room }));
        let answer = answer.unwrap_or_else(|failure| panic!("{failure}"));
        let held = answer._unclaimed.as_ref().map(PolicyPermit::amount);
        assert_eq!(held, Some(length as u64));
    }
    let _all = link.room(&a, UNCLAIMED, deadline).await.expect("free");
    assert_eq!(link.room(&who("cluster/b"), 1, deadline).await.err(), Some(NoRoom));
}

#[tokio::test]
async fn another_user_is_refused() {
    let rig = Rig::new(Some(rustix::process::geteuid().as_raw() + 1));
    let mut stranger = rig.connect().await;
    assert!(stranger.next().await.is_none_or(|frame| frame.is_err()));
}

#[tokio::test]
async fn a_check_hands_over_the_policy_and_gets_the_verdict() {
    let rig = Rig::new(None);
    let mut broker = rig.connect().await;
    for verdict in
        [CheckVerdict::passed(vec!["slow".into()]), CheckVerdict::refused(Reason::SettingsInvalid, "no".into())]
    {
        let check = rig.check(60_000);
        let (BrokerCheck { number, check: question }, body) = message(&mut broker).await;
        assert_eq!(&*body, POLICY.as_bytes());
        assert!((30_000..=57_000).contains(&question.millis), "{} ms, and time for the way back", question.millis);
        reply(&mut broker, number, BrokerOutcome::Done, &serde_json::to_vec(&verdict).expect("encodes")).await;
        assert_eq!(check.await.expect("ends"), Ok(verdict));
    }
}

#[tokio::test]
async fn an_answer_that_is_no_verdict_is_a_failure() {
    let rig = Rig::new(None);
    let mut broker = rig.connect().await;
    let long = serde_json::to_vec(&CheckVerdict::passed(vec!["x".repeat(MAX_VERDICT)])).expect("encodes");
    for (outcome, body, cause) in [
        (BrokerOutcome::Done, &b"{}"[..], "the loader of this pod gave an answer of another form"),
        (
            BrokerOutcome::Done,
            &b"{\"outcome\":\"perhaps\"}"[..],
            "the loader of this pod gave an answer of another form",
        ),
        (BrokerOutcome::Done, &b"\xff"[..], "the loader of this pod gave an answer of another form"),
        (BrokerOutcome::Done, &long[..], "the loader of this pod gave an answer that is too long"),
        (BrokerOutcome::Failed, &b"no\x1broom"[..], "no room"),
    ] {
        let check = rig.check(60_000);
        let (BrokerCheck { number, .. }, _) = message(&mut broker).await;
        reply(&mut broker, number, outcome, body).await;
        assert_eq!(check.await.expect("ends").expect_err("a failure").cause(), cause);
    }
    assert!(rig.link.waiting().is_empty());
}

#[tokio::test]
async fn a_check_waits_no_longer_than_its_deadline() {
    let rig = Rig::new(None);
    let cause = |result: Result<CheckVerdict, LinkFailure>| result.expect_err("a failure").cause().to_owned();
    assert_eq!(cause(rig.check(200).await.expect("ends")), "the loader of this pod does not answer");
    let mut broker = rig.connect().await;
    let check = rig.check(2000);
    let (BrokerCheck { number, .. }, _) = message(&mut broker).await;
    assert_eq!(cause(check.await.expect("ends")), "the loader of this pod gave no answer in time");
    reply(&mut broker, number, BrokerOutcome::Done, b"{\"outcome\":\"passed\"}").await;
    let check = rig.check(60_000);
    let _: (BrokerCheck, _) = message(&mut broker).await;
    drop(broker);
    assert!(cause(check.await.expect("ends")).contains("ended the connection"));
}

#[tokio::test]
async fn a_policy_that_is_too_large_is_not_sent() {
    let rig = Rig::new(None);
    let object = "x".repeat(BROKER_MAX_PAYLOAD + 1);
    let failure = rig.link.check(&object, Instant::now() + Duration::from_secs(60)).await;
    assert_eq!(failure.expect_err("a failure").cause(), "it has 1048577 bytes, and at most 1048576 can be checked");
}
