//! The state of the cluster, as reported by watches and by the answers to our own writes. Pure.

mod deleted;
mod policy;
mod revision;
mod room;
mod webhook;

use std::collections::{BTreeMap, BTreeSet};

use kube::api::ObjectMeta;
use portcullis_api::Kind;
use portcullis_api::kubernetes::Outline;
use portcullis_contract::WebhookKind;

use self::deleted::Deleted;
use self::room::MatchRoom;

pub use policy::{Content, PolicyView, StatusView, Unreadable};
pub use revision::RevisionView;
pub(crate) use room::MATCH_BYTES;
pub(crate) use webhook::canonical;
pub use webhook::{Entries, OwnWebhook, WebhookView, check_webhook_name, webhook_name};

/// A collection of objects that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Collection {
    /// All Policies, or all ClusterPolicies.
    Policies(Kind),
    /// The revisions in the installation's namespace.
    Revisions,
    /// The webhook configurations of a kind; those with a name of ours are kept.
    Webhooks(WebhookKind),
}

impl Collection {
    /// All collections.
    pub const ALL: [Self; 5] = [
        Self::Policies(Kind::Policy),
        Self::Policies(Kind::ClusterPolicy),
        Self::Revisions,
        Self::Webhooks(WebhookKind::Validating),
        Self::Webhooks(WebhookKind::Mutating),
    ];
}

/// A change that a list, a watch or the answer to a write reports.
///
/// What a list says counts, even if its resource versions are lower than known ones: then etcd was restored, and all that was known is of no
/// use. Only an object that was learned after the list had begun stays as it is if the list has an older version of it. A watch and an
/// answer may overtake each other, so of these two the newer version counts, and no answer brings back what was deleted meanwhile.
#[derive(Debug, Clone)]
pub enum Change {
    /// A list of the collection has begun.
    Listing(Collection),
    /// The list that has begun has an object with this content.
    InList(Collection, Box<Outline>),
    /// A watch says that an object has this content.
    Applied(Collection, Box<Outline>),
    /// An answer says that an object has this content.
    Answered(Collection, Box<Outline>),
    /// An object was deleted.
    Deleted(Collection, Box<Outline>),
    /// The list is complete: all its objects were reported before, and no others exist than those with these uids.
    Listed(Collection, BTreeSet<String>),
}

/// The state of the cluster that decisions are based on.
#[derive(Debug, Default)]
pub struct World {
    policy_server: String,
    /// The policies of this policy server, by uid.
    pub policies: BTreeMap<String, PolicyView>,
    /// The revisions, by the uid of their policy and by generation.
    pub revisions: BTreeMap<String, BTreeMap<i64, RevisionView>>,
    /// The webhook configurations, by kind and name.
    pub webhooks: BTreeMap<(WebhookKind, String), WebhookView>,
    listed: BTreeSet<Collection>,
    /// The uids of the objects that watches and answers reported since a list of their collection began, while it is not complete.
    learned: BTreeMap<Collection, BTreeSet<String>>,
    deleted: Deleted,
    room: MatchRoom,
}

impl World {
    /// An empty world.
    pub fn new(policy_server: &str) -> Self {
        Self { policy_server: policy_server.to_owned(), ..Self::default() }
    }

    /// Whether every list has been complete once.
    pub fn is_complete(&self) -> bool {
        self.listed.len() == Collection::ALL.len()
    }

    /// Whether there is room for the match part of a policy that was left without it.
    pub fn has_room(&self, policy: &PolicyView) -> bool {
        self.room.has_room(policy)
    }

