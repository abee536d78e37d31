//! The YAML and JSON files that a user names, or that are in the folders that the user names.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

/// Most files that are read.
const MOST_FILES: usize = 10_000;
/// Deepest nesting of folders that is searched.
const DEEPEST: usize = 32;

/// A file.
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    /// Whether the user named it. A folder may hold other files than those that are meant.
    pub(crate) is_named: bool,
}

impl Found {
    /// Reads a file of limited size. One that the user named must be readable; one of a folder, which may hold other files, does not end what is
    /// done with the others. If that is larger than any file that is meant, it is nothing, and standard error says that it is left out. If it
    /// cannot be read, the inner error says why: it may be one that is meant, so a command does not succeed without it.
    ///
    /// # Errors
    /// When a file that the user named cannot be read, or is too large.
    pub(crate) fn read(&self, largest: u64) -> anyhow::Result<Option<Result<Vec<u8>, String>>> {
        // Its size tells, so that nothing of it is read. Pipes, whose size is not known, are only named.
        if !self.is_named && fs::metadata(&self.path).is_ok_and(|found| found.len() > largest) {
            crate::note(&portcullis_contract::clean(&self.left_out(largest), 1000));
            return Ok(None);
        }
        match crate::read(&self.path, largest) {
            Ok(bytes) => Ok(Some(Ok(bytes))),
            Err(error) if self.is_named => Err(error),
            Err(error) => Ok(Some(Err(format!("{error:#}")))),
        }
    }

    /// That it is left out, as it is larger than this.
    fn left_out(&self, largest: u64) -> String {
        format!("left out {}: it is larger than {} MiB", self.path.display(), largest >> 20)
    }
}

/// These files, and those of these folders and of the folders in them, each once. `-` stands for standard input.
///
/// # Errors
/// When a folder cannot be read, is nested too deep, or has too many files.
pub(crate) fn manifests(paths: &[PathBuf]) -> anyhow::Result<Vec<Found>> {
    let mut found = Vec::new();
    for path in paths {
        add(path, path.as_os_str() != "-" && path.is_dir(), 0, &mut found)
            .with_context(|| format!("failed to read {}", path.display()))?;
    }
    // A file may be named in addition to its folder, and links may lead to it.
    let mut seen = HashSet::new();
    found.retain(|Found { path, .. }| seen.insert(fs::canonicalize(path).unwrap_or_else(|_| path.clone())));
    Ok(found)
}

/// Whether a word is anywhere in the text of a file.
pub(crate) fn names(text: &[u8], word: &str) -> bool {
    text.windows(word.len()).any(|part| part == word.as_bytes())
}

/// Adds a file, or the files of a folder.
fn add(path: &Path, is_folder: bool, depth: usize, found: &mut Vec<Found>) -> anyhow::Result<()> {
    if !is_folder {
        ensure!(found.len() < MOST_FILES, "there are more than {MOST_FILES} files");
        found.push(Found { path: path.to_owned(), is_named: depth == 0 });
        return Ok(());
    }
    ensure!(depth < DEEPEST, "{} is nested too deep", path.display());
    let mut entries = fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type()?);
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        // Links to folders are not followed, as they may lead back here. Links to files are.
        if !is_hidden && (kind.is_dir() || (crate::is_manifest(&path) && path.is_file())) {
            add(&path, kind.is_dir(), depth + 1, found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Puts into a folder what no command stops at: `large.yaml`, of more than 16 MiB, which none looks at, and `odd.yaml`, whose bytes cannot
    /// be read, whatever rights the user has, so that none succeeds.
    pub(crate) fn add_what_is_not_read(folder: &Path) {
        let large = fs::File::create(folder.join("large.yaml")).expect("creates");
        large.set_len((16 << 20) + 1).expect("it is sparse");
        std::os::unix::fs::symlink("/proc/self/mem", folder.join("odd.yaml")).expect("links");
    }

    #[test]
    fn files_of_folders_are_left_out_where_named_ones_are_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        add_what_is_not_read(folder.path());
        fs::write(folder.path().join("a.yaml"), "a: 1").expect("writes");
        let read = |name: &str, is_named| Found { path: folder.path().join(name), is_named }.read(16 << 20);
        let large = Found { path: "large.yaml".into(), is_named: false };
        assert_eq!(large.left_out(16 << 20), "left out large.yaml: it is larger than 16 MiB");
        for is_named in [true, false] {
            assert!(matches!(read("a.yaml", is_named), Ok(Some(Ok(bytes))) if bytes == b"a: 1"));
        }
        assert!(matches!(read("large.yaml", false), Ok(None)));
        assert!(matches!(read("odd.yaml", false), Ok(Some(Err(why))) if why.contains("odd.yaml")));
        for name in ["large.yaml", "odd.yaml"] {
            assert!(read(name, true).is_err(), "{name}");
        }
    }
}
