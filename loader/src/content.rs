//! What a policy asks for: the head, which always acts from the newest generation, and the body, which belongs to the generation that serves.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use portcullis_api::Resolved;
use portcullis_contract::{
    Candidate, CandidateContent, CandidateMember, CandidateModule, CandidatePolicyGroup, ContextAwareResource, Digest,
    FailurePolicy, GroupId, MatchPart, MemberMatch, Mode, PolicyId, WebhookKind, group_id,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::pins::Pins;
use crate::problem::Problem;
use crate::source::Reference;
use crate::volume::ArtifactRecord;

/// The namespace of policies' uids in a folder, for UUID version 5. It must never change: the uid of a policy is the same at
/// every start.
const UIDS: Uuid = Uuid::from_u128(0x6f5a_2c1e_93b4_4d57_8a0c_52d1_7e84_b3f9);

/// A policy as the input has it now.
#[derive(Debug, Clone)]
pub(crate) struct DesiredPolicy {
    /// The id.
    pub id: PolicyId,
    /// The file that it is in, relative to the folder.
    pub file: String,
    /// When the object was created, if the manifest says.
    pub created: Option<Timestamp>,
    /// Equal for equal content, whatever the file's form.
    pub hash: Digest,
    /// What acts at once; `None` when not even that can be read.
    pub head: Option<Head>,
    /// What is served, or why it cannot be.
    pub body: Result<Body, Problem>,
    /// What only an object of an API server has; `None` in a folder, where the loader itself counts generations.
    pub object: Option<Object>,
}

/// What an API server and the revisions there know of a policy.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    /// The object's uid.
    pub uid: String,
    /// The object's generation.
    pub generation: i64,
    /// The digests that the newest generation's modules must have, as far as they were recorded.
    pub pins: Pins,
    /// The match groups of older generations that may still be called.
    pub older_groups: BTreeSet<(GroupId, WebhookKind)>,
    /// Which requests of shared webhooks it is asked about, by group: those that match any of these entries, one for each revision in force.
    /// Without an entry for a group it is asked about all requests of that group.
    pub matches: BTreeMap<GroupId, Vec<MemberMatch>>,
    /// The newest older generation that served everywhere.
    pub last_served: Option<Served>,
    /// Whether any generation served everywhere, the newest one included.
    pub enforced: bool,
    /// Whether the newest generation served everywhere.
    pub newest_served: bool,
    /// The fingerprint of the newest generation's spec; `None` where the spec cannot be read.
    pub fingerprint: Option<Digest>,
}

/// An older generation that served everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    /// Its number.
    pub generation: i64,
    /// What it serves.
    pub body: Body,
    /// The digests that its modules must have, as far as they were recorded.
    pub pins: Pins,
}

/// What acts from the newest generation, whichever one serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Head {
    /// What a denial does.
    pub mode: Mode,
    /// What happens to requests while the policy is unserved.
    pub failure_policy: FailurePolicy,
    /// Whether the policy is loaded but not asked.
    pub suspend: bool,
    /// The match group; `None` for policies that no webhook calls.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub group: Option<(GroupId, WebhookKind)>,
}

/// The part of a policy that decides which requests reach it, with the group that it makes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Matched {
    /// The group, without regard to shards.
    pub group: GroupId,
    /// The match part.
    pub part: MatchPart,
}

impl Matched {
    /// Largest match part that is kept, in bytes of JSON.
    const LARGEST: usize = 4 << 10;

    /// A match part to keep; `None` if it is too large. One is kept for each policy, and its author decides its size.
    pub(crate) fn of(part: MatchPart) -> Option<Self> {
        let selectors = [&part.object_selector, &part.namespace_selector];
        let selectors = selectors.into_iter().flatten().map(|selector| selector.to_string().len());
        let rules = serde_json::to_string(&part.rules).map_or(usize::MAX, |json| json.len());
        let conditions = part.match_conditions.iter().map(|one| one.name.len() + one.expression.len());
        let size = selectors.chain(conditions).fold(rules, usize::saturating_add);
        (size <= Self::LARGEST).then(|| Self { group: group_id(&part), part })
    }
}

