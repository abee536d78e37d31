//! Replicas and policies come and go under load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_e2e::{Cluster, Heard, IN_TIME, Installation, Program};
use serde_json::json;

use crate::installation;
use crate::reads::{KIND, asks, limit_range, raw, try_config_map};

/// The number of callers. Each waits for its answer, and makes 50 calls a second.
const CALLERS: usize = 3;

/// The pause between two calls beside those of the callers.
const PAUSE: Duration = Duration::from_millis(20);

/// Makes calls while `act` runs and for a second longer, and `beside` again and again. Asserts that the calls are answered in time, and
/// returns the answers of the API server.
fn answers_during(
    installation: &Installation<'_>,
    namespace: &str,
    beside: impl Fn() + Sync,
    act: impl FnOnce(),
) -> Vec<(u16, String)> {
    let (is_done, listener) = (AtomicBool::new(false), installation.listener());
    thread::scope(|scope| {
        let call = || listener.hear(IN_TIME, &is_done, || installation.try_pod(namespace));
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(call)).collect();
        let beside = scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                beside();
                thread::sleep(PAUSE);
            }
        });
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            act();
            thread::sleep(Duration::from_secs(1));
        }));
        is_done.store(true, Ordering::SeqCst);
        let heard: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
        acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        beside.join().unwrap();
        heard.into_iter().flat_map(Heard::in_time).collect()
    })
}

fn assert_all_admitted(answers: &[(u16, String)]) {
    let refused: Vec<_> = answers.iter().filter(|(code, _)| *code != 201).collect();
    assert!(refused.is_empty(), "{} of {} calls: {:?}", refused.len(), answers.len(), refused[0]);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_e03_a_rolling_restart_under_load_fails_no_call() {
    Cluster::require_own_network();
    let installation = installation("rolling", 2);
    // A LimitRange would also limit the pods of the callers.
    let (shop, limited) = (installation.make_namespace("shop"), installation.make_namespace("limited"));
    limit_range(&installation, &limited, "first", &limited);
    let list = json!({"api_version": "v1", "kind": KIND, "namespace": limited, "field_masks": ["metadata.name"]});
    let calls = json!([raw("kubernetes/list_resources_by_namespace", &list)]);
    let asks = asks(&installation, &limited, "rolling-asks", &calls);
    installation.apply_ready(&[installation.cluster_policy("rolling"), asks]);

    let old = installation.replicas();
    // This policy denies with what its host told it.
    let ask = || {
        let (code, message) = try_config_map(&installation, &limited, "rolling");
        assert!(code >= 400 && message.contains(r#""name":"first""#), "{code} {message}");
    };
    let answers = answers_during(&installation, &shop, ask, || {
        for replica in &old {
            installation.add_replica();
            installation.wait_ready();
            replica.remove();
        }
    });
    assert_all_admitted(&answers);
    for replica in &old {
        let ended = replica.program(Program::Evaluator).ended();
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_e13_a_policy_that_is_deleted_under_load_harms_no_call() {
    Cluster::require_own_network();
    let installation = installation("deleted", 2);
    let shop = installation.make_namespace("shop");
    let (stays, goes) = (installation.cluster_policy("deleted-stays"), installation.cluster_policy("deleted-goes"));
    // One of the deleted policies shares its match group with one that stays; the other is alone in its group, because of its matchPolicy.
    let alone = installation.cluster_policy("deleted-alone").field("matchPolicy", "Exact");
    installation.apply_ready(&[stays, goes.clone(), alone.clone()]);

    let answers = answers_during(
        &installation,
        &shop,
        || (),
        || {
            for policy in [&goes, &alone] {
                installation.cluster().kubectl(["delete", "--timeout=600s", &policy.reference()]).expect("a deletion");
            }
        },
    );
    assert_all_admitted(&answers);
}
