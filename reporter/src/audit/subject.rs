//! The policies that are audited, read from the objects of the API server. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use portcullis_api::kubernetes::{AUDIT_REQUESTED_ANNOTATION, MAX_AUDIT_REQUESTED};
use portcullis_api::{Kind, PolicyKey, ReplicaReportSpec};
use portcullis_contract::{MatchCondition, Mode, PolicyId, ReplicaState, RuleWithOperations, clean};
use portcullis_matching::{Conditions, Parts, Scope};
use serde_json::Value;

use super::in_force::Content;

/// The values of a severity in a report.
const SEVERITIES: [&str; 5] = ["critical", "high", "info", "low", "medium"];
/// What the annotations with severity and category begin with: ours, which takes precedence, and Kubewarden's.
const PREFIXES: [&str; 2] = ["policies.portcullis.dev/", "io.kubewarden.policy."];
/// Longest category, in bytes.
const MAX_CATEGORY: usize = 128;

/// The generation that this pod's evaluator serves of each policy.
pub(super) type Served = BTreeMap<PolicyKey, i64>;

/// The newest generation that this pod's evaluator knows of each policy that it cannot load, and of which it serves no other.
pub(super) type Unloadable = BTreeMap<PolicyKey, i64>;

/// The installation whose policies are audited.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    /// The name of the policy server.
    pub(crate) policy_server: String,
    /// The namespace of the installation.
    pub(crate) namespace: String,
}

/// A policy that is asked about objects.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) id: PolicyId,
    pub(super) uid: String,
    /// The request for a scan at once that this scan handles; empty without one.
    pub(super) requested: String,
    /// The generation that this pod's evaluator serves; 0 if it serves none and the policy cannot be asked now.
    pub(super) generation: i64,
    /// The newest generation; 0 if it is not known.
    pub(super) newest: i64,
    /// When the policy was made, if it says so.
    pub(super) created: Option<Timestamp>,
    pub(super) mode: Mode,
    pub(super) severity: Option<&'static str>,
    pub(super) category: Option<String>,
    /// Whether it reads objects of the cluster, or may ask for anything else that changes, like signatures in a registry. So its verdict can change
    /// while object and policy stay as they are.
    pub(super) depends_on_others: bool,
    pub(super) scope: Scope,
    pub(super) conditions: Conditions,
}

/// A policy that is not asked.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) id: PolicyId,
    pub(super) uid: String,
    /// As in [`Subject`].
    pub(super) requested: String,
    pub(super) why: String,
    /// Whether the reports keep its results, as it is not known about which objects it would be asked.
    pub(super) keeps_reports: bool,
}

/// Whether a policy is audited.
#[derive(Debug)]
pub(super) enum Read {
    /// It is asked.
    Subject(Box<Subject>),
    /// It is not asked.
    Left(Left),
}

/// What this pod's evaluator serves, by its report.
pub(super) fn served(report: &ReplicaReportSpec) -> Served {
    let older = report.deviations.iter().filter(|deviation| deviation.serving > 0);
    let older = older.map(|deviation| (PolicyKey::of(&deviation.policy_uid), deviation.serving));
    report.current.iter().map(|(key, generation)| (key.clone(), *generation)).chain(older).collect()
}

/// Which policies this pod's evaluator cannot load, by its report.
pub(super) fn unloadable(report: &ReplicaReportSpec) -> Unloadable {
    let failed = report.deviations.iter().filter(|one| one.serving == 0 && one.state == ReplicaState::Failed);
    failed.map(|one| (PolicyKey::of(&one.policy_uid), one.generation)).collect()
}

impl Subject {
    /// Whether the evaluator, which does not serve the policy, may be about to: it has not failed on the newest generation, and the policy, or the
    /// request for a scan, is new. A report does not name a policy of which the pod has not heard yet.
    pub(super) fn may_come(&self, unloadable: &Unloadable, now: Timestamp, loading: Duration) -> bool {
        let has_failed = unloadable.get(&PolicyKey::of(&self.uid)).is_some_and(|failed| *failed >= self.newest);
        // A request of the command line program is the time by its machine's clock, and any other text may be one.
        let requested = self.requested.parse::<Timestamp>().ok();
        // Clocks differ, so it may be later than now.
        let is_new = |since: Timestamp| now.duration_since(since).unsigned_abs() < loading;
        !has_failed && [self.created, requested].into_iter().flatten().any(is_new)
    }
}

