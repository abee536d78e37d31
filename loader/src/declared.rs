//! What a module's metadata declares about its use, for comparison with the policy.

use portcullis_contract::{ContextAwareResource, clean};
use serde::{Deserialize, Serialize};

/// What a module's metadata declares about its use. Its size is limited again where it is read from a record, as the compile child that
/// wrote the record had read hostile bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, from = "Unbounded")]
pub struct Declared {
    /// Whether the module has the section at all.
    pub has_section: bool,
    /// Whether it may change requests; `None` where the metadata does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutating: Option<bool>,
    /// Whether it takes raw requests instead of admission requests.
    pub raw: bool,
    /// The resources of its rules, each as [`resources`] writes it. Empty where it names none, or too many to compare.
    pub resources: Vec<String>,
    /// The host capabilities that it calls, as paths or patterns.
    pub host_capabilities: Vec<String>,
    /// The kinds that it reads.
    pub context_aware_resources: Vec<ContextAwareResource>,
}

/// Most entries of each list of [`Declared`].
pub(crate) const MAX_ENTRIES: usize = 32;
/// Longest text in it, in bytes.
const MAX_TEXT: usize = 128;

/// [`Declared`] as it was read, before its size is limited.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Unbounded {
    pub(crate) has_section: bool,
    pub(crate) mutating: Option<bool>,
    pub(crate) raw: bool,
    pub(crate) resources: Vec<String>,
    pub(crate) host_capabilities: Vec<String>,
    pub(crate) context_aware_resources: Vec<ContextAwareResource>,
}

impl From<Unbounded> for Declared {
    fn from(read: Unbounded) -> Self {
        let text = |text: &String| clean(text, MAX_TEXT);
        // All or nothing: with some of the resources missing, a policy's rules would look as if the module did not cover them.
        let fits = read.resources.len() <= MAX_ENTRIES && read.resources.iter().all(|one| one.len() <= MAX_TEXT);
        Self {
            has_section: read.has_section,
            mutating: read.mutating,
            raw: read.raw,
            resources: if fits { read.resources.iter().map(text).collect() } else { Vec::new() },
            host_capabilities: read.host_capabilities.iter().take(MAX_ENTRIES).map(text).collect(),
            context_aware_resources: read
                .context_aware_resources
                .iter()
                .take(MAX_ENTRIES)
                .map(|kind| ContextAwareResource { api_version: text(&kind.api_version), kind: text(&kind.kind) })
                .collect(),
        }
    }
}

/// Each API group with each resource of a rule, in one text, for instance `apps/deployments`, `/pods` or `/pods/exec`.
pub(crate) fn resources(groups: &[String], resources: &[String]) -> impl Iterator<Item = String> {
    groups.iter().flat_map(move |group| resources.iter().map(move |resource| format!("{group}/{resource}")))
}
