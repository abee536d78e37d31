//! `portcullis describe`: one policy in the manner of `kubectl describe`.
//!
//! Metadata and spec are shown as kubectl shows them: fields in alphabetical order, their names as words, values aligned within each run of
//! lines, lists as blocks one after the other. The status is shown in tables, as its lists are long.

use std::fmt::Write as _;

use jiff::Timestamp;
use portcullis_api::column::align;
use serde_json::{Map, Value};

use crate::events::{self, Events};
use crate::history;
use crate::item::{Item, text as safe, time};
use crate::moment::{moment, moment_or_dash, with_distances};

/// Abbreviations that stay in capitals in a label.
const ACRONYMS: [&str; 4] = ["API", "UID", "URL", "GUID"];

/// The annotation in which `kubectl apply` keeps the whole object once more. kubectl leaves it out too.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A line: its label with the indentation, and a value where it has one.
struct Line {
    label: String,
    value: Option<String>,
}

/// The text of `portcullis describe` for one policy.
pub fn describe(item: &Item, events: &Events, now: Timestamp) -> String {
    let mut lines = vec![
        line(0, "Name", item.text("/metadata/name").unwrap_or_default()),
        line(0, "Namespace", item.text("/metadata/namespace").unwrap_or_default()),
    ];
    pairs(&mut lines, "Labels", item.object.pointer("/metadata/labels"));
    pairs(&mut lines, "Annotations", item.object.pointer("/metadata/annotations"));
    lines.push(line(0, "API Version", item.text("/apiVersion").unwrap_or_default()));
    lines.push(line(0, "Kind", item.kind().to_owned()));
    for field in ["metadata", "spec"] {
        if let Value::Object(mut fields) = item.object[field].clone() {
            if field == "metadata" {
                fields.retain(|key, _| !matches!(key.as_str(), "name" | "namespace" | "labels" | "annotations"));
            }
            lines.push(Line { label: format!("{}:", label(field)), value: None });
            content(&mut lines, 1, &fields);
        }
    }
    status(&mut lines, item, now);
    let mut text = aligned(&lines);
    text.push_str(&table("Conditions", &conditions(item, now)));
    text.push_str(&table("Replicas", &replicas(item, now)));
    let omitted = item.number("/status/replicasOmitted").unwrap_or(0);
    if omitted > 0 {
        let _ = writeln!(text, "  … and {omitted} more");
    }
    text.push_str(&table("History", &history::rows(&item.history(), now)));
    text.push_str(&events::render(events, now));
    text
}

/// The part of the status that is not a list.
fn status(lines: &mut Vec<Line>, item: &Item, now: Timestamp) {
    lines.push(Line { label: "Status:".to_owned(), value: None });
    // An API server gives each policy a status, with no generation observed.
    let is_written = |status: &Map<String, Value>| status.keys().any(|field| field != "observedGeneration");
    if !item.object.get("status").and_then(Value::as_object).is_some_and(is_written) {
        lines.push(line(1, "Ready", "nobody has looked at the policy yet".to_owned()));
        return;
    }
    let summary = item.text("/status/summary").unwrap_or_default();
    lines.push(line(1, "Ready", format!("{summary} {}", item.word()).trim_start().to_owned()));
    let bytes = |field: &str| {
        let generation = item.number(&format!("/status/{field}/generation"))?;
        let digest = item.text(&format!("/status/{field}/digest")).unwrap_or_default();
        Some(format!("generation {generation}, {digest}"))
    };
    lines.extend(bytes("resolved").map(|value| line(1, "Resolved", value)));
    lines.extend(bytes("lastServed").map(|value| line(1, "Last Served", value)));
    if let Some(observed) = item.number("/status/observedGeneration") {
        lines.push(line(1, "Observed Generation", observed.to_string()));
    }
    if let Some(counts) = item.object.pointer("/status/replicaCounts") {
        let count = |name: &str| counts[name].as_i64().unwrap_or(0);
        let states = ["current", "previous", "pending", "failed", "unknown"];
        let others = states.iter().filter(|name| count(name) > 0).map(|name| format!("{} {name}", count(name)));
        let others: Vec<String> = others.collect();
        let others = if others.is_empty() { String::new() } else { format!(": {}", others.join(", ")) };
        lines.push(line(1, "Replicas", format!("{} expected{others}", count("expected"))));
    }
    if let Some(audit) = item.audit() {
        lines.push(line(1, "Audit", audit.in_words(now)));
        if !audit.examples.is_empty() {
            lines.push(line(1, "Audit Examples", audit.examples.join(", ")));
        }
        lines.extend(audit.gaps().into_iter().map(|gap| line(1, "Audit Gap", gap)));
    }
}

