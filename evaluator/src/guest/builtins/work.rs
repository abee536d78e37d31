//! How much a builtin may do. The engine interrupts guests, not its host: so a builtin whose work may be more than its arguments suggest
//! counts what it does here, and ends when that is too much or the deadline of the evaluation has passed.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::{BuiltinError, MAX_ITEMS, MAX_TEXT};

/// What counts as one unit of work takes about a nanosecond. After so many of them a builtin looks at the clocks.
const BETWEEN_CHECKS: usize = 50_000;

/// How much a builtin may do in one call, where the amount does not follow from the size of its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Effort {
    /// About as much as other guests can wait for: the builtin runs on the thread of the evaluation.
    Little,
    /// All that a builtin may do, on a thread beside the lanes.
    Full,
}

impl Effort {
    /// The most processor time.
    fn time(self) -> Duration {
        match self {
            Self::Little => Duration::from_millis(2),
            Self::Full => Duration::from_secs(1),
        }
    }

    /// Longest text of the result, in bytes, where it may be longer than the arguments.
    pub(super) fn text(self) -> usize {
        match self {
            Self::Little => 64 << 10,
            Self::Full => MAX_TEXT,
        }
    }

    /// Most items of a list that a builtin makes.
    pub(super) fn items(self) -> usize {
        match self {
            Self::Little => 4096,
            Self::Full => MAX_ITEMS,
        }
    }

    /// Most memory for what the aliases of YAML repeat, in bytes. It is a part of [`Effort::memory`].
    pub(super) fn copies(self) -> usize {
        match self {
            Self::Little => 256 << 10,
            Self::Full => 8 << 20,
        }
    }

    /// Host memory for a result that is larger than the arguments, in bytes: the value, and its JSON text while that grows.
    pub(in super::super) fn memory(self) -> u64 {
        match self {
            Self::Little => 1 << 20,
            Self::Full => 12 << 20,
        }
    }
}

/// The work of one call of a builtin.
pub(in super::super) struct Work {
    pub(super) effort: Effort,
    /// The deadline of the evaluation.
    deadline: Instant,
    /// The processor time of the thread at the first look at the clocks; most builtins are done before that.
    begin: Cell<Option<Duration>>,
    /// What was done since the last look at the clocks.
    done: Cell<usize>,
}

impl Work {
    /// The work of a builtin that begins now.
    pub(in super::super) fn new(effort: Effort, deadline: Instant) -> Self {
        Self { effort, deadline, begin: Cell::new(None), done: Cell::new(0) }
    }

