//! Section 14: match conditions of policies that share a webhook, which the evaluator evaluates itself.

use std::thread;

use portcullis_contract::{MatchCondition, MemberMatch, Reason};
use portcullis_tests::{Folder, Pod, Policy, Review, eventually};
use serde_json::{Map, Value, json};

/// The policies whose conditions take long, and the conditions of each. All of them together compare the metadata 2,000 times.
const GREEDY: usize = 20;
const CONDITIONS: usize = 10;
const COMPARISONS: usize = 10;
/// Requests to them at the same time.
const CALLS: usize = 8;
/// How often the others are asked meanwhile.
const ROUNDS: usize = 20;

/// Metadata with as many annotations as an API server takes, 256 KiB.
fn annotations() -> Value {
    (0..16_000).map(|number| (format!("a{number:05}"), json!("xxxxxxxxxx"))).collect::<Map<_, _>>().into()
}

/// A change of a pod with such metadata, in a namespace.
fn change(namespace: &str) -> Review {
    let metadata = json!({"name": "web", "namespace": namespace, "annotations": annotations()});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}});
    let review = Review::pod().with("/namespace", namespace).with("/operation", "UPDATE");
    review.with("/object", pod.clone()).with("/oldObject", pod)
}

fn when(expressions: impl IntoIterator<Item = String>) -> Vec<MemberMatch> {
    let conditions = expressions.into_iter().enumerate();
    let conditions = conditions.map(|(n, expression)| MatchCondition { name: format!("c{n}"), expression });
    vec![MemberMatch { rules: Vec::new(), object_selector: None, match_conditions: conditions.collect() }]
}

/// A request that cannot be put to the members of a shared webhook fails for those only that it may be for.
#[test]
fn a_request_that_no_member_selects_is_admitted_while_there_is_no_room_for_another() {
    let folder = Folder::empty();
    let sleeps = Policy::namespaced("team-a", "sleeps").guest("clock_sleep").timeout(15);
    let members = ["one", "other"].map(|name| Policy::namespaced("team-b", name).denying("asked"));
    let [one, other] = &members;
    let all = || members.iter().chain([&sleeps]);
    all().for_each(|policy| folder.put(policy));
    let setup = Pod::on(&folder).without_canary("there is room for one request only");
    let pod = setup.evaluator("--max-requests", 1).start();
    all().for_each(|policy| drop(pod.wait_current(&policy.id(), 1)));

    // Only a controller makes webhooks that are shared, as above.
    pod.loader().kill();
    pod.reporter().kill();
    pod.volume().edit(|manifest| {
        for group in &mut manifest.groups {
            for id in group.members.iter().filter(|id| id.as_str().starts_with("namespaced/team-b/")) {
                let mut parts = when([]);
                parts[0].object_selector = Some(json!({"matchLabels": {"app": "shop"}}));
                group.matches.insert(id.clone(), parts);
            }
        }
    });
    let review = |app: &str| Review::pod().with("/namespace", "team-b").label("app", app);
    let ask = |app: &str| pod.admit(&one.group(), &review(app)).verdict();
    eventually("the members that the selectors choose", || ask("other").allowed.then_some(()));
    assert!(!ask("shop").allowed);
    let instances =
        |count: f64| eventually("instances", || (pod.metric("portcullis_instances") == count).then_some(()));
    instances(0.0);

    thread::scope(|scope| {
        let call = scope.spawn(|| pod.new_client().ask(&sleeps.id(), &Review::pod().with("/namespace", "team-a")));
        instances(1.0);
        let errors = || [one, other].map(|policy| pod.evaluation_errors(&policy.id(), Reason::Overloaded) as u64);
        let verdict = ask("other");
        assert!(verdict.allowed && errors() == [0, 0], "{verdict:?} {:?}", errors());
        let verdict = ask("shop");
        assert!(!verdict.allowed && verdict.message.contains(Reason::Overloaded.as_str()), "{verdict:?}");
        assert_eq!(errors(), [1, 1]);
        assert!(!call.is_finished(), "there was no room all the time");
        drop(call.join().expect("it is sent"));
    });
    pod.loader().start_again();
    pod.reporter().start_again();
}

#[test]
fn fault_z25_match_conditions_that_compare_large_metadata_hold_up_nobody_else() {
    let folder = Folder::with_canary();
    let greedy: Vec<_> = (0..GREEDY)
        .map(|number| Policy::namespaced("team-a", &format!("greedy-{number}")).guest("always_accept"))
        .collect();
    let [asked, left_out] = ["asked", "left-out"].map(|name| Policy::namespaced("team-b", name).denying(name));
    let all = || greedy.iter().chain([&asked, &left_out]);
    all().for_each(|policy| folder.put(policy));
    let pod = Pod::on(&folder).start();
    all().for_each(|policy| drop(pod.wait_current(&policy.id(), 1)));

    // Only a controller makes webhooks that are shared, so the test says in the manifest which requests each member is for.
    pod.loader().kill();
    pod.reporter().kill();
    let comparison = "object.metadata == oldObject.metadata";
    let long = || (0..CONDITIONS).map(|_| [comparison; COMPARISONS].join(" && "));
    let quick = |name: &str| [format!("object.metadata.name == '{name}'")];
    pod.volume().edit(|manifest| {
        for group in &mut manifest.groups {
            for id in &group.members {
                let parts = match id.as_str() {
                    "namespaced/team-b/asked" => when(quick("web")),
                    "namespaced/team-b/left-out" => when(quick("other")),
                    id if id.starts_with("namespaced/team-a/greedy-") => when(long()),
                    _ => continue,
                };
                group.matches.insert(id.clone(), parts);
            }
        }
    });
    let of_others = || pod.admit(&asked.group(), &Review::pod().with("/namespace", "team-b")).verdict().message;
    let only_asked = |message: &str| message.ends_with("asked") && !message.contains("left-out");
    eventually("the members that the conditions choose", || only_asked(&of_others()).then_some(()));

    let (path, review) = (format!("/admit/{}?timeout=3s", greedy[0].group()), change("team-a"));
    thread::scope(|scope| {
        let call = || scope.spawn(|| pod.new_client().post(&path, review.bytes()).expect("an answer").verdict());
        let calls: Vec<_> = (0..CALLS).map(|_| call()).collect();
        for _ in 0..ROUNDS {
            let message = of_others();
            assert!(only_asked(&message), "{message}");
        }
        // They are right, or late where conditions or guests took the time, and never left out.
        for verdict in calls.into_iter().map(|call| call.join().expect("it is sent")) {
            let is_late = || {
                let reasons = [Reason::EvaluationTimedOut, Reason::Overloaded];
                reasons.iter().any(|reason| verdict.message.contains(reason.as_str()))
            };
            assert!(verdict.allowed || is_late(), "{verdict:?}");
        }
    });
    pod.loader().start_again();
    pod.reporter().start_again();
}
