//! Section 6: settings.

use std::fs;

use portcullis_contract::{Deviation, MANIFEST_MAX_BYTES, Reason};
use portcullis_tests::{
    FLOODED, Folder, LIMIT, Pod, Policy, Reply, Review, Secret, Source, eventually, eventually_within, heavy,
    one_round_in_time,
};
use serde_json::json;

#[test]
fn fault_s01_settings_are_refused() {
    let folder = Folder::with_canary();
    let labels = |labels: serde_json::Value| Policy::cluster("labels").example("required-labels").settings(labels);
    folder.put(&labels(json!({"labels": ["owner"]})));
    folder.put(&Policy::cluster("refuses").guest("bad_settings"));
    folder.put(&Policy::cluster("wasi-refuses").guest("wasi_bad_settings"));
    folder.put(&Policy::cluster("says-nothing").guest("bad_settings_without_message"));
    let answer = json!({"valid": false, "message": "no ".repeat(10_000)}).to_string();
    folder.put(&Policy::cluster("talks").answering("settings_answer", answer));
    let pod = Pod::on(&folder).start();
    pod.wait_current("cluster/labels", 1);

    for id in ["cluster/refuses", "cluster/wasi-refuses"] {
        let failure = pod.assert_unserved(id, Reason::SettingsInvalid);
        assert!(failure.message.contains("the guest refuses these settings"), "{}", failure.message);
    }
    pod.assert_unserved("cluster/says-nothing", Reason::SettingsInvalid);
    let failure = pod.assert_unserved("cluster/talks", Reason::SettingsInvalid);
    // The guest's text is cut to 512 bytes, and the host adds some words.
    assert!(failure.message.len() <= 640, "{} bytes", failure.message.len());
    let status = pod.status("cluster/talks").expect("it has a status");
    let conditions = status["status"]["conditions"].as_array().into_iter().flatten();
    let told = conditions.filter(|condition| condition["reason"] == "SettingsInvalid");
    let told: Vec<_> = told.filter_map(|condition| condition["message"].as_str()).collect();
    assert!(!told.is_empty(), "{status:#}");
    for message in told.into_iter().chain([failure.message.as_str()]) {
        let (_, quoted) = message.split_once("Policy settings are invalid: ").expect("it quotes the policy");
        // The end is that of the quotation: the host adds nothing after it.
        assert!(quoted.starts_with("no no no") && quoted.ends_with('…'), "{quoted}");
        assert!((500..=512).contains(&quoted.len()), "{} bytes of the policy's text: {quoted}", quoted.len());
    }

    let denied = |verdict: &portcullis_tests::Verdict| !verdict.allowed && verdict.message.contains("owner");
    assert!(denied(&pod.ask("cluster/labels", &Review::pod()).verdict()));
    folder.put(&labels(json!({"labels": "owner"})));
    pod.assert_kept("cluster/labels", Reason::SettingsInvalid, 1, denied);
    folder.put(&labels(json!({"labels": ["team"]})));
    pod.assert_recovered("cluster/labels", 3);
    assert!(pod.ask("cluster/labels", &Review::pod()).verdict().allowed);
}

#[test]
fn fault_s02_the_check_of_settings_fails() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let guests = [
        "settings_trap",
        "settings_loop",
        "settings_garbage",
        "settings_wrong_shape",
        "settings_no_reply",
        "wasi_settings_bad_stdout",
        "wasi_settings_loop",
    ];
    let pod = Pod::on(&folder).start();
    pod.wait_current("cluster/updated", 1);
    for guest in guests {
        // Two of them never end; the others get all the time that they may need on a busy machine.
        let seconds = if guest.ends_with("loop") { 2 } else { 20 };
        folder.put(&Policy::cluster(&guest.replace('_', "-")).guest(guest).timeout(seconds));
    }
    for guest in guests {
        pod.assert_unserved(&format!("cluster/{}", guest.replace('_', "-")), Reason::SettingsCheckFailed);
    }
    folder.put(&Policy::cluster("updated").guest("settings_trap"));
    pod.assert_kept("cluster/updated", Reason::SettingsCheckFailed, 1, |verdict| verdict.message == "generation one");
    folder.put(&Policy::cluster("updated").denying("generation three"));
    pod.assert_recovered("cluster/updated", 3);
}