    /// Applies a change.
    pub fn take(&mut self, change: Change) {
        match change {
            Change::Listing(collection) => drop(self.learned.insert(collection, BTreeSet::new())),
            Change::InList(collection, object) => {
                object.metadata.uid.iter().for_each(|uid| self.deleted.forget(uid));
                let learned = self.learned.get(&collection);
                let is_learned =
                    object.metadata.uid.as_ref().is_some_and(|uid| learned.is_some_and(|all| all.contains(uid)));
                self.apply(collection, *object, !is_learned);
            }
            Change::Applied(collection, object) => {
                object.metadata.uid.iter().for_each(|uid| self.deleted.forget(uid));
                self.learn(collection, *object);
            }
            Change::Answered(collection, object) => {
                if !object.metadata.uid.as_ref().is_some_and(|uid| self.deleted.has(uid)) {
                    self.learn(collection, *object);
                }
            }
            Change::Deleted(collection, object) => {
                object.metadata.uid.iter().for_each(|uid| self.deleted.note(uid));
                self.delete(collection, &object.metadata);
            }
            Change::Listed(collection, uids) => {
                match collection {
                    Collection::Policies(kind) => {
                        let room = &mut self.room;
                        self.policies.retain(|uid, policy| {
                            let is_kept = policy.reference.kind != kind || uids.contains(uid);
                            if !is_kept {
                                room.give_back(policy);
                            }
                            is_kept
                        });
                    }
                    Collection::Revisions => {
                        for revisions in self.revisions.values_mut() {
                            revisions.retain(|_, revision| uids.contains(&revision.uid));
                        }
                        self.revisions.retain(|_, revisions| !revisions.is_empty());
                    }
                    Collection::Webhooks(kind) => {
                        self.webhooks.retain(|(of, _), webhook| *of != kind || uids.contains(&webhook.uid));
                    }
                }
                self.learned.remove(&collection);
                self.listed.insert(collection);
            }
        }
    }

    /// Takes what a watch or an answer says of an object.
    fn learn(&mut self, collection: Collection, object: Outline) {
        if let Some(learned) = self.learned.get_mut(&collection) {
            learned.extend(object.metadata.uid.clone());
        }
        self.apply(collection, object, false);
    }

    /// Takes an object that is newer than the known one, or as it is if `always`.
    fn apply(&mut self, collection: Collection, object: Outline, always: bool) {
        let replaces = |version: &str, known: &str| always || is_newer(version, known);
        match collection {
            Collection::Policies(kind) => {
                let Some(mut policy) = PolicyView::read(kind, &object) else { return };
                if policy.policy_server != self.policy_server {
                    return;
                }
                let uid = policy.reference.uid.clone();
                if self.policies.get(&uid).is_none_or(|known| replaces(&policy.version, &known.version)) {
                    self.policies.remove(&uid).iter().for_each(|known| self.room.give_back(known));
                    self.room.take(&mut policy);
                    self.policies.insert(uid, policy);
                }
            }
            Collection::Revisions => {
                let Some(revision) = RevisionView::read(&object) else {
                    tracing::warn!(
                        name = object.metadata.name,
                        "ignoring a revision: neither its data nor its labels name a policy"
                    );
                    return;
                };
                let revisions = self.revisions.entry(revision.policy.uid.clone()).or_default();
                let known = revisions.get(&revision.generation);
                let is_replaced = |known: &RevisionView| match known.uid == revision.uid {
                    true => replaces(&revision.version, &known.version),
                    false => revision.is_named_well() || !known.is_named_well(),
                };
                if known.is_none_or(is_replaced) {
                    revisions.insert(revision.generation, revision);
                }
            }
            Collection::Webhooks(kind) => {
                let webhook = WebhookView::read(kind, &object).filter(|webhook| webhook.concerns(&self.policy_server));
                let Some(webhook) = webhook else { return };
                let key = (kind, webhook.name.clone());
                let known = self.webhooks.get(&key);
                if known.is_none_or(|known| known.uid != webhook.uid || replaces(&webhook.version, &known.version)) {
                    self.webhooks.insert(key, webhook);
                }
            }
        }
    }

    fn delete(&mut self, collection: Collection, metadata: &ObjectMeta) {
        let uid = metadata.uid.clone().unwrap_or_default();
        match collection {
            Collection::Policies(_) => self.policies.remove(&uid).iter().for_each(|policy| self.room.give_back(policy)),
            Collection::Revisions => {
                for revisions in self.revisions.values_mut() {
                    revisions.retain(|_, revision| revision.uid != uid);
                }
                self.revisions.retain(|_, revisions| !revisions.is_empty());
            }
            Collection::Webhooks(_) => self.webhooks.retain(|_, webhook| webhook.uid != uid),
        }
    }
}

