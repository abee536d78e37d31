//! How much memory the program may use: the lowest limit of its control groups, of either version.

use std::fs;
use std::path::{Path, PathBuf};

/// The memory that the program may use in bytes, and where the number comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TotalMemory {
    /// The number of `--total-memory`.
    Said(u64),
    /// The container's limit.
    Limit(u64),
    /// Half of the machine's memory, where there is no limit: other programs need some as well.
    Half(u64),
}

impl TotalMemory {
    /// Reads the control groups and the machine. To be called while `/proc` and `/sys` can be read.
    pub(crate) fn found() -> Self {
        let text = |path: &Path| fs::read_to_string(path).ok();
        let read = |path: &str| text(Path::new(path)).unwrap_or_default();
        let machine = machine(&read("/proc/meminfo")).unwrap_or(u64::MAX);
        let limit = limit(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"), text);
        match limit.filter(|limit| *limit < machine) {
            Some(limit) => Self::Limit(limit),
            None => Self::Half(machine / 2),
        }
    }

    /// The memory in bytes.
    pub(crate) fn bytes(self) -> u64 {
        let (Self::Said(bytes) | Self::Limit(bytes) | Self::Half(bytes)) = self;
        bytes
    }

    /// Where the number comes from, for the log.
    pub(crate) fn source(self) -> &'static str {
        match self {
            Self::Said(_) => "--total-memory",
            Self::Limit(_) => "the container's limit",
            Self::Half(_) => "half of the machine's",
        }
    }
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The lowest limit on the way from the program's groups to their roots, as far as they are mounted here.
fn limit(groups: &str, mounts: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        // `<number>:<controllers>:<path>`; version 2 has number 0 and no names.
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (kind, option, file) = match controllers {
            "" => ("cgroup2", None, "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                ("cgroup", Some("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let (root, folder) = mounts.lines().find_map(|line| mount(line, kind, option))?;
        // The mount may begin below the root of all groups. If the program's group is outside of the mount, that of the mount is read.
        let path = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        // A text that is not a number, such as `max`, means no limit. So does a number near 2^63, by which version 1 says the same.
        let limit = |folder: &Path| read(&folder.join(file))?.trim().parse().ok().filter(|bytes| *bytes < 1 << 60);
        let below = path.ancestors().map(|part| folder.join(part));
        below.filter_map(|folder| limit(&folder)).min()
    });
    limits.min()
}

/// Root and folder of a line of `mountinfo`, if it mounts groups of this kind.
fn mount<'a>(line: &'a str, kind: &str, option: Option<&str>) -> Option<(&'a Path, PathBuf)> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    let (root, folder) = (fields.next()?, fields.next()?);
    let mut fields = filesystem.split(' ');
    let is_it = fields.next()? == kind
        && option.is_none_or(|option| fields.nth(1).is_some_and(|all| all.split(',').any(|one| one == option)));
    is_it.then(|| (Path::new(root), PathBuf::from(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "10:31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        11 32 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
        14 35 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        20 41 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const V2: &str = "25 20 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn limit_of(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<u64> {
        limit(groups, mounts, |path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| format!("{text}\n"))
        })
    }

    #[test]
    fn the_least_limit_on_the_way_up_counts() {
        let files = [
            ("/sys/fs/cgroup/memory.max", "max"),
            ("/sys/fs/cgroup/kubepods/memory.max", "4096"),
            ("/sys/fs/cgroup/kubepods/pod1/memory.max", "1024"),
            ("/sys/fs/cgroup/kubepods/pod1/container/memory.max", "2048"),
        ];
        assert_eq!(limit_of("0::/kubepods/pod1/container\n", V2, &files), Some(1024));
        assert_eq!(limit_of("0::/kubepods\n", V2, &files), Some(4096));
        assert_eq!(limit_of("0::/\n", V2, &files), None);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        assert_eq!(limit_of("0::/\n", V2, &[("/sys/fs/cgroup/memory.max", "1073741824")]), Some(1 << 30));
        // Without a namespace of groups the path is the node's, and so is the root of what is mounted.
        let mounts = "1 2 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let files = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576")];
        assert_eq!(limit_of("4:memory:/docker/abc\n0::/docker/abc\n", mounts, &files), Some(1 << 20));
    }

    #[test]
    fn version_1_beside_version_2() {
        let groups = "8:pids:/a\n4:cpu,memory:/a/b\n0::/\n";
        let mut files = vec![("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000")];
        assert_eq!(limit_of(groups, V1, &files), Some(5000));
        files[0].1 = "9223372036854771712";
        assert_eq!(limit_of(groups, V1, &files), None);
        assert_eq!(limit_of("", "", &[]), None);
    }

    #[test]
    fn what_the_machine_has() {
        assert_eq!(machine("MemTotal:       24684316 kB\nMemFree: 1 kB\n"), Some(24_684_316 << 10));
        assert_eq!(machine("MemFree: 1 kB\n"), None);
    }
}
