//! Revisions: marks, pruning, rollback.

use super::*;

fn digest(letter: &str) -> String {
    format!("sha256:{}", letter.repeat(64))
}

#[test]
fn what_becomes_known_is_marked() {
    let mut stage = Stage::new();
    let resolved = json!({"digest": digest("a"), "generation": 1});
    let known = policy("a").everywhere().status("resolved", resolved.clone()).status("lastServed", resolved);
    stage.put(known.condition("True", "Registered", 1));
    stage.revision(&policy("a"), &[]);
    stage.proven(&policy("a"));
    let actions = stage.actions();
    assert!(actions.contains(&format!("mark a-1 pinned-digest={} served=true", digest("a"))), "{actions:?}");
}

#[test]
fn a_revision_that_is_made_again_says_at_once_that_it_served() {
    let mut stage = Stage::new();
    let served = |generation: i64| json!({"digest": digest("a"), "generation": generation});
    let mut is_marked = |policy: P| {
        stage.put(policy);
        let actions = stage.decide();
        let created = actions.iter().find_map(|action| match action {
            Action::CreateRevision { object, .. } => Some(object["metadata"]["annotations"].clone()),
            _ => None,
        });
        created.expect("a revision")["policies.portcullis.dev/served"] == "true"
    };
    assert!(is_marked(policy("a").everywhere().status("lastServed", served(1))));
    assert!(!is_marked(policy("a").generation(2).everywhere().status("lastServed", served(1))));
}

#[test]
fn older_revisions_of_the_same_match_part_add_nothing() {
    let mut stage = Stage::new();
    let new = policy("a").generation(2).spec("settings", json!({"a": 1}));
    stage.put(new.clone());
    stage.revision(&policy("a"), &["served"]);
    stage.revision(&new, &[]);
    stage.tried(&new);
    assert!(stage.actions().contains(&"mark a-1 withdrawn=true".to_owned()));
}

#[test]
fn old_revisions_go_but_not_the_one_that_served() {
    let mut stage = Stage::new();
    let at = |generation| policy("a").generation(generation).spec("revisionHistoryLimit", json!(1));
    stage.put(at(5));
    stage.revision(&at(1), &["withdrawn"]);
    stage.revision(&at(2), &["withdrawn", "served"]);
    stage.revision(&at(3), &["withdrawn"]);
    stage.revision(&at(4), &["withdrawn"]);
    stage.revision(&at(5), &[]);
    let removed: Vec<_> = stage.actions().into_iter().filter(|action| action.starts_with("remove")).collect();
    assert_eq!(removed, ["remove a-3", "remove a-1"]);
}

#[test]
fn a_rollback_has_the_old_content_and_the_new_switches() {
    let mut stage = Stage::new();
    let first = policy("a").spec("module", json!("first")).spec("mode", json!("protect"));
    let back = policy("a").generation(3).spec("rollbackTo", json!(1)).spec("mode", json!("monitor"));
    stage.put(back.clone());
    stage.revision(&first, &["served", "withdrawn"]);
    let actions = stage.decide();
    let created = actions.iter().find_map(|action| match action {
        Action::CreateRevision { policy, source, object, .. } => Some((policy, source.as_deref(), object)),
        _ => None,
    });
    let (of, source, created) = created.expect("a revision");
    assert_eq!((of.uid.as_str(), source, &created["revision"]), ("uid-a", Some("a-1"), &json!(3)));
    let text = |policy: &P| serde_json::value::to_raw_value(&policy.0["spec"]).expect("a text");
    let spec = rolled_back(&text(&first), &text(&back)).expect("two specs");
    let spec: Value = serde_json::from_str(spec.get()).expect("a spec");
    assert_eq!((&spec["module"], &spec["mode"], &spec["rollbackTo"]), (&json!("first"), &json!("monitor"), &json!(1)));
    assert_eq!(created["metadata"]["annotations"]["policies.portcullis.dev/rolled-back-to"], "1");
}

