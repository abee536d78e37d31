//! Checks what a user must see: the outcomes of docs/design/faults.md, section 1, wherever they are visible.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::{Class, Current, Deviation, Failure, Reason, ReplicaState};
use portcullis_testkit::Bound;
use serde_json::Value;

use crate::wait::eventually_or;
use crate::{Answer, Pod, Review, Verdict, eventually};

impl Pod {
    /// Waits until a policy serves its newest generation, which must be `generation` (the first is 1).
    ///
    /// # Panics
    /// When that does not happen in time.
    pub fn wait_current(&self, id: &str, generation: i64) -> Current {
        eventually(&format!("{id} to serve generation {generation}"), || {
            self.evaluator_state()?.current.get(id).filter(|current| current.generation == generation).cloned()
        })
    }

    /// Waits until a generation of a policy answers, whether it is the newest or not. When the evaluator starts with it, it may
    /// begin to answer after the failure of the newest generation was reported.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub fn wait_serving(&self, id: &str, generation: i64) {
        eventually(&format!("generation {generation} of {id} to answer"), || {
            let state = self.evaluator_state()?;
            let current = state.current.get(id).map(|current| current.generation);
            let deviation = state.deviations.iter().find(|deviation| deviation.id.as_str() == id);
            (current.or(deviation.map(|deviation| deviation.serving)) == Some(generation)).then_some(())
        });
    }

    /// Waits until a policy's newest generation fails for this reason at the evaluator, and returns its message.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub fn wait_failure(&self, id: &str, reason: Reason) -> Deviation {
        eventually(&format!("{id} to fail with {reason}"), || {
            let state = self.evaluator_state()?;
            let is = |deviation: &Deviation| {
                deviation.id.as_str() == id
                    && deviation.failure.as_ref().is_some_and(|failure| failure.reason == reason)
            };
            state.deviations.into_iter().find(is)
        })
    }

    /// UNSERVED: waits until a policy fails for this reason and no generation serves. Then its answer, its health check and its status
    /// must say so. Returns the failure.
    ///
    /// # Panics
    /// When one of them says anything else.
    pub fn assert_unserved(&self, id: &str, reason: Reason) -> Failure {
        let said = self.said();
        let deviation = self.wait_failure(id, reason);
        assert_eq!((deviation.state, deviation.serving), (ReplicaState::Failed, 0), "{deviation:?}");
        let review = Review::pod();
        self.ask(id, &review).assert_unserved(&review, id, reason);
        self.assert_health(id, reason);
        self.wait_condition(id, "Ready", "False", "Error");
        self.wait_condition(id, "Enforced", "False", self.word_of_unserved(id));
        self.assert_trouble(id, reason);
        let failure = deviation.failure.expect("a deviation with this reason has a failure");
        self.assert_steady(id, failure.generation, said);
        failure
    }

    /// The reason why a policy that fails everywhere is not enforced: requests are refused if it ever was enforced, and
    /// admitted otherwise.
    fn word_of_unserved(&self, id: &str) -> &'static str {
        let was_enforced = self.loader.as_ref().filter(|loader| loader.is_alive()).is_none_or(|_| {
            eventually(&format!("the loader's word on {id}"), || {
                let state = self.loader_state()?;
                state.policies.iter().find(|policy| policy.id.as_str() == id).map(|policy| policy.enforced)
            })
        });
        if was_enforced { "AllReplicasFailed" } else { "NotYetEnforced" }
    }

    /// KEEP: waits until the newest generation fails for this reason while `serving` still answers. Then answer, health check and status
    /// must say so. `right` checks the answer to a pod. Returns the failure.
    ///
    /// # Panics
    /// When one of them says anything else.
    pub fn assert_kept(&self, id: &str, reason: Reason, serving: i64, right: impl Fn(&Verdict) -> bool) -> Failure {
        let said = self.said();
        let deviation = self.wait_failure(id, reason);
        assert_eq!((deviation.state, deviation.serving), (ReplicaState::Previous, serving), "{deviation:?}");
        let verdict = self.ask(id, &Review::pod()).verdict();
        assert!(right(&verdict), "{id} does not answer as before: {verdict:?}");
        self.assert_health(id, reason);
        self.wait_condition(id, "Ready", "False", "ServingPrevious");
        self.wait_condition(id, "Enforced", "True", "ServingPrevious");
        self.assert_trouble(id, reason);
        let failure = deviation.failure.expect("a deviation with this reason has a failure");
        self.assert_steady(id, failure.generation, said);
        failure
    }

    /// I3: waits until a policy serves `generation` as its newest, with `Ready=True` and `Degraded=False`. In a test of a row of the fault
    /// catalogue that must happen within the row's bound, from this call on.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub fn assert_recovered(&self, id: &str, generation: i64) {
        let (since, said) = (self.moment(), self.said());
        self.wait_current(id, generation);
        let health = self.health(id);
        assert_eq!(health.code, 200, "{health:?}");
        self.wait_condition_of(id, Some(generation), "Ready", "True", "Active");
        self.wait_condition_of(id, Some(generation), "Degraded", "False", "AsExpected");
        let what = format!("{id}, until generation {generation} was Ready,");
        self.is_within(Bound::of_ready_in_this_test(), &since, &what).unwrap_or_else(|late| panic!("{late}"));
        self.assert_steady(id, generation, said);
    }

    /// Checks the health check of a policy that fails for this reason.
    fn assert_health(&self, id: &str, reason: Reason) {
        let health = self.health(id);
        assert_eq!(health.code, reason.class().code(), "{health:?}");
        assert_eq!(health.retry_after.is_some(), reason.class().is_retryable(), "{health:?}");
        for word in [id, reason.as_str(), &reason.stage().to_string()] {
            assert!(health.body.contains(word), "no {word} in {health:?}");
        }
        assert_eq!(health.body.contains("\nnext try: "), reason.class().is_retryable(), "{health:?}");
    }

    /// Checks the conditions that every failure sets.
    fn assert_trouble(&self, id: &str, reason: Reason) {
        self.wait_condition(id, "Degraded", "True", reason.as_str());
        match reason.class() {
            Class::Retry => self.wait_condition(id, "Stalled", "False", "Retrying"),
            Class::Outside | Class::Final => self.wait_condition(id, "Stalled", "True", reason.as_str()),
        }
    }

    /// Waits until a condition of a policy's status has these values. Without a reporter, nothing is checked.
    ///
    /// # Panics
    /// When that does not happen in time; the last status is in the text.
    pub fn wait_condition(&self, id: &str, kind: &str, status: &str, reason: &str) {
        self.wait_condition_of(id, None, kind, status, reason);
    }

    /// The same, but the condition must be about this generation, if one is given: until a status is written again, its conditions are
    /// about an earlier generation.
    fn wait_condition_of(&self, id: &str, generation: Option<i64>, kind: &str, status: &str, reason: &str) {
        if !self.has_reporter() {
            return;
        }
        let is_wanted = |condition: &Value| {
            condition["type"] == kind
                && condition["status"] == status
                && condition["reason"] == reason
                && generation.is_none_or(|generation| condition["observedGeneration"] == generation)
        };
        let what = match generation {
            Some(generation) => format!("{kind}={status}/{reason} of generation {generation} of {id}"),
            None => format!("{kind}={status}/{reason} of {id}"),
        };
        let last = RefCell::new(None);
        let look = || {
            let document = self.status(id);
            let conditions = document.iter().flat_map(|document| document["status"]["conditions"].as_array());
            let found = conditions.flatten().any(is_wanted);
            last.replace(document);
            found.then_some(())
        };
        eventually_or(&what, look, || format!(", in {:#?}", last.borrow()));
        if kind == "Ready" {
            self.wait_until_said(id, reason);
        }
    }

    /// Gives the reporter a second to write the line about a state that the status has already, so that it is not among the lines that
    /// [`Pod::assert_steady`] looks at later.
    fn wait_until_said(&self, id: &str, word: &str) {
        let about = format!(" policy {id}: ");
        let is_said = || {
            let lines = self.reporter.as_ref().map(|reporter| reporter.lines()).unwrap_or_default();
            let last = lines.iter().rev().find_map(|line| line.split_once(&about));
            last.is_none_or(|(_, state)| state.split(' ').next() == Some(word))
        };
        let begun = Instant::now();
        while !is_said() && begun.elapsed() < Duration::from_secs(1) {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Answer {
    /// Asserts the answer of a policy that cannot judge, with `failurePolicy: Fail` in mode protect: a denial that names
    /// policy and reason, with the code of the reason's class.
    ///
    /// # Panics
    /// When it is anything else.
    /// When it is anything else.
    pub fn assert_not_judged(&self, review: &Review, id: &str, reason: Reason) {
        let verdict = self.verdict();
        assert_eq!(verdict.uid, review.uid(), "{verdict:?}");
        assert!(!verdict.allowed, "{verdict:?}");
        assert_eq!(verdict.code, u64::from(reason.class().code()), "{verdict:?}");
        let start = format!("policy {id}: {reason}: ");
        assert!(verdict.message.starts_with(&start), "{:?} does not begin with {start:?}", verdict.message);
        let retry_after = &verdict.details["retryAfterSeconds"];
        assert!(retry_after.is_null() || (reason.class().is_retryable() && *retry_after == 1), "{verdict:?}");
        assert_eq!(verdict.patch, None, "{verdict:?}");
    }

    /// [`Answer::assert_not_judged`] for a policy that has nothing loaded: where another try may work, the denial also says when that comes,
    /// and tells the client to repeat its call if it comes soon.
    ///
    /// # Panics
    /// When it is anything else.
    pub fn assert_unserved(&self, review: &Review, id: &str, reason: Reason) {
        self.assert_not_judged(review, id, reason);
        let verdict = self.verdict();
        let next = verdict.message.rsplit_once("; next try ").map(|(_, next)| next);
        assert_eq!(next.is_some(), reason.class().is_retryable(), "{verdict:?}");
        let tells_to_repeat = verdict.details["retryAfterSeconds"] == 1;
        match next {
            Some("at once" | "in 1 s") => assert!(tells_to_repeat, "{verdict:?}"),
            // The words leave out a fraction of a second, and more than two seconds are not soon.
            Some("in 2 s") => {}
            _ => assert!(!tells_to_repeat, "{verdict:?}"),
        }
    }

    /// Asserts the answer of a policy that cannot judge, with `failurePolicy: Ignore` or in mode warn or monitor: admitted,
    /// with one warning that names policy and reason, and the audit annotation `policy-not-evaluated`.
    ///
    /// # Panics
    /// When it is anything else.
    pub fn assert_ignored(&self, review: &Review, id: &str, reason: Reason) {
        let verdict = self.verdict();
        assert_eq!(verdict.uid, review.uid(), "{verdict:?}");
        assert!(verdict.allowed, "{verdict:?}");
        assert_eq!(verdict.patch, None, "{verdict:?}");
        let [warning] = &verdict.warnings[..] else { panic!("want one warning in {verdict:?}") };
        assert!(warning.contains(id) && warning.contains(reason.as_str()), "{warning}");
        let annotation = verdict.annotations.get("policy-not-evaluated").map(String::as_str);
        assert_eq!(annotation, Some(format!("{id}/{reason}").as_str()), "{verdict:?}");
    }
}
