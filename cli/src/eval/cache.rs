//! Compiled modules of earlier runs, so that a module is compiled only once.
//!
//! A file is named after the digest of its module and the key of the engine, and nothing else is in the folder: no policies, settings or
//! addresses, so its content cannot decide which policy is asked. The loader compares an artifact with its record before it uses it, and
//! compiles the module again if they do not match.
//!
//! Processes do not wait for each other here. Files are added by rename and removed as a whole; a process that finds only one file of a pair
//! compiles the module.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use portcullis_contract::Digest;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW};
use rustix::process::geteuid;

/// Most artifacts that are kept.
pub(super) const MOST: usize = 64;
/// Most bytes that are kept.
const MOST_BYTES: u64 = 256 << 20;
/// Bytes after which no more artifacts are copied for one run, if the volume is on another file system.
const MOST_COPIED: u64 = 64 << 20;
/// Age at which a temporary file counts as abandoned, in seconds.
const FORGOTTEN: i64 = 3600;
/// The extensions of an artifact's two files: record and machine code. The record comes first, as in the loader.
const PARTS: [&str; 2] = ["json", "cwasm"];

/// The folder. It belongs to this user and no other may write to it, as the evaluator runs what is in it.
pub(super) struct Cache(OwnedFd);

/// The artifacts that a volume was given: the inode of the machine code there, by the files' name without extension.
#[derive(Debug, Default)]
pub(super) struct Given(HashMap<String, u64>);

/// An artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// Its files' name without the extension.
    stem: String,
    /// Size of the two files together.
    bytes: u64,
    /// When it was used last.
    used: (i64, i64),
}

impl Cache {
    /// The folder in `$XDG_CACHE_HOME/portcullis` or `~/.cache/portcullis`; `None` if it cannot be used, so that each run compiles.
    pub(super) fn open() -> Option<Self> {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
        Self::at(&base.join("portcullis/artifacts"))
    }

