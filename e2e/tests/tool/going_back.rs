//! `portcullis rollback` changes one field, reports the progress, and gives a reason when it refuses.

use std::thread;
use std::time::Duration;

use portcullis_e2e::eventually;
use serde_json::{Value, json};

use crate::scene::Scene;
use crate::{cluster, install, portcullis};

#[test]
#[ignore = "starts a cluster"]
fn a_rollback_sets_one_field_and_waits_until_the_policy_is_ready() {
    let installation = install("back");
    let scene = Scene::new(&installation, "a");
    let user = scene.user("mender", &["get", "patch"]);
    let at = ["-n", scene.namespace.as_str()];
    eventually("the rights to count", || {
        portcullis(&user, &[&["get", "labels"], &at[..]].concat()).is_ok().then_some(())
    });
    let rollback = |words: &[&str]| portcullis(&user, &[&["rollback", "labels"], words, &at[..]].concat());

    let dry = rollback(&["--dry-run"]);
    assert!(dry.expect("a dry run").contains("would serve the content of generation 3 (dry run"), "{}", dry.stdout);
    assert_eq!(scene.object()["metadata"]["generation"], 4);

    let spec = scene.object()["spec"].clone();
    let done = thread::scope(|scope| {
        // Plays the leader, which processes the new generation after a while and finds that it answers.
        scope.spawn(|| {
            eventually("a new generation", || (scene.object()["metadata"]["generation"] == 5).then_some(()));
            thread::sleep(Duration::from_millis(700));
            scene.put_status(5, &scene.well());
        });
        rollback(&["--timeout", "60s"])
    });
    let id = format!("namespaced/{}/labels", scene.namespace);
    assert_eq!(
        done.expect("a rollback"),
        format!(
            "{id} serves the content of generation 3, as generation 5. Active: answers\n\
             Its spec stays as it is, and counts again after `portcullis rollback {id} --undo`."
        )
    );
    assert!(done.stderr.contains("nobody has looked at generation 5 yet"), "{}", done.stderr);
    let object = scene.object();
    let mut wanted = spec;
    wanted["rollbackTo"] = 3.into();
    assert_eq!(object["spec"], wanted);
    let managers: Vec<&Value> = object["metadata"]["managedFields"].as_array().unwrap().iter().collect();
    assert!(managers.iter().any(|entry| entry["manager"] == "portcullis-cli"), "{managers:?}");

    let again = rollback(&["--to", "3"]);
    assert!(again.stderr.contains("serves the content of generation 3 already"), "{}", again.stderr);

    let undone = rollback(&["--undo", "--no-wait", "-o", "json"]).json("the end of the rollback");
    assert_eq!(
        (&undone["generation"], &undone["rollbackTo"], &undone["result"]),
        (&json!(6), &Value::Null, &json!("Changed"))
    );
    assert_eq!(scene.object()["spec"].get("rollbackTo"), None);
}

#[test]
#[ignore = "starts a cluster"]
fn a_rollback_that_cannot_be_is_refused_with_the_reason() {
    let installation = install("refuse");
    let scene = Scene::new(&installation, "a");
    let at = ["-n", scene.namespace.as_str(), "--installation-namespace", installation.namespace()];
    let admin = cluster().kubeconfig();
    let refused = |words: &[&str]| {
        let output = portcullis(&admin, &[&["rollback", "labels"], words, &at[..]].concat());
        assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""));
        output.stderr
    };
    assert!(refused(&["--to", "9"]).contains("is not in its history, which has 4, 3, 2, 1"));
    assert!(refused(&["--to", "4"]).contains("is at generation 4 already"));
    assert!(refused(&["--undo"]).contains("has no spec.rollbackTo: its spec counts already"));
    // The first generation has no revision.
    let gone = refused(&["--to", "1"]);
    assert!(gone.contains("generation 1 of ") && gone.contains("is gone: its revision has been removed"), "{gone}");
    assert_eq!(scene.object()["metadata"]["generation"], 4);

    let user = scene.user("reader", &["get"]);
    eventually("the rights to count", || portcullis(&user, &["get", "labels", at[0], at[1]]).is_ok().then_some(()));
    let forbidden = portcullis(&user, &["rollback", "labels", at[0], at[1]]);
    assert_eq!(forbidden.code, Some(1));
    let right = "this needs the right to patch policies.policies.portcullis.dev \"labels\"";
    assert!(forbidden.stderr.contains(right), "{}", forbidden.stderr);
}

#[test]
#[ignore = "starts a cluster"]
fn a_rollback_that_does_not_get_ready_says_why_and_fails() {
    let installation = install("slow");
    let scene = Scene::new(&installation, "a");
    let admin = cluster().kubeconfig();
    let at = ["-n", scene.namespace.as_str()];
    let late = portcullis(&admin, &[&["rollback", "labels", "--timeout", "1s"], &at[..]].concat());
    assert_eq!(late.code, Some(1));
    assert!(
        late.stdout.contains("and does not yet after 1s: nobody has looked at generation 5 yet"),
        "{}",
        late.stdout
    );

    // Somebody else edits the policy meanwhile.
    let stuck = thread::scope(|scope| {
        scope.spawn(|| {
            eventually("a new generation", || (scene.object()["metadata"]["generation"] == 6).then_some(()));
            scene.edit(&json!({ "mode": "warn" }));
        });
        portcullis(&admin, &[&["rollback", "labels", "--to", "4"], &at[..]].concat())
    });
    assert_eq!(stuck.code, Some(1));
    assert!(
        stuck.stdout.contains("somebody has changed the policy meanwhile; it is at generation 7"),
        "{}",
        stuck.stdout
    );
}
