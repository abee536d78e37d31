//! Divides the memory that the program may use. Pure.

use portcullis_engine::{LEAST_KEPT, MOST_KEPT, STACKS, TABLE_KEPT, TABLES};

/// What tables may keep resident in a slot without an instance, in bytes.
const TABLES_KEPT: u64 = TABLES as u64 * TABLE_KEPT as u64;
/// The least that a slot without an instance keeps resident, in bytes, so that the next instance finds cleared memory (the engine's
/// `keep_resident` settings). No floor is below that.
const KEPT: u64 = LEAST_KEPT as u64 + TABLES_KEPT;
/// What the stacks of a slot may keep resident, in bytes: WebAssembly may use 512 KiB of each at most, and host functions add little. Pages
/// of a stack that were written stay with it when another instance takes it.
const STACKS_KEPT: u64 = STACKS as u64 * (576 << 10);
/// A page of WebAssembly, in bytes.
const PAGE: u64 = 64 << 10;

/// The parts of the memory, in bytes. The rest is the program's own: a quarter, for connections, verdicts, decoded objects, what policies
/// remember (`capability/cache.rs`), and what the allocator does not give back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// What each instance may use without a claim on the shared part.
    pub floor: u64,
    /// What all instances together may use above that.
    pub shared: u64,
    /// What bodies of requests may use, with what guests see of them.
    pub bodies: u64,
}

/// What the memory must be enough for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// The most instances at the same time.
    pub(crate) instances: u64,
    /// The largest memory of an instance, in bytes.
    pub(crate) memory_limit: u64,
    /// The largest body, in bytes.
    pub(crate) max_body: u64,
}

impl Wanted {
    /// The least memory that the program must be able to use, in bytes: an instance must be able to grow to its limit while as much stays
    /// free, and every instance needs the least floor. The chart computes the same.
    pub(crate) fn least(self) -> u64 {
        let Self { instances, memory_limit, max_body } = self;
        let guests = (4 * memory_limit).max(instances * (KEPT + STACKS_KEPT) + 2 * memory_limit);
        (guests * 8).div_ceil(5).max((guests * 4).div_ceil(3) + 4 * max_body)
    }
}

impl MemoryPlan {
    /// The parts of `total`.
    pub(crate) fn new(total: u64, wanted: Wanted) -> Self {
        let Wanted { instances, memory_limit, max_body } = wanted;
        // A body is kept beside what guests see of it.
        let bodies = (total / 8).max(2 * max_body);
        let guests = total.saturating_sub(total / 4 + bodies);
        let each = (guests / 2 / instances.max(1)).saturating_sub(STACKS_KEPT) / PAGE * PAGE;
        let floor = each.clamp(KEPT, memory_limit.max(KEPT));
        Self { floor, shared: guests.saturating_sub(instances * (floor + STACKS_KEPT)), bodies }
    }

    /// How much of an instance's memory may stay resident for the next one, in bytes. It is at most the floor of an instance, so a warm slot
    /// takes nothing from the shared part.
    pub(crate) fn kept(&self) -> usize {
        let most = usize::try_from(self.floor - TABLES_KEPT).unwrap_or(usize::MAX);
        most.clamp(LEAST_KEPT, MOST_KEPT)
    }

    /// No limits but those of each instance, for tests.
    pub fn unlimited() -> Self {
        Self { floor: 1 << 40, shared: 1 << 40, bodies: 1 << 40 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// The defaults of the program's settings.
    const WANTED: Wanted = Wanted { instances: 128, memory_limit: 128 * MIB, max_body: 7 * MIB };

    #[test]
    fn the_parts_as_shipped() {
        let plan = MemoryPlan::new(1024 * MIB, WANTED);
        assert_eq!(plan, MemoryPlan { floor: 22 * PAGE, shared: 320 * MIB, bodies: 128 * MIB });
    }

    #[test]
    fn a_free_slot_keeps_what_an_instance_may_use_without_asking() {
        let kept = |floor| MemoryPlan { floor, shared: 0, bodies: 0 }.kept() as u64;
        assert_eq!(kept(31 * PAGE), 31 * PAGE - TABLES_KEPT);
        assert_eq!((kept(KEPT), kept(64 * MIB)), (LEAST_KEPT as u64, MOST_KEPT as u64));
    }

    #[test]
    fn the_parts_never_exceed_the_whole() {
        for total in [512, 820, 1024, 4096, 65536].map(|mib| mib * MIB) {
            for instances in [1, 16, 128, 400] {
                let wanted = Wanted { instances, ..WANTED };
                if total < wanted.least() {
                    continue;
                }
                let plan = MemoryPlan::new(total, wanted);
                let parts = plan.bodies + plan.shared + instances * (plan.floor + STACKS_KEPT);
                assert!(parts <= total - total / 4, "{total} {instances}: {plan:?}");
            }
        }
    }

    #[test]
    fn with_the_least_an_instance_can_grow_to_its_limit_beside_another() {
        for wanted in [
            WANTED,
            Wanted { instances: 1, ..WANTED },
            Wanted { instances: 1000, ..WANTED },
            Wanted { memory_limit: 1024 * MIB, ..WANTED },
            Wanted { max_body: 256 * MIB, ..WANTED },
        ] {
            let plan = MemoryPlan::new(wanted.least(), wanted);
            assert!(plan.shared + MIB >= 2 * (wanted.memory_limit - plan.floor), "{wanted:?}: {plan:?}");
        }
        assert!(WANTED.least() <= 1024 * MIB, "what the chart ships fits");
        let less = MemoryPlan::new(WANTED.least() / 2, WANTED);
        assert!(less.shared < 2 * (WANTED.memory_limit - less.floor), "{less:?}");
    }

    #[test]
    fn what_is_too_small_has_no_shared_part() {
        let plan = MemoryPlan::new(64 * MIB, WANTED);
        assert_eq!((plan.floor, plan.shared), (KEPT, 0));
    }
}
