//! Makes a candidate ready to serve: links it, starts it once, and has it check its settings. Nothing serves before that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use portcullis_contract::{
    CALLBACK_FAILURE, Candidate, CandidateContent, CandidatePolicyGroup, Digest, ExecutionMode, NamedModule, PolicyId,
    Reason, clean,
};
use portcullis_expression::{Expression, ExpressionError};

use crate::admission::LONGEST_WAIT;
use crate::capability::BrokerLink;
use crate::capability::cache::{Caches, PolicyCache};
use crate::fair::claimant::Claimant;
use crate::guest::loaded::{Content, Loaded, LoadedModule, LoadedPolicyGroup};
use crate::guest::{
    CallError, FailedCalls, Grants, Guest, GuestLog, Guests, Host, LinkError, LogShares, NO_BROKER, Operation, Parts,
    Reply,
};
use crate::lanes::{LaneError, Lanes, LoadTimes};
use crate::metrics::PolicyMetrics;
use crate::review::json;
use crate::verdict::reply;
use crate::volume::artifact::Artifacts;
use crate::volume::artifact_error::ArtifactError;

/// The size from which settings are refused, in bytes.
const MAX_SETTINGS: usize = 1 << 20;
/// The number of nested levels from which settings are refused.
const MAX_SETTINGS_DEPTH: usize = 1000;
/// How much of a guest's own text about its settings is quoted, in bytes.
const MAX_QUOTE: usize = 512;
/// How much is quoted of the reason why a host call failed, in bytes. With the guest's own text it fits in a message.
const MAX_CAUSE: usize = 256;

/// Why a candidate may not serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// Its artifact cannot be used.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// Its module does not fit this host.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Its module asks for something that this host does not have.
    #[error("{0}")]
    Unsupported(String),
    /// It judges by objects of the cluster, and there is no broker to provide them.
    #[error("the policy reads objects of the cluster (contextAwareResources), and {NO_BROKER}")]
    NoObjects,
    /// A host capability could not be provided, or its answer was no, while the module was started or checked its settings, and it failed. The
    /// text may quote the guest, and what it asked for.
    #[error("{0}")]
    Capability(String),
    /// Its module does not start.
    #[error("{0}")]
    Start(String),
    /// There was no memory to start its module.
    #[error("{0}")]
    NoMemory(String),
    /// Its module did not start in time.
    #[error("{0}")]
    StartTimedOut(String),
    /// It was not done in time, and the replica had too little processor time to say whether the module is to blame.
    #[error(
        "this replica had too little processor time to start the module and check the settings: {} ms within {} ms; raise the evaluator's CPU limit or look at the node if it lasts",
        used.as_millis(),
        limit.as_millis()
    )]
    NoProcessor {
        /// The processor time that it had.
        used: Duration,
        /// The time that it may take.
        limit: Duration,
        /// What the failure is if the module is to blame.
        late: Box<LoadError>,
    },
    /// The settings are refused; the text may quote the guest.
    #[error("Policy settings are invalid: {0}")]
    Settings(String),
    /// The check of the settings itself failed; the text may quote the guest.
    #[error("Policy settings are invalid: {0}")]
    SettingsCheck(String),
    /// The expression of a policy group cannot be used. The loader has checked it, so this is a difference between releases.
    #[error("spec.expression: {0}")]
    Expression(#[from] ExpressionError),
    /// A member of a policy group cannot be loaded.
    #[error("member `{name}`: {error}")]
    Member {
        /// The member.
        name: String,
        /// Its module.
        module: Digest,
        /// The SHA-256 of its artifact.
        artifact: Digest,
        /// Why it cannot be loaded.
        error: Box<LoadError>,
    },
}

impl LoadError {
    fn of(self, named: &NamedModule<'_>) -> Self {
        match named.member {
            None => self,
            Some(name) => Self::Member {
                name: name.to_owned(),
                module: named.digest,
                artifact: named.module.artifact.sha256,
                error: Box::new(self),
            },
        }
    }

