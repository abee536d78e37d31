//! A source that is away when many policies are applied, and comes back: row L24.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use portcullis_e2e::{FLOODED, condition, eventually};
use serde_json::Value;

use crate::installation;

/// The number of policies and of their modules, as in the row.
const POLICIES: usize = 200;
const MODULES: usize = 20;
/// The number of manifests that one kubectl applies: few, as its time is limited and the machine may be busy.
const PART: usize = 50;

#[test]
#[ignore = "starts a cluster"]
fn fault_l24_two_hundred_policies_are_ready_once_their_source_is_back() {
    let installation = installation("back", 1);
    let canary = installation.own_canary_within(FLOODED, "a debug build loads two hundred policies meanwhile");
    let manifests: Vec<Value> = (0..POLICIES)
        .map(|number| {
            let policy = installation.cluster_policy(&format!("back-{number}")).on(&["secrets"]);
            policy.denying(&format!("module {}", number % MODULES)).manifest(installation.source())
        })
        .collect();
    installation.source().close();
    for part in manifests.chunks(PART) {
        let mut text = String::new();
        for manifest in part {
            writeln!(text, "---\n{manifest}").expect("a text");
        }
        installation.cluster().apply_server_side(&text).expect("policies");
    }
    // How many policies have a condition with this status and reason.
    let told = || {
        let mut told: BTreeMap<(String, String), usize> = BTreeMap::new();
        for policy in installation.api().list("/apis/policies.portcullis.dev/v1alpha1/clusterpolicies") {
            if policy["spec"]["policyServer"] != "back" {
                continue;
            }
            let text = |kind, field: &str| {
                condition(&policy, kind).and_then(|it| it[field].as_str()).unwrap_or_default().to_owned()
            };
            *told.entry((text("Ready", "status"), text("Degraded", "reason"))).or_default() += 1;
        }
        told
    };
    let count = |ready: &str, reason: &str| told().get(&(ready.to_owned(), reason.to_owned())).copied();
    eventually("all of them to fail", || (count("False", "RegistryUnreachable") == Some(POLICIES)).then_some(()));
    installation.source().open();
    installation
        .assert_recovers("all of them to be Ready", || (count("True", "AsExpected") == Some(POLICIES)).then_some(()));
    canary.end();
}