#[test]
fn fault_s04_a_secret_in_refused_settings() {
    let (refused, served) = (Secret::planted_in("refused-settings"), Secret::planted_in("settings"));
    let object = Secret::planted_in("object");
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("quotes").guest("settings_echo").settings(json!({"password": refused.text()})));
    folder.put(&Policy::cluster("serves").guest("always_deny").settings(json!({"password": served.text()})));
    let pod = Pod::on(&folder).start();
    pod.assert_unserved("cluster/quotes", Reason::SettingsInvalid);
    pod.wait_current("cluster/serves", 1);

    let review = Review::pod().with("/object/metadata/annotations/password", object.text());
    for id in ["cluster/quotes", "cluster/serves"] {
        let answer = pod.ask(id, &review);
        for secret in [&refused, &served, &object] {
            // A user who creates a pod may not be allowed to read the policy.
            secret.assert_not_in(&format!("the answer of {id}"), &answer.body);
        }
    }
    // Only the status may quote what the guest says about settings that it refused.
    refused.assert_not_logged(&pod);
    served.assert_nowhere(&pod);
    object.assert_nowhere(&pod);
}

#[test]
fn fault_s05_only_settings_change() {
    let source = Source::https();
    source.answer("/m.wasm", [Reply::ok(portcullis_tests::guest("echo_settings"))]);
    let folder = Folder::with_canary();
    let echo = |text: &str| Policy::cluster("echo").module(&source.url("/m.wasm")).settings(json!({"say": text}));
    folder.put(&echo("one"));
    let pod = Pod::on(&folder).loader("--source-ca", source.ca_file(&folder)).start();
    pod.wait_current("cluster/echo", 1);
    let artifact = pod.volume().artifact("cluster/echo");
    let written =
        |path: &std::path::Path| std::fs::metadata(path).and_then(|file| file.modified()).expect("it is there");
    let (before, at) = (pod.volume().module("cluster/echo").artifact, written(&artifact));

    for (generation, text) in [(2, "two"), (3, "three")] {
        folder.put(&echo(text));
        pod.assert_recovered("cluster/echo", generation);
        let verdict = pod.ask("cluster/echo", &small_review()).verdict();
        assert!(verdict.message.contains(&format!(r#"{{"say":"{text}"}}"#)), "{verdict:?}");
    }
    one_round_in_time(|round| {
        let text = format!("in time {round}");
        folder.put(&echo(&text));
        pod.recovers("the new answer", || {
            pod.ask("cluster/echo", &small_review()).verdict().message.contains(&text).then_some(())
        })
    });
    assert_eq!(source.requests("/m.wasm").len(), 1, "the module was fetched once");
    assert_eq!(pod.volume().module("cluster/echo").artifact, before, "the artifact is the same");
    assert_eq!(written(&artifact), at, "and was not made again");
}

#[test]
fn fault_s06_settings_reach_the_policy_unchanged() {
    let settings = concat!(
        r#"{"zebra":1,"apple":2,"above":9007199254740993,"largest":18446744073709551615,"#,
        r#""smallest":-9223372036854775808,"empty":{},"list":[],"text":"","none":null,"nested":{"b":null,"a":[null]}}"#
    );
    let folder = Folder::with_canary();
    for (file, guest) in [("echo", "echo_settings"), ("check", "settings_echo")] {
        folder.put(&Policy::cluster("module").guest(guest));
        // The JSON is written by hand, so that the test itself does not change the text.
        let manifest = format!(
            r#"{{"apiVersion":"policies.portcullis.dev/v1alpha1","kind":"ClusterPolicy","metadata":{{"name":"{file}"}},
                 "spec":{{"module":"modules/{guest}.wasm","settings":{settings},
                 "rules":[{{"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"],"operations":["*"]}}]}}}}"#
        );
        folder.write(&format!("policies/{file}.json"), manifest);
    }
    // The same settings as YAML.
    let parsed: serde_json::Value = serde_json::from_str(settings).expect("it is JSON");
    folder.put(&Policy::cluster("yaml").guest("echo_settings").settings(parsed));
    let pod = Pod::on(&folder).start();

    for id in ["cluster/echo", "cluster/yaml"] {
        pod.wait_current(id, 1);
        let verdict = pod.ask(id, &small_review()).verdict();
        assert!(verdict.message.contains(settings), "{id}: {}", verdict.message);
    }
    // The check of settings gets the same text: this guest quotes it when it refuses the settings.
    let failure = pod.assert_unserved("cluster/check", Reason::SettingsInvalid);
    assert!(failure.message.contains(settings), "{}", failure.message);
}

