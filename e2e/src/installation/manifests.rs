//! The objects of an installation, as the chart will make them.

use crate::cluster::Cluster;

/// In the order in which they are applied.
const OBJECTS: [&str; 6] = [
    include_str!("../../manifests/namespace.yaml"),
    include_str!("../../manifests/service-accounts.yaml"),
    include_str!("../../manifests/policy-server-rbac.yaml"),
    include_str!("../../manifests/controller-rbac.yaml"),
    include_str!("../../manifests/service.yaml"),
    include_str!("../../manifests/fences.yaml"),
];

/// All of them as one text, for a namespace and a policy server.
pub(crate) fn objects(namespace: &str, policy_server: &str) -> String {
    OBJECTS.join("---\n").replace("{{namespace}}", namespace).replace("{{policyServer}}", policy_server)
}

/// Applies the custom resource definitions of the chart and waits until the API server serves them.
pub(crate) fn install_definitions(cluster: &Cluster) {
    let folder = crate::repository().join("helm/definitions");
    assert!(
        folder.is_dir(),
        "{} is not there: the custom resource definitions are generated into it",
        folder.display()
    );
    let folder = folder.display().to_string();
    cluster.kubectl(["apply", "--server-side", "--force-conflicts", "--filename", &folder]).expect("the definitions");
    let wait = ["wait", "--for=condition=Established", "--timeout=60s", "--filename", &folder];
    cluster.kubectl(wait).expect("definitions that are served");
}

#[cfg(test)]
mod tests {
    use serde::Deserialize as _;
    use serde_json::Value;

    use super::*;

    fn all() -> Vec<Value> {
        let text = objects("shop", "two");
        serde_yaml_ng::Deserializer::from_str(&text).map(|one| Value::deserialize(one).unwrap()).collect()
    }

    #[test]
    fn every_object_is_whole_and_named_after_the_installation() {
        let all = all();
        assert_eq!(all.len(), 24);
        for object in all {
            let metadata = &object["metadata"];
            let name = metadata["name"].as_str().unwrap();
            match metadata["namespace"].as_str() {
                Some("shop") => {}
                Some("default") | None => {
                    assert!(name.starts_with("portcullis-two-") || object["kind"] == "Namespace", "{name}");
                }
                Some(other) => panic!("{name} is in {other}"),
            }
        }
    }

    #[test]
    fn nothing_is_left_to_fill_in() {
        assert!(!objects("shop", "two").contains("{{"));
    }
}
