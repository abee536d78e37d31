use super::*;

fn claim(id: &str, amount: u64) -> Claim {
    Claim { who: Claimant::new(&id.parse().expect("an id")), amount, has: 0 }
}

fn more(id: &str, amount: u64, has: u64) -> Claim {
    Claim { has, ..claim(id, amount) }
}

/// Takes one for each id in turn until none of them gets any more; gives how many each one took.
fn fill(fair: &mut ByPolicy<&str>, ids: &[&str]) -> Vec<u64> {
    let mut taken = vec![0; ids.len()];
    loop {
        let mut any = false;
        for (id, taken) in ids.iter().zip(&mut taken) {
            let got = fair.take(&claim(id, 1)).is_some();
            *taken += u64::from(got);
            any |= got;
        }
        if !any {
            return taken;
        }
    }
}

#[test]
fn who_takes_all_it_can_leaves_one_part_for_the_next() {
    for (ids, expected) in [
        (&["namespaced/a/x"] as &[&str], vec![32]),
        // Many policies of one namespace get no more together than a single one.
        (&["namespaced/a/x", "namespaced/a/y", "namespaced/a/z", "namespaced/a/w"], vec![8, 8, 8, 8]),
        (&["namespaced/a/x", "namespaced/b/x"], vec![21, 21]),
        (&["namespaced/a/x", "namespaced/b/x", "namespaced/c/x"], vec![16, 16, 16]),
        (&["cluster/x"], vec![32]),
        // All ClusterPolicies together get twice what a namespace gets.
        (&["cluster/x", "cluster/y", "cluster/z"], vec![14, 14, 14]),
    ] {
        assert_eq!(fill(&mut ByPolicy::new(64, 1, 0), ids), expected, "{ids:?}");
    }
}

