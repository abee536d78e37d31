//! The CustomResourceDefinitions of reports, from the Go modules of their projects. They are downloaded once and kept in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Cache, Cluster, Output, Site, files};

/// Report and ClusterReport.
const OPEN_REPORTS: Definitions = Definitions {
    name: "openreports",
    module: "github.com/openreports/reports-api",
    version: "v0.2.1",
    sum: "h1:g9KS3yle9Y1elmww4TK9EkD1rl6inIaiIJPX6e+u680=",
    files: &["config/install.yaml"],
};

/// The older PolicyReport and ClusterPolicyReport, as Kyverno installs them.
const POLICY_REPORTS: Definitions = Definitions {
    name: "policyreports",
    module: "github.com/kyverno/kyverno",
    version: "v1.13.4",
    sum: "h1:2zUi+eszlisLdCir+WIf2NtuUfFPvJtjUNpewdtLjVw=",
    files: &[
        "config/crds/policyreport/wgpolicyk8s.io_clusterpolicyreports.yaml",
        "config/crds/policyreport/wgpolicyk8s.io_policyreports.yaml",
    ],
};

/// The definitions of one format.
struct Definitions {
    /// The name of their folder in the cache.
    name: &'static str,
    /// The Go module.
    module: &'static str,
    version: &'static str,
    /// The checksum that it must have in Go's checksum format.
    sum: &'static str,
    /// The files of the module with the definitions.
    files: &'static [&'static str],
}

/// Downloads the definitions of both formats into the cache, if they are not there yet: most tests have a network of their own, from
/// which nothing can be downloaded.
///
/// # Panics
/// When they cannot be downloaded.
pub fn fetch_report_definitions(cache: &Cache) {
    for definitions in [OPEN_REPORTS, POLICY_REPORTS] {
        definitions.file(cache);
    }
}

impl Cluster {
    /// Installs the definitions of OpenReports, and waits until they are served. They are not removed.
    ///
    /// # Panics
    /// When they cannot be downloaded, or an API server refuses them.
    pub fn install_open_reports(&self) {
        OPEN_REPORTS.install(|args| self.kubectl(args));
    }

    /// Installs the definitions of the older PolicyReports, and waits until they are served. They are not removed.
    ///
    /// # Panics
    /// When they cannot be downloaded, or an API server refuses them.
    pub fn install_policy_reports(&self) {
        POLICY_REPORTS.install(|args| self.kubectl(args));
    }
}

impl Site {
    /// [`Cluster::install_open_reports`], in the cluster of a chart.
    ///
    /// # Panics
    /// When they cannot be downloaded, or an API server refuses them.
    pub fn install_open_reports(&self) {
        OPEN_REPORTS.install(|args| self.kubectl(args));
    }
}

impl Definitions {
    fn install(&self, kubectl: impl Fn(Vec<&str>) -> Output) {
        let cache = Cache::from_env().unwrap_or_else(|error| panic!("{error}"));
        let file = self.file(&cache).display().to_string();
        let apply = ["apply", "--server-side", "--force-conflicts", "--filename", &file];
        kubectl(apply.to_vec()).expect("the definitions of reports");
        let wait = ["wait", "--for=condition=Established", "--timeout=180s", "--filename", &file];
        kubectl(wait.to_vec()).expect("definitions that are served");
    }

    /// The file with the definitions, in the cache.
    fn file(&self, cache: &Cache) -> PathBuf {
        let folder = cache.root().join(format!("{}-{}", self.name, self.version));
        let file = folder.join("install.yaml");
        if !file.is_file() {
            files::make_folder(&folder).unwrap_or_else(|error| panic!("{error}"));
            let text = self.downloaded(cache, &folder);
            files::write(&file, &text).unwrap_or_else(|error| panic!("{error}"));
        }
        file
    }

    fn downloaded(&self, cache: &Cache, folder: &Path) -> String {
        let Self { module, version, sum, .. } = self;
        let output = Command::new("go")
            .args(["mod", "download", "-json", &format!("{module}@{version}")])
            .current_dir(folder)
            .env("GOMODCACHE", cache.go().join("mod"))
            // With this, downloaded sources are writable and can be removed like any other folder.
            .env("GOFLAGS", "-modcacherw")
            .env("GOWORK", "off")
            // Its checksum is compared with the one above.
            .env("GONOSUMDB", module)
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("failed to start go: {error}; install Go 1.26 or newer"));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let said = || format!("{answer}{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "failed to download {module}: {}", said());
        assert_eq!(answer["Sum"], *sum, "{module} {version} is not what it was: {}", said());
        let source = PathBuf::from(answer["Dir"].as_str().expect("a module has a folder"));
        let text = |file: &&str| {
            let file = source.join(file);
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        };
        self.files.iter().map(text).collect::<Vec<_>>().join("---\n")
    }
}
