//! Reads and writes the Secrets. A Secret is written only if it has not changed since it was read.

use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, GetParams, PostParams};
use kube::core::{Request, Status};
use kube::{Client, Resource as _};
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_kubernetes::{CONTROLLER_MANAGER, MANAGED_BY_LABEL, asked_wait};

use super::stored::Data;

/// How long one answer may take.
const LIMIT: Duration = Duration::from_secs(10);
/// The largest answer that is read, in bytes. The API server accepts Secrets of 1 MiB.
const LARGEST: usize = 4 << 20;

/// Reads and writes the Secrets of one namespace.
#[derive(Clone)]
pub(crate) struct Secrets {
    client: Client,
    namespace: String,
    policy_server: String,
}

/// The result of reading a Secret.
pub(crate) struct Read {
    /// The Secret; `None` if it does not exist.
    pub(crate) secret: Option<Secret>,
    /// The time of the answer by the API server's clock; `None` if the answer has no date.
    pub(crate) time: Option<Timestamp>,
}

/// Why a Secret could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    /// The API server refused the request, or could not be reached.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The API server did not answer in time.
    #[error("the API server did not answer within {LIMIT:?}")]
    TimedOut,
    /// The answer was too large, or was cut off.
    #[error("failed to read the answer of the API server: {0}")]
    Answer(String),
    /// Another program or a person made a Secret with this name.
    #[error(
        "is not written, since it has no label {MANAGED_BY_LABEL}={CONTROLLER_MANAGER}: somebody else made it; choose another name for the Secret, or delete it"
    )]
    NotOurs,
    /// The Secret has changed since it was read.
    #[error("has changed since it was read")]
    Conflict,
}

impl SecretError {
    /// How long the API server asks to wait, if it does.
    pub(crate) fn asked_wait(&self) -> Option<Duration> {
        if let Self::Api(error) = self { asked_wait(error) } else { None }
    }
}

impl Secrets {
    pub(crate) fn new(client: Client, namespace: &str, policy_server: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), policy_server: policy_server.to_owned() }
    }

    /// Reads a Secret.
    pub(crate) async fn read(&self, name: &str) -> Result<Read, SecretError> {
        tokio::time::timeout(LIMIT, self.get(name)).await.map_err(|_| SecretError::TimedOut)?
    }

    async fn get(&self, name: &str) -> Result<Read, SecretError> {
        // Not through `Api`, which does not give out the headers of the answer.
        let request = Request::new(Secret::url_path(&(), Some(&self.namespace)));
        let request = request.get(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        let response = self.client.send(request.map(Into::into)).await?;
        let time = response.headers().get(http::header::DATE).and_then(|value| date(value.to_str().ok()?));
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, LARGEST).collect().await;
        let body = body.map_err(|error| SecretError::Answer(error.to_string()))?.to_bytes();
        if parts.status.is_success() {
            let secret = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
            return Ok(Read { secret: Some(secret), time });
        }
        if parts.status == http::StatusCode::NOT_FOUND {
            return Ok(Read { secret: None, time });
        }
        let status = serde_json::from_slice::<Status>(&body).unwrap_or_else(|_| {
            let text = portcullis_contract::clean(&String::from_utf8_lossy(&body), 200);
            Status::failure(&text, "").with_code(parts.status.as_u16())
        });
        Err(kube::Error::Api(status.boxed()).into())
    }

    /// Creates a Secret, or replaces the data of the one that was read.
    pub(crate) async fn write(
        &self,
        name: &str,
        kind: &'static str,
        read: Option<&Secret>,
        data: Data,
    ) -> Result<(), SecretError> {
        let secret = self.written(name, kind, read, data)?;
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
        let params = PostParams { field_manager: Some(CONTROLLER_MANAGER.to_owned()), ..PostParams::default() };
        let writing = async {
            match read {
                None => secrets.create(&params, &secret).await,
                Some(_) => secrets.replace(name, &params, &secret).await,
            }
        };
        match tokio::time::timeout(LIMIT, writing).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(SecretError::Conflict),
            // It was deleted since it was read.
            Ok(Err(kube::Error::Api(status))) if status.code == 404 && read.is_some() => Err(SecretError::Conflict),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(SecretError::TimedOut),
        }
    }

    fn written(&self, name: &str, kind: &str, read: Option<&Secret>, data: Data) -> Result<Secret, SecretError> {
        let mut secret = read.cloned().unwrap_or_default();
        let labels = secret.metadata.labels.get_or_insert_default();
        if read.is_some() && labels.get(MANAGED_BY_LABEL).is_none_or(|manager| manager != CONTROLLER_MANAGER) {
            return Err(SecretError::NotOurs);
        }
        labels.insert(MANAGED_BY_LABEL.to_owned(), CONTROLLER_MANAGER.to_owned());
        labels.insert(POLICY_SERVER_LABEL.to_owned(), self.policy_server.clone());
        secret.metadata.name = Some(name.to_owned());
        secret.metadata.namespace = Some(self.namespace.clone());
        // The `resourceVersion` that was read stays in, so that the API server refuses a write based on an older version.
        secret.metadata.managed_fields = None;
        secret.type_.get_or_insert_with(|| kind.to_owned());
        secret.data = Some(data);
        Ok(secret)
    }
}

/// The value of an HTTP `Date`.
fn date(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_answer() {
        let time = date("Sat, 21 Nov 2026 12:00:00 GMT").expect("a time");
        assert_eq!(time.to_string(), "2026-11-21T12:00:00Z");
        assert_eq!(date("yesterday"), None);
    }
}
