//! Measures for how long nothing has changed, by the monotonic clock.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use portcullis_contract::{Digest, Hasher};

/// When the present state was first seen.
#[derive(Default)]
pub(crate) struct Unchanged {
    seen: Option<(Digest, Instant)>,
}

impl Unchanged {
    /// For how long this state has been seen; zero if it differs from the one before.
    pub(crate) fn since(&mut self, state: Digest) -> Duration {
        match self.seen {
            Some((seen, when)) if seen == state => when.elapsed(),
            _ => {
                self.seen = Some((state, Instant::now()));
                Duration::ZERO
            }
        }
    }
}

/// A digest of everything whose change restarts a pause.
pub(crate) fn digest(secrets: &[Option<&Secret>], is_spread: bool) -> Digest {
    let mut hasher = Hasher::default();
    for secret in secrets {
        // With lengths, so that two states never give the same bytes.
        let entries = secret.iter().flat_map(|secret| secret.data.iter().flatten());
        for (key, value) in entries {
            hasher.update(format!("{key} {} ", value.0.len()).as_bytes());
            hasher.update(&value.0);
        }
        hasher.update(b"/");
    }
    hasher.update(&[u8::from(is_spread)]);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_begins_the_pause_anew() {
        let secret = |text: &str| {
            let data = [("ca.crt".to_owned(), k8s_openapi::ByteString(text.as_bytes().to_vec()))];
            Secret { data: Some(data.into()), ..Secret::default() }
        };
        let (a, b) = (secret("a"), secret("b"));
        let mut unchanged = Unchanged::default();
        assert_eq!(unchanged.since(digest(&[Some(&a), None], true)), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        assert!(unchanged.since(digest(&[Some(&a), None], true)) > Duration::ZERO);
        for changed in
            [digest(&[Some(&b), None], true), digest(&[None, Some(&b)], true), digest(&[None, Some(&b)], false)]
        {
            assert_eq!(unchanged.since(changed), Duration::ZERO);
        }
    }
}
