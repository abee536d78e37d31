//! Questions that are being asked of the network now, each once for all that ask.
//!
//! A question is asked in a task of its own, which goes on when the policy that asked has run out of time: the answer of a slow registry is
//! there for the next request, and so is the failure of a silent one. The task holds the share with which it was begun until it ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use portcullis_contract::{Capability, PolicyId};
use portcullis_util::lock;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Answer;
use crate::ProvideError;
use crate::share::{Askers, Share};

/// A question: the capability and the payload.
pub(crate) type Question = (Capability, Bytes);

/// How long a question is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// While a policy waits for the answer. No policy has more time than this for a whole evaluation, so nobody can wait for a later answer.
    pub(crate) asked: Duration,
    /// While none waits. It is the time that API servers give a webhook by default: an answer that takes longer is of no use to most
    /// policies, however often they ask, and a silent registry must not keep shares for longer than it has to.
    pub(crate) unasked: Duration,
}

/// The patience for networks.
pub(crate) const PATIENCE: Patience = Patience { asked: Duration::from_secs(30), unasked: Duration::from_secs(10) };

/// The questions that are being asked, or that wait for a share.
#[derive(Clone, Default)]
pub(crate) struct Searches(Arc<Mutex<HashMap<Question, Entry>>>);

struct Entry {
    search: Arc<Search>,
    /// How many hold it. The last one removes it.
    holders: usize,
}

/// The search for the answer to a question.
struct Search {
    answer: watch::Sender<Option<Answer>>,
    askers: watch::Sender<Vec<PolicyId>>,
    /// When it began; empty until somebody has a share for it.
    begun: OnceLock<Instant>,
}

/// A search, held by a call that waits for it, or by its task.
pub(crate) struct Held {
    searches: Searches,
    question: Question,
    search: Arc<Search>,
}

impl Searches {
    /// The search for the answer to a question, which is shared with all who ask the same now.
    pub(crate) fn join(&self, question: Question) -> Held {
        let mut searches = lock(&self.0);
        let new =
            || Search { answer: watch::Sender::new(None), askers: watch::Sender::default(), begun: OnceLock::new() };
        let entry = searches.entry(question.clone()).or_insert_with(|| Entry { search: Arc::new(new()), holders: 0 });
        entry.holders += 1;
        let search = Arc::clone(&entry.search);
        Held { searches: self.clone(), question, search }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut searches = lock(&self.searches.0);
        if let Some(entry) = searches.get_mut(&self.question) {
            entry.holders -= 1;
            if entry.holders == 0 {
                searches.remove(&self.question);
            }
        }
    }
}

impl Held {
    /// Waits for the answer on behalf of a policy whose call may take as long as `limit`. The first of those that wait to get a share begins
    /// the search, by `begin`. `None` if the question has been asked for so long that waiting is of no use.
    pub(crate) async fn wait(
        &self,
        policy: &PolicyId,
        limit: Duration,
        patience: Patience,
        share: impl Future<Output = Share>,
        begin: impl FnOnce(Share),
    ) -> Option<Answer> {
        self.search.askers.send_if_modified(|askers| {
            let is_new = !askers.contains(policy);
            if is_new {
                askers.push(policy.clone());
            }
            is_new
        });
        let is_vain = self.search.begun.get().is_some_and(|begun| begun.elapsed() > patience.unasked.max(limit));
        if is_vain && self.search.answer.borrow().is_none() {
            return None;
        }
        let mut answer = self.search.answer.subscribe();
        tokio::select! {
            biased;
            answer = answered(&mut answer) => return Some(answer),
            share = share => if self.search.begun.set(Instant::now()).is_ok() { begin(share) },
        }
        Some(answered(&mut answer).await)
    }

    /// The same search, for the task that asks.
    pub(crate) fn begun(&self) -> Begun {
        Begun(self.searches.join(self.question.clone()))
    }
}

