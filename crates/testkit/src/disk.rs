//! Disk usage.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The disk usage of a folder, in bytes. Files may come and go in the meantime.
pub fn bytes_below(folder: &Path) -> u64 {
    let Ok(items) = fs::read_dir(folder) else { return 0 };
    let of = |item: fs::DirEntry| match item.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&item.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    items.flatten().map(of).sum()
}
