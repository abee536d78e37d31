//! Processes that may outlive their parent, identified so that a recycled process id is never mistaken for one of them.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use portcullis_testkit::stat_fields;

use crate::Error;

/// How long a killed process may take to end. It can only be waiting for its disk.
const GONE: Duration = Duration::from_secs(120);

/// The identity of a process: its id, and when it started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// Clock ticks since the machine started.
    pub(crate) started: u64,
    /// The id of the machine's boot.
    pub(crate) boot: String,
}

impl ProcessId {
    /// The process that has this id now; a zombie has ended.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let started = started(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        Some(Self { pid, started, boot })
    }

    /// This process.
    pub(crate) fn own() -> Self {
        Self::of(std::process::id()).expect("/proc tells about the process that reads it")
    }

    pub(crate) fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// The memory that it has for itself or shares, in bytes.
    pub(crate) fn memory(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    }

    /// Kills it, if its id still belongs to it, and waits until it is gone.
    pub(crate) fn kill(&self) -> Result<(), Error> {
        // The handle is taken first, so that `is_alive` checks the same process that gets the signal.
        let Some(handle) = self.handle() else { return Ok(()) };
        if !self.is_alive() || pidfd_send_signal(&handle, Signal::KILL).is_err() {
            return Ok(());
        }
        let start = Instant::now();
        while start.elapsed() < GONE {
            let pause = Timespec { tv_sec: 1, tv_nsec: 0 };
            // A handle becomes readable when its process ends. After an interruption it is checked again.
            let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&pause));
            if !self.is_alive() {
                return Ok(());
            }
        }
        Err(Error::StillAlive(self.pid, GONE))
    }

    fn handle(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from).ok()
    }
}

/// The start time in a line of `/proc/PID/stat`, the 19th field after the state; `None` if the process has ended.
fn started(stat: &str) -> Option<u64> {
    let mut fields = stat_fields(stat)?;
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const STAT: &str = "42 (a) b) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 1 2";

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        assert_eq!(started(STAT), Some(9876));
        assert_eq!(started(&STAT.replace(") S", ") Z")), None);
        assert_eq!(started("nonsense"), None);
    }

    #[test]
    fn a_killed_process_has_gone() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        assert!(id.is_alive());
        id.kill().unwrap();
        assert!(!id.is_alive());
        child.wait().unwrap();
        id.kill().unwrap();
    }

    #[test]
    fn another_process_of_the_same_number_is_left_alone() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        let earlier = ProcessId { started: id.started - 1, ..id.clone() };
        assert!(!earlier.is_alive());
        earlier.kill().unwrap();
        assert!(id.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