    /// The same failure, where a lack of processor time excuses the module no longer.
    pub(crate) fn blaming_the_module(self) -> Self {
        match self {
            Self::NoProcessor { late, .. } => *late,
            Self::Member { name, module, artifact, error } => {
                Self::Member { name, module, artifact, error: Box::new(error.blaming_the_module()) }
            }
            other => other,
        }
    }

    /// The reason of the failure.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Artifact(error) => error.reason(),
            Self::Link(error) => error.reason(),
            Self::Unsupported(_) => Reason::ModuleUnsupported,
            Self::NoObjects | Self::Capability(_) => Reason::CapabilityUnavailable,
            Self::Start(_) => Reason::InstantiationFailed,
            Self::NoMemory(_) => Reason::MemoryUnavailable,
            Self::StartTimedOut(_) => Reason::StartTimedOut,
            Self::NoProcessor { .. } => Reason::ProcessorUnavailable,
            Self::Settings(_) => Reason::SettingsInvalid,
            Self::SettingsCheck(_) => Reason::SettingsCheckFailed,
            Self::Expression(_) => Reason::SpecInvalid,
            Self::Member { error, .. } => error.reason(),
        }
    }
}

/// What loading needs for any policy.
pub(crate) struct Loading {
    /// The artifacts, with the code of modules.
    pub(crate) artifacts: Arc<Artifacts>,
    /// The host functions that modules are linked to.
    pub(crate) guests: Guests,
    /// The lanes that guests run in.
    pub(crate) lanes: Arc<Lanes>,
    /// The time limit of a policy that sets none.
    pub(crate) policy_timeout: Duration,
    /// Patterns of the host capabilities that policies of a namespace may have.
    pub(crate) namespaced_capabilities: Arc<[String]>,
    /// The link to the broker; none without a broker.
    pub(crate) broker: Option<Arc<BrokerLink>>,
    /// The values that policies keep from one request to the next.
    pub(crate) caches: Arc<Caches>,
    /// The same of policies that are only checked. They are separate, so that values of the installation's policies never give way to them.
    pub(crate) caches_of_checks: Arc<Caches>,
    /// How much policies may log.
    pub(crate) log_shares: Arc<LogShares>,
}

/// What is known about a candidate before it is loaded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    /// Whether any generation of the policy was enforced.
    pub(crate) enforced: bool,
    /// Whether an earlier try of the candidate had too little processor time.
    pub(crate) was_starved: bool,
}

impl Loading {
    /// Loads a candidate of the policy `id`.
    ///
    /// # Errors
    /// The first check that it does not pass.
    pub(crate) async fn load(
        &self,
        id: &PolicyId,
        candidate: &Candidate,
        before: Before,
        metrics: Arc<PolicyMetrics>,
    ) -> Result<Arc<Loaded>, LoadError> {
        let limit = |own| own_limit(own, self.policy_timeout);
        let share = self.log_shares.of(id, Instant::now());
        let log = GuestLog::new(id.clone(), candidate.generation, share, Arc::clone(&metrics));
        let (content, timeout) = match &candidate.content {
            CandidateContent::Module(module) => {
                let timeout = limit(candidate.timeout_eval_seconds);
                let named = NamedModule { member: None, digest: candidate.digest, module };
                let module = self.load_module(id, candidate.generation, named, timeout, before, metrics).await?;
                (Content::Module(module), timeout)
            }
            CandidateContent::Group(group) => {
                let expression = Expression::parse(&group.expression, group.members.keys().map(String::as_str))?;
                let mut members = BTreeMap::new();
                for named in candidate.modules() {
                    let Some(name) = named.member else { continue };
                    let timeout = limit(group.members[name].timeout_eval_seconds);
                    let metrics = Arc::clone(&metrics);
                    let load = self.load_module(id, candidate.generation, named, timeout, before, metrics);
                    members.insert(name.to_owned(), load.await.map_err(|error| error.of(&named))?);
                }
                let timeout = group_limit(candidate.timeout_eval_seconds, group, self.policy_timeout);
                (Content::PolicyGroup(Arc::new(LoadedPolicyGroup { expression, members })), timeout)
            }
        };
        Ok(Arc::new(Loaded::new(candidate, timeout, content, log)))
    }