/// A search that has begun. If it ends without an answer, as by a panic, those who wait get an error.
pub(crate) struct Begun(Held);

impl Begun {
    /// The question.
    pub(crate) fn question(&self) -> &Question {
        &self.0.question
    }

    /// The policies that have asked so far, and those that will.
    pub(crate) fn askers(&self) -> Askers {
        Askers::of(self.0.search.askers.subscribe())
    }

    /// What `find` finds, or that it took longer than patience lasts.
    pub(crate) async fn find(&self, patience: Patience, find: impl Future<Output = Answer>) -> Answer {
        let unasked = async {
            sleep(patience.unasked).await;
            self.0.search.answer.closed().await;
        };
        tokio::select! {
            biased;
            answer = find => return answer,
            () = unasked => {}
            () = sleep(patience.asked) => {}
        }
        let seconds = self.0.search.begun.get().map_or(0, |begun| begun.elapsed().as_secs());
        Err(ProvideError::failed(format!("there was no answer for {seconds} s")))
    }

    /// Gives the answer to all who wait.
    pub(crate) fn answer(self, answer: Answer) {
        self.0.search.answer.send_replace(Some(answer));
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.search.answer.send_if_modified(|answer| {
            let is_missing = answer.is_none();
            if is_missing {
                *answer = Some(Err(ended()));
            }
            is_missing
        });
    }
}

/// Waits for an answer.
async fn answered(answer: &mut watch::Receiver<Option<Answer>>) -> Answer {
    let found = answer.wait_for(Option::is_some).await;
    found.ok().and_then(|answer| answer.clone()).unwrap_or_else(|| Err(ended()))
}

