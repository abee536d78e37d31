//! A rollback with the real programs changes the answers to requests.

use portcullis_e2e::{Installation, InstallationOptions, eventually};
use serde_json::json;

use crate::{cluster, portcullis};

#[test]
#[ignore = "starts a cluster"]
fn rollback_shows_the_old_answer_again() {
    let installation = Installation::start(cluster(), InstallationOptions::named("whole")).with(1);
    let namespace = installation.make_namespace("shop");
    let admin = cluster().kubeconfig();
    let policy = |text: &str| installation.policy(&namespace, "greet").denying(text);
    let mut count = 0;
    let mut answers = |text: &str| {
        eventually(&format!("the answer {text:?}"), || {
            count += 1;
            let refused = installation.create_pod(&namespace, &format!("pod-{count}"), &json!({}));
            refused.stderr.contains(text).then_some(())
        });
    };
    installation.apply_ready(&[policy("the first answer")]);
    answers("the first answer");
    installation.apply_ready(&[policy("the second answer")]);
    answers("the second answer");

    let words = ["-n", namespace.as_str(), "--installation-namespace", installation.namespace()];
    let tool = |command: &[&str]| portcullis(&admin, &[command, &words[..]].concat());
    let history = portcullis(&admin, &["history", "greet", "-n", &namespace]);
    let lines: Vec<&str> = history.expect("the history").lines().collect();
    assert!(lines.len() == 3 && lines[1].starts_with("2            yes"), "{}", history.stdout);

    let back = tool(&["rollback", "greet"]);
    assert!(
        back.expect("a rollback").contains("serves the content of generation 1, as generation 3"),
        "{}",
        back.stdout
    );
    answers("the first answer");
    let diff = tool(&["diff", "greet", "2", "3"]);
    assert!(
        diff.expect("a difference").contains("\n-module: ") && diff.stdout.contains("\n+module: "),
        "{}",
        diff.stdout
    );

    tool(&["rollback", "greet", "--undo"]).expect("the end of the rollback");
    answers("the second answer");
}
