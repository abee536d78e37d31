//! A user who may only read a policy sees what is wrong with it.

use portcullis_e2e::eventually;
use serde_json::{Value, json};

use crate::scene::Scene;
use crate::{cluster, install, portcullis};

#[test]
#[ignore = "starts a cluster"]
fn whoever_may_get_a_policy_sees_why_and_since_when() {
    let installation = install("look");
    let scene = Scene::new(&installation, "a");
    let user = scene.user("reader", &["get"]);
    let at = ["-n", scene.namespace.as_str()];
    let tool = |arguments: &[&str]| portcullis(&user, &[arguments, &at].concat());

    let table = eventually("the rights to count", || Some(tool(&["get", "labels"])).filter(|output| output.is_ok()));
    assert_eq!(table.stderr, "");
    assert!(table.stdout.contains("0/1     ServingPrevious   protect"), "{}", table.stdout);
    let id = format!("namespaced/{}/labels", scene.namespace);
    assert_eq!(tool(&["get", "policy/labels", "-o", "name"]).stdout, format!("{id}\n"));
    assert_eq!(tool(&["get", "labels", "-o", "json"]).json("the object")["status"]["summary"], "0/1");

    let text = tool(&["describe", "labels"]).expect("the description").to_owned();
    for part in [
        "Ready:                0/1 ServingPrevious",
        "SettingsInvalid: the label \"Team Name\" is not allowed",
        "policy-server-1   Previous   3            SettingsInvalid   2026-01-01T00:00:00Z (",
        "needs a change",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let events =
        format!("Events:  <not shown: they need the right to list events in the namespace {}>", scene.namespace);
    assert!(text.ends_with(&events), "{text}");

    let history = tool(&["history", "labels", "-o", "json"]).json("the history");
    let served: Vec<&Value> = history["history"].as_array().unwrap().iter().map(|entry| &entry["served"]).collect();
    assert_eq!(served, [false, true, false, true]);
    assert_eq!(tool(&["history", "labels", "-o", "name"]).stdout, "4\n3\n2\n1\n");
}

#[test]
#[ignore = "starts a cluster"]
fn what_may_not_be_listed_is_left_out_and_told() {
    let installation = install("few");
    let scene = Scene::new(&installation, "a");
    let user = scene.user("lister", &["get", "list"]);
    let namespace = scene.namespace.as_str();
    let id = format!("namespaced/{namespace}/labels");
    let own = eventually("the rights to count", || {
        Some(portcullis(&user, &["get", "-n", namespace, "-o", "name"])).filter(|output| output.is_ok())
    });
    assert_eq!((own.stdout, own.stderr), (format!("{id}\n"), String::new()));

    let all = portcullis(&user, &["get", "-A"]);
    assert_eq!(all.code, Some(1));
    assert!(all.stderr.contains("this needs the right to list policies.policies.portcullis.dev"), "{}", all.stderr);

    let missing = portcullis(&user, &["describe", "nosuch", "-n", namespace]);
    assert_eq!(missing.code, Some(1));
    assert!(
        missing.stderr.starts_with("error: no policy \"nosuch\" in the cluster; there is no "),
        "{}",
        missing.stderr
    );

    // An administrator sees policies of both kinds, and has to say which one is meant.
    let admin = cluster().kubeconfig();
    let twin = installation.cluster_policy("labels").at("registry://example.com/other:v1");
    installation.apply(&twin).expect("a policy of the other kind");
    let context = json!({ "metadata": { "name": "labels", "namespace": "default" } });
    let third = installation.policy("default", "labels").at("registry://example.com/other:v1").with(&context);
    installation.apply(&third).expect("one more");
    let names = portcullis(&admin, &["get", "-A", "-o", "name"]);
    let names = names.expect("all of them");
    assert!(names.contains("cluster/labels\n") && names.contains(&id), "{names}");
    let unclear = portcullis(&admin, &["get", "labels"]);
    assert_eq!(
        unclear.stderr,
        "error: \"labels\" is the name of several policies: cluster/labels, namespaced/default/labels; name one in full\n"
    );
    let fresh = portcullis(&admin, &["describe", "clusterpolicy/labels"]);
    assert!(
        fresh.expect("a policy without status").contains("nobody has looked at the policy yet"),
        "{}",
        fresh.stdout
    );
    for policy in [&twin, &third] {
        installation.api().delete(&policy.path(), None).unwrap();
    }
}

#[test]
#[ignore = "starts a cluster"]
fn events_are_shown_to_who_may_read_them() {
    let installation = install("events");
    let scene = Scene::new(&installation, "a");
    let object = scene.object();
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "type": "Warning", "reason": "SettingsInvalid", "action": "Load",
        "note": "0 of 1 replicas serve generation 4", "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "policies.portcullis.dev/reporter", "reportingInstance": "policy-server-1",
        "metadata": { "name": "labels.1", "namespace": scene.namespace },
        "regarding": { "apiVersion": object["apiVersion"], "kind": "Policy", "name": "labels",
                       "namespace": scene.namespace, "uid": object["metadata"]["uid"] },
    });
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", scene.namespace);
    installation.api().create(&path, &event).unwrap().expect("an event");
    let text = portcullis(&cluster().kubeconfig(), &["describe", "labels", "-n", &scene.namespace]);
    let text = text.expect("the description").to_owned();
    let line = text.lines().last().unwrap_or_default();
    assert!(line.trim_start().starts_with("Warning   SettingsInvalid   "), "{text}");
    assert!(line.ends_with("policies.portcullis.dev/reporter   0 of 1 replicas serve generation 4"), "{text}");
}

#[test]
#[ignore = "starts a cluster"]
fn diff_shows_what_changed_or_which_right_is_missing() {
    let installation = install("diff");
    let scene = Scene::new(&installation, "a");
    let at = ["-n", scene.namespace.as_str(), "--installation-namespace", installation.namespace()];
    let diff = |kubeconfig: &std::path::Path, words: &[&str]| {
        portcullis(kubeconfig, &[&["diff", "labels"], words, &at].concat())
    };
    let admin = cluster().kubeconfig();
    let text = diff(&admin, &[]);
    assert!(
        text.expect("a difference")
            .contains("-module: registry://example.com/labels:v3\n+module: registry://example.com/labels:v4\n"),
        "{}",
        text.stdout
    );
    let same = diff(&admin, &["4", "4"]);
    assert_eq!((same.code, same.stdout.as_str(), same.stderr.as_str()), (Some(0), "", "There is no difference.\n"));
    let gone = diff(&admin, &["1", "4"]);
    assert!(gone.stderr.contains("generation 1 of ") && gone.stderr.contains("has no revision in"), "{}", gone.stderr);

    let user = scene.user("reader", &["get"]);
    eventually("the rights to count", || portcullis(&user, &["get", "labels", at[0], at[1]]).is_ok().then_some(()));
    let refused = diff(&user, &["3", "4"]);
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("the content of generations is kept in revisions in the namespace \"diff\"")
            && refused.stderr.contains("this needs the right to get controllerrevisions.apps"),
        "{}",
        refused.stderr
    );
}