    fn at(folder: &Path) -> Option<Self> {
        let us = geteuid().as_raw();
        // Under sudo with the user's HOME, root must neither run what is there nor leave folders of its own.
        let nearest = folder.ancestors().find_map(|folder| fs::symlink_metadata(folder).ok())?;
        if ![us, 0].contains(&nearest.uid()) {
            return None;
        }
        DirBuilder::new().recursive(true).mode(0o700).create(folder).ok()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&folder).ok()?;
        (stat.st_uid == us && stat.st_mode & 0o022 == 0).then_some(Self(folder))
    }

    /// Puts the kept artifacts into the folder `artifacts` of a new volume: as links or, up to a limit, as copies.
    pub(super) fn give(&self, artifacts: &Path) -> Given {
        let (mut given, mut copied) = (Given::default(), 0);
        for Entry { stem, .. } in self.entries() {
            let put = |part: &str| {
                let name = format!("{stem}.{part}");
                let to = artifacts.join(&name);
                if rustix::fs::linkat(&self.0, &*name, CWD, &to, AtFlags::empty()).is_ok() {
                    return Ok((0, to));
                }
                let from = rustix::fs::openat(&self.0, &*name, OFlags::RDONLY | OFlags::NOFOLLOW, Mode::empty())?;
                let copy = io::copy(&mut File::from(from), &mut File::create_new(&to)?);
                // The loader would notice an incomplete file and compile again, but a full disk needs its space.
                copy.map(|bytes| (bytes, to.clone())).inspect_err(|_| {
                    let _ = fs::remove_file(&to);
                })
            };
            let put = PARTS.iter().map(|part| put(part)).collect::<io::Result<Vec<_>>>();
            // Another process may have removed it just now.
            let Ok(put) = put else { continue };
            copied += put.iter().map(|(bytes, _)| bytes).sum::<u64>();
            if let Some(inode) = put.last().and_then(|(_, code)| inode(code)) {
                given.0.insert(stem, inode);
            }
            if copied > MOST_COPIED {
                break;
            }
        }
        given
    }

    /// Keeps the artifacts of a volume that it was not `given`, and marks the module that was `used` as recent. Then removes the oldest.
    ///
    /// What cannot be kept is compiled again next time.
    pub(super) fn keep(&self, artifacts: &Path, given: &Given, used: Option<&Digest>) {
        let used = used.map(Digest::hex);
        for name in fs::read_dir(artifacts)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|item| item.file_name().into_string().ok())
        {
            let Some(stem) = stem(&name) else { continue };
            let is_new = inode(&artifacts.join(&name)).is_some_and(|inode| given.0.get(stem) != Some(&inode));
            if is_new {
                let _ = PARTS.iter().try_for_each(|part| self.store(artifacts, &format!("{stem}.{part}")));
            } else if used.as_ref().is_some_and(|used| stem.starts_with(used)) {
                let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
                let now = Timestamps { last_access: now, last_modification: now };
                let _ = rustix::fs::utimensat(&self.0, &*name, &now, AtFlags::SYMLINK_NOFOLLOW);
            }
        }
        self.shrink();
    }

    /// Takes over a file of a volume, as a whole or not at all.
    fn store(&self, artifacts: &Path, name: &str) -> io::Result<()> {
        let (from, temporary) = (artifacts.join(name), format!(".{}-{name}", std::process::id()));
        let put = || -> io::Result<()> {
            if rustix::fs::linkat(CWD, &from, &self.0, &*temporary, AtFlags::empty()).is_err() {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let to = rustix::fs::openat(&self.0, &*temporary, flags, Mode::RUSR | Mode::WUSR)?;
                io::copy(&mut File::open(&from)?, &mut File::from(to))?;
            }
            Ok(rustix::fs::renameat(&self.0, &*temporary, &self.0, name)?)
        };
        let result = put();
        // The temporary file is left after a failure, and after a rename onto a link to the same file, which does nothing.
        let _ = rustix::fs::unlinkat(&self.0, &*temporary, AtFlags::empty());
        result
    }

    /// Removes artifacts beyond the limits, and other files that are old enough to be abandoned.
    fn shrink(&self) {
        let entries = self.entries();
        for entry in beyond(&entries) {
            for part in PARTS {
                let _ = rustix::fs::unlinkat(&self.0, format!("{}.{part}", entry.stem), AtFlags::empty());
            }
        }
        let is_part = |name: &str| {
            let stem = name.rsplit_once('.').map(|(stem, _)| stem);
            stem.is_some_and(|stem| entries.iter().any(|entry| entry.stem == stem))
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        for name in self.names().into_iter().filter(|name| !is_part(name)) {
            if self.stat(&name).is_some_and(|stat| now - modified(&stat).0 > FORGOTTEN) {
                let _ = rustix::fs::unlinkat(&self.0, &*name, AtFlags::empty());
            }
        }
    }

    /// The artifacts, newest first.
    fn entries(&self) -> Vec<Entry> {
        let names = self.names();
        let entry = |name: &String| {
            let stem = stem(name)?.to_owned();
            let files = PARTS.map(|part| self.stat(&format!("{stem}.{part}")));
            let [Some(record), Some(code)] = files else { return None };
            let bytes = [&record, &code].map(|stat| u64::try_from(stat.st_size).unwrap_or(0)).iter().sum();
            Some(Entry { stem, bytes, used: modified(&code) })
        };
        let mut entries: Vec<Entry> = names.iter().filter_map(entry).collect();
        entries.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.stem.cmp(&b.stem)));
        entries
    }

    fn names(&self) -> Vec<String> {
        let items = Dir::read_from(&self.0).into_iter().flatten().flatten();
        items.filter_map(|item| Some(item.file_name().to_str().ok()?.to_owned())).collect()
    }

    /// The metadata of a file; `None` unless it is a regular file that belongs to this user.
    fn stat(&self, name: &str) -> Option<Stat> {
        let stat = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_ours =
            stat.st_uid == geteuid().as_raw() && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_ours.then_some(stat)
    }
}

/// The name without extension of a file with machine code; `None` for other files.
fn stem(name: &str) -> Option<&str> {
    let stem = name.strip_suffix(".cwasm")?;
    stem.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-').then_some(stem)
}

/// The entries beyond the limits; `entries` are sorted, newest first.
fn beyond(entries: &[Entry]) -> impl Iterator<Item = &Entry> {
    let mut bytes = 0_u64;
    entries.iter().enumerate().filter_map(move |(index, entry)| {
        bytes = bytes.saturating_add(entry.bytes);
        (index >= MOST || bytes > MOST_BYTES).then_some(entry)
    })
}

fn modified(stat: &Stat) -> (i64, i64) {
    (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0))
}

