//! Which resources are listed, and which policies are asked about the objects of each. Pure.

use portcullis_contract::PolicyId;
use portcullis_matching::{Asked, Decision, Namespaces, Resource, labels};
use serde_json::Value;

use super::subject::Subject;

/// The user name in the reviews that policies are asked about.
pub(super) const USER: &str = "portcullis-audit";

/// API groups whose objects are not audited: reports, ours among them.
const REPORTS: [&str; 2] = ["openreports.io", "wgpolicyk8s.io"];
/// Resources whose objects come and go all the time and say nothing about a workload, each with its group.
const RESTLESS: [(&str, &str); 3] = [("", "events"), ("coordination.k8s.io", "leases"), ("events.k8s.io", "events")];

/// What a scan does.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) subjects: Vec<Subject>,
    pub(super) lists: Vec<List>,
    /// Policies whose results stay in all reports.
    pub(super) kept: Vec<PolicyId>,
}

/// A resource whose objects are listed once for all policies.
#[derive(Debug)]
pub(super) struct List {
    pub(super) resource: Resource,
    /// Whether an earlier list of the plan has the same objects in another version.
    pub(super) is_repeated: bool,
    /// The policies whose rules name it.
    pub(super) asking: Vec<Asking>,
}

/// A policy that is asked about objects of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asking {
    /// Its index in [`Plan::subjects`].
    pub(super) subject: usize,
    /// The operation to ask about.
    pub(super) operation: &'static str,
}

/// Which policies match an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Matching {
    /// The policies to ask.
    pub(super) asking: Vec<Asking>,
    /// The indices of subjects whose match conditions cannot be evaluated here.
    pub(super) unknown: Vec<usize>,
    /// The indices of subjects that may match and are not asked, as the object takes too much memory.
    pub(super) too_large: Vec<usize>,
    /// The indices of subjects that cannot be asked now: this pod's evaluator does not serve them, or the labels of the object's namespace are not known.
    pub(super) unasked: Vec<usize>,
    /// The indices of subjects that have used up their budget, whose match conditions were not evaluated.
    pub(super) left_out: Vec<usize>,
}

/// The labels of the namespaces.
#[derive(Debug, Default)]
pub(super) struct KnownNamespaces {
    pub(super) labels: Namespaces,
    /// Whether the list of namespaces ended early, so that there are others.
    pub(super) is_cut: bool,
}

impl Plan {
    /// The plan for these policies in a cluster with these resources.
    pub(super) fn new(subjects: Vec<Subject>, known: &[Resource]) -> Self {
        let known: Vec<Resource> = known.iter().filter(|resource| is_audited(resource)).cloned().collect();
        let mut lists: Vec<List> = Vec::new();
        for (number, subject) in subjects.iter().enumerate() {
            for (resource, operation) in subject.scope.resources(&known) {
                let asking = Asking { subject: number, operation };
                match lists.iter_mut().find(|list| list.resource == resource) {
                    Some(list) => list.asking.push(asking),
                    None => lists.push(List { resource, is_repeated: false, asking: vec![asking] }),
                }
            }
        }
        // In the order in which the API server lists them, so that the preferred version comes first.
        lists.sort_by_key(|list| known.iter().position(|resource| *resource == list.resource));
        for index in 1..lists.len() {
            let (before, rest) = lists.split_at_mut(index);
            let is_same = |other: &List| {
                (&other.resource.group, &other.resource.name) == (&rest[0].resource.group, &rest[0].resource.name)
            };
            rest[0].is_repeated = before.iter().any(is_same);
        }
        Self { subjects, lists, kept: Vec::new() }
    }

