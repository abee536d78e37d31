//! Existing objects are audited, and reports name those that a policy rejects. The tests compare the reports with their own counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use portcullis_e2e::{Installation, InstallationOptions, Pod, Policy, Program, eventually};
use serde_json::{Value, json};

use crate::cluster;

/// The annotation that asks for a scan.
const REQUESTED: &str = "policies.portcullis.dev/audit-requested-at";
/// The label of the objects that policies here are about, because Kubernetes puts a ConfigMap of its own into each namespace.
pub(crate) const COUNTED: &str = "counted";

/// The namespace and the name of an object. The namespace of a cluster-scoped object is empty.
pub(crate) type ObjectKey = (String, String);

/// A kind of reports. In these tests, namespaced reports are about ConfigMaps, and the others about Namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportKind {
    Report,
    ClusterReport,
    PolicyReport,
    ClusterPolicyReport,
}

impl ReportKind {
    /// The paths of the collections with such reports in these namespaces, or of the one collection of cluster-scoped reports, each with its
    /// namespace.
    fn collections(self, namespaces: &[String]) -> Vec<(String, String)> {
        let (group, plural) = match self {
            Self::Report => ("openreports.io/v1alpha1", "reports"),
            Self::ClusterReport => ("openreports.io/v1alpha1", "clusterreports"),
            Self::PolicyReport => ("wgpolicyk8s.io/v1alpha2", "policyreports"),
            Self::ClusterPolicyReport => ("wgpolicyk8s.io/v1alpha2", "clusterpolicyreports"),
        };
        if !self.is_namespaced() {
            return vec![(String::new(), format!("/apis/{group}/{plural}"))];
        }
        let path = |namespace: &String| (namespace.clone(), format!("/apis/{group}/namespaces/{namespace}/{plural}"));
        namespaces.iter().map(path).collect()
    }

    fn is_namespaced(self) -> bool {
        matches!(self, Self::Report | Self::PolicyReport)
    }

    /// The kind of the objects that such reports are about.
    fn of(self) -> &'static str {
        if self.is_namespaced() { "ConfigMap" } else { "Namespace" }
    }
}

/// An installation that audits objects. It has no pods yet.
pub(crate) fn install(name: &str, format: &str) -> Installation<'static> {
    cluster().install_open_reports();
    Installation::start(cluster(), InstallationOptions::named(name).auditing(format))
}

/// The message of a policy of [`labels`] or [`labels_of_namespaces`] for an object that it rejects.
pub(crate) const NO_TEAM: &str = "missing labels: team";

/// A policy that requires the label `team` of ConfigMaps.
pub(crate) fn labels(installation: &Installation<'_>, name: &str) -> Policy {
    let policy = installation.cluster_policy(name).example("required-labels").on(&["configmaps"]);
    let selector = json!({ "matchLabels": { COUNTED: "yes" } });
    policy.field("settings", json!({ "labels": ["team"] })).field("objectSelector", selector)
}

/// Creates ConfigMaps. Those for whose number `lacks` returns true lack the label `team`.
pub(crate) fn fill(installation: &Installation<'_>, namespace: &str, count: usize, lacks: impl Fn(usize) -> bool) {
    for number in 0..count {
        let mut labels = json!({ COUNTED: "yes" });
        if !lacks(number) {
            labels["team"] = json!("shop");
        }
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": format!("object-{number:03}"), "labels": labels },
        });
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        installation.api().create(&path, &object).expect("an API server answers").expect("a ConfigMap");
    }
}

/// A policy that requires the label `team` of the test's own Namespaces.
pub(crate) fn labels_of_namespaces(installation: &Installation<'_>, name: &str) -> Policy {
    let policy = installation.cluster_policy(name).example("required-labels").on(&["namespaces"]);
    policy.field("settings", json!({ "labels": ["team"] }))
}

