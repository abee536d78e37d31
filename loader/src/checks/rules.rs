//! Which words of a policy's rules match nothing in a cluster, and what was probably meant. Pure.
//!
//! A rule may name more than a cluster has, so that it fits several clusters: a resource counts as there when any group and version of its
//! rule has it.

use std::collections::BTreeSet;

use portcullis_contract::{RuleWithOperations, clean};

use super::nearest::nearest;
use super::served::{Served, ServedResource, ServedVersion};

/// Most findings about one policy.
const MOST: usize = 4;
/// Most words of a list that are quoted.
const MOST_WORDS: usize = 4;
/// Longest finding, in bytes.
const LONGEST: usize = 400;

/// What the rules of a policy name but the cluster does not have, a sentence each. `is_policy` is true for a Policy, which is asked about
/// its own namespace only.
pub(super) fn unmatched(rules: &[RuleWithOperations], is_policy: bool, served: &Served) -> Vec<String> {
    let words = rules.iter().enumerate().flat_map(|(number, rule)| {
        let mut seen = BTreeSet::new();
        let words = rule.resources.iter().filter(move |word| seen.insert(word.as_str()));
        words.map(move |word| (number, Named::of(rule, word)))
    });
    let found = words.filter_map(|(number, named)| {
        let problem = named.problem(is_policy, served)?;
        Some(clean(&format!("RulesMatchNothing: spec.rules[{number}]: {problem}"), LONGEST))
    });
    found.take(MOST).collect()
}

/// What one word of a rule's resources names.
struct Named<'r> {
    rule: &'r RuleWithOperations,
    /// The resource; `*` for all.
    resource: &'r str,
    /// The subresource; `*` for all.
    subresource: Option<&'r str>,
}

/// A resource of a cluster that a word may mean.
#[derive(Clone, Copy)]
struct Hit<'s> {
    group: &'s str,
    version: &'s str,
    resource: &'s ServedResource,
}

