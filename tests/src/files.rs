//! Writing files and folders so that the programs can use them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Lets every user read a folder.
pub(crate) fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
}

/// Writes a file by rename.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let folder = path.parent().expect("a file is in a folder");
    fs::create_dir_all(folder).expect("a folder");
    let temporary = folder.join(format!(".{}.test-tmp", NEXT.fetch_add(1, Ordering::Relaxed)));
    fs::write(&temporary, bytes)
        .and_then(|()| fs::rename(&temporary, path))
        .unwrap_or_else(|error| panic!("failed to write {}: {error}", path.display()));
}
