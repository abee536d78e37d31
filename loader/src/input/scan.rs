//! One scan of a folder of policies: which files are there, what they say, which modules they name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portcullis_contract::{Digest, PolicyId};
use portcullis_process::files;
use portcullis_yaml::SyntaxError;

use super::manifest::Entry;
use super::{Snapshot, Stamp, Unreadable, manifest, policies_yml};
use crate::content::Body;
use crate::source::Reference;

/// Largest file of policies, in bytes.
const MAX_FILE: u64 = 4 << 20;
/// Most files that are read.
const MAX_FILES: usize = 20_000;
/// A file written less than this ago may be written again without a change of its times.
const FRESH: Duration = Duration::from_secs(2);

/// Where policies are read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directory {
    /// Policy manifests in this folder.
    Manifests(PathBuf),
    /// One Kubewarden `policies.yml`.
    PoliciesYml(PathBuf),
}

/// What the last scan saw, so that an unchanged file is not read again.
#[derive(Default)]
pub(crate) struct Scanner {
    files: BTreeMap<String, File>,
}

/// A summary of a scan, to notice changes.
#[derive(PartialEq, Eq)]
pub(crate) struct Seen {
    /// Each file's name, digest, and whether it was read.
    files: Vec<(String, Digest, bool)>,
    stamps: BTreeMap<PathBuf, Option<Stamp>>,
}

struct File {
    stamp: Stamp,
    hash: Digest,
    content: Result<Vec<Entry>, Unreadable>,
    /// Whether it held policies when it was last read. If such a file is then empty, that is a problem and not the end of its policies.
    had_policies: bool,
}

impl Directory {
    /// The folder that holds the policies. Relative paths of modules begin there.
    pub fn folder(&self) -> &Path {
        match self {
            Self::Manifests(folder) => folder,
            Self::PoliciesYml(file) => file.parent().unwrap_or(file),
        }
    }
}

impl Scanner {
    /// Scans again. Only module files below `roots` are looked at.
    ///
    /// # Errors
    /// When the folder itself cannot be listed. Nothing is known then, and no policy may be taken for deleted.
    pub(crate) fn scan(&mut self, directory: &Directory, roots: &[PathBuf]) -> Result<Snapshot, files::FileError> {
        let mut snapshot = Snapshot::default();
        let (folder, names) = match directory {
            Directory::Manifests(folder) => (folder.as_path(), list(folder, &mut snapshot)?),
            Directory::PoliciesYml(file) => {
                let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                // A file that is missing for a moment must not look like an empty one.
                fs::metadata(file).map_err(files::FileError::new("read", file))?;
                (directory.folder(), vec![name])
            }
        };
        let mut before = std::mem::take(&mut self.files);
        for name in names {
            let file = look(directory, folder, &name, before.remove(&name));
            self.files.insert(name, file);
        }
        collect(&self.files, &mut snapshot);
        let parts = snapshot.policies.iter().flat_map(|policy| &policy.body).flat_map(Body::parts);
        let paths = parts.filter_map(|(_, part)| match part.reference.as_ref()? {
            Reference::File(path) => Some(path.clone()),
            _ => None,
        });
        let paths: BTreeSet<PathBuf> = paths.filter(|path| is_below(roots, path)).collect();
        snapshot.stamps = paths.into_iter().map(|path| (path.clone(), Stamp::of(&path))).collect();
        Ok(snapshot)
    }

    /// Whatever must be equal for two snapshots to be the same.
    pub(crate) fn seen(&self, snapshot: &Snapshot) -> Seen {
        let file = |(name, file): (&String, &File)| (name.clone(), file.hash, file.content.is_ok());
        Seen { files: self.files.iter().map(file).collect(), stamps: snapshot.stamps.clone() }
    }
}

