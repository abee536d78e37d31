//! Which basic blocks become loops.

use std::iter;

use super::body::Jump;

/// The most loops around one basic block. Go's own functions have a few; each jump may look at all of them.
const MOST_NESTED: usize = 64;

/// Consecutive basic blocks, with a jump back to the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loop {
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Loop {
    /// Whether it has a table at its head, for its other basic blocks.
    pub(super) fn has_table(self) -> bool {
        self.first < self.last
    }

    fn contains(self, block: usize) -> bool {
        (self.first..=self.last).contains(&block)
    }
}

/// The loops of a function. Of two of them, one is within the other, or they have nothing in common. No two have the same first basic block.
pub(super) struct Loops {
    /// For each basic block the last one of the loop of which it is the first.
    last: Vec<Option<usize>>,
    /// For each basic block the first one of the smallest loop that contains it, other than the loop of which it is the first itself.
    around: Vec<Option<usize>>,
}

impl Loops {
    /// The smallest loops by which each jump back is within the loop that its target is the first of. `None` if too many are within each other.
    pub(super) fn of(jumps: &[Jump], blocks: usize) -> Option<Self> {
        let mut last = vec![None; blocks];
        for jump in jumps.iter().filter(|jump| jump.to <= jump.from) {
            let end = last.get_mut(jump.to)?;
            *end = (*end).max(Some(jump.from));
        }
        // From the last to the first, a loop takes in each one that begins within it, to its end.
        let mut behind: Vec<Loop> = Vec::new();
        for first in (0..blocks).rev() {
            let Some(mut end) = last[first] else { continue };
            while let Some(inner) = behind.pop_if(|inner| inner.first <= end) {
                end = end.max(inner.last);
            }
            last[first] = Some(end);
            behind.push(Loop { first, last: end });
        }
        let mut around = vec![None; blocks];
        let mut open: Vec<Loop> = Vec::new();
        for block in 0..blocks {
            while open.pop_if(|outer| outer.last < block).is_some() {}
            around[block] = open.last().map(|outer| outer.first);
            if let Some(last) = last[block] {
                open.push(Loop { first: block, last });
            }
            if open.len() > MOST_NESTED {
                return None;
            }
        }
        Some(Self { last, around })
    }

    /// The loop whose first basic block this is.
    pub(super) fn starting_at(&self, first: usize) -> Option<Loop> {
        self.last.get(first).copied().flatten().map(|last| Loop { first, last })
    }

    /// All loops.
    pub(super) fn all(&self) -> impl Iterator<Item = Loop> {
        (0..self.last.len()).filter_map(|first| self.starting_at(first))
    }

    /// The largest loop that contains one basic block and not the other.
    pub(super) fn largest_with(&self, block: usize, without: usize) -> Option<Loop> {
        self.around_and_at(block).take_while(|candidate| !candidate.contains(without)).last()
    }

    /// The loops that contain this basic block, from the smallest to the largest.
    fn around_and_at(&self, block: usize) -> impl Iterator<Item = Loop> {
        let smallest = self.starting_at(block).or_else(|| self.around(block));
        iter::successors(smallest, |inner| self.around(inner.first))
    }

    /// The smallest loop that contains this basic block, other than the loop of which it is the first itself.
    fn around(&self, block: usize) -> Option<Loop> {
        self.around.get(block).copied().flatten().and_then(|first| self.starting_at(first))
    }

    /// The number of loops that end with a basic block.
    pub(super) fn ending_at(&self, block: usize) -> usize {
        self.around_and_at(block).take_while(|candidate| candidate.last == block).count()
    }

    /// The basic blocks from one to another, of each loop among them only the first.
    pub(super) fn outermost(&self, first: usize, last: usize) -> Vec<usize> {
        let mut blocks = Vec::new();
        let mut next = first;
        while next <= last {
            blocks.push(next);
            next = self.starting_at(next).map_or(next, |it| it.last) + 1;
        }
        blocks
    }
}
