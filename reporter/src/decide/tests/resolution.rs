//! Replicas that resolved an address to different bytes.

use super::*;

#[test]
fn z16_replicas_with_other_bytes_than_most_do_not_serve_the_generation() {
    let unpinned = Facts { digest: None, ..facts() };
    let with = |pod, digest| {
        let mut report = report(pod, Current);
        report.digests.insert(PolicyKey::of(UID), digest);
        report
    };
    let (a, b, c) = (Digest::of(b"a"), Digest::of(b"b"), Digest::of(b"c"));
    let reports = [with("pod-a", b), with("pod-b", a), with("pod-c", a), with("pod-d", c)];
    let heard = |report| Some(LastReport { report, is_stale: false });
    let replica = |n: usize| {
        let pod = ["pod-a", "pod-b", "pod-c", "pod-d"][n];
        Replica { pod, pod_uid: pod, expected: true, report: heard(&reports[n]) }
    };
    let decided = |which: &[usize]| {
        let replicas: Vec<_> = which.iter().map(|n| replica(*n)).collect();
        decide(&unpinned, &replicas, Webhook::Confirmed, None, now())
    };
    let most = decided(&[0, 1, 2]);
    assert_eq!(most.resolved.as_ref().map(|resolved| resolved.digest), Some(a));
    assert_eq!(row(&most).split(' ').nth(2), Some("True/ResolvedDifferently"));
    assert_eq!((most.replica_counts.current, most.replica_counts.previous), (2, 1));
    let split = decided(&[0, 1, 3]);
    assert_eq!(split.resolved, None, "nothing is pinned");
    assert_eq!(row(&split).split(' ').nth(2), Some("True/ResolvedDifferently"));
    assert_eq!((split.replica_counts.current, split.replica_counts.previous), (0, 3));
}
