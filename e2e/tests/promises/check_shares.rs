//! Many users apply policies that hang at once: row C15.

use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use portcullis_e2e::{FLOODED, Policy};

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
    let judged = thread::scope(|scope| {
        let flood: Vec<_> = hanging
            .iter()
            .enumerate()
            .map(|(number, policy)| {
                let installation = &installation;
                scope.spawn(move || {
                    let user = format!("--as=user-{number}");
                    kubectl_dry_run_by(&[&user, "--as-group=system:masters"], installation, policy)
                })
            })
            .collect();
        let applied = scope.spawn(|| installation.apply(&other));
        // The candidates hang in the evaluator itself, and use what it gets of the machine.
        let is_over = AtomicBool::new(false);
        let judged = installation.listener().hear(FLOODED, &is_over, || {
            assert_eq!(installation.api().denies_configmap(&shop, "not today"), Some(true));
            is_over.store(flood.iter().all(|one| one.is_finished()), Ordering::SeqCst);
        });
        for one in flood {
            let output = one.join().expect("no panic");
            assert!(output.is_ok() && output.stderr.contains("Warning: "), "{output:?}");
            assert!(output.stderr.contains("not checked: "), "{output:?}");
        }
        let output = applied.join().expect("no panic");
        assert!(output.is_ok(), "{output:?}");
        judged.in_time().len()
    });
    assert!(judged > 20, "{judged} requests meanwhile");
    // Candidates stay in the evaluator for some seconds, and still hang now.
    installation.wait_for(&other, "Ready", "True");
}
