//! Objects that take more memory when they are decoded than an audit or the check of an applied policy has for one: row Z23.

use std::time::Duration;

use portcullis_e2e::{
    FLOODED, Installation, InstallationOptions, LIMIT, PodSetup, Program, Usage, eventually, eventually_seen, note,
};
use serde_json::json;

use crate::audit::{ReportKind, found, reports};
use crate::checks::{await_checks, kubectl_dry_run};
use crate::cluster;
use crate::large_lists::{define_crates, delete_crates, make_nested_crates};
use crate::reads::grant;

const GROUP: &str = "nested.example.com";
/// How many objects of a mebibyte of nested lists there are. Decoded, each of them would take a hundred mebibytes.
const NESTED: usize = 2;
/// How much memory a program may take for them, in bytes: the 64 MiB that one object may take, and the texts of a page of them.
const READ: u64 = (64 + 16) << 20;
/// The memory limits of the chart.
const MEMORY: [(Program, u64); 2] = [(Program::Loader, 1 << 30), (Program::Reporter, 256 << 20)];

#[test]
#[ignore = "starts a cluster"]
fn fault_z23_objects_that_take_more_than_64_mib_of_memory_are_counted_and_neither_audited_nor_checked() {
    cluster().install_open_reports();
    let options = InstallationOptions::named("nested-objects").auditing("openreports").checking_policies("deny");
    // A longer time than usual, because half of it is for the objects, and other tests run beside this one.
    let installation = Installation::start(cluster(), options.checking_within(Duration::from_secs(30)));
    let store = installation.make_namespace("store");
    let path = define_crates(&installation, GROUP, &store);
    grant(&installation, "", "namespaces");
    installation.start_controller();
    let setup = PodSetup::default().flag(Program::Loader, "--check-impact", "on");
    let pod = installation.add_replica_with(setup.flag(Program::Evaluator, "--audit-share", 100));
    installation.wait_ready();
    await_checks(&installation, "nested-objects");
    let canary = installation.own_canary_within(FLOODED, "audits may take all the time that the evaluator gets");
    let pids = || MEMORY.map(|(program, _)| pod.program(program).pid().expect("it runs"));
    let peaks = || pids().map(|pid| Usage::of(pid).peak);
    let (pids_before, peaks_before) = (pids(), peaks());
    make_nested_crates(&installation, GROUP, &path, NESTED);
    let small = json!({ "apiVersion": format!("{GROUP}/v1"), "kind": "Crate", "metadata": { "name": "small" } });
    installation.api().create(&path, &small).expect("an API server answers").expect("a crate");

    // The check judges the small one, and says how many it did not judge.
    let rule =
        json!({ "apiGroups": [GROUP], "apiVersions": ["v1"], "resources": ["crates"], "operations": ["CREATE"] });
    let policy = installation.cluster_policy("nested-objects-labels").example("required-labels");
    let policy = policy.field("settings", json!({ "labels": ["team"] })).field("rules", json!([rule]));
    let told = [
        format!("1 of 1 crates.{GROUP} in 1 namespace would be denied, for instance {store}/small: "),
        format!(
            "what it would do to {NESTED} of {} crates.{GROUP} is not known: they take too much memory to be judged",
            NESTED + 1
        ),
    ];
    eventually_seen(LIMIT, "figures of all objects", || {
        let output = kubectl_dry_run(&installation, &policy);
        let is_told = output.is_ok() && told.iter().all(|words| output.stderr.contains(words));
        if is_told { Ok(()) } else { Err(format!("{output:?}")) }
    });

    // So does the audit.
    installation.apply_ready(std::slice::from_ref(&policy));
    let audit = found(&installation, &policy, "the figures of the small one", |audit| audit["checked"] == 1);
    assert_eq!(
        (&audit["generation"], &audit["violations"], &audit["errors"], &audit["examples"]),
        (&json!(1), &json!(1), &json!(0), &json!([format!("Crate {store}/small")])),
        "{audit}"
    );
    let left_out = format!("{NESTED} objects took too much memory to be judged, for instance Crate {store}/crate-");
    assert!(audit["message"].as_str().is_some_and(|message| message.starts_with(&left_out)), "{audit}");
    eventually("the report about the small one, and no other", || {
        let reports = reports(&installation, ReportKind::Report, std::slice::from_ref(&store));
        let about = reports.iter().map(|(_, report)| &report["metadata"]["ownerReferences"][0]["name"]);
        about.eq(["small"]).then_some(())
    });

    assert_eq!(pids(), pids_before);
    for (((program, limit), before), after) in MEMORY.into_iter().zip(peaks_before).zip(peaks()) {
        note(&format!("nested objects: {program} had {} MiB, then {} MiB", before >> 20, after >> 20));
        assert!(after < limit && after < before + READ, "{program}: {before} became {after} bytes");
    }
    delete_crates(&installation, &path);
    canary.end();
}
