//! A program in Go that is built once and kept in the cache.
//!
//! The sources are part of this crate, so that a test builds the version that it was compiled with and needs no checkout. The cache
//! folder of a build has a name that depends on them. All builds share Go's downloaded sources and build results, so that a second
//! build is quick.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::Hasher;

use crate::lock::Lock;
use crate::{Cache, Error, files};

/// The interval at which a build reports that it is still running.
const PACE: Duration = Duration::from_secs(30);

/// A Go program to build.
pub(crate) struct GoProgram {
    /// Its name in messages, like `Kubernetes`.
    pub(crate) name: &'static str,
    /// The name of its file.
    pub(crate) file: &'static str,
    /// Its version.
    pub(crate) version: &'static str,
    /// Names and texts of the files of the module.
    pub(crate) sources: &'static [(&'static str, &'static str)],
    /// The packages to build, from the module's folder. Each makes a program that is named after the package's or the module's folder.
    pub(crate) packages: &'static [&'static str],
    /// Other names under which it can be called.
    pub(crate) links: &'static [&'static str],
    /// Flags for the linker.
    pub(crate) linker_flags: String,
}

impl GoProgram {
    /// The folder with the program, if it is in the cache.
    pub(crate) fn built(&self, cache: &Cache) -> Option<PathBuf> {
        let bin = self.folder(cache).join("bin");
        // The links and the other programs are made first, so the program's file shows that the folder is complete.
        bin.join(self.file).is_file().then_some(bin)
    }

    /// The folder with the program; builds it first when it is not in the cache, which takes minutes. `tell` gets lines about the progress.
    ///
    /// # Errors
    /// When the build fails.
    pub(crate) fn build(&self, cache: &Cache, tell: &dyn Fn(&str)) -> Result<PathBuf, Error> {
        if let Some(built) = self.built(cache) {
            return Ok(built);
        }
        let folder = self.folder(cache);
        let _lock = Lock::take(&folder.with_extension("lock"), || {
            tell(&format!("another process builds {}, waiting for it", self.name));
        })?;
        if let Some(built) = self.built(cache) {
            return Ok(built);
        }
        self.build_into(cache, &folder, tell)?;
        Ok(folder.join("bin"))
    }

    fn folder(&self, cache: &Cache) -> PathBuf {
        cache.root().join(format!("{}-{}-{}", self.file, self.version, key(self.sources)))
    }

    fn build_into(&self, cache: &Cache, folder: &Path, tell: &dyn Fn(&str)) -> Result<(), Error> {
        let Self { name, version, .. } = self;
        // The remains of an interrupted build cannot be used.
        files::remove_folder(folder)?;
        let (source, bin) = (folder.join("source"), folder.join("bin"));
        files::make_folder(&source)?;
        files::make_folder(&bin)?;
        for (name, text) in self.sources {
            files::write(&source.join(name), text)?;
        }
        for name in self.links {
            let link = bin.join(name);
            symlink(self.file, &link).map_err(Error::file("create", &link))?;
        }

        tell(&format!("building {name} {version}, once: this takes some minutes (into {})", folder.display()));
        let start = Instant::now();
        let log = folder.join("build.log");
        let new = folder.join("new");
        files::make_folder(&new)?;
        let mut child = self.go_build(cache, &source, &new, &log)?;
        let status = wait(&mut child, || tell(&format!("still building {name}, after {}", minutes(start.elapsed()))))
            .map_err(Error::file("build", &new))?;
        if !status.success() {
            return Err(Error::Build { name, status, output: files::tail(&log, 40) });
        }
        let mut files = files::names(&new)?;
        files.sort_by_key(|file| file == self.file);
        for file in files {
            let built = bin.join(&file);
            fs::rename(new.join(file), &built).map_err(Error::file("create", &built))?;
        }
        tell(&format!("built {name} {version} in {}", minutes(start.elapsed())));
        Ok(())
    }

    fn go_build(&self, cache: &Cache, source: &Path, into: &Path, log: &Path) -> Result<Child, Error> {
        let output = File::create(log).map_err(Error::file("create", log))?;
        let errors = output.try_clone().map_err(Error::file("open", log))?;
        Command::new("go")
            // The linker drops debug information, so the compiler need not write it. Without `-trimpath`, which puts the module's own name
            // for a version into each package, Helm shares what was compiled for Kubernetes.
            .args(["build", "-buildvcs=false", "-gcflags=all=-dwarf=false", "-ldflags", &self.linker_flags, "-o"])
            .arg(into)
            .args(self.packages)
            .current_dir(source)
            .env("CGO_ENABLED", "0")
            .env("GOCACHE", cache.go().join("build"))
            .env("GOMODCACHE", cache.go().join("mod"))
            // With this, downloaded sources are writable and can be removed like any other folder.
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
}

/// A short digest of sources.
fn key(sources: &[(&str, &str)]) -> String {
    let mut hash = Hasher::default();
    for (name, text) in sources {
        for part in [name, text] {
            hash.update(&part.len().to_le_bytes());
            hash.update(part.as_bytes());
        }
    }
    hash.finish().hex()[..12].to_owned()
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
    fn other_sources_have_another_key() {
        assert_eq!(key(&[("a", "b")]), key(&[("a", "b")]));
        assert_ne!(key(&[("a", "b")]), key(&[("a", "c")]));
        assert_ne!(key(&[("ab", "")]), key(&[("a", "b")]));
        assert_eq!(key(&[("a", "b")]).len(), 12);
    }
}
