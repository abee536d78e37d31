//! Makes a candidate ready to serve: links it, starts it once, and has it check its settings. Nothing serves before that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use portcullis_contract::{
    Candidate, CandidateContent, CandidatePolicyGroup, Digest, ExecutionMode, NamedModule, PolicyId, Reason, clean,
};
use portcullis_expression::{Expression, ExpressionError};

use crate::admission::LONGEST_WAIT;
use crate::capability::BrokerLink;
use crate::capability::cache::{Caches, PolicyCache};
use crate::fair::claimant::Claimant;
use crate::guest::loaded::{Content, Loaded, LoadedModule, LoadedPolicyGroup};
use crate::guest::{
    CallError, Grants, Guest, GuestLog, Guests, Host, LinkError, LogShares, NO_BROKER, Operation, Parts,
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
            Self::NoObjects => Reason::CapabilityUnavailable,
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

impl Loading {
    /// Loads a candidate of the policy `id`; `enforced` says whether any generation of it was enforced.
    ///
    /// # Errors
    /// The first check that it does not pass.
    pub(crate) async fn load(
        &self,
        id: &PolicyId,
        candidate: &Candidate,
        enforced: bool,
        metrics: Arc<PolicyMetrics>,
    ) -> Result<Arc<Loaded>, LoadError> {
        let limit = |own| own_limit(own, self.policy_timeout);
        let share = self.log_shares.of(id, Instant::now());
        let log = GuestLog::new(id.clone(), candidate.generation, share, Arc::clone(&metrics));
        let (content, timeout) = match &candidate.content {
            CandidateContent::Module(module) => {
                let timeout = limit(candidate.timeout_eval_seconds);
                let named = NamedModule { member: None, digest: candidate.digest, module };
                let module = self.load_module(id, candidate.generation, named, timeout, enforced, metrics).await?;
                (Content::Module(module), timeout)
            }
            CandidateContent::Group(group) => {
                let expression = Expression::parse(&group.expression, group.members.keys().map(String::as_str))?;
                let mut members = BTreeMap::new();
                for named in candidate.modules() {
                    let Some(name) = named.member else { continue };
                    let timeout = limit(group.members[name].timeout_eval_seconds);
                    let metrics = Arc::clone(&metrics);
                    let load = self.load_module(id, candidate.generation, named, timeout, enforced, metrics);
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
        enforced: bool,
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
        let module = self.artifacts.load(&who, enforced, &candidate.artifact).await?;
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
        self.check_settings(&guest, &host, candidate.execution_mode, settings, timeout).await?;
        Ok(LoadedModule::new(candidate, timeout, guest, host, module))
    }

    async fn check_settings(
        &self,
        guest: &Arc<Guest>,
        host: &Arc<Host>,
        mode: ExecutionMode,
        settings: &str,
        timeout: Duration,
    ) -> Result<(), LoadError> {
        let payload = Parts::whole(Bytes::copy_from_slice(settings.as_bytes()));
        let (guest, host, who) = (Arc::clone(guest), Arc::clone(host), Arc::clone(&host.who));
        let call = self.lanes.load(&who, timeout, move |deadline| async move {
            let (account, _hold) = host.account(deadline);
            guest.call(&host, Operation::ValidateSettings, payload, deadline, account).await.map(|reply| reply.bytes)
        });
        let (reply, times) = call.await;
        let reply = reply.unwrap_or_else(|error| {
            Err(match error {
                LaneError::TimedOut => CallError::TimedOut,
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

/// The same as [`judge`], where a check that was too late because this replica is busy counts otherwise than one whose module takes too long.
fn judge_in_time(
    reply: Result<Vec<u8>, CallError>,
    times: LoadTimes,
    limit: Duration,
    mode: ExecutionMode,
) -> Result<(), LoadError> {
    let is_late = matches!(reply, Err(CallError::TimedOut | CallError::Init { timed_out: true, .. }));
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
fn judge(reply: Result<Vec<u8>, CallError>, mode: ExecutionMode) -> Result<(), LoadError> {
    let is_wasi = mode == ExecutionMode::Wasi;
    let reply = match reply {
        Ok(reply) => reply,
        Err(CallError::Init { text, timed_out: true }) => return Err(LoadError::StartTimedOut(quote(&text))),
        Err(CallError::Init { text, timed_out: false }) => return Err(LoadError::Start(quote(&text))),
        Err(CallError::Overloaded(text)) => return Err(LoadError::NoMemory(text)),
        Err(CallError::Unsupported(text)) => return Err(LoadError::Unsupported(text)),
        Err(CallError::Host(text)) => return Err(LoadError::Start(quote(&format!("Initialization failed: {text}")))),
        Err(error @ (CallError::Guest(_) | CallError::Denied(_) | CallError::Unprovided(_))) if is_wasi => {
            return Err(LoadError::SettingsCheck(quote(&error.to_string())));
        }
        Err(error) => {
            let text = format!("Error invoking settings validation callback: Guest call failure: {error}");
            return Err(LoadError::SettingsCheck(quote(&text)));
        }
    };
    match reply::settings(&reply) {
        Ok(response) if response.valid => Ok(()),
        Ok(response) => {
            let message = response.message.filter(|message| !message.trim().is_empty());
            Err(LoadError::Settings(message.map_or_else(|| "no message".to_owned(), |message| quote(&message))))
        }
        Err(cause) if is_wasi => {
            Err(LoadError::SettingsCheck(quote(&format!("Cannot deserialize settings validation response: {cause}"))))
        }
        Err(cause) => {
            let text = format!("Error invoking settings validation callback: {cause}");
            Err(LoadError::SettingsCheck(quote(&text)))
        }
    }
}

fn quote(text: &str) -> String {
    clean(text, MAX_QUOTE)
}

#[cfg(test)]
mod tests {
    use portcullis_contract::{Artifact, CandidateMember, CandidateModule};
    use serde_json::value::RawValue;

    use super::*;

    fn wapc(reply: Result<&str, CallError>) -> (Reason, String) {
        let error = judge(reply.map(|text| text.as_bytes().to_vec()), ExecutionMode::KubewardenWapc);
        let error = error.expect_err("refused");
        (error.reason(), error.to_string())
    }

    #[test]
    fn settings_that_the_guest_refuses() {
        let (reason, text) = wapc(Ok(r#"{"valid":false,"message":"no such label"}"#));
        assert_eq!((reason, text.as_str()), (Reason::SettingsInvalid, "Policy settings are invalid: no such label"));
        for silent in [r#"{"valid":false}"#, r#"{"valid":false,"message":null}"#, r#"{"valid":false,"message":" "}"#] {
            assert_eq!(wapc(Ok(silent)).1, "Policy settings are invalid: no message");
        }
        let long = format!(r#"{{"valid":false,"message":"{}"}}"#, "x".repeat(4096));
        assert!(wapc(Ok(&long)).1.len() < 600);
    }

    #[test]
    fn a_check_that_fails_itself() {
        for reply in [Ok("nonsense"), Ok("{}"), Err(CallError::TimedOut), Err(CallError::Trap("wasm trap".into()))] {
            assert_eq!(wapc(reply).0, Reason::SettingsCheckFailed);
        }
        let text = wapc(Err(CallError::Guest("oh".into()))).1;
        assert_eq!(
            text,
            "Policy settings are invalid: Error invoking settings validation callback: Guest call failure: oh"
        );
    }

    #[test]
    fn a_start_without_memory_may_pass() {
        let (reason, text) = wapc(Err(CallError::Overloaded("no memory left".into())));
        assert_eq!((reason, text.as_str()), (Reason::MemoryUnavailable, "no memory left"));
        assert!(reason.class().is_retryable());
    }

    #[test]
    fn a_start_without_processor_time_may_pass() {
        let limit = Duration::from_secs(2);
        let had = |millis| LoadTimes { used: Duration::from_millis(millis), waited: Duration::ZERO };
        let judged = |reply, millis| {
            judge_in_time(reply, had(millis), limit, ExecutionMode::KubewardenWapc).expect_err("it does not serve")
        };
        for (late, reason) in [
            (CallError::TimedOut, Reason::SettingsCheckFailed),
            (CallError::TimedOut.init("wapc_init"), Reason::StartTimedOut),
        ] {
            let error = judged(Err(late.clone()), 80);
            assert!(error.reason() == Reason::ProcessorUnavailable && error.reason().class().is_retryable());
            assert!(error.to_string().contains("80 ms within 2000 ms"), "{error}");
            assert_eq!(error.blaming_the_module().reason(), reason);
            assert_eq!(judged(Err(late), 1900).reason(), reason, "the module is to blame");
        }
        let failed = judged(Err(CallError::Exit(1).init("_start")), 0);
        assert_eq!(failed.reason(), Reason::InstantiationFailed);
        assert_eq!(failed.blaming_the_module().reason(), Reason::InstantiationFailed);
    }

    #[test]
    fn a_group_has_the_time_of_all_its_members() {
        let group = |members: &[Option<u32>]| {
            let members = members.iter().enumerate().map(|(n, &timeout_eval_seconds)| {
                let artifact = Artifact { file: "a".into(), sha256: Digest::of(b"code"), size: 4 };
                let module = CandidateModule {
                    artifact,
                    execution_mode: ExecutionMode::KubewardenWapc,
                    settings: RawValue::from_string("{}".to_owned()).expect("JSON"),
                    host_capabilities: Vec::new(),
                    context_aware_resources: Vec::new(),
                };
                let member = CandidateMember { digest: Digest::of(b"module"), timeout_eval_seconds, module };
                (format!("m{n}"), member)
            });
            CandidatePolicyGroup { expression: "true".to_owned(), members: members.collect() }
        };
        for (own, members, default, seconds) in [
            (None, &[None, None, None][..], 2, 6),
            (None, &[Some(3), None], 2, 5),
            (None, &[Some(3), Some(4)], 2, 7),
            (None, &[Some(1)], 2, 2),
            (Some(1), &[None, Some(4)], 2, 1),
            (Some(9), &[None], 2, 9),
            (None, &[None; 15], 2, 30),
            (None, &[None; 16], 10, 30),
            (None, &[Some(30), None], 2, 30),
            (None, &[Some(5)], 40, 40),
        ] {
            let limit = group_limit(own, &group(members), Duration::from_secs(default));
            assert_eq!(limit, Duration::from_secs(seconds), "{own:?} {members:?} {default}");
        }
    }

    #[test]
    fn a_start_that_fails_is_another_matter() {
        assert_eq!(wapc(Err(CallError::TimedOut.init("wapc_init"))).0, Reason::StartTimedOut);
        assert_eq!(wapc(Err(CallError::Exit(1).init("_start"))).0, Reason::InstantiationFailed);
    }

    #[test]
    fn large_and_deep_settings_are_refused_unseen() {
        let large = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_SETTINGS));
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        for settings in [large, deep] {
            assert_eq!(check_size(&settings).expect_err("refused").reason(), Reason::SettingsInvalid);
        }
        assert!(check_size(&"[".repeat(999)).is_ok());
    }
}
