//! Policies are checked when they are applied: rows C01 to C04.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_e2e::{IN_TIME, Installation, Output, Pod, Policy, Program, Reply, eventually, guest_with};
use serde_json::{Value, json};

use crate::installation_with;

/// The number of policies that are applied at once.
const FLOOD: usize = 50;
/// The flags of another user than the test's own, with the same rights.
const AS_ALICE: [&str; 2] = ["--as=alice", "--as-group=system:masters"];

/// An installation that refuses policies that cannot load. The API server calls its check.
pub(super) fn checking(name: &str) -> Installation<'static> {
    let installation = installation_with(name, 1, "deny");
    await_checks(&installation, name);
    installation
}

/// Waits until the API server calls the check of policies.
pub(super) fn await_checks(installation: &Installation<'_>, name: &str) {
    eventually("a refusal of what cannot load", || {
        let policy = labels(installation, &format!("{name}-probe"), &json!([]));
        let reply = dry_run(installation, &policy);
        (reply.0 == 422 && reply.1.contains("SettingsInvalid")).then_some(())
    });
}

/// A policy that requires labels of ConfigMaps.
pub(super) fn labels(installation: &Installation<'_>, name: &str, labels: &Value) -> Policy {
    let policy = installation.cluster_policy(name).example("required-labels").on(&["configmaps"]);
    policy.field("settings", json!({ "labels": labels }))
}

/// The status and the message of the answer to a dry run.
pub(super) fn dry_run(installation: &Installation<'_>, policy: &Policy) -> (u16, String) {
    let reply = policy.dry_run(&installation.api(), installation.source());
    (reply.code, reply.body["message"].as_str().unwrap_or_default().to_owned())
}

pub(super) fn kubectl_dry_run(installation: &Installation<'_>, policy: &Policy) -> Output {
    kubectl_dry_run_by(&[], installation, policy)
}

/// The same as [`kubectl_dry_run`], as the user that these flags name.
pub(super) fn kubectl_dry_run_by(user: &[&str], installation: &Installation<'_>, policy: &Policy) -> Output {
    let manifest = policy.manifest(installation.source()).to_string();
    let cluster = installation.cluster();
    let dry_run = ["apply", "--dry-run=server", "--filename=-"].into_iter().chain(user.iter().copied());
    cluster.kubectl_as(&cluster.kubeconfig(), dry_run, &manifest)
}

