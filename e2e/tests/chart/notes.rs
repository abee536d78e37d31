//! What Helm says after an installation. `monitoring` has what it says of metrics and alerts.

use portcullis_e2e::Helm;
use serde_json::{Value, json};

use crate::{NAMESPACE, helm};

/// What Helm says after an installation with these values in this namespace.
pub(crate) fn notes_in(namespace: &str, values: &Value) -> String {
    let chart = Helm::chart().display().to_string();
    let args = ["install", "portcullis", &chart, "--namespace", namespace, "--dry-run=client", "--values", "-"];
    let tried = helm().run(None, args, &values.to_string());
    assert!(tried.is_ok(), "{}", tried.stderr);
    tried.stdout.split_once("\nNOTES:\n").expect("there are notes").1.to_owned()
}

#[test]
fn the_notes_name_the_namespace_that_no_policy_is_asked_about() {
    let warning = "WARNING: the installation is in the namespace default,";
    for (namespace, is_warned) in [(NAMESPACE, false), ("default", true)] {
        let notes = notes_in(namespace, &json!({}));
        let named =
            format!("No policy is asked about objects in the namespace {namespace}, which is the installation's own");
        assert!(notes.contains(&named), "{notes}");
        assert_eq!(notes.contains(warning), is_warned, "{notes}");
        // Without it, Helm refuses to install what it kept when it uninstalled.
        assert_eq!(notes.contains("--create-namespace --take-ownership"), is_warned, "{notes}");
    }
    // A repository of manifests may want it there all the same.
    assert!(helm().template("portcullis", "default", &json!({})).is_ok());
}
