//! The name of a cluster.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Error;

/// 1 to 40 characters of a-z, 0-9 and -, as it is a part of file names and of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// A name that no other cluster has, made from this process's id and a number.
    pub fn unused() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        Self(format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let fits = (1..=40).contains(&text.len());
        let plain = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if fits && plain { Ok(Self(text.to_owned())) } else { Err(Error::Name(text.to_owned())) }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_plain() {
        assert_eq!("dev-2".parse::<Name>().unwrap().as_str(), "dev-2");
        for bad in ["", "Dev", "a/b", "a b", &"a".repeat(41)] {
            assert!(matches!(bad.parse::<Name>(), Err(Error::Name(_))), "{bad}");
        }
    }

    #[test]
    fn unused_names_differ() {
        assert_ne!(Name::unused(), Name::unused());
    }
}
