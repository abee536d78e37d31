//! Measures for how long nothing has changed, by the monotonic clock.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use portcullis_contract::{Digest, Hasher};

use super::bundle::CaBundle;

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

/// For how long authorities have been missing in the Secrets.
#[derive(Default)]
pub(crate) struct Missing(Unchanged);

impl Missing {
    /// Those of the `replaced` authorities that stay trusted: all of them for as long as `pause`. No other change of the Secrets prolongs that,
    /// or it would not end while a tool reverts each write.
    pub(crate) fn trusted(&mut self, authority: &CaBundle, replaced: CaBundle, pause: Duration) -> CaBundle {
        let mut hasher = Hasher::default();
        hasher.update(format!("{}/{}", authority.pem(), replaced.pem()).as_bytes());
        if self.0.since(hasher.finish()) < pause { replaced } else { CaBundle::default() }
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
    use super::super::authority::Authority;
    use super::super::decide::tests::{now, rules};
    use super::*;

    #[test]
    fn replaced_authorities_stay_trusted_for_one_pause() {
        let bundle = || Authority::make(&rules(), now()).expect("an authority").bundle();
        let (stored, old, older) = (bundle(), bundle(), bundle());
        let pause = Duration::from_millis(1);
        let mut missing = Missing::default();
        assert_eq!(missing.trusted(&stored, old.clone(), pause), old);
        std::thread::sleep(pause * 2);
        assert!(missing.trusted(&stored, old.clone(), pause).is_empty());
        assert_eq!(missing.trusted(&stored, older.clone(), pause), older, "the pause is that of other authorities");
        assert_eq!(missing.trusted(&old, older.clone(), pause), older, "somebody replaced the Secrets again");
        assert!(missing.trusted(&stored, CaBundle::default(), pause).is_empty());
        assert_eq!(missing.trusted(&stored, old.clone(), pause), old, "it was stored meanwhile");
    }

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