/// The names of the files to read, in order.
fn list(folder: &Path, snapshot: &mut Snapshot) -> Result<Vec<String>, files::FileError> {
    let mut names = Vec::new();
    for item in fs::read_dir(folder).map_err(files::FileError::new("list", folder))? {
        let item = item.map_err(files::FileError::new("list", folder))?;
        let Ok(name) = item.file_name().into_string() else { continue };
        let extension = Path::new(&name).extension().and_then(|e| e.to_str()).unwrap_or_default();
        if name.starts_with('.') || !matches!(extension, "yaml" | "yml" | "json") || item.path().is_dir() {
            continue;
        }
        if names.len() == MAX_FILES {
            let text = format!("the folder has more than {MAX_FILES} files of policies; the rest is not read");
            snapshot.problems.push((".".to_owned(), text));
            break;
        }
        names.push(name);
    }
    names.sort();
    Ok(names)
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
enum FileProblem {
    #[error("it is a symbolic link that leaves the folder")]
    Elsewhere,
    #[error("failed to find it: {0}")]
    NotFound(io::ErrorKind),
    #[error("it is gone")]
    Gone,
    #[error("failed to {} it: {}", .0.action, .0.source)]
    Unreadable(files::FileError),
    /// Editors and copies empty a file before they fill it.
    #[error("the file is empty: delete it if its policies should go")]
    Emptied,
    #[error("the file is not UTF-8: byte {0} is wrong")]
    NotText(usize),
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
}

fn look(directory: &Directory, folder: &Path, name: &str, before: Option<File>) -> File {
    let path = folder.join(name);
    let had_policies = before.as_ref().is_some_and(|file| file.had_policies);
    let failed = |problem: FileProblem, stamp| {
        let message = portcullis_contract::clean(&problem.to_string(), portcullis_contract::Failure::MAX_MESSAGE);
        let hash = Digest::of(message.as_bytes());
        File { stamp, hash, content: Err(Unreadable { message, hash }), had_policies }
    };
    let nothing = Stamp { device: 0, inode: 0, size: 0, modified: (0, 0), changed: (0, 0), fresh: false };
    // A mounted ConfigMap is a folder of symbolic links; they are followed as long as they stay in the folder.
    let real = match (path.canonicalize(), folder.canonicalize()) {
        (Ok(real), Ok(folder)) if real.starts_with(&folder) => real,
        (Ok(_), Ok(_)) => return failed(FileProblem::Elsewhere, nothing),
        (Err(error), _) | (_, Err(error)) => return failed(FileProblem::NotFound(error.kind()), nothing),
    };
    let Some(stamp) = Stamp::of(&real) else { return failed(FileProblem::Gone, nothing) };
    if let Some(before) = before.as_ref()
        && before.stamp == stamp
        && !stamp.fresh
        && before.content.is_ok()
    {
        return before_with_stamp(before, stamp);
    }
    let bytes = match files::read_regular(&real, MAX_FILE) {
        Ok(bytes) => bytes,
        Err(error) => return failed(FileProblem::Unreadable(error), stamp),
    };
    let hash = Digest::of(&bytes);
    if let Some(before) = before.as_ref()
        && before.hash == hash
    {
        return before_with_stamp(before, stamp);
    }
    if had_policies && bytes.iter().all(u8::is_ascii_whitespace) {
        return failed(FileProblem::Emptied, stamp);
    }
    match read(directory, &bytes, name, folder) {
        Ok(entries) => {
            let had_policies = entries.iter().any(|entry| matches!(entry, Entry::Policy(_)));
            File { stamp, hash, content: Ok(entries), had_policies }
        }
        Err(problem) => {
            File { stamp, hash, content: Err(Unreadable { message: problem.to_string(), hash }), had_policies }
        }
    }
}

fn before_with_stamp(before: &File, stamp: Stamp) -> File {
    File { stamp, hash: before.hash, content: before.content.clone(), had_policies: before.had_policies }
}

fn read(directory: &Directory, bytes: &[u8], name: &str, folder: &Path) -> Result<Vec<Entry>, FileProblem> {
    let text = std::str::from_utf8(bytes).map_err(|error| FileProblem::NotText(error.valid_up_to()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let documents = if Path::new(name).extension().is_some_and(|extension| extension == "json") {
        portcullis_yaml::json_documents(text)
    } else {
        portcullis_yaml::documents(text)
    };
    let mut entries = Vec::new();
    for document in documents? {
        match directory {
            Directory::Manifests(_) => entries.push(manifest::entry(document, name, folder)),
            Directory::PoliciesYml(_) => entries.extend(policies_yml::entries(document, name, folder)),
        }
    }
    Ok(entries)
}

/// Joins the policies of all files. If several files define the same id, the first file wins.
fn collect(files: &BTreeMap<String, File>, snapshot: &mut Snapshot) {
    let mut owners: HashMap<PolicyId, &str> = HashMap::new();
    for (name, file) in files {
        let entries = match &file.content {
            Ok(entries) => entries,
            Err(unreadable) => {
                snapshot.unreadable.insert(name.clone(), unreadable.clone());
                continue;
            }
        };
        for entry in entries {
            match entry {
                Entry::Other => {}
                Entry::Problem(text) => snapshot.problems.push((name.clone(), text.clone())),
                Entry::Policy(policy) => match owners.get(&policy.id) {
                    Some(owner) => {
                        let text = format!("{} is already defined in {owner}; this one is not used", policy.id);
                        snapshot.problems.push((name.clone(), text));
                    }
                    None => {
                        owners.insert(policy.id.clone(), name);
                        snapshot.policies.push((**policy).clone());
                    }
                },
            }
        }
    }
}

/// Whether a module file, or the link that leads to one, is below one of the canonical folders `roots`.
fn is_below(roots: &[PathBuf], path: &Path) -> bool {
    let below = |path: &Path| roots.iter().any(|root| path.starts_with(root));
    // The policy may name either by a path with links in it. The parent folder is enough, as the file may be missing for a moment.
    let real = |path: &Path| path.canonicalize().is_ok_and(|real| below(&real));
    below(path) || path.parent().is_some_and(real) || real(path)
}

impl Stamp {
    /// The stamp of the file that `path` leads to; `None` where there is no file.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        // The change time matters too: a file that was moved here keeps its modification time.
        let nanos = u32::try_from(metadata.ctime_nsec()).unwrap_or(0);
        let changed = UNIX_EPOCH.checked_add(Duration::new(u64::try_from(metadata.ctime()).unwrap_or(0), nanos));
        let newest = metadata.modified().ok().zip(changed).map(|(modified, changed)| modified.max(changed));
        let age = newest.and_then(|newest| SystemTime::now().duration_since(newest).ok());
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            fresh: age.is_none_or(|age| age < FRESH),
        })
    }

    /// A stamp that differs from others only in the size.
    #[cfg(test)]
    pub(crate) fn of_size(size: u64) -> Self {
        Self { device: 0, inode: 0, size, modified: (0, 0), changed: (0, 0), fresh: false }
    }
}

