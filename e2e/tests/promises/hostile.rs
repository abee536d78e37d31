//! Hostile tenants, sources, modules and strangers, with a real API server: rows X09, Z08, Z13 and Z17.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_e2e::{Cluster, FLOODED, Installation, InstallationOptions, PodSetup, Program, condition, eventually};
use portcullis_testkit::large_module;
use serde_json::{Value, json};

use crate::audit::{COUNTED, ReportKind, fill, found, reports};
use crate::checks::{await_checks, dry_run, kubectl_dry_run};
use crate::{assert_denied, cluster, installation, installation_with, try_pod};

/// The number of connections that strangers hold at a time. A test build allows 4096.
const HELD: usize = 5000;
/// How long API servers wait for the webhook in this test, in seconds.
const TIMEOUT: u64 = 30;

/// Holds connections with a byte now and then on each, and opens another one for each that is closed. Returns how many were opened.
fn hold(at: SocketAddr, is_done: &AtomicBool) -> usize {
    let (mut held, mut opened): (Vec<TcpStream>, usize) = (Vec::new(), 0);
    while !is_done.load(Ordering::SeqCst) {
        // The first byte of a handshake that never ends.
        held.retain_mut(|stream| match stream.write(&[0x16]) {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        });
        for _ in held.len()..HELD {
            let Ok(stream) = TcpStream::connect_timeout(&at, Duration::from_millis(200)) else { break };
            if stream.set_nonblocking(true).is_ok() {
                held.push(stream);
                opened += 1;
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    opened
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z13_an_api_server_is_answered_while_strangers_hold_thousands_of_connections() {
    Cluster::require_own_network();
    let installation = installation("flooded", 1);
    let shop = installation.make_namespace("shop");
    let policy = installation.cluster_policy("flooded").denying("judged meanwhile");
    installation.apply_ready(&[policy.field("timeoutSeconds", TIMEOUT)]);
    let replica = installation.replicas().remove(0);
    let (at, is_done) = (SocketAddr::from((replica.address(), 8443)), AtomicBool::new(false));
    let (mut times, opened) = thread::scope(|scope| {
        let strangers = scope.spawn(|| hold(at, &is_done));
        let (start, is_over) = (Instant::now(), AtomicBool::new(false));
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // The evaluator itself is busy with the strangers.
            let heard = installation.listener().hear(FLOODED, &is_over, || {
                let call = Instant::now();
                let (code, message) = try_pod(&installation, &shop);
                // In time for the API server, which would not know the policy's words otherwise. Its own part may take longer.
                assert!(code == 403 && message.contains("judged meanwhile"), "{code}: {message}");
                is_over.store(start.elapsed() >= Duration::from_secs(20), Ordering::SeqCst);
                call.elapsed()
            });
            heard.in_time()
        }));
        is_done.store(true, Ordering::SeqCst);
        let opened = strangers.join().unwrap();
        (asked.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), opened)
    });
    times.sort_unstable();
    let (p99, longest) = (times[times.len() * 99 / 100], times[times.len() - 1]);
    eprintln!("{} calls, p99 {p99:?}, longest {longest:?}; {opened} connections of strangers", times.len());
    assert!(opened > HELD, "the strangers opened {opened} connections only");
    assert_eq!(replica.restarts(Program::Evaluator), 0);
}

/// The output of `kubectl describe` for a policy.
fn described(installation: &Installation<'_>, reference: &str, namespace: &str) -> String {
    let told = installation.cluster().kubectl(["describe", "--namespace", namespace, reference]);
    told.expect("a description");
    told.stdout
}

