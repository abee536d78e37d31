//! The packages that a program is built from, according to cargo.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::build::Target;
use crate::rustc;
use crate::workspace::Workspace;

/// The name and version of a package, which identify it here.
pub(super) type Key = (String, String);

/// One package, with the metadata of its author.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) description: Option<String>,
    /// The licence, as an SPDX expression.
    pub(super) license: Option<String>,
    pub(super) repository: Option<String>,
    /// Whether it comes from crates.io.
    pub(super) is_published: bool,
    /// The SHA-256 of its archive on crates.io, in hexadecimal digits.
    pub(super) checksum: Option<String>,
    /// The packages that it depends on.
    pub(super) dependencies: BTreeSet<Key>,
}

/// The packages that are linked into one program.
#[derive(Debug)]
pub(super) struct Linked {
    /// The program's own package.
    pub(super) program: Package,
    /// All others, sorted by name.
    pub(super) packages: Vec<Package>,
    /// The libraries of the compiler and the system: names and versions.
    pub(super) system: Vec<(&'static str, String)>,
}

/// All packages of the workspace and its dependencies.
pub(super) struct Packages {
    by_key: BTreeMap<Key, Package>,
}

impl Packages {
    /// Asks cargo.
    pub(super) fn load(workspace: &Workspace, target: &Target) -> Result<Self> {
        let mut metadata = workspace.cargo("metadata");
        metadata.args(["--format-version", "1", "--locked", "--filter-platform", target.triple()]);
        let metadata =
            serde_json::from_str(&output(metadata)?).context("failed to parse the output of cargo metadata")?;
        let lock = workspace.root.join("Cargo.lock");
        let lock = fs::read_to_string(&lock).with_context(|| format!("failed to read {}", lock.display()))?;
        let mut by_key = parse_metadata(&metadata).context("the output of cargo metadata has an unknown form")?;
        for (key, checksum) in parse_lock(&lock) {
            if let Some(package) = by_key.get_mut(&key) {
                package.checksum = Some(checksum);
            }
        }
        Ok(Self { by_key })
    }

    /// A package of the workspace.
    pub(super) fn member(&self, name: &str) -> Result<&Package> {
        self.find(name, |package| !package.is_published)
    }

    /// A package of crates.io.
    pub(super) fn published(&self, name: &str) -> Result<&Package> {
        self.find(name, |package| package.is_published)
    }

    fn find(&self, name: &str, is_one: impl Fn(&Package) -> bool) -> Result<&Package> {
        let found = self.by_key.values().find(|package| package.name == name && is_one(package));
        found.with_context(|| format!("cargo metadata knows no package {name}"))
    }

    /// The packages that are linked into a program, from `cargo tree`, which uses the features of this program only.
    pub(super) fn linked(&self, workspace: &Workspace, program: &str, target: &Target) -> Result<Linked> {
        let mut tree = workspace.cargo("tree");
        tree.args(["--quiet", "--locked", "--package", program, "--target", target.triple()]);
        tree.args(["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"]);
        let keys = parse_tree(&output(tree)?);
        let package = |key: &Key| {
            let mut package =
                self.by_key.get(key).with_context(|| format!("cargo metadata knows no {} {}", key.0, key.1))?.clone();
            package.dependencies.retain(|dependency| keys.contains(dependency));
            Ok(package)
        };
        let (own, others): (Vec<_>, Vec<_>) = keys.iter().partition(|(name, _)| name == program);
        let own = own.first().with_context(|| format!("cargo tree does not begin with {program}"))?;
        Ok(Linked {
            program: package(own)?,
            packages: others.into_iter().map(package).collect::<Result<_>>()?,
            system: system(target)?,
        })
    }
}

impl Package {
    /// The labels of its image.
    pub(super) fn labels(&self, revision: Option<&str>) -> Vec<(String, String)> {
        let labels = [
            ("title", Some(self.name.as_str())),
            ("description", self.description.as_deref()),
            ("version", Some(self.version.as_str())),
            ("licenses", self.license.as_deref()),
            ("source", self.repository.as_deref()),
            ("revision", revision),
        ];
        let label =
            |(name, value): (&str, Option<&str>)| Some((format!("org.opencontainers.image.{name}"), value?.to_owned()));
        labels.into_iter().filter_map(label).collect()
    }
}

/// The standard library, and the C library if this machine's is used.
fn system(target: &Target) -> Result<Vec<(&'static str, String)>> {
    let mut system = vec![("rust-std", rustc::version_line("release: ")?)];
    if rustc::version_line("host: ")? != target.triple() {
        return Ok(system);
    }
    let mut ldd = Command::new("ldd");
    ldd.arg("--version");
    // Without this program, images are built too, but their bills do not name the C library.
    if let Ok(words) = output(ldd) {
        system.extend(glibc_version(&words).map(|version| ("glibc", version)));
    }
    Ok(system)
}

/// The version in `ldd (Debian GLIBC 2.36-9+deb12u14) 2.36`: that of the distribution, if it is there.
fn glibc_version(words: &str) -> Option<String> {
    let line = words.lines().next()?;
    let packaged = line.split_once("GLIBC ").and_then(|(_, rest)| rest.split_once(')')).map(|(version, _)| version);
    packaged.or_else(|| line.split_whitespace().last()).map(str::to_owned)
}

fn output(mut command: Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("failed to start {program}"))?;
    ensure!(output.status.success(), "{program} failed with {}; its output is above", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("{program} wrote something else than text"))
}

