//! Profiles of the evaluator, in the repository: release builds are optimised by how often each part of it runs under load.
//!
//! They are kept as Go's `default.pgo` is, so that everybody gets the same program from the same sources. A profile belongs to one compiler
//! and one target, because both are a part of the names of functions in it. Other compilers build without.
//! See <https://doc.rust-lang.org/rustc/profile-guided-optimization.html>.

use std::path::PathBuf;

use anyhow::Result;

use crate::rustc;
use crate::workspace::Workspace;

/// The package that has profiles.
pub(crate) const PACKAGE: &str = "portcullis-evaluator";
/// The folder of the profiles, below that of the repository. The Dockerfile knows it too.
const FOLDER: &str = "evaluator/profiles";

/// The file with the profile for this compiler and a target.
pub(crate) fn path(workspace: &Workspace, triple: &str) -> Result<PathBuf> {
    let file = format!("{}-{triple}.profdata", rustc::version_line("release: ")?);
    Ok(workspace.root.join(FOLDER).join(file))
}

/// The flag with which the compiler uses the profile of a package for this target, if the repository has one.
pub(crate) fn flag(workspace: &Workspace, package: &str, triple: &str) -> Result<Option<String>> {
    if package != PACKAGE {
        return Ok(None);
    }
    let path = path(workspace, triple)?;
    if path.is_file() {
        return Ok(Some(format!("-Cprofile-use={}", path.display())));
    }
    eprintln!(
        "note: {} is not there, so {package} is built without a profile, and answers more slowly; `cargo xtask pgo` makes one",
        path.display()
    );
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_the_evaluator_has_a_profile_and_only_for_its_target() {
        let root = std::env::temp_dir().join(format!("portcullis-profiles-{}", std::process::id()));
        let workspace = Workspace { root: root.clone(), target: root.join("target"), packages: Vec::new() };
        let path = path(&workspace, "some-target").unwrap();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        let flag = |package, triple| flag(&workspace, package, triple).unwrap();
        assert_eq!(flag(PACKAGE, "some-target"), Some(format!("-Cprofile-use={}", path.display())));
        assert_eq!(flag(PACKAGE, "another-target"), None);
        assert_eq!(flag("portcullis-loader", "some-target"), None);
        fs::remove_dir_all(&root).unwrap();
    }
}
