//! How often Go's garbage collector runs in Kubernetes and helm while they are tested, and in the compiler that builds them: time is what
//! the tests lack, and memory there is.

use std::fs;

/// The least memory below which a program collects seldom, in MiB.
const LEAST: u64 = 1 << 10;

/// The environment of a program in Go: its collector runs a quarter as often, as long as the program stays below an eighth of the machine's
/// memory. See <https://go.dev/doc/gc-guide>.
pub(super) fn environment() -> [(&'static str, String); 2] {
    let limit = limit(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    [("GOGC", "400".to_owned()), ("GOMEMLIMIT", format!("{limit}MiB"))]
}

/// The memory below which a program collects seldom, in MiB, on a machine with this `/proc/meminfo`.
fn limit(meminfo: &str) -> u64 {
    let total =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB")?.trim().parse::<u64>().ok());
    LEAST.max(total.unwrap_or_default() / 1024 / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_collect_seldom_below_an_eighth_of_the_memory_and_a_gigabyte_at_least() {
        assert_eq!(limit("MemTotal:       25165824 kB\nMemFree:         1024 kB\n"), 3072);
        assert_eq!(limit("MemTotal:        4194304 kB\n"), 1024);
        assert_eq!(limit(""), 1024);
    }
}
