//! The word that the user probably meant. Pure.

/// Longest word that is compared, in bytes.
const LONGEST: usize = 64;
/// Most letters that differ.
const MOST: usize = 2;

/// The candidate nearest to a word, if one is near enough: one letter may differ, in longer words two.
pub(super) fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    if word.len() > LONGEST {
        return None;
    }
    let most = (word.chars().count() / 2).clamp(1, MOST);
    let near = |candidate: &'c str| {
        let is_near = candidate != word && candidate.len().abs_diff(word.len()) <= 4 * MOST;
        let distance = is_near.then(|| distance(word, candidate))?;
        (distance <= most).then_some((distance, candidate))
    };
    candidates.into_iter().filter_map(near).min().map(|(_, candidate)| candidate)
}

/// How many letters must be inserted, removed or replaced to turn one word into the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (number, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = number + 1;
        for (column, found) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *found);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_near_is_meant() {
        let words = ["pods", "deployments", "exec", "services"];
        for (word, meant) in [
            ("pod", Some("pods")),
            ("deploymets", Some("deployments")),
            ("exce", Some("exec")),
            ("serveces", Some("services")),
            ("po", None),
            ("nodes", Some("pods")),
            ("ingresses", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, words), meant, "{word}");
        }
        assert_eq!(nearest(&"x".repeat(LONGEST + 1), words), None);
        assert_eq!(nearest("pods", ["pods"]), None);
    }

    #[test]
    fn letters_are_counted() {
        for (one, other, letters) in [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("größe", "grosse", 3)] {
            assert_eq!(distance(one, other), letters, "{one} {other}");
        }
    }
}
