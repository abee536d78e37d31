//! The processor time that a process has used, and the memory that it has.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, bail};
use portcullis_testkit::stat_fields;

/// The resources that a process has used so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// The processor time of all threads, user and system.
    pub(crate) cpu: Duration,
}

impl Usage {
    /// The usage of a process of this machine.
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).context("a process that is measured has ended")?;
        Self::parse(&text).context("the times of a process have an unknown format")
    }

    fn parse(text: &str) -> Option<Self> {
        // The first is number 3.
        let number = |field: usize| stat_fields(text)?.nth(field - 3)?.parse::<u64>().ok();
        let ticks = number(14)? + number(15)?;
        Some(Self { cpu: Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()) })
    }
}

/// The resident memory of a process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// All of its memory.
    pub(crate) resident: u64,
    /// The part that belongs to no file.
    pub(crate) anonymous: u64,
    /// The part that is mapped from files, which the kernel may drop.
    pub(crate) file: u64,
}

impl Memory {
    /// The memory that a process of this machine has now.
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).context("a process that is measured has ended")?;
        Self::parse(&text).context("the kernel does not report how much memory a process has")
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let kib = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(kib.split_whitespace().next()?.parse::<u64>().ok()? << 10)
        };
        Some(Self { resident: bytes("VmRSS")?, anonymous: bytes("RssAnon")?, file: bytes("RssFile")? })
    }
}

/// Bytes in MiB.
pub(crate) fn mib(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes >> 10).unwrap_or(u32::MAX)) / 1024.0
}

/// The child of this process whose program has this name.
pub(crate) fn child_named(name: &str) -> anyhow::Result<u32> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|text| text.parse::<u32>().ok()) else { continue };
        // Processes may have ended in the meantime.
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let parent = stat_fields(&text).and_then(|mut fields| fields.nth(1)?.parse::<u32>().ok());
        let is_child = parent == Some(std::process::id());
        if is_child && text.contains(&format!("({name})")) {
            return Ok(pid);
        }
    }
    bail!("this process has no child with the name {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_time() {
        let text = "7 (a (b) c) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 1 1 1";
        let usage = Usage::parse(text).expect("reads");
        assert_eq!(usage.cpu.as_millis() * u128::from(rustix::param::clock_ticks_per_second()), 300_000);
        assert!(Usage::of(std::process::id()).is_ok());
    }

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "Name:\ta\nVmHWM:\t   900 kB\nVmRSS:\t   700 kB\nRssAnon:\t   500 kB\nRssFile:\t   199 kB\nRssShmem:\t     1 kB\n";
        let memory = Memory { resident: 700 << 10, anonymous: 500 << 10, file: 199 << 10 };
        assert_eq!(Memory::parse(text), Some(memory));
        assert_eq!(Memory::parse("Name:\ta\nState:\tZ (zombie)\n"), None);
        assert!(Memory::of(std::process::id()).is_ok_and(|memory| memory.anonymous > 0));
        assert_eq!(mib(3 << 19), 1.5);
    }
}
