//! What a failed load means for its candidate: whether the module is to blame, and when it is tried again. Pure: the time and the random number
//! come as arguments.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_contract::{Candidate, Failure, Reason, Refused, Stage};
use portcullis_util::Backoff;

use crate::volume::load::LoadError;
use crate::volume::plan::RefusedCandidate;

/// The pauses before a candidate whose failure may pass is tried again.
const PAUSES: Backoff = Backoff { shortest: Duration::from_secs(1), longest: Duration::from_secs(300) };
/// How often a candidate may have too little processor time. After that a start that is too late is the module's own failure, as the loader brings
/// no older generation for want of processor time, and an endless module among others would never be judged.
const STARVED_TRIES: u32 = 3;

/// A candidate whose load has failed, and that was refused before as `earlier` says. `random` is from 0 to 1.
pub(super) fn refused(
    candidate: &Candidate,
    earlier: Option<&RefusedCandidate>,
    error: LoadError,
    random: f64,
    now: (Instant, Timestamp),
) -> RefusedCandidate {
    let starved = earlier.map_or(0, |earlier| earlier.starved);
    let error = if starved < STARVED_TRIES { error } else { error.blaming_the_module() };
    let reason = error.reason();
    let mut failure = Failure::new(candidate.generation, reason, error.to_string(), now.1);
    if let Some(earlier) = earlier.map(|earlier| &earlier.refused.failure) {
        failure.attempts = earlier.attempts.saturating_add(1);
        if earlier.reason == failure.reason {
            failure.since = earlier.since;
        }
    }
    let retry_at = failure.class().is_retryable().then(|| {
        // Candidates that failed together are not tried again together, as they may have taken from each other what they need.
        let pause = PAUSES.wait(failure.attempts, random);
        failure.next_retry_time = now.1.checked_add(pause).ok();
        now.0 + pause
    });
    let (module, artifact) = match error {
        LoadError::Member { module, artifact, .. } => (Some(module), artifact),
        _ => (None, candidate.modules()[0].module.artifact.sha256),
    };
    let refused = Refused { digest: candidate.digest, module, artifact, failure };
    RefusedCandidate { refused, retry_at, starved: starved + u32::from(reason == Reason::ProcessorUnavailable) }
}

/// When a candidate is tried again after a new manifest that names it unchanged: at once if that may have mended the cause, by a new artifact of
/// the same name or by room of policies that are gone. A lack of memory or processor time is no matter of the manifest.
pub(super) fn retry_after_manifest(refusal: &RefusedCandidate, now: Instant) -> Option<Instant> {
    let is_of_volume = refusal.refused.failure.stage() == Stage::Volume;
    refusal.retry_at.map(|at| if is_of_volume { at.min(now) } else { at })
}

#[cfg(test)]
mod tests {
    use portcullis_contract::{Artifact, CandidateContent, CandidateModule, Digest, ExecutionMode};
    use serde_json::value::RawValue;

    use super::*;
    use crate::volume::artifact_error::ArtifactError;

    fn candidate() -> Candidate {
        Candidate {
            generation: 1,
            digest: Digest::of(b"module"),
            mutating: false,
            message: None,
            timeout_eval_seconds: None,
            content: CandidateContent::Module(CandidateModule {
                artifact: Artifact { file: "a".into(), sha256: Digest::of(b"artifact"), size: 1 },
                execution_mode: ExecutionMode::KubewardenWapc,
                settings: RawValue::from_string("{}".to_owned()).expect("JSON"),
                host_capabilities: Vec::new(),
                context_aware_resources: Vec::new(),
            }),
        }
    }

    fn starved() -> LoadError {
        LoadError::NoProcessor {
            used: Duration::from_millis(80),
            limit: Duration::from_secs(2),
            late: Box::new(LoadError::StartTimedOut("init interrupted".to_owned())),
        }
    }

    fn of_member(error: LoadError) -> LoadError {
        let (module, artifact) = (Digest::of(b"member"), Digest::of(b"its artifact"));
        LoadError::Member { name: "a".to_owned(), module, artifact, error: Box::new(error) }
    }

    fn now() -> (Instant, Timestamp) {
        (Instant::now(), Timestamp::UNIX_EPOCH)
    }

    /// The refusals of one candidate that fails again and again.
    fn refusals(error: impl Fn() -> LoadError, count: usize) -> Vec<RefusedCandidate> {
        let mut all: Vec<RefusedCandidate> = Vec::new();
        for _ in 0..count {
            all.push(refused(&candidate(), all.last(), error(), 1.0, now()));
        }
        all
    }

    #[test]
    fn who_never_has_enough_processor_time_is_judged_in_the_end() {
        let members = || of_member(starved());
        for all in [refusals(starved, 4), refusals(members, 4)] {
            let (last, excused) = all.split_last().expect("four");
            assert!(excused.iter().all(|refusal| refusal.refused.failure.reason == Reason::ProcessorUnavailable));
            assert!(excused.iter().all(|refusal| refusal.retry_at.is_some()));
            let failure = &last.refused.failure;
            assert_eq!((failure.reason, failure.attempts, last.retry_at), (Reason::StartTimedOut, 4, None));
            assert!(failure.message.ends_with("init interrupted"), "{}", failure.message);
        }
        let member = &refusals(members, 4)[3].refused;
        assert_eq!(member.module, Some(Digest::of(b"member")));
        assert_eq!(member.failure.message, "member `a`: init interrupted");
    }

    #[test]
    fn what_fails_otherwise_in_between_is_judged_no_later() {
        let no_memory = || LoadError::NoMemory("no memory left".to_owned());
        let mut last = None;
        for _ in 0..STARVED_TRIES {
            last = Some(refused(&candidate(), last.as_ref(), starved(), 1.0, now()));
            last = Some(refused(&candidate(), last.as_ref(), no_memory(), 1.0, now()));
        }
        let last = refused(&candidate(), last.as_ref(), starved(), 1.0, now());
        assert_eq!(last.refused.failure.reason, Reason::StartTimedOut);
        let last = refusals(no_memory, 99).pop().expect("one");
        assert!(last.retry_at.is_some(), "memory may come back however often there was none");
    }

    #[test]
    fn pauses_double_up_to_five_minutes() {
        let seconds: Vec<_> = [1, 2, 3, 9, 10, u32::MAX].map(|n| PAUSES.bound(n).as_secs()).into();
        assert_eq!(seconds, [1, 2, 4, 256, 300, 300]);
    }

    #[test]
    fn candidates_that_failed_together_are_tried_again_apart() {
        let now = now();
        let pause = |random| refused(&candidate(), None, starved(), random, now).retry_at.expect("a try") - now.0;
        assert_eq!([0.0, 0.5, 1.0].map(|random| pause(random).as_millis()), [500, 750, 1000]);
    }

    #[test]
    fn a_new_manifest_brings_forward_only_what_it_may_have_mended() {
        let (now, other) = now();
        let at = |error| {
            let refusal = refused(&candidate(), None, error, 1.0, (now, other));
            retry_after_manifest(&refusal, now).map(|at| at - now)
        };
        let pause = Some(Duration::from_secs(1));
        assert_eq!(at(starved()), pause);
        assert_eq!(at(LoadError::NoMemory("no memory left".to_owned())), pause);
        assert_eq!(at(LoadError::Artifact(ArtifactError::Missing { file: "a".to_owned() })), Some(Duration::ZERO));
        assert_eq!(at(LoadError::Settings("no".to_owned())), None);
    }
}
