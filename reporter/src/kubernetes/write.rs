//! The leader's calls that change something beside events.

use std::sync::Arc;

use http::Method;
use portcullis_api::{API_VERSION, PolicyStatus};
use serde_json::{Value, json};

use super::call::{CallError, Content, Server};
use super::fields::{self, Fit, MANAGER};
use super::object::{Meta, PolicyObject, status_path};
use super::trouble::Trouble;

/// What became of a write.
pub(crate) struct Outcome {
    /// The policy, as it was when the write began.
    pub(crate) object: PolicyObject,
    pub(crate) status: PolicyStatus,
    /// The object that came back.
    pub(crate) answer: Result<Value, CallError>,
}

/// Applies the status. Where somebody else's values stay beside ours, they are removed.
pub(crate) async fn status(server: Arc<Server>, object: PolicyObject, status: PolicyStatus) -> Outcome {
    portcullis_process::failpoint::hit_async("reporter.before_status_write").await;
    let answer = write(&server, &object, &status).await;
    Outcome { object, status, answer }
}

async fn write(server: &Server, object: &PolicyObject, status: &PolicyStatus) -> Result<Value, CallError> {
    let path = status_path(&object.id);
    let apply = format!("{path}?fieldManager={MANAGER}&force=true");
    let found = match server.send(Method::PATCH, &apply, Content::Apply, &fields::apply(object, status)).await {
        Ok(found) => found,
        Err(error) if error.code() == Some(500) => {
            let Some(body) = without_unknown(server, object, status).await else { return Err(error) };
            server.send(Method::PATCH, &apply, Content::Apply, &body).await?
        }
        Err(error) => return Err(error),
    };
    let fit = fields::fit(&fields::ours(&json!(status)), &fields::ours(&found["status"]));
    let (Fit::Foreign, Some(meta)) = (fit, Meta::of(&found)) else { return Ok(found) };
    let object = PolicyObject { meta, ..object.clone() };
    let sweep = format!("{path}?fieldManager={MANAGER}");
    match server.send(Method::PATCH, &sweep, Content::Merge, &fields::sweep(&object, status)).await {
        Ok(swept) => Ok(swept),
        // The apply has succeeded; what is left over is found again.
        Err(error) if error.code() == Some(409) => Ok(found),
        Err(error) => Err(error),
    }
}

/// The apply with what the API server's schema knows; nothing where it knows all. An apply with other fields is refused with 500, so
/// a trial that changes nothing tells which they are.
async fn without_unknown(server: &Server, object: &PolicyObject, status: &PolicyStatus) -> Option<Value> {
    let path = format!("{}?fieldManager={MANAGER}&dryRun=All", status_path(&object.id));
    let kept = server.send(Method::PATCH, &path, Content::Merge, &fields::trial(object, status)).await.ok()?;
    let fit = fields::fit(&fields::ours(&json!(status)), &fields::ours(&kept["status"]));
    matches!(fit, Fit::Dropped(_)).then(|| fields::apply_known(object, status, &kept["status"]))
}

/// Removes the report of a pod that is gone, unless it has changed meanwhile.
pub(crate) async fn remove_report(server: Arc<Server>, namespace: String, report: Meta, mut trouble: Trouble) {
    let path = format!("/apis/{API_VERSION}/namespaces/{namespace}/replicareports/{}", report.name);
    let options = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": { "uid": report.uid, "resourceVersion": report.version },
    });
    match server.send(Method::DELETE, &path, Content::Json, &options).await {
        Ok(_) => tracing::info!(pod = report.name, "removed the report of a pod that is gone"),
        Err(error) if matches!(error.code(), Some(404 | 409)) => {}
        Err(error) => trouble.is(&error),
    }
}