    /// Which policies match an object of a list. `evaluated` evaluates the match conditions of a policy, or does not, where the policy has used up its
    /// budget.
    pub(super) fn matching(
        &self,
        list: &List,
        object: &Value,
        namespaces: &KnownNamespaces,
        mut evaluated: impl FnMut(&Subject, &dyn Fn() -> Decision) -> Option<Decision>,
    ) -> Matching {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let namespace = text("namespace");
        let is_unknown = namespaces.is_cut && !namespace.is_empty() && !namespaces.labels.contains_key(namespace);
        let mut matching = Matching::default();
        for asking in &list.asking {
            let subject = &self.subjects[asking.subject];
            let by_namespace = is_unknown && subject.scope.namespaces().is_some();
            let is_selected = match by_namespace {
                true => {
                    !subject.scope.leaves_out(namespace)
                        && subject.scope.namespace().is_none_or(|own| own == namespace)
                        && subject.scope.objects().selects(&labels(&object["metadata"]))
                }
                false => subject.scope.selects(&list.resource, object, &namespaces.labels),
            };
            if !is_selected {
                continue;
            }
            let decide = || {
                let asked = Asked::of(&list.resource, asking.operation, namespace);
                subject.conditions.decide(USER, &asked, &list.resource.kind, text("name"), object)
            };
            match evaluated(subject, &decide) {
                None => matching.left_out.push(asking.subject),
                Some(Decision::Excluded) => {}
                Some(Decision::Unknown(_)) => matching.unknown.push(asking.subject),
                Some(Decision::Matches) if subject.generation == 0 || by_namespace => {
                    matching.unasked.push(asking.subject);
                }
                Some(Decision::Matches) => matching.asking.push(*asking),
            }
        }
        matching
    }

    /// The same for an object that takes too much memory.
    pub(super) fn too_large(list: &List) -> Matching {
        Matching { too_large: list.asking.iter().map(|asking| asking.subject).collect(), ..Matching::default() }
    }

    /// Whether a policy selects namespaces by their labels.
    pub(super) fn needs_namespaces(&self) -> bool {
        self.subjects.iter().any(|subject| subject.scope.namespaces().is_some())
    }
}

/// Whether objects of a resource are audited.
fn is_audited(resource: &Resource) -> bool {
    let is = |(group, name): &(&str, &str)| resource.group == *group && resource.name == *name;
    !REPORTS.contains(&resource.group.as_str()) && !RESTLESS.iter().any(is)
}

#[cfg(test)]
mod tests {
    use portcullis_api::{Kind, PolicyKey};
    use portcullis_matching::Labels;
    use serde_json::json;

    use super::*;
    use crate::audit::in_force::Content;
    use crate::audit::subject::{Read, Served, Site, read};

    /// A policy; one whose name begins with `unserved` is not served.
    fn subject(name: &str, spec: &Value) -> Subject {
        let site = Site { policy_server: "default".into(), namespace: "portcullis".into() };
        let uid = format!("uid-{name}");
        let served =
            if name.starts_with("unserved") { Served::new() } else { Served::from([(PolicyKey::of(&uid), 1)]) };
        let object = json!({"metadata": {"name": name, "uid": uid}, "spec": spec});
        match read(Kind::ClusterPolicy, &object, &Content::Own, &site, &served) {
            Some(Read::Subject(subject)) => *subject,
            other => panic!("{other:?}"),
        }
    }

    fn rule(groups: &[&str], versions: &[&str], resources: &[&str], operations: &[&str]) -> Value {
        json!({"apiGroups": groups, "apiVersions": versions, "resources": resources, "operations": operations})
    }

