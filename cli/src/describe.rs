//! `portcullis describe`: one policy in the layout of `kubectl describe`.
//!
//! Fields in alphabetical order, labels in words, values in a column that is as wide as its run of lines needs, lists as
//! blocks one after the other.

use jiff::Timestamp;
use portcullis_api::column::{age, align};
use portcullis_api::{ObservedPolicy, PolicyEvent};
use serde_json::{Map, Value};

/// Abbreviations that stay in capitals in a label.
const ACRONYMS: [&str; 4] = ["API", "UID", "URL", "GUID"];

/// A line: its label with the indentation, and a value where it has one.
struct Line {
    label: String,
    value: Option<String>,
}

/// The text of `portcullis describe` for one policy.
///
/// # Errors
/// None that an object read from a file can cause.
pub fn describe<'e>(
    policy: &ObservedPolicy,
    events: impl Iterator<Item = &'e PolicyEvent>,
    now: Timestamp,
) -> serde_json::Result<String> {
    let metadata = &policy.metadata;
    let mut lines = vec![
        line(0, "Name", metadata.name.clone()),
        line(0, "Namespace", metadata.namespace.clone().unwrap_or_default()),
    ];
    pairs(&mut lines, "Labels", &metadata.labels);
    pairs(&mut lines, "Annotations", &metadata.annotations);
    lines.push(line(0, "API Version", policy.api_version.clone()));
    let object = serde_json::to_value(policy)?;
    lines.push(line(0, "Kind", text(&object["kind"])));
    for field in ["metadata", "spec", "status"] {
        if let Value::Object(mut fields) = object[field].clone() {
            if field == "metadata" {
                fields.retain(|key, _| !matches!(key.as_str(), "name" | "namespace" | "labels" | "annotations"));
            }
            lines.push(Line { label: format!("{}:", label(field)), value: None });
            content(&mut lines, 1, &fields);
        }
    }
    let mut text = aligned(&lines);
    text.push_str(&event_table(events, now));
    Ok(text)
}

fn line(level: usize, label: &str, value: String) -> Line {
    Line { label: format!("{}{label}:", "  ".repeat(level)), value: Some(value) }
}

/// Labels or annotations: `<none>`, or one below the other.
fn pairs(lines: &mut Vec<Line>, label: &str, pairs: &std::collections::BTreeMap<String, String>) {
    if pairs.is_empty() {
        lines.push(line(0, label, "<none>".to_owned()));
    }
    for (index, (key, value)) in pairs.iter().enumerate() {
        let label = if index == 0 { format!("{label}:") } else { String::new() };
        lines.push(Line { label, value: Some(format!("{key}: {value}")) });
    }
}

fn content(lines: &mut Vec<Line>, level: usize, fields: &Map<String, Value>) {
    let mut keys: Vec<&String> = fields.keys().collect();
    keys.sort();
    for key in keys {
        let heading = || Line { label: format!("{}{}:", "  ".repeat(level), label(key)), value: None };
        match &fields[key] {
            Value::Object(inner) => {
                lines.push(heading());
                content(lines, level + 1, inner);
            }
            Value::Array(items) => {
                lines.push(heading());
                for item in items {
                    match item {
                        Value::Object(inner) => content(lines, level + 1, inner),
                        other => lines
                            .push(Line { label: format!("{}{}", "  ".repeat(level + 1), text(other)), value: None }),
                    }
                }
            }
            other => lines.push(line(level, &label(key), text(other))),
        }
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".to_owned(),
        other => other.to_string(),
    }
}

/// `lastTransitionTime` as `Last Transition Time`, `podUID` as `Pod UID`.
fn label(field: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut last_was_upper = true;
    for c in field.chars() {
        match words.last_mut() {
            Some(word) if !c.is_uppercase() || last_was_upper => word.push(c),
            _ => words.push(c.to_string()),
        }
        last_was_upper = c.is_uppercase();
    }
    let capital = |word: String| {
        let upper = word.to_uppercase();
        if ACRONYMS.contains(&upper.as_str()) {
            return upper;
        }
        let mut letters = word.chars();
        letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
    };
    words.into_iter().map(capital).collect::<Vec<String>>().join(" ")
}

/// Values stand two spaces behind the longest label of their run; a line without a value ends a run.
fn aligned(lines: &[Line]) -> String {
    let mut out = String::new();
    for run in lines.chunk_by(|a, b| a.value.is_some() == b.value.is_some()) {
        let width = run.iter().map(|line| line.label.chars().count()).max().unwrap_or(0);
        for Line { label, value } in run {
            let row = value.as_ref().map_or_else(|| label.clone(), |value| format!("{label:<width$}  {value}"));
            out.push_str(row.trim_end());
            out.push('\n');
        }
    }
    out
}

fn event_table<'e>(events: impl Iterator<Item = &'e PolicyEvent>, now: Timestamp) -> String {
    let row = |cells: [&str; 5]| cells.map(str::to_owned);
    let mut rows =
        vec![row(["Type", "Reason", "Age", "From", "Message"]), row(["----", "------", "----", "----", "-------"])];
    for event in events {
        let last = age(event.last_time, now);
        let age = match event.count {
            1 => last,
            count => format!("{last} (x{count} over {})", age(event.first_time, now)),
        };
        rows.push(row([event.r#type.as_str(), &event.reason, &age, "portcullis-reporter", &event.note]));
    }
    if rows.len() == 2 {
        return "Events:  <none>\n".to_owned();
    }
    align(&rows).iter().fold("Events:\n".to_owned(), |text, line| text + "  " + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_of_kubectl() {
        let labels = ["lastTransitionTime", "podUID", "apiVersion", "uid", "replicaCounts", "kind"].map(label);
        assert_eq!(labels, ["Last Transition Time", "Pod UID", "API Version", "UID", "Replica Counts", "Kind"]);
    }
}
