//! The order of entries of which only the first ones are kept: namespaces take turns, so that one that has many takes no place from others. Pure.

use std::collections::HashMap;
use std::hash::Hash;

/// The entries by weight, the smallest first. Among those of one weight namespaces take turns, each with its entries in the order in which they
/// come. `share` gives the weight of an entry and its namespace; cluster-wide policies are like one namespace.
pub(crate) fn in_turns<T, W: Ord + Hash + Copy, N: Eq + Hash>(
    entries: impl IntoIterator<Item = T>,
    share: impl Fn(&T) -> (W, N),
) -> Vec<T> {
    let mut turns: HashMap<(W, N), usize> = HashMap::new();
    let entries = entries.into_iter().map(|entry| {
        let (weight, namespace) = share(&entry);
        let turn = turns.entry((weight, namespace)).or_default();
        *turn += 1;
        ((weight, *turn), entry)
    });
    let mut entries: Vec<_> = entries.collect();
    entries.sort_by_key(|(order, _)| *order);
    entries.into_iter().map(|(_, entry)| entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_come_first_then_turns_and_then_the_order_of_the_entries() {
        let entries = [(2, "a", 1), (1, "a", 2), (1, "a", 3), (1, "b", 4), (1, "a", 5), (1, "b", 6)];
        let ordered = in_turns(entries, |(weight, namespace, _)| (*weight, *namespace));
        assert_eq!(ordered.iter().map(|(_, _, number)| *number).collect::<Vec<_>>(), [2, 4, 3, 6, 5, 1]);
    }
}