/// What one generation serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Body {
    /// The module as the user wrote it; empty for a policy group.
    pub module: String,
    /// The module's address; `None` for a policy group, and where only the artifact is remembered.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reference: Option<Reference>,
    /// A JSON object, with the keys in the user's order.
    // Left out of a record beside a candidate that has them. A loader of an earlier release then ignores the record, instead of
    // taking `null` for the settings.
    #[serde(skip_serializing_if = "is_left_out", default = "left_out")]
    pub settings: SharedSettings,
    /// Whether a patch by the policy is sent.
    pub mutating: bool,
    /// Replaces the policy's message in a denial.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
    /// Longest evaluation, in seconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_eval_seconds: Option<u32>,
    /// The host capabilities that the policy is granted.
    #[serde(default)]
    pub host_capabilities: Vec<String>,
    /// Kinds the policy may read.
    #[serde(default)]
    pub context_aware_resources: Vec<ContextAwareResource>,
    /// The members of a policy group, which have a module each; empty for any other policy.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub members: BTreeMap<String, Body>,
    /// How the verdicts of the members are combined.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expression: Option<String>,
    /// Whether this is a member of a policy group that the group's expression never calls.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub uncalled: bool,
    /// The resources of the rules, each as [`crate::declared::resources`] writes it, for comparison with the module's metadata. Empty for
    /// policies that no webhook calls, and for members of a group.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub resources: Vec<String>,
}

/// Settings. Clones share them: they may be large, and several generations of each policy are known in several places.
#[derive(Debug, Clone)]
pub(crate) struct SharedSettings(Arc<RawValue>);

impl SharedSettings {
    /// A copy for a manifest.
    fn copy(&self) -> Box<RawValue> {
        (*self.0).to_owned()
    }
}

impl From<Box<RawValue>> for SharedSettings {
    fn from(settings: Box<RawValue>) -> Self {
        Self(settings.into())
    }
}

impl Deref for SharedSettings {
    type Target = RawValue;

    fn deref(&self) -> &RawValue {
        &self.0
    }
}

impl Serialize for SharedSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SharedSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::from)
    }
}

/// Stands for settings that were left out; real settings are never `null`.
fn left_out() -> SharedSettings {
    RawValue::NULL.to_owned().into()
}

fn is_left_out(settings: &RawValue) -> bool {
    settings.get() == RawValue::NULL.get()
}

/// The uid of a policy that has none of its own.
pub(crate) fn uid(id: &PolicyId) -> String {
    Uuid::new_v5(&UIDS, id.as_str().as_bytes()).to_string()
}

/// The hash of a policy's content. The path of the folder is not part of it.
pub(crate) fn hash(head: &Head, body: &Body) -> Digest {
    let parts = (
        head,
        &body.module,
        &body.settings,
        body.mutating,
        &body.message,
        body.timeout_eval_seconds,
        &body.host_capabilities,
        &body.context_aware_resources,
    );
    let mut bytes = serde_json::to_vec(&parts).expect("has text keys only");
    bytes.extend(body.reference.as_ref().and_then(Reference::signatures).unwrap_or_default().into_bytes());
    if let Some(expression) = &body.expression {
        bytes.extend(expression.as_bytes());
        for (name, member) in &body.members {
            bytes.extend(name.as_bytes());
            bytes.extend(hash(head, member).to_string().as_bytes());
        }
    }
    Digest::of(&bytes)
}

/// The fingerprint of a policy's spec, by which the loader recognises a stored spec as one that it has checked. It covers everything that
/// decides what the policy does to an object, wherever the spec came from; the shard that the policy is in does not matter.
pub(crate) fn fingerprint(head: &Head, part: &MatchPart, body: &Body) -> Digest {
    let group = Some((group_id(part), part.kind));
    hash(&Head { group, ..head.clone() }, body)
}

