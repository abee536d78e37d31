//! Which objects of the cluster policies wait for, because they read all objects of a kind, and what is wrong with
//! these objects.

use std::collections::{BTreeMap, HashMap};

use portcullis_contract::{
    Capability, ContextAwareResource, ContextProblem, ContextReason, ExecutionMode, PolicyId, is_granted,
};

/// The objects of one kind, as a policy reads them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ContextNeed {
    /// Their kind.
    pub(crate) kind: ContextAwareResource,
    /// Whether the whole objects are needed, as for rules in Rego. Otherwise a guest calls for them: what it selects is known only then, but
    /// until then it must be possible to watch the kind.
    pub(crate) whole: bool,
}

impl ContextNeed {
    /// What a module of this mode with these grants waits for. A guest that may only list the objects of one namespace
    /// at a time waits for nothing, because the installation may have rights in some namespaces only; nor does a guest
    /// that may only get single objects.
    pub fn of(
        policy: &PolicyId,
        mode: ExecutionMode,
        capabilities: &[String],
        kinds: &[ContextAwareResource],
    ) -> Vec<Self> {
        let reads_all = mode.is_rego() || is_granted(capabilities, Capability::ListAll.path());
        if !reads_all || policy.namespace().is_some() {
            return Vec::new();
        }
        let need = |kind: &ContextAwareResource| Self { kind: kind.clone(), whole: mode.is_rego() };
        kinds.iter().map(need).collect()
    }
}

/// What is wrong with the objects that policies read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contexts(pub(crate) HashMap<ContextNeed, Option<ContextProblem>>);

impl Contexts {
    /// What is wrong with the objects that one policy needs: at most one entry for each kind, the worst first.
    pub fn problems(&self, needs: &[ContextNeed]) -> Vec<ContextProblem> {
        let unknown = |need: &ContextNeed| {
            let ContextAwareResource { api_version, kind } = &need.kind;
            ContextProblem::new(ContextReason::ContextNotSynced, format!("{api_version}/{kind}: it is being read"))
        };
        let problem = |need| self.0.get(need).map_or_else(|| Some(unknown(need)), Clone::clone);
        let found = needs.iter().filter_map(|need| Some(((&need.kind.api_version, &need.kind.kind), problem(need)?)));
        let mut problems: Vec<_> = found.collect::<BTreeMap<_, _>>().into_values().collect();
        problems.sort_by_key(|problem| problem.reason);
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds() -> Vec<ContextAwareResource> {
        ["Namespace", "Pod"].map(|kind| ContextAwareResource { api_version: "v1".into(), kind: kind.into() }).to_vec()
    }

    fn needs(policy: &str, mode: ExecutionMode, grants: &[&str]) -> Vec<bool> {
        let grants: Vec<_> = grants.iter().map(|grant| (*grant).to_owned()).collect();
        let needs = ContextNeed::of(&policy.parse().expect("an id"), mode, &grants, &kinds());
        needs.iter().map(|need| need.whole).collect()
    }

    #[test]
    fn rules_in_rego_need_all_objects_and_guests_that_may_list_all_the_right_to_them() {
        use ExecutionMode::{Gatekeeper, KubewardenWapc, Opa, Wasi};
        assert_eq!(needs("cluster/a", Opa, &[]), [true, true]);
        assert_eq!(needs("cluster/a", Gatekeeper, &["oci/*"]), [true, true]);
        assert_eq!(needs("cluster/a", Wasi, &["kubernetes/*"]), [false, false]);
        assert_eq!(needs("cluster/a", KubewardenWapc, &["kubernetes/list_resources_all"]), [false, false]);
        let few = ["kubernetes/list_resources_by_namespace", "kubernetes/get_resource", "oci/*"];
        assert!(needs("cluster/a", KubewardenWapc, &few).is_empty(), "the right to one namespace may be enough");
        assert!(needs("namespaced/team/a", Opa, &["*"]).is_empty(), "a namespace reads nothing");
    }

    #[test]
    fn what_nobody_has_looked_at_is_missing_and_the_worst_comes_first() {
        let needs = ContextNeed::of(&"cluster/a".parse().expect("an id"), ExecutionMode::Opa, &[], &kinds());
        let told = |contexts: &Contexts| {
            let problems = contexts.problems(&needs);
            problems.iter().map(|problem| format!("{:?} {}", problem.reason, problem.message)).collect::<Vec<_>>()
        };
        let being_read = |kind| format!("ContextNotSynced v1/{kind}: it is being read");
        assert_eq!(told(&Contexts::default()), [being_read("Namespace"), being_read("Pod")]);
        let forbidden = ContextProblem::new(ContextReason::ContextForbidden, "in words");
        let mut contexts = Contexts([(needs[1].clone(), Some(forbidden))].into());
        assert_eq!(told(&contexts), ["ContextForbidden in words".to_owned(), being_read("Namespace")]);
        contexts.0 = needs.iter().map(|need| (need.clone(), None)).collect();
        assert!(told(&contexts).is_empty());
    }
}
