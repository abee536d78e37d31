//! How many evaluations of the slow lane should run at the same time. Pure.
//!
//! The number of cores is the upper limit. How many processors this program really gets is another matter: a node may be full, and no
//! file shows a quota that other containers of the pod use up. More threads than processors make nothing faster, and leave the order of
//! turns to the kernel: of a hundred threads on two processors, the one with the right to the next turn gets a fiftieth. So the lane
//! begins narrow, measures how much of its turns was spent on a processor, and widens as long as that is nearly all of them.

use std::time::Duration;

use portcullis_engine::TICK;

/// How long processor time is counted before it shows how many processors there are.
const WINDOW: Duration = Duration::from_millis(50);

/// The number of turns at the same time.
#[derive(Debug, Clone)]
pub(crate) struct Width {
    now: usize,
    most: usize,
    /// The number of turns in a row that had a processor for nearly all of their time.
    good: usize,
    /// Clock and processor time of the whole program when the window began.
    window: (Duration, Duration),
    /// Processors that the program had in the last window, in thousandths.
    processors: u64,
}

/// What a turn took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnUsage {
    /// How long it took.
    pub(crate) took: Duration,
    /// The processor time that it used.
    pub(crate) used: Duration,
    /// The clock at its end.
    pub(crate) clock: Duration,
    /// The processor time of the whole program until then.
    pub(crate) program: Duration,
}

impl Width {
    /// Room for `most` turns at the same time.
    pub(crate) fn new(most: usize) -> Self {
        let most = most.max(1);
        Self { now: most.min(2), most, good: 0, window: (Duration::ZERO, Duration::ZERO), processors: 0 }
    }

    /// The width now.
    pub(crate) fn now(&self) -> usize {
        self.now
    }

    /// Adapts to a turn that has ended.
    pub(crate) fn learn(&mut self, turn: TurnUsage) {
        self.count(turn);
        // A turn that ended early, waiting for something, does not show how many processors are free.
        if turn.took < TICK / 2 {
            return;
        }
        if turn.used * 8 >= turn.took * 7 {
            self.good += 1;
            if self.good >= self.now {
                // All turns had a processor, so perhaps twice as many would have one.
                self.good = 0;
                self.now = (self.now * 2).min(self.most);
            }
            return;
        }
        self.good = 0;
        if turn.used * 5 < turn.took * 3 && self.processors > 0 {
            // A quarter more than the processors that the program gets: short evaluations may need less of them at any moment.
            let fitting = usize::try_from((self.processors * 5).div_ceil(4000)).unwrap_or(usize::MAX);
            self.now = fitting.clamp(1, self.now);
        }
    }

    fn count(&mut self, turn: TurnUsage) {
        let (clock, program) = self.window;
        let passed = turn.clock.saturating_sub(clock);
        if passed >= WINDOW {
            let used = turn.program.saturating_sub(program).as_micros();
            // A window that began long ago, when nothing ran, does not show what the program gets now.
            if passed < WINDOW * 4 {
                self.processors = u64::try_from(used * 1000 / passed.as_micros()).unwrap_or(u64::MAX);
            }
            self.window = (turn.clock, turn.program);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a lane of `threads` threads run for a second on `processors` processors, of which short evaluations use `others`, with as many
    /// evaluations as the width allows. Gives the width at the end, and the greatest one on the way.
    fn run(threads: usize, processors: u32, others: u32) -> (usize, usize) {
        let mut width = Width::new(threads);
        let (mut clock, mut program, mut most) = (Duration::from_secs(9), Duration::from_secs(5), 0);
        for _ in 0..200 {
            let running = u32::try_from(width.now()).expect("small");
            // Short evaluations come first; the turns share the processors that are left.
            let left = processors - others;
            let used = if running <= left { TICK } else { TICK * left / running };
            clock += TICK;
            program += TICK * others + used * running;
            for _ in 0..running {
                width.learn(TurnUsage { took: TICK, used, clock, program });
            }
            most = most.max(width.now());
        }
        (width.now(), most)
    }

    #[test]
    fn a_lane_is_as_wide_as_its_processors() {
        assert_eq!(run(2, 2, 0).0, 2);
        assert_eq!(run(16, 16, 0).0, 16);
        assert_eq!(run(96, 96, 0).0, 96);
    }

    #[test]
    fn threads_without_processors_do_not_run() {
        for threads in [16, 96] {
            let (end, most) = run(threads, 2, 0);
            assert!((1..=4).contains(&end) && most <= 4, "{threads}: {end}, {most}");
        }
        assert_eq!(run(96, 1, 0).0, 2);
    }

    #[test]
    fn short_evaluations_that_use_up_all_do_not_narrow_it() {
        // A narrower lane would get less of the processors beside short evaluations: the kernel shares them by the number of threads.
        let mut width = Width::new(16);
        let (mut clock, mut program) = (Duration::from_secs(9), Duration::from_secs(5));
        for i in 0..2000 {
            clock += TICK / 16;
            program += TICK;
            let used = if i < 1000 { TICK } else { TICK / 10 };
            width.learn(TurnUsage { took: TICK, used, clock, program });
        }
        assert_eq!(width.now(), 16);
    }

    #[test]
    fn turns_that_end_early_say_nothing() {
        let mut width = Width::new(16);
        let (clock, program) = (Duration::from_secs(9), Duration::from_secs(5));
        for _ in 0..1000 {
            width.learn(TurnUsage { took: TICK / 4, used: TICK / 4, clock, program });
        }
        assert_eq!(width.now(), 2);
    }
}
