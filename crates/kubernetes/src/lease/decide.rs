//! What to do about a Lease.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

/// Which Lease, for whom, and its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who wants it: the name of the Pod.
    pub identity: String,
    /// How long it holds without being renewed.
    pub duration: Duration,
    /// How often it is renewed, and asked for by who does not hold it.
    pub renew: Duration,
}

impl LeaseSettings {
    /// With 15 seconds, renewed every 5.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            duration: Duration::from_secs(15),
            renew: Duration::from_secs(5),
        }
    }

    /// How long a leader counts itself in after a renewal began: a third less than others wait.
    pub(super) fn trusted(&self) -> Duration {
        self.duration * 2 / 3
    }
}

/// When a Lease was last seen to change, on the local clock.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    last: Option<(String, Instant)>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// There is none.
    Create(Box<Lease>),
    /// Renew it, or take it over.
    Replace(Box<Lease>),
    /// Somebody else holds it.
    Wait {
        /// Who.
        holder: String,
    },
}

impl Seen {
    /// `found` is the Lease as it is now.
    pub(super) fn step(
        &mut self,
        settings: &LeaseSettings,
        found: Option<Lease>,
        now: Instant,
        clock: Timestamp,
    ) -> Step {
        let Some(mut lease) = found else {
            return Step::Create(Box::new(Lease {
                metadata: ObjectMeta {
                    name: Some(settings.name.clone()),
                    namespace: Some(settings.namespace.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(taken(settings, LeaseSpec::default(), clock)),
            }));
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let seen = match &self.last {
            Some((last, seen)) if *last == version => *seen,
            _ => {
                self.last = Some((version, now));
                now
            }
        };
        let spec = lease.spec.take().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder == settings.identity {
            lease.spec = Some(LeaseSpec {
                renew_time: Some(MicroTime(clock)),
                lease_duration_seconds: seconds(settings),
                ..spec
            });
            return Step::Replace(Box::new(lease));
        }
        let duration = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = duration.map_or(settings.duration, Duration::from_secs);
        if !holder.is_empty() && now.duration_since(seen) < duration {
            return Step::Wait { holder };
        }
        lease.spec = Some(taken(settings, spec, clock));
        Step::Replace(Box::new(lease))
    }
}

/// The Lease given back, for the next one to take at once.
pub(super) fn given_up(mut lease: Lease, identity: &str) -> Option<Lease> {
    let spec = lease.spec.as_mut()?;
    if spec.holder_identity.as_deref() != Some(identity) {
        return None;
    }
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    Some(lease)
}

fn taken(settings: &LeaseSettings, before: LeaseSpec, clock: Timestamp) -> LeaseSpec {
    let transitions = before.holder_identity.is_some().then(|| before.lease_transitions.unwrap_or(0).saturating_add(1));
    LeaseSpec {
        holder_identity: Some(settings.identity.clone()),
        lease_duration_seconds: seconds(settings),
        acquire_time: Some(MicroTime(clock)),
        renew_time: Some(MicroTime(clock)),
        lease_transitions: Some(transitions.unwrap_or(0)),
        ..before
    }
}

/// Whole seconds, rounded up; the API server refuses 0.
fn seconds(settings: &LeaseSettings) -> Option<i32> {
    i32::try_from(settings.duration.as_millis().div_ceil(1000).max(1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> LeaseSettings {
        LeaseSettings::new("portcullis", "leader", "a")
    }

    fn lease(holder: &str, version: &str) -> Option<Lease> {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "leader", "resourceVersion": version},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 3},
        }))
        .ok()
    }

    fn holder(step: &Step) -> Option<&str> {
        match step {
            Step::Create(lease) | Step::Replace(lease) => lease.spec.as_ref()?.holder_identity.as_deref(),
            Step::Wait { .. } => None,
        }
    }

    #[test]
    fn the_first_takes_it() {
        let step = Seen::default().step(&settings(), None, Instant::now(), Timestamp::UNIX_EPOCH);
        assert!(matches!(step, Step::Create(_)));
        assert_eq!(holder(&step), Some("a"));
    }

    #[test]
    fn a_lease_that_changes_is_left_alone_and_one_that_does_not_is_taken() {
        let (mut seen, start, clock) = (Seen::default(), Instant::now(), Timestamp::UNIX_EPOCH);
        let at = |seconds| start + Duration::from_secs(seconds);
        let waits = Step::Wait { holder: "b".to_owned() };
        assert_eq!(seen.step(&settings(), lease("b", "1"), at(0), clock), waits);
        assert_eq!(seen.step(&settings(), lease("b", "1"), at(14), clock), waits);
        assert_eq!(seen.step(&settings(), lease("b", "2"), at(16), clock), waits);
        assert_eq!(seen.step(&settings(), lease("b", "2"), at(30), clock), waits);
        let step = seen.step(&settings(), lease("b", "2"), at(31), clock);
        assert_eq!(holder(&step), Some("a"));
        let Step::Replace(lease) = step else { panic!("wants to replace it") };
        assert_eq!(lease.metadata.resource_version.as_deref(), Some("2"));
        assert_eq!(lease.spec.and_then(|spec| spec.lease_transitions), Some(4));
    }

    #[test]
    fn a_lease_given_up_is_taken_at_once() {
        let given = given_up(lease("b", "7").expect("a lease"), "b");
        let step = Seen::default().step(&settings(), given, Instant::now(), Timestamp::UNIX_EPOCH);
        assert_eq!(holder(&step), Some("a"));
        assert_eq!(given_up(lease("b", "7").expect("a lease"), "a"), None);
    }

    #[test]
    fn a_renewal_keeps_when_it_was_acquired() {
        let step = Seen::default().step(&settings(), lease("a", "7"), Instant::now(), Timestamp::UNIX_EPOCH);
        let Step::Replace(lease) = step else { panic!("wants to renew it") };
        let spec = lease.spec.expect("a spec");
        assert_eq!((spec.lease_transitions, spec.acquire_time), (Some(3), None));
    }
}
