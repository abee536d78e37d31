//! The times that a test's time limit leaves out, so that it is about the tested programs and not about the machine: the time in
//! which the machine stood still or waited for its disk, and the share of it that other programs took.
//!
//! Debug builds of several pods, and the tests themselves, share two slow cores. Each limit is corrected by the machine's own
//! account of its time, `/proc/stat`, less the time that the tested programs took.

use std::fs;
use std::time::{Duration, Instant};

use crate::Stalls;
use crate::stat::stat_fields;

/// The largest share of the machine that is taken into account for other programs. With it, the tested programs may take twenty
/// times as long as alone.
const MOST: f64 = 0.95;

/// How many calls of a canary may be late because of the machine in any case: it may stand still for a moment in the shortest test.
const EXCUSED: u64 = 3;

/// Beyond these, one call in this many may be.
const ONE_IN: u64 = 50;

/// How many calls of a canary may be late because of the machine beside this many that were in time. At fifty calls per second, one late
/// call in fifty takes half of the time.
pub fn most_excused(in_time: u64) -> u64 {
    EXCUSED + in_time / ONE_IN
}

/// How long before a measurement a stall still counts: work that piled up in it is done during the measurement.
const JUST_BEFORE: Duration = Duration::from_secs(1);

/// A moment from which, or to which, something is measured.
#[derive(Debug, Clone)]
pub struct Moment {
    at: Instant,
    ticks: Ticks,
    /// How long programs of this machine have waited for its disk, since its start.
    disk: Duration,
}

/// Processor time since the machine's start, in the kernel's ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ticks {
    /// The time of all processors.
    all: u64,
    /// The part of it that programs used.
    busy: u64,
    /// The part of it that the tested programs used.
    own: u64,
}

impl Moment {
    /// The current moment; `processes` are the tested programs.
    pub fn now(processes: impl Iterator<Item = u32>) -> Self {
        let (all, busy) = of_machine(&read("/proc/stat"));
        let own = processes.map(|pid| of_process(&stat_of(pid))).sum();
        // If the kernel does not measure this, nothing is left out.
        let disk = waited(&read("/proc/pressure/io"));
        Self { at: Instant::now(), ticks: Ticks { all, busy, own }, disk }
    }

    /// The same moment, but the time that this test itself uses counts as the tested programs'. It is for tests that use most of the
    /// machine themselves, so that only programs of others are left out. Other tests in this process count as this test.
    #[must_use]
    pub fn beside_this_test(self) -> Self {
        // Without the programs that it has started, whose whole time would be added at once when they end.
        let own = self.ticks.own + of_process_alone(&stat_of(std::process::id()));
        Self { ticks: Ticks { own, ..self.ticks }, ..self }
    }

    /// The time of this moment.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// The time since this moment.
    pub fn age(&self) -> Duration {
        self.at.elapsed()
    }

    /// The time from this moment to another one.
    pub fn until(&self, end: &Self) -> Duration {
        end.at.saturating_duration_since(self.at)
    }

    /// How long something may take, from this moment to another one, if it takes less than `limit` on an idle machine. Stalls count
    /// twice, because the work that piled up in the meantime has to be done too.
    pub fn allowed(&self, limit: Duration, end: &Self) -> Duration {
        let before = self.at.checked_sub(JUST_BEFORE).unwrap_or(self.at);
        let lost = Stalls::watch().lost(before, end.at);
        limit.div_f64(1.0 - others(self.ticks, end.ticks)) + 2 * lost + end.disk.saturating_sub(self.disk)
    }

    /// The share of the machine that other programs took from this moment to another one.
    pub fn taken_by_others(&self, end: &Self) -> f64 {
        others(self.ticks, end.ticks)
    }

