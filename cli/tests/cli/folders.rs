//! What is in a folder and is not read is said, and is no success where it may be what is meant.

use std::fs;

use crate::portcullis;

/// A policy of Kubewarden.
const POLICY: &str = "apiVersion: policies.kubewarden.io/v1\nkind: ClusterAdmissionPolicy\nmetadata: {name: a}\nspec:\n  module: registry://a.example/b:v1\n  \
                      rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]\n";

#[test]
fn what_is_left_out_of_a_folder_is_noted() {
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("policies");
    fs::create_dir(&inner).expect("makes");
    fs::write(inner.join("a.yaml"), POLICY).expect("writes");
    fs::File::create(inner.join("large.yaml")).and_then(|file| file.set_len((16 << 20) + 1)).expect("it is sparse");
    let migrated = portcullis(folder.path(), &["migrate", "kubewarden", "policies"]);
    assert_eq!(migrated.code, Some(0), "{migrated:?}");
    let note = "left out policies/large.yaml: it is larger than 16 MiB\n";
    assert!(migrated.err.starts_with(note), "{migrated:?}");
    assert!(migrated.out.contains("kind: ClusterPolicy"), "{migrated:?}");
}
