//! Points in time, for people: the time, and how far it is from now.

use jiff::Timestamp;
use portcullis_api::column::age;

/// `2026-01-01T00:00:00Z (5m ago)`, or `(in 40s)`.
pub fn moment(time: Timestamp, now: Timestamp) -> String {
    format!("{} ({})", point(time), distance(time, now))
}

/// The same for a time that may be unknown: `-` then.
pub fn moment_or_dash(time: Option<Timestamp>, now: Timestamp) -> String {
    time.map_or_else(|| "-".to_owned(), |time| moment(time, now))
}

/// Adds to each future time in a text of a status how far away it is, for instance `(in 40s)`. A status cannot say that, as it is not
/// rewritten when time passes.
pub fn with_distances(text: &str, now: Timestamp) -> String {
    let word = |word: &str| {
        let bare = word.trim_end_matches([',', ';', '.', ')', ':']);
        let time: Option<Timestamp> = bare.ends_with('Z').then(|| bare.parse().ok()).flatten();
        match time.filter(|time| *time > now) {
            Some(time) => format!("{bare} ({}){}", distance(time, now), &word[bare.len()..]),
            None => word.to_owned(),
        }
    };
    text.split(' ').map(word).collect::<Vec<String>>().join(" ")
}

fn point(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn distance(time: Timestamp, now: Timestamp) -> String {
    if time > now { format!("in {}", age(now, time)) } else { format!("{} ago", age(time, now)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn a_point_and_its_distance() {
        let now = at("2026-01-01T00:00:20Z");
        assert_eq!(moment(at("2026-01-01T00:01:00.5Z"), now), "2026-01-01T00:01:00Z (in 40s)");
        assert_eq!(moment(at("2025-12-31T23:50:20Z"), now), "2025-12-31T23:50:20Z (10m ago)");
        assert_eq!(moment_or_dash(None, now), "-");
    }

    #[test]
    fn points_in_a_text() {
        let now = at("2026-01-01T00:00:20Z");
        let text = "a: RegistryTimeout, next try at 2026-01-01T00:01:00Z; since 2025-01-01T00:00:00Z";
        assert_eq!(
            with_distances(text, now),
            "a: RegistryTimeout, next try at 2026-01-01T00:01:00Z (in 40s); since 2025-01-01T00:00:00Z"
        );
    }
}
