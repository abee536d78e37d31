//! Evaluates a policy group: asks its members as its expression needs them (docs/design/policy-abi.md, section 10).
//!
//! Members that are needed in any case are asked side by side, as far as there are instances to spare; each has its own time within that of
//! the group. A member that fails never counts as a denial, which `!` would turn into an admission: the group fails, unless the others
//! decide.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use futures::future::join_all;
use portcullis_expression::{Answers, MemberAnswer, State};

use crate::guest::loaded::{LoadedModule, LoadedPolicyGroup};
use crate::lanes::Share;
use crate::memory::WhenFull;
use crate::verdict::decision::Mutation;
use crate::verdict::draft::{Edit, Judged};
use crate::verdict::{EvaluationError, FAILED_CAPABILITY, MemberDenial, Verdict, text};

/// The error of a member that changes the object; its text is part of docs/design/policy-abi.md, section 10.
const MUTATES: &str = "mutation is not allowed inside of policy group";

/// The verdict of the group on a request, without a message of its own.
///
/// # Errors
/// When a member fails and the others do not decide.
pub(super) async fn evaluate(
    group: &LoadedPolicyGroup,
    share: &Share,
    edit: &Edit,
    request: &Bytes,
    deadline: Instant,
    when_full: WhenFull,
) -> Result<Verdict, EvaluationError> {
    let mut answers = Answers::new();
    let (mut denials, mut failures) = (Vec::new(), BTreeMap::new());
    let mut annotations = BTreeMap::new();
    loop {
        let needed = match group.expression.evaluate(&answers) {
            State::Decided(accepted) => {
                let members = if accepted { Vec::new() } else { denials };
                let annotations = Some(annotations).filter(|_| !accepted);
                return Ok(Verdict { members, audit_annotations: annotations, ..Verdict::plain(accepted) });
            }
            State::Failed(name) => {
                let failure: Option<EvaluationError> = failures.remove(name);
                let EvaluationError { reason, text } = failure.unwrap_or_else(EvaluationError::timed_out);
                return Err(EvaluationError::new(reason, format!("member `{name}`: {text}")));
            }
            State::Needs(needed) => needed,
        };
        // The expression calls members only, which was checked when it was loaded.
        let needed = needed.into_iter().filter_map(|name| Some((name, group.members.get(name)?)));
        for (name, result) in ask(needed.collect(), share, edit, request, deadline, when_full).await {
            let answer = match result {
                Err(error) => {
                    failures.insert(name, error);
                    MemberAnswer::Failed
                }
                Ok(Judged { mut verdict, mutation, .. }) => {
                    let admits = verdict.accepted && mutation == Mutation::None;
                    if !admits {
                        let failed = verdict.audit_annotations.as_mut().and_then(|all| all.remove(FAILED_CAPABILITY));
                        annotations.extend(
                            failed.map(|why| (FAILED_CAPABILITY.to_owned(), format!("member `{name}`: {why}"))),
                        );
                        let said = if verdict.accepted { Some(MUTATES.to_owned()) } else { verdict.message };
                        let message = text::denial(&said.unwrap_or_default());
                        let message =
                            if message.is_empty() { "the member denies this request".to_owned() } else { message };
                        denials.push(MemberDenial { name: name.to_owned(), message });
                    }
                    MemberAnswer::Admits(admits)
                }
            };
            answers.insert(name, answer);
        }
    }
}

type Judgement<'g> = (&'g str, Result<Judged, EvaluationError>);

/// Asks members side by side, and one after the other those for which there is no instance to spare.
async fn ask<'g>(
    members: Vec<(&'g str, &'g LoadedModule)>,
    share: &Share,
    edit: &Edit,
    request: &Bytes,
    deadline: Instant,
    when_full: WhenFull,
) -> Vec<Judgement<'g>> {
    let one = |(name, member): (&'g str, &'g LoadedModule)| async move {
        let deadline = deadline.min(Instant::now() + member.timeout());
        let judged = match member.validate_with(request.clone(), deadline, when_full).await {
            Ok(verdict) => edit.clone().judge(share.claimant(), verdict, request.clone(), deadline).await,
            Err(error) => Err(error),
        };
        (name, judged)
    };
    let mut left = members.into_iter();
    let (mut first, mut spare) = (Vec::from_iter(left.next()), Vec::new());
    while left.len() > 0
        && let Some(permit) = share.spare_instance()
    {
        spare.push(permit);
        first.extend(left.next());
    }
    let mut asked = join_all(first.into_iter().map(one)).await;
    drop(spare);
    for member in left {
        asked.push(one(member).await);
    }
    asked
}
