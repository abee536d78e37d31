//! A policy made from a module's metadata.

use serde_json::{Map, Value, json};

use super::metadata::Metadata;

/// Longest name of a policy, in characters.
const LONGEST: usize = 63;

/// The manifest, as YAML. The module is an address, or the absolute path of a file.
pub(super) fn manifest(module: &str, metadata: &Metadata) -> anyhow::Result<String> {
    let mut spec = Map::new();
    spec.insert("module".into(), module.into());
    spec.insert("rules".into(), metadata.rules.clone().into());
    if metadata.mutating {
        spec.insert("mutating".into(), true.into());
    }
    if !metadata.context_aware_resources.is_empty() {
        spec.insert("contextAwareResources".into(), metadata.context_aware_resources.clone().into());
    }
    let capabilities = metadata.capabilities();
    if !capabilities.is_empty() {
        spec.insert("hostCapabilities".into(), capabilities.clone().into());
    }
    spec.insert("settings".into(), json!({}));
    let policy = json!({
        "apiVersion": portcullis_api::API_VERSION,
        "kind": "ClusterPolicy",
        "metadata": {"name": name(module, metadata)},
        "spec": Value::Object(spec),
    });
    let mut text = String::new();
    if module.starts_with('/') {
        text.push_str("# A file: for portcullis run and eval; in a cluster, push the module and name its address\n");
    }
    if let Some(description) = metadata.annotation("description") {
        text.push_str(&format!("# {}\n", portcullis_contract::clean(description, 300)));
    }
    if metadata.rules.is_empty() {
        text.push_str("# The module suggests no rules: say what it should be asked about.\n");
    }
    if metadata.host_capabilities.is_none() {
        text.push_str("# The module's metadata is older and names no host capabilities: ");
        text.push_str(match capabilities.is_empty() {
            true => "should calls of the policy be refused, grant them in hostCapabilities.\n",
            false => {
                "those to read the cluster follow from the kinds; should other calls be refused, grant them too.\n"
            }
        });
    }
    if !metadata.context_aware_resources.is_empty() || !capabilities.is_empty() {
        text.push_str("# The module asks for what contextAwareResources and hostCapabilities grant; take away what it should not have.\n");
    }
    let told = ["url", "source"].iter().find_map(|name| metadata.annotation(name));
    let told = told.map_or_else(String::new, |address| format!(": {}", portcullis_contract::clean(address, 300)));
    text.push_str(&format!("# Settings: the module's author says what they may be{told}\n"));
    Ok(text + &portcullis_yaml::write(&policy)?)
}

/// A name for a policy, made from the address of its module.
pub(crate) fn policy_name(module: &str) -> String {
    name(module, &Metadata::default())
}

/// A name, made from the module's title or, without one, from its file name.
fn name(module: &str, metadata: &Metadata) -> String {
    let file = super::file_name(module);
    let title = metadata.annotation("title").unwrap_or_else(|| file.trim_end_matches(".wasm"));
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = title.chars().map(plain).take(LONGEST).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "policy".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_of_older_metadata_may_read_the_kinds_that_it_names() {
        let metadata: Metadata =
            serde_json::from_value(json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "Namespace"}]}))
                .expect("metadata");
        let text = manifest("registry://ghcr.io/a/b:v1", &metadata).expect("a manifest");
        assert!(
            text.contains("# The module's metadata is older and names no host capabilities: those to read"),
            "{text}"
        );
        let policy: Value = portcullis_yaml::read(&text).expect("YAML");
        assert_eq!(policy["spec"]["hostCapabilities"], json!(["kubernetes/*"]));
    }

    #[test]
    fn a_policy_is_made_from_the_metadata() {
        let metadata: Metadata = serde_json::from_value(json!({
            "mutating": true, "hostCapabilities": ["oci/*"],
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
            "annotations": {"io.kubewarden.policy.title": "Safe Labels", "io.kubewarden.policy.url": "https://example.com/labels", "io.kubewarden.policy.description": "labels\nthat are safe"},
        }))
        .expect("metadata");
        let text = manifest("registry://ghcr.io/a/b:v1", &metadata).expect("a manifest");
        assert!(text.starts_with("# labels that are safe\n") && !text.contains("# A file"), "{text}");
        assert!(text.contains("what they may be: https://example.com/labels\n"), "{text}");
        let policy: Value = portcullis_yaml::read(&text).expect("YAML");
        assert_eq!(policy["metadata"]["name"], "safe-labels");
        assert_eq!(policy["spec"]["mutating"], true);
        assert_eq!(policy["spec"]["rules"][0]["resources"][0], "pods");
        assert_eq!(name("registry://ghcr.io/a/b:v1", &Metadata::default()), "b");
        let text = manifest("/opt/b.wasm", &metadata).expect("a manifest");
        let told =
            "# A file: for portcullis run and eval; in a cluster, push the module and name its address\n# labels";
        assert!(text.starts_with(told), "{text}");
        assert_eq!(portcullis_yaml::read::<Value>(&text).expect("YAML")["spec"]["module"], "/opt/b.wasm");
    }
}
