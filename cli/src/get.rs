//! `portcullis get`: policies in a table, or as objects.

use std::fmt::Write as _;

use jiff::Timestamp;
use portcullis_api::ObservedPolicy;
use portcullis_api::column::{TITLES, align, columns};
use portcullis_contract::PolicyId;
use serde_json::{Value, json};

use crate::args::OutputForm;

/// The places of the columns that `kubectl get` shows only with `-o wide`, in [`TITLES`].
const WIDE: [usize; 2] = [4, 5];

/// The text of `portcullis get`. `single` is when the user named a policy.
///
/// # Errors
/// None that an object read from a file can cause.
pub fn get(
    policies: &[&(PolicyId, ObservedPolicy)],
    single: bool,
    form: OutputForm,
    now: Timestamp,
) -> anyhow::Result<String> {
    match form {
        OutputForm::Table => Ok(table(policies, false, now)),
        OutputForm::Wide => Ok(table(policies, true, now)),
        OutputForm::Name => Ok(policies.iter().fold(String::new(), |mut text, (id, _)| {
            let _ = writeln!(text, "{id}");
            text
        })),
        OutputForm::Json => Ok(serde_json::to_string_pretty(&objects(policies, single)?)? + "\n"),
        OutputForm::Yaml => Ok(serde_yaml_ng::to_string(&objects(policies, single)?)?),
    }
}

fn objects(policies: &[&(PolicyId, ObservedPolicy)], single: bool) -> serde_json::Result<Value> {
    match policies {
        [(_, object)] if single => serde_json::to_value(object),
        several => {
            let items: Vec<&ObservedPolicy> = several.iter().map(|(_, object)| object).collect();
            Ok(json!({"apiVersion": "v1", "kind": "List", "items": items}))
        }
    }
}

fn table(policies: &[&(PolicyId, ObservedPolicy)], wide: bool, now: Timestamp) -> String {
    if policies.is_empty() {
        return String::new();
    }
    let rows = policies.iter().map(|(id, object)| columns(id.as_str(), object, now));
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
