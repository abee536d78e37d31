//! One loaded generation of one policy: only what is needed to get a verdict on a request.

mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use portcullis_contract::{Candidate, CandidateModule, Digest, ExecutionMode, Reason};
use portcullis_expression::Expression;
use wasmtime::Module;

use crate::fair::claimant::Claimant;
use crate::guest::{CallError, Guest, GuestLog, Host, Operation, Parts, Reply};
use crate::memory::{InstanceMemory, MemoryHold, NoMemory, WhenFull};
use crate::verdict::draft::Subject;
use crate::verdict::offload;
use crate::verdict::{EvaluationError, TIMED_OUT, Verdict};
use crate::verdict::{rego, reply};

/// A generation that passed all its checks.
pub struct Loaded {
    generation: i64,
    digest: Digest,
    /// The digests of the members' modules; empty where it is not a policy group.
    members: BTreeMap<String, Digest>,
    message: Option<String>,
    mutating: bool,
    timeout: Duration,
    content: Content,
    log: GuestLog,
}

/// What a generation evaluates.
#[derive(Clone)]
pub(crate) enum Content {
    /// One module.
    Module(LoadedModule),
    /// The members of a policy group.
    PolicyGroup(Arc<LoadedPolicyGroup>),
}

/// The members of a policy group, and how their verdicts are combined.
pub(crate) struct LoadedPolicyGroup {
    /// The expression, which calls only these members.
    pub(crate) expression: Expression,
    /// The members.
    pub(crate) members: BTreeMap<String, LoadedModule>,
}

/// A module with its settings, linked and checked.
#[derive(Clone)]
pub struct LoadedModule {
    timeout: Duration,
    mode: ExecutionMode,
    settings: Bytes,
    guest: Arc<Guest>,
    host: Arc<Host>,
    /// Keeps the mapping alive, and with it the entry by which other policies find the same code.
    _module: Arc<Module>,
}

impl LoadedModule {
    pub(crate) fn new(
        candidate: &CandidateModule,
        timeout: Duration,
        guest: Arc<Guest>,
        host: Arc<Host>,
        module: Arc<Module>,
    ) -> Self {
        Self {
            timeout,
            mode: candidate.execution_mode,
            settings: Bytes::copy_from_slice(candidate.settings.get().as_bytes()),
            guest,
            host,
            _module: module,
        }
    }

    /// The same module and settings for another generation.
    fn renumbered(&self, generation: i64) -> Self {
        Self { host: Arc::new(self.host.renumbered(generation)), ..self.clone() }
    }

    /// Asks the module about a request, given as the JSON that the guest shall see, in a fresh instance. Dropping the future ends the
    /// guest.
    ///
    /// # Errors
    /// When the guest fails, is not done by `deadline`, or gives a reply that is not a verdict.
    pub async fn validate(&self, request: Bytes, deadline: Instant) -> Result<Verdict, EvaluationError> {
        let judged = self.validate_with(request, Subject::Object, deadline, WhenFull::Wait, 0).await;
        judged.map(|(verdict, _hold)| verdict)
    }

    /// [`Self::validate`] about a `subject`, where `when_full` says what the instance does where no memory is left, and its request keeps
    /// `kept` bytes already. What the instance held of memory stays taken until the hold is dropped: a changed object in the verdict is part of
    /// it, and may wait to be judged.
    ///
    /// # Errors
    /// The same.
    pub(crate) async fn validate_with(
        &self,
        request: Bytes,
        subject: Subject,
        deadline: Instant,
        when_full: WhenFull,
        kept: u64,
    ) -> Result<(Verdict, Arc<MemoryHold>), EvaluationError> {
        let payload = Parts::request(request.clone(), self.settings.clone());
        let (account, hold) = self.host.account(deadline);
        let account = account.when_full(when_full).beside(kept);
        let reply = self.guest.call(&self.host, Operation::Validate, payload, deadline, account).await;
        let reply = reply.map_err(|error| evaluation_error(&error, self.mode))?;
        let (who, mode) = (&self.host.who, self.mode);
        let verdict = match reply {
            Reply::Rego { bytes, account } => {
                rego_verdict(who, bytes, mode, (request, subject), account, deadline).await?
            }
            Reply::Json { bytes, failed_calls } => {
                let verdict = offload::work(who, bytes.len(), move || reply::verdict(&bytes, mode)).await?;
                verdict.after_failed_capability(failed_calls.failed)
            }
        };
        Ok((verdict, hold))
    }

    /// The time limit of one evaluation.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }
}

impl Loaded {
    /// The generation of `candidate`, whose content is loaded.
    pub(crate) fn new(candidate: &Candidate, timeout: Duration, content: Content, log: GuestLog) -> Self {
        Self {
            generation: candidate.generation,
            digest: candidate.digest,
            members: candidate.members(),
            message: candidate.message.clone(),
            mutating: candidate.mutating,
            timeout,
            content,
            log,
        }
    }

    /// The same code and settings under another generation.
    pub(crate) fn renumbered(&self, generation: i64) -> Self {
        let content = match &self.content {
            Content::Module(module) => Content::Module(module.renumbered(generation)),
            Content::PolicyGroup(group) => Content::PolicyGroup(Arc::new(LoadedPolicyGroup {
                expression: group.expression.clone(),
                members: group
                    .members
                    .iter()
                    .map(|(name, member)| (name.clone(), member.renumbered(generation)))
                    .collect(),
            })),
        };
        Self {
            generation,
            digest: self.digest,
            members: self.members.clone(),
            message: self.message.clone(),
            mutating: self.mutating,
            timeout: self.timeout,
            content,
            log: self.log.renumbered(generation),
        }
    }

