//! Namespaces that exceed their limits of policies, webhooks or bytes.

use std::ops::RangeInclusive;

use portcullis_e2e::{Policy, Program, Right, Usage, condition, eventually, note};
use serde_json::{Value, json};

use crate::scene::{Scene, quick};

/// The status, reason and message of a condition.
fn said<'o>(object: &'o Value, kind: &str) -> Option<(&'o str, &'o str, &'o str)> {
    let condition = condition(object, kind)?;
    Some((condition["status"].as_str()?, condition["reason"].as_str()?, condition["message"].as_str()?))
}

#[test]
#[ignore = "starts a cluster"]
fn a_policy_beyond_the_limit_of_its_namespace_says_so_and_is_taken_once_there_is_room() {
    let scene = Scene::with("quota", 1, quick().flag(Program::Controller, "--policies-per-namespace", "1"));
    let installation = &scene.installation;
    let policy = |name: &str| installation.policy(&scene.namespace, name);
    let (first, second) = (policy("first"), policy("second"));
    installation.apply_ready(std::slice::from_ref(&first));
    installation.apply(&second).expect("the policy");
    let object = installation.wait_for_object(&second, "QuotaExceeded in Accepted and Stalled", |object| {
        let says = |kind, status| said(object, kind).is_some_and(|one| (one.0, one.1) == (status, "QuotaExceeded"));
        says("Accepted", "False") && says("Stalled", "True")
    });
    let (_, _, words) = said(&object, "Accepted").expect("it is there");
    let begin = format!("namespace {} has 1 accepted policies of at most 1; delete one", scene.namespace);
    assert!(words.starts_with(&begin) && words.contains("controller.policiesPerNamespace"), "{words}");
    let is_of_second =
        |revision: &Value| revision["metadata"]["labels"]["policies.portcullis.dev/policy-name"] == "second";
    assert!(!installation.revisions().iter().any(is_of_second), "nothing is made of it");

    // An accepted policy can be edited, and ClusterPolicies do not count.
    installation.apply_ready(&[first.field("mode", "warn"), installation.cluster_policy("quota-everywhere")]);
    let object = installation.object(&second).expect("it is there");
    assert_eq!(said(&object, "Accepted").map(|one| one.1), Some("QuotaExceeded"));

    scene.delete(&policy("first"));
    let object = installation.wait_for(&second, "Ready", "True");
    assert_eq!(said(&object, "Accepted").map(|one| (one.0, one.1)), Some(("True", "Accepted")));
}

fn is_refused(object: &Value) -> bool {
    let is_newest = |one: &Value| one["observedGeneration"] == object["metadata"]["generation"];
    said(object, "Accepted").is_some_and(|one| (one.0, one.1) == ("False", "QuotaExceeded"))
        && condition(object, "Accepted").is_some_and(is_newest)
}

fn serves_previous(object: &Value) -> bool {
    said(object, "Enforced").is_some_and(|one| (one.0, one.1) == ("True", "ServingPrevious"))
}

/// The number of match conditions of a policy: as many as it may have.
const CONDITIONS: usize = 60;