    /// Counts work, and now and then looks whether the builtin may go on.
    pub(super) fn count(&self, units: usize) -> Result<(), BuiltinError> {
        let done = self.done.get().saturating_add(units);
        if done < BETWEEN_CHECKS {
            self.done.set(done);
            return Ok(());
        }
        self.done.set(0);
        self.in_time()?;
        let (used, begin) = (used(), self.begin.get());
        self.begin.set(begin.or(Some(used)));
        match begin {
            Some(begin) if used.saturating_sub(begin) > self.effort.time() => {
                Err(BuiltinError::TooMuchWork("it takes too long with these arguments"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the deadline has not passed.
    pub(in super::super) fn in_time(&self) -> Result<(), BuiltinError> {
        if Instant::now() < self.deadline { Ok(()) } else { Err(BuiltinError::TimedOut) }
    }

    /// What it means that something is beyond a limit of this effort: with little effort, that it takes more of it.
    pub(super) fn beyond(&self, limit: BuiltinError) -> BuiltinError {
        match self.effort {
            Effort::Little => BuiltinError::MoreEffort,
            Effort::Full => limit,
        }
    }
}

/// Processor time of this thread, which does not move while others have the processor.
pub(super) fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::run_with;
    use super::*;

    fn work(effort: Effort) -> Work {
        Work::new(effort, Instant::now() + Duration::from_secs(3600))
    }

    /// Calls whose work, or whose result, is far more than their arguments.
    fn expensive() -> Vec<(&'static str, Value)> {
        let texts = |end: &str| (0..10_000).map(|number| format!("{number}{end}")).collect::<Vec<_>>();
        let shifts = vec![json!({"op": "move", "from": "/0", "path": "/1"}); 1000];
        let aliases = format!("- &a [{}]\n", "0,".repeat(100)) + &"- *a\n".repeat(500);
        vec![
            ("json.patch", json!([vec![0; 1000], shifts])),
            ("sprintf", json!(["%.1024f".repeat(1000), vec![1e-300; 1000]])),
            ("strings.any_prefix_match", json!([texts("a"), texts("b")])),
            ("strings.any_suffix_match", json!([texts("a"), texts("b")])),
            ("yaml.is_valid", json!([aliases])),
            ("yaml.unmarshal", json!([aliases])),
        ]
    }

    #[test]
    fn after_the_deadline_a_builtin_ends() {
        for (name, arguments) in expensive() {
            let late = Work::new(Effort::Full, Instant::now());
            let error = run_with(name, arguments, late).expect_err("late");
            assert!(matches!(error, BuiltinError::TimedOut), "{name}: {error}");
        }
    }

    /// Each result is larger than little effort may make it.
    #[test]
    fn what_takes_more_than_a_little_is_left_to_another_thread() {
        let large = [
            ("indexof_n", json!(["a".repeat(5000), "a"])),
            ("numbers.range_step", json!([1, 100_000, 1])),
            ("regex.find_n", json!(["a", "a".repeat(5000), -1])),
            ("regex.replace", json!(["a".repeat(5000), "a", "b".repeat(100)])),
            ("sprintf", json!(["%1000d".repeat(100), vec![1; 100]])),
            ("yaml.marshal", json!([(0..100).fold(json!(vec![0; 1000]), |inner, _| json!([inner]))])),
        ];
        for (name, arguments) in large {
            let error = run_with(name, arguments.clone(), work(Effort::Little)).expect_err("large");
            assert!(error.is_effort(), "{name}: {error}");
            assert!(run_with(name, arguments, work(Effort::Full)).is_ok(), "{name}");
        }
    }

    /// What aliases repeat is taken with the rest before anything is decoded, and is all that they may repeat.
    #[test]
    fn aliases_take_no_more_than_was_taken_for_them() {
        let repeated = |item: &str, aliases: usize| format!("- &a {item}\n") + &"- *a\n".repeat(aliases);
        let list = format!("[{}]", "0,".repeat(99));
        let items = ["{a: {b: {c: {d: 0}}}}", "[[[[[[]]]]]]", "{a: x, b: y, c: z}", &list];
        for effort in [Effort::Little, Effort::Full] {
            // However long it takes.
            let work = || Work { begin: Cell::new(Some(Duration::MAX)), ..work(effort) };
            let most = effort.copies() as u64;
            for item in items {
                let mut largest = None;
                for aliases in (0..18).map(|power| 1 << power) {
                    let text = json!([repeated(item, aliases)]);
                    match run_with("yaml.unmarshal", text.clone(), work()) {
                        Ok(value) => largest = Some((text, value)),
                        Err(error) => {
                            assert!(matches!(error, BuiltinError::Copies | BuiltinError::MoreEffort), "{error}");
                            assert!(run_with("yaml.is_valid", text, work()).is_err(), "no rule takes it for invalid");
                            break;
                        }
                    }
                }
                let (text, value) = largest.expect("a few fit");
                let text = serde_json::to_vec(&text[0]).expect("encodes");
                let taken = crate::review::json::taken(&value) as u64;
                let counted = super::super::memory_for(&[text]) + most;
                assert!(taken <= counted && most <= effort.memory(), "{taken} > {counted}: {item}");
            }
        }
    }

    #[test]
    fn work_has_a_limit_whatever_the_deadline_is() {
        let work = work(Effort::Little);
        let error = loop {
            if let Err(error) = work.count(1000) {
                break error;
            }
        };
        assert!(error.is_effort(), "{error}");
    }
}
