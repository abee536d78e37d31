//! A Secret in a folder, as the kubelet mounts it: files are links into a folder that is swapped as a whole.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A folder, and the content that was put there last.
pub(crate) struct Mount {
    folder: PathBuf,
    content: BTreeMap<String, Vec<u8>>,
    count: u32,
}

impl Mount {
    /// An empty mount; the folder is created.
    pub(crate) fn new(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, content: BTreeMap::new(), count: 0 })
    }

    /// Puts these files there, unless they are there already. A reader sees either all of the old files or all of the
    /// new ones.
    pub(crate) fn put(&mut self, content: BTreeMap<String, Vec<u8>>) -> io::Result<()> {
        if content == self.content {
            return Ok(());
        }
        let old = format!("..{}", self.count);
        self.count += 1;
        let new = format!("..{}", self.count);
        let folder = self.folder.join(&new);
        fs::create_dir_all(&folder)?;
        for (name, bytes) in &content {
            fs::write(folder.join(name), bytes)?;
        }
        link(&self.folder, &new, "..data")?;
        for name in content.keys().filter(|name| !self.content.contains_key(*name)) {
            link(&self.folder, &format!("..data/{name}"), name)?;
        }
        for name in self.content.keys().filter(|name| !content.contains_key(*name)) {
            fs::remove_file(self.folder.join(name))?;
        }
        if !self.content.is_empty() {
            fs::remove_dir_all(self.folder.join(old))?;
        }
        self.content = content;
        Ok(())
    }
}

/// Makes a link, which replaces an existing one atomically.
fn link(folder: &Path, target: &str, name: &str) -> io::Result<()> {
    let temporary = folder.join(format!("..{name}_tmp"));
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => symlink(target, &temporary)?,
    }
    fs::rename(&temporary, folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(pairs: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        pairs.iter().map(|&(name, text)| (name.to_owned(), text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn files_are_swapped_together() {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Mount::new(folder.path().join("tls")).unwrap();
        mount.put(content(&[("tls.crt", "one"), ("tls.key", "first")])).unwrap();
        mount.put(content(&[("tls.crt", "two"), ("ca.crt", "third")])).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join("tls").join(name)).ok();
        assert_eq!(
            (read("tls.crt"), read("ca.crt"), read("tls.key")),
            (Some("two".into()), Some("third".into()), None)
        );
        let mut names: Vec<_> = fs::read_dir(folder.path().join("tls"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["..2", "..data", "ca.crt", "tls.crt"]);
    }
}
