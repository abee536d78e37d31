use super::*;

fn notice(policy: &str, reason: &str) -> Notice {
    Notice {
        policy: policy.parse().expect("an id"),
        uid: format!("uid of {policy}"),
        r#type: EventType::Warning,
        reason: reason.to_owned(),
        note: "1 of 2 replicas serve generation 7".to_owned(),
    }
}

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn refused(code: u16) -> CallError {
    CallError::Refused { code, retry_after: None, message: String::new() }
}

/// The namespace of the event that is created now.
fn namespace(announcer: &mut Announcer, now: Instant) -> String {
    match announcer.next(now) {
        Step::Create { namespace, .. } => namespace,
        other => panic!("{other:?}"),
    }
}

/// Writes everything that is due, with success; gives `create <reason>` or `raise <count>` for each write.
fn written(announcer: &mut Announcer, now: Instant) -> Vec<String> {
    let mut out = Vec::new();
    loop {
        out.push(match announcer.next(now) {
            Step::Create { object, .. } => format!("create {}", object["reason"].as_str().expect("text")),
            Step::Raise { patch, .. } => format!("raise {}", patch["series"]["count"]),
            Step::At(_) | Step::Idle => return out,
        });
        announcer.written();
    }
}

#[test]
fn an_event_of_a_namespaced_policy_is_where_the_policy_is() {
    let now = Instant::now();
    let mut announcer = Announcer::new("pod-a");
    announcer.add(notice("namespaced/team-a/labels", "NotFound"), time(0), now);
    let Step::Create { namespace, object } = announcer.next(now) else { panic!("an event") };
    assert_eq!(namespace, "team-a");
    assert_eq!(object["regarding"]["namespace"], "team-a");
    assert_eq!((&object["eventTime"], &object["type"]), (&json!("1970-01-01T00:00:00.000000Z"), &json!("Warning")));
    assert_eq!(object["regarding"]["uid"], "uid of namespaced/team-a/labels");
}

#[test]
fn an_event_of_a_cluster_wide_policy_is_in_the_default_namespace() {
    let now = Instant::now();
    let mut announcer = Announcer::new("pod-a");
    announcer.add(notice("cluster/a", "NotFound"), time(0), now);
    let Step::Create { namespace, object } = announcer.next(now) else { panic!("an event") };
    assert_eq!(namespace, "default");
    assert_eq!((object["regarding"].get("namespace"), &object["regarding"]["kind"]), (None, &json!("ClusterPolicy")));
}

#[test]
fn an_equal_event_within_six_minutes_raises_a_count() {
    let start = Instant::now();
    let mut announcer = Announcer::new("pod-a");
    announcer.add(notice("cluster/a", "NotFound"), time(0), start);
    assert_eq!(written(&mut announcer, start), ["create NotFound"]);
    announcer.add(notice("cluster/a", "NotFound"), time(5), start);
    announcer.add(notice("cluster/a", "NotFound"), time(6), start);
    assert_eq!(written(&mut announcer, start), ["raise 3"]);
    let later = start + SERIES + Duration::from_secs(1);
    announcer.add(notice("cluster/a", "NotFound"), time(400), later);
    assert_eq!(written(&mut announcer, later), ["create NotFound"]);
}

#[test]
fn a_try_that_failed_is_repeated_under_the_same_name() {
    let now = Instant::now();
    let mut announcer = Announcer::new("pod-a");
    announcer.add(notice("cluster/a", "NotFound"), time(0), now);
    let first = announcer.next(now);
    announcer.failed(&CallError::Unreachable(String::new()), 0.0, now);
    let Step::At(later) = announcer.next(now) else { panic!("it waits") };
    assert_eq!(announcer.next(later), first);
    announcer.failed(&refused(404), 0.0, later);
    assert_eq!((announcer.next(later), announcer.lost), (Step::Idle, 1), "refused for good");
}

#[test]
fn a_refused_event_is_tried_six_times_and_holds_up_no_other() {
    let mut now = Instant::now();
    let mut announcer = Announcer::new("pod-a");
    announcer.add(notice("namespaced/full/labels", "R"), time(0), now);
    let mut others = 0;
    for number in 0..600 {
        now += REFUSED_PAUSE;
        if number % 10 == 0 {
            announcer.add(notice(&format!("namespaced/team-a/p{number}"), "R"), time(0), now);
        }
        while let Step::Create { namespace, .. } = announcer.next(now) {
            match namespace.as_str() {
                "full" => announcer.failed(&refused(403), 1.0, now),
                _ => {
                    others += 1;
                    announcer.written();
                }
            }
        }
    }
    assert_eq!((others, announcer.lost), (60, 1));
}

/// A webhook about events of a namespace is broken or slow, and each write there takes five seconds.
#[test]
fn a_namespace_where_events_cannot_be_written_holds_up_no_other_and_is_given_up() {
    for error in [CallError::TimedOut, refused(429), refused(500), refused(503)] {
        let mut now = Instant::now();
        let mut announcer = Announcer::new("pod-a");
        (0..3).for_each(|number| announcer.add(notice(&format!("namespaced/broken/p{number}"), "R"), time(0), now));
        let (mut others, mut spent, begin) = (0, Duration::ZERO, now);
        for number in 0..600 {
            now += REFUSED_PAUSE;
            if number % 10 == 0 {
                announcer.add(notice(&format!("namespaced/team-a/p{number}"), "R"), time(0), now);
            }
            while let Step::Create { namespace, .. } = announcer.next(now) {
                if namespace == "broken" {
                    now += Duration::from_secs(5);
                    spent += Duration::from_secs(5);
                    announcer.failed(&error, 1.0, now);
                } else {
                    others += 1;
                    announcer.written();
                }
            }
        }
        assert_eq!((others, announcer.lost), (60, 3), "{error:?}");
        assert!(spent <= now.duration_since(begin) / (SHARE + 1), "{error:?}: {spent:?}");
    }
}

