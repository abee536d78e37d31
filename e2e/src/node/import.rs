//! Imports images into the node, through containerd's own tool.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use super::paths::POD_IMAGE;
use super::pod_program::PodProgram;
use super::{image, spawn};
use crate::{Cache, Error};

/// The image that every pod needs.
pub(crate) fn import_pod_image(cache: &Cache, node: u32) -> Result<(), Error> {
    let program = PodProgram::build(cache, &|line| eprintln!("{line}"))?;
    let archive = image::of_program(POD_IMAGE, &program.path, &["pause"])?;
    let failed = |source| Error::file("write", Path::new("the image of pods"))(source);
    let mut file = tempfile().map_err(failed)?;
    file.write_all(&archive).and_then(|()| file.rewind()).map_err(failed)?;
    import(node, file).map_err(|output| Error::Node { action: format!("import {POD_IMAGE}"), output })
}

/// Puts the images of an archive on the node whose first process this is.
pub(crate) fn import_archive(node: u32, archive: &Path) -> Result<(), Error> {
    let file = File::open(archive).map_err(Error::file("open", archive))?;
    let failed = |output| Error::Node { action: format!("import the images of {}", archive.display()), output };
    import(node, file).map_err(failed)
}

/// A temporary file without a name, which need not be removed.
fn tempfile() -> std::io::Result<File> {
    let file: OwnedFd = rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(File::from(file))
}

/// Imports through standard input, because the node does not see the archive's folder.
fn import(node: u32, archive: File) -> Result<(), String> {
    let mut ctr = ctr(node);
    let output = ctr.args(["images", "import", "-"]).stdin(archive).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}

fn ctr(node: u32) -> Command {
    let mut command = spawn::enter(node);
    command.args(["ctr", "--namespace", "k8s.io"]);
    command
}
