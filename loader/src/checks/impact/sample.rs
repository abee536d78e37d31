//! Which objects of a kind are read, page by page: all if they are few enough, otherwise the same number from each namespace. Pure.

use std::collections::VecDeque;

/// Most objects of a page.
const LARGEST_PAGE: usize = 100;
/// Objects of the first page, before anything is known about their size.
const FIRST_PAGE: usize = 20;
/// The size of a page to aim for, in bytes, and the largest that a check keeps: it is in memory until the trial was asked about its last object,
/// and so are those of all other checks.
const PAGE_BYTES: usize = 2 << 20;
const LARGEST_KEPT: usize = 2 * PAGE_BYTES;
/// Most namespaces that objects are taken from.
const MOST_NAMESPACES: usize = 200;

/// What is still to be read.
#[derive(Debug)]
pub(super) struct Sample {
    /// How many objects may be read.
    left: usize,
    /// Most objects on the next page.
    page: usize,
    /// Where to go on, in each namespace that is not read to its end.
    cursors: VecDeque<Cursor>,
    /// How many of them have not had their turn in this round yet, and how many objects each may read in it.
    round: (usize, usize),
}

/// Where a page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cursor {
    /// The namespace; `None` for all of them.
    pub(super) namespace: Option<String>,
    /// The API server's continue token; empty for the first page.
    pub(super) next: String,
}

impl Sample {
    /// Reads at most `most` objects, from one namespace or from all.
    pub(super) fn of(namespace: Option<&str>, most: usize) -> Self {
        let cursor = Cursor { namespace: namespace.map(str::to_owned), next: String::new() };
        Self { left: most, page: FIRST_PAGE, cursors: VecDeque::from([cursor]), round: (0, 0) }
    }

    /// Reads at most `most` objects from these namespaces in turn. If there are too many namespaces, evenly spread ones are taken.
    pub(super) fn over(namespaces: &[String], most: usize) -> Self {
        let step = namespaces.len().div_ceil(MOST_NAMESPACES.min(most).max(1)).max(1);
        let cursor = |name: &String| Cursor { namespace: Some(name.clone()), next: String::new() };
        let cursors = namespaces.iter().step_by(step).map(cursor).collect();
        Self { left: most, page: FIRST_PAGE, cursors, round: (0, 0) }
    }

    /// The next page and the most objects that it may have; `None` when enough was read.
    pub(super) fn next(&mut self) -> Option<(Cursor, usize)> {
        if self.left == 0 {
            return None;
        }
        if self.round.0 == 0 {
            let cursors = self.cursors.len();
            self.round = (cursors, (self.left / cursors.max(1)).max(1));
        }
        let (turns, share) = self.round;
        let cursor = self.cursors.pop_front()?;
        self.round.0 = turns.saturating_sub(1);
        Some((cursor, share.min(self.page).min(self.left)))
    }

    /// Records that a page had `objects` objects, of which `known` have `bytes` bytes together. `cursor` says where to go on.
    pub(super) fn took(&mut self, cursor: Cursor, objects: usize, (known, bytes): (usize, usize)) {
        self.left = self.left.saturating_sub(objects);
        if let Some(mean) = bytes.checked_div(known) {
            self.page = (PAGE_BYTES / mean.max(1)).clamp(1, LARGEST_PAGE);
        }
        if !cursor.next.is_empty() {
            self.cursors.push_back(cursor);
        }
    }

    /// Whether a page of at most `limit` objects is small enough to be kept. One object is, whatever its size.
    pub(super) fn may_keep(limit: usize, bytes: usize) -> bool {
        limit <= 1 || bytes <= LARGEST_KEPT
    }

    /// Records that a page of at most `limit` objects was too large to be read or kept: it is tried again with fewer.
    pub(super) fn was_too_large(&mut self, cursor: Cursor, limit: usize) {
        self.page = (limit / 4).max(1);
        self.cursors.push_front(cursor);
        self.round.0 += 1;
    }