/// Sets a label of an object, or removes it.
pub(crate) fn put_label(installation: &Installation<'_>, path: &str, label: &str, value: impl Into<Value>) {
    let mut labels = json!({});
    labels[label] = value.into();
    let patched = installation.api().patch(path, &json!({ "metadata": { "labels": labels } }));
    patched.expect("an API server answers").expect("a label");
}

/// The objects that a policy of [`labels`] must reject, with their uids, and the number of all objects, by the test's own count.
pub(crate) fn counted(installation: &Installation<'_>, namespaces: &[String]) -> (BTreeMap<ObjectKey, String>, usize) {
    let (mut rejected, mut all) = (BTreeMap::new(), 0);
    for namespace in namespaces {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps?labelSelector={COUNTED}%3Dyes");
        for object in items(installation, &path) {
            all += 1;
            let metadata = &object["metadata"];
            if metadata["labels"]["team"].is_null() {
                let [name, uid] = ["name", "uid"].map(|field| metadata[field].as_str().unwrap().to_owned());
                rejected.insert((namespace.clone(), name), uid);
            }
        }
    }
    (rejected, all)
}

/// The same for a policy of [`labels_of_namespaces`].
pub(crate) fn counted_namespaces(installation: &Installation<'_>) -> (BTreeMap<ObjectKey, String>, usize) {
    let made = format!("/api/v1/namespaces?labelSelector=portcullis-test%3D{}", installation.policy_server());
    let all = items(installation, &made);
    let rejected = all.iter().map(|object| &object["metadata"]).filter(|metadata| metadata["labels"]["team"].is_null());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rejected = rejected.map(|metadata| ((String::new(), text(&metadata["name"])), text(&metadata["uid"])));
    (rejected.collect(), all.len())
}

pub(crate) fn items(installation: &Installation<'_>, path: &str) -> Vec<Value> {
    installation.api().list(path)
}

/// All reports of a kind that the installation has written, with their namespaces.
pub(crate) fn reports(
    installation: &Installation<'_>,
    kind: ReportKind,
    namespaces: &[String],
) -> Vec<(String, Value)> {
    let labels = format!(
        "app.kubernetes.io%2Fmanaged-by%3Dportcullis%2Cpolicies.portcullis.dev%2Fpolicy-server%3D{}",
        installation.policy_server()
    );
    let mut found = Vec::new();
    for (namespace, path) in kind.collections(namespaces) {
        let listed = items(installation, &format!("{path}?labelSelector={labels}"));
        found.extend(listed.into_iter().map(|report| (namespace.clone(), report)));
    }
    found
}

/// The objects that a policy rejects by the reports of a kind, each with the message. Asserts that each report is in the namespace of its
/// object, and is named after it.
pub(crate) fn reported_by(
    installation: &Installation<'_>,
    kind: ReportKind,
    policy: &str,
    namespaces: &[String],
) -> BTreeMap<ObjectKey, String> {
    let mut found = BTreeMap::new();
    for (namespace, report) in reports(installation, kind, namespaces) {
        let owner = &report["metadata"]["ownerReferences"][0];
        assert_eq!(owner["kind"], kind.of(), "{report}");
        let uid = owner["uid"].as_str().unwrap();
        assert_eq!(report["metadata"]["name"], format!("portcullis-{}-{uid}", installation.policy_server()));
        let results = report["results"].as_array().unwrap();
        let of_policy: Vec<_> = results.iter().filter(|result| result["policy"] == policy).collect();
        if let [result] = of_policy.as_slice() {
            assert!(["fail", "warn"].iter().any(|word| result["result"] == *word), "{report}");
            let [name, message] = [&owner["name"], &result["message"]].map(|text| text.as_str().unwrap().to_owned());
            found.insert((namespace, name), message);
        } else {
            assert!(of_policy.is_empty(), "{report}");
        }
    }
    found
}