/// Whether the evaluator has loaded what it can for now. While it starts, some policies are not served yet but will be soon.
pub(super) fn is_settled(report: &ReplicaReportSpec) -> bool {
    let is_coming = |state: ReplicaState| matches!(state, ReplicaState::Pending | ReplicaState::Unknown);
    !report.deviations.iter().any(|deviation| deviation.serving == 0 && is_coming(deviation.state))
}

/// Whether a policy may be asked at all: it belongs to this installation, is not being deleted, and its own spec does not switch it off.
pub(super) fn may_be_asked(object: &Value, site: &Site) -> bool {
    is_ours(object, site) && switched_off(&object["spec"]).is_none()
}

/// Whether a policy is of this installation, and is not being deleted.
fn is_ours(object: &Value, site: &Site) -> bool {
    object["spec"]["policyServer"].as_str().unwrap_or("default") == site.policy_server
        && !object["metadata"]["deletionTimestamp"].is_string()
}

/// Why a policy is not asked, whatever its rules; none if it is.
fn switched_off(spec: &Value) -> Option<&'static str> {
    if spec["suspend"].as_bool().unwrap_or(false) {
        return Some("the policy is suspended, so it is not asked");
    }
    let is_audited = spec["backgroundAudit"].as_bool().unwrap_or(true);
    (!is_audited).then_some("the policy is not audited: spec.backgroundAudit is false")
}

/// Reads a policy; none if it is of another installation or is being deleted. `content` says where the rules in force are.
pub(super) fn read(kind: Kind, object: &Value, content: &Content, site: &Site, served: &Served) -> Option<Read> {
    let (metadata, spec) = (&object["metadata"], &object["spec"]);
    let name = metadata["name"].as_str()?;
    let id = match kind {
        Kind::ClusterPolicy => PolicyId::cluster(name),
        Kind::Policy => PolicyId::namespaced(metadata["namespace"].as_str()?, name),
    };
    let (id, uid) = (id.ok()?, metadata["uid"].as_str()?.to_owned());
    if !is_ours(object, site) {
        return None;
    }
    let requested = audit_requested(metadata);
    let left = |why: &str| {
        let (id, uid, requested) = (id.clone(), uid.clone(), requested.clone());
        Some(Read::Left(Left { id, uid, requested, why: why.to_owned(), keeps_reports: false }))
    };
    if let Some(why) = switched_off(spec) {
        return left(why);
    }
    let content = match content {
        Content::Own => spec,
        Content::Revision(spec) => spec,
        Content::Unknown { generation, is_missing } => {
            let which = if *is_missing {
                format!("generation {generation}, which serves, has no revision")
            } else {
                format!("the revision of generation {generation} cannot be read")
            };
            let why = format!(
                "the policy is not asked, as the rules by which it is called are unknown: {which}; \
                 the results of an earlier scan stay in the reports"
            );
            return Some(Read::Left(Left { id, uid, requested, why, keeps_reports: true }));
        }
    };
    let Ok(rules) = serde_json::from_value::<Vec<RuleWithOperations>>(content["rules"].clone()) else {
        return left("this release cannot read the policy's rules; upgrade the reporter");
    };
    let conditions = match &content["matchConditions"] {
        Value::Null => Vec::new(),
        found => match serde_json::from_value::<Vec<MatchCondition>>(found.clone()) {
            Ok(conditions) => conditions,
            Err(_) => return left("this release cannot read the policy's match conditions; upgrade the reporter"),
        },
    };
    let parts = Parts {
        id: &id,
        rules: &rules,
        object_selector: Some(&content["objectSelector"]).filter(|selector| !selector.is_null()),
        namespace_selector: Some(&content["namespaceSelector"]).filter(|selector| !selector.is_null()),
        installation: &site.namespace,
        namespace: None,
    };
    let scope = match Scope::of(&parts) {
        Ok(scope) => scope,
        Err(error) => return left(&format!("{error}; edit the policy")),
    };
    let generation = served.get(&PolicyKey::of(&uid)).copied().unwrap_or(0);
    let newest = metadata["generation"].as_i64().unwrap_or(0);
    Some(Read::Subject(Box::new(Subject {
        generation,
        newest,
        created: metadata["creationTimestamp"].as_str().and_then(|created| created.parse().ok()),
        mode: serde_json::from_value(spec["mode"].clone()).unwrap_or_default(),
        severity: annotation(metadata, "severity").and_then(severity),
        category: annotation(metadata, "category").map(|text| clean(text, MAX_CATEGORY)),
        // The grants of an older generation, and so what it may ask, are not in this spec.
        depends_on_others: (generation > 0 && generation < newest) || depends_on_others(content),
        conditions: Conditions::of(&conditions),
        scope,
        id,
        uid,
        requested,
    })))
}

