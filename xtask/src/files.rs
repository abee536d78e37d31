//! The text files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The size above which files are data, to which no rule applies, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// One text file.
pub(crate) struct TextFile {
    /// Its path below the repository's folder.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl TextFile {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "rs")
    }
}

/// Reads all text files below a folder, sorted by path. It skips `.git`, cargo's target folders, the output of `portcullis run`,
/// symlinks, and files that are large or not UTF-8.
pub(crate) fn read_all(root: &Path) -> Result<Vec<TextFile>> {
    let mut files = Vec::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("failed to list {}", dir.display()))? {
            let entry = entry.with_context(|| format!("failed to list {}", dir.display()))?;
            let path = entry.path();
            let metadata = entry.metadata().with_context(|| format!("failed to look at {}", path.display()))?;
            if metadata.is_dir() && !is_foreign(&path) {
                dirs.push(path);
            } else if metadata.is_file() && metadata.len() <= MAX_BYTES {
                let bytes = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
                let Ok(text) = String::from_utf8(bytes) else { continue };
                files.push(TextFile { path: path.strip_prefix(root).unwrap_or(&path).to_owned(), text });
            }
        }
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

fn is_foreign(dir: &Path) -> bool {
    let name = dir.file_name().unwrap_or_default();
    name == ".git" || name == "target" || name == ".portcullis" || dir.join("CACHEDIR.TAG").exists()
}
