//! The volume manifest: what the loader publishes and the evaluator follows.
//!
//! Files of the volume: `manifest.json` (replaced by rename, never edited), `artifacts/<digest>-<engine key>.cwasm`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Digest, Failure, FailurePolicy, GroupId, MemberMatch, Mode, PolicyId, WebhookKind};

/// Name of the manifest's file in the volume.
pub const MANIFEST_FILE: &str = "manifest.json";
/// The format this release writes and the newest it reads.
pub const MANIFEST_FORMAT: u32 = 1;
/// Largest manifest that is read, in bytes.
pub const MANIFEST_MAX_BYTES: u64 = 64 << 20;

/// The whole set that a replica should serve.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The number of this manifest. On one volume it only grows, also over restarts of the loader.
    pub number: u64,
    /// The policies, by id, each id once.
    pub policies: Vec<PolicyEntry>,
    /// The match groups, each id once.
    pub groups: Vec<GroupEntry>,
}

/// One policy of the manifest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyEntry {
    /// The id in URL paths, metrics and status.
    pub id: PolicyId,
    /// The object's uid; distinguishes a policy from a later one of the same name.
    pub uid: String,
    /// The newest generation, whether or not it can be served.
    pub generation: i64,
    /// What a denial does; always of the newest generation.
    pub mode: Mode,
    /// What an unserved policy answers; always of the newest generation.
    pub failure_policy: FailurePolicy,
    /// Whether the policy is loaded but not asked; always of the newest generation.
    #[serde(default)]
    pub suspend: bool,
    /// Whether any generation of this object was ever enforced on all replicas; that is never taken back. While no generation of the
    /// policy serves here, match groups follow its `failure_policy` if it was enforced, and pass over it if it was not: a mistake in
    /// a new policy affects no requests.
    // A loader of an earlier release does not write this field; then the policy counts as enforced. A wrong "enforced"
    // refuses requests, as that release did, and the clients that made them get a message. A wrong "not enforced" would
    // silently let through requests that users rely on to be refused.
    #[serde(default = "enforced")]
    pub enforced: bool,
    /// The generations that may serve, best first: the newest one if its artifact is there, then the last good one.
    pub candidates: Vec<Candidate>,
    /// The failures of the loader, at most one for each generation.
    pub failures: Vec<Failure>,
    /// The last generation that an evaluator loaded from this volume, for the loader's own restart.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_good: Option<LastGood>,
    /// The loader's record of the newest generation (its content), for its own restart. The evaluator ignores it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<Box<RawValue>>,
}

/// What the loader remembers of the last generation that an evaluator loaded.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastGood {
    /// Its generation.
    pub generation: i64,
    /// The digest of its module; for a group, of its members.
    pub digest: Digest,
    /// For a group, the digest of each member's module.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub members: BTreeMap<String, Digest>,
    /// Its content, in the loader's own form.
    pub source: Box<RawValue>,
}

/// A generation that has its artifacts on the volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "CandidateFields")]
pub struct Candidate {
    /// The generation.
    pub generation: i64,
    /// The digest of the module; for a policy group, a digest of the names and modules of its members.
    pub digest: Digest,
    /// Whether patches by the policy are sent to the API server.
    pub mutating: bool,
    /// Replaces the text of a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The longest evaluation, in seconds; absent means the evaluator's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_eval_seconds: Option<u32>,
    /// What is evaluated.
    #[serde(flatten)]
    pub content: CandidateContent,
}

/// What a candidate evaluates.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum CandidateContent {
    /// One module.
    Module(CandidateModule),
    /// The members of a policy group.
    Group(CandidatePolicyGroup),
}

/// A module with its settings and grants.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CandidateModule {
    /// The precompiled module.
    pub artifact: Artifact,
    /// The guest ABI.
    pub execution_mode: ExecutionMode,
    /// The settings, exactly as the user wrote them; a JSON object.
    pub settings: Box<RawValue>,
    /// Grants of host capabilities: `*`, a prefix ending in `/*`, or an exact path. Empty grants nothing.
    #[serde(default)]
    pub host_capabilities: Vec<String>,
    /// Kinds the policy may read.
    #[serde(default)]
    pub context_aware_resources: Vec<ContextAwareResource>,
}

/// The members of a policy group, and how their verdicts are combined.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CandidatePolicyGroup {
    /// CEL over the members; see docs/design/policy-abi.md, section 10.
    pub expression: String,
    /// The members, by the names that the expression uses. Never empty.
    pub members: BTreeMap<String, CandidateMember>,
}

/// A member of a policy group.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CandidateMember {
    /// The digest of its module.
    pub digest: Digest,
    /// The longest evaluation of this member, in seconds; absent means the evaluator's own default.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_eval_seconds: Option<u32>,
    /// Its module.
    pub module: CandidateModule,
}

