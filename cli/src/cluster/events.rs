//! Events on a policy of a cluster.

use super::{Action, Cluster, ClusterError};
use crate::events::{EventView, Events};
use crate::item::Item;

/// The namespace of events on cluster-scoped objects, where kubectl looks for them too.
const CLUSTER_WIDE: &str = "default";

impl Cluster {
    /// The events on a policy, oldest first. Reading them needs a right of its own, which many users who may read the policy lack.
    pub async fn events(&self, item: &Item) -> Events {
        let namespace = item.id.namespace().unwrap_or(CLUSTER_WIDE);
        let list = |version: &str| Action {
            verb: "list",
            version: version.to_owned(),
            resource: "events".into(),
            namespace: Some(namespace.to_owned()),
            name: None,
        };
        let uid = item.uid();
        let new = (list("events.k8s.io/v1"), format!("regarding.uid={uid}"));
        // The same objects in the core group, which the usual roles of users mention.
        let old = (list("v1"), format!("involvedObject.uid={uid}"));
        let mut why = String::new();
        for (action, selector) in [new, old] {
            match self.list(&action, "Event", &[("fieldSelector", &selector)]).await {
                Ok(objects) => {
                    let mut events: Vec<EventView> = objects.iter().filter_map(EventView::of_object).collect();
                    events.sort_by_key(|event| event.last);
                    return Events::Known(events);
                }
                Err(ClusterError::Forbidden { .. }) => {
                    why = format!("they need the right to list events in the namespace {namespace}");
                }
                Err(error) => return Events::Hidden(error.to_string()),
            }
        }
        Events::Hidden(why)
    }
}