fn ended() -> ProvideError {
    ProvideError::failed("the search for an answer ended without one")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::timeout;

    use super::super::Answers;
    use super::*;
    use crate::share::{CALLS, Shares};

    /// Long enough for a wait that must not end.
    const MOMENT: Duration = Duration::from_millis(50);
    /// A limit for waits that end by themselves.
    const LONG: Duration = Duration::from_secs(60);
    /// Patience that lasts longer than a test.
    const ENDLESS: Patience = Patience { asked: LONG, unasked: LONG };

    /// A broker's answers and shares, and a source that may be slow.
    struct Table {
        answers: Answers,
        shares: Shares,
        asked: Arc<AtomicUsize>,
        /// The source answers once this is true.
        opened: watch::Sender<bool>,
    }

    impl Table {
        fn new(patience: Patience) -> Self {
            let answers = Answers::new(patience);
            Self { answers, shares: Shares::new(CALLS), asked: Arc::default(), opened: watch::Sender::default() }
        }

        /// Asks for a policy with a time limit; `None` when that ends, or when asking is of no use.
        async fn ask(&self, policy: &str, question: &'static str, limit: Duration) -> Option<Answer> {
            let policy: PolicyId = policy.parse().expect("an id");
            let (asked, mut opened) = (Arc::clone(&self.asked), self.opened.subscribe());
            let find = |_| async move {
                asked.fetch_add(1, Ordering::Relaxed);
                opened.wait_for(|opened| *opened).await.expect("the table is there");
                Ok(Bytes::from_static(b"answer"))
            };
            let question = (Capability::OciManifest, Bytes::from_static(question.as_bytes()));
            let share = self.shares.take(&policy, Some("registry"));
            timeout(limit, self.answers.get(&policy, limit, question, share, find)).await.ok().flatten()
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn the_answer_of_a_slow_source_is_there_for_a_later_call() {
        let table = Table::new(ENDLESS);
        assert_eq!(table.ask("cluster/a", "image", MOMENT).await, None, "the call fails in time");
        assert_eq!(table.ask("cluster/b", "image", MOMENT).await, None);
        table.opened.send_replace(true);
        for policy in ["cluster/a", "cluster/b"] {
            assert_eq!(table.ask(policy, "image", LONG).await, Some(Ok("answer".into())));
        }
        assert_eq!(table.asked(), 1, "nothing is asked twice");
        assert!(lock(&table.answers.searches.0).is_empty(), "nothing is left behind");
    }

    #[tokio::test]
    async fn the_failure_of_a_silent_source_is_there_for_a_later_call() {
        let table = Table::new(Patience { asked: LONG, unasked: 2 * MOMENT });
        assert_eq!(table.ask("cluster/a", "image", MOMENT).await, None);
        let ended = async {
            while !lock(&table.answers.searches.0).is_empty() {
                sleep(MOMENT).await;
            }
        };
        timeout(LONG, ended).await.expect("the search ends");
        let failed = table.ask("cluster/a", "image", LONG).await.expect("at once").expect_err("no answer");
        assert!(failed.to_string().contains("no answer"), "{failed}");
        assert_eq!(table.asked(), 1);
    }

    #[tokio::test]
    async fn waiting_long_for_what_others_wait_for_is_refused_at_once_when_it_is_of_no_use() {
        let table = Table::new(Patience { asked: LONG, unasked: MOMENT });
        let patient = table.ask("cluster/patient", "image", LONG);
        let others = async {
            sleep(10 * MOMENT).await;
            let begun = Instant::now();
            assert_eq!(table.ask("cluster/other", "image", 8 * MOMENT).await, None);
            assert!(begun.elapsed() < 8 * MOMENT, "at once");
            table.opened.send_replace(true);
        };
        let (answer, ()) = tokio::join!(patient, others);
        assert_eq!(answer, Some(Ok("answer".into())), "who has more time waits on");
    }

    #[tokio::test]
    async fn what_goes_on_after_a_call_counts_for_its_policy() {
        let table = Table::new(ENDLESS);
        const IMAGES: [&str; 12] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"];
        for image in IMAGES {
            assert_eq!(table.ask("cluster/flood", image, MOMENT / 5).await, None);
        }
        assert_eq!(table.asked(), CALLS.of_host().policy, "the others got no share and are not asked later either");
        sleep(MOMENT).await;
        assert_eq!(table.asked(), CALLS.of_host().policy);
        let begun = table.ask("cluster/other", IMAGES[0], MOMENT);
        let (answer, ()) = tokio::join!(begun, async { _ = table.opened.send_replace(true) });
        assert_eq!(answer, Some(Ok("answer".into())), "who asks the same needs no share");
        let answer = table.ask("cluster/flood", IMAGES[11], LONG).await;
        assert_eq!(answer, Some(Ok("answer".into())), "shares come back");
    }

    #[tokio::test]
    async fn who_asks_the_same_with_a_free_share_begins_for_those_without() {
        let table = Table::new(ENDLESS);
        let policy: PolicyId = "cluster/a".parse().expect("an id");
        let mut taken = Vec::new();
        for _ in 0..CALLS.policy {
            taken.push(table.shares.take(&policy, None).await);
        }
        table.opened.send_replace(true);
        let both = async { tokio::join!(table.ask("cluster/a", "image", LONG), table.ask("cluster/b", "image", LONG)) };
        let both = timeout(LONG / 2, both).await.expect("the first needs no share of its own");
        assert_eq!(both, (Some(Ok("answer".into())), Some(Ok("answer".into()))));
    }

    #[tokio::test]
    async fn a_search_that_panics_is_a_failure() {
        let table = Table::new(ENDLESS);
        let policy: PolicyId = "cluster/a".parse().expect("an id");
        let question = (Capability::OciManifest, Bytes::from_static(b"image"));
        let share = table.shares.take(&policy, None);
        let find = |_| async { panic!("a mistake in the search") };
        let answer = timeout(LONG, table.answers.get(&policy, LONG, question, share, find)).await.expect("ends");
        assert!(answer.expect("an answer").expect_err("no answer").to_string().contains("ended without"));
    }
}
