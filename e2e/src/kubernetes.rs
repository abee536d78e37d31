//! Kubernetes itself, built once and kept in the cache: one Go program with all components, and kubectl. With the components in it, each
//! start of kubectl would take twice as long, and the tests start it more than a thousand times.

use std::path::{Path, PathBuf};

use crate::go::GoProgram;
use crate::{Cache, Error};

/// The version of Kubernetes.
pub const VERSION: &str = "v1.36.3";

/// The sources to build.
const SOURCES: [(&str, &str); 5] = [
    ("main.go", include_str!("../kubernetes/main.go")),
    ("go.mod", include_str!("../kubernetes/go.mod")),
    ("go.sum", include_str!("../kubernetes/go.sum")),
    ("dns.go", include_str!("../kubernetes/dns.go")),
    ("node.go", include_str!("../kubernetes/node.go")),
];

/// The names of the components.
const COMPONENTS: [&str; 8] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "cluster-dns",
    "node-init",
];

/// The programs, built.
#[derive(Debug, Clone)]
pub struct Kubernetes {
    bin: PathBuf,
}

impl Kubernetes {
    /// The programs from the cache, if they are there.
    pub fn built(cache: &Cache) -> Option<Self> {
        program().built(cache).map(|bin| Self { bin })
    }

    /// The programs from the cache; builds them first if they are not there, which takes minutes. `tell` gets lines about the progress.
    ///
    /// # Errors
    /// When the build fails.
    pub fn build(cache: &Cache, tell: &dyn Fn(&str)) -> Result<Self, Error> {
        program().build(cache, tell).map(|bin| Self { bin })
    }

    /// The folder of the programs.
    pub(crate) fn bin(&self) -> &Path {
        &self.bin
    }

    /// The path of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }
}

fn program() -> GoProgram {
    GoProgram {
        name: "Kubernetes",
        file: "kubernetes",
        version: VERSION,
        sources: &SOURCES,
        packages: &[".", "k8s.io/kubernetes/cmd/kubectl"],
        links: &COMPONENTS,
        linker_flags: linker_flags(),
    }
}

/// The linker flags: no debug information, and the version, which Kubernetes' own build scripts would also set.
fn linker_flags() -> String {
    let mut numbers = VERSION.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let mut flags = "-s -w".to_owned();
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        for (name, value) in [("gitVersion", VERSION), ("gitMajor", major), ("gitMinor", minor)] {
            flags += &format!(" -X {package}.{name}={value}");
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_sources() {
        let (_, modules) = SOURCES[1];
        assert!(modules.contains(&format!("k8s.io/kubernetes {VERSION}\n")));
        let staging = VERSION.replacen("v1.", "v0.", 1);
        assert!(modules.contains(&format!("k8s.io/api => k8s.io/api {staging}\n")));
    }

    #[test]
    fn every_component_is_one_that_the_source_knows() {
        for name in COMPONENTS {
            assert!(SOURCES[0].1.contains(&format!("case \"{name}\":")), "{name}");
        }
    }

    #[test]
    fn the_version_is_linked_in() {
        assert!(linker_flags().starts_with("-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 "));
        assert!(linker_flags().contains("version.gitMinor=36"));
    }

    #[test]
    fn nothing_is_built_in_an_empty_cache() {
        assert!(Kubernetes::built(&Cache::at(tempfile::tempdir().unwrap().path())).is_none());
    }
}
