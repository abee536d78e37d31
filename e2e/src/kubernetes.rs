//! Kubernetes itself: one Go program with all components, built once and kept in the cache.
//!
//! The sources are a part of this crate, so that a test builds what it was compiled with and needs no checkout. The cache folder
//! of a build is named after them; sources and build results of Go are shared by all builds, so that a second one is quick.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use crate::lock::Lock;
use crate::{Cache, Error, files};

/// The version of Kubernetes.
pub const VERSION: &str = "v1.36.3";

/// What is built.
const SOURCES: [(&str, &str); 3] = [
    ("main.go", include_str!("../kubernetes/main.go")),
    ("go.mod", include_str!("../kubernetes/go.mod")),
    ("go.sum", include_str!("../kubernetes/go.sum")),
];

/// What it can be called.
const PROGRAMS: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kubectl"];

/// How often a build says that it goes on.
const PACE: Duration = Duration::from_secs(30);

/// The programs, built.
#[derive(Debug, Clone)]
pub struct Kubernetes {
    bin: PathBuf,
}

impl Kubernetes {
    /// Those in the cache, if they are there.
    pub fn built(cache: &Cache) -> Option<Self> {
        let bin = folder(cache).join("bin");
        // The links are made first and the program is put there last.
        bin.join("kubernetes").is_file().then_some(Self { bin })
    }

    /// Those in the cache; builds them first when they are not there, which takes minutes. `tell` gets lines for who waits.
    ///
    /// # Errors
    /// When the build fails.
    pub fn build(cache: &Cache, tell: &dyn Fn(&str)) -> Result<Self, Error> {
        if let Some(built) = Self::built(cache) {
            return Ok(built);
        }
        let folder = folder(cache);
        let _lock = Lock::take(&folder.with_extension("lock"), || {
            tell("another process builds Kubernetes, waiting for it");
        })?;
        if let Some(built) = Self::built(cache) {
            return Ok(built);
        }
        build(cache, &folder, tell)?;
        Ok(Self { bin: folder.join("bin") })
    }

    /// The path of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }
}

fn folder(cache: &Cache) -> PathBuf {
    cache.root().join(format!("kubernetes-{VERSION}-{}", key(&SOURCES)))
}

/// Tells sources apart, in a few letters.
fn key(sources: &[(&str, &str)]) -> String {
    let mut hash = Sha256::new();
    for (name, text) in sources {
        for part in [name, text] {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
    }
    hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

fn build(cache: &Cache, folder: &Path, tell: &dyn Fn(&str)) -> Result<(), Error> {
    // What an attempt that was interrupted left is of no use.
    files::remove_folder(folder)?;
    let (source, bin) = (folder.join("source"), folder.join("bin"));
    files::make_folder(&source)?;
    files::make_folder(&bin)?;
    for (name, text) in SOURCES {
        files::write(&source.join(name), text)?;
    }
    for name in PROGRAMS {
        let link = bin.join(name);
        symlink("kubernetes", &link).map_err(Error::file("create", &link))?;
    }

    tell(&format!("building Kubernetes {VERSION}, once: this takes some minutes (into {})", folder.display()));
    let start = Instant::now();
    let log = folder.join("build.log");
    let program = folder.join("kubernetes.new");
    let mut child = go_build(cache, &source, &program, &log)?;
    let status = wait(&mut child, || tell(&format!("still building Kubernetes, after {}", minutes(start.elapsed()))))
        .map_err(Error::file("build", &program))?;
    if !status.success() {
        return Err(Error::Build { status, output: files::tail(&log, 40) });
    }
    let built = bin.join("kubernetes");
    fs::rename(&program, &built).map_err(Error::file("create", &built))?;
    tell(&format!("built Kubernetes {VERSION} in {}", minutes(start.elapsed())));
    Ok(())
}

fn go_build(cache: &Cache, source: &Path, program: &Path, log: &Path) -> Result<Child, Error> {
    let output = File::create(log).map_err(Error::file("create", log))?;
    let errors = output.try_clone().map_err(Error::file("open", log))?;
    Command::new("go")
        .args(["build", "-trimpath", "-buildvcs=false", "-ldflags", &linker_flags(), "-o"])
        .arg(program)
        .arg(".")
        .current_dir(source)
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", cache.go().join("build"))
        .env("GOMODCACHE", cache.go().join("mod"))
        // Sources that can be written can be removed like any other folder.
        .env("GOFLAGS", "-modcacherw")
        .env("GOWORK", "off")
        .env_remove("GOOS")
        .env_remove("GOARCH")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .map_err(|source| Error::Start { program: "go".to_owned(), next: "install Go 1.26 or newer", source })
}

/// No debug information, and the version, which a build without Kubernetes' own scripts has to be told.
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

/// Waits for the end, and calls `tell` now and then.
fn wait(child: &mut Child, tell: impl Fn()) -> std::io::Result<ExitStatus> {
    let mut told = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if told.elapsed() >= PACE {
            told = Instant::now();
            tell();
        }
        thread::sleep(Duration::from_millis(200));
    }
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{} min {:02} s", seconds / 60, seconds % 60)
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
    fn other_sources_have_another_key() {
        assert_eq!(key(&[("a", "b")]), key(&[("a", "b")]));
        assert_ne!(key(&[("a", "b")]), key(&[("a", "c")]));
        assert_ne!(key(&[("ab", "")]), key(&[("a", "b")]));
        assert_eq!(key(&SOURCES).len(), 12);
    }

    #[test]
    fn every_program_is_one_that_the_source_knows() {
        for name in PROGRAMS {
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
