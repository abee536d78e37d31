//! The policies that a scan has listed. Pure.

use std::collections::HashSet;

use portcullis_api::Kind;
use serde_json::Value;

use crate::audit::in_force::{Content, Wanted, wanted};
use crate::audit::subject::{Left, Read, Served, Site, Subject, may_be_asked, read};

/// The policies of a scan.
#[derive(Default)]
pub(super) struct Policies {
    pub(super) subjects: Vec<Subject>,
    /// The policies that are not asked.
    pub(super) left: Vec<Left>,
    /// The policies that cannot be read without a revision.
    pub(super) rolled_back: Vec<(Kind, Value, Wanted)>,
    /// The uids of all policies that were listed.
    seen: HashSet<String>,
}

impl Policies {
    /// Takes in a policy of a list, once: a list that begins again has it again.
    pub(super) fn take(&mut self, kind: Kind, object: Value, site: &Site, served: &Served) {
        let Some(uid) = object["metadata"]["uid"].as_str() else { return };
        if !self.seen.insert(uid.to_owned()) {
            return;
        }
        let wanted = if may_be_asked(&object, site) { wanted(kind, &object, served) } else { None };
        match wanted {
            Some(wanted) => self.rolled_back.push((kind, object, wanted)),
            None => self.add(read(kind, &object, &Content::Own, site, served)),
        }
    }

    pub(super) fn add(&mut self, read: Option<Read>) {
        match read {
            Some(Read::Subject(subject)) => self.subjects.push(*subject),
            Some(Read::Left(left)) => self.left.push(left),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_counts_once_and_a_revision_is_read_only_for_one_that_may_be_asked() {
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]});
        let site = Site { policy_server: "default".into(), namespace: "portcullis".into() };
        let taken = |change: Option<&(&str, Value)>| {
            let mut policies = Policies::default();
            let mut object = json!({
                "metadata": {"name": "a", "uid": "u", "generation": 2},
                "spec": {"rollbackTo": 1, "rules": [rule.clone()]},
            });
            if let Some((path, value)) = change {
                let (part, field) = path.split_once('.').expect("two names");
                object[part][field] = value.clone();
            }
            for _ in 0..2 {
                policies.take(Kind::ClusterPolicy, object.clone(), &site, &Served::new());
            }
            (policies.subjects.len(), policies.left.len(), policies.rolled_back.len())
        };
        assert_eq!(taken(None), (0, 0, 1));
        assert_eq!(taken(Some(&("spec.rollbackTo", Value::Null))), (1, 0, 0));
        for (change, left) in [
            (("spec.suspend", json!(true)), 1),
            (("spec.backgroundAudit", json!(false)), 1),
            (("spec.policyServer", json!("other")), 0),
            (("metadata.deletionTimestamp", json!("2026-01-01T00:00:00Z")), 0),
        ] {
            assert_eq!(taken(Some(&change)), (0, left, 0), "{change:?}");
        }
    }
}
