//! The limit of file descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit of file descriptors to `wanted`, or as close as the hard limit allows, and returns the limit that is then in force;
/// `None` if there is no limit.
/// Container runtimes begin with a limit of 1024 that every process may raise.
pub fn raise_descriptors(wanted: u64) -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        // If this is refused, the limit stays what it was, and it is read again below.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    }
    getrlimit(Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_never_lowered() {
        let before = raise_descriptors(0);
        let most = getrlimit(Resource::Nofile).maximum;
        let wanted = before.map_or(0, |before| before + 1);
        let possible = most.map_or(wanted, |most| most.min(wanted));
        assert_eq!(raise_descriptors(wanted), before.map(|before| before.max(possible)));
        assert!(raise_descriptors(1) >= before.map(|before| before.max(1)));
    }
}