#[test]
fn a_rollback_to_nowhere_has_the_new_switches_and_says_what_is_missing() {
    let mut stage = Stage::new();
    let nowhere = policy("a").generation(3).spec("rollbackTo", json!(9)).spec("mode", json!("monitor"));
    stage.put(nowhere);
    stage.revision(&policy("a"), &["served"]);
    stage.proven(&policy("a"));
    let actions = stage.decide();
    let [Action::CreateRevision { source: None, object, .. }] = &actions[..] else { panic!("{actions:?}") };
    let problem = object["data"]["problem"].as_str().unwrap_or_default();
    assert!(problem.contains("no revision of generation 9") && problem.contains("(1)"), "{problem}");
    assert_eq!(object["metadata"]["annotations"], json!({}));
}

#[test]
fn nobody_rolls_back_to_a_generation_that_had_no_content() {
    let mut stage = Stage::new();
    stage.revision(&policy("a"), &["served", "withdrawn"]);
    stage.revision_with(&policy("a").generation(2), &[], Some("there was nothing"));
    stage.put(policy("a").generation(3).spec("rollbackTo", json!(2)));
    let actions = stage.decide();
    let created = actions.iter().find_map(|action| match action {
        Action::CreateRevision { object, .. } => object["data"]["problem"].as_str(),
        _ => None,
    });
    let problem = created.expect("a revision with a problem");
    assert!(problem.contains("no revision of generation 2") && problem.contains("(1)"), "{problem}");
}

#[test]
fn a_rollback_is_called_as_the_old_rules_and_the_new_failure_policy_say() {
    let mut stage = Stage::new();
    let first = policy("a").on("services");
    let back = policy("a").generation(2).spec("rollbackTo", json!(1)).spec("failurePolicy", json!("Ignore"));
    stage.put(back);
    stage.revision(&first, &["served"]);
    let actions = stage.decide();
    let created = actions.iter().find_map(|action| match action {
        Action::CreateRevision { object, .. } => Some(&object["metadata"]["labels"]),
        _ => None,
    });
    let wanted = stage.group(&first.spec("failurePolicy", json!("Ignore")));
    assert_eq!(created.expect("a revision")["policies.portcullis.dev/match-group"], wanted.as_str());
}

#[test]
fn z10_the_history_of_a_policy_has_a_size() {
    let mut stage = Stage::new();
    let text = "x".repeat(250 << 10);
    let at = |generation| policy("a").generation(generation).spec("settings", json!({"text": text}));
    stage.put(at(9));
    stage.revision(&at(1), &["withdrawn", "served"]);
    (2..9).for_each(|generation| stage.revision(&at(generation), &["withdrawn"]));
    stage.revision(&at(9), &[]);
    let removed: Vec<_> = stage.actions().into_iter().filter(|action| action.starts_with("remove")).collect();
    assert_eq!(removed, ["remove a-4", "remove a-3", "remove a-2"], "four fit, and the one that served stays");
}

/// A match part of short texts, which takes fifteen times as much memory as JSON.
fn short_texts() -> Value {
    let texts = |count: usize, text: &str| vec![text.to_owned(); count];
    let rule = json!({
        "apiGroups": texts(32, ""), "apiVersions": texts(16, "v"), "resources": texts(32, "r"), "operations": texts(5, "*"),
    });
    Value::Array(vec![rule; 32])
}

#[test]
fn z11_match_parts_of_older_generations_count_as_they_are_in_memory() {
    let mut stage = Stage::new();
    let at = |generation| policy("a").generation(generation).spec("rules", short_texts());
    stage.put(at(10));
    (1..10).for_each(|generation| stage.revision(&at(generation), &["withdrawn"]));
    stage.revision(&at(10), &[]);
    let one = &stage.world.revisions["uid-a"][&1];
    assert!(one.match_bytes > 10 * one.spec_bytes, "{} of {}", one.match_bytes, one.spec_bytes);
    let fit = (1 << 20) / one.match_bytes;
    let removed: Vec<_> = stage.actions().into_iter().filter(|action| action.starts_with("remove")).collect();
    let expected: Vec<_> = (1..10 - fit).rev().map(|generation| format!("remove a-{generation}")).collect();
    assert!((1..9).contains(&fit), "{fit}");
    assert_eq!(removed, expected);
}

