//! Policies that get good and bad edits.

use std::time::{Duration, Instant};

use portcullis_e2e::{Api, Policy, Release, Reply, condition, eventually, guest, guest_with};
use serde_json::{Value, json};

use super::assess::History;
use super::fault::Edit;

/// The delay of a slow source.
const SLOW: Duration = Duration::from_secs(3);

/// A text that must not be in any log or status.
pub(super) const SECRET: &str = "do-not-tell-anybody-4711";

/// A policy that denies with a text of its own, which changes with each good edit.
pub(super) struct Victim {
    /// The policy as it was applied last.
    policy: Policy,
    edits: usize,
    /// A module that the source does not serve normally yet: its path and its bytes.
    late: Option<(String, Vec<u8>)>,
    pub(super) history: History,
}

impl Victim {
    /// A victim that has not been applied yet.
    pub(super) fn new(policy: Policy) -> Self {
        let policy = policy.field("settings", json!({ "password": SECRET }));
        Self { policy, edits: 0, late: None, history: History::default() }
    }

    /// The policy.
    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Applies the next version.
    pub(super) fn edit(&mut self, release: &Release<'_>, edit: Edit) {
        self.edits += 1;
        let text = format!("{} says {}.", self.policy.name(), self.edits);
        let module = guest_with("deny_text", text.as_bytes());
        let plain = self.policy.clone().with(&json!({ "spec": { "rollbackTo": null } }));
        let (policy, text) = match edit {
            Edit::Good | Edit::Slow | Edit::Unavailable | Edit::Missing => {
                (plain.module_of(module.clone()), Some(text))
            }
            Edit::NotAModule => (plain.module_of(format!("no module, {text}")), None),
            Edit::StartTraps => (plain.module_of(guest("start_trap")), None),
            Edit::SettingsRefused => {
                (plain.module_of(guest_with("settings_answer", br#"{"valid":false,"message":"not these"}"#)), None)
            }
            Edit::RollBack => match self.history.last_confirmed() {
                Some((generation, text)) => {
                    (self.policy.clone().field("rollbackTo", generation), Some(text.to_owned()))
                }
                None => return,
            },
        };
        let manifest = policy.manifest(release.source());
        self.mend_source(release);
        let instead = match edit {
            Edit::Slow => Some((200, module.clone(), SLOW)),
            Edit::Unavailable => Some((503, Vec::new(), Duration::ZERO)),
            Edit::Missing => Some((404, Vec::new(), Duration::ZERO)),
            _ => None,
        };
        if let Some((status, body, delay)) = instead {
            let path = path_of(&manifest);
            release.source().answer(&path, status, body, delay);
            self.late = Some((path, module));
        }
        let applied = Instant::now();
        let generation = apply(&release.api(), &policy, &manifest)["metadata"]["generation"].as_i64().unwrap();
        self.history.apply(generation, text.as_deref(), applied);
        self.policy = policy;
    }

    /// Makes the source serve the module of the last edit normally.
    pub(super) fn mend_source(&mut self, release: &Release<'_>) {
        if let Some((path, module)) = self.late.take() {
            release.source().put(&path, module);
        }
    }

    /// Records it if the newest version is Ready.
    pub(super) fn look(&mut self, api: &Api) {
        let object = api.get(&self.policy.path()).unwrap_or_default();
        let generation = &object["metadata"]["generation"];
        let is_ready = condition(&object, "Ready")
            .is_some_and(|ready| ready["status"] == "True" && ready["observedGeneration"] == *generation);
        if let Some(generation) = generation.as_i64().filter(|_| is_ready) {
            self.history.confirm(generation, Instant::now());
        }
    }
}

/// The path of a policy's module on its source.
fn path_of(manifest: &Value) -> String {
    let url = manifest["spec"]["module"].as_str().unwrap();
    url[url.rfind('/').unwrap()..].to_owned()
}

/// Applies a policy, and tries again until the API server accepts it. Returns the object.
pub(super) fn apply(api: &Api, policy: &Policy, manifest: &Value) -> Value {
    eventually(&format!("the edit of {}", policy.name()), || match api.apply(&policy.path(), "faults", manifest) {
        Ok(reply) if reply.is_ok() => Some(reply.body),
        Ok(Reply { code, body, .. }) => {
            println!("  {}: {code} {}", policy.name(), body["message"]);
            None
        }
        Err(error) => {
            println!("  {}: {error}", policy.name());
            None
        }
    })
}