impl<'r> Named<'r> {
    fn of(rule: &'r RuleWithOperations, word: &'r str) -> Self {
        let (resource, subresource) = match word.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource)),
            None => (word, None),
        };
        Self { rule, resource, subresource }
    }

    fn problem(&self, is_policy: bool, served: &Served) -> Option<String> {
        let groups = served.groups(&self.rule.api_groups);
        let hits = self.hits(&groups);
        let with_subresource: Vec<_> = hits.iter().copied().filter(|hit| self.has_subresource(hit)).collect();
        let is_version = |version: &str| has(&self.rule.api_versions, version);
        let matching: Vec<_> = with_subresource.iter().copied().filter(|hit| is_version(hit.version)).collect();
        if !matching.is_empty() {
            return self.scope(is_policy, &matching);
        }
        // An aggregated API server that is down may serve the resource.
        if groups.iter().any(|(_, versions)| versions.iter().any(|version| version.is_stale)) {
            return None;
        }
        Some(if groups.is_empty() {
            self.no_group(served)
        } else if hits.is_empty() {
            self.no_resource(&groups, served)
        } else if with_subresource.is_empty() {
            self.no_subresource(&hits)
        } else {
            self.other_versions(&with_subresource)
        })
    }

    /// The resources of these groups that it names, in any version.
    fn hits<'s>(&self, groups: &[(&'s str, &'s [ServedVersion])]) -> Vec<Hit<'s>> {
        let mut hits = Vec::new();
        for &(group, versions) in groups {
            for version in versions {
                let named = version.resources.iter().filter(|(name, _)| self.resource == "*" || *name == self.resource);
                hits.extend(named.map(|(_, resource)| Hit { group, version: &version.name, resource }));
            }
        }
        hits
    }

    fn has_subresource(&self, hit: &Hit<'_>) -> bool {
        self.subresource.is_none_or(|name| name == "*" || hit.resource.subresources.contains(name))
    }

    /// The problem with the rule's scope, if none of the resources that match is in it.
    fn scope(&self, is_policy: bool, matching: &[Hit<'_>]) -> Option<String> {
        let all_are = |is_namespaced: bool| matching.iter().all(|hit| hit.resource.is_namespaced == is_namespaced);
        let those = if self.resource == "*" { "all resources that it names" } else { self.resource };
        match self.rule.scope.as_deref() {
            Some("Cluster") if all_are(true) => {
                Some(format!("its scope is Cluster, and {those} are in namespaces: use Namespaced or *"))
            }
            Some("Namespaced") if all_are(false) && is_policy => Some(format!(
                "a Policy is asked about objects in its namespace only, and {those} are in none: use a ClusterPolicy"
            )),
            Some("Namespaced") if all_are(false) => {
                Some(format!("its scope is Namespaced, and {those} are in no namespace: use Cluster or *"))
            }
            _ => None,
        }
    }

    fn no_group(&self, served: &Served) -> String {
        let groups = &self.rule.api_groups;
        let missing = match groups.as_slice() {
            [group] => format!("this cluster has no API group {group:?}"),
            _ => format!("this cluster has none of the API groups {}", quoted(groups)),
        };
        let meant = || {
            let all: Vec<&str> = served.all().map(|(group, _)| group).collect();
            let longer = |word: &str| all.iter().find(|group| group.split('.').next() == Some(word)).copied();
            let found = groups.iter().find_map(|word| longer(word).or_else(|| nearest(word, all.iter().copied())))?;
            Some(format!("; did you mean {found:?}?"))
        };
        format!("{missing}{}", self.elsewhere(served).or_else(meant).unwrap_or_default())
    }

    fn no_resource(&self, groups: &[(&str, &[ServedVersion])], served: &Served) -> String {
        let RuleWithOperations { api_groups, api_versions, .. } = self.rule;
        let of_groups = match api_groups.as_slice() {
            [group] if group == "*" => String::new(),
            [group] => format!(" in group {group:?}"),
            _ => format!(" in groups {}", quoted(api_groups)),
        };
        let of_versions = match api_versions.as_slice() {
            [version] if version == "*" => String::new(),
            [version] => format!(" version {version}"),
            _ => format!(" versions {}", listed(api_versions)),
        };
        let all = || groups.iter().flat_map(|(_, versions)| versions.iter()).flat_map(|version| &version.resources);
        let lower = self.resource.to_lowercase();
        let other_name = || all().find(|(name, known)| **name == lower || known.other_names.contains(&lower));
        let near = || nearest(self.resource, all().map(|(name, _)| name.as_str()));
        let meant = |name: &str| format!("; did you mean {name:?}?");
        let next = match other_name() {
            Some((name, _)) => Some(meant(name)),
            None => self.elsewhere(served).or_else(|| near().map(meant)),
        };
        let next = next.unwrap_or_default();
        format!("this cluster has no resource {:?}{of_groups}{of_versions}{next}", self.resource)
    }

    /// A hint that another group has the resource.
    fn elsewhere(&self, served: &Served) -> Option<String> {
        let lower = self.resource.to_lowercase();
        let of_group = |(group, versions): (&str, &[ServedVersion])| {
            let mut all = versions.iter().flat_map(|version| &version.resources);
            let found = all.find(|(name, known)| **name == lower || known.other_names.contains(&lower))?;
            Some(format!("; {:?} are in group {group:?}", found.0))
        };
        served.all().find_map(of_group)
    }

    fn no_subresource(&self, hits: &[Hit<'_>]) -> String {
        let subresource = self.subresource.unwrap_or_default();
        let known: BTreeSet<&str> =
            hits.iter().flat_map(|hit| &hit.resource.subresources).map(String::as_str).collect();
        let meant = nearest(subresource, known).map(|name| format!("; did you mean {name:?}?")).unwrap_or_default();
        match self.resource {
            "*" => format!("no resource that it names has a subresource {subresource:?} in this cluster{meant}"),
            name => format!("{name:?} have no subresource {subresource:?} in this cluster{meant}"),
        }
    }

    fn other_versions(&self, hits: &[Hit<'_>]) -> String {
        let mut there = Vec::new();
        for hit in hits {
            let name = in_group(hit.group, hit.version);
            if !there.contains(&name) {
                there.push(name);
            }
        }
        let groups: BTreeSet<&str> = hits.iter().map(|hit| hit.group).collect();
        let mut wanted = Vec::new();
        for group in groups {
            wanted.extend(self.rule.api_versions.iter().map(|version| in_group(group, version)));
        }
        let those = if self.resource == "*" { "the resources that it names" } else { self.resource };
        format!("{those} are served in {}, not {}", listed(&there), listed(&wanted))
    }
}

fn in_group(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn has(words: &[String], word: &str) -> bool {
    words.iter().any(|entry| entry == "*" || entry == word)
}

fn quoted(words: &[String]) -> String {
    listed(&words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>())
}

/// The first words, and whether there are more.
fn listed(words: &[String]) -> String {
    let more = if words.len() > MOST_WORDS { " and others" } else { "" };
    format!("{}{more}", words[..words.len().min(MOST_WORDS)].join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::served::tests::served;
    use super::*;

    fn rule(groups: &[&str], versions: &[&str], resources: &[&str], scope: Option<&str>) -> RuleWithOperations {
        let list = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        RuleWithOperations {
            api_groups: list(groups),
            api_versions: list(versions),
            resources: list(resources),
            operations: list(&["CREATE"]),
            scope: scope.map(str::to_owned),
        }
    }

    fn findings(rule: RuleWithOperations) -> Vec<String> {
        let found = unmatched(&[rule], false, &served("Current"));
        let prefix = "RulesMatchNothing: spec.rules[0]: ";
        found.iter().map(|text| text.strip_prefix(prefix).expect("a finding").to_owned()).collect()
    }

    #[test]
    fn what_a_cluster_has_is_no_finding() {
        for (groups, versions, resources) in [
            (&[""][..], &["v1"][..], &["pods", "pods/exec", "namespaces", "bindings"][..]),
            (&["*"], &["*"], &["*/*"]),
            (&["*"], &["v1"], &["*"]),
            (&["apps"], &["v1"], &["*/scale", "deployments/*"]),
            // Written for several clusters.
            (&["apps", "extensions"], &["v1", "v1beta1"], &["deployments"]),
            (&["", "apps"], &["*"], &["pods", "deployments"]),
        ] {
            assert_eq!(findings(rule(groups, versions, resources, None)), [""; 0], "{resources:?}");
        }
    }

    #[test]
    fn what_was_meant_is_named() {
        for (groups, versions, resource, text) in [
            (
                &[""][..],
                &["v1"][..],
                "pod",
                r#"this cluster has no resource "pod" in group "" version v1; did you mean "pods"?"#,
            ),
            (
                &[""],
                &["v1", "v2"],
                "Configmap",
                r#"this cluster has no resource "Configmap" in group "" versions v1, v2; did you mean "configmaps"?"#,
            ),
            (
                &[""],
                &["*"],
                "configmps",
                r#"this cluster has no resource "configmps" in group ""; did you mean "configmaps"?"#,
            ),
            (
                &[""],
                &["v1"],
                "deployments",
                r#"this cluster has no resource "deployments" in group "" version v1; "deployments" are in group "apps""#,
            ),
            (&["app"], &["v1"], "replicasets", r#"this cluster has no API group "app"; did you mean "apps"?"#),
            (&["metrics"], &["v1"], "*", r#"this cluster has no API group "metrics"; did you mean "metrics.k8s.io"?"#),
            (
                &["a", "b"],
                &["v1"],
                "deployments",
                r#"this cluster has none of the API groups "a", "b"; "deployments" are in group "apps""#,
            ),
            (&["apps"], &["v1beta1"], "deployments", "deployments are served in apps/v1, not apps/v1beta1"),
            (&[""], &["v2"], "pods", "pods are served in v1, not v2"),
            (
                &["autoscaling"],
                &["v2beta2"],
                "horizontalpodautoscalers",
                "horizontalpodautoscalers are served in autoscaling/v2, autoscaling/v1, not autoscaling/v2beta2",
            ),
            (&["apps"], &["v2"], "*", "the resources that it names are served in apps/v1, not apps/v2"),
            (&[""], &["v1"], "pods/exce", r#""pods" have no subresource "exce" in this cluster; did you mean "exec"?"#),
            (&["apps"], &["v1"], "*/logs", r#"no resource that it names has a subresource "logs" in this cluster"#),
            (&["*"], &["*"], "nothings", r#"this cluster has no resource "nothings""#),
        ] {
            assert_eq!(findings(rule(groups, versions, &[resource], None)), [text]);
        }
    }

    #[test]
    fn a_scope_that_no_resource_has_is_a_finding() {
        let scoped = |resource: &str, scope: &str| findings(rule(&[""], &["v1"], &[resource], Some(scope)));
        assert_eq!(
            scoped("pods", "Cluster"),
            ["its scope is Cluster, and pods are in namespaces: use Namespaced or *"]
        );
        assert_eq!(
            scoped("namespaces", "Namespaced"),
            ["its scope is Namespaced, and namespaces are in no namespace: use Cluster or *"]
        );
        for (resource, scope) in [("pods", "Namespaced"), ("namespaces", "Cluster"), ("*", "Cluster"), ("pods", "*")] {
            assert_eq!(scoped(resource, scope), [""; 0], "{resource} {scope}");
        }
        let of_policy =
            unmatched(&[rule(&[""], &["v1"], &["namespaces"], Some("Namespaced"))], true, &served("Current"));
        assert!(of_policy[0].contains("a Policy is asked about objects in its namespace only"), "{of_policy:?}");
    }

    #[test]
    fn nothing_is_said_about_what_is_not_known() {
        let metrics = || rule(&["metrics.k8s.io"], &["v1beta1"], &["nodes"], None);
        assert_eq!(unmatched(&[metrics()], false, &served("Stale")), [""; 0]);
        assert_eq!(findings(metrics()).len(), 1);
        let all = rule(&["*"], &["*"], &["nothings"], None);
        assert_eq!(unmatched(&[all], false, &served("Stale")), [""; 0]);
    }

    #[test]
    fn findings_are_few_and_short() {
        let words: Vec<String> = (0..32).map(|number| format!("{}{number}", "\u{1b}x".repeat(60))).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let found = unmatched(&[rule(&words, &words, &words, None)], false, &served("Current"));
        assert_eq!(found.len(), MOST);
        assert!(found.iter().all(|text| text.len() <= LONGEST && !text.contains('\u{1b}')), "{found:?}");
    }
}
