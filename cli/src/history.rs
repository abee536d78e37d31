//! `portcullis history`: the newest generations of a policy, and whether they served.

use jiff::Timestamp;
use portcullis_api::column::align;
use serde_json::{Value, json};

use crate::args::OutputForm;
use crate::item::{HistoryView, Item};
use crate::moment::moment_or_dash;

/// How much of a digest is shown to distinguish generations, in bytes: `sha256:` and 12 digits.
const SHORT_DIGEST: usize = 19;

/// Titles, then a row for each generation, newest first.
pub fn rows(history: &[HistoryView], now: Timestamp) -> Vec<[String; 5]> {
    let titles = ["Generation", "Served", "Since", "Reason", "Digest"].map(str::to_owned);
    std::iter::once(titles).chain(history.iter().map(|entry| row(entry, now))).collect()
}

fn row(entry: &HistoryView, now: Timestamp) -> [String; 5] {
    let or_dash = |text: Option<&String>| text.cloned().unwrap_or_else(|| "-".to_owned());
    [
        entry.generation.to_string(),
        if entry.served { "yes" } else { "no" }.to_owned(),
        moment_or_dash(entry.time, now),
        or_dash(entry.reason.as_ref()),
        or_dash(entry.digest.as_ref()),
    ]
}

/// The text of `portcullis history`.
///
/// # Errors
/// None that an object which was read can cause.
pub fn history(item: &Item, form: OutputForm, now: Timestamp) -> anyhow::Result<String> {
    let history = item.history();
    let lines = |lines: Vec<String>| if lines.len() > 1 { lines.join("\n") + "\n" } else { String::new() };
    match form {
        OutputForm::Name => Ok(history.iter().map(|entry| format!("{}\n", entry.generation)).collect()),
        OutputForm::Json => Ok(serde_json::to_string_pretty(&object(item))? + "\n"),
        OutputForm::Yaml => Ok(portcullis_yaml::write(&object(item))?),
        OutputForm::Wide | OutputForm::Table => {
            let mut rows = rows(&history, now);
            rows[0] = rows[0].clone().map(|title| title.to_uppercase());
            if form == OutputForm::Table {
                for row in &mut rows {
                    if row[4].starts_with("sha256:") {
                        row[4].truncate(SHORT_DIGEST);
                    }
                }
            }
            Ok(lines(align(&rows)))
        }
    }
}

/// The entries as they are in the status, with the id of their policy.
fn object(item: &Item) -> Value {
    let history = item.list("/status/history");
    json!({"policy": item.id, "generation": item.generation(), "rollbackTo": item.rollback_to(), "history": history})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::tests::failing;

    #[test]
    fn a_table_newest_first() {
        let now = "2026-01-01T00:00:20Z".parse().expect("a time");
        let text = history(&failing(), OutputForm::Table, now).expect("a table");
        assert_eq!(
            text,
            "\
GENERATION   SERVED   SINCE                            REASON            DIGEST
4            no       2026-01-01T00:00:00Z (20s ago)   RegistryTimeout   -
3            yes      2025-12-31T03:00:00Z (21h ago)   -                 sha256:33
2            no       2025-12-31T02:00:00Z (22h ago)   SettingsInvalid   -
1            yes      2025-12-31T01:00:00Z (23h ago)   -                 sha256:11
"
        );
        assert_eq!(history(&failing(), OutputForm::Name, now).expect("numbers"), "4\n3\n2\n1\n");
    }

    #[test]
    fn objects_for_scripts() {
        let text = history(&failing(), OutputForm::Json, Timestamp::UNIX_EPOCH).expect("JSON");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&value["policy"], &value["history"][1]["served"]), (&"cluster/labels".into(), &true.into()));
    }

    #[test]
    fn without_history_there_is_no_table() {
        let mut item = failing();
        item.object["status"]["history"] = Value::Null;
        assert_eq!(history(&item, OutputForm::Table, Timestamp::UNIX_EPOCH).expect("nothing"), "");
    }
}