/// With no other events, nothing tells a broken webhook from an API server that is busy for a while.
#[test]
fn events_of_one_namespace_wait_ten_minutes_for_an_api_server() {
    let mut now = Instant::now();
    let mut announcer = Announcer::new("pod-a");
    announcer.add(notice("namespaced/team-a/a", "R"), time(0), now);
    let begin = now;
    while announcer.lost == 0 {
        match announcer.next(now) {
            Step::At(at) => now = at,
            _ => announcer.failed(&refused(503), 1.0, now),
        }
    }
    assert!((HOPELESS..HOPELESS * 2).contains(&now.duration_since(begin)));
}

#[test]
fn while_no_api_server_answers_nothing_is_tried() {
    let now = Instant::now();
    for error in [CallError::Unreachable(String::new()), refused(401), refused(429), refused(503)] {
        let mut announcer = Announcer::new("pod-a");
        ["cluster/a", "namespaced/team-a/b"].iter().for_each(|policy| announcer.add(notice(policy, "R"), time(0), now));
        announcer.next(now);
        announcer.failed(&error, 1.0, now);
        assert!(matches!(announcer.next(now), Step::At(at) if at > now), "{error:?}");
        assert_eq!(announcer.lost, 0);
    }
}

#[test]
fn namespaces_take_turns_and_cluster_wide_policies_are_one_of_them() {
    let now = Instant::now();
    let mut announcer = Announcer::new("pod-a");
    let policies = (0..40).map(|number| format!("namespaced/loud/p{number}"));
    let policies = policies.chain(["cluster/a", "namespaced/quiet/a", "cluster/b"].map(str::to_owned));
    policies.for_each(|policy| announcer.add(notice(&policy, "R"), time(0), now));
    let mut order = Vec::new();
    for _ in 0..6 {
        order.push(namespace(&mut announcer, now));
        announcer.written();
    }
    assert_eq!(order, ["loud", "default", "quiet", "loud", "default", "loud"]);
}

#[test]
fn a_namespace_with_thousands_of_events_drives_out_only_its_own() {
    let now = Instant::now();
    let mut announcer = Announcer::new("pod-a");
    announcer.add(notice("namespaced/quiet/a", "R"), time(0), now);
    for number in 0..KEPT + 100 {
        announcer.add(notice(&format!("namespaced/loud/p{number}"), "R"), time(0), now);
    }
    assert_eq!((announcer.entries.len(), announcer.lost as usize), (KEPT, 101));
    assert_eq!(announcer.entries[0].namespace(), "quiet");
}

#[test]
fn one_policy_has_a_few_events_at_once_and_then_one_a_minute() {
    let start = Instant::now();
    let mut announcer = Announcer::new("pod-a");
    for number in 0..12 {
        announcer.add(notice("cluster/a", &format!("R{number}")), time(0), start);
    }
    assert_eq!(written(&mut announcer, start).len(), 10);
    assert_eq!(written(&mut announcer, start + Duration::from_secs(59)).len(), 0);
    assert_eq!(written(&mut announcer, start + Duration::from_secs(61)).len(), 1);
}

#[test]
fn fault_r29_a_thousand_failing_policies_stay_below_the_limit() {
    let start = Instant::now();
    let mut announcer = Announcer::new("pod-a");
    let mut writes = Vec::new();
    for second in 0..180 {
        let now = start + Duration::from_secs(second);
        for policy in 0..1000 {
            if second % 20 == 0 {
                announcer.add(notice(&format!("cluster/p{policy}"), "RegistryUnreachable"), time(second as i64), now);
            }
        }
        writes.extend(written(&mut announcer, now).iter().map(|_| second));
    }
    for minute in 0..120 {
        let within = writes.iter().filter(|second| (minute..minute + 60).contains(*second)).count();
        assert!(within <= PER_MINUTE, "{within} writes in the minute from second {minute}");
    }
    assert_eq!(writes.len(), 3 * PER_MINUTE);
}

#[test]
fn what_waits_is_bounded() {
    let now = Instant::now();
    let mut announcer = Announcer::new("pod-a");
    for number in 0..10_000 {
        announcer.add(notice(&format!("cluster/p{number}"), "R"), time(0), now);
        announcer.add(notice("cluster/one", &format!("R{number}")), time(0), now);
    }
    assert!(announcer.entries.len() <= KEPT);
    assert!(announcer.lost > 10_000);
}

#[test]
fn the_limit_of_a_policy_that_has_all_its_events_again_is_forgotten() {
    let start = Instant::now();
    let mut announcer = Announcer::new("pod-a");
    for number in 0..50 {
        let now = start + Duration::from_secs(61 * number);
        announcer.add(notice(&format!("cluster/p{number}"), "NotFound"), time(0), now);
        assert_eq!(written(&mut announcer, now), ["create NotFound"]);
        assert_eq!(announcer.buckets.len(), 1);
    }
}
