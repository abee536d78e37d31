//! A policy is edited under load.

use portcullis_e2e::eventually;
use serde_json::json;

use crate::stage::{Stage, assert_all};

/// The number of calls per second. A busy machine handles fewer.
const CALLS: u32 = 200;

/// The number of calls that is enough, however fast they were.
const ENOUGH: usize = 500;

#[test]
#[ignore = "starts a cluster"]
fn fault_e11_an_edit_under_load_gives_no_failed_and_no_mixed_answer() {
    let stage = Stage::new("swap");
    let (release, shop) = (stage.release(), stage.namespace());
    let policy = release.cluster_policy("swap");
    release.apply_ready(&[policy.clone().denying("version one")]);

    let load = release.load(&shop, CALLS);
    eventually("an answer before the edit", || {
        release.create_pod(&shop, "before", &json!({})).stderr.contains("version one").then_some(())
    });
    release.apply_ready(&[policy.denying("version two")]);
    let after = release.create_pod(&shop, "after", &json!({}));
    assert!(after.stderr.contains("version two"), "{after:?}");

    let answers = load.end_after(ENOUGH);
    assert_all(&answers, 403);
    let says = |version: &str| answers.iter().filter(|answer| answer.message.contains(version)).count();
    let (one, two) = (says("version one"), says("version two"));
    assert_eq!(one + two, answers.len(), "each answer is of one version");
    assert!(one > 0 && two > 0, "{one} and {two}");
}