/// A request so small that a guest can quote it within the limit of a denial's message.
fn small_review() -> Review {
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    Review::pod()
        .with("/object", json!({}))
        .with("/options", json!(null))
        .with("/requestKind", json!(null))
        .with("/requestResource", json!(null))
        .with("/userInfo", json!({}))
        .with("/kind", kind)
        .with("/resource", resource)
}

/// The settings take thirty megabytes. If they were in the manifest twice or three times, it would be larger than evaluators allow.
#[test]
fn fault_z07_sixty_policies_with_half_a_megabyte_of_settings_each() {
    const POLICIES: usize = 60;
    let _alone = heavy();
    let folder = Folder::with_canary();
    let large = |n: usize, mark: &str| {
        let policy = Policy::namespaced(&format!("team-{}", n % 3), &format!("large-{n}")).guest("always_accept");
        policy.settings(json!({"mark": mark, "text": "x".repeat(500 << 10)}))
    };
    (0..POLICIES).for_each(|n| folder.put(&large(n, "one")));
    let pod = Pod::on(&folder).canary_within(FLOODED, "30 megabytes of settings are read again and again").begin();
    let all_current = |what: &str| {
        eventually_within(2 * LIMIT, what, || {
            pod.evaluator_state().filter(|state| state.current.len() == POLICIES + 1 && state.deviations.is_empty())
        })
    };
    all_current("all policies to serve");
    eventually("what serves to be remembered", || {
        let manifest = pod.volume().manifest();
        manifest.policies.iter().all(|policy| policy.last_good.is_some()).then_some(())
    });
    let size = fs::metadata(pod.volume().manifest_path()).expect("it is there").len();
    assert!(size < MANIFEST_MAX_BYTES * 2 / 3, "{size} bytes");

    // Edits reach the evaluator, also after a restart of the loader, which starts from what the earlier one remembered.
    for (generation, restarts) in [(2, false), (3, true)] {
        if restarts {
            pod.loader().restart_with(None);
        }
        let edited = large(7, &format!("generation {generation}"));
        folder.put(&edited);
        pod.wait_current(&edited.id(), generation);
        let settings = pod.volume().module(&edited.id()).settings;
        assert!(settings.get().contains(&format!("generation {generation}")));
    }
    all_current("all policies to serve still");
}