/// The request for a scan at once that a policy's metadata have; empty without one.
pub(crate) fn audit_requested(metadata: &Value) -> String {
    let value = metadata["annotations"][AUDIT_REQUESTED_ANNOTATION].as_str().unwrap_or_default();
    clean(value, MAX_AUDIT_REQUESTED)
}

fn annotation<'o>(metadata: &'o Value, name: &str) -> Option<&'o str> {
    PREFIXES.iter().find_map(|prefix| metadata["annotations"][format!("{prefix}{name}")].as_str())
}

fn severity(text: &str) -> Option<&'static str> {
    SEVERITIES.into_iter().find(|severity| severity.eq_ignore_ascii_case(text.trim()))
}

/// Whether a policy, or a member of a policy group, reads objects of the cluster, or may ask its host for what changes.
fn depends_on_others(spec: &Value) -> bool {
    let depends = |part: &Value| {
        let mut granted = part["hostCapabilities"].as_array().into_iter().flatten();
        let reads = part["contextAwareResources"].as_array().is_some_and(|resources| !resources.is_empty());
        reads || granted.any(may_change)
    };
    depends(spec) || spec["policies"].as_object().into_iter().flatten().any(|(_, member)| depends(member))
}

/// Whether the answers that a pattern grants may change. Those of a cache are what the policy itself has said, and a log gives none; whether a
/// certificate can be trusted depends on the time.
fn may_change(pattern: &Value) -> bool {
    let namespace = pattern.as_str().and_then(|pattern| pattern.split('/').next());
    !matches!(namespace, Some("cache" | "tracing"))
}

#[cfg(test)]
mod tests {
    use portcullis_api::ReportDeviation;
    use serde_json::json;

    use super::*;

    const UID: &str = "9b2c41d2-a1f0-4e17-8000-000000000001";

    fn site() -> Site {
        Site { policy_server: "default".into(), namespace: "portcullis".into() }
    }

