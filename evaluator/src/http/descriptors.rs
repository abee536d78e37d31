//! File descriptors: raises their limit to what connections need, and limits connections to the descriptors that are available.

use portcullis_process::raise_descriptors;

/// Descriptors for files, and for the probe and state ports, which must answer when the admission port is full.
const RESERVE: u64 = 320;
/// The fewest connections, however few descriptors there are.
const LEAST: u64 = 16;

/// Raises this process's limit of descriptors to what `connections` need, as far as it may, and returns how many connections there
/// can be.
pub(crate) fn make_room_for(connections: u32) -> u32 {
    let wanted = u64::from(connections) + RESERVE;
    let descriptors = raise_descriptors(wanted);
    let possible = possible(connections, descriptors);
    if possible < connections {
        tracing::warn!(
            descriptors,
            wanted,
            connections = possible,
            "fewer connections than --max-connections, as this process may not have more descriptors; raise its limit (nofile)"
        );
    }
    possible
}

/// How many connections there can be with so many descriptors; none means that descriptors have no limit.
fn possible(connections: u32, descriptors: Option<u64>) -> u32 {
    let room = descriptors.map_or(u64::MAX, |descriptors| descriptors.saturating_sub(RESERVE).max(LEAST));
    connections.min(u32::try_from(room).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        assert_eq!(possible(4096, None), 4096);
        assert_eq!(possible(4096, Some(1 << 20)), 4096);
        assert_eq!(possible(4096, Some(1024)), 704);
        assert_eq!(possible(4096, Some(64)), 16);
        assert_eq!(possible(8, Some(64)), 8);
    }
}
