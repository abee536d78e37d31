//! The leader's calls that change something. Each is made only if this reporter still leads at that moment.

use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use portcullis_api::PolicyStatus;
use portcullis_kubernetes::{CallError, Leadership, STATUS_MANAGER};
use serde_json::{Value, json};

use super::body;
use super::fields::{self, Fit};
use super::object::{Meta, PolicyObject, policies, reports};

/// The result of a write.
pub(crate) struct Outcome {
    /// The policy, as it was when the write began.
    pub(crate) object: PolicyObject,
    /// The status that was written.
    pub(crate) status: PolicyStatus,
    /// What came of it.
    pub(crate) answer: Result<Written, CallError>,
    /// Whether the API server has told that it knows all fields of the status, so that they are not why it refused them.
    pub(crate) knows_all: bool,
}

/// A status that the API server took.
#[derive(Debug)]
pub(crate) struct Written {
    /// The object that came back.
    pub(crate) found: Value,
    /// Why values of other managers that stay beside ours are still there, if another try may remove them.
    pub(crate) unswept: Option<CallError>,
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
    let mut knows_all = false;
    let call = write(&client, &leadership, &object, &status, may_ask, &mut knows_all);
    let answer = if_leading(&leadership, "reporter.before_status_write", call).await?;
    Some(Outcome { object, status, answer, knows_all })
}

/// A write may take several calls. After the first one, a reporter that does not lead any more makes none: what is left to do, the next leader
/// finds.
async fn write(
    client: &Client,
    leadership: &Leadership,
    object: &PolicyObject,
    status: &PolicyStatus,
    may_ask: bool,
    knows_all: &mut bool,
) -> Result<Written, CallError> {
    let found = match apply(client, object, body::apply(object, status)).await {
        Ok(found) => found,
        Err(error) if error.code() == Some(500) && may_ask && leadership.is_held() => {
            let Ok(known) = without_unknown(client, object, status).await else { return Err(error) };
            match known {
                // If this fails, it is asked again with the next try: without its answer, that one would be refused.
                Some(body) if leadership.is_held() => apply(client, object, body).await?,
                known => {
                    *knows_all = known.is_none();
                    return Err(error);
                }
            }
        }
        Err(error) => return Err(error),
    };
    let fit = fields::fit(&fields::ours(&json!(status)), &fields::ours(&found["status"]));
    let (Fit::Foreign, Some(meta), true) = (fit, Meta::of(&found), leadership.is_held()) else {
        return Ok(Written { found, unswept: None });
    };
    let object = PolicyObject { meta, ..object.clone() };
    match merge(client, &object, body::sweep(&object, status), false).await {
        Ok(found) => Ok(Written { found, unswept: None }),
        // The apply has succeeded, but somebody has written since, mostly the controller its own condition.
        Err(error) if error.code() == Some(409) => Ok(Written { found, unswept: Some(error) }),
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
    let kept = merge(client, object, body::trial(object, status), true).await?;
    let fit = fields::fit(&fields::ours(&json!(status)), &fields::ours(&kept["status"]));
    Ok(matches!(fit, Fit::Dropped(_)).then(|| body::apply_known(object, status, &kept["status"])))
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
) -> Option<Result<(), CallError>> {
    let preconditions = Preconditions { uid: Some(report.uid), resource_version: Some(report.version) };
    let params = DeleteParams::default().preconditions(preconditions);
    let reports = reports(client, &namespace);
    let call = reports.delete(&report.name, &params);
    let answer = if_leading(&leadership, "reporter.before_report_removal", call).await?;
    Some(match answer.map_err(CallError::from) {
        Ok(_) => {
            tracing::info!(pod = report.name, "removed the report of a pod that is gone");
            Ok(())
        }
        Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(()),
        Err(error) => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use portcullis_api::Kind;
    use portcullis_util::lock;

    use super::*;
    use crate::kubernetes::stub::{api_server, leads, refused};

    /// What an API server answers to a change of a policy.
    #[derive(Clone, Copy)]
    enum Answer {
        Refuses(u16),
        /// It takes all fields.
        Takes,
        /// It drops the field `summary`, which its schema does not know.
        Drops,
    }

    /// An API server that gives these answers, in this order.
    fn server(answers: &[Answer]) -> Client {
        let answers = Arc::new(Mutex::new(VecDeque::from(answers.to_vec())));
        api_server(move |_, mut object| {
            let answer = lock(&answers).pop_front().expect("no further call");
            match answer {
                Answer::Refuses(code) => return refused(code),
                Answer::Takes => {}
                Answer::Drops => drop(object["status"].as_object_mut().expect("a status").remove("summary")),
            }
            object["metadata"]["uid"] = json!("uid-of-a");
            (200, object)
        })
    }

    #[tokio::test]
    async fn an_api_server_that_does_not_know_all_fields_is_asked_again_where_the_rest_could_not_be_written() {
        use Answer::{Drops, Refuses, Takes};
        let object =
            json!({"metadata": {"name": "a", "uid": "uid-of-a", "resourceVersion": "5", "generation": 1}, "spec": {}});
        let object = PolicyObject::of(Kind::ClusterPolicy, &object).expect("a policy");
        let wanted = PolicyStatus { summary: "1/1".into(), ..PolicyStatus::default() };
        for (answers, code, knows_all) in [
            (&[Refuses(500), Drops, Refuses(503)][..], Some(503), false),
            (&[Refuses(500), Drops, Takes], None, false),
            (&[Refuses(500), Refuses(503)], Some(500), false),
            (&[Refuses(500), Takes], Some(500), true),
        ] {
            let client = server(answers);
            let (leadership, _held) = leads(&client).await;
            let outcome = status(client, leadership, object.clone(), wanted.clone(), true).await.expect("it leads");
            let failed = outcome.answer.err().map(|error| error.code());
            assert_eq!((failed.flatten(), outcome.knows_all), (code, knows_all));
        }
    }

    #[tokio::test]
    async fn fault_r14_a_reporter_that_does_not_lead_makes_no_call() {
        let (_sender, leadership) = Leadership::new();
        let mut is_made = false;
        let answer = if_leading(&leadership, "reporter.before_status_write", async { is_made = true }).await;
        assert!(answer.is_none() && !is_made);
    }
}