fn parse_metadata(metadata: &Value) -> Option<BTreeMap<Key, Package>> {
    let mut keys = BTreeMap::new();
    let mut packages = BTreeMap::new();
    for package in metadata["packages"].as_array()? {
        let text = |field: &str| package[field].as_str().map(str::to_owned);
        let key = (text("name")?, text("version")?);
        keys.insert(package["id"].as_str()?, key.clone());
        packages.insert(
            key.clone(),
            Package {
                name: key.0,
                version: key.1,
                description: text("description"),
                license: text("license"),
                repository: text("repository"),
                is_published: package["source"].as_str().is_some_and(|source| source.starts_with("registry+")),
                ..Package::default()
            },
        );
    }
    for node in metadata["resolve"]["nodes"].as_array()? {
        // A kind is null if the package's own code uses the dependency, and not only its tests or its build script.
        let is_normal = |dependency: &&Value| {
            dependency["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
        };
        let dependencies = node["deps"].as_array()?.iter().filter(is_normal);
        let dependencies: BTreeSet<Key> =
            dependencies.map(|dependency| keys.get(dependency["pkg"].as_str()?).cloned()).collect::<Option<_>>()?;
        packages.get_mut(keys.get(node["id"].as_str()?)?)?.dependencies = dependencies;
    }
    Some(packages)
}

/// Reads lines like `serde v1.0.0` and `portcullis-loader v0.1.0 (/repo/loader)`.
fn parse_tree(output: &str) -> BTreeSet<Key> {
    let key = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    };
    output.lines().filter_map(key).collect()
}

/// The checksums in a `Cargo.lock`, by package.
fn parse_lock(lock: &str) -> Vec<(Key, String)> {
    let package = |block: &str| {
        let value = |name: &str| {
            let mut lines = block.lines().filter_map(|line| line.split_once(" = "));
            lines.find(|(key, _)| *key == name).map(|(_, value)| value.trim_matches('"').to_owned())
        };
        Some(((value("name")?, value("version")?), value("checksum")?))
    };
    lock.split("[[package]]").filter_map(package).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(name: &str, version: &str) -> Key {
        (name.to_owned(), version.to_owned())
    }

    #[test]
    fn only_what_code_calls_is_a_dependency() {
        let id = |name: &str| format!("registry+https://example.org#{name}@1.0.0");
        let package = |name: &str| json!({ "name": name, "version": "1.0.0", "id": id(name), "license": "MIT", "source": "registry+https://example.org" });
        let packages = parse_metadata(&json!({
            "packages": [package("a"), package("b"), package("c")],
            "resolve": { "nodes": [
                { "id": id("a"), "deps": [
                    { "pkg": id("b"), "dep_kinds": [{ "kind": "dev" }, { "kind": null }] },
                    { "pkg": id("c"), "dep_kinds": [{ "kind": "build" }] },
                ] },
                { "id": id("b"), "deps": [] },
                { "id": id("c"), "deps": [] },
            ] },
        }))
        .unwrap();
        let a = &packages[&key("a", "1.0.0")];
        assert_eq!(a.dependencies, BTreeSet::from([key("b", "1.0.0")]));
        assert!(a.is_published && a.license.as_deref() == Some("MIT"));
    }

    #[test]
    fn a_tree_is_read_with_repeated_and_local_packages() {
        let tree = "portcullis-loader v0.1.0 (/repo/loader)\nserde v1.0.1\n\nserde v1.0.1 (*)\nserde v0.9.0\n";
        let expected = [key("portcullis-loader", "0.1.0"), key("serde", "0.9.0"), key("serde", "1.0.1")];
        assert_eq!(parse_tree(tree), BTreeSet::from(expected));
    }

    #[test]
    fn a_lock_has_checksums_of_what_is_published() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"registry\"\nchecksum = \"abc\"\n\n\
                    [[package]]\nname = \"own\"\nversion = \"0.1.0\"\ndependencies = [\n \"a\",\n]\n";
        assert_eq!(parse_lock(lock), [(key("a", "1.0.0"), "abc".to_owned())]);
    }

    #[test]
    fn labels_have_what_is_known() {
        let package = Package {
            name: "p".to_owned(),
            version: "1".to_owned(),
            license: Some("MIT".to_owned()),
            ..Package::default()
        };
        let label = |name: &str, value: &str| (format!("org.opencontainers.image.{name}"), value.to_owned());
        assert_eq!(
            package.labels(Some("abc")),
            [label("title", "p"), label("version", "1"), label("licenses", "MIT"), label("revision", "abc")],
        );
    }

    #[test]
    fn the_c_library_has_the_version_of_its_package() {
        assert_eq!(glibc_version("ldd (Debian GLIBC 2.36-9+deb12u14) 2.36\nmore").as_deref(), Some("2.36-9+deb12u14"));
        assert_eq!(glibc_version("ldd (GNU libc) 2.41\n").as_deref(), Some("2.41"));
    }
}
