//! The kernel's counters of a process.

use std::fs;

/// The counters of a process with all its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// Page faults that did not read from a disk.
    pub page_faults: u64,
    /// Reads and writes of files, pipes and similar. Those of sockets do not count.
    pub reads_and_writes: u64,
}

impl Counters {
    /// The current counters of process `pid`.
    ///
    /// # Panics
    /// When there is no such process, or it is not ours.
    pub fn of(pid: u32) -> Self {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).expect("the process is there");
        Self {
            page_faults: page_faults(&read("stat")).expect("the kernel counts page faults"),
            reads_and_writes: reads_and_writes(&read("io")).expect("the kernel counts reads and writes"),
        }
    }
}

/// The tenth field of `/proc/<pid>/stat`. The second one, a name in brackets, may have spaces.
fn page_faults(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(7)?.parse().ok()
}

/// The fields `syscr` and `syscw` of `/proc/<pid>/io`.
fn reads_and_writes(io: &str) -> Option<u64> {
    let number = |name: &str| io.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<u64>().ok();
    Some(number("syscr:")? + number("syscw:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_what_the_kernel_writes() {
        let stat = "4711 (a (b) c) S 1 4711 4711 0 -1 4194560 1234 0 5 0 7 8 0 0 20 0 9 0 100 200 300";
        assert_eq!(page_faults(stat), Some(1234));
        assert_eq!(reads_and_writes("rchar: 9\nwchar: 8\nsyscr: 7\nsyscw: 6\nread_bytes: 5\n"), Some(13));
        assert_eq!((page_faults("4711"), reads_and_writes("rchar: 9\n")), (None, None));
    }
}
