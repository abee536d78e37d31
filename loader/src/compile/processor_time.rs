//! The processor time of a compile child, and whether that was enough to judge its module.

use std::fs;
use std::time::Duration;

/// A child that gets less than this part of the time that it may take says nothing about its module.
const LEAST_PART: u32 = 5;

/// The processor time of a process so far; `None` if it has ended, or nothing can be known.
pub(super) fn of(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(Duration::from_millis(ticks(&stat)?.saturating_mul(1000) / rustix::param::clock_ticks_per_second()))
}

/// The times in user and in kernel mode, in `/proc/<pid>/stat`. The program's name before them may contain anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).map_while(|field| field.parse::<u64>().ok());
    Some(times.next()?.saturating_add(times.next()?))
}

/// Whether a child whose wall time is over, and which may have had `most` of processor time, had so little of it that the machine is to blame
/// and not its module.
pub(super) fn is_starved(used: Duration, most: Duration) -> bool {
    used < most / LEAST_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_times_are_read_whatever_the_program_is_called() {
        let stat = "7 (a) R 1 (b) R 1 7 7 0 -1 4194560 100 0 0 0 250 31 9 9 20 0 1 0 5 1 1";
        assert_eq!(ticks(stat), Some(281));
        assert_eq!((ticks("7 (a) R 1"), ticks("")), (None, None));
        let start = of(std::process::id()).expect("this process runs");
        while of(std::process::id()).is_some_and(|now| now < start + Duration::from_millis(30)) {}
    }
}
