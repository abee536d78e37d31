//! The names that a user would write for policies. Pure.

use portcullis_contract::PolicyId;

use super::Candidate;
use crate::name::Wanted;

/// The shortest name of each policy that begins with `prefix`; if none does, the ids that do, and then the names with a kind. With a
/// `namespace`, only its policies have short names.
pub(super) fn names(ids: &[PolicyId], namespace: Option<&str>, prefix: &str) -> Vec<Candidate> {
    let ids: Vec<&PolicyId> = ids.iter().collect();
    let means = |text: &str, id: &PolicyId| {
        let found = Wanted::parse(text, namespace).and_then(|wanted| wanted.find(&ids, ""));
        found.is_ok_and(|place| ids[place] == id)
    };
    let of_namespace = |id: &&&PolicyId| namespace.is_none_or(|of| id.namespace() == Some(of));
    let short = ids.iter().filter(of_namespace).map(|id| match means(id.name(), id) {
        true => Candidate::new(id.name().to_owned(), id.as_str()),
        false => Candidate::new(id.to_string(), ""),
    });
    let longer = |text: &dyn Fn(&PolicyId) -> String| {
        let texts = ids.iter().map(|id| (id, text(id))).filter(|(id, text)| means(text, id));
        texts.map(|(_, text)| Candidate::new(text, "")).collect()
    };
    let kind = |id: &PolicyId| if id.namespace().is_some() { "policy" } else { "clusterpolicy" };
    let ways = [short.collect(), longer(&PolicyId::to_string), longer(&|id| format!("{}/{}", kind(id), id.name()))];
    let fitting = |way: Vec<Candidate>| way.into_iter().filter(|one| one.word.starts_with(prefix)).collect();
    ways.into_iter().map(fitting).find(|way: &Vec<Candidate>| !way.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(namespace: Option<&str>, prefix: &str) -> String {
        let ids = ["cluster/a", "cluster/only", "namespaced/x/a", "namespaced/x/b", "namespaced/y/b"];
        let ids: Vec<PolicyId> = ids.into_iter().map(|id| id.parse().expect("an id")).collect();
        names(&ids, namespace, prefix).into_iter().map(|one| one.word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_shortest_name_that_means_one_policy() {
        assert_eq!(offered(None, ""), "cluster/a only namespaced/x/a namespaced/x/b namespaced/y/b");
        assert_eq!(offered(None, "on"), "only");
        assert_eq!(offered(Some("x"), ""), "a b");
        assert_eq!(offered(Some("nosuch"), ""), "cluster/a cluster/only");
    }

    #[test]
    fn longer_names_where_the_user_begins_one() {
        assert_eq!(offered(None, "cluster/o"), "cluster/only");
        assert_eq!(offered(None, "clusterpolicy/"), "clusterpolicy/a clusterpolicy/only");
        assert_eq!(offered(None, "policy/"), "policy/a", "another policy is named b too");
        assert_eq!(offered(Some("x"), "cluster/"), "cluster/a cluster/only");
        assert_eq!(offered(None, "z"), "");
    }
}
