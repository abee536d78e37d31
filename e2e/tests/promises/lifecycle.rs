//! Policies that are deleted and created again.

use portcullis_e2e::eventually;
use serde_json::json;

use crate::{assert_denied, installation, try_pod};

#[test]
#[ignore = "starts a cluster"]
fn a_policy_is_deleted_and_made_again() {
    let installation = installation("again", 1);
    let shop = installation.make_namespace("shop");
    let policy = installation.cluster_policy("again").denying("not now");
    for round in 1..=2 {
        installation.apply_ready(std::slice::from_ref(&policy));
        assert_denied(&installation.create_pod(&shop, "one", &json!({})), "policy cluster/again: not now");
        let delete = ["delete", "--timeout=180s", &policy.reference()];
        installation.cluster().kubectl(delete).expect("a deleted policy");
        // The API server may call a deleted webhook for a moment, but its path then allows everything.
        let (code, message) = try_pod(&installation, &shop);
        assert_eq!(code, 201, "round {round}: {message}");
        eventually("nothing left", || {
            (installation.webhooks().is_empty() && installation.revisions().is_empty()).then_some(())
        });
    }
}
