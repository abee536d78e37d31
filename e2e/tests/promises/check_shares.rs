//! Many users apply policies that hang at once: row C15.

use std::slice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use portcullis_e2e::{FLOODED, Policy, eventually};

use crate::checks::{checking, kubectl_dry_run_by};

/// The number of users, each with a namespace and a policy that hangs.
const USERS: usize = 12;

#[test]
#[ignore = "starts a cluster"]
fn fault_c15_candidates_that_hang_in_many_namespaces_keep_no_policy_from_loading() {
    let installation = checking("checks-hang");
    let shop = installation.make_namespace("shop");
    let guard = installation.cluster_policy("checks-hang-guard").denying("not today").on(&["configmaps"]);
    installation.apply_ready(slice::from_ref(&guard));
    let other = installation.cluster_policy("checks-hang-other").denying("nor this").on(&["secrets"]);
    let hanging: Vec<Policy> = (0..USERS)
        .map(|number| {
            let team = installation.make_namespace(&format!("team-{number}"));
            // The limits are so long that no check waits until they are over.
            installation
                .policy(&team, "hangs")
                .guest("settings_loop")
                .on(&["configmaps"])
                .field("timeoutSeconds", 30)
                .field("timeoutEvalSeconds", 30)
        })
        .collect();
    let (is_over, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (judged, told) = thread::scope(|scope| {
        let flood: Vec<_> = hanging
            .iter()
            .enumerate()
            .map(|(number, policy)| {
                let (installation, is_over, answers) = (&installation, &is_over, &answers);
                scope.spawn(move || {
                    let (user, mut told) = (format!("--as=user-{number}"), Vec::new());
                    // Candidates stay in the evaluator only for some seconds after their checks, so the next ones follow.
                    while !is_over.load(Ordering::SeqCst) {
                        told.push(kubectl_dry_run_by(&[&user, "--as-group=system:masters"], installation, policy));
                        answers.fetch_add(1, Ordering::SeqCst);
                    }
                    told
                })
            })
            .collect();
        let applied = scope.spawn(|| {
            // By then, the candidates have hung in the evaluator for as long as a check may take.
            eventually("as many answers as users", || (answers.load(Ordering::SeqCst) >= USERS).then_some(()));
            let output = installation.apply(&other);
            assert!(output.is_ok(), "{output:?}");
            installation.wait_for(&other, "Ready", "True");
        });
        // The candidates hang in the evaluator itself, and use what it gets of the machine.
        let judged = installation.listener().hear(FLOODED, &is_over, || {
            let denied = installation.api().denies_configmap(&shop, "not today");
            is_over.store(applied.is_finished(), Ordering::SeqCst);
            denied
        });
        applied.join().expect("a policy that is applied meanwhile is loaded");
        let told: Vec<_> = flood.into_iter().flat_map(|one| one.join().expect("no panic")).collect();
        (judged.in_time(), told)
    });
    assert!(judged.iter().all(|denied| *denied == Some(true)), "each request is judged meanwhile");
    assert!(judged.len() > 20, "{} requests meanwhile", judged.len());
    assert!(told.len() >= USERS, "each user has applied a policy");
    for output in told {
        assert!(output.is_ok() && output.stderr.contains("Warning: "), "{output:?}");
        assert!(output.stderr.contains("not checked: "), "{output:?}");
    }
}
