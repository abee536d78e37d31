//! `portcullis get`: policies in a table, or as objects.

use jiff::Timestamp;
use portcullis_api::column::{TITLES, age, align};

use crate::args::OutputForm;
use crate::item::{Item, objects};

/// The indexes in [`TITLES`] of the columns that `kubectl get` shows only with `-o wide`.
const WIDE: [usize; 2] = [4, 5];

/// The text of `portcullis get`. `single` is true if the user named a policy.
///
/// # Errors
/// When the output cannot be encoded, which no object that was read can cause.
pub fn get(items: &[Item], single: bool, form: OutputForm, now: Timestamp) -> anyhow::Result<String> {
    match form {
        OutputForm::Table => Ok(table(items, false, now)),
        OutputForm::Wide => Ok(table(items, true, now)),
        OutputForm::Name => Ok(items.iter().map(|item| format!("{}\n", item.id)).collect()),
        OutputForm::Json => Ok(serde_json::to_string_pretty(&objects(items, single))? + "\n"),
        OutputForm::Yaml => Ok(portcullis_yaml::write(&objects(items, single))?),
    }
}

fn table(items: &[Item], wide: bool, now: Timestamp) -> String {
    if items.is_empty() {
        return String::new();
    }
    let rows = items.iter().map(|item| row(item, now));
    let rows: Vec<[String; 7]> = std::iter::once(TITLES.map(str::to_owned)).chain(rows).collect();
    let lines = if wide {
        align(&rows)
    } else {
        let kept = |row: [String; 7]| -> [String; 5] {
            let mut cells = row.into_iter().enumerate().filter(|(place, _)| !WIDE.contains(place));
            std::array::from_fn(|_| cells.next().map(|(_, cell)| cell).unwrap_or_default())
        };
        align(&rows.into_iter().map(kept).collect::<Vec<_>>())
    };
    lines.join("\n") + "\n"
}

/// The cells of a policy; `-` for what is not known.
fn row(item: &Item, now: Timestamp) -> [String; 7] {
    let dash = || "-".to_owned();
    let degraded = item.condition("Degraded").filter(|condition| condition.status != "False");
    [
        item.id.to_string(),
        item.text("/status/summary").filter(|text| !text.is_empty()).unwrap_or_else(dash),
        item.word(),
        item.text("/spec/mode").unwrap_or_else(dash),
        item.number("/status/lastServed/generation").map_or_else(dash, |generation| generation.to_string()),
        degraded.map_or_else(dash, |condition| condition.reason),
        item.created().map_or_else(dash, |created| age(created, now)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::tests::failing;

    #[test]
    fn a_policy_without_status_has_dashes() {
        let mut item = failing();
        item.object["status"] = serde_json::Value::Null;
        item.object["metadata"]["creationTimestamp"] = serde_json::Value::Null;
        let text = get(&[item], false, OutputForm::Wide, Timestamp::UNIX_EPOCH).expect("a table");
        assert_eq!(
            text,
            "\
NAME             READY   STATUS    MODE   GENERATION   REASON   AGE
cluster/labels   -       Unknown   warn   -            -        -
"
        );
    }
}