#[test]
fn fault_z10_edits_of_a_policy_that_never_serves_are_refused_when_too_much_stays_in_force() {
    let mut stage = Stage::new();
    let text = "x".repeat(750 << 10);
    let at = |generation: i64, part: i64| {
        let condition = json!([{"name": "n", "expression": format!("object.metadata.name != '{part}'")}]);
        policy("a").generation(generation).spec("settings", json!({"text": text})).spec("matchConditions", condition)
    };
    let begins = |actions: &[String], what: &str| actions.iter().any(|action| action.starts_with(what));
    for generation in 1..=4 {
        stage.put(at(generation, generation));
        assert!(begins(&stage.actions(), &format!("revision {generation}")), "{generation}");
        stage.revision(&at(generation, generation), &[]);
    }
    // Four of the largest specs may stay in force.
    stage.put(at(5, 5));
    assert!(begins(&stage.actions(), "revision 5"));
    stage.revision(&at(5, 5), &[]);
    stage.put(at(6, 6));
    let actions = stage.decide();
    let said = actions.iter().find_map(|action| match action {
        Action::SetCondition { condition, .. } => Some((condition.reason.as_str(), condition.message.as_str())),
        _ => None,
    });
    let (reason, words) = said.expect("a condition");
    assert_eq!(reason, "QuotaExceeded");
    assert!(
        words.starts_with("generations 1, 2, 3, 4, 5 stay in force") && words.contains("of at most 3145728;"),
        "{words}"
    );
    assert!(words.contains("until generation 5 is Ready"), "{words}");
    assert!(!begins(&stage.actions(), "revision") && !begins(&stage.actions(), "remove"));
    // An edit of something else is accepted, so that the module can be mended.
    stage.put(at(6, 5));
    assert!(begins(&stage.actions(), "revision 6"));
    // So is one that goes back to an older generation, in whose place it stays.
    for (generation, back) in [(6, at(6, 2)), (6, at(6, 5).spec("rollbackTo", json!(2)))] {
        stage.put(back);
        assert!(begins(&stage.actions(), &format!("revision {generation}")), "{:?}", stage.actions());
    }
    // So is any edit, once the others are withdrawn.
    (1..=4).for_each(|generation| stage.revision(&at(generation, generation), &["withdrawn"]));
    stage.put(at(6, 6));
    assert!(begins(&stage.actions(), "revision 6"));
}

#[test]
fn z10_an_edit_may_go_back_to_a_small_generation_and_not_make_it_large() {
    let mut stage = Stage::new();
    let at = |generation: i64, part: i64, kib: usize| {
        let condition = json!([{"name": "n", "expression": format!("object.metadata.name != '{part}'")}]);
        let text = "x".repeat(kib << 10);
        policy("a").generation(generation).spec("settings", json!({"text": text})).spec("matchConditions", condition)
    };
    stage.revision(&at(1, 1, 1), &[]);
    (2..=6).for_each(|generation| stage.revision(&at(generation, generation, 750), &[]));
    let mut makes_one = |policy: P| {
        stage.put(policy);
        stage.actions().iter().any(|action| action == "revision 7")
    };
    assert!(!makes_one(at(7, 7, 1)), "it leaves all of them");
    assert!(makes_one(at(7, 1, 1)));
    assert!(!makes_one(at(7, 1, 750)), "more would be in force than before");
    // An edit back to the generation that served is accepted even so.
    stage.revision(&at(1, 1, 1), &["served"]);
    stage.put(at(7, 1, 2));
    assert!(stage.actions().contains(&"revision 7".to_owned()));
}
