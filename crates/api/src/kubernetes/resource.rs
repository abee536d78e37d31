//! Policy and ClusterPolicy as types of a Kubernetes client.

use std::ops::Deref;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::Resource;
use kube_derive::CustomResource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::decode::decode_spec;
use crate::{API_VERSION, Kind, Metadata, PolicyReference, PolicySpec, PolicyStatus};

/// One of the two kinds, with the type that its `spec` has in a Kubernetes client.
macro_rules! policy_kind {
    ($kind:ident: $name:literal, $plural:literal, $short:literal, $spec:ident, $($namespaced:ident,)? $doc:literal) => {
        #[doc = concat!("The `spec` of a [`", $name, "`].")]
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource)]
        #[kube(
            group = "policies.portcullis.dev",
            version = "v1alpha1",
            kind = $name,
            plural = $plural,
            shortname = $short,
            category = "portcullis",
            $($namespaced,)?
            status = "PolicyStatus",
            derive = "PartialEq",
            schema = "manual",
            selectable = ".spec.policyServer",
            printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.summary","description":"Replicas that serve the newest generation, of those that should."}"#,
            printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","description":"Why the policy is ready or not."}"#,
            printcolumn = r#"{"name":"Mode","type":"string","jsonPath":".spec.mode","description":"What a denial does."}"#,
            printcolumn = r#"{"name":"Generation","type":"integer","priority":1,"jsonPath":".status.lastServed.generation","description":"The last generation that every replica served."}"#,
            printcolumn = r#"{"name":"Reason","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Degraded\")].reason","description":"Why the policy is degraded, if it is."}"#,
            printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"How old the policy is."}"#,
            doc = $doc,
            crates(kube_core = "::kube_core")
        )]
        #[serde(transparent)]
        pub struct $spec(#[serde(deserialize_with = "lenient")] pub PolicySpec);

        impl Deref for $spec {
            type Target = PolicySpec;

            fn deref(&self) -> &PolicySpec {
                &self.0
            }
        }

        impl PolicyResource for $kind {
            const KIND: Kind = Kind::$kind;

            fn spec(&self) -> &PolicySpec {
                &self.spec
            }

            fn status(&self) -> Option<&PolicyStatus> {
                self.status.as_ref()
            }
        }

        impl From<&$kind> for crate::Policy {
            fn from(policy: &$kind) -> Self {
                policy.plain()
            }
        }
    };
}

policy_kind!(
    Policy: "Policy", "policies", "pol", NamespacedSpec, namespaced,
    "A Policy evaluates requests in its own namespace with a WebAssembly module."
);
policy_kind!(
    ClusterPolicy: "ClusterPolicy", "clusterpolicies", "cpol", ClusterSpec,
    "A ClusterPolicy evaluates requests wherever its selectors match, with a WebAssembly module."
);

/// Reads a spec as the API server stores it.
fn lenient<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PolicySpec, D::Error> {
    decode_spec(Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// What [`Policy`] and [`ClusterPolicy`] have in common.
pub trait PolicyResource:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Send + Sync + 'static
{
    /// Policy or ClusterPolicy.
    const KIND: Kind;

    /// The desired policy.
    fn spec(&self) -> &PolicySpec;

    /// The observed state, as the reporter and the controller wrote it.
    fn status(&self) -> Option<&PolicyStatus>;

    /// The policy by name and uid; `None` for an object that was never on an API server.
    fn reference(&self) -> Option<PolicyReference> {
        PolicyReference::of(Self::KIND, self.meta())
    }

    /// The policy in the form that a folder has it too.
    fn plain(&self) -> crate::Policy {
        crate::Policy {
            api_version: API_VERSION.to_owned(),
            kind: Self::KIND,
            metadata: Metadata::from(self.meta()),
            spec: self.spec().clone(),
            status: self.status().cloned(),
        }
    }
}

impl PolicyReference {
    /// The policy of this kind with this metadata; `None` without a name or uid, that is for an object that was never on an API server.
    pub fn of(kind: Kind, metadata: &ObjectMeta) -> Option<Self> {
        let (name, uid) = (metadata.name.clone()?, metadata.uid.clone()?);
        let namespace = match kind {
            Kind::Policy => Some(metadata.namespace.clone()?),
            Kind::ClusterPolicy => None,
        };
        Some(Self { kind, namespace, name, uid })
    }
}

impl From<&ObjectMeta> for Metadata {
    fn from(metadata: &ObjectMeta) -> Self {
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            namespace: metadata.namespace.clone(),
            uid: metadata.uid.clone(),
            generation: metadata.generation,
            creation_timestamp: metadata.creation_timestamp.as_ref().map(|time| time.0),
            labels: metadata.labels.clone().unwrap_or_default(),
            annotations: metadata.annotations.clone().unwrap_or_default(),
        }
    }
}
