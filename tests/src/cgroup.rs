//! A part of rig POD: lets a process run out of memory or processor time, with a control group below the test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A control group with very little of something. It is removed when this is dropped.
pub struct Cgroup(PathBuf);

/// What a group has little of.
struct Limit {
    /// Its controller in version 1 of control groups.
    controller: &'static str,
    /// The files of version 2, the unified hierarchy, with what is written to them.
    unified: Vec<(&'static str, String)>,
    /// The files of version 1, the legacy hierarchy.
    legacy: Vec<(&'static str, String)>,
}

impl Cgroup {
    /// A group in which a process can get `bytes` more than it has when it enters. `None` if the test may not make groups; then the test
    /// is reported as skipped.
    pub fn of_memory(bytes: u64) -> Option<Self> {
        let cgroup = Self::find(&Limit {
            controller: "memory",
            unified: vec![("memory.max", bytes.to_string())],
            legacy: vec![("memory.limit_in_bytes", bytes.to_string())],
        });
        if let Some(cgroup) = &cgroup {
            // The file does not exist if there is no swap.
            let _ = fs::write(cgroup.file("memory.swap.max"), "0");
        } else {
            portcullis_testkit::skip(
                "it limits memory with a control group, which takes root and a group that it may divide",
            );
        }
        cgroup
    }

    /// A group whose processes together have a tenth of one processor: 10 ms of each 100 ms. `None` if the test may not make groups.
    pub fn of_a_tenth_of_a_processor() -> Option<Self> {
        Self::find(&Limit {
            controller: "cpu",
            unified: vec![("cpu.max", "10000 100000".to_owned())],
            legacy: vec![("cpu.cfs_period_us", "100000".to_owned()), ("cpu.cfs_quota_us", "10000".to_owned())],
        })
    }

    fn find(limit: &Limit) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let name = format!("portcullis-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        groups.lines().find_map(|line| {
            // `<number>:<controllers>:<path>`; version 2 has number 0 and no names.
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
            let (roots, files) = if controllers.is_empty() {
                (vec!["/sys/fs/cgroup".to_owned(), "/sys/fs/cgroup/unified".to_owned()], &limit.unified)
            } else if controllers.split(',').any(|controller| controller == limit.controller) {
                (vec![format!("/sys/fs/cgroup/{}", limit.controller)], &limit.legacy)
            } else {
                return None;
            };
            roots.iter().find_map(|root| Self::made(&Path::new(root).join(path).join(&name), files))
        })
    }

    fn made(folder: &Path, files: &[(&str, String)]) -> Option<Self> {
        fs::create_dir(folder).ok()?;
        let cgroup = Self(folder.to_owned());
        for (file, value) in files {
            fs::write(cgroup.file(file), value).ok()?;
        }
        Some(cgroup)
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

    /// How many times the kernel has stopped the processes of the group because their share of processor time was used up.
    ///
    /// # Panics
    /// When the kernel does not tell.
    pub fn throttled(&self) -> u64 {
        let text = fs::read_to_string(self.file("cpu.stat")).expect("the kernel tells");
        let number = text.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        number.and_then(|number| number.trim().parse().ok()).expect("the kernel tells")
    }

    /// Puts a process back into the group in which the test is.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn release(&self, pid: u32) {
        let outside = self.0.parent().expect("it is below the group of the test").join("cgroup.procs");
        fs::write(outside, pid.to_string()).expect("the group of the test can be entered");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // This fails while a process is in the group; an empty group that is left over is harmless.
        let _ = fs::remove_dir(&self.0);
    }
}
