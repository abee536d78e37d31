//! What is wrong with the objects of a kind, in words for a policy's status. Pure.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::discovery::ApiResource;
use portcullis_contract::{ContextAwareResource, ContextProblem, ContextReason};
use portcullis_kubernetes::CallError;

/// How long a watch may fail before its objects count as old. An API server restarts within this time.
const STALE: Duration = Duration::from_secs(60);

/// What is known of a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// Not all objects have come yet. The failure is that of the last try, if one failed.
    Incomplete(Option<Failed>),
    /// All objects are here.
    Complete,
    /// It is too large, or there is no room.
    Refused(String),
}

impl State {
    /// All objects are here now. A refusal stands. Returns whether that changed anything.
    pub(super) fn complete(&mut self) -> bool {
        let is_new = matches!(self, Self::Incomplete(_));
        if is_new {
            *self = Self::Complete;
        }
        is_new
    }
}

/// Why a watch does not know all objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) reason: ContextReason,
    pub(super) why: String,
}

impl Failed {
    pub(super) fn ended() -> Self {
        Self { reason: ContextReason::ContextNotSynced, why: "its watch has ended".to_owned() }
    }
}

/// Consecutive failures of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outage {
    /// When the first one came.
    pub(super) since: Instant,
    /// When the first one came, as wall-clock time.
    pub(super) time: Timestamp,
    /// The cause of the first one.
    pub(super) why: String,
}

/// What a failed call means for policies that need the objects.
pub(super) fn reason_of(error: &CallError) -> ContextReason {
    match error.code() {
        Some(401 | 403) => ContextReason::ContextForbidden,
        Some(404) => ContextReason::ContextKindUnknown,
        _ => ContextReason::ContextNotSynced,
    }
}

/// What is wrong with the objects that a watch keeps. While the watch works they are never old, however long nothing has changed:
/// API server and watch exchange bookmarks, and a watch that gets none begins again.
pub(super) fn problem(
    kind: &ContextAwareResource,
    resource: &ApiResource,
    state: &State,
    outage: Option<&Outage>,
    now: Instant,
) -> Option<ContextProblem> {
    let (reason, words) = match state {
        State::Incomplete(None) => (ContextReason::ContextNotSynced, "it is being read".to_owned()),
        State::Incomplete(Some(failed)) => {
            let advice = match failed.reason {
                ContextReason::ContextForbidden => format!("grant {} (chart: rbac.contextAwareReads)", rule(resource)),
                ContextReason::ContextKindUnknown => "install its CustomResourceDefinition again".to_owned(),
                _ => "it is tried again".to_owned(),
            };
            // The rule comes first, because a long message is cut at its end.
            (failed.reason, format!("{advice}: {}", failed.why))
        }
        State::Refused(why) => (ContextReason::ContextTooLarge, format!("{why}; read fewer kinds, or less of them")),
        State::Complete => {
            let outage = outage.filter(|outage| now.saturating_duration_since(outage.since) >= STALE)?;
            // A point in time, not an age, so that the status is not written again as time passes.
            let time = outage.time.strftime("%Y-%m-%dT%H:%M:%SZ");
            (ContextReason::ContextStale, format!("known as of {time}, since when the watch fails: {}", outage.why))
        }
    };
    Some(ContextProblem::new(reason, format!("{}/{}: {words}", kind.api_version, kind.kind)))
}

/// The rule of a ClusterRole that lets its holder watch the objects.
fn rule(resource: &ApiResource) -> String {
    format!("{{apiGroups: [\"{}\"], resources: [{}], verbs: [get, list, watch]}}", resource.group, resource.plural)
}

#[cfg(test)]
mod tests {
    use kube::core::GroupVersionKind;

    use super::*;

    fn told(state: &State, outage: Option<Duration>) -> String {
        let kind = ContextAwareResource { api_version: "apps/v1".to_owned(), kind: "Deployment".to_owned() };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "Deployment"));
        let since = Instant::now();
        let time = "2026-01-01T00:00:40.5Z".parse().expect("a time");
        let failing = Outage { since, time, why: "connection refused".to_owned() };
        let now = since + outage.unwrap_or_default();
        let problem = problem(&kind, &resource, state, outage.map(|_| &failing), now);
        problem.map_or_else(String::new, |problem| format!("{} {}", problem.reason.as_str(), problem.message))
    }

    fn failing(error: &CallError) -> State {
        State::Incomplete(Some(Failed { reason: reason_of(error), why: error.to_string() }))
    }

    #[test]
    fn what_is_missing_is_told_with_its_cause_and_the_next_step() {
        let refused = |code| CallError::Refused { code, retry_after: None, message: "no".to_owned() };
        let of_kind = |words: &str| words.replace("KIND", "apps/v1/Deployment");
        assert_eq!(told(&State::Incomplete(None), None), of_kind("ContextNotSynced KIND: it is being read"));
        assert_eq!(
            told(&failing(&refused(403)), None),
            of_kind(
                "ContextForbidden KIND: grant {apiGroups: [\"apps\"], resources: [deployments], verbs: [get, list, watch]} \
                 (chart: rbac.contextAwareReads): the API server refused with 403: no"
            )
        );
        assert!(told(&failing(&refused(404)), None).starts_with("ContextKindUnknown"));
        assert!(told(&failing(&refused(500)), None).starts_with("ContextNotSynced"));
        assert!(told(&failing(&CallError::TimedOut), None).starts_with("ContextNotSynced"));
        assert!(told(&State::Refused("too large".to_owned()), None).starts_with("ContextTooLarge"));
    }

    #[test]
    fn a_refusal_stands_also_when_the_last_object_comes_with_it() {
        let refused = || State::Refused("too large".to_owned());
        for (before, after, is_new) in [
            (State::Incomplete(None), State::Complete, true),
            (State::Incomplete(Some(Failed::ended())), State::Complete, true),
            (State::Complete, State::Complete, false),
            (refused(), refused(), false),
        ] {
            let mut state = before;
            assert_eq!((state.complete(), state), (is_new, after));
        }
    }

    #[test]
    fn objects_are_old_when_their_watch_has_failed_for_long() {
        assert_eq!(told(&State::Complete, None), "");
        assert_eq!(told(&State::Complete, Some(STALE - Duration::from_millis(1))), "");
        assert_eq!(
            told(&State::Complete, Some(STALE)),
            "ContextStale apps/v1/Deployment: known as of 2026-01-01T00:00:40Z, since when the watch fails: connection refused"
        );
    }
}
