//! The last states of loader and evaluator, and since when one of them has not answered.

use std::time::{Duration, Instant};

use portcullis_contract::{EvaluatorState, LoaderState};

use crate::follow::{Outage, Update};
use crate::join::{Evaluator, is_ahead};

/// How long a program may be away, as it is during a restart, before that is reported; and for how long the evaluator may report
/// a generation that the loader has not reported.
const GRACE: Duration = Duration::from_secs(2);

/// The last states of both programs.
#[derive(Debug, Default)]
pub struct View {
    loader: Option<LoaderState>,
    loader_outage: Option<(Outage, Instant)>,
    evaluator: Option<EvaluatorState>,
    evaluator_outage: Option<(Outage, Instant)>,
    ahead_since: Option<Instant>,
}

impl View {
    /// Takes in an update.
    pub fn update(&mut self, update: Update, now: Instant) {
        match update {
            Update::Loader(state) => {
                self.loader = Some(merged(self.loader.take(), *state));
                self.loader_outage = None;
            }
            Update::Evaluator(state) => {
                self.evaluator = Some(*state);
                self.evaluator_outage = None;
            }
            Update::LoaderOutage(outage) => {
                self.loader_outage.get_or_insert((outage, now));
            }
            Update::EvaluatorOutage(outage) => {
                let (last, _) = self.evaluator_outage.get_or_insert((outage.clone(), now));
                // The outage keeps its beginning and gets the newest cause.
                *last = Outage { since: last.since, ..outage };
            }
        }
        let ahead =
            matches!((&self.loader, &self.evaluator), (Some(loader), Some(evaluator)) if is_ahead(loader, evaluator));
        self.ahead_since = if ahead { self.ahead_since.or(Some(now)) } else { None };
    }

    /// The loader's last state, and whether the evaluator answers. `None` until both have been read or the evaluator is overdue, so that
    /// a reporter that has restarted does not show policies as loading that answer all the time. Also `None` while the evaluator is
    /// ahead of the loader for a moment.
    pub fn both(&self, now: Instant) -> Option<(&LoaderState, Evaluator<'_>)> {
        let runs_ahead = self.ahead_since.is_some_and(|since| now.duration_since(since) < GRACE);
        let loader = self.loader.as_ref().filter(|_| !runs_ahead)?;
        Some((loader, self.evaluator(now)?))
    }

    fn evaluator(&self, now: Instant) -> Option<Evaluator<'_>> {
        match (&self.evaluator, &self.evaluator_outage) {
            (_, Some((outage, since))) if is_over(outage, *since, now) => {
                Some(Evaluator::Silent(&outage.words, outage.since))
            }
            (state, _) => state.as_ref().map(Evaluator::Answers),
        }
    }

    /// The loader's last state, from which progress is shown.
    pub fn loader(&self) -> Option<&LoaderState> {
        self.loader.as_ref()
    }

    /// Problems of the pod that belong to no single policy, as messages.
    pub fn problems(&self, now: Instant) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some((outage, _)) = self.loader_outage.as_ref().filter(|(outage, since)| is_over(outage, *since, now)) {
            problems.push(format!("the loader does not answer, changes are not seen: {}", outage.words));
        }
        if let Some(Evaluator::Silent(words, _)) = self.evaluator(now) {
            problems.push(format!("the evaluator does not answer: {words}"));
        }
        if let Some(failure) = self.loader.as_ref().and_then(|state| state.volume_failure.as_ref()) {
            problems.push(format!("the loader cannot publish: {failure}"));
        }
        if let Some(failure) = self.evaluator.as_ref().and_then(|state| state.manifest_failure.as_ref()) {
            problems.push(format!("the evaluator cannot use the newest manifest: {failure}"));
        }
        let of_files = self.loader.iter().flat_map(|state| &state.problems);
        problems.extend(of_files.map(|problem| format!("{}: {}", problem.file, problem.message)));
        problems
    }
}

fn is_over(outage: &Outage, since: Instant, now: Instant) -> bool {
    !outage.may_be_a_restart || now.duration_since(since) >= GRACE
}

/// The loader's new state. A loader that has just started lists only a part of the policies; the others stay as they were.
fn merged(last: Option<LoaderState>, mut next: LoaderState) -> LoaderState {
    let Some(last) = last.filter(|_| !next.complete) else { return next };
    for policy in last.policies {
        if !next.policies.iter().any(|listed| listed.id == policy.id) {
            next.policies.push(policy);
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::fixtures::published;

    fn loader(complete: bool, names: &[&str]) -> Update {
        let policies = names.iter().map(|name| published(&format!("cluster/{name}"), name)).collect();
        Update::Loader(Box::new(LoaderState { complete, policies, ..LoaderState::default() }))
    }

    fn silent(may_be_a_restart: bool) -> Update {
        Update::EvaluatorOutage(Outage { words: "refused".into(), since: Timestamp::UNIX_EPOCH, may_be_a_restart })
    }

    fn names(view: &View, now: Instant) -> Vec<&str> {
        view.both(now).expect("heard").0.policies.iter().map(|policy| policy.id.name()).collect()
    }

    /// Whether the evaluator answers; `None` when that is not known yet.
    fn answers(view: &View, now: Instant) -> Option<bool> {
        view.both(now).map(|(_, evaluator)| matches!(evaluator, Evaluator::Answers(_)))
    }

    #[test]
    fn a_restarting_loader_takes_no_policy_away_before_its_list_is_complete() {
        let (mut view, now) = (View::default(), Instant::now());
        view.update(Update::Evaluator(Box::default()), now);
        view.update(loader(true, &["a", "b"]), now);
        view.update(loader(false, &["b"]), now);
        assert_eq!(names(&view, now), ["b", "a"]);
        view.update(loader(true, &["b"]), now);
        assert_eq!(names(&view, now), ["b"]);
    }

    #[test]
    fn nothing_is_decided_before_the_evaluator_is_heard_or_late() {
        let (mut view, now) = (View::default(), Instant::now());
        view.update(loader(true, &["a"]), now);
        assert_eq!(answers(&view, now), None);
        view.update(silent(true), now);
        assert_eq!(answers(&view, now + Duration::from_secs(1)), None);
        assert_eq!(answers(&view, now + Duration::from_secs(2)), Some(false));
    }

    #[test]
    fn a_restart_of_the_evaluator_is_overlooked_for_two_seconds() {
        let (mut view, now) = (View::default(), Instant::now());
        view.update(loader(true, &["a"]), now);
        view.update(Update::Evaluator(Box::default()), now);
        view.update(silent(true), now);
        view.update(silent(true), now + Duration::from_secs(1));
        assert_eq!(answers(&view, now + Duration::from_secs(1)), Some(true));
        assert_eq!(answers(&view, now + Duration::from_secs(2)), Some(false));
        view.update(Update::Evaluator(Box::default()), now);
        assert_eq!(answers(&view, now + Duration::from_secs(9)), Some(true));
    }

    #[test]
    fn an_evaluator_that_hangs_or_talks_nonsense_has_no_grace() {
        let (mut view, now) = (View::default(), Instant::now());
        view.update(loader(true, &["a"]), now);
        view.update(silent(false), now);
        assert_eq!(answers(&view, now), Some(false));
    }
}
