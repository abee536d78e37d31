//! Keeps information that helps to find out why a test failed.

use std::env;
use std::fs;
use std::path::PathBuf;

use super::Release;

/// The environment variable with the folder. [default: `target/e2e` of the repository]
const FOLDER: &str = "PORTCULLIS_E2E_LOGS";

impl Release<'_> {
    /// Keeps evidence of a failed test in a folder: objects, events, and the logs of every container. Returns the folder.
    pub fn keep(&self, test: &str) -> PathBuf {
        let parent = env::var_os(FOLDER).map_or_else(|| crate::repository().join("target/e2e"), PathBuf::from);
        let folder = parent.join(test);
        // Evidence of an earlier run could be mistaken for this one's.
        let _ = fs::remove_dir_all(&folder);
        if let Err(error) = fs::create_dir_all(&folder) {
            eprintln!("failed to create {}: {error}", folder.display());
        }
        if let Some(cluster) = self.site().own_cluster() {
            if let Err(error) = cluster.keep_evidence(&folder) {
                eprintln!("failed to write to {}: {error}", folder.display());
            }
            return folder;
        }
        let namespace = self.namespace();
        let write = |file: String, args: &[&str]| {
            let output = self.site().kubectl(args.iter().copied());
            if let Err(error) = fs::write(folder.join(&file), format!("{}{}", output.stdout, output.stderr)) {
                eprintln!("failed to write {file}: {error}");
            }
        };
        write("policies.yaml".into(), &["get", "clusterpolicies,policies", "--all-namespaces", "--output=yaml"]);
        let webhooks = "validatingwebhookconfigurations,mutatingwebhookconfigurations";
        write("webhooks.yaml".into(), &["get", webhooks, "--output=yaml"]);
        let kinds = "all,replicareports,leases,controllerrevisions,endpointslices,networkpolicies,poddisruptionbudgets";
        write("objects.yaml".into(), &["get", kinds, "--namespace", namespace, "--output=yaml"]);
        write("events.txt".into(), &["get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp"]);
        write("nodes.txt".into(), &["describe", "nodes"]);
        write("pods.txt".into(), &["describe", "pods", "--namespace", namespace]);
        for pod in self.pods().iter().chain(&self.controllers()) {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let logs = ["logs", "--namespace", namespace, name, "--all-containers", "--prefix", "--timestamps"];
            write(format!("{name}.log"), &logs);
            write(format!("{name}.previous.log"), &[&logs[..], &["--previous"]].concat());
        }
        folder
    }
}
