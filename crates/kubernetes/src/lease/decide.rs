//! Decides what to do about a Lease. Pure.

use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

use super::DURATION;

/// Which Lease to hold, and under which name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// The identity of its holder: the name of this Pod.
    pub identity: String,
}

/// The holder and the renewal that were seen last, and when, by the local clock, they were first seen.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    last: Option<(String, Option<MicroTime>, Instant)>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// There is no Lease yet.
    Create(Box<Lease>),
    /// Renew it, or take it over.
    Replace(Box<Lease>),
    /// Another program holds it.
    Wait,
}

impl Seen {
    /// What to do about `found`, which is the Lease as it is now.
    pub(super) fn step(
        &mut self,
        settings: &LeaseSettings,
        found: Option<Lease>,
        now: Instant,
        clock: Timestamp,
    ) -> Step {
        let Some(mut lease) = found else {
            self.last = None;
            return Step::Create(Box::new(Lease {
                metadata: ObjectMeta {
                    name: Some(settings.name.clone()),
                    namespace: Some(settings.namespace.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(taken(settings, None, clock)),
            }));
        };
        let spec = lease.spec.take().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder == settings.identity {
            self.last = None;
            let acquire_time = spec.acquire_time.clone().or(Some(MicroTime(clock)));
            lease.spec = Some(LeaseSpec { acquire_time, ..renewed(spec, clock) });
            return Step::Replace(Box::new(lease));
        }
        if !holder.is_empty() && !self.is_silent(holder, spec.renew_time.clone(), now) {
            return Step::Wait;
        }
        self.last = None;
        lease.spec = Some(taken(settings, Some(spec), clock));
        Step::Replace(Box::new(lease))
    }

    /// Whether this holder has been seen without a renewal for too long. Other changes of the object do not count as a
    /// sign of life.
    fn is_silent(&mut self, holder: String, renewal: Option<MicroTime>, now: Instant) -> bool {
        match &self.last {
            Some((who, when, since)) if *who == holder && *when == renewal => now.duration_since(*since) > DURATION,
            _ => {
                self.last = Some((holder, renewal, now));
                false
            }
        }
    }
}

/// The Lease with its holder removed, so that another program may take it at once; `None` if another program holds it.
pub(super) fn given_up(mut lease: Lease, identity: &str) -> Option<Lease> {
    let spec = lease.spec.as_mut()?;
    if spec.holder_identity.as_deref() != Some(identity) {
        return None;
    }
    spec.holder_identity = Some(String::new());
    Some(lease)
}

fn taken(settings: &LeaseSettings, before: Option<LeaseSpec>, clock: Timestamp) -> LeaseSpec {
    let transitions = before.as_ref().map_or(0, |spec| spec.lease_transitions.unwrap_or(0).saturating_add(1));
    LeaseSpec {
        holder_identity: Some(settings.identity.clone()),
        acquire_time: Some(MicroTime(clock)),
        lease_transitions: Some(transitions),
        ..renewed(before.unwrap_or_default(), clock)
    }
}

fn renewed(spec: LeaseSpec, clock: Timestamp) -> LeaseSpec {
    let seconds = i32::try_from(DURATION.as_secs()).ok();
    LeaseSpec { renew_time: Some(MicroTime(clock)), lease_duration_seconds: seconds, ..spec }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn settings() -> LeaseSettings {
        LeaseSettings { namespace: "portcullis".into(), name: "leader".into(), identity: "pod-a".into() }
    }

    fn held_by(holder: &str, renewal: &str) -> Option<Lease> {
        serde_json::from_value(json!({
            "metadata": {"name": "leader", "resourceVersion": "4"},
            "spec": {"holderIdentity": holder, "renewTime": renewal, "acquireTime": "2020-01-01T00:00:00.000000Z",
                "leaseTransitions": 3, "leaseDurationSeconds": 999_999},
        }))
        .expect("a Lease")
    }

    const SOME_TIME: &str = "2020-01-02T00:00:00.000000Z";

    fn step(seen: &mut Seen, found: Option<Lease>, now: Instant) -> Step {
        seen.step(&settings(), found, now, Timestamp::UNIX_EPOCH)
    }

    /// The holder after the step; `None` if another program goes on holding it.
    fn holder(step: &Step) -> Option<&str> {
        match step {
            Step::Create(lease) | Step::Replace(lease) => lease.spec.as_ref()?.holder_identity.as_deref(),
            Step::Wait => None,
        }
    }

    #[test]
    fn an_absent_or_emptied_lease_is_taken_at_once() {
        let now = Instant::now();
        let made = step(&mut Seen::default(), None, now);
        assert!(matches!(made, Step::Create(_)), "{made:?}");
        for found in [Some(Lease::default()), held_by("", SOME_TIME)] {
            let taken = step(&mut Seen::default(), found, now);
            assert!(matches!(taken, Step::Replace(_)), "{taken:?}");
            assert_eq!(holder(&taken), Some("pod-a"));
        }
        assert_eq!(holder(&made), Some("pod-a"));
    }

    #[test]
    fn fault_r16_a_live_lease_is_left_alone_whatever_the_times_in_it_say() {
        let (start, mut seen) = (Instant::now(), Seen::default());
        for second in 0..120 {
            // The holder's clock is years behind; it renews every five seconds.
            let lease = held_by("pod-b", &format!("1999-01-01T00:00:{:02}.000000Z", second / 5));
            let now = start + Duration::from_secs(second);
            assert_eq!(step(&mut seen, lease, now), Step::Wait, "after {second} s");
        }
    }

    #[test]
    fn a_silent_holder_loses_it_after_fifteen_seconds_seen_from_here() {
        let (start, mut seen) = (Instant::now(), Seen::default());
        // Neither a renewal time in the future nor the long duration in the object keeps the Lease.
        let lease = || held_by("pod-b", "2099-01-01T00:00:00.000000Z");
        assert_eq!(step(&mut seen, lease(), start), Step::Wait);
        assert_eq!(step(&mut seen, lease(), start + DURATION), Step::Wait);
        let later = start + DURATION + Duration::from_millis(1);
        assert_eq!(holder(&step(&mut seen.clone(), lease(), later)), Some("pod-a"));
        assert_eq!(step(&mut seen, held_by("pod-c", SOME_TIME), later), Step::Wait, "another was faster");
    }

    #[test]
    fn an_edit_by_hand_is_no_sign_of_life() {
        let (start, mut seen) = (Instant::now(), Seen::default());
        assert_eq!(step(&mut seen, held_by("pod-b", SOME_TIME), start), Step::Wait);
        let mut edited = held_by("pod-b", SOME_TIME).expect("a Lease");
        edited.metadata.resource_version = Some("5".to_owned());
        let later = start + DURATION + Duration::from_millis(1);
        assert_eq!(holder(&step(&mut seen, Some(edited), later)), Some("pod-a"));
    }

    #[test]
    fn a_renewal_keeps_what_a_new_holder_begins_anew() {
        let now = Instant::now();
        let Step::Replace(kept) = step(&mut Seen::default(), held_by("pod-a", SOME_TIME), now) else { panic!("kept") };
        let spec = kept.spec.expect("a spec");
        let acquired: Timestamp = "2020-01-01T00:00:00Z".parse().expect("a time");
        assert_eq!((spec.lease_transitions, spec.acquire_time), (Some(3), Some(MicroTime(acquired))));
        assert_eq!((spec.renew_time, spec.lease_duration_seconds), (Some(MicroTime(Timestamp::UNIX_EPOCH)), Some(15)));
        assert_eq!(kept.metadata.resource_version.as_deref(), Some("4"));

        let Step::Replace(taken) = step(&mut Seen::default(), held_by("", SOME_TIME), now) else { panic!("taken") };
        let spec = taken.spec.expect("a spec");
        assert_eq!((spec.lease_transitions, spec.acquire_time), (Some(4), Some(MicroTime(Timestamp::UNIX_EPOCH))));
    }

    #[test]
    fn a_lease_given_up_is_taken_at_once_and_nobody_gives_up_another_s() {
        let given = given_up(held_by("pod-b", SOME_TIME).expect("a Lease"), "pod-b");
        assert_eq!(holder(&step(&mut Seen::default(), given, Instant::now())), Some("pod-a"));
        assert_eq!(given_up(held_by("pod-b", SOME_TIME).expect("a Lease"), "pod-a"), None);
    }
}