/// The fields of a candidate as they are read: a candidate has those of a module or those of a group. serde could distinguish the two only
/// by making a copy of the settings that changes their numbers.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CandidateFields {
    generation: i64,
    digest: Digest,
    mutating: bool,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    timeout_eval_seconds: Option<u32>,
    #[serde(default)]
    artifact: Option<Artifact>,
    #[serde(default)]
    execution_mode: Option<ExecutionMode>,
    #[serde(default)]
    settings: Option<Box<RawValue>>,
    #[serde(default)]
    host_capabilities: Vec<String>,
    #[serde(default)]
    context_aware_resources: Vec<ContextAwareResource>,
    #[serde(default)]
    expression: Option<String>,
    #[serde(default)]
    members: BTreeMap<String, CandidateMember>,
}

impl TryFrom<CandidateFields> for Candidate {
    type Error = &'static str;

    fn try_from(fields: CandidateFields) -> Result<Self, Self::Error> {
        let content = match (fields.artifact, fields.execution_mode, fields.settings, fields.expression) {
            (Some(artifact), Some(execution_mode), Some(settings), None) => CandidateContent::Module(CandidateModule {
                artifact,
                execution_mode,
                settings,
                host_capabilities: fields.host_capabilities,
                context_aware_resources: fields.context_aware_resources,
            }),
            (None, _, _, Some(expression)) if !fields.members.is_empty() => {
                CandidateContent::Group(CandidatePolicyGroup { expression, members: fields.members })
            }
            _ => return Err("a candidate is neither a module nor a group"),
        };
        Ok(Self {
            generation: fields.generation,
            digest: fields.digest,
            mutating: fields.mutating,
            message: fields.message,
            timeout_eval_seconds: fields.timeout_eval_seconds,
            content,
        })
    }
}

impl Candidate {
    /// Its modules: those of the members with the members' names, or the only one.
    pub fn modules(&self) -> Vec<NamedModule<'_>> {
        match &self.content {
            CandidateContent::Module(module) => vec![NamedModule { member: None, digest: self.digest, module }],
            CandidateContent::Group(group) => {
                let members = group.members.iter();
                members
                    .map(|(name, member)| NamedModule {
                        member: Some(name),
                        digest: member.digest,
                        module: &member.module,
                    })
                    .collect()
            }
        }
    }

    /// The digests of the members' modules, by the members' names; empty if it is not a group.
    pub fn members(&self) -> BTreeMap<String, Digest> {
        let modules = self.modules().into_iter();
        modules.filter_map(|named| Some((named.member?.to_owned(), named.digest))).collect()
    }
}

/// A module of a candidate.
#[derive(Debug, Clone, Copy)]
pub struct NamedModule<'c> {
    /// The member of a group that it belongs to; `None` if it is the only module.
    pub member: Option<&'c str>,
    /// The digest of the module.
    pub digest: Digest,
    /// The module.
    pub module: &'c CandidateModule,
}

/// A precompiled module on the volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// File name in `artifacts/`; a plain name without a slash.
    pub file: String,
    /// SHA-256 of the file.
    pub sha256: Digest,
    /// Size of the file, in bytes.
    pub size: u64,
}

/// A match group: the policies that a request to `/admit/<id>` asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupEntry {
    /// The group.
    pub id: GroupId,
    /// Validating groups run side by side, mutating ones in the order of the members.
    pub kind: WebhookKind,
    /// The members in the order of their ids. A group without members is a tombstone, which answers "allowed" until the
    /// loader drops it.
    pub members: Vec<PolicyId>,
    /// Which requests a member is asked about, in a group whose webhook is shared by policies of different selectors and match
    /// conditions: those that any of its entries matches. A member without an entry is asked about all.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub matches: BTreeMap<PolicyId, Vec<MemberMatch>>,
}

/// The guest ABI of a module (docs/design/policy-abi.md, section 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionMode {
    /// waPC, the default.
    #[default]
    #[serde(rename = "kubewarden-wapc")]
    KubewardenWapc,
    /// A WASI command.
    Wasi,
    /// Rego for Open Policy Agent.
    Opa,
    /// Rego for Gatekeeper.
    Gatekeeper,
}

impl ExecutionMode {
    /// The name in metadata.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::KubewardenWapc => "kubewarden-wapc",
            Self::Wasi => "wasi",
            Self::Opa => "opa",
            Self::Gatekeeper => "gatekeeper",
        }
    }

    /// Whether the module is compiled from Rego.
    pub fn is_rego(self) -> bool {
        matches!(self, Self::Opa | Self::Gatekeeper)
    }
}

/// A kind that a policy may read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ContextAwareResource {
    /// For instance `v1` or `apps/v1`.
    pub api_version: String,
    /// For instance `Namespace`.
    pub kind: String,
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not JSON of the envelope's form: truncated, empty, or another file.
    #[error("failed to decode the manifest: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Written by a newer release.
    #[error(
        "the manifest has format {found}, newer than {MANIFEST_FORMAT}, the newest this release reads; upgrade the evaluator"
    )]
    NewerFormat {
        /// The format found.
        found: u32,
    },
    /// The body does not have the checksum that the envelope names.
    #[error("the manifest's body has digest {found}, its envelope promises {expected}")]
    Checksum {
        /// The checksum in the envelope.
        expected: Digest,
        /// The checksum of the body.
        found: Digest,
    },
    /// The manifest can be decoded, but contradicts itself.
    #[error("the manifest contradicts itself: {0}")]
    Inconsistent(String),
}