    async fn load_module(
        &self,
        id: &PolicyId,
        generation: i64,
        named: NamedModule<'_>,
        timeout: Duration,
        before: Before,
        metrics: Arc<PolicyMetrics>,
    ) -> Result<LoadedModule, LoadError> {
        let candidate = named.module;
        let settings = candidate.settings.get();
        check_size(settings)?;
        // Without a broker it would fail at each request.
        let needs_objects = candidate.execution_mode.is_rego() && !candidate.context_aware_resources.is_empty();
        if needs_objects && self.broker.is_none() {
            return Err(LoadError::NoObjects);
        }
        let who = Claimant::new(id);
        let caches = if id.is_check() { &self.caches_of_checks } else { &self.caches };
        let module = self.artifacts.load(&who, before.enforced, &candidate.artifact).await?;
        let guest = Arc::new(self.guests.link(&module, candidate.execution_mode)?);
        let share = self.log_shares.of(id, Instant::now());
        let host = Arc::new(Host {
            grants: Grants {
                granted: candidate.host_capabilities.clone(),
                allowed: id.namespace().map(|_| Arc::clone(&self.namespaced_capabilities)),
            },
            log: GuestLog::new(id.clone(), generation, share, metrics),
            memory: Arc::clone(self.lanes.memory()),
            who,
            policy: id.clone(),
            generation,
            member: named.member.map(str::to_owned),
            broker: self.broker.clone(),
            needs_objects,
            cache: Arc::new(PolicyCache::new(caches, id)),
        });
        self.check_settings(&guest, &host, candidate.execution_mode, settings, timeout, before).await?;
        Ok(LoadedModule::new(candidate, timeout, guest, host, module))
    }

    async fn check_settings(
        &self,
        guest: &Arc<Guest>,
        host: &Arc<Host>,
        mode: ExecutionMode,
        settings: &str,
        timeout: Duration,
        before: Before,
    ) -> Result<(), LoadError> {
        let payload = Parts::whole(Bytes::copy_from_slice(settings.as_bytes()));
        let (guest, host, who) = (Arc::clone(guest), Arc::clone(host), Arc::clone(&host.who));
        let call = self.lanes.load(&who, timeout, before.was_starved, move |deadline| async move {
            let (account, _hold) = host.account(deadline);
            let reply = guest.call(&host, Operation::ValidateSettings, payload, deadline, account).await;
            reply.map(Reply::into_parts)
        });
        let (reply, times) = call.await;
        let reply = reply.unwrap_or_else(|error| {
            Err(match error {
                LaneError::TimedOut => CallError::TimedOut { may_pass: None },
                LaneError::Overloaded { text } => CallError::Overloaded(text),
                LaneError::Panicked => CallError::Host("it ended with a panic".to_owned()),
            })
        });
        judge_in_time(reply, times, timeout, mode)
    }
}

/// The time limit of a policy or a member with this limit of its own, where others have `default`.
fn own_limit(seconds: Option<u32>, default: Duration) -> Duration {
    seconds.map_or(default, |seconds| Duration::from_secs(seconds.into()))
}

/// The time limit of a policy group: its own, or else the time that its members may take one after the other, at most as long as an API server
/// waits, and at least `default`.
fn group_limit(seconds: Option<u32>, group: &CandidatePolicyGroup, default: Duration) -> Duration {
    let members = group.members.values().map(|member| own_limit(member.timeout_eval_seconds, default));
    own_limit(seconds, members.sum::<Duration>().min(LONGEST_WAIT).max(default))
}

/// The reply to `validate_settings` with the host calls that failed before it, or why no reply came.
type Checked = Result<(Vec<u8>, FailedCalls), CallError>;