/// Whether a resource version is at least as new as a known one. They are increasing numbers; one that is not a number counts as newer.
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

    fn policy(uid: &str, server: &str, version: &str) -> Outline {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": uid, "generation": 1, "resourceVersion": version},
            "spec": {"policyServer": server, "module": "m", "rules": []},
        }))
        .expect("an object")
    }

    const POLICIES: Collection = Collection::Policies(Kind::ClusterPolicy);

    #[test]
    fn an_answer_is_not_undone_by_an_older_word_of_a_watch() {
        let mut world = World::new("default");
        world.take(Change::Answered(POLICIES, Box::new(policy("u", "default", "12"))));
        world.take(Change::Applied(POLICIES, Box::new(policy("u", "default", "9"))));
        assert_eq!(world.policies["u"].version, "12");
    }

    #[test]
    fn an_answer_that_comes_late_does_not_bring_back_what_was_deleted() {
        let mut world = World::new("default");
        let object = |version| Box::new(policy("u", "default", version));
        world.take(Change::Applied(POLICIES, object("12")));
        world.take(Change::Deleted(POLICIES, object("13")));
        world.take(Change::Answered(POLICIES, object("12")));
        assert!(world.policies.is_empty());
        let name = "portcullis-default-0123456789abcdef";
        let webhook = json!({"metadata": {"name": name, "uid": "w", "resourceVersion": "12"}, "webhooks": []});
        let webhook = || Box::new(serde_json::from_value(webhook.clone()).expect("an object"));
        let webhooks = Collection::Webhooks(WebhookKind::Validating);
        world.take(Change::Applied(webhooks, webhook()));
        world.take(Change::Deleted(webhooks, webhook()));
        world.take(Change::Answered(webhooks, webhook()));
        assert!(world.webhooks.is_empty(), "or nobody would create it again");

        // A watch or a list that has an object again knows better.
        world.take(Change::Applied(POLICIES, object("14")));
        world.take(Change::Answered(POLICIES, object("15")));
        assert_eq!(world.policies["u"].version, "15");
        world.take(Change::Deleted(POLICIES, object("16")));
        world.take(Change::InList(POLICIES, object("3")));
        world.take(Change::Answered(POLICIES, object("4")));
        assert_eq!(world.policies["u"].version, "4", "etcd was restored");
    }

    #[test]
    fn a_list_counts_even_if_its_versions_are_older_unless_more_was_learned_since_it_began() {
        let mut world = World::new("default");
        let object = |version| Box::new(policy("u", "default", version));
        world.take(Change::Applied(POLICIES, object("500")));
        world.take(Change::Listing(POLICIES));
        world.take(Change::InList(POLICIES, object("200")));
        assert_eq!(world.policies["u"].version, "200", "etcd was restored");
        world.take(Change::Applied(POLICIES, object("210")));
        // The first try of the list failed.
        world.take(Change::Listing(POLICIES));
        world.take(Change::InList(POLICIES, object("210")));
        world.take(Change::Applied(POLICIES, object("220")));
        world.take(Change::InList(POLICIES, object("210")));
        assert_eq!(world.policies["u"].version, "220", "the answer came after the list had begun");
        world.take(Change::Listed(POLICIES, ["u".to_owned()].into()));
        assert!(world.learned.is_empty());
        world.take(Change::Applied(POLICIES, object("215")));
        assert_eq!(world.policies["u"].version, "220");
    }

    #[test]
    fn somebodys_copy_does_not_stand_in_for_a_revision() {
        let revision = |name: &str| {
            let reference = json!({"kind": "ClusterPolicy", "name": "a", "uid": "u"});
            let object = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"},
                                "data": {"policy": reference, "generation": 1, "spec": {}}});
            Change::Applied(Collection::Revisions, Box::new(serde_json::from_value(object).expect("an object")))
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
        world.take(Change::Applied(POLICIES, Box::new(policy("u", "other", "1"))));
        assert!(world.policies.is_empty());
    }

    #[test]
    fn a_list_takes_away_what_it_does_not_name() {
        let mut world = World::new("default");
        world.take(Change::Applied(POLICIES, Box::new(policy("u", "default", "1"))));
        world.take(Change::Applied(POLICIES, Box::new(policy("v", "default", "2"))));
        world.take(Change::Listed(POLICIES, ["v".to_owned()].into()));
        assert_eq!(world.policies.keys().collect::<Vec<_>>(), ["v"]);
        assert!(!world.is_complete());
        Collection::ALL.into_iter().for_each(|collection| world.take(Change::Listed(collection, BTreeSet::new())));
        assert!(world.is_complete() && world.policies.is_empty());
    }
}
