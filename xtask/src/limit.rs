//! A time limit for commands: a command that hangs is ended, with all processes that it started.
//!
//! Its descendants are found by their parents, and do not have a process group of their own: in another group they would not get the
//! signal of Ctrl-C, and would outlive the test run.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which this checks whether a command has ended.
const PACE: Duration = Duration::from_millis(20);

/// The time until which the commands of a step may run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    start: Instant,
    limit: Duration,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) enum End {
    Exited(ExitStatus),
    /// It still ran when its time was over, and was ended.
    Late,
    /// Its time was over before it began.
    NotStarted,
}

impl Deadline {
    /// A deadline at this time from now.
    pub(crate) fn after(limit: Duration) -> Self {
        Self { start: Instant::now(), limit }
    }

    pub(crate) fn limit(self) -> Duration {
        self.limit
    }

    fn is_over(self) -> bool {
        self.start.elapsed() >= self.limit
    }

    /// Runs a command until it ends, or its time is over.
    pub(crate) fn run(self, command: &mut Command) -> io::Result<End> {
        if self.is_over() {
            return Ok(End::NotStarted);
        }
        let mut child = command.spawn()?;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(End::Exited(status));
            }
            if self.is_over() {
                end(&mut child)?;
                return Ok(End::Late);
            }
            thread::sleep(PACE);
        }
    }
}

/// Ends a child with all of its descendants.
fn end(child: &mut Child) -> io::Result<()> {
    // They are found first, because the children of a process that has ended get another parent.
    let descendants = descendants(child.id(), &parents());
    child.kill()?;
    if !descendants.is_empty() {
        // This fails if one of them has ended in the meantime.
        let _ = Command::new("kill").arg("-KILL").args(descendants.iter().map(u32::to_string)).output();
    }
    child.wait().map(drop)
}

/// The descendants of a process, given the parent of each process.
fn descendants(root: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, its)| **its == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

/// The parent of each process of this machine; empty if there is no `/proc`.
fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))).collect()
}

/// The parent in a file `/proc/<pid>/stat`. The name of the program may have spaces and brackets.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_children_and_their_children_and_nobody_else() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 2), (5, 4), (6, 1), (7, 6)]);
        assert_eq!(descendants(2, &parents), [3, 4, 5]);
        assert_eq!(descendants(7, &parents), Vec::<u32>::new());
    }

    #[test]
    fn the_parent_comes_after_the_name_and_the_state() {
        assert_eq!(parent("42 (a) b (c) S 17 42 42 0 -1"), Some(17));
        assert_eq!(parent(""), None);
    }

    #[test]
    fn a_command_in_time_has_its_status() {
        let end = Deadline::after(Duration::from_secs(60)).run(&mut Command::new("false")).unwrap();
        assert!(matches!(end, End::Exited(status) if status.code() == Some(1)), "{end:?}");
    }

    #[test]
    fn a_command_that_hangs_ends_with_what_it_started() {
        let file = std::env::temp_dir().join(format!("xtask-limit-{}", std::process::id()));
        let mut command = Command::new("sh");
        // A grandchild, which would run for an hour.
        command.args(["-c", "sh -c 'sleep 3600 & echo $! > \"$0\"; wait' \"$0\" & wait"]).arg(&file);
        let deadline = Deadline::after(Duration::from_secs(2));
        assert!(matches!(deadline.run(&mut command).unwrap(), End::Late));
        let pid: u32 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        // The kernel ends it when it next runs, and then it is a zombie until its new parent notices.
        let start = Instant::now();
        loop {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{stat}");
            thread::sleep(PACE);
        }
        assert!(matches!(deadline.run(&mut command).unwrap(), End::NotStarted));
        fs::remove_file(file).unwrap();
    }
}
