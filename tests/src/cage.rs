//! A part of rig POD: lets a process run out of memory, with a control group below the test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A control group with very little memory. It is removed when this is dropped.
pub struct Cage(PathBuf);

impl Cage {
    /// A group in which a process can get `bytes` more than it has when it enters. `None` if the test may not make groups; then the test
    /// is reported as skipped.
    pub fn new(bytes: u64) -> Option<Self> {
        let cage = Self::find(bytes);
        if cage.is_none() {
            portcullis_testkit::skip(
                "it limits memory with a control group, which takes root and a group that it may divide",
            );
        }
        cage
    }

    fn find(bytes: u64) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let name = format!("portcullis-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        groups.lines().find_map(|line| {
            // `<number>:<controllers>:<path>`; version 2 has number 0 and no names.
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
            let (roots, limit): (&[&str], _) = match controllers {
                "" => (&["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], "memory.max"),
                "memory" => (&["/sys/fs/cgroup/memory"], "memory.limit_in_bytes"),
                _ => return None,
            };
            roots.iter().find_map(|root| Self::made(&Path::new(root).join(path).join(&name), limit, bytes))
        })
    }

    fn made(folder: &Path, limit: &str, bytes: u64) -> Option<Self> {
        fs::create_dir(folder).ok()?;
        let cage = Self(folder.to_owned());
        fs::write(folder.join(limit), bytes.to_string()).ok()?;
        // The file does not exist if there is no swap.
        let _ = fs::write(folder.join("memory.swap.max"), "0");
        Some(cage)
    }

    /// One of its files. A process enters the group when its id is written to `cgroup.procs`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// How many processes of the group the kernel has killed because the group had no memory left.
    ///
    /// # Panics
    /// When the kernel does not tell.
    pub fn killed(&self) -> u64 {
        // Version 2, then version 1.
        let texts = ["memory.events", "memory.oom_control"].map(|name| fs::read_to_string(self.file(name)));
        let line = texts.iter().flatten().flat_map(|text| text.lines()).find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|number| number.trim().parse().ok()).expect("the kernel tells")
    }

    /// Puts a process into the group.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("a group that was made can be entered");
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        // This fails while a process is in the group; an empty group that is left over is harmless.
        let _ = fs::remove_dir(&self.0);
    }
}
