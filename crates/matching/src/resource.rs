//! A resource of an API server.

/// A resource whose objects can be listed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    /// Its API group; empty for the core group.
    pub group: String,
    /// The version in which its objects are read.
    pub version: String,
    /// Its plural name.
    pub name: String,
    /// The kind of its objects.
    pub kind: String,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
}

impl Resource {
    /// The resource `namespaces`.
    pub fn namespaces() -> Self {
        Self {
            group: String::new(),
            version: "v1".to_owned(),
            name: "namespaces".to_owned(),
            kind: "Namespace".to_owned(),
            namespaced: false,
        }
    }

    /// `group/version`, or the version for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Its name for messages: `pods`, `deployments.apps`.
    pub fn title(&self) -> String {
        if self.group.is_empty() { self.name.clone() } else { format!("{}.{}", self.name, self.group) }
    }
}
