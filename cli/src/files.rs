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