/// The same as [`judge`], where a check that was too late because this replica is busy counts otherwise than one whose module takes too long.
fn judge_in_time(reply: Checked, times: LoadTimes, limit: Duration, mode: ExecutionMode) -> Result<(), LoadError> {
    let is_late = matches!(reply, Err(CallError::TimedOut { .. } | CallError::Init { timed_out: true, .. }));
    judge(reply, mode).map_err(|error| match is_late && times.is_starved(limit) {
        true => LoadError::NoProcessor { used: times.used, limit, late: Box::new(error) },
        false => error,
    })
}

fn check_size(settings: &str) -> Result<(), LoadError> {
    if settings.len() >= MAX_SETTINGS {
        return Err(LoadError::Settings(format!(
            "they have {} bytes, the limit is {MAX_SETTINGS}; make them shorter",
            settings.len()
        )));
    }
    if json::is_deeper(settings.as_bytes(), MAX_SETTINGS_DEPTH - 1) {
        return Err(LoadError::Settings(format!(
            "they are nested {MAX_SETTINGS_DEPTH} levels deep or deeper; make them flatter"
        )));
    }
    Ok(())
}

/// What the reply to `validate_settings` means.
fn judge(reply: Checked, mode: ExecutionMode) -> Result<(), LoadError> {
    let is_wasi = mode == ExecutionMode::Wasi;
    // What failed with its capability, or because what it asked about does not exist, may succeed the next time. It is no mistake in the settings.
    if let Err(error) = &reply
        && let Some(call) = error.that_may_pass()
    {
        return Err(unprovided(call, Some(&error.to_string())));
    }
    let (reply, failed_calls) = match reply {
        Ok(reply) => reply,
        Err(CallError::Init { text, timed_out: true, .. }) => return Err(LoadError::StartTimedOut(quote(&text))),
        Err(CallError::Init { text, timed_out: false, .. }) => return Err(LoadError::Start(quote(&text))),
        Err(CallError::Overloaded(text)) => return Err(LoadError::NoMemory(text)),
        Err(CallError::Unsupported(text)) => return Err(LoadError::Unsupported(text)),
        Err(CallError::Host(text)) => return Err(LoadError::Start(quote(&format!("Initialization failed: {text}")))),
        Err(error @ (CallError::Guest(_) | CallError::Denied(_) | CallError::Unprovided { .. })) if is_wasi => {
            return Err(LoadError::SettingsCheck(quote(&error.to_string())));
        }
        Err(error) => {
            let text = format!("Error invoking settings validation callback: Guest call failure: {error}");
            return Err(LoadError::SettingsCheck(quote(&text)));
        }
    };
    let (said, error) = match reply::settings(&reply) {
        Ok(response) if response.valid => return Ok(()),
        Ok(response) => {
            let message = response.message.filter(|message| !message.trim().is_empty());
            let text = message.as_deref().map_or_else(|| "no message".to_owned(), quote);
            (message, LoadError::Settings(text))
        }
        Err(cause) => {
            let text = match is_wasi {
                true => format!("Cannot deserialize settings validation response: {cause}"),
                false => format!("Error invoking settings validation callback: {cause}"),
            };
            let error = LoadError::SettingsCheck(quote(&text));
            (Some(text), error)
        }
    };
    Err(failed_calls.that_may_pass().map_or(error, |call| unprovided(call, said.as_deref())))
}

/// The failure of a module that asks its host for something while it is loaded, where `call` gave an error; `said` is what came of that.
fn unprovided(call: &str, said: Option<&str>) -> LoadError {
    let call = clean(&call.replacen(CALLBACK_FAILURE, "", 1), MAX_CAUSE);
    let said = said.map_or_else(String::new, |said| format!("; then the policy failed: {}", quote(said)));
    LoadError::Capability(format!("a host capability gave an error while the policy was loaded: {call}{said}"))
}

fn quote(text: &str) -> String {
    clean(text, MAX_QUOTE)
}

#[cfg(test)]
mod tests;
