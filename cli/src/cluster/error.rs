//! What was asked of the API server, and why there is no answer. The decision is pure.

use std::borrow::Cow;
use std::fmt;

use portcullis_contract::clean;
use portcullis_util::{causes, root_cause};

/// Longest text of the API server that is shown, in bytes.
const LONGEST: usize = 2048;

/// One question to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// As in a role: `get`, `list`, `patch`.
    pub verb: &'static str,
    /// `group/version`, or `v1` for the core group.
    pub version: String,
    /// The plural name of the kind.
    pub resource: Cow<'static, str>,
    /// The namespace; `None` for cluster-scoped kinds, and for all namespaces.
    pub namespace: Option<String>,
    /// The name of the object; `None` for a list.
    pub name: Option<String>,
}

/// Why a cluster gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No kubeconfig names a cluster.
    #[error("there is no kubeconfig: name one with --kubeconfig or the variable KUBECONFIG")]
    NoKubeconfig,
    /// The same, for a command that also shows what a folder has.
    #[error("there is no kubeconfig: name one with --kubeconfig or the variable KUBECONFIG, or a folder with --dir")]
    NoKubeconfigOrFolder,
    /// The kubeconfig cannot be used.
    #[error("failed to use the kubeconfig: {0}")]
    Kubeconfig(String),
    /// The API server cannot be reached, or its answer cannot be read.
    #[error("failed to ask the API server at {server}: {problem}")]
    Unreachable {
        /// Its URL.
        server: String,
        /// The reason, in words.
        problem: String,
    },
    /// It does not know the user.
    #[error("the API server at {server} does not accept the credentials of the kubeconfig: {said}; log in again")]
    Unauthorized {
        /// Its URL.
        server: String,
        /// Its words.
        said: String,
    },
    /// The user may not do this.
    #[error("{said}; this needs the right to {action}")]
    Forbidden {
        /// What was asked.
        action: Action,
        /// The API server's words.
        said: String,
    },
    /// There is no such object.
    #[error("{action}: there is none")]
    Absent {
        /// What was asked.
        action: Action,
    },
    /// There is no such kind.
    #[error("the API server at {server} has no {resource} of {version}: is Portcullis installed there?")]
    NotInstalled {
        /// Its URL.
        server: String,
        /// The plural name of the kind.
        resource: Cow<'static, str>,
        /// `group/version`.
        version: String,
    },
    /// It refused for another reason.
    #[error("the API server refused to {action} ({code}): {said}")]
    Refused {
        /// What was asked.
        action: Action,
        /// The HTTP status.
        code: u16,
        /// Its words.
        said: String,
    },
}

impl Action {
    /// The path in the API.
    pub fn path(&self) -> String {
        let root = if self.version.contains('/') { "apis" } else { "api" };
        let namespace = self.namespace.as_ref().map(|name| format!("/namespaces/{name}")).unwrap_or_default();
        let name = self.name.as_ref().map(|name| format!("/{name}")).unwrap_or_default();
        format!("/{root}/{}{namespace}/{}{name}", self.version, self.resource)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = self.version.split_once('/').map(|(group, _)| format!(".{group}")).unwrap_or_default();
        write!(f, "{} {}{group}", self.verb, self.resource)?;
        if let Some(name) = &self.name {
            write!(f, " {name:?}")?;
        }
        if let Some(namespace) = &self.namespace {
            write!(f, " in the namespace {namespace:?}")?;
        }
        Ok(())
    }
}

impl ClusterError {
    /// What the failure of an action means.
    pub fn of(server: &str, action: &Action, error: kube::Error) -> Self {
        let kube::Error::Api(status) = error else { return Self::other(server, &error) };
        let said = clean(&status.message, LONGEST);
        let (server, action) = (server.to_owned(), action.clone());
        // The API server names the object in its answer only if it knows the kind.
        let knows_kind = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
        match status.code {
            401 => Self::Unauthorized { server, said },
            403 => Self::Forbidden { action, said },
            404 if knows_kind => Self::Absent { action },
            404 => Self::NotInstalled { server, resource: action.resource, version: action.version },
            code => Self::Refused { action, code, said },
        }
    }

    /// A failure before the API server could answer.
    pub fn other(server: &str, error: &(dyn std::error::Error + 'static)) -> Self {
        // Where there is no connection, the outer errors only name layers of the client.
        let problem = match error.downcast_ref() {
            Some(kube::Error::Service(error)) => root_cause(error.as_ref()),
            _ => causes(error),
        };
        Self::Unreachable { server: server.to_owned(), problem: clean(&problem, LONGEST) }
    }

    /// Whether a right is missing.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Forbidden { .. })
    }

    /// Whether the same question may be answered in a moment: the API server is unreachable, restarts, or is busy.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { code, .. } => *code == 429 || *code >= 500,
            _ => false,
        }
    }

    /// Whether a list cannot go on because its first page is too old. It can be read again from the beginning.
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { code: 410, .. })
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    fn action() -> Action {
        Action {
            verb: "get",
            version: "policies.portcullis.dev/v1alpha1".to_owned(),
            resource: "policies".into(),
            namespace: Some("team-a".to_owned()),
            name: Some("labels".to_owned()),
        }
    }

    fn error(code: u16, details: Option<&str>) -> ClusterError {
        let status: Status = serde_json::from_value(json!({
            "code": code, "message": "no\u{1b}way", "details": details.map(|name| json!({"name": name})),
        }))
        .expect("a status");
        ClusterError::of("https://c", &action(), kube::Error::Api(Box::new(status)))
    }

    fn text(code: u16, details: Option<&str>) -> String {
        error(code, details).to_string()
    }

    #[test]
    fn paths() {
        assert_eq!(action().path(), "/apis/policies.portcullis.dev/v1alpha1/namespaces/team-a/policies/labels");
        let core =
            Action { version: "v1".to_owned(), resource: "events".into(), namespace: None, name: None, ..action() };
        assert_eq!(core.path(), "/api/v1/events");
    }

    #[test]
    fn each_way_to_fail_is_told_with_what_helps() {
        assert_eq!(
            text(403, None),
            "no way; this needs the right to get policies.policies.portcullis.dev \"labels\" in the namespace \"team-a\""
        );
        assert_eq!(
            text(404, Some("labels")),
            "get policies.policies.portcullis.dev \"labels\" in the namespace \"team-a\": there is none"
        );
        assert!(text(404, None).ends_with("is Portcullis installed there?"));
        assert!(text(401, None).ends_with("no way; log in again"));
        assert!(text(500, None).contains("(500): no way"));
        assert!([429, 500, 503, 504].iter().all(|code| error(*code, None).is_passing()));
        assert!([401, 403, 404, 409, 422].iter().all(|code| !error(*code, None).is_passing()));
        assert!(error(410, None).is_expired() && !error(500, None).is_expired() && !error(404, None).is_expired());
    }
}