impl Head {
    /// The head of a policy of which nothing could be read: the strictest values.
    pub(crate) fn strict() -> Self {
        Self { mode: Mode::Protect, failure_policy: FailurePolicy::Fail, suspend: false, group: None }
    }
}

impl Body {
    /// A module with its settings, and nothing more.
    pub(crate) fn module(module: String, reference: Option<Reference>, settings: Box<RawValue>) -> Self {
        Self {
            module,
            reference,
            settings: settings.into(),
            mutating: false,
            message: None,
            timeout_eval_seconds: None,
            host_capabilities: Vec::new(),
            context_aware_resources: Vec::new(),
            members: BTreeMap::new(),
            expression: None,
            uncalled: false,
            resources: Vec::new(),
        }
    }

    /// The parts that have a module: the members of a policy group by their names, or this body itself under the name "".
    pub(crate) fn parts(&self) -> Vec<(&str, &Self)> {
        if self.members.is_empty() {
            return vec![("", self)];
        }
        self.members.iter().map(|(name, member)| (name.as_str(), member)).collect()
    }

    /// The addresses of its modules, by the names of its parts.
    pub(crate) fn references(&self) -> BTreeMap<String, Reference> {
        self.parts().into_iter().filter_map(|(name, part)| Some((name.to_owned(), part.reference.clone()?))).collect()
    }

    /// The parts whose module is known, each with the module's digest.
    pub(crate) fn pinned_parts(&self, pins: &Pins) -> Vec<(&Self, Digest)> {
        self.parts().into_iter().filter_map(|(name, part)| Some((part, pins.get(name)?))).collect()
    }

    /// The digest of a generation with this content: that of its module or, for a policy group, of the names and digests of its members. `None`
    /// until all modules are known.
    pub(crate) fn digest(&self, pins: &Pins) -> Option<Digest> {
        if self.members.is_empty() {
            return pins.module();
        }
        let members = self.members.keys().map(|name| Some((name.clone(), pins.get(name)?)));
        Some(Resolved::group(0, members.collect::<Option<_>>()?).digest)
    }

