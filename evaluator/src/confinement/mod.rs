//! The process confines itself: which files it can still reach, and what is logged about it.

mod probe_inside;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use portcullis_process::{Confinement, ConfinementReport, failpoint};

use crate::args::Args;
use crate::metrics::Metrics;

/// Gives up connections, other programs, and all files but the volume, the certificates, the keys of paths and the private copies. To be
/// called while the process has no other thread.
pub(crate) fn confine(args: &Args, metrics: &Metrics) {
    if args.no_confinement {
        tracing::warn!(
            "not shut in, as asked: a policy that breaks out of its instance could reach files and connections"
        );
        return;
    }
    let paths = [Some(&args.volume), args.tls_dir.as_ref(), args.client_ca.as_ref(), args.path_keys.as_ref()];
    let read = paths.into_iter().flatten().flat_map(|path| readable(path)).collect();
    let probe = failpoint::hit("evaluator.probe_inside").then(probe_inside::listener);
    let report = Confinement { read, write: vec![args.private_dir.clone()] }.apply();
    metrics.landlock.set(i64::from(report.landlock == "full"));
    metrics.seccomp.set(i64::from(report.seccomp == "on"));
    log(&report);
    if let Some(listener) = probe {
        probe_inside::run(&args.volume, &args.private_dir, listener);
    }
}

fn log(report: &ConfinementReport) {
    let ConfinementReport { landlock, seccomp } = report;
    if report.is_full() {
        tracing::info!(landlock, seccomp, "shut in");
    } else {
        tracing::warn!(landlock, seccomp, "shut in only in part; NetworkPolicy and the container's own limits remain");
    }
}

/// The folders that must stay readable so that `path` is, even after it is removed and made again: its parent, or `path` itself if it is
/// a mount point; and the same for its target if it is a link. The root folder is never among them.
fn readable(path: &Path) -> Vec<PathBuf> {
    let here = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = fs::canonicalize(path).ok();
    let mut folders: Vec<PathBuf> = [Some(here), there].into_iter().flatten().map(|path| kept(&path)).collect();
    folders.dedup();
    folders
}

fn kept(path: &Path) -> PathBuf {
    // If the parent does not exist yet, this is the nearest folder above it that does.
    let parent = path.ancestors().skip(1).find(|folder| folder.exists());
    match parent {
        Some(parent) if parent.parent().is_some() && !is_mount(path, parent) => parent.to_owned(),
        _ => path.to_owned(),
    }
}

/// Whether `path` is a mount point in `parent`: then it cannot be removed and made again.
fn is_mount(path: &Path, parent: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    device(path).is_some_and(|device_of_path| device(parent) != Some(device_of_path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_may_come_anew_is_read_by_its_parent() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = fs::canonicalize(folder.path()).expect("a path");
        let volume = root.join("volume");
        assert_eq!(readable(&volume), std::slice::from_ref(&root));
        assert_eq!(readable(&volume.join("not").join("yet")), std::slice::from_ref(&root));
        fs::create_dir(&volume).expect("makes");
        assert_eq!(readable(&volume), std::slice::from_ref(&root));
    }

    #[test]
    fn what_a_link_leads_to_is_read_as_well() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = fs::canonicalize(folder.path()).expect("a path");
        fs::create_dir_all(root.join("real").join("volume")).expect("makes");
        std::os::unix::fs::symlink("real/volume", root.join("volume")).expect("links");
        assert_eq!(readable(&root.join("volume")), [root.clone(), root.join("real")]);
    }

    #[test]
    fn the_root_folder_and_mounts_stand_for_themselves() {
        for path in ["/proc", "/no-such-folder"] {
            assert_eq!(kept(Path::new(path)), Path::new(path));
        }
    }
}