/// The objects that a policy of [`labels`] rejects by the Reports.
pub(crate) fn reported(installation: &Installation<'_>, policy: &str, namespaces: &[String]) -> BTreeSet<ObjectKey> {
    let found = reported_by(installation, ReportKind::Report, policy, namespaces);
    assert!(found.values().all(|message| message.contains(NO_TEAM)), "{found:?}");
    found.into_keys().collect()
}

/// Requests a scan like `portcullis audit --now`, and returns its figures.
pub(crate) fn scan(installation: &Installation<'_>, policy: &Policy) -> Value {
    let requested = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos().to_string();
    let annotations = json!({ "metadata": { "annotations": { REQUESTED: requested } } });
    installation.api().patch(&policy.path(), &annotations).expect("an API server answers").expect("an annotation");
    found(installation, policy, "a scan", |audit| audit["handledRequest"] == *requested)
}

/// Waits for a scan with such figures about a policy, and returns them.
pub(crate) fn found(
    installation: &Installation<'_>,
    policy: &Policy,
    what: &str,
    is: impl Fn(&Value) -> bool,
) -> Value {
    let object = installation.wait_for_object(policy, what, |object| {
        let audit = &object["status"]["audit"];
        audit["scannedAt"].is_string() && is(audit)
    });
    object["status"]["audit"].clone()
}

/// Waits until Reports name exactly the objects that a policy of [`labels`] must reject, and its status counts them.
pub(crate) fn wait_exact(installation: &Installation<'_>, policy: &Policy, namespaces: &[String]) -> Value {
    let counted = counted(installation, namespaces);
    wait_exact_in(installation, ReportKind::Report, policy, NO_TEAM, &counted, namespaces)
}

/// Waits until the reports of a kind in these namespaces name exactly the objects that were counted as rejected, each with these words, and
/// the status of the policy has the same figures.
pub(crate) fn wait_exact_in<T>(
    installation: &Installation<'_>,
    kind: ReportKind,
    policy: &Policy,
    words: &str,
    (rejected, all): &(BTreeMap<ObjectKey, T>, usize),
    namespaces: &[String],
) -> Value {
    let id = format!("cluster/{}", policy.name());
    let audit = found(installation, policy, "figures that are right", |audit| {
        audit["checked"] == json!(all) && audit["violations"] == json!(rejected.len()) && audit["errors"] == 0
    });
    eventually("reports that are right", || {
        let reported = reported_by(installation, kind, &id, namespaces);
        assert!(reported.values().all(|message| message.contains(words)), "{reported:?}");
        reported.keys().eq(rejected.keys()).then_some(())
    });
    audit
}

/// How many audits a pod's evaluator has answered.
pub(crate) fn asked(pod: &Pod) -> u64 {
    let (_, text) =
        eventually("metrics", || pod.probe(Program::Evaluator, "/metrics").filter(|(code, _)| *code == 200));
    let outcomes = ["allowed", "denied", "changes", "failed"];
    let series = outcomes.map(|outcome| format!("portcullis_audits_total{{outcome=\"{outcome}\"}} "));
    let values = text.lines().filter_map(|line| series.iter().find_map(|series| line.strip_prefix(series.as_str())));
    values.filter_map(|value| value.trim().parse::<u64>().ok()).sum()
}

