//! Events on a policy, of a cluster or a folder, as `describe` shows them.

use jiff::Timestamp;
use portcullis_api::PolicyEvent;
use portcullis_api::column::{age, align};
use serde_json::Value;

use crate::item::{text, time};

/// One event, or a series of equal ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventView {
    /// `Normal` or `Warning`.
    pub r#type: String,
    /// What happened, in one word.
    pub reason: String,
    /// What happened, in words.
    pub note: String,
    /// The component that reports it.
    pub from: String,
    /// How often it happened.
    pub count: i64,
    /// When it happened first.
    pub first: Timestamp,
    /// When it happened last.
    pub last: Timestamp,
}

/// What is known of a policy's events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Events {
    /// The events.
    Known(Vec<EventView>),
    /// Why they cannot be read.
    Hidden(String),
}

impl EventView {
    /// An event of a folder's reporter.
    pub fn of_folder(event: &PolicyEvent) -> Self {
        Self {
            r#type: event.r#type.as_str().to_owned(),
            reason: portcullis_contract::clean(&event.reason, 128),
            note: portcullis_contract::clean(&event.note, 1024),
            from: "portcullis-reporter".to_owned(),
            count: event.count.into(),
            first: event.first_time,
            last: event.last_time,
        }
    }

    /// An event of the API server, from `events.k8s.io` or from the core group, which has other names for the fields.
    pub fn of_object(event: &Value) -> Option<Self> {
        let either = |new: &str, old: &str| {
            let found = event.pointer(new).filter(|value| !value.is_null());
            found.or_else(|| event.pointer(old))
        };
        let at = |new: &str, old: &str| either(new, old).and_then(time);
        let created = || event.pointer("/metadata/creationTimestamp").and_then(time);
        let first = at("/eventTime", "/firstTimestamp").or_else(|| at("/deprecatedFirstTimestamp", "/firstTimestamp"));
        let first = first.or_else(created)?;
        let last = at("/series/lastObservedTime", "/lastTimestamp")
            .or_else(|| at("/deprecatedLastTimestamp", "/lastTimestamp"));
        let count = either("/series/count", "/count").or_else(|| event.pointer("/deprecatedCount"));
        let reporter = either("/reportingController", "/reportingComponent").and_then(text);
        let reporter = reporter.filter(|name| !name.is_empty());
        Some(Self {
            r#type: text(&event["type"]).unwrap_or_default(),
            reason: text(&event["reason"]).unwrap_or_default(),
            note: either("/note", "/message").and_then(text).unwrap_or_default(),
            from: reporter.or_else(|| text(event.pointer("/source/component")?)).unwrap_or_default(),
            count: count.and_then(Value::as_i64).unwrap_or(1).max(1),
            first,
            last: last.unwrap_or(first),
        })
    }
}

/// The last part of `describe`.
pub fn render(events: &Events, now: Timestamp) -> String {
    let events = match events {
        Events::Hidden(why) => return format!("Events:  <not shown: {why}>\n"),
        Events::Known(events) if events.is_empty() => return "Events:  <none>\n".to_owned(),
        Events::Known(events) => events,
    };
    // The line below `Age` is longer than the word, as in kubectl.
    let titles = [["Type", "Reason", "Age", "From", "Message"], ["----", "------", "----", "----", "-------"]];
    let mut rows: Vec<[String; 5]> = titles.iter().map(|row| row.map(str::to_owned)).collect();
    for event in events {
        let last = age(event.last, now);
        let age = match event.count {
            1 => last,
            count => format!("{last} (x{count} over {})", age(event.first, now)),
        };
        let EventView { r#type, reason, from, note, .. } = event.clone();
        rows.push([r#type, reason, age, from, note]);
    }
    align(&rows).iter().fold("Events:\n".to_owned(), |text, line| text + "  " + line + "\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_series_says_how_often() {
        let event = json!({
            "type": "Warning", "reason": "RegistryTimeout", "note": "0 of 2 replicas serve generation 4",
            "reportingController": "policies.portcullis.dev/reporter", "eventTime": "2026-01-01T00:00:00.000000Z",
            "series": {"count": 3, "lastObservedTime": "2026-01-01T00:02:00.000000Z"}, "deprecatedCount": null,
        });
        let event = EventView::of_object(&event).expect("an event");
        let now = "2026-01-01T00:05:00Z".parse().expect("a time");
        assert_eq!(
            render(&Events::Known(vec![event]), now),
            "\
Events:
  Type      Reason            Age               From                               Message
  ----      ------            ----              ----                               -------
  Warning   RegistryTimeout   3m (x3 over 5m)   policies.portcullis.dev/reporter   0 of 2 replicas serve generation 4
"
        );
    }

    #[test]
    fn the_core_group_has_other_names() {
        let event = json!({
            "type": "Normal", "reason": "Active", "message": "generation 1 answers", "eventTime": null, "count": 2,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:01:00Z",
            "source": {"component": "x"}, "reportingComponent": "",
        });
        let event = EventView::of_object(&event).expect("an event");
        assert_eq!((event.note.as_str(), event.from.as_str(), event.count), ("generation 1 answers", "x", 2));
        assert_ne!(event.first, event.last);
    }

    #[test]
    fn events_that_may_not_be_read_are_said_to_be_so() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(render(&Events::Hidden("no right".to_owned()), now), "Events:  <not shown: no right>\n");
        assert_eq!(render(&Events::Known(vec![]), now), "Events:  <none>\n");
    }
}
