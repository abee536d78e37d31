//! The policies that `evaluate` measures.

use std::env;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::ValueEnum;
use portcullis_contract::Manifest;
use serde_json::{Value, json};

use crate::pod::{Folder, examples};

/// What answers the review.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// A policy in Rust (waPC) that reads the pod.
    Rust,
    /// A policy in Go (WASI), which reads the pod.
    Go,
    /// A policy in Rego, mode `opa`.
    Opa,
    /// A policy in Rego, mode `gatekeeper`.
    Gatekeeper,
    /// A policy in Rust that changes the pod.
    Mutation,
    /// A policy group whose three members are all asked.
    PolicyGroup,
    /// One webhook for five policies.
    #[value(name = "webhook-of-5")]
    Webhook5,
    /// One webhook for twenty policies.
    #[value(name = "webhook-of-20")]
    Webhook20,
    /// A policy that asks its host nothing, to compare the next one with.
    NoHostCall,
    /// The same with one call that the broker answers from its memory.
    HostCall,
}

/// All workloads that can be measured here.
pub(crate) fn measurable() -> Vec<Workload> {
    let can_be = |workload: &Workload| *workload != Workload::Go || go_modules().is_some();
    Workload::value_variants().iter().copied().filter(can_be).collect()
}

const PRIVILEGED: &str = "examples/modules/no-privileged.wasm";

impl Workload {
    /// Its name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether one policy or policy group answers by itself.
    pub(crate) fn is_one_policy(self) -> bool {
        !matches!(self, Self::Webhook5 | Self::Webhook20)
    }

    /// Whether it needs a loader beside the evaluator.
    pub(crate) fn needs_broker(self) -> bool {
        self == Self::HostCall
    }

    /// Whether it admits the review. The guest that asks its host denies every request, with the host's answers as the message.
    pub(crate) fn admits(self) -> bool {
        !matches!(self, Self::NoHostCall | Self::HostCall)
    }

    /// Writes its policies, and returns how many there are.
    pub(crate) fn put(self, folder: &Folder) -> anyhow::Result<usize> {
        let one = |wasm: Vec<u8>, settings: Value, mutating: bool| {
            folder.policy("measured", &wasm, &settings, mutating)?;
            Ok(1)
        };
        match self {
            Self::Rust => one(module(PRIVILEGED)?, json!({}), false),
            Self::Go => one(go_module()?, go_settings(), false),
            Self::Opa => one(module("guests/modules/host-paths.wasm")?, json!({}), false),
            Self::Gatekeeper => one(
                module("guests/modules/required-probes.wasm")?,
                json!({"probes": ["livenessProbe", "readinessProbe"]}),
                false,
            ),
            Self::Mutation => {
                one(module("examples/modules/default-resources.wasm")?, json!({"cpu": "100m", "memory": "64Mi"}), true)
            }
            Self::PolicyGroup => {
                let member = json!({"module": folder.module("measured", &module(PRIVILEGED)?)?});
                let members = json!({"a": member, "b": member, "c": member});
                let spec = json!({"policies": members, "expression": "a() && b() && c()", "message": "not allowed"});
                folder.manifest("measured", spec)?;
                Ok(1)
            }
            Self::Webhook5 => several(folder, 5),
            Self::Webhook20 => several(folder, 20),
            Self::NoHostCall => one(module("examples/modules/host-capabilities.wasm")?, json!({"calls": []}), false),
            Self::HostCall => {
                let file = folder.module("measured", &module("examples/modules/host-capabilities.wasm")?)?;
                let settings = json!({"calls": [{"lookupHost": "localhost"}]});
                let spec = json!({"module": file, "settings": settings, "hostCapabilities": ["net/*"]});
                folder.manifest("measured", spec)?;
                Ok(1)
            }
        }
    }

    /// The path at which it is asked.
    pub(crate) fn path(self, manifest: &Manifest) -> anyhow::Result<String> {
        if self.is_one_policy() {
            return Ok("/validate/cluster/measured".to_owned());
        }
        let group = manifest.groups.iter().max_by_key(|group| group.members.len());
        Ok(format!("/admit/{}", group.context("the manifest has no match group")?.id.as_str()))
    }
}

/// The module of 3.3 MB that is built from the guests in Go. It is too large for the repository: `cargo xtask bench` builds it.
pub(crate) fn go_module() -> anyhow::Result<Vec<u8>> {
    let folder =
        go_modules().context("it needs a guest in Go: run it by `cargo xtask bench`, which says what is missing")?;
    let path = folder.join("allowed-registries.wasm");
    std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))
}

/// The settings with which that module admits the pod of a review.
pub(crate) fn go_settings() -> Value {
    json!({"registries": ["registry.example.com"]})
}

/// The folder of the guests in Go; `None` if they could not be built.
pub(crate) fn go_modules() -> Option<PathBuf> {
    env::var_os("PORTCULLIS_GO_GUESTS").map(PathBuf::from)
}

/// A module of the repository.
fn module(path: &str) -> anyhow::Result<Vec<u8>> {
    let path: PathBuf = examples().parent().context("the examples are in the repository")?.join(path);
    std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))
}

fn several(folder: &Folder, policies: usize) -> anyhow::Result<usize> {
    for number in 0..policies {
        folder.policy(&format!("measured-{number:02}"), &module(PRIVILEGED)?, &json!({}), false)?;
    }
    Ok(policies)
}
