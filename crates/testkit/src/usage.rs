//! The resources that a process uses, from `/proc`: for I5, and for limits on memory.

use std::fmt;
use std::fs;

use crate::stat::stat_fields;

/// A snapshot of one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory, in bytes.
    pub resident: u64,
    /// The most resident memory that the process ever had, in bytes.
    pub peak: u64,
    /// Resident memory that is not backed by a file, in bytes. The kernel counts it roughly.
    pub anonymous: u64,
    /// The number of open descriptors.
    pub descriptors: u64,
    /// The number of threads.
    pub threads: u64,
}

impl Usage {
    /// The current usage of process `pid`.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        Self {
            resident: number("VmRSS:") << 10,
            peak: number("VmHWM:") << 10,
            anonymous: number("RssAnon:") << 10,
            descriptors: u64::try_from(descriptors).unwrap_or(u64::MAX),
            threads: number("Threads:"),
        }
    }

    /// [`Usage::anonymous`] of process `pid`, exact to the page: for leaks that are small.
    ///
    /// # Panics
    /// When there is no such process, or this process may not read it.
    pub fn exact_anonymous(pid: u32) -> u64 {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process is there");
        let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("the kernel tells");
        line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).expect("a number of KiB") << 10
    }

    /// How many page faults without reading from a disk process `pid` has had so far, in all its threads.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn page_faults(pid: u32) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process is there");
        page_faults(&stat).expect("the kernel counts page faults")
    }

    /// Whether this is at most a tenth above `before` (I5), with some slack for small numbers.
    pub fn is_back_to(&self, before: &Self) -> bool {
        let back = |now: u64, before: u64, slack: u64| now <= before + before / 10 + slack;
        back(self.resident, before.resident, 8 << 20)
            && back(self.descriptors, before.descriptors, 4)
            && back(self.threads, before.threads, 2)
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resident, peak, descriptors, threads, .. } = self;
        let mib = |bytes: &u64| bytes >> 20;
        write!(
            f,
            "{} MiB resident (peak {} MiB), {descriptors} descriptors, {threads} threads",
            mib(resident),
            mib(peak)
        )
    }
}

/// The tenth field of `/proc/<pid>/stat`.
fn page_faults(stat: &str) -> Option<u64> {
    stat_fields(stat)?.nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_faults_are_read_from_what_the_kernel_writes() {
        let stat = "4711 (a (b) c) S 1 4711 4711 0 -1 4194560 1234 0 5 0 7 8 0 0 20 0 9 0 100 200 300";
        assert_eq!((page_faults(stat), page_faults("4711")), (Some(1234), None));
    }
}
