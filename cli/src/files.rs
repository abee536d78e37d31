//! The YAML and JSON files that a user names, or that are in the folders that the user names.

use std::collections::HashSet;
use std::fs;
use std::io;
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

/// Something in a folder that could not be read. It may be what is meant, so a command does not succeed without it.
pub(crate) struct Unread {
    pub(crate) path: PathBuf,
    pub(crate) is_folder: bool,
    pub(crate) why: String,
}

/// A file, or what may have some and cannot be listed.
type Listed = Result<Found, Unread>;

impl Unread {
    fn listing(path: &Path, is_folder: bool, error: &io::Error) -> Self {
        Self { path: path.to_owned(), is_folder, why: format!("failed to read {}: {error}", path.display()) }
    }
}

/// Reads these files, and those of these folders and of the folders in them, each once and of limited size, and gives them to `take`. `-` stands
/// for standard input. What the user named must be readable. A folder may hold other files and folders than those that are meant, so one of them
/// that cannot be read does not end what is done with the others; and a file that is larger than any that is meant is left out, as links to
/// folders are, with a note on standard error.
///
/// # Errors
/// When something that the user named cannot be read, or is too large; when folders are nested too deep, or have too many files; when `take` fails.
pub(crate) fn each(
    paths: &[PathBuf],
    largest: u64,
    mut take: impl FnMut(Found, Vec<u8>) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Unread>> {
    let mut unread = Vec::new();
    for listed in manifests(paths)? {
        let found = match listed {
            Ok(found) => found,
            Err(folder) => {
                unread.push(folder);
                continue;
            }
        };
        // Its size tells, so that nothing of it is read. Pipes, whose size is not known, are only named.
        if !found.is_named && fs::metadata(&found.path).is_ok_and(|file| file.len() > largest) {
            crate::note(&left_out(&found.path, &format!("it is larger than {} MiB", largest >> 20)));
            continue;
        }
        match crate::read(&found.path, largest) {
            Ok(bytes) => take(found, bytes)?,
            Err(error) if found.is_named => return Err(error),
            Err(error) => unread.push(Unread { path: found.path, is_folder: false, why: format!("{error:#}") }),
        }
    }
    Ok(unread)
}

/// The real path of a file's folder: `..` in a path that begins there is the folder above it, also for code that does not look at links. The file
/// itself may be a link; what it names is beside the link.
///
/// # Errors
/// When the folder does not exist.
pub(crate) fn folder_of(file: &Path) -> io::Result<PathBuf> {
    std::path::absolute(file)?.parent().unwrap_or(Path::new("/")).canonicalize()
}

/// The note that something of a folder is not looked at.
fn left_out(path: &Path, why: &str) -> String {
    portcullis_contract::clean(&format!("left out {}: {why}", path.display()), 1000)
}

/// The files, each once, and the folders in folders that cannot be listed.
///
/// # Errors
/// When a folder that the user named cannot be listed; when folders are nested too deep, or have too many files.
fn manifests(paths: &[PathBuf]) -> anyhow::Result<Vec<Listed>> {
    let mut listed = Vec::new();
    for path in paths {
        add(path, path.as_os_str() != "-" && path.is_dir(), 0, &mut listed)
            .with_context(|| format!("failed to read {}", path.display()))?;
    }
    // A file may be named in addition to its folder, and links may lead to it.
    let mut seen = HashSet::new();
    listed.retain(|one| {
        let path = one.as_ref().map_or_else(|folder| &folder.path, |file| &file.path);
        seen.insert(fs::canonicalize(path).unwrap_or_else(|_| path.clone()))
    });
    Ok(listed)
}

/// Whether a word is anywhere in the text of a file.
pub(crate) fn names(text: &[u8], word: &str) -> bool {
    text.windows(word.len()).any(|part| part == word.as_bytes())
}

/// Adds a file, or the files of a folder.
fn add(path: &Path, is_folder: bool, depth: usize, listed: &mut Vec<Listed>) -> anyhow::Result<()> {
    if !is_folder {
        ensure!(listed.len() < MOST_FILES, "there are more than {MOST_FILES} files");
        listed.push(Ok(Found { path: path.to_owned(), is_named: depth == 0 }));
        return Ok(());
    }
    ensure!(depth < DEEPEST, "{} is nested too deep", path.display());
    let mut entries = match fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => entries,
        Err(error) if depth == 0 => return Err(error.into()),
        Err(error) => {
            listed.push(Err(Unread::listing(path, true, &error)));
            return Ok(());
        }
    };
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let kind = match entry.file_type() {
            Ok(kind) => kind,
            // It may be a folder.
            Err(error) => {
                listed.push(Err(Unread::listing(&path, false, &error)));
                continue;
            }
        };
        let target = if kind.is_symlink() { fs::metadata(&path).map(|target| target.file_type()) } else { Ok(kind) };
        match target {
            Ok(_) if kind.is_dir() => add(&path, true, depth + 1, listed)?,
            // Links to folders are not followed, as they may lead back here. Links to files are.
            Ok(target) if target.is_dir() => crate::note(&left_out(&path, "it is a link to a folder")),
            Ok(target) if !target.is_file() => {}
            // Where it is not known what a link leads to, reading it says why.
            _ if crate::is_manifest(&path) => add(&path, false, depth + 1, listed)?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The files of [`add_what_is_not_read`] without which no command succeeds.
    pub(crate) const NOT_READ: [&str; 2] = ["gone.yaml", "odd.yaml"];

    /// Puts into a folder what no command stops at: `large.yaml`, of more than 16 MiB, and `back`, a link to the folder, which none looks at;
    /// and what none can read, whatever rights the user has, so that none succeeds: `gone.yaml`, a link to no file, and `odd.yaml`.
    pub(crate) fn add_what_is_not_read(folder: &Path) {
        let large = fs::File::create(folder.join("large.yaml")).expect("creates");
        large.set_len((16 << 20) + 1).expect("it is sparse");
        for (target, link) in [(".", "back"), ("nowhere.yaml", "gone.yaml"), ("/proc/self/mem", "odd.yaml")] {
            symlink(target, folder.join(link)).expect("links");
        }
    }

    #[test]
    fn a_folder_in_a_folder_that_cannot_be_listed_is_named_and_ends_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("a.yaml"), "a: 1").expect("writes");
        // Root may list every folder, so these are none any more when they are listed.
        let gone = folder.path().join("gone");
        let (mut listed, named) = (Vec::new(), add(&gone, true, 0, &mut Vec::new()));
        named.expect_err("the user named it");
        for path in [gone.as_path(), &folder.path().join("a.yaml"), folder.path()] {
            add(path, true, 1, &mut listed).expect("the others go on");
        }
        let told: Vec<_> = listed
            .iter()
            .map(|one| match one {
                Ok(Found { path, .. }) => (path, false, ""),
                Err(Unread { path, is_folder, why }) => (path, *is_folder, why.as_str()),
            })
            .collect();
        let why = |path: &Path, error: &str| format!("failed to read {}: {error}", path.display());
        let file = folder.path().join("a.yaml");
        assert_eq!(
            told,
            [
                (&gone, true, why(&gone, "No such file or directory (os error 2)").as_str()),
                (&file, true, why(&file, "Not a directory (os error 20)").as_str()),
                (&file, false, ""),
            ]
        );
    }

    #[test]
    fn a_link_to_a_folder_is_followed_and_one_to_a_file_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let real = folder.path().canonicalize().expect("a path");
        for inner in ["a", "b/c"] {
            fs::create_dir_all(real.join(inner)).expect("makes");
        }
        symlink("../b/c", real.join("a/link")).expect("links");
        symlink("../b/c/x.yaml", real.join("a/x.yaml")).expect("links");
        fs::write(real.join("b/x.yaml"), "").expect("writes");
        for (file, of) in [("a/link/x.yaml", "b/c"), ("a/link/../x.yaml", "b"), ("a/x.yaml", "a")] {
            assert_eq!(folder_of(&real.join(file)).expect("a folder"), real.join(of), "{file}");
        }
        folder_of(&real.join("absent/x.yaml")).expect_err("no folder");
        assert_eq!(folder_of(Path::new("-")).expect("a folder"), std::env::current_dir().expect("a folder"));
    }

    #[test]
    fn files_of_folders_are_left_out_where_named_ones_are_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        add_what_is_not_read(folder.path());
        fs::write(folder.path().join("a.yaml"), "a: 1").expect("writes");
        fs::write(folder.path().join("notes.txt"), "a: 1").expect("writes");
        // A link to nothing cannot be read. Sockets, pipes and devices hold no policies.
        for (target, link) in [("nowhere", "gone"), ("/dev/null", "null.yaml")] {
            symlink(target, folder.path().join(link)).expect("links");
        }
        let path = |name: &str| folder.path().join(name);
        let read = |named: PathBuf| {
            let mut taken = Vec::new();
            let unread = each(&[named], 16 << 20, |found, bytes| {
                taken.push((found.path, found.is_named, bytes));
                Ok(())
            })?;
            anyhow::Ok((taken, unread.into_iter().map(|one| (one.path, one.why)).collect::<Vec<_>>()))
        };
        assert_eq!(read(path("a.yaml")).expect("reads"), (vec![(path("a.yaml"), true, b"a: 1".to_vec())], vec![]));
        let (taken, unread) = read(folder.path().to_owned()).expect("reads");
        assert_eq!(taken, [(path("a.yaml"), false, b"a: 1".to_vec())]);
        assert_eq!(unread.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>(), NOT_READ.map(path));
        assert!(NOT_READ.iter().zip(&unread).all(|(name, (_, why))| why.contains(name)), "{unread:?}");
        for name in ["gone.yaml", "large.yaml", "odd.yaml"] {
            read(path(name)).expect_err(name);
        }
    }
}