#[test]
#[ignore = "starts a cluster"]
fn promise_reports_name_the_objects_that_a_policy_rejects_and_no_others() {
    let installation = install("audits", "openreports").with(1);
    let namespaces = ["a", "b", "c"].map(|suffix| installation.make_namespace(suffix));
    for namespace in &namespaces {
        // One in three objects lacks the label; in the third namespace none does.
        fill(&installation, namespace, 100, |number| number % 3 == 0 && *namespace != namespaces[2]);
    }
    let policy = labels(&installation, "audits-labels");
    installation.apply_ready(std::slice::from_ref(&policy));
    let audit = wait_exact(&installation, &policy, &namespaces);
    let (rejected, all) = counted(&installation, &namespaces);
    assert_eq!((rejected.len(), all), (68, 300));
    assert_eq!(
        (&audit["generation"], &audit["unreadable"], &audit["message"]),
        (&json!(1), &Value::Null, &Value::Null)
    );
    let examples = audit["examples"].as_array().expect("examples");
    assert_eq!(examples.len(), 5);
    let titles: BTreeSet<_> =
        rejected.keys().map(|(namespace, name)| format!("ConfigMap {namespace}/{name}")).collect();
    assert!(examples.iter().all(|example| titles.contains(example.as_str().unwrap())), "{examples:?}");

    // Objects that have not changed are not audited again.
    let [pod] = installation.replicas().try_into().ok().expect("one replica");
    let before = asked(&pod);
    assert!(before >= 300, "{before}");
    scan(&installation, &policy);
    assert_eq!(asked(&pod), before);

    // One object gets the label, one loses it, and one is deleted.
    let path = |namespace: &String, name: &str| format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
    put_label(&installation, &path(&namespaces[0], "object-000"), "team", "shop");
    put_label(&installation, &path(&namespaces[2], "object-000"), "team", Value::Null);
    let deleted = installation.api().delete(&path(&namespaces[1], "object-000"), None);
    deleted.expect("an API server answers").expect("a deletion");
    scan(&installation, &policy);
    wait_exact(&installation, &policy, &namespaces);
    assert_eq!(asked(&pod), before + 2);

    // A new generation is asked about all objects.
    let stricter = policy.clone().field("settings", json!({ "labels": ["team", COUNTED] }));
    installation.apply_ready(std::slice::from_ref(&stricter));
    let audit = found(&installation, &stricter, "a scan of the new generation", |audit| audit["generation"] == 2);
    assert_eq!(audit["checked"], 299, "{audit}");
    wait_exact(&installation, &stricter, &namespaces);

    // When the policy is deleted, its reports are deleted too.
    let removed = installation.api().delete(&policy.path(), None);
    removed.expect("an API server answers").expect("a deletion");
    eventually("the end of all reports", || {
        reports(&installation, ReportKind::Report, &namespaces).is_empty().then_some(())
    });
}

#[test]
#[ignore = "starts a cluster"]
fn promise_reports_after_a_rollback_name_the_objects_of_the_rules_that_are_in_force() {
    let installation = install("audits-back", "openreports").with(1);
    let namespaces = ["a", "b"].map(|suffix| installation.make_namespace(suffix));
    for namespace in &namespaces {
        fill(&installation, namespace, 9, |number| number % 3 == 0);
    }
    let name = "audits-back-labels";
    let policy = labels(&installation, name);
    installation.apply_ready(std::slice::from_ref(&policy));
    wait_exact(&installation, &policy, &namespaces);

    // Generation 2 is about other objects.
    let other = labels_of_namespaces(&installation, name).field("objectSelector", json!({}));
    installation.apply_ready(std::slice::from_ref(&other));
    let counted = counted_namespaces(&installation);
    wait_exact_in(&installation, ReportKind::ClusterReport, &other, NO_TEAM, &counted, &namespaces);
    eventually("the end of the reports of generation 1", || {
        reports(&installation, ReportKind::Report, &namespaces).is_empty().then_some(())
    });

    // Its spec stays as it is, and that of generation 1 counts.
    let rolled_back = other.field("rollbackTo", 1);
    installation.apply_ready(std::slice::from_ref(&rolled_back));
    found(&installation, &rolled_back, "a scan of the rollback", |audit| audit["generation"] == 3);
    wait_exact(&installation, &rolled_back, &namespaces);
    eventually("the end of the reports of generation 2", || {
        reports(&installation, ReportKind::ClusterReport, &namespaces).is_empty().then_some(())
    });
    // Another scan changes nothing.
    let audit = scan(&installation, &rolled_back);
    assert_eq!((&audit["generation"], &audit["checked"]), (&json!(3), &json!(18)), "{audit}");
    wait_exact(&installation, &rolled_back, &namespaces);
}

