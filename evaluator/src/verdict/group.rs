//! Joins the decisions of many policies to one answer, with all denials at once (docs/design/overview.md, section 3).

use std::collections::BTreeMap;

use portcullis_contract::PolicyId;

use crate::verdict::answer::{Answer, Cause, Details, Status};
use crate::verdict::decision::{Decision, Denial, GENERATION, Outcome, is_ours};
use crate::verdict::text;
use crate::verdict::warnings::{self, Words};

/// The longest joined message, in bytes. Each policy's own text is in `details.causes` in any case.
const MESSAGE: usize = 16 << 10;
/// The HTTP code of a denial by several policies, or by one that gave none.
const FORBIDDEN: u16 = 403;

/// Joins the decisions of a group's members, in their order. `patch` leads from the first object to the last, and is sent only if no
/// member denies.
pub(crate) fn join(members: Vec<(PolicyId, Decision)>, patch: Option<String>) -> Answer {
    let (ids, decisions): (Vec<_>, Vec<_>) = members.into_iter().unzip();
    let (mut denials, mut words) = (Vec::new(), Vec::new());
    let (mut annotations, mut ours) = (BTreeMap::new(), BTreeMap::new());
    for (id, decision) in ids.iter().zip(decisions) {
        let key = |name: &str| text::annotation_key(&format!("{id}.{name}"));
        ours.extend(decision.generation.map(|generation| (key(GENERATION), generation.to_string())));
        for (name, value) in decision.annotations {
            let map = if is_ours(&name) { &mut ours } else { &mut annotations };
            map.insert(key(&name), value);
        }
        words.push((id, Words { prefix: format!("{id}: "), notes: decision.notes, warnings: decision.warnings }));
        if let Outcome::Denied(denial) = decision.outcome {
            denials.push((id, denial));
        }
    }
    // This program's own annotations come last, so that no policy can overwrite what they say about another.
    annotations.append(&mut ours);
    let patch = patch.filter(|_| denials.is_empty());
    Answer {
        allowed: denials.is_empty(),
        patch_type: patch.as_ref().map(|_| "JSONPatch"),
        patch,
        status: (!denials.is_empty()).then(|| status(denials)),
        audit_annotations: annotations,
        warnings: warnings::chosen(&words),
    }
}

fn status(denials: Vec<(&PolicyId, Denial)>) -> Status {
    let (code, retry_soon) = match denials.as_slice() {
        [(_, only)] => (only.code.unwrap_or(FORBIDDEN), only.retry_soon),
        _ => (FORBIDDEN, false),
    };
    let words = |denial: &Denial| denial.text.clone().unwrap_or_else(|| "the policy denies this request".to_owned());
    let message: Vec<_> = denials.iter().map(|(id, denial)| format!("policy {id}: {}", words(denial))).collect();
    let causes = denials.into_iter().flat_map(|(id, denial)| {
        let own = Cause {
            reason: denial.reason.map(|reason| reason.to_string()),
            message: denial.replaced.clone().unwrap_or_else(|| words(&denial)),
            field: Some(id.to_string()),
        };
        std::iter::once(own).chain(denial.members.into_iter().map(|member| member.cause(Some(id))))
    });
    Status {
        message: Some(portcullis_contract::truncate(&message.join("; "), MESSAGE)),
        code: Some(code),
        details: Some(Details { causes: causes.collect(), retry_after_seconds: retry_soon.then_some(1) }),
    }
}

#[cfg(test)]
mod tests {
    use portcullis_contract::Reason;
    use serde_json::json;

    use super::*;

    fn admitted(id: &str) -> (PolicyId, Decision) {
        let decision = Decision {
            outcome: Outcome::Admitted { message: Some("fine".into()), code: Some(200) },
            mutates: false,
            generation: Some(4),
            notes: Vec::new(),
            warnings: vec!["careful".into()],
            annotations: [("key".into(), "value".into())].into(),
        };
        (id.parse().expect("an id"), decision)
    }

    fn denied(id: &str, denial: Denial) -> (PolicyId, Decision) {
        let (id, decision) = admitted(id);
        let outcome = Outcome::Denied(denial);
        (id, Decision { outcome, warnings: Vec::new(), annotations: BTreeMap::new(), ..decision })
    }

    fn no() -> Denial {
        Denial { text: Some("no".into()), code: Some(418), ..Denial::default() }
    }

    fn answer(members: Vec<(PolicyId, Decision)>) -> serde_json::Value {
        serde_json::to_value(join(members, Some("patch".into()))).expect("serialises")
    }

    fn answer_without_patch(members: Vec<(PolicyId, Decision)>) -> serde_json::Value {
        serde_json::to_value(join(members, None)).expect("serialises")
    }

