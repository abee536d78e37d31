//! Lines of `/proc/<pid>/stat`.

/// The fields of such a line from the third on, which is the state; `None` if it is not such a line. The second field, the program's name in
/// brackets, may have spaces and brackets itself.
pub fn stat_fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_follows_any_name() {
        let first = |stat| stat_fields(stat).and_then(|mut fields| fields.next());
        assert_eq!(first("4711 (a (b) c) S 1 4711"), Some("S"));
        assert_eq!(first("4711"), None);
    }
}