    /// Whether other programs, or the machine itself, took so much time from this moment to another one that something that takes
    /// `limit` alone may take twice as long.
    pub fn was_disturbed(&self, limit: Duration, end: &Self) -> bool {
        self.allowed(limit, end) > 2 * limit
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn stat_of(pid: u32) -> String {
    read(&format!("/proc/{pid}/stat"))
}

/// The share of the machine that other programs took.
fn others(from: Ticks, to: Ticks) -> f64 {
    let [all, busy, own] =
        [(to.all, from.all), (to.busy, from.busy), (to.own, from.own)].map(|(to, from)| to.saturating_sub(from));
    if all == 0 { 0.0 } else { (busy.saturating_sub(own) as f64 / all as f64).min(MOST) }
}

/// All ticks and the used ticks of a machine, from `/proc/stat`. Time that a hypervisor took counts as used.
fn of_machine(stat: &str) -> (u64, u64) {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal; the time of guests is in the first two already.
    let numbers: Vec<u64> = line.split_whitespace().take(8).filter_map(|number| number.parse().ok()).collect();
    let all: u64 = numbers.iter().sum();
    (all, all - numbers.iter().skip(3).take(2).sum::<u64>())
}

/// The ticks of a process and of its children that have ended, from `/proc/<pid>/stat`.
fn of_process(stat: &str) -> u64 {
    times(stat).take(4).sum()
}

/// The ticks of a process without its children.
fn of_process_alone(stat: &str) -> u64 {
    times(stat).take(2).sum()
}

/// The ticks of a process in user and in system mode, then those of its children, then other numbers.
fn times(stat: &str) -> impl Iterator<Item = u64> {
    // The state and ten numbers, then the ticks in user and in system mode.
    stat_fields(stat).into_iter().flatten().skip(11).map_while(|number| number.parse::<u64>().ok())
}

/// How long at least one program waited, from a file of `/proc/pressure`.
fn waited(pressure: &str) -> Duration {
    let line = pressure.lines().find_map(|line| line.strip_prefix("some "));
    let total = line.and_then(|line| line.rsplit_once("total=")).and_then(|(_, number)| number.trim().parse().ok());
    Duration::from_micros(total.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticks_of_the_machine_are_those_of_all_its_processors() {
        let stat = "cpu  100 1 20 300 4 5 6 7 50 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(of_machine(stat), (443, 139));
        assert_eq!(of_machine(""), (0, 0));
    }

    #[test]
    fn the_ticks_of_a_process_come_after_its_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 200 0 0 30 4 500 60 20 0 12 0 9999 1 1";
        assert_eq!((of_process(stat), of_process_alone(stat)), (594, 34));
        assert_eq!((of_process(""), of_process_alone("")), (0, 0));
    }

    #[test]
    fn the_time_in_which_programs_waited_is_in_microseconds() {
        let pressure =
            "some avg10=0.00 avg60=0.40 avg300=0.36 total=7702800\nfull avg10=0.00 avg60=0.02 total=2654284\n";
        assert_eq!(waited(pressure), Duration::from_micros(7_702_800));
        assert_eq!(waited(""), Duration::ZERO);
    }

    #[test]
    fn others_are_all_programs_but_the_tested_ones() {
        let at = |all, busy, own| Ticks { all, busy, own };
        let percent = |from, to| (others(from, to) * 100.0).round() as u32;
        assert_eq!(percent(at(0, 0, 0), at(200, 150, 50)), 50);
        assert_eq!(percent(at(100, 90, 80), at(300, 290, 280)), 0, "the tested ones alone use all of it");
        assert_eq!(percent(at(0, 0, 0), at(200, 200, 0)), 95, "never all of it");
        assert_eq!(percent(at(0, 0, 500), at(200, 100, 0)), 50, "a program that was started again counts from 0");
        assert_eq!(percent(at(7, 7, 7), at(7, 7, 7)), 0);
    }

    #[test]
    fn a_limit_grows_with_what_others_take() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let moment = |ticks, disk| Moment { at: now, ticks, disk };
        let from = moment(Ticks::default(), Duration::ZERO);
        let to = moment(Ticks { all: 200, busy: 100, own: 0 }, second);
        assert!(from.allowed(second, &to) >= 3 * second);
        assert!(from.was_disturbed(second, &to));
        assert_eq!(from.until(&to), Duration::ZERO);
    }
}
