//! The resources that a process has used so far.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, bail};

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
        let number = |field: usize| fields(text)?.get(field - 3)?.parse::<u64>().ok();
        let ticks = number(14)? + number(15)?;
        Some(Self { cpu: Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()) })
    }
}

/// The anonymous memory that a process has now, in bytes.
pub(crate) fn anonymous_memory(pid: u32) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).context("a process that is measured has ended")?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.context("the kernel does not tell how much anonymous memory a process has")? << 10)
}

/// The fields after the name, which is in parentheses; the first is number 3.
fn fields(text: &str) -> Option<Vec<&str>> {
    Some(text.rsplit_once(')')?.1.split_whitespace().collect())
}

/// The child of this process whose program has this name.
pub(crate) fn child_named(name: &str) -> anyhow::Result<u32> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|text| text.parse::<u32>().ok()) else { continue };
        // Processes may have ended in the meantime.
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let is_child = fields(&text).and_then(|fields| fields.get(1)?.parse::<u32>().ok()) == Some(std::process::id());
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
        assert!(anonymous_memory(std::process::id()).is_ok_and(|bytes| bytes > 0));
    }
}
