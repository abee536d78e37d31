//! Rows as a table in Markdown, and rows from such a table.

use serde_json::{Number, Value};

/// The suffixes by which fields of rows name their unit, and how the unit is written.
const UNITS: [(&str, &str); 7] =
    [("_ms", "ms"), ("_us", "µs"), ("_s", "s"), ("_mib", "MiB"), ("_kib", "KiB"), ("_percent", "%"), ("_mb", "MB")];

/// A table in Markdown. The first field of a row names it. If there are more fields than rows, the rows become columns, because pages
/// are narrow.
pub(crate) fn written(rows: &[Value]) -> String {
    let Some(Value::Object(first)) = rows.first() else { return String::new() };
    let fields: Vec<&String> = first.keys().collect();
    let head = fields.iter().map(|field| title(field)).collect::<Vec<_>>();
    let body = rows.iter().map(|row| fields.iter().map(|field| cell(&row[field.as_str()])).collect::<Vec<_>>());
    let mut table: Vec<Vec<String>> = [head].into_iter().chain(body).collect();
    if fields.len() > table.len() {
        table = transposed(&table);
    }
    let rule = vec!["---".to_owned(); table[0].len()];
    table.insert(1, rule);
    table.iter().map(|row| format!("| {} |\n", row.join(" | "))).collect()
}

/// The rows of the table in a text; none if it has no table. `field` is a field of the rows that is not their first: it shows whether
/// the rows stand as rows or as columns.
pub(crate) fn read(text: &str, field: &str) -> Vec<Value> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix('|')?.strip_suffix('|'));
    let mut table: Vec<Vec<String>> =
        lines.map(|line| line.split('|').map(|cell| cell.trim().to_owned()).collect()).collect();
    table.retain(|row| row.iter().any(|cell| cell != "---"));
    let is_head = |row: &Vec<String>| row.contains(&title(field));
    if !table.first().is_some_and(is_head) {
        table = transposed(&table);
    }
    let Some((head, body)) = table.split_first() else { return Vec::new() };
    let fields: Vec<String> = head.iter().map(|title| named(title)).collect();
    let row = |cells: &Vec<String>| fields.iter().cloned().zip(cells.iter().map(|cell| value(cell))).collect();
    body.iter().map(|cells| Value::Object(row(cells))).collect::<Vec<Value>>()
}

fn transposed(table: &[Vec<String>]) -> Vec<Vec<String>> {
    let columns = table.iter().map(Vec::len).min().unwrap_or_default();
    (0..columns).map(|column| table.iter().map(|row| row[column].clone()).collect()).collect()
}

/// A figure in the form in which it is shown.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => format!("{:.3}", number.as_f64().unwrap_or_default()),
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// The figure that is shown like this.
fn value(cell: &str) -> Value {
    match serde_json::from_str::<Number>(cell) {
        Ok(number) => Value::Number(number),
        Err(_) if cell == "-" => Value::Null,
        Err(_) => Value::String(cell.to_owned()),
    }
}

/// The title of a field, with its unit.
pub(crate) fn title(field: &str) -> String {
    let unit = UNITS.iter().find_map(|(end, unit)| Some((field.strip_suffix(end)?, unit)));
    let words = |name: &str| name.replace("p99_9", "p99.9").replace('_', " ");
    match unit {
        Some((name, unit)) => format!("{}, {unit}", words(name)),
        None => words(field),
    }
}

/// The field with this title.
fn named(title: &str) -> String {
    let unit = title.rsplit_once(", ").and_then(|(name, unit)| {
        let (end, _) = UNITS.iter().find(|(_, written)| *written == unit)?;
        Some((name, *end))
    });
    let (name, end) = unit.unwrap_or((title, ""));
    format!("{}{end}", name.replace(['.', ' '], "_"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(phase: &str, time: f64) -> Value {
        json!({"a_phase": phase, "p99_ms": time, "writes": null})
    }

    #[test]
    fn few_rows_with_many_fields_are_columns() {
        let table = written(&[row("one", 1.5)]);
        assert_eq!(table, "| a phase | one |\n| --- | --- |\n| p99, ms | 1.500 |\n| writes | - |\n");
        let table = written(&[row("one", 1.0), row("two", 2.0)]);
        assert!(
            table.starts_with("| a phase | p99, ms | writes |\n| --- | --- | --- |\n| one | 1.000 | - |\n"),
            "{table}"
        );
        assert_eq!(written(&[]), "");
    }

    #[test]
    fn a_field_and_its_title_name_each_other() {
        let both = [("p99_9_ms", "p99.9, ms"), ("api_server_cpu_s", "api server cpu, s"), ("policies", "policies")];
        for (field, shown) in both {
            assert_eq!((title(field), named(shown)), (shown.to_owned(), field.to_owned()));
        }
    }

    #[test]
    fn rows_are_read_back_from_rows_and_from_columns() {
        let columns = [json!({"callers": 8, "server": "a, b", "p99_9_ms": 1.5, "cpu_ms": null})];
        let rows = [row("one", 1.0), row("two", -2.25)];
        for (rows, field) in [(&columns[..], "p99_9_ms"), (&rows[..], "p99_ms")] {
            let page = format!("Measured.\n\n![a](b)\n\n{}", written(rows));
            assert_eq!(read(&page, field), rows);
        }
        assert_eq!(read("No table.", "p99_ms"), Vec::<Value>::new());
    }
}
