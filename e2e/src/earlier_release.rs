//! Chart and images of an earlier release, built once from the history of the repository and kept in the cache, for tests of upgrades.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::lock::Lock;
use crate::{Cache, Error, files};

/// The commit of the release. There is no tag yet; v0.1.0 would be at this commit.
const COMMIT: &str = "b2831798cb7fab3879ea616e3133cddf7c97b691";

/// The tag of its images, so that a node can have them besides those of the current version.
const TAG: &str = "earlier";

/// The images that its chart names.
const IMAGES: [&str; 5] = ["loader", "evaluator", "reporter", "controller", "portcullis"];

/// An earlier release that was built.
#[derive(Debug, Clone)]
pub struct EarlierRelease {
    folder: PathBuf,
}

impl EarlierRelease {
    /// The release from the cache, if it is there. `cargo xtask earlier-release` builds it.
    pub fn built(cache: &Cache) -> Option<Self> {
        let folder = folder(cache);
        // The folder gets this name only when it is complete.
        folder.is_dir().then_some(Self { folder })
    }

    /// The release from the cache; builds it first if it is not there, which takes as long as the first build of the programs. `tell`
    /// gets lines about the progress; that of cargo is on the standard streams.
    ///
    /// # Errors
    /// When the clone does not have its commit, or the build fails.
    pub fn build(cache: &Cache, tell: &dyn Fn(&str)) -> Result<Self, Error> {
        if let Some(built) = Self::built(cache) {
            return Ok(built);
        }
        let folder = folder(cache);
        let _lock = Lock::take(&folder.with_extension("lock"), || {
            tell("another process builds the earlier release, waiting for it");
        })?;
        if let Some(built) = Self::built(cache) {
            return Ok(built);
        }
        tell(&format!("building the earlier release, once: this takes a while (into {})", folder.display()));
        let building = folder.with_extension("building");
        // An interrupted build goes on where it ended: what cargo has built stays, and the rest is made again.
        for folder in [source(&building), images(&building)] {
            files::remove_folder(&folder)?;
        }
        build_into(&building)?;
        fs::rename(&building, &folder).map_err(Error::file("create", &folder))?;
        Ok(Self { folder })
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of its chart.
    pub fn chart(&self) -> PathBuf {
        source(&self.folder).join("helm")
    }

    /// The archives of its images.
    pub fn archives(&self) -> Vec<PathBuf> {
        IMAGES.iter().map(|name| images(&self.folder).join(format!("{name}.tar"))).collect()
    }

    /// The tag of its images, the chart's `image.tag`.
    pub fn tag(&self) -> &'static str {
        TAG
    }
}

fn folder(cache: &Cache) -> PathBuf {
    cache.root().join(format!("earlier-release-{}", &COMMIT[..12]))
}

fn source(folder: &Path) -> PathBuf {
    folder.join("source")
}

fn images(folder: &Path) -> PathBuf {
    folder.join("images")
}

fn build_into(folder: &Path) -> Result<(), Error> {
    let (source, archive, target) = (source(folder), folder.join("source.tar"), folder.join("target"));
    files::make_folder(&source)?;
    let mut git = Command::new("git");
    git.arg("-C").arg(crate::repository()).args(["archive", "--format=tar", "--output"]).arg(&archive).arg(COMMIT);
    run(git, "git", "the sources of the earlier release", "a clone without them gets them by `git fetch --unshallow`")?;
    let tar = File::open(&archive).map_err(Error::file("open", &archive))?;
    tar::Archive::new(tar).unpack(&source).map_err(Error::file("unpack", &archive))?;

    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Under `cargo run`, these variables describe the package of this program, which is not the one that is built.
    let of_this_package = |name: &String| ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|own| name.starts_with(own));
    for name in env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(of_this_package) {
        cargo.env_remove(name);
    }
    // The xtask of that release builds its images.
    cargo.args(["xtask", "images", "--debug", "--tag", TAG, "--out"]).arg(images(folder));
    cargo.current_dir(&source).env("CARGO_TARGET_DIR", &target).env("CARGO_INCREMENTAL", "0");
    run(cargo, "cargo", "the earlier release", "the output of cargo is above")?;
    // It has gigabytes that are no longer needed.
    files::remove_folder(&target)?;
    files::remove(&archive)
}

/// Runs a program to its end, with its output on the standard streams. `next` is what to look at when it fails.
fn run(mut command: Command, program: &str, name: &'static str, next: &str) -> Result<(), Error> {
    let status = command.stdin(Stdio::null()).status().map_err(|source| Error::Start {
        program: program.to_owned(),
        next: "install it, or add its folder to PATH",
        source,
    })?;
    if status.success() { Ok(()) } else { Err(Error::Build { name, status, output: next.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_there_only_when_it_is_complete() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::at(root.path());
        assert!(EarlierRelease::built(&cache).is_none());
        files::make_folder(&folder(&cache).with_extension("building")).unwrap();
        assert!(EarlierRelease::built(&cache).is_none());
        files::make_folder(&folder(&cache)).unwrap();
        let built = EarlierRelease::built(&cache).unwrap();
        assert!(built.chart().starts_with(root.path()));
        assert_eq!(built.archives().len(), IMAGES.len());
    }
}
