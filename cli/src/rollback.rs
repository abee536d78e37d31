//! `portcullis rollback`: an earlier generation serves again.
//!
//! ```text
//!  policy ─► target: which generation, or why none ─► patch of spec.rollbackTo ─► progress: until Ready, stuck or too late
//! ```
//!
//! Nothing but `spec.rollbackTo` is written. The controller makes the new generation's revision from the content of the named one.

mod progress;
mod target;

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::args::{ResultForm, RollbackArgs};
use crate::cluster::{Cluster, ClusterError, check_namespace};
use crate::item::Item;
use crate::name::Wanted;
use progress::{Progress, judge};
pub use target::RollbackError;
use target::{Change, choose, warning};

/// How often the status is read. All users who roll back have the right to read it.
const ASK: Duration = Duration::from_millis(500);

/// The result of a rollback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The text for standard output.
    pub text: String,
    /// Whether the policy is as the user asked.
    pub is_good: bool,
}

/// Changes the policy, and waits for it. Progress is shown on standard error.
///
/// # Errors
/// When the rollback is refused, or the cluster does not answer.
pub async fn rollback(cluster: &Cluster, args: &RollbackArgs) -> anyhow::Result<Outcome> {
    check_namespace("--installation-namespace", &args.installation_namespace)?;
    let item = cluster.find(&Wanted::parse(&args.target.policy, args.target.source.namespace.as_deref())?).await?;
    let change = choose(&item, args.to, args.undo)?;
    let to = match change {
        Change::To(to) => Some(to),
        Change::Undo(_) => None,
    };
    if let Some(to) = to
        && cluster.is_gone(&item, to, &args.installation_namespace).await?
    {
        let namespace = args.installation_namespace.clone();
        return Err(RollbackError::Gone { id: item.id, to, namespace }.into());
    }
    if let Some(warning) = warning(&item, &change) {
        crate::note(&warning);
    }
    let changed = change_to(cluster, &item, to, args.dry_run).await?;
    let progress = match (args.dry_run, args.no_wait) {
        (false, false) => Some(wait(cluster, &changed, args.timeout).await?),
        _ => None,
    };
    Ok(Outcome {
        text: match args.output {
            ResultForm::Text => in_words(&changed, &change, progress.as_ref(), args),
            ResultForm::Json => in_json(&changed, to, progress.as_ref(), args.dry_run),
        },
        is_good: progress.is_none_or(|progress| matches!(progress, Progress::Ready(_))),
    })
}

/// Sets or removes `spec.rollbackTo`, and returns the changed policy. An API server that ends the request in the middle may have stored the
/// change, so the policy is read then.
async fn change_to(cluster: &Cluster, item: &Item, to: Option<i64>, is_dry_run: bool) -> anyhow::Result<Item> {
    let error = match cluster.set_rollback(item, to, is_dry_run).await {
        Ok(changed) => return Ok(changed),
        Err(error) => error,
    };
    let may_be_stored = error.is_passing() && !is_dry_run;
    if !may_be_stored && !matches!(error, ClusterError::Refused { code: 422, .. }) {
        return Err(error.into());
    }
    // If nothing can be read either, the first error says more.
    let Ok(now) = cluster.policy(&item.id).await else { return Err(error.into()) };
    if now.generation() == item.generation() && now.uid() == item.uid() {
        return Err(error.into());
    }
    if may_be_stored && is_change(item, &now, to) {
        return Ok(now);
    }
    Err(RollbackError::Changed { id: item.id.clone(), generation: now.generation() }.into())
}

/// Whether the only change since `before` is that of `spec.rollbackTo`.
fn is_change(before: &Item, now: &Item, to: Option<i64>) -> bool {
    now.uid() == before.uid() && now.generation() == before.generation() + 1 && now.rollback_to() == to
}

/// Reads the status until it tells how the change went, or until `patience` is over. An API server that is down for a moment is asked again.
async fn wait(cluster: &Cluster, changed: &Item, patience: Duration) -> Result<Progress, ClusterError> {
    let deadline = Instant::now() + patience;
    let mut told = String::new();
    loop {
        let words = match cluster.policy(&changed.id).await {
            Ok(item) => match judge(&item, changed.uid(), changed.generation()) {
                Progress::Waiting(words) => words,
                done => return Ok(done),
            },
            Err(ClusterError::Absent { .. }) => return Ok(Progress::Stuck("the policy has been deleted".to_owned())),
            Err(error) if error.is_passing() => error.to_string(),
            Err(error) => return Err(error),
        };
        if words != told {
            crate::note(&format!("{}: {words}", changed.id));
            told = words;
        }
        if Instant::now() >= deadline {
            return Ok(Progress::Waiting(told));
        }
        sleep(ASK).await;
    }
}

fn in_words(item: &Item, change: &Change, progress: Option<&Progress>, args: &RollbackArgs) -> String {
    let id = &item.id;
    let generation = item.generation();
    let what = match change {
        Change::To(to) => format!("the content of generation {to}"),
        Change::Undo(from) => format!("its spec again and no longer the content of generation {from}"),
    };
    if args.dry_run {
        return format!("{id} would serve {what} (dry run: nothing has been changed)\n");
    }
    let end = match progress {
        None => format!("{id} will serve {what}, as generation {generation}"),
        Some(Progress::Ready(words)) => format!("{id} serves {what}, as generation {generation}. {words}"),
        Some(Progress::Stuck(words)) => {
            format!("{id} was to serve {what}, as generation {generation}, and does not: {words}")
        }
        Some(Progress::Waiting(words)) => {
            let patience = portcullis_api::column::short_duration(args.timeout);
            format!("{id} will serve {what}, as generation {generation}, and does not yet after {patience}: {words}")
        }
    };
    match change {
        Change::To(_) => {
            format!("{end}\nIts spec stays as it is, and counts again after `portcullis rollback {id} --undo`.\n")
        }
        Change::Undo(_) => format!("{end}\n"),
    }
}

fn in_json(item: &Item, to: Option<i64>, progress: Option<&Progress>, dry_run: bool) -> String {
    let (state, message) = match progress {
        None => ("Changed", ""),
        Some(Progress::Ready(words)) => ("Ready", words.as_str()),
        Some(Progress::Stuck(words)) => ("Failed", words.as_str()),
        Some(Progress::Waiting(words)) => ("TimedOut", words.as_str()),
    };
    let result = json!({
        "policy": item.id, "rollbackTo": to, "generation": item.generation(), "dryRun": dry_run,
        "result": if dry_run { "Possible" } else { state }, "message": message,
    });
    format!("{result:#}\n")
}