    fn known() -> Vec<Resource> {
        let resource = |group: &str, version: &str, name: &str, kind: &str| Resource {
            group: group.into(),
            version: version.into(),
            name: name.into(),
            kind: kind.into(),
            namespaced: true,
        };
        vec![
            resource("", "v1", "events", "Event"),
            resource("", "v1", "pods", "Pod"),
            resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
            resource("autoscaling", "v1", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
            resource("coordination.k8s.io", "v1", "leases", "Lease"),
            resource("openreports.io", "v1alpha1", "reports", "Report"),
        ]
    }

    fn lists(plan: &Plan) -> Vec<String> {
        let line = |list: &List| {
            let asking: Vec<_> = list
                .asking
                .iter()
                .map(|one| format!("{} {}", plan.subjects[one.subject].id.name(), one.operation))
                .collect();
            format!("{}/{}: {}", list.resource.title(), list.resource.version, asking.join(", "))
        };
        plan.lists.iter().map(line).collect()
    }

    #[test]
    fn each_resource_is_listed_once_for_all_policies() {
        let all = json!({"rules": [rule(&["*"], &["*"], &["*/*"], &["*"])]});
        let pods = json!({"rules": [rule(&[""], &["v1"], &["pods"], &["UPDATE"])]});
        let deletions = json!({"rules": [rule(&["*"], &["*"], &["*"], &["DELETE", "CONNECT"])]});
        let subresource = json!({"rules": [rule(&[""], &["v1"], &["pods/status"], &["UPDATE"])]});
        let plan = Plan::new(
            vec![
                subject("pods", &pods),
                subject("all", &all),
                subject("deletions", &deletions),
                subject("subresource", &subresource),
            ],
            &known(),
        );
        assert_eq!(
            lists(&plan),
            ["pods/v1: pods UPDATE, all CREATE", "horizontalpodautoscalers.autoscaling/v2: all CREATE"],
            "neither events, Leases nor reports"
        );
    }

    #[test]
    fn a_version_that_only_some_name_is_a_list_of_its_own() {
        let any = json!({"rules": [rule(&["autoscaling"], &["*"], &["*"], &["CREATE"])]});
        let old = json!({"rules": [rule(&["autoscaling"], &["v1"], &["*"], &["CREATE"])]});
        let plan = Plan::new(vec![subject("old", &old), subject("any", &any)], &known());
        let title = "horizontalpodautoscalers.autoscaling";
        assert_eq!(lists(&plan), [format!("{title}/v2: any CREATE"), format!("{title}/v1: old CREATE")]);
        assert_eq!(plan.lists.iter().map(|list| list.is_repeated).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn an_object_is_asked_about_only_where_selectors_and_conditions_match() {
        let with = |name: &str, field: &str, value: Value| {
            let mut spec = json!({"rules": [rule(&[""], &["v1"], &["pods"], &["CREATE"])]});
            spec[field] = value;
            subject(name, &spec)
        };
        let condition = |text: &str| json!([{"name": "c", "expression": text}]);
        let plan = Plan::new(
            vec![
                with("labels", "objectSelector", json!({"matchLabels": {"app": "shop"}})),
                with("namespaces", "namespaceSelector", json!({"matchLabels": {"env": "prod"}})),
                with("name", "matchConditions", condition("object.metadata.name == 'web'")),
                with(
                    "asks",
                    "matchConditions",
                    condition("authorizer.group('').resource('pods').check('get').allowed()"),
                ),
                with("unserved", "mode", json!("protect")),
            ],
            &known(),
        );
        assert!(plan.needs_namespaces());
        let labels = Namespaces::from([
            ("prod".to_owned(), Labels::from([("env".to_owned(), "prod".to_owned())])),
            ("test".to_owned(), Labels::new()),
        ]);
        let mut namespaces = KnownNamespaces { labels, is_cut: false };
        let matching = |namespaces: &KnownNamespaces, name: &str, namespace: &str, app: &str| {
            let object = json!({"metadata": {"name": name, "namespace": namespace, "labels": {"app": app}}});
            let matching = plan.matching(&plan.lists[0], &object, namespaces, |_, decide| Some(decide()));
            assert_eq!(matching.unknown, [3]);
            (matching.asking.iter().map(|asking| asking.subject).collect::<Vec<_>>(), matching.unasked)
        };
        assert_eq!(matching(&namespaces, "web", "prod", "shop"), (vec![0, 1, 2], vec![4]));
        assert_eq!(matching(&namespaces, "web", "test", "other"), (vec![2], vec![4]));
        assert_eq!(matching(&namespaces, "other", "prod", "other"), (vec![1], vec![4]));
        assert_eq!(matching(&namespaces, "other", "elsewhere", "other"), (vec![], vec![4]));

        // Where the list of namespaces was cut, nothing is known of those that it lacks.
        namespaces.is_cut = true;
        assert_eq!(matching(&namespaces, "other", "elsewhere", "other"), (vec![], vec![1, 4]));
        assert_eq!(matching(&namespaces, "other", "test", "other"), (vec![], vec![4]));
        let object = json!({"metadata": {"name": "other", "namespace": "kube-system"}});
        let matching = plan.matching(&plan.lists[0], &object, &namespaces, |_, decide| Some(decide()));
        assert_eq!(matching, Matching::default(), "no ClusterPolicy is asked about a system namespace");

        // The conditions of a policy that has used up its budget are not evaluated.
        let object = json!({"metadata": {"name": "other", "namespace": "test"}});
        let evaluated = |subject: &Subject, decide: &dyn Fn() -> Decision| (subject.id.name() != "name").then(decide);
        let matching = plan.matching(&plan.lists[0], &object, &namespaces, evaluated);
        assert_eq!((matching.left_out, matching.asking), (vec![2], vec![]));
    }
}