fn reason_of_degraded(object: &Value) -> &str {
    condition(object, "Degraded").and_then(|condition| condition["reason"].as_str()).unwrap_or_default()
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z17_kubectl_describe_tells_of_a_redirect_that_leaves_the_list_of_sources() {
    let installation = installation("redirected", 0);
    installation.without_canary("the loader may fetch no module but that of the row, so a canary could not be loaded");
    let source = installation.source();
    let list = format!("https://{}/allowed/*", source.host());
    installation.add_replica_with(PodSetup::default().flag(Program::Loader, "--allow-source", list));
    source.redirect("/allowed/m.wasm", &source.url("/others/m.wasm"));
    source.put("/others/m.wasm", large_module("from elsewhere", 100));
    let policy = installation.cluster_policy("redirected").at(&source.url("/allowed/m.wasm"));
    installation.apply(&policy).expect("the policy");
    let refused = |object: &Value| reason_of_degraded(object) == "SourceNotAllowed";
    installation.wait_for_object(&policy, "a refusal of the redirect", refused);
    let told = described(&installation, &policy.reference(), "default");
    for words in ["SourceNotAllowed", &format!("a redirect leads to {}", source.host())] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(source.requests("/others/m.wasm").is_empty(), "it went where the list does not lead");
}

/// A text with an escape code of terminals, a line break and a forged log line, a bell, a right-to-left override, and markup.
const UNCLEAN: &str = "no\u{1b}[31m\r\n{\"level\":\"ERROR\",\"message\":\"forged\"}\u{7}\u{202e}<b>";

/// Asserts that a text for users has no control characters, no right-to-left override, and no line that looks like a log line.
fn assert_clean(what: &str, text: &str) {
    let is_unclean = |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}';
    assert!(!text.contains(is_unclean), "{what}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with('{')), "{what} has a line of another: {text:?}");
}

/// Asserts the same for all texts in an object.
fn assert_all_clean(what: &str, object: &Value) {
    match object {
        Value::String(text) => assert_clean(what, text),
        Value::Array(items) => items.iter().for_each(|item| assert_all_clean(what, item)),
        Value::Object(fields) => fields.values().for_each(|field| assert_all_clean(what, field)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_x09_what_modules_and_settings_say_is_clean_in_answers_status_events_and_logs() {
    let installation = installation_with("unclean", 1, "warn");
    let canary = installation.own_canary();
    let shop = installation.make_namespace("shop");
    let says = |accepted: bool| json!({ "accepted": accepted, "message": UNCLEAN, "warnings": [UNCLEAN] }).to_string();
    let denying = installation.cluster_policy("unclean-denies").answering("answer", says(false));
    let warning = installation.cluster_policy("unclean-warns").on(&["configmaps"]).answering("answer", says(true));
    installation.apply_ready(&[denying.clone(), warning]);
    let denied = installation.create_pod(&shop, "one", &json!({}));
    assert_denied(&denied, "policy cluster/unclean-denies: no");
    assert_clean("what kubectl prints of a denial", &denied.stderr);
    assert!(denied.stderr.contains("<b>"), "markup is text like any other: {denied:?}");
    let (_, message) = try_pod(&installation, &shop);
    assert_clean("the message of the API server", &message);
    let warned = installation.create_config_map(&shop, "one");
    assert!(warned.is_ok() && warned.stderr.contains("Warning: "), "{warned:?}");
    assert_clean("what kubectl prints of a warning", &warned.stderr);

    // One module refuses its settings with a message of its own, and another repeats the settings in its message.
    let refusal = json!({ "valid": false, "message": UNCLEAN }).to_string();
    let refusing = installation.cluster_policy("unclean-refuses").answering("settings_answer", refusal);
    let repeating = installation.cluster_policy("unclean-repeats").guest("settings_echo");
    let repeating = repeating.field("settings", json!({ "text": UNCLEAN }));
    for policy in [&refusing, &repeating] {
        let told = eventually("a warning from the check of the policy", || {
            let tried = kubectl_dry_run(&installation, policy);
            tried.stderr.contains("SettingsInvalid").then_some(tried.stderr)
        });
        assert_clean("what kubectl prints of a check", &told);
        installation.apply(policy).expect("the policy");
    }
    for policy in [&denying, &refusing, &repeating] {
        let what = "a status that says what is wrong, or that nothing is";
        let object = installation.wait_for_object(policy, what, |object| {
            policy.name() == denying.name() || reason_of_degraded(object) == "SettingsInvalid"
        });
        assert_all_clean(&format!("the status of {}", policy.name()), &object["status"]);
    }
    let object = installation.object(&refusing).unwrap();
    assert!(object["status"].to_string().contains("[31m"), "the words themselves are shown: {:#}", object["status"]);
    // The other policy is not described, because kubectl shows its settings as they were written.
    assert_clean("the description", &described(&installation, &refusing.reference(), "default"));

    for policy in [&refusing, &repeating] {
        let event = eventually("an event of the policy", || installation.events(policy, "SettingsInvalid").pop());
        assert_all_clean("an event", &event["note"]);
    }
    let replica = installation.replicas().remove(0);
    for program in [Program::Loader, Program::Evaluator, Program::Reporter] {
        for line in replica.program(program).lines().iter().filter(|line| !line.starts_with("--- ")) {
            // A line that is not JSON must be clean as it is.
            let read = serde_json::from_str(line).unwrap_or_else(|_| json!({ "line": line }));
            assert_ne!(read["message"], "forged", "{program}");
            assert_all_clean(&format!("the log of {program}"), &read);
        }
    }
    canary.end();
}

/// Asserts that a text for users has the words of [`UNCLEAN`], cleaned, with the markup as text.
fn assert_told(what: &str, text: &str) {
    assert!(text.contains("no [31m") && text.contains("<b>"), "{what}: {text:?}");
    assert_clean(what, text);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_x09_refusals_of_policies_and_reports_on_objects_are_clean() {
    const NAME: &str = "unclean-audit";
    cluster().install_open_reports();
    let options = InstallationOptions::named(NAME).checking_policies("deny").auditing("openreports");
    let installation = Installation::start(cluster(), options).with(1);
    let canary = installation.own_canary();
    await_checks(&installation, NAME);

    let refusal = json!({ "valid": false, "message": UNCLEAN }).to_string();
    let refusing = installation.cluster_policy("unclean-audit-refused").answering("settings_answer", refusal);
    for output in [kubectl_dry_run(&installation, &refusing), installation.apply(&refusing)] {
        assert!(!output.is_ok() && output.stderr.contains("denied the request: SettingsInvalid: "), "{output:?}");
        assert_told("what kubectl prints of a refusal", &output.stderr);
    }
    let (code, message) = dry_run(&installation, &refusing);
    assert_eq!(code, 422, "{message}");
    assert_told("the message of a refusal", &message);
    assert_eq!(installation.object(&refusing), None);

    // The object is older than the policy that rejects it.
    let shop = installation.make_namespace("shop");
    fill(&installation, &shop, 1, |_| true);
    let says = json!({ "accepted": false, "message": UNCLEAN }).to_string();
    let denying = installation.cluster_policy("unclean-audit-denies").on(&["configmaps"]).answering("answer", says);
    let denying = denying.field("objectSelector", json!({ "matchLabels": { COUNTED: "yes" } }));
    installation.apply_ready(std::slice::from_ref(&denying));
    found(&installation, &denying, "a violation", |audit| audit["violations"] == 1);
    let written = eventually("a report", || {
        let written = reports(&installation, ReportKind::Report, std::slice::from_ref(&shop));
        (!written.is_empty()).then_some(written)
    });
    for (_, report) in &written {
        assert_told("a report", report["results"][0]["message"].as_str().unwrap_or_default());
        assert_all_clean("a report", report);
    }
    let described = installation.cluster().kubectl(["describe", "--namespace", &shop, "reports.openreports.io"]);
    assert_told("the description of a report", described.expect("a description"));
    assert_all_clean("the status", &installation.object(&denying).expect("the policy")["status"]);
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z08_a_namespace_above_its_share_of_the_volume_is_told_and_others_serve() {
    const MODULES: usize = 12;
    let installation = installation("crowded", 0);
    installation.add_replica_with(PodSetup::default().flag(Program::Loader, "--volume-size", "32MiB"));
    installation.wait_ready();
    let canary = installation.own_canary_within(FLOODED, "a debug build compiles twelve modules of 2 MB meanwhile");
    let (greedy, modest) = (installation.make_namespace("greedy"), installation.make_namespace("modest"));
    let large = |namespace: &str, name: &str| {
        let module = large_module(&format!("{name:>20}"), 2 << 20);
        installation.policy(namespace, name).module_of(module)
    };
    let flood: Vec<_> = (0..MODULES).map(|number| large(&greedy, &format!("large-{number}"))).collect();
    for policy in &flood {
        installation.apply(policy).expect("a policy of the flood");
    }
    let settled = |object: &Value| {
        condition(object, "Ready").is_some_and(|ready| ready["status"] == "True")
            || reason_of_degraded(object) == "VolumeFull"
    };
    let flood = flood.iter().map(|policy| (policy, installation.wait_for_object(policy, "room or none", settled)));
    let full: Vec<_> = flood.filter(|(_, object)| reason_of_degraded(object) == "VolumeFull").collect();
    assert!((1..MODULES).contains(&full.len()), "{} of {MODULES} have no room", full.len());
    let told = described(&installation, &full[0].0.reference(), &greedy);
    assert!(told.contains("VolumeFull") && told.contains(&format!("namespace {greedy}")), "{told}");

    let other = large(&modest, "another");
    installation.apply_ready(std::slice::from_ref(&other));
    let (code, message) = try_pod(&installation, &modest);
    assert!(code == 403 && message.contains("another"), "{code}: {message}");
    canary.end();
}
