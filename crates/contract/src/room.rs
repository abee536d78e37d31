//! How much of a disk a tenant may fill. Both programs that fill one go by it.

/// How many more bytes somebody may have on a disk of `size` bytes, of which `used` are taken.
///
/// Who comes first may have all that is free. Anybody else has `own` bytes of what is used, and may take as long as no less is free
/// after that than he has himself then. So a namespace that floods a disk alone ends at half of it, two of them at a third each, and
/// there is always as much left for whoever comes next. Nothing that is there must go for it, and nobody who uses little is ever held
/// up by who uses much (known from switches as dynamic thresholds).
pub fn allowance(size: u64, used: u64, own: Option<u64>) -> u64 {
    let free = size.saturating_sub(used);
    own.map_or(free, |own| free.saturating_sub(own) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where tenants end that take as much as they can, one byte each in turn.
    fn flood(size: u64, tenants: usize) -> Vec<u64> {
        let mut own = vec![0; tenants];
        while let Some(n) = (0..tenants).min_by_key(|n| own[*n]) {
            if allowance(size, own.iter().sum(), Some(own[n])) == 0 {
                break;
            }
            own[n] += 1;
        }
        own
    }

    #[test]
    fn z08_whoever_floods_leaves_as_much_as_he_has() {
        assert_eq!(allowance(100, 0, Some(0)), 50);
        assert_eq!(flood(1000, 1), [500]);
        assert!(flood(1000, 3).iter().all(|own| (245..=250).contains(own)));
        assert_eq!(allowance(1000, 500, Some(0)), 250, "who comes after one that floods");
        assert_eq!(allowance(1000, 750, Some(500)), 0, "who has more than is free");
    }

    #[test]
    fn z08_who_comes_first_may_have_all_that_is_free() {
        assert_eq!(allowance(100, 90, None), 10);
        assert_eq!(allowance(100, 110, None), 0);
    }
}
