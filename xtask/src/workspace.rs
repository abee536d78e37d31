//! The workspace according to cargo: its folder, its target folder, its packages and their crate roots.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The output of `cargo metadata`.
pub(crate) struct Workspace {
    /// The folder of the repository.
    pub(crate) root: PathBuf,
    /// The target folder: absolute, with CARGO_TARGET_DIR respected.
    pub(crate) target: PathBuf,
    /// The members, in the order of their names.
    pub(crate) packages: Vec<Package>,
}

/// One member.
#[derive(Debug, PartialEq)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Paths of `lib.rs`, `main.rs` and the roots of test binaries, below the repository's folder.
    pub(crate) roots: Vec<PathBuf>,
    /// Features of its own, without `default`.
    pub(crate) features: Vec<String>,
}

impl Workspace {
    /// Asks cargo, in the user's current folder: a relative CARGO_TARGET_DIR is relative to that.
    pub(crate) fn load() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask is a folder of the repository")?
            .join("Cargo.toml");
        let output = Command::new(cargo_path())
            .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
            .arg(manifest)
            .stderr(Stdio::inherit())
            .output()
            .context("failed to start cargo metadata")?;
        ensure!(output.status.success(), "cargo metadata failed with {}", output.status);
        let metadata = serde_json::from_slice(&output.stdout).context("failed to parse what cargo metadata wrote")?;
        parse(&metadata).context("cargo metadata wrote something unknown")
    }

    /// A cargo command in the repository's folder, with the same target folder whatever the user's current folder is.
    pub(crate) fn cargo(&self, subcommand: &str) -> Command {
        let mut command = Command::new(cargo_path());
        command.arg(subcommand).current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        // Under `cargo run`, these variables describe the package of this program. Build scripts that read them would run again
        // whenever a user changes between `cargo xtask` and cargo itself, and with them half of all packages would be built
        // again.
        let of_this_package = |name: &String| ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|own| name.starts_with(own));
        for name in env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(of_this_package) {
            command.env_remove(name);
        }
        command
    }

    /// A cargo command in the workspace of the guests, which has other features, profiles and lints.
    pub(crate) fn cargo_in_guests(&self, subcommand: &str) -> Command {
        let mut command = self.cargo(subcommand);
        command.current_dir(self.root.join("guests")).env("CARGO_TARGET_DIR", self.target_of_guests());
        command
    }

    /// The target folder of these commands.
    pub(crate) fn target_of_guests(&self) -> PathBuf {
        self.target.join("guests/build")
    }

    /// The folder in which cargo puts programs that are built in this profile.
    pub(crate) fn bin_dir(&self, profile_dir: &str) -> PathBuf {
        self.target.join(profile_dir)
    }
}

impl Package {
    /// The names of its test binaries that are folders below `tests`.
    pub(crate) fn test_targets(&self) -> Vec<String> {
        let name = |root: &PathBuf| {
            let mut parts = root.components().rev().map(|part| part.as_os_str().to_string_lossy().into_owned());
            let (file, folder, tests) = (parts.next()?, parts.next()?, parts.next()?);
            (file == "main.rs" && tests == "tests").then_some(folder)
        };
        self.roots.iter().filter_map(name).collect()
    }

    /// The ways in which this package is built: with each of its features by itself, or plain if it has none.
    pub(crate) fn variants(&self) -> Vec<Variant<'_>> {
        let variant = |feature| Variant { package: &self.name, feature };
        if self.features.is_empty() {
            return vec![variant(None)];
        }
        self.features.iter().map(|feature| variant(Some(feature.as_str()))).collect()
    }
}

/// One way to build a package.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Variant<'a> {
    pub(crate) package: &'a str,
    pub(crate) feature: Option<&'a str>,
}

impl Variant<'_> {
    /// The name in a step: `portcullis-engine (compile)`.
    pub(crate) fn label(&self) -> String {
        match self.feature {
            Some(feature) => format!("{} ({feature})", self.package),
            None => self.package.to_owned(),
        }
    }

    /// The arguments that select this variant.
    pub(crate) fn args(&self) -> Vec<&str> {
        let mut args = vec!["--package", self.package];
        if let Some(feature) = self.feature {
            args.extend(["--features", feature]);
        }
        args
    }
}

/// The cargo that runs this program, and not another one of the machine.
fn cargo_path() -> PathBuf {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into()).into()
}

fn parse(metadata: &Value) -> Option<Workspace> {
    let root = PathBuf::from(metadata["workspace_root"].as_str()?);
    let target = metadata["target_directory"].as_str()?.into();
    let mut packages: Vec<_> =
        metadata["packages"].as_array()?.iter().map(|package| parse_package(package, &root)).collect::<Option<_>>()?;
    packages.sort_by(|one, other| one.name.cmp(&other.name));
    Some(Workspace { root, target, packages })
}

fn parse_package(package: &Value, root: &Path) -> Option<Package> {
    let crate_root = |target: &Value| {
        let path = Path::new(target["src_path"].as_str()?);
        Some(path.strip_prefix(root).unwrap_or(path).to_owned())
    };
    Some(Package {
        name: package["name"].as_str()?.to_owned(),
        roots: package["targets"].as_array()?.iter().map(crate_root).collect::<Option<_>>()?,
        features: package["features"].as_object()?.keys().filter(|name| *name != "default").cloned().collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_are_sorted_and_their_roots_are_relative() {
        let workspace = parse(&json!({
            "workspace_root": "/repo",
            "target_directory": "/cache/target",
            "packages": [
                { "name": "b", "features": {}, "targets": [{ "src_path": "/repo/b/src/lib.rs" }, { "src_path": "/repo/b/src/main.rs" }] },
                { "name": "a", "features": { "default": [], "run": [] }, "targets": [{ "src_path": "/repo/a/src/lib.rs" }] },
            ],
        }))
        .unwrap();

        let package = |name: &str, roots: &[&str], features: &[&str]| Package {
            name: name.to_owned(),
            roots: roots.iter().map(PathBuf::from).collect(),
            features: features.iter().map(|&feature| feature.to_owned()).collect(),
        };
        assert_eq!(workspace.target, Path::new("/cache/target"));
        assert_eq!(
            workspace.packages,
            [package("a", &["a/src/lib.rs"], &["run"]), package("b", &["b/src/lib.rs", "b/src/main.rs"], &[])],
        );
    }

    #[test]
    fn a_package_with_features_is_built_with_each_by_itself() {
        let package = Package {
            name: "engine".to_owned(),
            roots: vec![],
            features: vec!["compile".to_owned(), "run".to_owned()],
        };
        let labels: Vec<_> = package.variants().iter().map(Variant::label).collect();
        assert_eq!(labels, ["engine (compile)", "engine (run)"]);
        assert_eq!(package.variants()[1].args(), ["--package", "engine", "--features", "run"]);
    }

    #[test]
    fn a_package_without_features_is_built_plain() {
        let package = Package { name: "loader".to_owned(), roots: vec![], features: vec![] };
        assert_eq!(package.variants(), [Variant { package: "loader", feature: None }]);
    }
}
