//! The only layer of an image: a tar archive with the program, and certificate authorities if it needs them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use tar::{Builder, EntryType, Header};

use super::authorities;

/// The layer with a program at the root. The same input gives the same bytes.
pub(super) fn make(program: &str, bytes: &[u8], authorities: Option<&str>, epoch: u64) -> Result<Vec<u8>> {
    let mut files = BTreeMap::from([(program, (0o555, bytes))]);
    if let Some(authorities) = authorities {
        files.insert(authorities::PATH, (0o444, authorities.as_bytes()));
    }
    tar(&files, epoch)
}

/// A tar of files with their modes, and of the folders above them. Everything belongs to root and has the same time.
pub(super) fn tar(files: &BTreeMap<&str, (u32, &[u8])>, epoch: u64) -> Result<Vec<u8>> {
    let mut entries: BTreeMap<String, Option<(u32, &[u8])>> = BTreeMap::new();
    for (path, file) in files {
        let folders = Path::new(path).ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
        entries.extend(folders.map(|folder| (format!("{}/", folder.display()), None)));
        entries.insert((*path).to_owned(), Some(*file));
    }
    let mut builder = Builder::new(Vec::new());
    for (path, entry) in entries {
        let (kind, (mode, bytes)) = match entry {
            Some(file) => (EntryType::Regular, file),
            None => (EntryType::Directory, (0o755, &[][..])),
        };
        // Without names of users and properties of the disk, so that the archive is the same everywhere.
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(epoch);
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, &path, bytes).with_context(|| format!("failed to put {path} into a tar"))?;
    }
    builder.into_inner().context("failed to finish a tar")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Path, mode, user and time of each entry, as another reader sees them.
    fn entries(tar: &[u8]) -> Vec<(String, u32, u64, u64)> {
        let mut archive = tar::Archive::new(tar);
        let entry = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
            let entry = entry.unwrap();
            let header = entry.header();
            let path = entry.path().unwrap().display().to_string();
            (path, header.mode().unwrap(), header.uid().unwrap(), header.mtime().unwrap())
        };
        archive.entries().unwrap().map(entry).collect()
    }

    #[test]
    fn a_layer_has_the_program_and_authorities_and_nothing_else() {
        let layer = make("portcullis-loader", b"program", Some("authorities"), 7).unwrap();
        let entry = |path: &str, mode| (path.to_owned(), mode, 0, 7);
        assert_eq!(
            entries(&layer),
            [
                entry("etc/", 0o755),
                entry("etc/ssl/", 0o755),
                entry("etc/ssl/certs/", 0o755),
                entry("etc/ssl/certs/ca-certificates.crt", 0o444),
                entry("portcullis-loader", 0o555),
            ],
        );
    }

    #[test]
    fn a_layer_without_authorities_is_the_program() {
        let layer = make("portcullis-evaluator", b"program", None, 0).unwrap();
        assert_eq!(entries(&layer), [("portcullis-evaluator".to_owned(), 0o555, 0, 0)]);
    }

    #[test]
    fn a_layer_is_the_same_each_time() {
        let layer = || make("portcullis-loader", b"program", Some("authorities"), 7).unwrap();
        assert_eq!(layer(), layer());
    }
}