/// The value of [`PolicyEntry::enforced`] where the field is missing.
pub(crate) fn enforced() -> bool {
    true
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    format: u32,
    sha256: Digest,
    #[serde(borrow)]
    body: &'a RawValue,
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl Manifest {
    /// The bytes of `manifest.json`: an envelope of format, checksum and body.
    ///
    /// # Errors
    /// None that a well-formed manifest can cause.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let body = serde_json::value::to_raw_value(self)?;
        let sha256 = Digest::of(body.get().as_bytes());
        serde_json::to_vec(&Envelope { format: MANIFEST_FORMAT, sha256, body: &body })
    }

    /// Reads what [`Manifest::encode`] wrote. Unknown fields are allowed, so that a newer release may add some.
    ///
    /// # Errors
    /// When the bytes are incomplete, have a newer format, or contradict themselves.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        // The format is read first, by itself: the rest of a newer manifest may have another form.
        let Format { format } = serde_json::from_slice(bytes)?;
        if format > MANIFEST_FORMAT {
            return Err(ManifestError::NewerFormat { found: format });
        }
        let envelope: Envelope<'_> = serde_json::from_slice(bytes)?;
        let found = Digest::of(envelope.body.get().as_bytes());
        if found != envelope.sha256 {
            return Err(ManifestError::Checksum { expected: envelope.sha256, found });
        }
        let manifest: Self = serde_json::from_str(envelope.body.get())?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), ManifestError> {
        let inconsistent = |text: String| Err(ManifestError::Inconsistent(text));
        let mut ids = std::collections::HashSet::new();
        for policy in &self.policies {
            if !ids.insert(&policy.id) {
                return inconsistent(format!("policy {} is there twice", policy.id));
            }
            for named in policy.candidates.iter().flat_map(Candidate::modules) {
                let file = &named.module.artifact.file;
                if file.is_empty() || file.starts_with('.') || file.contains(['/', '\0']) {
                    return inconsistent(format!("policy {} names the artifact {file:?}", policy.id));
                }
            }
        }
        let mut groups = std::collections::HashSet::new();
        for group in &self.groups {
            if !groups.insert(&group.id) {
                return inconsistent(format!("match group {} is there twice", group.id));
            }
            if let Some(member) = group.members.iter().find(|member| !ids.contains(member)) {
                return inconsistent(format!("match group {} has the unknown member {member}", group.id));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest { number: 7, policies: Vec::new(), groups: Vec::new() }
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = manifest().encode().expect("encodes");
        assert_eq!(Manifest::decode(&bytes).expect("decodes").number, 7);
    }

    #[test]
    fn a_policy_of_an_earlier_release_counts_as_enforced() {
        let text = r#"{"id": "cluster/a", "uid": "u", "generation": 1, "mode": "protect", "failurePolicy": "Fail",
            "candidates": [], "failures": []}"#;
        let entry: PolicyEntry = serde_json::from_str(text).expect("decodes");
        assert!(entry.enforced);
    }

    #[test]
    fn a_candidate_is_a_module_or_a_group_and_keeps_its_settings() {
        let digest = Digest::of(b"module");
        let module = format!(
            r#""artifact":{{"file":"a","sha256":"{digest}","size":1}},"executionMode":"wasi","settings":{{"n":1.10}}"#
        );
        let whole = |content: &str| format!(r#"{{"generation":1,"digest":"{digest}","mutating":false,{content}}}"#);
        let decode = |text: &str| serde_json::from_str::<Candidate>(text);
        let written = |text: &str| serde_json::to_string(&decode(text).expect("decodes")).expect("encodes");
        let plain = whole(&format!(r#"{module},"hostCapabilities":["*"],"contextAwareResources":[]"#));
        assert_eq!(written(&plain), plain);
        let member = format!(r#"{{"digest":"{digest}","module":{{{module}}}}}"#);
        let group = decode(&whole(&format!(r#""expression":"a()","members":{{"a":{member}}}"#))).expect("decodes");
        assert_eq!(group.members(), BTreeMap::from([("a".to_owned(), digest)]));
        assert_eq!(group.modules()[0].module.settings.get(), r#"{"n":1.10}"#);
        for neither in [r#""settings":{}"#, r#""expression":"a()""#, &format!(r#"{module},"expression":"a()""#)] {
            assert!(decode(&whole(neither)).is_err(), "{neither}");
        }
    }

    #[test]
    fn a_torn_manifest_is_refused_at_every_length() {
        let bytes = manifest().encode().expect("encodes");
        for end in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn a_changed_body_is_refused() {
        let text = String::from_utf8(manifest().encode().expect("encodes")).expect("text");
        let changed = text.replace("\"number\":7", "\"number\":8");
        assert!(matches!(Manifest::decode(changed.as_bytes()), Err(ManifestError::Checksum { .. })));
    }

    #[test]
    fn a_newer_format_is_named_even_if_nothing_else_is_known() {
        let error = Manifest::decode(br#"{"format":2,"blocks":[]}"#).expect_err("refused");
        assert!(matches!(error, ManifestError::NewerFormat { found: 2 }));
    }
}