/// How many modules the loader of a pod has compiled.
fn compilations(pod: &Pod) -> u64 {
    let (_, text) = eventually("metrics", || pod.probe(Program::Loader, "/metrics").filter(|(code, _)| *code == 200));
    let count = text.lines().find_map(|line| line.strip_prefix("portcullis_compile_seconds_count "));
    count.expect("the loader counts them").trim().parse().expect("a number")
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c01_a_mistake_is_refused_where_it_is_made_and_what_serves_goes_on() {
    let installation = checking("checks-refuse");
    let canary = installation.own_canary();
    let shop = installation.make_namespace("shop");
    let words = "denied the request: SettingsInvalid: Policy settings are invalid: labels is empty";

    // A new policy is refused, and neither a dry run nor an apply leaves anything behind.
    let bad = labels(&installation, "checks-refuse-labels", &json!([]));
    for output in [kubectl_dry_run(&installation, &bad), installation.apply(&bad)] {
        assert!(!output.is_ok() && output.stderr.contains(words), "{output:?}");
    }
    assert_eq!(installation.object(&bad), None);
    let (cluster, manifest) = (installation.cluster(), bad.manifest(installation.source()).to_string());
    let output = cluster.kubectl_as(&cluster.kubeconfig(), ["diff", "--filename=-"], &manifest);
    assert!(output.code.is_some_and(|code| code > 1) && output.stderr.contains(words), "{output:?}");

    // An edit is refused, and the previous generation goes on serving.
    let good = labels(&installation, "checks-refuse-labels", &json!(["team"]));
    let output = installation.apply(&good);
    assert!(output.is_ok(), "{output:?}");
    // Rules that the module's metadata does not name are a warning.
    assert!(output.stderr.contains("Warning: RulesDiffer: spec.rules name configmaps"), "{output:?}");
    installation.wait_for(&good, "Ready", "True");
    let output = installation.apply(&bad);
    assert!(!output.is_ok() && output.stderr.contains(words), "{output:?}");
    let object = installation.object(&good).expect("the policy");
    assert_eq!((&object["metadata"]["generation"], &object["status"]["summary"]), (&json!(1), &json!("1/1")));
    let denied = installation.create_config_map(&shop, "plain");
    assert!(!denied.is_ok() && denied.stderr.contains("team"), "{denied:?}");

    // A file that is not a WebAssembly module.
    let garbage = installation.cluster_policy("checks-refuse-garbage").module_of("no module");
    let output = installation.apply(&garbage);
    assert!(!output.is_ok() && output.stderr.contains("ModuleInvalid: "), "{output:?}");
    // A policy that cannot load can be suspended before it is mended.
    let output = installation.apply(&garbage.field("suspend", true));
    let warnings = output.warnings();
    let is_why = |line: &&str| line.starts_with("Warning: it does not load: ModuleInvalid: ");
    assert!(output.is_ok() && warnings.iter().any(is_why), "{output:?}");
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c02_what_may_pass_is_a_warning_and_never_a_refusal() {
    let installation = checking("checks-warn");
    let canary = installation.own_canary();
    // The module has not been pushed yet.
    let absent = installation.cluster_policy("checks-warn-absent").at(&installation.source().url("/absent.wasm"));
    let output = installation.apply(&absent);
    assert!(output.is_ok() && output.stderr.contains("NotFound: "), "{output:?}");
    installation.source().put("/absent.wasm", guest_with("deny_text", b"pushed"));
    installation.wait_for(&absent, "Ready", "True");

    // If the source never answers, the API server still gets its answer in time.
    let source = installation.source();
    source.answer("/slow.wasm", 200, "", Duration::from_secs(60));
    let slow = installation.cluster_policy("checks-warn-slow").at(&source.url("/slow.wasm"));
    let output = installation.apply(&slow);
    assert!(output.is_ok() && output.stderr.contains("not checked: its module is still being fetched"), "{output:?}");
    source.put("/slow.wasm", guest_with("deny_text", b"slow"));
    installation.wait_for(&slow, "Ready", "True");

    // The source is unreachable, and the module was never fetched.
    source.close();
    let away = installation.cluster_policy("checks-warn-away").denying("never fetched").on(&["configmaps"]);
    let output = installation.apply(&away);
    source.open();
    assert!(output.is_ok(), "{output:?}");
    let warnings = output.warnings();
    let is_why = |line: &&str| line.starts_with("Warning: not loaded yet: RegistryUnreachable: ");
    assert!(warnings.iter().any(is_why), "{warnings:?}");
    installation.wait_for(&away, "Ready", "True");
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c03_nobody_is_locked_out_by_a_check() {
    let installation = checking("checks-away");
    installation.without_canary("a part of the only replica is paused, and then API servers have no evaluator to call");
    let [pod] = installation.replicas().try_into().ok().expect("one replica");
    let mistake = labels(&installation, "checks-away-labels", &json!([]));
    type Change = fn(&Pod, Program);
    let faults: [(&str, Change, Change); 2] = [("hangs", Pod::pause, Pod::resume), ("is away", Pod::stop, Pod::start)];
    // The check admits policies if the loader or the evaluator does not answer, and refuses them again as soon as it does.
    for (fault, break_it, mend) in faults {
        for program in [Program::Loader, Program::Evaluator] {
            break_it(&pod, program);
            let (code, message) = dry_run(&installation, &mistake);
            mend(&pod, program);
            assert_eq!(code, 201, "{program} {fault}: {message}");
            installation.assert_recovers(&format!("a refusal again, after {program} {fault},"), || {
                let (code, message) = dry_run(&installation, &mistake);
                (code == 422 && message.contains("SettingsInvalid")).then_some(())
            });
        }
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c04_a_flood_of_applies_delays_no_request() {
    let installation = checking("checks-flood");
    let shop = installation.make_namespace("shop");
    let guard = installation.cluster_policy("checks-flood-guard").denying("not today").on(&["configmaps"]);
    installation.apply_ready(std::slice::from_ref(&guard));
    let [pod] = installation.replicas().try_into().ok().expect("one replica");
    let source = installation.source();
    let path = |number: usize| format!("/slow-{number}.wasm");
    let slow = |number: usize| {
        source.answer(&path(number), 200, "", Duration::from_secs(60));
        installation.cluster_policy(&format!("checks-flood-slow-{number}")).at(&source.url(&path(number)))
    };
    let slow: Vec<Policy> = (0..FLOOD).map(slow).collect();
    let mistake = labels(&installation, "checks-flood-mistake", &json!([]));
    // What loader and reporter publish.
    let shown = || {
        let health = pod.loopback(Program::Loader, "/healthz/policies?verbose").filter(|(code, _)| *code == 200);
        health.map(|(_, health)| (health, json!(installation.reports()).to_string()))
    };
    let (is_over, listener) = (AtomicBool::new(false), installation.listener());
    let judge = || listener.hear(IN_TIME, &is_over, || installation.api().denies_configmap(&shop, "not today"));
    let (denied, applied, refused, pages) = thread::scope(|scope| {
        let flood: Vec<_> = slow.iter().map(|one| scope.spawn(|| one.dry_run(&installation.api(), source))).collect();
        let judge = scope.spawn(judge);
        let (mut refused, mut pages) = (Vec::new(), Vec::new());
        while !flood.iter().all(|one| one.is_finished()) {
            refused.push(kubectl_dry_run_by(&AS_ALICE, &installation, &mistake));
            pages.extend(shown());
        }
        is_over.store(true, Ordering::SeqCst);
        let applied: Vec<Reply> = flood.into_iter().map(|one| one.join().expect("no panic")).collect();
        (judge.join().expect("no panic").in_time(), applied, refused, pages)
    });
    assert!(denied.iter().all(|denied| *denied == Some(true)), "each request is judged meanwhile");
    assert!(denied.len() > 20, "{} requests meanwhile", denied.len());
    // An answer without a warning would be that of an API server that has waited in vain.
    for reply in &applied {
        let is_told = reply.warnings.iter().any(|one| one.contains("not checked: "));
        assert!(reply.code == 201 && is_told, "{reply:?}");
    }
    let fetched = (0..FLOOD).filter(|number| !source.requests(&path(*number)).is_empty()).count();
    assert!(fetched > 1, "{fetched} of the policies were tried");
    // The invalid policy of another user is refused in the middle of the flood, each time.
    for answer in &refused {
        assert!(!answer.is_ok() && answer.stderr.contains("denied the request: SettingsInvalid"), "{answer:?}");
    }
    // The candidates of the checks are no policies for anybody, not even meanwhile.
    assert!(!pages.is_empty(), "nothing was read meanwhile");
    for (health, reports) in pages.into_iter().chain([eventually("a health page", shown)]) {
        assert!(health.contains("cluster/checks-flood-guard"), "{health}");
        for page in [health, reports] {
            assert!(!page.contains("check/") && !page.contains("checks-flood-slow"), "{page}");
        }
    }
}

#[test]
#[ignore = "starts a cluster"]
fn what_was_fetched_and_compiled_for_the_check_is_what_serves() {
    let installation = checking("checks-once");
    let shop = installation.make_namespace("shop");
    let [pod] = installation.replicas().try_into().ok().expect("one replica");
    let policy = installation.cluster_policy("checks-once-guard").denying("fetched once").on(&["configmaps"]);
    let before = compilations(&pod);
    let output = installation.apply(&policy);
    assert!(output.is_ok() && !output.stderr.contains("not checked"), "{output:?}");
    let checked = compilations(&pod);
    assert_eq!(checked, before + 1, "the module was compiled for the check");
    installation.wait_for(&policy, "Ready", "True");
    assert_eq!(installation.api().denies_configmap(&shop, "fetched once"), Some(true));
    assert_eq!(compilations(&pod), checked);
    let source = installation.source();
    let module = policy.manifest(source)["spec"]["module"].as_str().expect("an address").to_owned();
    let path = module.strip_prefix(&source.url("")).expect("an address at the source");
    assert_eq!(source.requests(path).len(), 1, "{path}");
}
