//! `portcullis test`: policies are asked by the real programs, and their answers compared with what tests expect.

use portcullis_tests::{Folder, Policy};
use serde_json::{Value, json};

use crate::tool::{examples, run, written};

/// Runs the tests of a folder, and returns the exit status and what was printed, without the folder's path.
fn tested(folder: &Folder, more: &[&str]) -> (Option<i32>, String) {
    let path = folder.path("").display().to_string();
    let output = run([&["test", &path], more].concat());
    (output.status.code(), written(&output).replace(&path, ""))
}

/// The path of a request of the examples.
fn request(name: &str) -> String {
    examples().join(format!("requests/{name}.json")).display().to_string()
}

/// The example's policy, which is asked about new pods only.
fn policy(name: &str, labels: &Value) -> Policy {
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]);
    Policy::cluster(name).example("required-labels").settings(json!({"labels": labels})).spec("rules", rules)
}

fn test(policy: &str, cases: &Value) -> String {
    json!({
        "apiVersion": "test.portcullis.dev/v1alpha1", "kind": "PolicyTest", "metadata": {"name": "labels"},
        "policy": format!("policies/{policy}.yaml"), "cases": cases,
    })
    .to_string()
}

#[test]
fn promise_the_tests_of_the_examples_pass() {
    let output = run(["test", &examples().join("tests").display().to_string()]);
    assert_eq!(output.status.code(), Some(0), "{}", written(&output));
    let text = written(&output);
    for words in ["no-privileged: a privileged container: ok", "10 passed, 0 failed, 0 not evaluated"] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

#[test]
fn promise_a_test_fails_where_the_answer_is_another_one() {
    let folder = Folder::empty();
    folder.put(&policy("labels", &json!(["team"])));
    folder.put(&policy("off", &json!(["absent"])).mode("monitor"));
    let pod = request("pod-ok");
    let cases = json!([
        {"name": "as it is", "request": pod, "expect": {"allowed": true, "mutated": false}},
        {"name": "denied?", "request": pod, "expect": {"allowed": false}},
        {"name": "its words", "request": request("pod-without-labels"), "expect": {"allowed": false, "message": "owner"}},
        {"name": "a deletion", "request": request("pod-delete"), "expect": {"allowed": true}},
        {"name": "a deletion is left out", "request": request("pod-delete"), "expect": {"matched": false}},
    ]);
    folder.write("labels-test.yaml", test("cluster-labels", &cases));
    let strict =
        json!([{"name": "judged as in protect", "request": pod, "expect": {"allowed": false, "message": "absent"}}]);
    folder.write("monitor-test.json", test("cluster-off", &strict));
    let (status, text) = tested(&folder, &[]);
    assert_eq!(status, Some(1), "{text}");
    for words in [
        "labels: as it is: ok",
        "labels: denied?: FAILED\n  allowed: want false, got true",
        "labels: its words: FAILED\n  message: want one with \"owner\", got \"missing labels: team\"",
        "labels: a deletion: FAILED\n  an API server would not ask the policy: no rule matches DELETE of v1/pods",
        "labels: a deletion is left out: ok",
        "labels: judged as in protect: ok",
        "3 passed, 3 failed, 0 not evaluated",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let (status, text) = tested(&folder, &["--run", "left out", "-o", "json"]);
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!((status, report["cases"].as_array().map(Vec::len), &report["passed"]), (Some(0), Some(1), &json!(1)));
    let (_, text) = tested(&folder, &["-o", "junit"]);
    assert!(text.contains("tests=\"6\" failures=\"3\" errors=\"0\""), "{text}");
}

#[test]
fn promise_a_file_that_cannot_be_read_is_no_test_that_passed() {
    let folder = Folder::empty();
    folder.put(&policy("labels", &json!(["team"])));
    let cases = json!([{"name": "as it is", "request": request("pod-ok"), "expect": {"allowed": true}}]);
    folder.write("labels-test.yaml", test("cluster-labels", &cases));
    // Its bytes cannot be read, whatever rights the user has.
    std::os::unix::fs::symlink("/proc/self/mem", folder.path("odd.yaml")).expect("links");
    let (status, text) = tested(&folder, &[]);
    assert_eq!(status, Some(2), "{text}");
    for words in [
        "labels: as it is: ok",
        "odd.yaml:1: the file: NOT EVALUATED\n  failed to read ",
        "1 passed, 0 failed, 1 not evaluated",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

#[test]
fn promise_tests_with_several_settings_of_a_policy_overwrite_no_recording() {
    let tests = examples().join("tests/required-labels.yaml").display().to_string();
    let folder = Folder::empty();
    let file = folder.path("recording.yaml").display().to_string();
    let output = run(["test", &tests, "--record-host-capabilities-interactions", &file]);
    assert_eq!(output.status.code(), Some(64), "{}", written(&output));
    assert!(written(&output).contains("choose some by --run"), "{}", written(&output));
    let output = run(["test", &tests, "--record-host-capabilities-interactions", &file, "--run", "other labels"]);
    assert_eq!(output.status.code(), Some(0), "{}", written(&output));
}

#[test]
fn promise_a_policy_that_does_not_load_passes_no_test() {
    let folder = Folder::empty();
    folder.put(&policy("labels", &json!([])));
    let cases = json!([
        {"name": "a pod", "request": request("pod-ok"), "expect": {"allowed": false}},
        {"name": "a deletion", "request": request("pod-delete"), "expect": {"matched": false}},
    ]);
    folder.write("labels-test.yaml", test("cluster-labels", &cases));
    let (status, text) = tested(&folder, &[]);
    assert_eq!(status, Some(2), "{text}");
    for words in ["a pod: NOT EVALUATED\n  the policy does not load: SettingsInvalid: ", "a deletion: ok"] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    folder.write("labels-test.yaml", test("cluster-labels", &json!([{"name": "a pod", "expect": {"allowed": true}}])));
    let (status, text) = tested(&folder, &[]);
    assert_eq!(status, Some(2), "{text}");
    let why = "labels-test.yaml:1: labels: the test: NOT EVALUATED\n  cases[0] (a pod): want either request, a file, or object";
    assert!(text.contains(why), "{text}");
}

#[test]
fn promise_a_wrong_test_does_not_hide_the_results_of_the_others() {
    let folder = Folder::empty();
    folder.put(&policy("labels", &json!(["team"])));
    let cases = json!([{"name": "as it is", "request": request("pod-ok"), "expect": {"allowed": true}}]);
    folder.write("a-test.yaml", test("cluster-absent", &cases));
    folder.write("b-test.yaml", test("cluster-labels", &cases));
    let (status, text) = tested(&folder, &[]);
    assert_eq!(status, Some(2), "{text}");
    for words in [
        "b-test.yaml:1: labels: as it is: ok",
        "a-test.yaml:1: labels: the test: NOT EVALUATED\n  policy: failed to open ",
        "1 passed, 0 failed, 1 not evaluated",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let (status, text) = tested(&folder, &["-o", "junit"]);
    assert!(status == Some(2) && text.contains("tests=\"2\" failures=\"0\" errors=\"1\""), "{text}");
}