fn conditions(item: &Item, now: Timestamp) -> Vec<[String; 6]> {
    let row = |cells: [&str; 6]| cells.map(str::to_owned);
    let mut rows = vec![row(["Type", "Status", "Reason", "Generation", "Since", "Message"])];
    for condition in item.conditions() {
        let generation = condition.generation.to_string();
        let since = moment_or_dash(condition.since, now);
        let message = with_distances(&condition.message, now);
        rows.push(row([&condition.r#type, &condition.status, &condition.reason, &generation, &since, &message]));
    }
    rows
}

fn replicas(item: &Item, now: Timestamp) -> Vec<[String; 7]> {
    let row = |cells: [&str; 7]| cells.map(str::to_owned);
    let mut rows = vec![row(["Pod", "State", "Generation", "Reason", "Since", "Next Try", "Message"])];
    for replica in item.list("/status/replicas") {
        let word = |field: &str| safe(&replica[field]).unwrap_or_else(|| "-".to_owned());
        let at = |field: &str| moment_or_dash(time(&replica[field]), now);
        let generation = match replica["generation"].as_i64() {
            Some(0) | None => "none".to_owned(),
            Some(generation) => generation.to_string(),
        };
        let message = safe(&replica["message"]).unwrap_or_default();
        let next = match (time(&replica["nextRetryTime"]), replica["retryable"].as_bool()) {
            (Some(next), _) => moment(next, now),
            (None, Some(false)) => "needs a change".to_owned(),
            (None, _) => "-".to_owned(),
        };
        rows.push([word("pod"), word("state"), generation, word("reason"), at("since"), next, message]);
    }
    rows
}

/// A table below its name. The first row has the titles; if it is the only one, `<none>` is shown.
fn table<const N: usize>(name: &str, rows: &[[String; N]]) -> String {
    let Some((titles, entries)) = rows.split_first() else { return String::new() };
    if entries.is_empty() {
        return format!("{name}:  <none>\n");
    }
    let rule: [String; N] = std::array::from_fn(|column| "-".repeat(titles[column].chars().count()));
    let rows: Vec<[String; N]> = [titles.clone(), rule].into_iter().chain(entries.iter().cloned()).collect();
    align(&rows).iter().fold(format!("{name}:\n"), |text, line| text + "  " + line + "\n")
}

fn line(level: usize, label: &str, value: String) -> Line {
    Line { label: format!("{}{label}:", "  ".repeat(level)), value: Some(value) }
}

/// Labels or annotations, one below the other, or `<none>`.
fn pairs(lines: &mut Vec<Line>, label: &str, pairs: Option<&Value>) {
    let pairs: Vec<_> =
        pairs.and_then(Value::as_object).into_iter().flatten().filter(|(key, _)| *key != APPLIED).collect();
    if pairs.is_empty() {
        lines.push(line(0, label, "<none>".to_owned()));
    }
    for (index, (key, value)) in pairs.into_iter().enumerate() {
        let label = if index == 0 { format!("{label}:") } else { String::new() };
        lines.push(Line {
            label,
            value: Some(format!("{}: {}", portcullis_contract::clean(key, usize::MAX), text(value))),
        });
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
        // The text may be untrusted: terminal codes and line breaks must not reach the terminal.
        Value::String(text) => portcullis_contract::clean(text, usize::MAX),
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
    // The names of fields in settings are as untrusted as their values.
    portcullis_contract::clean(&words.into_iter().map(capital).collect::<Vec<String>>().join(" "), usize::MAX)
}

/// Aligns values two spaces after the longest label of their run; a line without a value ends a run.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_of_kubectl() {
        let labels = ["lastTransitionTime", "podUID", "apiVersion", "uid", "replicaCounts", "kind"].map(label);
        assert_eq!(labels, ["Last Transition Time", "Pod UID", "API Version", "UID", "Replica Counts", "Kind"]);
    }

    #[test]
    fn a_failing_policy() {
        let now = "2026-01-01T00:00:20Z".parse().expect("a time");
        let text = describe(&crate::item::tests::failing(), &Events::Hidden("no right".to_owned()), now);
        assert_eq!(
            text,
            "\
Name:         labels
Namespace:
Labels:       <none>
Annotations:  <none>
API Version:  policies.portcullis.dev/v1alpha1
Kind:         ClusterPolicy
Metadata:
  Creation Timestamp:  2025-12-31T00:00:00Z
  Generation:          4
  UID:                 9b2c41d2-a1f0-4e17-8000-0123456789ab
Spec:
  Mode:    warn
  Module:  registry://r/labels:4
  Rules:
    Operations:
      CREATE
Status:
  Ready:                0/2 ServingPrevious
  Last Served:          generation 3, sha256:33
  Observed Generation:  4
  Replicas:             2 expected: 2 previous
Conditions:
  Type       Status   Reason            Generation   Since                            Message
  ----       ------   ------            ----------   -----                            -------
  Ready      False    ServingPrevious   4            2026-01-01T00:00:00Z (20s ago)   generation 3 answers
  Degraded   True     RegistryTimeout   4            2026-01-01T00:00:00Z (20s ago)   a: RegistryTimeout, next try at 2026-01-01T00:01:00Z (in 40s)
  Stalled    False    Retrying          4            2026-01-01T00:00:00Z (20s ago)
Replicas:
  Pod   State      Generation   Reason            Since                            Next Try                        Message
  ---   -----      ----------   ------            -----                            --------                        -------
  a     Previous   3            RegistryTimeout   2026-01-01T00:00:00Z (20s ago)   2026-01-01T00:01:00Z (in 40s)   no [31manswer
  … and 1 more
History:
  Generation   Served   Since                            Reason            Digest
  ----------   ------   -----                            ------            ------
  4            no       2026-01-01T00:00:00Z (20s ago)   RegistryTimeout   -
  3            yes      2025-12-31T03:00:00Z (21h ago)   -                 sha256:33
  2            no       2025-12-31T02:00:00Z (22h ago)   SettingsInvalid   -
  1            yes      2025-12-31T01:00:00Z (23h ago)   -                 sha256:11
Events:  <not shown: no right>
"
        );
    }

    #[test]
    fn what_the_audit_found() {
        let mut item = crate::item::tests::failing();
        item.object["status"]["audit"] = serde_json::json!({
            "scannedAt": "2026-01-01T00:00:00Z", "generation": 4, "checked": 12, "violations": 2, "errors": 0,
            "examples": ["Pod team-a/web-1", "Pod team-a/web-2"], "unreadable": ["services"],
        });
        let text = describe(&item, &Events::Known(vec![]), "2026-01-01T00:05:00Z".parse().expect("a time"));
        for line in [
            "  Audit:                2 of 12 objects are rejected; scanned 2026-01-01T00:00:00Z (5m ago)\n",
            "  Audit Examples:       Pod team-a/web-1, Pod team-a/web-2\n",
            "  Audit Gap:            could not be listed: services (chart: rbac.auditReads)\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn what_the_audit_found_is_shown_also_where_nothing_else_is_known() {
        let mut item = crate::item::tests::failing();
        // The API server gives each policy the first field.
        item.object["status"] = serde_json::json!({"observedGeneration": -1});
        let told = |item: &Item| describe(item, &Events::Known(vec![]), Timestamp::UNIX_EPOCH);
        assert!(told(&item).contains("\nStatus:\n  Ready:  nobody has looked at the policy yet\n"));
        item.object["status"]["audit"] = serde_json::json!({"checked": 12, "violations": 2});
        let text = told(&item);
        assert!(text.contains("Audit:                2 of 12 objects are rejected; scanned -\n"), "{text}");
        assert!(!text.contains("nobody has looked"), "{text}");
    }

    #[test]
    fn names_of_fields_write_no_codes_and_no_lines_to_a_terminal() {
        let mut item = crate::item::tests::failing();
        let hostile = "a\u{1b}[2J\nName: other";
        item.object["spec"]["settings"] = serde_json::json!({hostile: {"x\u{9b}1m": [{"\r\ny": 1}]}});
        item.object["metadata"]["annotations"] = serde_json::json!({hostile: "x"});
        let text = describe(&item, &Events::Known(vec![]), Timestamp::UNIX_EPOCH);
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("Name: other")), "{text}");
        assert!(
            text.contains("    A [2 J Name: other:\n      X 1m:\n") && text.contains("a [2J Name: other: x\n"),
            "{text}"
        );
    }

    #[test]
    fn what_kubectl_remembers_is_left_out() {
        let mut item = crate::item::tests::failing();
        item.object["metadata"]["annotations"] = serde_json::json!({APPLIED: "{}", "team": "a"});
        let text = describe(&item, &Events::Known(vec![]), Timestamp::UNIX_EPOCH);
        assert!(text.contains("\nAnnotations:  team: a\nAPI Version:"), "{text}");
    }

    #[test]
    fn a_policy_that_nobody_has_looked_at() {
        let mut item = crate::item::tests::failing();
        item.object["status"] = Value::Null;
        let text = describe(&item, &Events::Known(vec![]), Timestamp::UNIX_EPOCH);
        assert!(
            text.contains("\nStatus:\n  Ready:  nobody has looked at the policy yet\nConditions:  <none>\n"),
            "{text}"
        );
    }
}