#[cfg(test)]
mod tests {
    use portcullis_contract::Reason;

    use super::*;

    fn manifest(name: &str, module: &str) -> String {
        format!(
            "apiVersion: policies.portcullis.dev/v1alpha1\nkind: ClusterPolicy\nmetadata: {{name: {name}}}\nspec:\n  \
             module: {module}\n  rules: [{{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}}]\n"
        )
    }

    struct Folder {
        folder: tempfile::TempDir,
        scanner: Scanner,
    }

    impl Folder {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().expect("a folder"), scanner: Scanner::default() }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.folder.path().join(name), text).expect("writes");
        }

        fn scan(&mut self) -> Snapshot {
            let path = self.folder.path().to_owned();
            self.scanner.scan(&Directory::Manifests(path.clone()), &[path]).expect("scans")
        }

        fn ids(&mut self) -> Vec<String> {
            self.scan().policies.iter().map(|policy| policy.id.to_string()).collect()
        }
    }

    #[test]
    fn names_that_count() {
        let mut folder = Folder::new();
        for name in ["a.yaml", "b.yml", "c.json", ".d.yaml", "e.txt", "f.yaml~"] {
            let text = manifest(&name.replace(['.', '~'], ""), "a.wasm");
            let json = portcullis_yaml::documents(&text).expect("reads")[0].value.to_string();
            folder.write(name, if name == "c.json" { &json } else { &text });
        }
        fs::create_dir(folder.folder.path().join("g.yaml")).expect("makes");
        assert_eq!(folder.ids(), ["cluster/ayaml", "cluster/byml", "cluster/cjson"]);
    }

    #[test]
    fn the_first_file_has_the_id() {
        let mut folder = Folder::new();
        folder.write("a.yaml", &manifest("x", "a.wasm"));
        folder.write("b.yaml", &format!("{}---\n{}", manifest("x", "b.wasm"), manifest("y", "b.wasm")));
        let snapshot = folder.scan();
        assert_eq!(snapshot.policies.len(), 2);
        assert_eq!(snapshot.policies[0].file, "a.yaml");
        assert_eq!(snapshot.problems[0].0, "b.yaml");
    }

    #[test]
    fn a_broken_file_is_told_and_mended() {
        let mut folder = Folder::new();
        folder.write("a.yaml", &manifest("x", "a.wasm"));
        assert_eq!(folder.ids(), ["cluster/x"]);
        folder.write("a.yaml", "a: [");
        let snapshot = folder.scan();
        assert!(snapshot.policies.is_empty() && snapshot.unreadable.contains_key("a.yaml"));
        folder.write("a.yaml", &manifest("x", "b.wasm"));
        assert_eq!(folder.ids(), ["cluster/x"]);
    }

    #[test]
    fn an_emptied_file_keeps_its_policies_and_a_new_empty_one_is_nothing() {
        let mut folder = Folder::new();
        folder.write("a.yaml", &manifest("x", "a.wasm"));
        folder.write("b.yaml", "");
        folder.scan();
        folder.write("a.yaml", "\n");
        let snapshot = folder.scan();
        assert_eq!(snapshot.unreadable.keys().collect::<Vec<_>>(), ["a.yaml"]);
        assert_eq!(folder.scan().unreadable.len(), 1);
    }

    #[test]
    fn v20_links_that_leave_and_special_files_are_told() {
        let mut folder = Folder::new();
        std::os::unix::fs::symlink("/dev/zero", folder.folder.path().join("a.yaml")).expect("links");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            folder.folder.path().join("b.yaml"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .expect("makes");
        assert_eq!(folder.scan().unreadable.len(), 2);
    }

    #[test]
    fn a_mounted_config_map_is_followed() {
        let mut folder = Folder::new();
        let data = folder.folder.path().join("..data");
        fs::create_dir(&data).expect("makes");
        fs::write(data.join("a.yaml"), manifest("x", "a.wasm")).expect("writes");
        std::os::unix::fs::symlink("..data/a.yaml", folder.folder.path().join("a.yaml")).expect("links");
        assert_eq!(folder.ids(), ["cluster/x"]);
    }

    #[test]
    fn a_rebuilt_module_changes_its_stamp() {
        let mut folder = Folder::new();
        folder.write("a.yaml", &manifest("x", "a.wasm"));
        assert_eq!(folder.scan().stamps.values().collect::<Vec<_>>(), [&None]);
        folder.write("a.wasm", "1");
        let first = folder.scan().stamps;
        assert_eq!(folder.scan().stamps, first);
        folder.write("a.wasm", "22");
        assert_ne!(folder.scan().stamps, first);
    }

    #[test]
    fn a_module_is_watched_by_whatever_way_it_is_named() {
        let mut folder = Folder::new();
        let elsewhere = tempfile::tempdir().expect("a folder");
        let link = elsewhere.path().join("link");
        std::os::unix::fs::symlink(folder.folder.path(), &link).expect("links");
        let module = link.join("a.wasm");
        folder.write("a.yaml", &manifest("x", module.to_str().expect("text")));
        assert_eq!(folder.scan().stamps.get(&module), Some(&None));
        folder.write("a.wasm", "1");
        let first = folder.scan().stamps;
        assert!(first[&module].is_some());
        let other = folder.folder.path().join("b.wasm");
        fs::write(&other, "2").expect("writes");
        fs::remove_file(folder.folder.path().join("a.wasm")).expect("removes");
        std::os::unix::fs::symlink(&other, folder.folder.path().join("a.wasm")).expect("links");
        assert_ne!(folder.scan().stamps, first, "the link leads to another file");
        folder.write("a.yaml", &manifest("x", elsewhere.path().join("c.wasm").to_str().expect("text")));
        assert!(folder.scan().stamps.is_empty(), "nobody looks elsewhere");
    }

    #[test]
    fn a_file_above_the_limit_is_told() {
        let mut folder = Folder::new();
        folder.write("a.yaml", &" ".repeat(5 << 20));
        assert_eq!(folder.scan().unreadable.len(), 1);
    }

    #[test]
    fn settings_above_their_limit_fail_their_policy_only() {
        let mut folder = Folder::new();
        folder.write(
            "a.yaml",
            &format!(
                "{}  settings: {{a: {}}}\n---\n{}",
                manifest("x", "a.wasm"),
                "x".repeat(1 << 20),
                manifest("y", "a.wasm")
            ),
        );
        let policies = folder.scan().policies;
        assert_eq!(policies[0].body.as_ref().expect_err("a problem").reason, Reason::SettingsInvalid);
        assert!(policies[1].body.is_ok());
    }

    #[test]
    fn a_folder_that_is_gone_is_an_error_and_not_empty() {
        assert!(Scanner::default().scan(&Directory::Manifests("/nowhere".into()), &[]).is_err());
    }
}
