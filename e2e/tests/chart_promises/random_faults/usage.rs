//! I5: what the programs use of the machine before the first fault and after the last.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_e2e::{Container, Release, Usage};

use super::fault::PROGRAMS;
use super::stand::BACK;

/// How much more of [`values`] a program may use after the faults than before them: twice as much, and this. It is far more than the tenth of I5, because
/// containers have different ages, and have had other numbers of policies and calls. An hour in which something leaks with each fault or
/// each call takes more.
const SLACK: [u64; 3] = [64 << 20, 64, 16];

/// The usage of each program: of its containers, the largest of each value.
#[derive(Debug, Default)]
pub(super) struct Usages(pub(super) BTreeMap<&'static str, Usage>);

impl Usages {
    /// The current usage.
    pub(super) fn of(release: &Release<'_>) -> Self {
        let mut usages = Self::default();
        for (pods, programs) in [(release.pods(), &PROGRAMS[..]), (release.controllers(), &["controller"])] {
            for (pod, program) in pods.iter().flat_map(|pod| programs.iter().map(move |program| (pod, *program))) {
                if let Some(container) = Container::of(pod, program) {
                    let largest = usages.0.entry(program).or_default();
                    *largest = larger(*largest, container.usage());
                }
            }
        }
        usages
    }

    /// Waits until no program uses much more than before, and returns the usage then.
    pub(super) fn back_to(before: &Self, release: &Release<'_>) -> Self {
        let start = Instant::now();
        loop {
            let now = Self::of(release);
            let grown = now.grown_since(before);
            if grown.is_empty() && now.0.len() == before.0.len() {
                return now;
            }
            assert!(start.elapsed() < BACK, "more is used than before the faults (I5): {grown:?} of {now:?}");
            thread::sleep(Duration::from_secs(1));
        }
    }

    /// The programs that use too much, with their usage before and now.
    fn grown_since(&self, before: &Self) -> Vec<String> {
        let is_above = |now: &Usage, before: &Usage| {
            let values = values(now).into_iter().zip(values(before));
            values.zip(SLACK).any(|((now, before), slack)| now > 2 * before + slack)
        };
        let pairs = self.0.iter().filter_map(|(program, now)| Some((program, now, before.0.get(program)?)));
        let grown = pairs.filter(|(_, now, before)| is_above(now, before));
        grown.map(|(program, now, before)| format!("{program}: {}, now {}", shown(before), shown(now))).collect()
    }
}

/// What is compared: bytes of memory that is not backed by a file, descriptors, and threads.
fn values(usage: &Usage) -> [u64; 3] {
    [usage.anonymous, usage.descriptors, usage.threads]
}

/// The larger of each value.
fn larger(one: Usage, other: Usage) -> Usage {
    Usage {
        anonymous: one.anonymous.max(other.anonymous),
        descriptors: one.descriptors.max(other.descriptors),
        threads: one.threads.max(other.threads),
        ..one
    }
}

/// The values as text.
pub(super) fn shown(usage: &Usage) -> String {
    let [anonymous, descriptors, threads] = values(usage);
    format!("{} MiB, {descriptors} descriptors, {threads} threads", anonymous >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_uses_much_more_than_before_is_named() {
        let usage = |anonymous: u64, descriptors, threads| Usage {
            anonymous: anonymous << 20,
            descriptors,
            threads,
            ..Usage::default()
        };
        let of = |usage| Usages([("loader", usage)].into());
        let before = of(usage(20, 30, 8));
        assert_eq!(of(usage(104, 124, 32)).grown_since(&before), Vec::<String>::new());
        for more in [usage(105, 30, 8), usage(20, 125, 8), usage(20, 30, 33)] {
            let grown = of(more).grown_since(&before);
            assert!(grown[0].starts_with("loader: 20 MiB, 30 descriptors, 8 threads, now "), "{grown:?}");
        }
    }
}
