//! The CustomResourceDefinitions of OpenReports, as its own Go module has them. They are downloaded once and kept in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Cache, Cluster, files};

/// The module.
const MODULE: &str = "github.com/openreports/reports-api";
const VERSION: &str = "v0.2.1";
/// What Go's checksum of it must be.
const SUM: &str = "h1:g9KS3yle9Y1elmww4TK9EkD1rl6inIaiIJPX6e+u680=";
/// The file with both definitions.
const FILE: &str = "config/install.yaml";

impl Cluster {
    /// Installs the definitions of OpenReports, and waits until they are served. They stay.
    ///
    /// # Panics
    /// When they cannot be downloaded, or an API server refuses them.
    pub fn install_open_reports(&self) {
        let cache = Cache::from_env().unwrap_or_else(|error| panic!("{error}"));
        let file = definitions(&cache).display().to_string();
        let apply = ["apply", "--server-side", "--force-conflicts", "--filename", &file];
        self.kubectl(apply).expect("the definitions of OpenReports");
        let wait = ["wait", "--for=condition=Established", "--timeout=180s", "--filename", &file];
        self.kubectl(wait).expect("definitions that are served");
    }
}

/// Downloads the definitions of OpenReports into the cache, if they are not there: most tests have a network of their own, from which
/// nothing can be downloaded.
///
/// # Panics
/// When they cannot be downloaded.
pub fn fetch_open_reports(cache: &Cache) {
    definitions(cache);
}

/// The file with the definitions, in the cache.
fn definitions(cache: &Cache) -> PathBuf {
    let folder = cache.root().join(format!("openreports-{VERSION}"));
    let file = folder.join("install.yaml");
    if !file.is_file() {
        files::make_folder(&folder).unwrap_or_else(|error| panic!("{error}"));
        let text = downloaded(cache, &folder);
        files::write(&file, &text).unwrap_or_else(|error| panic!("{error}"));
    }
    file
}

fn downloaded(cache: &Cache, folder: &Path) -> String {
    let output = Command::new("go")
        .args(["mod", "download", "-json", &format!("{MODULE}@{VERSION}")])
        .current_dir(folder)
        .env("GOMODCACHE", cache.go().join("mod"))
        // Sources that can be written can be removed like any other folder.
        .env("GOFLAGS", "-modcacherw")
        .env("GOWORK", "off")
        // Its checksum is compared with the one above.
        .env("GONOSUMDB", MODULE)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("failed to start go: {error}; install Go 1.26 or newer"));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let said = || format!("{answer}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "failed to download {MODULE}: {}", said());
    assert_eq!(answer["Sum"], SUM, "{MODULE} {VERSION} is not what it was: {}", said());
    let file = PathBuf::from(answer["Dir"].as_str().expect("a module has a folder")).join(FILE);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