/// The policy with match conditions that depend on `name`, and so with a match part of its own.
fn of_its_own(policy: Policy, name: &str) -> Policy {
    let condition = |number| {
        let expression = format!("object.metadata.name != '{name}-{number}'");
        json!({"name": format!("own-{number}"), "expression": expression})
    };
    policy.field("matchConditions", (0..CONDITIONS).map(condition).collect::<Value>())
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z11_a_tenant_makes_many_match_parts() {
    const LIMIT: usize = 3;
    let limit = LIMIT.to_string();
    let scene = Scene::with("parts", 1, quick().flag(Program::Controller, "--webhooks-per-namespace", &limit));
    let installation = &scene.installation;
    // Calls from another namespace do not take longer meanwhile.
    let canary = installation.own_canary();
    let policy = |name: &str, part: &str| of_its_own(installation.policy(&scene.namespace, name), part);
    let names: Vec<_> = (0..25).map(|n| format!("part-{n:02}")).collect();
    for name in &names {
        installation.apply(&policy(name, name)).expect("the policy");
    }
    // Policies that do not count towards the tenant's limit become ready meanwhile.
    installation.apply_ready(&[of_its_own(installation.cluster_policy("parts-elsewhere"), "any")]);
    let is_ready = |object: &Value| said(object, "Ready").is_some_and(|one| one.0 == "True");
    let (taken, refused): (Vec<_>, Vec<_>) = names.iter().partition(|name| {
        let is_decided = |object: &Value| is_refused(object) || is_ready(object);
        let what = "a webhook, or QuotaExceeded in Accepted";
        is_ready(&installation.wait_for_object(&policy(name, name), what, is_decided))
    });
    assert_eq!((taken.len(), refused.len()), (LIMIT, names.len() - LIMIT));
    let object = installation.object(&policy(refused[0], refused[0])).expect("it is there");
    let (_, _, words) = said(&object, "Accepted").expect("it is there");
    let begin = format!("namespace {} has 3 webhook configurations of at most 3; give", scene.namespace);
    assert!(words.starts_with(&begin) && words.contains("controller.webhooksPerNamespace"), "{words}");
    assert_eq!(installation.webhooks().len(), LIMIT + 1, "the tenant's, and that of the ClusterPolicy");

    // A policy that moves to another match part of its own keeps its place; a policy that shares a webhook needs none.
    installation.apply_ready(&[policy(taken[0], "moved"), policy(refused[0], taken[1])]);
    scene.webhooks(LIMIT + 1);
    // A policy that would leave a shared webhook for an additional one goes on as it was, and says why.
    let denying = policy(refused[0], taken[1]).denying("as before");
    installation.apply_ready(std::slice::from_ref(&denying));
    installation.apply(&of_its_own(denying.clone(), "one-more")).expect("the policy");
    installation
        .wait_for_object(&denying, "QuotaExceeded of the edit", |object| is_refused(object) && serves_previous(object));
    let denied = scene.create("a-pod").expect_err("the older generation denies");
    assert!(denied.contains("as before"), "{denied}");
    assert_eq!(installation.webhooks().len(), LIMIT + 1);
    canary.end();
}

/// The policy with a match part that takes half a megabyte of memory, five times its text: most of it are lists of short texts.
fn of_large_part(policy: Policy, name: &str) -> Policy {
    let texts = |of: &str, count: usize| (0..count).map(|number| format!("{of}-{number}")).collect::<Value>();
    let rule = |number: usize| {
        let [groups, resources] = ["group", "resource"].map(|of| texts(&format!("{of}-{number}"), 32));
        json!({"apiGroups": groups, "apiVersions": texts("v1", 16), "resources": resources, "operations": ["CREATE"]})
    };
    let expression =
        |number: usize| json!({"key": format!("key-{number}"), "operator": "NotIn", "values": texts("value", 64)});
    let condition = |number: usize| {
        let expression = format!("object.metadata.name != '{name}-{number}-{}'", "x".repeat(1000));
        json!({"name": format!("own-{number}"), "expression": expression})
    };
    policy
        .field("rules", (0..32).map(rule).collect::<Value>())
        .field("objectSelector", json!({"matchExpressions": (0..32).map(expression).collect::<Value>()}))
        .field("matchConditions", (0..CONDITIONS).map(condition).collect::<Value>())
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z11_a_tenant_makes_large_match_parts() {
    const WEBHOOKS: usize = 3;
    /// How many policies have a match part of their own. All of them take more than twice the room that there is.
    const OWN: usize = 85;
    /// How many of them fit.
    const FIT: RangeInclusive<usize> = 25..=40;
    /// How many policies have the match part of the first one. Each needs room too.
    const SHARED: usize = 5;
    /// What the match parts of a namespace may take in memory, in bytes.
    const ROOM: u64 = 16 << 20;
    /// By how much more the controller may grow: it decodes objects whole, and its allocator keeps some of that. The match parts for which there
    /// is no room would take more.
    const SLACK: u64 = 24 << 20;
    let limit = WEBHOOKS.to_string();
    let scene = Scene::with("large-parts", 1, quick().flag(Program::Controller, "--webhooks-per-namespace", &limit));
    let installation = &scene.installation;
    let canary = installation.own_canary();
    let collection = format!("/apis/policies.portcullis.dev/v1alpha1/namespaces/{}/policies", scene.namespace);
    let make = |name: &str, part: &str| {
        let policy = of_large_part(installation.policy(&scene.namespace, name), part);
        let policy = policy.with(&json!({"metadata": {"labels": {"made-for": part}}}));
        // kubectl would put all of it into an annotation as well.
        let made = installation.api().create(&collection, &policy.manifest(installation.source()));
        made.expect("an answer").expect("the policy");
        policy
    };
    let make_own = |number: usize| make(&format!("own-{number:02}"), &format!("own-{number:02}"));
    // The first policies take the namespace's webhooks.
    let taken: Vec<_> = (0..WEBHOOKS).map(make_own).collect();
    taken.iter().for_each(|policy| drop(installation.wait_for(policy, "Ready", "True")));
    let pid = || scene.controller.program(Program::Controller).pid().expect("it runs");
    let (started, before) = (pid(), Usage::of(pid()).anonymous);
    let others: Vec<_> = (WEBHOOKS..OWN).map(make_own).collect();
    let sharing: Vec<_> = (0..SHARED).map(|number| make(&format!("sharing-{number}"), taken[0].name())).collect();

    // The match parts of those that come next are kept, and there is no room for the others.
    let without_room = format!(
        "rules, selectors and matchConditions of the policies of namespace {} take more than 16777216 bytes of memory; shorten",
        scene.namespace
    );
    let without_webhook = format!("namespace {} has 3 webhook configurations of at most 3; give", scene.namespace);
    let is_kept = |policy: &Policy| {
        let object = installation.wait_for_object(policy, "QuotaExceeded in Accepted", is_refused);
        let (_, _, words) = said(&object, "Accepted").expect("it is there");
        let is_kept = words.starts_with(&without_webhook);
        assert!(is_kept || words.starts_with(&without_room), "{}: {words}", policy.name());
        is_kept
    };
    let kept: Vec<bool> = others.iter().map(is_kept).collect();
    let fit = WEBHOOKS + kept.iter().filter(|is_kept| **is_kept).count();
    assert!(FIT.contains(&fit) && kept.is_sorted_by(|one, next| one >= next), "{fit}: {kept:?}");
    assert!(!sharing.iter().any(is_kept), "a policy that needs no webhook needs room");
    let after = Usage::of(pid()).anonymous;
    note(&format!("{fit} of {OWN} match parts fit; the controller had {} MiB, then {} MiB", before >> 20, after >> 20));
    assert!(after < before + ROOM + SLACK, "the controller's memory grew from {before} to {after} bytes");
    assert_eq!(pid(), started);

    // Without the policies that have a match part of their own and no webhook, there is room for the others.
    let names: Vec<_> = others.iter().map(Policy::name).collect();
    let deleted = format!("{collection}?labelSelector=made-for%20in%20({})", names.join(","));
    installation.api().delete_collection(&deleted);
    for policy in &sharing {
        let object = installation.wait_for(policy, "Ready", "True");
        assert_eq!(said(&object, "Accepted").map(|one| (one.0, one.1)), Some(("True", "Accepted")));
    }
    scene.webhooks(WEBHOOKS);
    // Other tests use the same API server, whose memory they fill as well.
    installation.api().delete_collection(&collection);
    canary.end();
}

/// Settings as JSON, of `bytes` bytes or a little less: a list of lists with one number. Such a list has four bytes of text, and takes 380 bytes of
/// memory when it is decoded. (Deeper ones take more, also of the API server's time.)
fn nested(bytes: usize) -> String {
    let one = "[0]";
    format!("{{\"lists\":[{}]}}", vec![one; bytes / (one.len() + 1)].join(","))
}

/// An object as text: decoded, its settings would fill the memory of the test.
fn text_of(scene: &Scene, path: &str) -> String {
    let (code, text) = scene.installation.api().text(path).expect("an answer");
    assert_eq!(code, 200, "{text}");
    text
}

/// Makes policies whose settings take a hundred times as much memory as text. Programs that watch policies get them before they are refused:
/// when they are made, when their status is written, and when the programs start.
fn make_nested_settings(scene: &Scene, edit_of_another: impl Fn(usize)) {
    /// As much as an API server stores of one object, less what it adds.
    const LARGEST: usize = 1_400_000;
    /// So much that the policy is accepted.
    const ACCEPTED: usize = 500 << 10;
    /// The memory limits of the chart.
    const MEMORY: [(Program, u64); 2] = [(Program::Controller, 512 << 20), (Program::Reporter, 256 << 20)];
    let installation = &scene.installation;
    let replica = installation.replicas().remove(0);
    let pod = |program| if program == Program::Controller { &scene.controller } else { &replica };
    let assert_within = |when: &str| {
        for (program, limit) in MEMORY {
            let usage = Usage::of(pod(program).program(program).pid().expect("it runs"));
            note(&format!("nested settings, {when}: {program} has {usage}"));
            assert!(usage.peak < limit, "{program} took {} bytes of {limit} {when}", usage.peak);
        }
    };
    let make = |name: &str, settings: &str| {
        let policy = installation.policy(&scene.namespace, name).field("settings", "SETTINGS");
        let body = policy.manifest(installation.source()).to_string().replace("\"SETTINGS\"", settings);
        let path = policy.path();
        let (collection, _) = path.rsplit_once('/').expect("a path");
        installation.api().create_bytes(collection, body.as_bytes()).expect("an answer").expect("the policy");
        path
    };
    let largest = nested(LARGEST);
    let paths: Vec<_> = ["nested-0", "nested-1", "nested-2"].iter().map(|name| make(name, &largest)).collect();
    for path in &paths {
        eventually("QuotaExceeded in Accepted", || {
            let refused = "\"reason\":\"QuotaExceeded\",\"status\":\"False\",\"type\":\"Accepted\"";
            text_of(scene, path).contains(refused).then_some(())
        });
    }
    // The revision of a policy that is accepted has exactly its settings.
    let accepted = nested(ACCEPTED);
    let path = make("nested-accepted", &accepted);
    let revisions = format!(
        "/apis/apps/v1/namespaces/{}/controllerrevisions?labelSelector=policies.portcullis.dev/policy-name=nested-accepted",
        installation.namespace()
    );
    eventually("a revision with the settings", || text_of(scene, &revisions).contains(&accepted).then_some(()));
    edit_of_another(1001);
    assert_within("when they were made");
    // Programs that start list all policies.
    for (program, _) in MEMORY {
        pod(program).kill(program);
    }
    installation.wait_ready();
    edit_of_another(1002);
    assert_within("after a start");
    for path in paths.iter().chain([&path]) {
        installation.api().delete(path, None).expect("an answer").expect("it is there");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z10_a_tenant_edits_without_end() {
    const SETTINGS: usize = 200 << 10;
    /// The largest history of a policy, plus what is kept in any case: the newest generation, the one that served, and one being replaced.
    const KEPT: usize = (1 << 20) + 3 * SETTINGS;
    /// The number of edits of each policy.
    const EDITS: usize = 40;
    /// The edit after which the controller's memory is read for the first time.
    const WARM: usize = 12;
    /// The most memory by which the controller may grow with the others. Their settings alone are twice as much.
    const GROWTH: u64 = 16 << 20;
    let scene = Scene::new("edits", 1);
    let installation = &scene.installation;
    let large = |name: &str, edit: usize, bytes: usize| {
        let settings = json!({"edit": edit, "text": "x".repeat(bytes)});
        installation.policy(&scene.namespace, name).field("settings", settings).field("revisionHistoryLimit", 100)
    };
    let names: Vec<_> = (0..6).map(|n| format!("edited-{n}")).collect();
    let other = |edit: usize| installation.cluster_policy("edits-elsewhere").field("settings", json!({"edit": edit}));
    installation.apply_ready(&[other(0)]);
    let canary = installation.canary(&installation.make_namespace("others"), Right::Admitted);
    let edit_of_another = |edit: usize| {
        installation.apply(&other(edit)).expect("the edit");
        installation.assert_recovers("the edit of another tenant", || {
            let object = installation.object(&other(edit)).expect("it is there");
            let ready = condition(&object, "Ready")?;
            let is_newest = ready["observedGeneration"] == object["metadata"]["generation"];
            (ready["status"] == "True" && is_newest).then_some(())
        });
    };
    let memory = || Usage::of(scene.controller.program(Program::Controller).pid().expect("it runs")).anonymous;
    let mut before = 0;
    for edit in 1..=EDITS {
        for name in &names {
            let policy = large(name, edit, SETTINGS);
            if edit <= WARM {
                installation.apply(&policy).expect("the policy");
            } else {
                // Without sending the large text again, so that the edits come faster.
                let edited = json!({"spec": {"settings": {"edit": edit}}});
                installation.api().patch(&policy.path(), &edited).expect("an answer").expect("the edit");
            }
        }
        if edit % 4 == 0 {
            edit_of_another(edit);
        }
        if edit == WARM {
            before = memory();
        }
    }
    let last: Vec<_> = names.iter().map(|name| large(name, EDITS, SETTINGS)).collect();
    installation.apply_ready(&last);
    let size = |revision: &Value| revision["data"]["spec"].to_string().len();
    eventually("histories within their size", || {
        let revisions = installation.revisions();
        let of = |name: &str| {
            let is_of = |one: &&Value| one["metadata"]["labels"]["policies.portcullis.dev/policy-name"] == name;
            revisions.iter().filter(is_of).map(size).sum::<usize>()
        };
        names.iter().all(|name| of(name) <= KEPT).then_some(())
    });
    let after = memory();
    note(&format!("the controller has {} MiB after {WARM} edits and {} MiB after {EDITS}", before >> 20, after >> 20));
    assert!(after < before + GROWTH, "the controller's memory grew from {before} to {after} bytes");
    // A spec beyond the limit is refused; the generation that serves goes on.
    let edited = json!({"spec": {"settings": {"text": "x".repeat(800 << 10)}}});
    let larger = &last[0];
    installation.api().patch(&larger.path(), &edited).expect("an answer").expect("the edit");
    let object = installation
        .wait_for_object(larger, "QuotaExceeded of the spec", |object| is_refused(object) && serves_previous(object));
    let (_, _, words) = said(&object, "Accepted").expect("it is there");
    assert!(words.starts_with("the spec has ") && words.contains("of at most 786432; make settings"), "{words}");
    make_nested_settings(&scene, |edit| {
        installation.apply(&other(edit)).expect("the edit");
        installation.wait_for(&other(edit), "Ready", "True");
    });
    canary.end();
}