#[test]
#[ignore = "starts a cluster"]
fn promise_a_policy_of_a_namespace_is_audited_there_and_a_suspended_one_not_at_all() {
    let installation = install("audits-own", "openreports").with(1);
    let namespaces = ["a", "b"].map(|suffix| installation.make_namespace(suffix));
    for namespace in &namespaces {
        fill(&installation, namespace, 10, |number| number < 3);
    }
    let own = installation.policy(&namespaces[0], "labels").example("required-labels").on(&["configmaps"]);
    let own = own.field("settings", json!({ "labels": ["team"] }));
    let own = own.field("objectSelector", json!({ "matchLabels": { COUNTED: "yes" } }));
    let suspended = labels(&installation, "audits-own-suspended").field("suspend", true);
    let watching = labels(&installation, "audits-own-watching").field("mode", "monitor");
    installation.apply_ready(&[own.clone(), watching.clone()]);
    installation.apply(&suspended).expect("the policy");
    let audit = found(&installation, &own, "its figures", |audit| audit["checked"] == 10);
    assert_eq!(audit["violations"], 3, "{audit}");
    // A policy in mode monitor is audited too.
    wait_exact(&installation, &watching, &namespaces);
    let audit = found(&installation, &suspended, "the reason", |audit| audit["message"].is_string());
    assert_eq!((&audit["generation"], &audit["checked"]), (&json!(0), &json!(0)), "{audit}");
    let id = format!("namespaced/{}/labels", namespaces[0]);
    eventually("its reports", || (reported(&installation, &id, &namespaces).len() == 3).then_some(()));
}

#[test]
#[ignore = "starts a cluster"]
fn promise_objects_in_no_namespace_have_reports_in_no_namespace() {
    let installation = install("audits-cluster", "openreports").with(1);
    let namespaces = ["a", "b", "c", "d", "e"].map(|suffix| installation.make_namespace(suffix));
    let path = |namespace: &String| format!("/api/v1/namespaces/{namespace}");
    for namespace in &namespaces[..2] {
        put_label(&installation, &path(namespace), "team", "shop");
    }
    let policy = labels_of_namespaces(&installation, "audits-cluster-labels");
    installation.apply_ready(std::slice::from_ref(&policy));
    let exact = || {
        let counted = counted_namespaces(&installation);
        wait_exact_in(&installation, ReportKind::ClusterReport, &policy, NO_TEAM, &counted, &namespaces);
        (counted.0.len(), counted.1)
    };
    assert_eq!(exact(), (3, 5));
    // The report has the same message as the webhook for a new object.
    let name = format!("{}-late", installation.namespace());
    let labels = json!({ "portcullis-test": installation.policy_server() });
    let late = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } });
    let reply = installation.api().create("/api/v1/namespaces?dryRun=All", &late).expect("an API server answers");
    let refusal = reply.body["message"].as_str().unwrap_or_default();
    let id = format!("cluster/{}", policy.name());
    let found = reported_by(&installation, ReportKind::ClusterReport, &id, &namespaces);
    assert!(found.values().all(|message| refusal.contains(message)), "{refusal}: {found:?}");
    assert!(reports(&installation, ReportKind::Report, &namespaces).is_empty());

    // One object gets the label, and one loses it.
    put_label(&installation, &path(&namespaces[2]), "team", "shop");
    put_label(&installation, &path(&namespaces[0]), "team", Value::Null);
    scan(&installation, &policy);
    assert_eq!(exact(), (3, 5));

    let removed = installation.api().delete(&policy.path(), None);
    removed.expect("an API server answers").expect("a deletion");
    eventually("the end of all reports", || {
        reports(&installation, ReportKind::ClusterReport, &namespaces).is_empty().then_some(())
    });
}