    /// Its module, where it is not a policy group.
    pub fn module(&self) -> Option<&LoadedModule> {
        match &self.content {
            Content::Module(module) => Some(module),
            Content::PolicyGroup(_) => None,
        }
    }

    /// What it evaluates.
    pub(crate) fn content(&self) -> &Content {
        &self.content
    }

    /// Its log.
    pub(crate) fn log(&self) -> &GuestLog {
        &self.log
    }

    /// Whether it can judge a request that is not an AdmissionReview.
    pub(crate) fn takes_raw(&self) -> bool {
        let takes_raw = |module: &LoadedModule| module.mode != ExecutionMode::Gatekeeper;
        match &self.content {
            Content::Module(module) => takes_raw(module),
            Content::PolicyGroup(group) => group.members.values().all(takes_raw),
        }
    }

    /// The generation.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// The digest of the module; for a policy group, of its members.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The digests of a policy group's members, by their names.
    pub(crate) fn members(&self) -> &BTreeMap<String, Digest> {
        &self.members
    }

    /// The text in place of the policy's own denials; none to keep them.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// Whether the policy's changes of the object may be sent.
    pub fn mutating(&self) -> bool {
        self.mutating
    }

    /// The time limit of one evaluation.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}

/// The verdict of a Rego policy. What its patch takes is taken from the account of its instance before anything is decoded.
async fn rego_verdict(
    who: &Claimant,
    result: Vec<u8>,
    mode: ExecutionMode,
    (request, subject): (Bytes, Subject),
    mut account: InstanceMemory,
    deadline: Instant,
) -> Result<Verdict, EvaluationError> {
    let seen = request.clone();
    let size = result.len() + request.len();
    let (mut verdict, patch) = offload::work(who, size, move || rego::verdict(&result, mode, &seen, subject)).await?;
    if let Some(patch) = patch {
        let overloaded = |error: NoMemory| EvaluationError::new(Reason::Overloaded, error.to_string());
        account.grow(patch.memory()).await.map_err(overloaded)?;
        let size = patch.work(&request);
        verdict.mutated_object = Some(offload::work(who, size, move || patch.apply(&request, deadline)).await?);
    }
    Ok(verdict)
}

/// The evaluation's error, with a text of docs/design/policy-abi.md, sections 5, 6 and 11.
fn evaluation_error(error: &CallError, mode: ExecutionMode) -> EvaluationError {
    let text = match error {
        CallError::AfterNo { error, .. } => return evaluation_error(error, mode),
        CallError::TimedOut { .. } | CallError::Init { timed_out: true, .. } => TIMED_OUT.to_owned(),
        CallError::Init { .. } | CallError::Host(_) => format!("internal server error: {error}"),
        CallError::ReplyTooLarge => format!("internal server error: invalid response from policy: {error}"),
        CallError::Overloaded(text) => text.clone(),
        // The message is what the command wrote to standard error, without a prefix.
        CallError::Guest(said) | CallError::Denied(said) | CallError::Unprovided { text: said, .. }
            if mode == ExecutionMode::Wasi =>
        {
            said.clone()
        }
        _ if mode.is_rego() => format!("internal server error: {error}"),
        _ => format!("internal server error: Guest call failure: {error}"),
    };
    EvaluationError::new(error.reason(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_failed_evaluations() {
        let text = |error: CallError, mode| evaluation_error(&error, mode).text;
        let wapc = ExecutionMode::KubewardenWapc;
        let timed_out = "Policy execution interrupted because it exceeded the allowed execution time";
        let late = || CallError::TimedOut { may_pass: None };
        assert_eq!(text(late(), wapc), timed_out);
        assert_eq!(text(late().init("wapc_init"), wapc), timed_out);
        assert_eq!(text(CallError::Guest("no".into()), wapc), "internal server error: Guest call failure: no");
        assert_eq!(text(CallError::Guest("no".into()), ExecutionMode::Wasi), "no");
        assert_eq!(
            text(CallError::Exit(3).init("_start"), wapc),
            "internal server error: Initialization failed: the guest exited with code 3"
        );
    }

    #[test]
    fn an_answer_of_no_changes_neither_text_nor_reason_of_what_follows() {
        for own in [CallError::Guest("not signed".into()), CallError::Exit(3).init("_start")] {
            let after = CallError::AfterNo { error: Box::new(own.clone()), may_pass: "oci/v2/verify: no".into() };
            for mode in [ExecutionMode::KubewardenWapc, ExecutionMode::Wasi] {
                let error = evaluation_error(&after, mode);
                assert_eq!(error, evaluation_error(&own, mode));
                assert_eq!(error.reason, Reason::EvaluationTrapped);
            }
        }
    }

    #[test]
    fn a_refused_capability_is_the_reason_of_what_follows() {
        let error = CallError::Denied("Policy has not been granted".into());
        assert_eq!(evaluation_error(&error, ExecutionMode::KubewardenWapc).reason, Reason::CapabilityDenied);
    }
}
