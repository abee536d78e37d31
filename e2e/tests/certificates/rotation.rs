//! Rows H16 and W12: certificates change under load, and no request fails.

use std::time::Duration;

use portcullis_e2e::{Cluster, Program, condition, eventually, eventually_within};

use crate::load::Load;
use crate::secrets::{self, Secrets, bundles};
use crate::{ROTATION, Serving, cluster, hurried, serving};

#[test]
#[ignore = "starts a cluster"]
fn fault_h16_certificate_and_authority_rotate_under_load() {
    Cluster::require_own_network();
    // A certificate is renewed when a third of its lifetime is left. One of the old authority must then last until the new authority has
    // issued another: for a pause, plus the delays of a busy machine.
    let flags = [("--ca-lifetime", "200s"), ("--tls-lifetime", "100s")];
    let setup = flags.into_iter().fold(hurried(), |setup, (flag, value)| setup.flag(Program::Controller, flag, value));
    let Serving { installation, namespace, policy, text } = serving(cluster(), "rotation", 2, setup);
    let before = Secrets::of(&installation);
    let load = Load::start(&installation, &namespace, &text);

    eventually_within(ROTATION, "a renewed serving certificate", || {
        (Secrets::of(&installation).leaf != before.leaf).then_some(())
    });
    eventually_within(ROTATION, "both authorities in every webhook", || {
        let now = Secrets::of(&installation);
        let both = !now.previous.is_empty() && now.authority != now.previous;
        let bundles = bundles(&installation);
        let is_there = |bundle: &String| bundle.contains(&now.authority) && bundle.contains(&now.previous);
        (both && !bundles.is_empty() && bundles.iter().all(is_there)).then_some(())
    });
    eventually_within(ROTATION, "the new authority alone", || {
        let now = Secrets::of(&installation);
        let bundles = bundles(&installation);
        let alone = now.are_settled() && now.authority != before.authority;
        (alone && bundles.iter().all(|bundle| *bundle == now.authority)).then_some(())
    });
    load.go_on(300);
    load.finish();
    for replica in installation.replicas() {
        assert_eq!(replica.restarts(Program::Evaluator), 0);
    }
    installation.wait_for(&policy, "WebhookConfigured", "True");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w12_a_deleted_authority_comes_again_with_both_in_the_bundle() {
    Cluster::require_own_network();
    let Serving { installation, namespace, policy, text } = serving(cluster(), "deleted", 2, hurried());
    let before = Secrets::of(&installation);
    let load = Load::start(&installation, &namespace, &text);
    load.go_on(100);

    let is_configured = || {
        let object = installation.object(&policy).unwrap();
        condition(&object, "WebhookConfigured").is_some_and(|found| found["status"] == "True")
    };
    installation.api().delete(&secrets::path(&installation, "ca"), None).unwrap().expect("a deleted Secret");
    let during = eventually("another authority beside the old one", || {
        Some(Secrets::of(&installation)).filter(|now| now.previous == before.authority)
    });
    assert_ne!(during.authority, before.authority);
    assert_eq!(during.leaf, before.leaf, "the old certificate stays until webhooks trust the new authority");
    eventually("both authorities in every webhook", || {
        let is_there = |bundle: &String| bundle.contains(&before.authority) && bundle.contains(&during.authority);
        bundles(&installation).iter().all(is_there).then_some(())
    });
    eventually("the new authority alone", || {
        assert!(is_configured(), "WebhookConfigured stays True");
        let now = Secrets::of(&installation);
        assert!(now.authority == during.authority || now.authority.is_empty(), "there is one new authority: {now:?}");
        (now.are_settled() && bundles(&installation).iter().all(|bundle| *bundle == now.authority)).then_some(())
    });
    load.go_on(300);
    load.finish();
    std::thread::sleep(Duration::from_secs(1));
    assert!(is_configured());
}
