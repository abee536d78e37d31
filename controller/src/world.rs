//! What there is, as far as the watches and the answers to our own writes have told. Pure.

mod policy;
mod revision;
mod webhook;

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{DynamicObject, ObjectMeta};
use portcullis_api::Kind;
use portcullis_contract::WebhookKind;

pub use policy::{Content, PolicyView, Standing};
pub use revision::{RevisionView, Unreadable};
pub(crate) use webhook::canonical;
pub use webhook::{Entries, WebhookView, webhook_name, webhook_prefix};

/// One of the lists that are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// Policies or ClusterPolicies.
    Policies(Kind),
    /// Revisions of the installation's namespace.
    Revisions,
    /// Webhook configurations; those with the labels or the name of this policy server's are kept.
    Webhooks(WebhookKind),
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Policies(Kind::Policy),
        Self::Policies(Kind::ClusterPolicy),
        Self::Revisions,
        Self::Webhooks(WebhookKind::Validating),
        Self::Webhooks(WebhookKind::Mutating),
    ];
}

/// What a watch or an answer tells.
#[derive(Debug, Clone)]
pub enum News {
    /// An object is there, in this form.
    Applied(Source, Box<DynamicObject>),
    /// An object is gone.
    Deleted(Source, Box<DynamicObject>),
    /// The list is whole: all of it was told one by one, and there are no others than those with these uids.
    Listed(Source, BTreeSet<String>),
}

/// Everything that decisions are made of.
#[derive(Debug, Default)]
pub struct World {
    policy_server: String,
    /// Policies of this policy server by uid.
    pub policies: BTreeMap<String, PolicyView>,
    /// Revisions by the uid of their policy and by generation.
    pub revisions: BTreeMap<String, BTreeMap<i64, RevisionView>>,
    /// Webhook configurations by kind and name.
    pub webhooks: BTreeMap<(WebhookKind, String), WebhookView>,
    listed: BTreeSet<Source>,
}

impl World {
    /// Nothing yet.
    pub fn new(policy_server: &str) -> Self {
        Self { policy_server: policy_server.to_owned(), ..Self::default() }
    }

    /// Whether every list has been whole once.
    pub fn is_complete(&self) -> bool {
        self.listed.len() == Source::ALL.len()
    }

    /// Takes something in.
    pub fn take(&mut self, news: News) {
        match news {
            News::Applied(source, object) => self.apply(source, *object),
            News::Deleted(source, object) => self.delete(source, &object.metadata),
            News::Listed(source, uids) => {
                match source {
                    Source::Policies(kind) => {
                        self.policies.retain(|uid, policy| policy.reference.kind != kind || uids.contains(uid));
                    }
                    Source::Revisions => {
                        for revisions in self.revisions.values_mut() {
                            revisions.retain(|_, revision| uids.contains(&revision.uid));
                        }
                        self.revisions.retain(|_, revisions| !revisions.is_empty());
                    }
                    Source::Webhooks(kind) => {
                        self.webhooks.retain(|(of, _), webhook| *of != kind || uids.contains(&webhook.uid));
                    }
                }
                self.listed.insert(source);
            }
        }
    }

    fn apply(&mut self, source: Source, object: DynamicObject) {
        match source {
            Source::Policies(kind) => {
                let Some(policy) = PolicyView::read(kind, &object) else { return };
                if policy.policy_server != self.policy_server {
                    return;
                }
                let uid = policy.reference.uid.clone();
                if self.policies.get(&uid).is_none_or(|known| is_newer(&policy.version, &known.version)) {
                    self.policies.insert(uid, policy);
                }
            }
            Source::Revisions => {
                let Some(revision) = RevisionView::read(&object) else {
                    tracing::warn!(
                        name = object.metadata.name,
                        "neither data nor labels of a revision tell whose it is; it is left alone"
                    );
                    return;
                };
                let revisions = self.revisions.entry(revision.policy.uid.clone()).or_default();
                let known = revisions.get(&revision.generation);
                let replaces = |known: &RevisionView| match known.uid == revision.uid {
                    true => is_newer(&revision.version, &known.version),
                    false => revision.is_named_well() || !known.is_named_well(),
                };
                if known.is_none_or(replaces) {
                    revisions.insert(revision.generation, revision);
                }
            }
            Source::Webhooks(kind) => {
                let webhook = WebhookView::read(kind, &object).filter(|webhook| webhook.concerns(&self.policy_server));
                let Some(webhook) = webhook else { return };
                let key = (kind, webhook.name.clone());
                let known = self.webhooks.get(&key);
                if known.is_none_or(|known| known.uid != webhook.uid || is_newer(&webhook.version, &known.version)) {
                    self.webhooks.insert(key, webhook);
                }
            }
        }
    }

