//! The CustomResourceDefinitions as kubectl users see them: rules, descriptions, defaults and columns.
//!
//! All tests share one cluster that has the CustomResourceDefinitions, but no programs of Portcullis.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod columns;
mod definitions;
mod explain;
mod rules;
mod status;
mod values;
mod yaml;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use portcullis_e2e::{Cluster, Options, eventually};
use serde_json::{Value, json};

/// The folder of the definitions.
fn definitions_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../helm/definitions")
}

/// The cluster of all tests of this binary, with the definitions.
fn cluster() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
        let cluster = Cluster::start(&Options::default()).unwrap();
        install(&cluster);
        cluster
    });
    &CLUSTER
}

/// Applies the definitions, and waits until they are established. Returns the output of kubectl.
fn install(cluster: &Cluster) -> String {
    let folder = definitions_folder();
    let applied = cluster.kubectl(["apply", "--filename", folder.to_str().unwrap()]);
    applied.expect("the definitions");
    let wait = ["wait", "--for=condition=Established", "--timeout=180s", "--filename", folder.to_str().unwrap()];
    cluster.kubectl(wait).expect("definitions that serve");
    assert_eq!(applied.stderr, "", "a definition that the API server warns of");
    // The API server publishes the schemas some time after it serves the definitions.
    eventually("the schemas", || {
        let schemas = cluster.kubectl(["get", "--raw", "/openapi/v3/apis/policies.portcullis.dev/v1alpha1"]);
        ["Policy", "ClusterPolicy", "ReplicaReport"]
            .iter()
            .all(|kind| schemas.stdout.contains(&format!("dev.portcullis.policies.v1alpha1.{kind}\"")))
            .then_some(())
    });
    applied.stdout
}

/// The shortest policy of a kind, with these fields in its spec. A null removes a field.
fn policy(kind: &str, name: &str, spec: &Value) -> Value {
    let mut policy = json!({
        "apiVersion": "policies.portcullis.dev/v1alpha1",
        "kind": kind,
        "metadata": { "name": name },
        "spec": {
            "module": "registry://example.com/policies/no-privileged:v1",
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"] }],
        },
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        policy["spec"][field] = value.clone();
    }
    policy["spec"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
    policy
}
