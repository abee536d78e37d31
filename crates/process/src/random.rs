//! Random numbers for jitter. They are not for secrets.

use std::hash::{BuildHasher as _, RandomState};

/// A number in [0, 1), from the randomness that the standard library seeds its hash maps with.
pub fn random() -> f64 {
    // 53 bits, which a double holds exactly.
    let bits = RandomState::new().hash_one(0_u8) >> 11;
    bits as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_are_in_their_range_and_differ() {
        let numbers: Vec<f64> = (0..100).map(|_| random()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        assert!(numbers.windows(2).any(|pair| pair[0] != pair[1]));
    }
}