    #[test]
    fn an_empty_group_allows() {
        assert_eq!(join(Vec::new(), None), Answer { allowed: true, ..Answer::default() });
    }

    #[test]
    fn admissions_keep_the_patch_warnings_and_annotations() {
        assert_eq!(
            answer(vec![admitted("cluster/a"), admitted("namespaced/team-a/b")]),
            json!({
                "allowed": true, "patch": "patch", "patchType": "JSONPatch",
                "auditAnnotations": {
                    "cluster.a.generation": "4", "cluster.a.key": "value",
                    "namespaced.team-a.b.generation": "4", "namespaced.team-a.b.key": "value",
                },
                "warnings": ["cluster/a: careful", "namespaced/team-a/b: careful"],
            })
        );
    }

    #[test]
    fn the_only_denial_gives_its_code_and_no_patch() {
        assert_eq!(
            answer(vec![admitted("cluster/a"), denied("cluster/b", no())])["status"],
            json!({"message": "policy cluster/b: no", "code": 418,
                   "details": {"causes": [{"message": "no", "field": "cluster/b"}]}})
        );
        let answer = join(vec![admitted("cluster/a"), denied("cluster/b", no())], Some("patch".into()));
        assert_eq!((answer.allowed, answer.patch, answer.patch_type), (false, None, None));
        assert_eq!(answer.warnings, ["cluster/a: careful"]);
    }

    #[test]
    fn all_denials_are_told_at_once() {
        let unserved = Denial {
            text: Some("RegistryTimeout: no answer; next try in 1 s".into()),
            is_named: true,
            code: Some(503),
            reason: Some(Reason::RegistryTimeout),
            retry_soon: true,
            ..Denial::default()
        };
        let custom = Denial { replaced: Some("its own words".into()), ..no() };
        assert_eq!(
            answer(vec![
                denied("cluster/a", custom),
                admitted("cluster/b"),
                denied("namespaced/team-a/c", unserved.clone()),
                denied("cluster/d", Denial::default()),
            ])["status"],
            json!({
                "message": "policy cluster/a: no; policy namespaced/team-a/c: RegistryTimeout: no answer; next try in 1 s; policy cluster/d: the policy denies this request",
                "code": 403,
                "details": {"causes": [
                    {"message": "its own words", "field": "cluster/a"},
                    {"reason": "RegistryTimeout", "message": "RegistryTimeout: no answer; next try in 1 s", "field": "namespaced/team-a/c"},
                    {"message": "the policy denies this request", "field": "cluster/d"},
                ]},
            })
        );
        let alone = answer(vec![denied("cluster/a", unserved)]);
        assert_eq!(
            (&alone["status"]["code"], &alone["status"]["details"]["retryAfterSeconds"]),
            (&json!(503), &json!(1))
        );
    }

    #[test]
    fn a_group_that_passes_over_all_its_members_allows_and_names_them() {
        let members = ["cluster/a", "namespaced/team-a/b"].map(|id| id.parse::<PolicyId>().expect("an id"));
        let members = members.map(|id| (id.clone(), crate::verdict::decision::passed_over(&id)));
        assert_eq!(
            answer_without_patch(members.to_vec()),
            json!({"allowed": true, "auditAnnotations": {
                "cluster.a.policy-not-yet-enforced": "cluster/a",
                "namespaced.team-a.b.policy-not-yet-enforced": "namespaced/team-a/b",
            }})
        );
    }

    #[test]
    fn nobody_forges_that_another_was_passed_over() {
        let (a, mut forger) = admitted("cluster/a");
        forger.annotations = [("b.policy-not-yet-enforced".into(), "nobody".into())].into();
        let b: PolicyId = "cluster/a.b".parse().expect("an id");
        let answer = join(vec![(b.clone(), crate::verdict::decision::passed_over(&b)), (a, forger)], None);
        assert_eq!(answer.audit_annotations["cluster.a.b.policy-not-yet-enforced"], "cluster/a.b");
    }

    #[test]
    fn a_policy_cannot_write_what_is_said_of_another() {
        let (a, mut forger) = admitted("cluster/a");
        forger.annotations = [("b.generation".into(), "999".into())].into();
        let (b, mut other) = admitted("cluster/a.b");
        other.annotations.clear();
        let answer = join(vec![(b, other), (a, forger)], None);
        assert_eq!(answer.audit_annotations["cluster.a.b.generation"], "4");
    }

    #[test]
    fn the_message_of_a_large_group_is_bounded() {
        let members =
            (0..500).map(|i| denied(&format!("cluster/p{i}"), Denial { text: Some("x".repeat(1024)), ..no() }));
        let answer = join(members.collect(), None);
        let status = answer.status.expect("a status");
        assert!(status.message.expect("a message").len() <= MESSAGE);
        assert_eq!(status.details.expect("details").causes.len(), 500);
    }
}
