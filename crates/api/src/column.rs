//! Printer columns (docs/design/status-api.md, section 4.3) and tables in the style of `kubectl get`.

use std::time::Duration;

use jiff::Timestamp;

use crate::{ConditionType, ObservedPolicy, Truth};

/// The titles of [`columns`].
pub const TITLES: [&str; 7] = ["NAME", "READY", "STATUS", "MODE", "GENERATION", "REASON", "AGE"];

/// The row of one policy. Unknown values are shown as `-`.
pub fn columns(name: &str, policy: &ObservedPolicy, now: Timestamp) -> [String; 7] {
    let status = &policy.status;
    let reason = status
        .condition(ConditionType::Degraded)
        .filter(|condition| condition.status != Truth::False)
        .map_or("-", |condition| condition.reason.as_str());
    [
        name.to_owned(),
        status.summary.clone(),
        status.word().to_owned(),
        policy.spec.mode.as_str().to_owned(),
        status.last_served.as_ref().map_or_else(|| "-".to_owned(), |served| served.generation.to_string()),
        reason.to_owned(),
        policy.metadata.creation_timestamp.map_or_else(|| "-".to_owned(), |created| age(created, now)),
    ]
}

/// The time from `then` to `now` as `kubectl` writes it: `59s`, `5m30s`, `12m`, `3h5m`, `10h`, `3d4h`, `12d`, `2y`.
pub fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = u64::try_from(now.as_second().saturating_sub(then.as_second())).unwrap_or(0);
    short_duration(Duration::from_secs(seconds))
}

/// A duration as `kubectl` writes it.
pub fn short_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let pair = |major: u64, unit: &str, minor: u64, small: &str| {
        if minor == 0 { format!("{major}{unit}") } else { format!("{major}{unit}{minor}{small}") }
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => pair(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => pair(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => pair(days, "d", hours % 24, "h"),
        () if days < 730 => format!("{days}d"),
        () => format!("{}y", days / 365),
    }
}

/// The lines of a table, with columns as wide as their widest cell, three spaces between them, and no trailing spaces.
pub fn align<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let widths: [usize; N] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    rows.iter()
        .map(|row| {
            let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            cells.join("   ").trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_those_of_kubectl() {
        let ages = [0, 119, 120, 330, 600, 10_799, 10_800, 28_799, 28_800, 172_800, 270_000, 691_200, 63_072_000];
        let text: Vec<String> = ages.iter().map(|age| short_duration(Duration::from_secs(*age))).collect();
        assert_eq!(text, ["0s", "119s", "2m", "5m30s", "10m", "179m", "3h", "7h59m", "8h", "2d", "3d3h", "8d", "2y"]);
    }

    #[test]
    fn a_clock_that_went_back_makes_no_negative_age() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(age(now + Duration::from_secs(5), now), "0s");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        assert_eq!(align(&[row("NAME", "AGE"), row("cluster/a", "5s")]), ["NAME        AGE", "cluster/a   5s"]);
    }
}
