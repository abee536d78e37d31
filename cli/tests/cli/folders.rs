//! What is in a folder and is not read is said, and is no success where it may be what is meant.

use std::fs;
use std::os::unix::fs::symlink;

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
    fs::create_dir(folder.path().join("shared")).expect("makes");
    symlink("../shared", inner.join("shared")).expect("links");
    let migrated = portcullis(folder.path(), &["migrate", "kubewarden", "policies"]);
    assert_eq!(migrated.code, Some(0), "{migrated:?}");
    let notes = "left out policies/shared: it is a link to a folder\n\
                 left out policies/large.yaml: it is larger than 16 MiB\n";
    assert!(migrated.err.starts_with(notes), "{migrated:?}");
    assert!(migrated.out.contains("kind: ClusterPolicy"), "{migrated:?}");
}

/// A link to no file may be to a policy: no command ends with 0 without it, and none stops at it.
#[test]
fn a_link_to_no_file_is_no_success() {
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("policies");
    fs::create_dir(&inner).expect("makes");
    symlink("nowhere.yaml", inner.join("d.yaml")).expect("links");
    let why = "failed to open policies/d.yaml: No such file or directory (os error 2)";
    for (arguments, code) in [
        (&["check", "policies"][..], 2),
        (&["test", "policies"], 2),
        (&["migrate", "kubewarden", "policies"], 1),
        (&["save", "policies", "-f", "x.tar"], 1),
    ] {
        let printed = portcullis(folder.path(), arguments);
        assert_eq!(printed.code, Some(code), "{arguments:?}: {printed:?}");
        assert!((printed.out.clone() + &printed.err).contains(why), "{arguments:?}: {printed:?}");
    }
    fs::write(inner.join("a.yaml"), POLICY).expect("writes");
    let migrated = portcullis(folder.path(), &["migrate", "kubewarden", "policies"]);
    assert_eq!(migrated.code, Some(1), "{migrated:?}");
    assert!(migrated.out.contains("kind: ClusterPolicy") && migrated.err.contains(why), "{migrated:?}");
}

/// An archive without what a file names is no success, and neither is the argument wrong.
#[test]
fn a_policy_whose_module_is_no_artifact_is_named_and_no_argument_is() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("policies")).expect("makes");
    let policy = POLICY.replace("registry://a.example/b:v1", "ftp://a.example/b");
    fs::write(folder.path().join("policies/a.yaml"), policy).expect("writes");
    let why = "failed to read policies/a.yaml: ftp://a.example/b: modules do not come by \"ftp://\"; want registry://host/repository:tag\n";
    let saved = portcullis(folder.path(), &["save", "policies", "-f", "x.tar"]);
    assert_eq!(saved.code, Some(1), "{saved:?}");
    let end = "error: no policy in policies names a module in a registry\n";
    assert_eq!(saved.err, format!("{why}{end}"));
    let saved = portcullis(folder.path(), &["save", "policies/a.yaml", "-f", "x.tar"]);
    assert_eq!((saved.code, saved.err), (Some(1), format!("error: {why}")));
}
