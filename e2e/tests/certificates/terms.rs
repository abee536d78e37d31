//! A controller that leads, and leads again later.

use portcullis_e2e::{Installation, Pod, Program, eventually, eventually_within, never_lasting};
use serde_json::{Value, json};
use std::time::Duration;

use crate::secrets::{self, Secrets, bundles};
use crate::{ROTATION, Serving, cluster, hurried, serving};

/// How long webhooks must stay as they are after another controller leads: longer than its first turns and the last ones of the one before.
const STAYS: Duration = Duration::from_secs(10);

/// Makes this controller the holder of the Lease, and waits until it has said so this many times.
fn lead(installation: &Installation<'_>, controller: &Pod, times: usize) {
    let edit = json!({ "spec": { "holderIdentity": controller.name() } });
    installation.api().patch(&installation.lease("controller"), &edit).unwrap().expect("an edited Lease");
    let is_term = |log: &Value| log["message"].as_str().is_some_and(|message| message.starts_with("leads: "));
    eventually("a leader", || {
        let terms = controller.program(Program::Controller).logs().iter().filter(|log| is_term(log)).count();
        (terms >= times).then_some(())
    });
}

/// The versions of all webhook configurations.
fn versions(installation: &Installation<'_>) -> Vec<Value> {
    installation.webhooks().iter().map(|webhook| webhook["metadata"]["generation"].clone()).collect()
}

/// Another controller made a new authority meanwhile. The authorities that the first one knew would make every call fail.
#[test]
#[ignore = "starts a cluster"]
fn a_controller_that_leads_again_does_not_trust_the_authorities_of_its_earlier_term() {
    let Serving { installation, .. } = serving(cluster(), "terms", 1, hurried());
    let holder = installation.lease_holder("controller");
    let first = installation.pods().into_iter().find(|pod| holder.as_deref() == Some(pod.name()));
    let first = first.expect("the controller leads");
    let second = installation.start_controller_with(hurried());
    lead(&installation, &second, 1);

    let before = Secrets::of(&installation);
    installation.api().delete(&secrets::path(&installation, "ca"), None).unwrap().expect("a deleted Secret");
    let is_new = |now: &Secrets| now.are_settled() && now.authority != before.authority;
    let made = eventually_within(ROTATION, "another authority", || Some(Secrets::of(&installation)).filter(is_new));
    eventually("webhooks that trust only it", || {
        bundles(&installation).iter().all(|bundle| *bundle == made.authority).then_some(())
    });

    let registered = versions(&installation);
    lead(&installation, &first, 2);
    never_lasting(STAYS, "a change of a webhook", || {
        let now = versions(&installation);
        (now != registered).then(|| bundles(&installation))
    });
    assert_eq!(Secrets::of(&installation), made);
}
