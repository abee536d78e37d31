//! The live table as lines of text: a row for each policy, then what is being loaded and what fails, with the reasons. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use portcullis_api::column::{TITLES, columns, short_duration};
use portcullis_api::{ConditionType, ObservedPolicy, Truth};
use portcullis_contract::{Activity, LoaderState, Phase, PolicyId, Reason};

/// Columns that are left out on a narrow terminal, in this order, by their index in [`TITLES`].
const DISPENSABLE: [usize; 3] = [4, 3, 6];
/// The number of spaces between two columns.
const GAP: usize = 3;
/// Length of a progress bar.
const BAR: usize = 20;

/// The terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// The width, in columns.
    pub width: usize,
    /// The height, in lines.
    pub height: usize,
}

/// How a piece of text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Plain,
    Good,
    Busy,
    Bad,
    Title,
}

impl Look {
    fn of(word: &str) -> Self {
        match word {
            "Active" => Self::Good,
            "Error" | "Degraded" | "NoReplicas" => Self::Bad,
            _ => Self::Busy,
        }
    }

    fn paint(self, text: &str, colour: bool) -> String {
        let code = match self {
            Self::Plain => return text.to_owned(),
            Self::Good => "32",
            Self::Busy => "33",
            Self::Bad => "31",
            Self::Title => "1",
        };
        if colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// The lines of the live table; at most one less than the terminal has, so that redrawing never scrolls.
pub fn frame(
    objects: &BTreeMap<PolicyId, ObservedPolicy>,
    loader: Option<&LoaderState>,
    problems: &[String],
    now: Timestamp,
    size: Size,
    colour: bool,
) -> Vec<String> {
    let most = size.height.saturating_sub(1).max(3);
    let mut notes = notes(objects, loader, problems, now, size.width, colour);
    // The table is more important than the notes below it.
    let table_lines = objects.len() + 1;
    let room = most.saturating_sub(table_lines).max(most / 2);
    if notes.len() > room {
        notes.truncate(room.saturating_sub(1));
        notes.push(fit("… `portcullis describe` shows the rest", size.width));
    }
    let mut lines = if objects.is_empty() {
        let is_empty = loader.is_some_and(|loader| loader.complete && loader.policies.is_empty());
        vec![fit(if is_empty { "no policy yet" } else { "starting" }, size.width)]
    } else {
        table(objects, now, most.saturating_sub(notes.len()), size.width, colour)
    };
    lines.append(&mut notes);
    lines
}

fn table(
    objects: &BTreeMap<PolicyId, ObservedPolicy>,
    now: Timestamp,
    room: usize,
    width: usize,
    colour: bool,
) -> Vec<String> {
    let mut shown: Vec<_> = objects.iter().collect();
    let omitted = (shown.len() + 1).saturating_sub(room);
    if omitted > 0 {
        // Policies that are not Active come first, so that they stay visible.
        shown.sort_by_key(|(id, object)| (object.status.word() == "Active", *id));
        shown.truncate(room.saturating_sub(2).max(1));
    }
    let rows = shown.iter().map(|(id, object)| columns(id.as_str(), object, now));
    let rows: Vec<[String; 7]> = std::iter::once(TITLES.map(str::to_owned)).chain(rows).collect();
    let mut widths: [usize; 7] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let total = |widths: &[usize; 7]| widths.iter().filter(|w| **w > 0).map(|w| w + GAP).sum::<usize>() - GAP;
    for column in DISPENSABLE {
        if total(&widths) > width {
            widths[column] = 0;
        }
    }
    let excess = total(&widths).saturating_sub(width);
    widths[0] = widths[0].saturating_sub(excess).max(12);
    let mut lines: Vec<String> = rows
        .iter()
        .enumerate()
        .map(|(index, row)| {
            let cells = (0..7).filter(|column| widths[*column] > 0).map(|column| {
                let (text, wide) = (fit(&row[column], widths[column]), widths[column]);
                let look = match (index, column) {
                    (0, _) => Look::Title,
                    (_, 2) => Look::of(&row[2]),
                    _ => Look::Plain,
                };
                let padding = " ".repeat(wide.saturating_sub(text.chars().count()));
                look.paint(&text, colour) + &padding
            });
            cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
        })
        .collect();
    let hidden = objects.len() - shown.len();
    if hidden > 0 {
        lines.push(fit(&format!("… and {hidden} more; `portcullis get` shows all"), width));
    }
    lines
}

/// The notes below the table: what is being loaded, what fails and why, and what is wrong with the pod or its input.
fn notes(
    objects: &BTreeMap<PolicyId, ObservedPolicy>,
    loader: Option<&LoaderState>,
    problems: &[String],
    now: Timestamp,
    width: usize,
    colour: bool,
) -> Vec<String> {
    let mut notes = Vec::new();
    for (id, object) in objects {
        let degraded = object.status.condition(ConditionType::Degraded).filter(|c| c.status == Truth::True);
        // An evaluator that does not answer is a problem of the pod, which is shown only once.
        let lacks_context = object.status.word() == "ContextNotSynced";
        if lacks_context || degraded.is_some_and(|degraded| degraded.reason != Reason::EvaluatorUnreachable.as_str()) {
            let ready = object.status.condition(ConditionType::Ready);
            let words = ready.map_or("", |condition| condition.message.as_str());
            let look = Look::of(object.status.word());
            notes.extend(paragraph(&format!("{id}: {words}"), width).iter().map(|line| look.paint(line, colour)));
        }
    }
    for policy in loader.iter().flat_map(|loader| &loader.policies) {
        let Some(activity) = &policy.activity else { continue };
        let doing = match policy.phase {
            Phase::Fetching => progress("fetching", activity, now),
            Phase::Compiling => progress("compiling", activity, now),
            Phase::Queued | Phase::Published | Phase::Failed => continue,
        };
        notes.push(fit(&format!("{}: {doing}", policy.id), width));
    }
    for problem in problems {
        notes.extend(paragraph(problem, width).iter().map(|line| Look::Bad.paint(line, colour)));
    }
    if !notes.is_empty() {
        notes.insert(0, String::new());
    }
    notes
}

/// `fetching [#######-------------] 1.2 of 3.3 MB, 4s`.
fn progress(doing: &str, activity: &Activity, now: Timestamp) -> String {
    let time = short_duration(now.duration_since(activity.since).try_into().unwrap_or_default());
    match (activity.bytes, activity.total) {
        (0, None) => format!("{doing}, {time}"),
        (bytes, None) => format!("{doing} {} MB, {time}", megabytes(bytes)),
        (bytes, Some(total)) => {
            format!("{doing} {} {} of {} MB, {time}", bar(bytes, total), megabytes(bytes), megabytes(total))
        }
    }
}

/// A progress bar.
fn bar(bytes: u64, total: u64) -> String {
    // A source may send more than it announced; other code cuts it off.
    let share = u128::from(bytes.min(total)) * BAR as u128 / u128::from(total.max(1));
    let done = usize::try_from(share).unwrap_or(BAR);
    format!("[{}{}]", "#".repeat(done), "-".repeat(BAR - done))
}

/// Megabytes with one digit behind the point.
fn megabytes(bytes: u64) -> String {
    let tenths = bytes.saturating_add(50_000) / 100_000;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// A text cut to `width` characters.
fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Words in lines of at most `width` characters; further lines begin with two spaces. A word longer than a line is cut
/// into pieces.
fn paragraph(text: &str, width: usize) -> Vec<String> {
    let width = width.max(20);
    let mut lines = Vec::new();
    let mut line = String::new();
    for mut word in text.split_whitespace() {
        loop {
            let used = line.chars().count();
            let space = usize::from(!line.trim().is_empty());
            if used + space + word.chars().count() <= width {
                line.push_str(if space == 1 { " " } else { "" });
                line.push_str(word);
                break;
            }
            if line.trim().is_empty() {
                let end = word.char_indices().nth(width - used).map_or(word.len(), |(index, _)| index);
                line.push_str(&word[..end]);
                word = &word[end..];
            }
            lines.push(std::mem::replace(&mut line, "  ".to_owned()));
        }
    }
    if !line.trim().is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests;