    fn delete(&mut self, source: Source, metadata: &ObjectMeta) {
        let uid = metadata.uid.clone().unwrap_or_default();
        match source {
            Source::Policies(_) => drop(self.policies.remove(&uid)),
            Source::Revisions => {
                for revisions in self.revisions.values_mut() {
                    revisions.retain(|_, revision| revision.uid != uid);
                }
                self.revisions.retain(|_, revisions| !revisions.is_empty());
            }
            Source::Webhooks(_) => self.webhooks.retain(|_, webhook| webhook.uid != uid),
        }
    }
}

/// Whether a resource version comes after another one. They are numbers that grow; where one is not, what comes later is newer.
fn is_newer(version: &str, known: &str) -> bool {
    match (version.parse::<u128>(), known.parse::<u128>()) {
        (Ok(version), Ok(known)) => version >= known,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(uid: &str, server: &str, version: &str) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": uid, "generation": 1, "resourceVersion": version},
            "spec": {"policyServer": server, "module": "m", "rules": []},
        }))
        .expect("an object")
    }

    const POLICIES: Source = Source::Policies(Kind::ClusterPolicy);

    #[test]
    fn an_answer_is_not_undone_by_an_older_word_of_a_watch() {
        let mut world = World::new("default");
        world.take(News::Applied(POLICIES, Box::new(policy("u", "default", "12"))));
        world.take(News::Applied(POLICIES, Box::new(policy("u", "default", "9"))));
        assert_eq!(world.policies["u"].version, "12");
    }

    #[test]
    fn somebodys_copy_does_not_stand_in_for_a_revision() {
        let revision = |name: &str| {
            let reference = json!({"kind": "ClusterPolicy", "name": "a", "uid": "u"});
            let object = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"},
                                "data": {"policy": reference, "generation": 1, "spec": {}}});
            News::Applied(Source::Revisions, Box::new(serde_json::from_value(object).expect("an object")))
        };
        let reference = portcullis_api::PolicyReference {
            kind: Kind::ClusterPolicy,
            namespace: None,
            name: "a".into(),
            uid: "u".into(),
        };
        let ours = reference.revision_name(1);
        for order in [[ours.as_str(), "copy"], ["copy", ours.as_str()]] {
            let mut world = World::new("default");
            order.iter().for_each(|name| world.take(revision(name)));
            assert_eq!(world.revisions["u"][&1].name, ours);
        }
    }

    #[test]
    fn policies_of_others_are_not_seen() {
        let mut world = World::new("default");
        world.take(News::Applied(POLICIES, Box::new(policy("u", "other", "1"))));
        assert!(world.policies.is_empty());
    }

    #[test]
    fn a_list_takes_away_what_it_does_not_name() {
        let mut world = World::new("default");
        world.take(News::Applied(POLICIES, Box::new(policy("u", "default", "1"))));
        world.take(News::Applied(POLICIES, Box::new(policy("v", "default", "2"))));
        world.take(News::Listed(POLICIES, ["v".to_owned()].into()));
        assert_eq!(world.policies.keys().collect::<Vec<_>>(), ["v"]);
        assert!(!world.is_complete());
        Source::ALL.into_iter().for_each(|source| world.take(News::Listed(source, BTreeSet::new())));
        assert!(world.is_complete() && world.policies.is_empty());
    }
}