fn inode(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file).map(|metadata| metadata.ino())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn cache(root: &Path) -> Cache {
        Cache::at(&root.join("cache/artifacts")).expect("it is ours")
    }

    /// The folder of a new volume, with what the cache has given it.
    fn volume(cache: &Cache) -> (tempfile::TempDir, Given) {
        let folder = tempfile::tempdir().expect("a folder");
        let given = cache.give(folder.path());
        (folder, given)
    }

    fn write(folder: &Path, stem: &str, code: &str) {
        fs::write(folder.join(format!("{stem}.json")), "record").expect("writes");
        fs::write(folder.join(format!("{stem}.cwasm")), code).expect("writes");
    }

    fn read(folder: &Path, stem: &str) -> Option<String> {
        fs::read_to_string(folder.join(format!("{stem}.json"))).ok()?;
        fs::read_to_string(folder.join(format!("{stem}.cwasm"))).ok()
    }

    #[test]
    fn what_one_volume_made_the_next_one_has_and_another_replaces_it() {
        let root = tempfile::tempdir().expect("a folder");
        let cache = cache(root.path());
        let (first, given) = volume(&cache);
        write(first.path(), "a-1", "code");
        fs::write(first.path().join("manifest.cwasm"), "no artifact").expect("writes");
        fs::write(first.path().join("b-1.cwasm"), "without a record").expect("writes");
        cache.keep(first.path(), &given, None);
        assert_eq!(cache.entries().len(), 1);

        let (second, given) = volume(&cache);
        assert_eq!(read(second.path(), "a-1").as_deref(), Some("code"));
        fs::remove_file(second.path().join("a-1.cwasm")).expect("removes");
        write(second.path(), "a-1", "made again");
        cache.keep(second.path(), &given, None);
        assert_eq!(read(volume(&cache).0.path(), "a-1").as_deref(), Some("made again"));
        let left: Vec<_> = cache.names().into_iter().filter(|name| name.ends_with("-a-1.cwasm")).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn what_was_used_is_the_newest() {
        let root = tempfile::tempdir().expect("a folder");
        let cache = cache(root.path());
        let (folder, given) = volume(&cache);
        let stems = ["a", "b"].map(|module| format!("{}-1", Digest::of(module.as_bytes()).hex()));
        for (age, stem) in stems.iter().enumerate() {
            write(folder.path(), stem, "code");
            let time = UNIX_EPOCH + std::time::Duration::from_secs(age as u64);
            let file = File::options().write(true).open(folder.path().join(format!("{stem}.cwasm")));
            file.and_then(|file| file.set_modified(time)).expect("dates");
        }
        cache.keep(folder.path(), &given, None);
        let newest = || cache.entries().remove(0).stem;
        assert_eq!(newest(), stems[1]);
        let (folder, given) = volume(&cache);
        cache.keep(folder.path(), &given, Some(&Digest::of(b"a")));
        assert_eq!(newest(), stems[0]);
    }

    #[test]
    fn the_oldest_go_by_number_and_by_size() {
        let entry = |age: usize, bytes: u64| Entry { stem: age.to_string(), bytes, used: (0, 0) };
        let many: Vec<_> = (0..MOST + 2).map(|age| entry(age, 1)).collect();
        let gone = |entries: &[Entry]| beyond(entries).map(|entry| entry.stem.clone()).collect::<Vec<_>>();
        assert_eq!(gone(&many), [MOST.to_string(), (MOST + 1).to_string()]);
        assert_eq!(gone(&[entry(0, MOST_BYTES / 2), entry(1, MOST_BYTES / 2), entry(2, 1)]), ["2"]);
        assert_eq!(gone(&[entry(0, MOST_BYTES + 1)]), ["0"]);
    }

    #[test]
    fn files_beyond_the_limit_and_forgotten_ones_are_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let cache = cache(root.path());
        let folder = root.path().join("cache/artifacts");
        for number in 0..MOST + 3 {
            write(&folder, &format!("{number:x}-1"), "code");
        }
        for (name, time) in [(".1-a.json", UNIX_EPOCH), (".2-a.json", SystemTime::now())] {
            fs::write(folder.join(name), "half").expect("writes");
            let file = File::options().write(true).open(folder.join(name));
            file.and_then(|file| file.set_modified(time)).expect("dates");
        }
        cache.shrink();
        assert_eq!(cache.entries().len(), MOST);
        assert_eq!(cache.names().iter().filter(|name| name.ends_with("json")).count(), MOST + 1);
    }

    #[test]
    fn a_folder_that_others_may_write_to_and_a_link_are_not_used() {
        let root = tempfile::tempdir().expect("a folder");
        drop(cache(root.path()));
        let folder = root.path().join("cache/artifacts");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("is ours");
        assert!(Cache::at(&folder).is_none());
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("is ours");
        assert!(Cache::at(&folder).is_some());
        symlink(&folder, root.path().join("link")).expect("links");
        assert!(Cache::at(&root.path().join("link")).is_none());
        fs::write(root.path().join("file"), "").expect("writes");
        assert!(Cache::at(&root.path().join("file/artifacts")).is_none());
    }
}