    fn policy(change: impl FnOnce(&mut Value)) -> Option<Read> {
        let mut object = json!({
            "metadata": {"name": "a", "uid": UID},
            "spec": {"module": "m", "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
            ]},
        });
        change(&mut object);
        read(Kind::ClusterPolicy, &object, &Content::Own, &site(), &Served::from([(PolicyKey::of(UID), 3)]))
    }

    fn subject(change: impl FnOnce(&mut Value)) -> Subject {
        match policy(change) {
            Some(Read::Subject(subject)) => *subject,
            other => panic!("{other:?}"),
        }
    }

    fn why(change: impl FnOnce(&mut Value)) -> String {
        match policy(change) {
            Some(Read::Left(left)) => left.why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_policy_is_read_with_what_a_report_needs() {
        let plain = subject(|_| ());
        assert_eq!((plain.id.as_str(), plain.generation, plain.mode), ("cluster/a", 3, Mode::Protect));
        assert_eq!((plain.severity, plain.category, plain.depends_on_others), (None, None, false));
        let rich = subject(|object| {
            object["metadata"]["annotations"] = json!({
                "io.kubewarden.policy.severity": "low", "policies.portcullis.dev/severity": "High",
                "io.kubewarden.policy.category": "PSP\u{1b}",
            });
            object["spec"]["mode"] = json!("monitor");
            object["spec"]["policies"] = json!({"m": {"contextAwareResources": [{"apiVersion": "v1", "kind": "Pod"}]}});
        });
        assert_eq!((rich.severity, rich.category.as_deref()), (Some("high"), Some("PSP")));
        assert_eq!((rich.mode, rich.depends_on_others), (Mode::Monitor, true));
        let odd =
            subject(|object| object["metadata"]["annotations"] = json!({"io.kubewarden.policy.severity": "dire"}));
        assert_eq!(odd.severity, None);
        assert_eq!(subject(|object| object["spec"]["backgroundAudit"] = json!(true)).generation, 3);
        for (newest, is_older) in [(3, false), (4, true)] {
            assert_eq!(subject(|object| object["metadata"]["generation"] = json!(newest)).depends_on_others, is_older);
        }
    }

    #[test]
    fn a_policy_that_reads_objects_or_may_ask_registries_or_anybody_else_depends_on_others() {
        let depends = |part: Value| {
            let fields = part.as_object().expect("an object").clone();
            let own = subject(|object| object["spec"].as_object_mut().expect("an object").extend(fields));
            let group = subject(|object| object["spec"]["policies"] = json!({"first": {"module": "m"}, "other": part}));
            assert_eq!(own.depends_on_others, group.depends_on_others, "{part}");
            own.depends_on_others
        };
        for granted in
            ["*", "oci/*", "oci/v2/verify", "net/v1/dns_lookup_host", "kubernetes/can_i", "crypto/*", "new/*"]
        {
            assert!(depends(json!({"hostCapabilities": ["cache/*", granted]})), "{granted}");
        }
        assert!(depends(json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "Pod"}]})));
        for granted in [json!([]), json!(["cache/*", "tracing/log"]), json!(null)] {
            assert!(!depends(json!({"hostCapabilities": granted, "contextAwareResources": []})), "{granted}");
        }
    }

    #[test]
    fn a_policy_that_cannot_be_asked_says_why() {
        assert!(why(|object| object["spec"]["suspend"] = json!(true)).contains("suspended"));
        let unaudited = why(|object| object["spec"]["backgroundAudit"] = json!(false));
        assert_eq!(unaudited, "the policy is not audited: spec.backgroundAudit is false");
        assert!(why(|object| object["spec"]["rules"] = json!("all")).contains("rules"));
        assert!(why(|object| object["spec"]["matchConditions"] = json!([{"name": 1}])).contains("match conditions"));
        let selector = json!({"matchLabels": {"a": "b c"}});
        assert!(why(|object| object["spec"]["objectSelector"] = selector).starts_with("spec.objectSelector: "));
    }

    #[test]
    fn what_a_policy_is_asked_about_is_that_of_the_revision_in_force_and_its_switches_are_its_own() {
        let of = |content: &Content, background_audit: bool| {
            let spec = json!({
                "rollbackTo": 1, "mode": "monitor", "backgroundAudit": background_audit, "rules": "all", "matchConditions": "?",
                "objectSelector": "?", "namespaceSelector": "?", "hostCapabilities": [],
            });
            let object = json!({"metadata": {"name": "a", "uid": UID}, "spec": spec});
            match read(Kind::ClusterPolicy, &object, content, &site(), &Served::new()) {
                Some(Read::Subject(subject)) => Ok(subject),
                Some(Read::Left(left)) => Err((left.why, left.keeps_reports)),
                None => panic!("it is of this installation"),
            }
        };
        let revision = Content::Revision(json!({
            "mode": "protect", "backgroundAudit": false, "hostCapabilities": ["oci/*"],
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
            "matchConditions": [{"name": "c", "expression": "true"}],
            "namespaceSelector": {"matchLabels": {"env": "prod"}},
        }));
        let subject = of(&revision, true).expect("it is asked");
        assert_eq!((subject.mode, subject.depends_on_others), (Mode::Monitor, true));
        assert!(
            subject.scope.is_of("", "v1") && subject.scope.namespaces().is_some() && !subject.conditions.is_empty()
        );
        let unaudited = "the policy is not audited: spec.backgroundAudit is false".to_owned();
        assert_eq!(of(&revision, false).err(), Some((unaudited, false)));
        for (is_missing, words) in [
            (false, "the revision of generation 2 cannot be read"),
            (true, "generation 2, which serves, has no revision"),
        ] {
            let unknown = Content::Unknown { generation: 2, is_missing };
            let (why, keeps_reports) = of(&unknown, true).expect_err("it is left out");
            assert!(why.contains(&format!("unknown: {words}; ")) && keeps_reports, "{why}");
        }
    }

    #[test]
    fn policies_of_others_and_those_that_go_are_none_of_ours() {
        assert!(policy(|object| object["spec"]["policyServer"] = json!("other")).is_none());
        assert!(policy(|object| object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")).is_none());
    }

    #[test]
    fn what_the_pod_serves_stands_in_its_report() {
        let deviation = |uid: &str, serving, state| ReportDeviation {
            policy_uid: uid.into(),
            generation: 9,
            serving,
            state,
            reason: None,
            retryable: None,
            next_retry_time: None,
            since: Timestamp::UNIX_EPOCH,
            message: None,
            passed_over: false,
        };
        let report = |deviations| ReplicaReportSpec {
            current: BTreeMap::from([(PolicyKey::of(UID), 3)]),
            deviations,
            ..ReplicaReportSpec::default()
        };
        let older =
            report(vec![deviation("bbbb", 8, ReplicaState::Previous), deviation("cccc", 0, ReplicaState::Failed)]);
        let expected = Served::from([(PolicyKey::of(UID), 3), (PolicyKey::of("bbbb"), 8)]);
        assert_eq!((served(&older), is_settled(&older)), (expected, true));
        assert_eq!(unloadable(&older), Unloadable::from([(PolicyKey::of("cccc"), 9)]));
        assert!(!is_settled(&report(vec![deviation("dddd", 0, ReplicaState::Pending)])));
        assert!(!is_settled(&report(vec![deviation("dddd", 0, ReplicaState::Unknown)])));
    }

    #[test]
    fn a_policy_that_is_not_served_may_come_while_it_or_the_request_is_new_and_its_newest_generation_has_not_failed() {
        let (now, loading) = (Timestamp::from_second(1_000_000).expect("a time"), Duration::from_secs(120));
        let ago = |seconds: i64| Timestamp::from_second(now.as_second() - seconds).expect("a time").to_string();
        let may_come = |created: i64, requested: &str, unloadable: &Unloadable| {
            let subject = subject(|object| {
                object["metadata"]["generation"] = json!(3);
                object["metadata"]["creationTimestamp"] = json!(ago(created));
                object["metadata"]["annotations"] = json!({AUDIT_REQUESTED_ANNOTATION: requested});
            });
            subject.may_come(unloadable, now, loading)
        };
        let nothing = Unloadable::new();
        let failed = |generation| Unloadable::from([(PolicyKey::of(UID), generation)]);
        for (created, requested, is_new) in [
            (119, "now", true),
            (120, "now", false),
            (900, &*ago(119), true),
            (900, &*ago(120), false),
            (900, &*ago(-60), true),
            (900, &*ago(-3600), false),
        ] {
            assert_eq!(may_come(created, requested, &nothing), is_new, "{created} {requested}");
            assert_eq!(may_come(created, requested, &failed(2)), is_new, "an edit may have mended it");
            assert!(!may_come(created, requested, &failed(3)));
        }
        assert!(!subject(|_| ()).may_come(&nothing, now, loading), "nothing is known of its age");
    }
}
