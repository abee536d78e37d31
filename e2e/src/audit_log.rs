//! The audit logs of API servers.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use memchr::{memchr, memmem, memrchr};
use serde_json::Value;

/// The events with this text in the log at `path`, and before them those in the files to which an API server has moved the older part. What
/// is still being written is left out.
pub(crate) fn events(path: &Path, text: &str) -> Vec<Value> {
    // It is opened before the others are listed, so that no event is missed if it is moved meanwhile. Right after a move there is no file here.
    let current = File::open(path).ok();
    let number = |file: &File| file.metadata().ok().map(|metadata| metadata.ino());
    let mut events = Vec::new();
    for older in moved(path).unwrap_or_default() {
        // It may have been removed: an API server keeps only one.
        let Ok(file) = File::open(older) else { continue };
        if number(&file) != current.as_ref().and_then(number) {
            read(file, text, &mut events);
        }
    }
    if let Some(current) = current {
        read(current, text, &mut events);
    }
    events
}

/// The files to which an API server has moved parts of the log at `path`, in order: their names have the time.
fn moved(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_stem()) else { return Ok(Vec::new()) };
    let beginning = format!("{}-", name.to_string_lossy());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&beginning) {
            found.push(entry.path());
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Adds the events with this text. Only their lines are parsed: logs have a hundred MB, and tests look at them again and again.
fn read(mut file: File, text: &str, events: &mut Vec<Value>) {
    let mut bytes = Vec::new();
    if file.read_to_end(&mut bytes).is_err() {
        return;
    }
    let (finder, mut rest) = (memmem::Finder::new(text), bytes.as_slice());
    while let Some(at) = finder.find(rest) {
        let Some(length) = memchr(b'\n', &rest[at..]) else { return };
        let (start, end) = (memrchr(b'\n', &rest[..at]).map_or(0, |before| before + 1), at + length);
        events.extend(serde_json::from_slice::<Value>(&rest[start..end]).ok());
        rest = &rest[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(path: &Path, text: &str) -> Vec<u64> {
        events(path, text).iter().map(|event| event["id"].as_u64().unwrap()).collect()
    }

    #[test]
    fn events_are_found_by_their_text_also_in_what_was_moved() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let path = folder.path().join("audit-1.log");
        assert!(events(&path, "shop").is_empty());
        write(
            "audit-1.log",
            "{\"id\":5,\"a\":\"shop\"}\n{\"id\":6}\n{\"id\":7,\"a\":\"shop shop\"}\n{\"id\":8,\"a\":\"shop\"",
        );
        assert_eq!(ids(&path, "shop"), [5, 7], "the last line is still being written");
        write("audit-1-2026-11-30T09-11-40.123.log", "{\"id\":3,\"a\":\"shop\"}\n{\"id\":4}\n");
        write("audit-1-2026-11-30T09-11-39.123.log", "{\"id\":1}\n{\"id\":2,\"a\":\"shop\"}\n");
        write("audit-2.log", "{\"id\":9,\"a\":\"shop\"}\n");
        assert_eq!(ids(&path, "shop"), [2, 3, 5, 7]);
        assert_eq!(ids(&path, "id"), [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_log_that_is_moved_while_it_is_read_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit-1.log");
        fs::write(&path, "{\"id\":1}\n").unwrap();
        fs::hard_link(&path, folder.path().join("audit-1-2026-11-30T09-11-40.123.log")).unwrap();
        assert_eq!(ids(&path, "id"), [1]);
    }
}