#[test]
fn a_newcomer_begins_at_once_however_many_are_greedy() {
    let mut fair = ByPolicy::new(64, 1, 0);
    let ids: Vec<_> = (0..30).map(|namespace| format!("namespaced/n{namespace}/x")).collect();
    fill(&mut fair, &ids.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(fair.take(&claim("namespaced/new/x", 1)).is_some());
    assert!(fair.take(&claim("cluster/new", 1)).is_some());
}

#[test]
fn a_single_permit_can_be_had() {
    let mut fair = ByPolicy::<&str>::new(1, 1, 0);
    assert!(fair.take(&claim("cluster/a", 1)).is_some());
    assert!(fair.take(&claim("cluster/b", 1)).is_none());
    fair.give_back(&claim("cluster/a", 1).who, 1);
    assert!(fair.take(&claim("cluster/b", 1)).is_some());
}

#[test]
fn all_of_it_can_be_had_by_who_is_alone() {
    let mut fair = ByPolicy::<&str>::new(100, 1, 0);
    assert!(fair.take(&claim("cluster/a", 60)).is_some());
    assert!(fair.take(&claim("cluster/a", 41)).is_none());
    assert!(fair.take(&more("cluster/a", 40, 60)).is_some(), "the same evaluation");
}

#[test]
fn who_holds_least_goes_first() {
    let mut fair = ByPolicy::new(8, 1, 10);
    // One namespace holds four, another one two, and two more hold one each.
    for (id, n) in [("namespaced/a/x", 4), ("namespaced/b/x", 2), ("namespaced/c/x", 1), ("namespaced/d/x", 1)] {
        for _ in 0..n {
            assert!(fair.take(&claim(id, 1)).is_some(), "{id}");
        }
    }
    let waits = ["namespaced/a/y", "namespaced/b/x", "namespaced/b/y", "namespaced/e/x"];
    for id in waits {
        assert!(fair.take(&claim(id, 1)).is_none());
        fair.wait(&claim(id, 1), id).expect("there is room");
    }
    assert!(fair.next().is_none());
    let mut next = |id: &str| {
        fair.give_back(&claim(id, 1).who, 1);
        fair.next().map(|(_, id)| id)
    };
    assert_eq!(next("namespaced/a/x"), Some("namespaced/e/x"), "its namespace holds nothing");
    assert_eq!(next("namespaced/a/x"), None, "who holds two leaves three");
    assert_eq!(next("namespaced/a/x"), None);
    assert_eq!(next("namespaced/a/x"), Some("namespaced/a/y"), "its namespace holds nothing any more");
    assert_eq!(next("namespaced/b/x"), Some("namespaced/b/y"), "before the other one of its namespace");
}

#[test]
fn z09_tenants_with_many_who_wait_take_turns() {
    let mut fair = ByPolicy::new(1, 1, 10);
    let ids = ["namespaced/a/1", "namespaced/a/2", "namespaced/b/1", "namespaced/b/2", "namespaced/c/1", "cluster/x"];
    let mut holder = fair.take(&claim("namespaced/a/0", 1)).expect("it is free");
    for id in ids {
        fair.wait(&claim(id, 1), id).expect("there is room");
    }
    let order: [&str; 6] = ids.map(|_| {
        fair.give_back(&holder.owner, 1);
        let (next, id) = fair.next().expect("one waits");
        holder = next;
        id
    });
    assert_eq!(order[0], "cluster/x", "it has the share of two");
    assert_eq!(order[1..], ["namespaced/b/1", "namespaced/c/1", "namespaced/a/1", "namespaced/b/2", "namespaced/a/2"]);
}

#[test]
fn the_queue_has_an_end() {
    let mut fair = ByPolicy::new(1, 1, 1);
    assert!(fair.take(&claim("cluster/a", 1)).is_some());
    let ticket = fair.wait(&claim("cluster/a", 1), "first").expect("there is room");
    assert_eq!(fair.wait(&claim("cluster/a", 1), "second"), Err("second"));
    assert!(fair.leave(&claim("cluster/a", 1), ticket));
    assert!(!fair.leave(&claim("cluster/a", 1), ticket));
    assert!(fair.wait(&claim("cluster/a", 1), "second").is_ok());
}

#[test]
fn a_large_claim_does_not_hold_up_small_ones() {
    let mut fair = ByPolicy::new(100, 4, 10);
    assert!(fair.take(&claim("namespaced/a/x", 40)).is_some());
    fair.wait(&claim("namespaced/a/x", 50), "large").expect("there is room");
    fair.wait(&claim("namespaced/a/x", 5), "small").expect("there is room");
    assert_eq!(fair.next().map(|(_, who)| who), Some("small"));
    fair.give_back(&claim("namespaced/a/x", 0).who, 45);
    assert_eq!(fair.next().map(|(_, who)| who), Some("large"));
}

#[test]
fn those_who_wait_for_each_other_are_parted() {
    let mut fair = ByPolicy::new(100, 1, 10);
    assert!(fair.take(&claim("namespaced/a/x", 40)).is_some());
    assert!(fair.take(&claim("namespaced/b/x", 30)).is_some());
    let (one, other) = (more("namespaced/a/x", 40, 40), more("namespaced/b/x", 40, 30));
    fair.wait(&one, "one").expect("there is room");
    assert_eq!(fair.give_up(), None, "the other one still runs");
    fair.wait(&other, "other").expect("there is room");
    assert!(fair.next().is_none());
    assert_eq!(fair.give_up(), Some("one"), "its tenant holds the most");
    fair.give_back(&one.who, 40);
    assert_eq!(fair.next().map(|(_, who)| who), Some("other"));
}

#[test]
fn what_nobody_could_ever_have_is_refused() {
    let mut fair = ByPolicy::new(10, 1, 10);
    assert!(fair.take(&claim("cluster/a", 11)).is_none());
    fair.wait(&claim("cluster/a", 11), "too much").expect("there is room");
    assert_eq!(fair.give_up(), Some("too much"));
}

#[test]
fn nothing_is_remembered_of_who_is_gone() {
    let mut fair = ByPolicy::new(10, 1, 10);
    assert!(fair.take(&claim("namespaced/a/x", 3)).is_some());
    let ticket = fair.wait(&claim("namespaced/b/x", 9), "b").expect("there is room");
    fair.give_back(&claim("namespaced/a/x", 0).who, 3);
    fair.leave(&claim("namespaced/b/x", 0), ticket);
    assert!(fair.tenants.is_empty());
    assert_eq!((fair.held, fair.waiting, fair.waiting_hold), (0, 0, 0));
}

/// A stock of 64 in which these claims hold what they ask for, and those wait.
fn stock(held: &[Claim], waiting: &[Claim]) -> ByPolicy<()> {
    let mut fair = ByPolicy::new(64, 2, 10);
    for claim in held {
        assert!(fair.take(claim).is_some(), "{claim:?}");
    }
    for claim in waiting {
        assert!(!fair.allows(claim), "{claim:?}");
        fair.wait(claim, ()).expect("there is room");
    }
    fair
}

#[test]
fn an_audit_gives_way_to_who_waits_for_what_others_hold_and_not_to_a_tenant_that_waits_for_its_own() {
    let audit = claim("namespaced/b/x", 4);
    let gives_way = |held: &[Claim], waiting: &[Claim]| {
        let fair = stock(held, waiting);
        assert!(fair.allows(&audit), "a request would get it");
        fair.gives_way(&audit)
    };
    let one = [claim("namespaced/a/x", 32)];
    assert!(!gives_way(&one, &[]), "nobody waits");
    for greedy in ["namespaced/a/x", "namespaced/a/y"] {
        assert!(!gives_way(&one, &[claim(greedy, 4)]), "{greedy} waits for what its tenant holds");
    }
    let all = ["namespaced/a/x", "namespaced/c/x", "namespaced/d/x"].map(|id| claim(id, 16));
    let more = all.clone().map(|claim| Claim { amount: 1, ..claim });
    assert!(!gives_way(&all, &more), "each of many tenants has all that it may have");
    let large = [claim("namespaced/a/x", 50)];
    assert!(gives_way(&large, &[claim("namespaced/c/x", 8)]), "it waits for what another holds");
    assert!(!gives_way(&large, &[claim("namespaced/c/x", 40)]), "that would be more than its part");
    assert!(gives_way(&large, &[claim("namespaced/b/x", 30)]), "its own requests come first");
}

#[test]
fn an_audit_gives_way_to_who_would_hold_less() {
    let fair = stock(&[claim("namespaced/b/y", 20), claim("cluster/x", 16)], &[claim("cluster/x", 20)]);
    assert!(fair.gives_way(&claim("namespaced/b/x", 4)), "the share of ClusterPolicies counts as two");
    let fair = stock(&[claim("namespaced/b/y", 4), claim("cluster/x", 28)], &[claim("cluster/x", 30)]);
    assert!(!fair.gives_way(&claim("namespaced/b/x", 4)), "it waits for what it holds itself");
}

#[test]
fn a_cluster_policy_does_not_wait_for_its_own_where_another_holds_the_share_of_both() {
    let audit = claim("namespaced/b/x", 4);
    let held = [claim("cluster/x", 48)];
    assert!(stock(&held, &[claim("cluster/y", 20)]).gives_way(&audit));
    assert!(!stock(&held, &[claim("cluster/x", 10)]).gives_way(&audit));
    // Not even among ClusterPolicies, where nobody else has a part.
    assert!(!stock(&[claim("cluster/x", 32)], &[claim("cluster/x", 4)]).gives_way(&claim("cluster/y", 4)));
}

#[test]
fn in_order_a_large_claim_is_not_overtaken_by_its_tenant_nor_holds_up_another_one() {
    for (large_id, small_id) in
        [("namespaced/a/x", "namespaced/a/x"), ("namespaced/a/y", "namespaced/a/x"), ("cluster/y", "cluster/x")]
    {
        let mut fair = ByPolicy::in_order(64, 16);
        let (large, small) = (claim(large_id, 16), claim(small_id, 1));
        let mut held = 0;
        while fair.take(&small).is_some() {
            held += 1;
        }
        fair.give_back(&small.who, 1);
        fair.wait(&large, "large").expect("there is room");
        fair.wait(&small, "small").expect("there is room");
        assert!(fair.allows(&small) && fair.take(&small).is_none(), "{large_id}, {small_id}");
        assert!(fair.take(&claim("namespaced/other/x", 1)).is_some(), "it waits for nobody");
        let mut next = None;
        for _ in 1..held {
            fair.give_back(&small.who, 1);
            next = fair.next();
            if next.is_some() {
                break;
            }
        }
        assert_eq!(next.map(|(_, id)| id), Some("large"), "{large_id}, {small_id}");
    }
}

#[test]
fn in_order_a_policy_that_holds_less_goes_before_a_large_claim_of_its_tenant() {
    let mut fair = ByPolicy::in_order(64, 16);
    assert!(fair.take(&claim("namespaced/a/x", 28)).is_some());
    let large = claim("namespaced/a/x", 16);
    assert!(fair.take(&large).is_none());
    fair.wait(&large, "large").expect("there is room");
    assert!(fair.take(&claim("namespaced/a/x", 1)).is_none());
    assert!(fair.take(&claim("namespaced/a/y", 1)).is_some());
}

#[test]
fn who_waits_for_its_own_or_for_others_says_who_is_in_the_way() {
    let [a, a_too, b] = ["namespaced/a/x", "namespaced/a/y", "namespaced/b/x"].map(|id| claim(id, 4).who);
    let is_in_the_way = |held: &[Claim], waiting: &[Claim], who: &Claimant| stock(held, waiting).is_in_the_way(who);
    let half = [claim("namespaced/a/x", 32)];
    assert!(!is_in_the_way(&half, &[], &a), "nobody waits");
    let own = [claim("namespaced/a/x", 4)];
    assert!(is_in_the_way(&half, &own, &a) && is_in_the_way(&half, &own, &a_too));
    assert!(!is_in_the_way(&half, &own, &b), "it waits for what its own namespace holds");
    let large = [claim("namespaced/a/x", 50)];
    assert!(is_in_the_way(&large, &[claim("namespaced/c/x", 8)], &b), "it waits for what others hold");
    let cluster = [claim("cluster/x", 48)];
    let [x, y] = ["cluster/x", "cluster/y"].map(|id| claim(id, 4).who);
    assert!(is_in_the_way(&cluster, &[claim("cluster/y", 20)], &x), "it waits for what another one holds");
    let own = [claim("cluster/x", 10)];
    assert!(is_in_the_way(&cluster, &own, &x) && !is_in_the_way(&cluster, &own, &y));
}

#[test]
fn who_holds_nothing_waits_for_others_however_many_have_a_part() {
    let mut fair = ByPolicy::in_order(64, 16);
    let held = [("namespaced/a/x", 40), ("namespaced/b/x", 11), ("namespaced/d/x", 1)].map(|(id, n)| claim(id, n));
    assert!(held.iter().all(|claim| fair.take(claim).is_some()));
    let large = claim("namespaced/c/x", 16);
    assert!(fair.take(&large).is_none() && !fair.is_within_part(&large, fair.parts(&large.who.tenant)));
    fair.wait(&large, "large").expect("there is room");
    assert!(fair.is_in_the_way(&held[1].who));
}
