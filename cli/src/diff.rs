//! `portcullis diff`: what differs between two generations of a policy.

use portcullis_contract::PolicyId;
use serde_json::{Map, Value};
use similar::TextDiff;

use crate::args::DiffArgs;
use crate::cluster::{Cluster, ClusterError, check_namespace};
use crate::item::Item;
use crate::name::Wanted;

/// Lines around a difference.
const CONTEXT: usize = 3;

/// Why two generations cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// No older generation was named, and none served.
    #[error("no generation before {before} of {id} has served: name two, as in `portcullis diff {id} {} {before}`", before - 1)]
    NothingServed {
        /// The policy.
        id: PolicyId,
        /// The newer generation.
        before: i64,
    },
    /// A generation has no revision.
    #[error(
        "generation {generation} of {id} has no revision in the namespace {namespace:?}: it never was, it has been removed \
         (spec.revisionHistoryLimit), or the installation is in another namespace (--installation-namespace)"
    )]
    Gone {
        /// The policy.
        id: PolicyId,
        /// The generation.
        generation: i64,
        /// Where it was looked for.
        namespace: String,
    },
    /// The user may not read revisions.
    #[error(
        "the content of generations is kept in revisions in the namespace {namespace:?}, and reading them is a right of its own"
    )]
    Forbidden {
        /// Where they are.
        namespace: String,
        /// What is missing.
        #[source]
        source: Box<ClusterError>,
    },
}

/// The text of `portcullis diff`.
///
/// # Errors
/// When the policy or a generation cannot be read.
pub async fn diff(cluster: &Cluster, args: &DiffArgs) -> anyhow::Result<String> {
    check_namespace("--installation-namespace", &args.installation_namespace)?;
    let item = cluster.find(&Wanted::parse(&args.target.policy, args.target.source.namespace.as_deref())?).await?;
    let generations = choose(&item, args.from, args.to)?;
    let mut specs = Vec::new();
    for generation in generations {
        let namespace = &args.installation_namespace;
        let spec = match cluster.revision_spec(&item, generation, namespace).await {
            Err(source @ ClusterError::Forbidden { .. }) => {
                return Err(DiffError::Forbidden { namespace: namespace.clone(), source: Box::new(source) }.into());
            }
            other => other?,
        };
        let gone = || DiffError::Gone { id: item.id.clone(), generation, namespace: namespace.clone() };
        specs.push(text(&spec.ok_or_else(gone)?)?);
    }
    Ok(unified(&item.id, generations, [&specs[0], &specs[1]]))
}

/// The older and the newer generation to compare. By default the newer one is the newest, and the older one the last that served before it.
fn choose(item: &Item, from: Option<i64>, to: Option<i64>) -> Result<[i64; 2], DiffError> {
    let to = to.unwrap_or_else(|| item.generation());
    let served = || item.history().into_iter().find(|entry| entry.served && entry.generation < to);
    let nothing = || DiffError::NothingServed { id: item.id.clone(), before: to };
    let from = match from {
        Some(from) => from,
        None => served().ok_or_else(nothing)?.generation,
    };
    Ok([from, to])
}

/// A spec as YAML. Its fields are sorted, as different programs may write them in a different order.
fn text(spec: &Value) -> Result<String, portcullis_yaml::WriteError> {
    portcullis_yaml::write(&sorted(spec))
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            keys.sort();
            Value::Object(keys.into_iter().map(|key| (key.clone(), sorted(&fields[key]))).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

/// A unified diff; empty when nothing differs.
fn unified(id: &PolicyId, [from, to]: [i64; 2], [old, new]: [&str; 2]) -> String {
    let names = [from, to].map(|generation| format!("{id} generation {generation}"));
    let diff = TextDiff::from_lines(old, new);
    diff.unified_diff().context_radius(CONTEXT).header(&names[0], &names[1]).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::item::tests::failing;

    #[test]
    fn without_numbers_the_last_that_served_and_the_newest() {
        let item = failing();
        assert_eq!(choose(&item, None, None).expect("two"), [3, 4]);
        assert_eq!(choose(&item, None, Some(3)).expect("two"), [1, 3]);
        assert_eq!(choose(&item, Some(2), None).expect("two"), [2, 4]);
        let error = choose(&item, None, Some(1)).expect_err("nothing");
        assert!(
            error.to_string().starts_with("no generation before 1 of cluster/labels has served: name two"),
            "{error}"
        );
    }

    #[test]
    fn fields_are_compared_and_not_their_order() {
        let old = text(&json!({"mode": "warn", "settings": {"b": 1, "a": ["x"]}})).expect("YAML");
        let new = text(&json!({"settings": {"a": ["z"], "b": 1}, "mode": "warn"})).expect("YAML");
        let id = "cluster/labels".parse().expect("an id");
        assert_eq!(
            unified(&id, [3, 4], [&old, &new]),
            "\
--- cluster/labels generation 3
+++ cluster/labels generation 4
@@ -1,5 +1,5 @@
 mode: warn
 settings:
   a:
-  - x
+  - z
   b: 1
"
        );
        assert_eq!(unified(&id, [3, 4], [&old, &old]), "");
    }
}