/// The same thirty megabytes are in one namespace, and the limit on the manifest is sixteen.
#[test]
fn fault_z07_one_namespace_has_more_settings_than_a_manifest_has_room_for() {
    const POLICIES: usize = 60;
    /// The largest manifest on a volume of this size, in bytes.
    const LIMIT_OF_MANIFEST: u64 = 16 << 20;
    let _alone = heavy();
    let folder = Folder::with_canary();
    let large = |n: usize, mark: &str| {
        let policy = Policy::namespaced("a-greedy", &format!("large-{n}")).guest("always_accept");
        policy.settings(json!({"mark": mark, "text": "x".repeat(500 << 10)}))
    };
    let small = |mark: &str| {
        [Policy::cluster("guard"), Policy::namespaced("team-a", "small")]
            .map(|policy| policy.guest("echo_settings").settings(json!({ "say": mark })))
    };
    let one_each = small("one");
    one_each.iter().for_each(|policy| folder.put(policy));
    (0..POLICIES).for_each(|n| folder.put(&large(n, "one")));
    let pod = Pod::on(&folder)
        .loader("--volume-size", 8 * LIMIT_OF_MANIFEST)
        .evaluator("--start-gate", "5s")
        .canary_within(FLOODED, "16 megabytes of settings are read again and again")
        .begin();
    let is_greedy = |id: &str| id.starts_with("namespaced/a-greedy/");
    // The number of policies of the flood that serve, once all others have failed with the reason.
    let settled = || {
        eventually_within(2 * LIMIT, "every policy to serve or to say that there is no room", || {
            let size = fs::metadata(pod.volume().manifest_path()).map_or(0, |file| file.len());
            assert!(size <= LIMIT_OF_MANIFEST, "the manifest has {size} bytes");
            let state = pod.evaluator_state()?;
            let served = state.current.keys().filter(|id| is_greedy(id.as_str())).count();
            let left_out = state.deviations.iter().filter(|deviation| {
                let reason = deviation.failure.as_ref().map(|failure| failure.reason);
                is_greedy(deviation.id.as_str()) && reason == Some(Reason::SettingsTooLarge)
            });
            let left_out = left_out.count();
            (served + left_out == POLICIES && left_out > 0).then_some(served)
        })
    };
    let served = settled();
    assert!(served > 20, "{served} have room");
    let left_out = format!("namespaced/a-greedy/large-{}", {
        let state = pod.evaluator_state().expect("answers");
        (0..POLICIES)
            .find(|n| !state.current.contains_key(format!("namespaced/a-greedy/large-{n}").as_str()))
            .expect("one is left out")
    });
    let failure = pod.assert_unserved(&left_out, Reason::SettingsTooLarge);
    assert!(failure.message.contains("policies of the namespace a-greedy"), "{}", failure.message);

    // Edits of the other policies reach the evaluator, also after a restart of the loader beside the flood.
    for (generation, mark, restarts) in [(2, "two", false), (3, "three", true)] {
        if restarts {
            pod.loader().restart_with(None);
        }
        for policy in small(mark) {
            folder.put(&policy);
            pod.wait_current(&policy.id(), generation);
            let verdict = pod.ask(&policy.id(), &small_review()).verdict();
            assert!(verdict.message.contains(mark), "{verdict:?}");
        }
        assert_eq!(settled(), served, "nobody gains or loses a place");
    }
    // A policy that was left out is in the manifest once its settings are small.
    let (_, number) = left_out.rsplit_once('-').expect("a number");
    let shrunk = Policy::namespaced("a-greedy", &format!("large-{number}")).guest("always_accept");
    folder.put(&shrunk);
    pod.wait_current(&left_out, 2);

    // These have less than an even share, and yet there is no room for all three: fewer policies would help, and not smaller settings.
    let medium = |n: usize| {
        let policy = Policy::namespaced("a-greedy", &format!("medium-{n}")).guest("always_accept");
        policy.settings(json!({"text": "x".repeat(200 << 10)}))
    };
    (0..3).for_each(|n| folder.put(&medium(n)));
    let surplus = eventually("one policy too many", || {
        let deviations = pod.evaluator_state()?.deviations.into_iter();
        let mut medium = deviations.filter(|deviation| deviation.id.as_str().contains("/medium-"));
        let reason = |deviation: &Deviation| deviation.failure.as_ref().map(|failure| failure.reason);
        medium.find(|deviation| reason(deviation) == Some(Reason::TooManyPolicies))
    });
    let failure = pod.assert_unserved(surplus.id.as_str(), Reason::TooManyPolicies);
    assert!(failure.message.contains("delete policies"), "{}", failure.message);
}