    /// Whether nothing is left to read.
    pub(super) fn is_complete(&self) -> bool {
        self.cursors.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads from namespaces with these numbers of objects, each of `bytes` bytes. Returns how many of each were read, and the number of pages.
    fn read(mut sample: Sample, there: &mut [(&str, usize)], bytes: usize) -> (Vec<usize>, usize) {
        let (mut read, mut pages) = (vec![0; there.len()], 0);
        while let Some((cursor, most)) = sample.next() {
            pages += 1;
            assert!(pages < 2000, "it ends");
            let of = |name: &str| cursor.namespace.as_deref().is_none_or(|wanted| wanted == name);
            let Some(number) = there.iter().position(|(name, left)| of(name) && *left > 0) else {
                sample.took(Cursor { next: String::new(), ..cursor }, 0, (0, 0));
                continue;
            };
            let count = most.min(there[number].1);
            there[number].1 -= count;
            read[number] += count;
            let more = there.iter().any(|(name, left)| of(name) && *left > 0);
            let next = if more { "more".to_owned() } else { String::new() };
            sample.took(Cursor { next, ..cursor }, count, (count, count * bytes));
        }
        (read, pages)
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("n{number}")).collect()
    }

    #[test]
    fn few_objects_are_all_read_and_no_more_than_may_be() {
        assert_eq!(read(Sample::of(None, 1000), &mut [("a", 500)], 1000), (vec![500], 6));
        assert_eq!(read(Sample::of(Some("b"), 1000), &mut [("a", 5), ("b", 7)], 1000).0, [0, 7]);
        assert_eq!(read(Sample::of(None, 250), &mut [("a", 500)], 1000).0, [250]);
    }

    #[test]
    fn a_page_that_is_too_large_is_tried_again_with_fewer_objects() {
        let names = names(2);
        let mut sample = Sample::over(&names, 100);
        let (first, limit) = sample.next().expect("a page");
        sample.was_too_large(first.clone(), limit);
        assert_eq!((limit, sample.next()), (20, Some((first, 5))));
        assert_eq!(sample.next().map(|(cursor, limit)| (cursor.namespace, limit)), Some((Some(names[1].clone()), 5)));
    }

    #[test]
    fn large_objects_come_in_small_pages() {
        let (read, pages) = read(Sample::of(None, 100), &mut [("a", 500)], 1 << 20);
        assert_eq!((read, pages), (vec![100], 41));
    }

    #[test]
    fn a_page_is_kept_if_it_is_small_or_one_object() {
        assert!(Sample::may_keep(20, LARGEST_KEPT) && Sample::may_keep(1, usize::MAX));
        assert!(!Sample::may_keep(20, LARGEST_KEPT + 1));
    }

    #[test]
    fn each_namespace_has_the_same_share_and_what_small_ones_leave_goes_to_the_others() {
        let mut there = [("n0", 10_000), ("n1", 3), ("n2", 10_000), ("n3", 0)];
        let (read, _) = read(Sample::over(&names(4), 1000), &mut there, 1000);
        assert_eq!(read[1], 3);
        assert!(read[0].abs_diff(read[2]) <= LARGEST_PAGE && read.iter().sum::<usize>() == 1000, "{read:?}");
    }

    #[test]
    fn of_many_namespaces_some_are_taken_that_are_evenly_spread() {
        let names = names(5000);
        let mut there: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 100)).collect();
        let (read, pages) = read(Sample::over(&names, 1000), &mut there, 1000);
        let taken: Vec<usize> = (0..names.len()).filter(|number| read[*number] > 0).collect();
        assert_eq!((taken.len(), taken[1], pages), (200, 25, 200));
        assert_eq!(read.iter().sum::<usize>(), 1000);
        assert_eq!(Sample::over(&names[..3], 0).next(), None);
        assert!(Sample::over(&[], 10).is_complete());
    }
}
