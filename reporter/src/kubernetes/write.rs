//! The leader's calls that change something. Each is made only if this reporter still leads at that moment.

use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use portcullis_api::PolicyStatus;
use portcullis_kubernetes::{CallError, Failures, Leadership, STATUS_MANAGER};
use serde_json::{Value, json};

use super::fields::{self, Fit};
use super::object::{Meta, PolicyObject, policies, reports};

/// The result of a write.
pub(crate) struct Outcome {
    /// The policy, as it was when the write began.
    pub(crate) object: PolicyObject,
    /// The status that was written.
    pub(crate) status: PolicyStatus,
    /// The object that came back.
    pub(crate) answer: Result<Value, CallError>,
    /// Whether the API server has told which fields of the status it knows.
    pub(crate) has_asked: bool,
}

/// Makes a call, unless this reporter does not lead any more: it may have stood still since the call was due. `point` is the fail point before
/// the check.
async fn if_leading<T>(leadership: &Leadership, point: &str, call: impl Future<Output = T>) -> Option<T> {
    portcullis_process::failpoint::hit_async(point).await;
    if leadership.is_held() { Some(call.await) } else { None }
}

/// Applies the status. Values of other managers that stay beside ours are removed. `may_ask` is whether the API server may be asked which fields
/// it knows, if it refuses all. `None`, without a call, if this reporter does not lead any more.
pub(crate) async fn status(
    client: Client,
    leadership: Leadership,
    object: PolicyObject,
    status: PolicyStatus,
    may_ask: bool,
) -> Option<Outcome> {
    let mut has_asked = false;
    let call = write(&client, &leadership, &object, &status, may_ask, &mut has_asked);
    let answer = if_leading(&leadership, "reporter.before_status_write", call).await?;
    Some(Outcome { object, status, answer, has_asked })
}

/// A write may take several calls. After the first one, a reporter that does not lead any more makes none: what is left to do, the next leader
/// finds.
async fn write(
    client: &Client,
    leadership: &Leadership,
    object: &PolicyObject,
    status: &PolicyStatus,
    may_ask: bool,
    has_asked: &mut bool,
) -> Result<Value, CallError> {
    let found = match apply(client, object, fields::apply(object, status)).await {
        Ok(found) => found,
        Err(error) if error.code() == Some(500) && may_ask && leadership.is_held() => {
            let Ok(known) = without_unknown(client, object, status).await else { return Err(error) };
            *has_asked = true;
            match known {
                Some(body) if leadership.is_held() => apply(client, object, body).await?,
                _ => return Err(error),
            }
        }
        Err(error) => return Err(error),
    };
    let fit = fields::fit(&fields::ours(&json!(status)), &fields::ours(&found["status"]));
    let (Fit::Foreign, Some(meta), true) = (fit, Meta::of(&found), leadership.is_held()) else { return Ok(found) };
    let object = PolicyObject { meta, ..object.clone() };
    match merge(client, &object, fields::sweep(&object, status), false).await {
        Ok(swept) => Ok(swept),
        // The apply has succeeded. Values that are left over are found again with the newer version.
        Err(error) if error.code() == Some(409) => Ok(found),
        Err(error) => Err(error),
    }
}

async fn apply(client: &Client, object: &PolicyObject, body: Value) -> Result<Value, CallError> {
    patch(client, object, PatchParams::apply(STATUS_MANAGER).force(), Patch::Apply(body)).await
}

async fn merge(client: &Client, object: &PolicyObject, body: Value, dry_run: bool) -> Result<Value, CallError> {
    let params = PatchParams { dry_run, ..PatchParams::apply(STATUS_MANAGER) };
    patch(client, object, params, Patch::Merge(body)).await
}

async fn patch(
    client: &Client,
    object: &PolicyObject,
    params: PatchParams,
    body: Patch<Value>,
) -> Result<Value, CallError> {
    let policies = policies(client.clone(), &object.id);
    // The answer is the whole policy, of which the spec is not read.
    Ok(policies.patch_status(object.id.name(), &params, &body).await?.into())
}

/// The body of an apply with the fields that the API server's schema knows; `None` if it knows all of them. An apply with unknown
/// fields is refused with code 500, so a dry-run merge finds out which they are.
async fn without_unknown(
    client: &Client,
    object: &PolicyObject,
    status: &PolicyStatus,
) -> Result<Option<Value>, CallError> {
    let kept = merge(client, object, fields::trial(object, status), true).await?;
    let fit = fields::fit(&fields::ours(&json!(status)), &fields::ours(&kept["status"]));
    Ok(matches!(fit, Fit::Dropped(_)).then(|| fields::apply_known(object, status, &kept["status"])))
}

/// Makes or changes an event by this call. `None`, without the call, if this reporter does not lead any more.
pub(crate) async fn event<T>(
    leadership: Leadership,
    call: impl Future<Output = kube::Result<T>>,
) -> Option<Result<(), CallError>> {
    let answer = if_leading(&leadership, "reporter.before_event_write", call).await?;
    Some(answer.map(drop).map_err(CallError::from))
}

/// Removes the report of a pod that is gone, unless the report has changed meanwhile, or this reporter does not lead any more.
pub(crate) async fn remove_report(
    client: Client,
    leadership: Leadership,
    namespace: String,
    report: Meta,
    mut failures: Failures,
) {
    let preconditions = Preconditions { uid: Some(report.uid), resource_version: Some(report.version) };
    let params = DeleteParams::default().preconditions(preconditions);
    let reports = reports(client, &namespace);
    let call = reports.delete(&report.name, &params);
    let Some(answer) = if_leading(&leadership, "reporter.before_report_removal", call).await else { return };
    match answer.map_err(CallError::from) {
        Ok(_) => tracing::info!(pod = report.name, "removed the report of a pod that is gone"),
        Err(error) if matches!(error.code(), Some(404 | 409)) => {}
        Err(error) => failures.failed(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn fault_r14_a_reporter_that_does_not_lead_makes_no_call() {
        let (_sender, leadership) = Leadership::new();
        let mut is_made = false;
        let answer = if_leading(&leadership, "reporter.before_status_write", async { is_made = true }).await;
        assert!(answer.is_none() && !is_made);
    }
}