    /// The parts whose module is at this address.
    pub(crate) fn parts_at<'b>(&'b self, reference: &'b Reference) -> impl Iterator<Item = (&'b str, &'b Self)> {
        self.parts().into_iter().filter(move |(_, part)| part.reference.as_ref() == Some(reference))
    }

    /// The candidate that serves this body; `None` until each module is known and has an artifact. `artifact` gives the artifact of a part's module.
    pub(crate) fn candidate<'r>(
        &self,
        generation: i64,
        pins: &Pins,
        artifact: impl Fn(&Self, &Digest) -> Option<&'r ArtifactRecord>,
    ) -> Option<Candidate> {
        let module = |part: &Self, digest: &Digest| {
            let record = artifact(part, digest)?;
            Some(CandidateModule {
                artifact: record.artifact.clone(),
                execution_mode: record.execution_mode,
                settings: part.settings.copy(),
                host_capabilities: part.host_capabilities.clone(),
                context_aware_resources: part.context_aware_resources.clone(),
            })
        };
        let content = match &self.expression {
            None => CandidateContent::Module(module(self, &pins.module()?)?),
            Some(expression) => {
                let members = self.members.iter().map(|(name, part)| {
                    let digest = pins.get(name)?;
                    let timeout_eval_seconds = part.timeout_eval_seconds;
                    Some((
                        name.clone(),
                        CandidateMember { digest, timeout_eval_seconds, module: module(part, &digest)? },
                    ))
                });
                let members = members.collect::<Option<_>>()?;
                CandidateContent::Group(CandidatePolicyGroup { expression: expression.clone(), members })
            }
        };
        Some(Candidate {
            generation,
            digest: self.digest(pins)?,
            mutating: self.mutating,
            message: self.message.clone(),
            timeout_eval_seconds: self.timeout_eval_seconds,
            content,
        })
    }

    /// The body as far as a candidate of an earlier manifest records it: everything but the modules' addresses.
    pub(crate) fn of_candidate(candidate: &Candidate) -> Self {
        let part = |module: &CandidateModule| Self {
            host_capabilities: module.host_capabilities.clone(),
            context_aware_resources: module.context_aware_resources.clone(),
            ..Self::module(String::new(), None, module.settings.clone())
        };
        let own = match &candidate.content {
            CandidateContent::Module(module) => part(module),
            CandidateContent::Group(group) => {
                let member = |member: &CandidateMember| Self {
                    timeout_eval_seconds: member.timeout_eval_seconds,
                    ..part(&member.module)
                };
                Self {
                    members: group.members.iter().map(|(name, one)| (name.clone(), member(one))).collect(),
                    expression: Some(group.expression.clone()),
                    ..Self::module(String::new(), None, no_settings())
                }
            }
        };
        Self {
            mutating: candidate.mutating,
            message: candidate.message.clone(),
            timeout_eval_seconds: candidate.timeout_eval_seconds,
            ..own
        }
    }

    /// The same without the settings, for a record beside a candidate that has them: they may be large.
    pub(crate) fn without_settings(&self) -> Self {
        Self {
            module: self.module.clone(),
            reference: self.reference.clone(),
            settings: left_out(),
            mutating: self.mutating,
            message: self.message.clone(),
            timeout_eval_seconds: self.timeout_eval_seconds,
            host_capabilities: self.host_capabilities.clone(),
            context_aware_resources: self.context_aware_resources.clone(),
            members: self.members.iter().map(|(name, member)| (name.clone(), member.without_settings())).collect(),
            expression: self.expression.clone(),
            uncalled: self.uncalled,
            resources: self.resources.clone(),
        }
    }

    /// Leaves the settings out, as [`Body::without_settings`] does.
    pub(crate) fn drop_settings(&mut self) {
        self.settings = left_out();
        self.members.values_mut().for_each(Self::drop_settings);
    }

    /// Whether the settings were left out.
    pub(crate) fn lacks_settings(&self) -> bool {
        is_left_out(&self.settings)
    }

    /// Undoes [`Body::without_settings`] with the settings of the candidate.
    pub(crate) fn with_settings_of(self, candidate: Option<&Candidate>) -> Option<Self> {
        if !is_left_out(&self.settings) {
            return Some(self);
        }
        match &candidate?.content {
            CandidateContent::Module(module) => Some(Self { settings: module.settings.clone().into(), ..self }),
            CandidateContent::Group(group) => {
                let with_settings = |(name, member): (String, Self)| {
                    let settings = group.members.get(&name)?.module.settings.clone().into();
                    Some((name, Self { settings, ..member }))
                };
                let members = self.members.into_iter().map(with_settings).collect::<Option<_>>()?;
                Some(Self { settings: no_settings().into(), members, ..self })
            }
        }
    }
}

/// The settings of a policy without settings: `{}`.
pub(crate) fn no_settings() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("JSON")
}

#[cfg(test)]
mod tests {
    use portcullis_contract::MatchCondition;

    use super::*;

    #[test]
    fn a_match_part_is_kept_unless_it_is_large() {
        let part = |expression: String| MatchPart {
            kind: WebhookKind::Validating,
            namespace: None,
            rules: Vec::new(),
            match_policy: None,
            object_selector: None,
            namespace_selector: None,
            match_conditions: vec![MatchCondition { name: "a".to_owned(), expression }],
            failure_policy: FailurePolicy::Fail,
            side_effects: None,
        };
        let small = part("true".to_owned());
        assert_eq!(Matched::of(small.clone()).map(|matched| matched.group), Some(group_id(&small)));
        assert_eq!(Matched::of(part("x".repeat(Matched::LARGEST))), None);
    }

    #[test]
    fn the_uid_is_the_same_at_every_start() {
        let id: PolicyId = "cluster/no-privileged".parse().expect("an id");
        assert_eq!(uid(&id), uid(&id));
        assert_ne!(uid(&id), uid(&"cluster/other".parse().expect("an id")));
    }
}
