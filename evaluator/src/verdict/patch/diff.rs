//! The operations that lead from one JSON text to another. Sending and applying them costs no more than the texts are long.
//!
//! Objects are compared by key and lists by index. For each object and each list, either its changes are sent or the whole of it,
//! whichever is shorter. So the patch is hardly longer than the text that it leads to, whatever the texts are, except for an object
//! at the root, which is never sent as a whole. Each value is compared once: operations refer to positions in the text, nothing is
//! copied until all of them are known, and a comparison ends when its operations cost more than is left.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Instant;

use serde_json::Number;

use super::PatchError;
use super::text::{Position, Text, unescaped};

/// The longest patch, in bytes. The API server takes no object above 3 MiB, so a longer patch would be of no use. In base64, as it is
/// sent, it is a third longer.
pub(super) const MAX_PATCH: usize = 4 << 20;
/// Bytes by which a patch may be longer than the shortest one: single changes are easier to read than the whole object around them.
const SLACK: usize = 4 << 10;
/// The most elements that are added to or removed from a list one by one: applying the patch may copy the list each time.
const MAX_MOVED: usize = 16;
/// How many values are compared between two checks of the clock.
const PACE: u64 = 4096;

/// The operations that a comparison found, and what it cost.
pub(super) struct Diff<'t> {
    first: &'t Text<'t>,
    last: &'t Text<'t>,
    hashes: RandomState,
    operations: Vec<Operation>,
    steps: Vec<Step<'t>>,
    /// What is left of [`SLACK`].
    slack: usize,
    deadline: Instant,
    /// The number of values and keys that were compared.
    pub(super) looks: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Add,
    Remove,
    Replace,
}

struct Operation {
    verb: Verb,
    /// The last step of the path where it applies; none for the root.
    step: Option<usize>,
    /// The value in the last text; none where it is removed.
    value: Option<Position>,
}

/// One part of a path.
struct Step<'t> {
    before: Option<usize>,
    name: Name<'t>,
}

enum Name<'t> {
    /// A key as it is written in the text, in quotes.
    Key(&'t str),
    Index(usize),
}

/// Where the comparison is.
#[derive(Clone, Copy)]
struct Path {
    step: Option<usize>,
    /// The length of the path in JSON, in bytes.
    length: usize,
}

/// How much was found up to some point, to go back to it.
#[derive(Clone, Copy)]
struct Mark {
    operations: usize,
    steps: usize,
}

impl<'t> Diff<'t> {
    /// Compares two texts.
    ///
    /// # Errors
    /// When the patch is too long, or `deadline` passes.
    pub(super) fn of(first: &'t Text<'t>, last: &'t Text<'t>, deadline: Instant) -> Result<Self, PatchError> {
        let (operations, steps, hashes) = (Vec::new(), Vec::new(), RandomState::new());
        let mut diff = Self { first, last, hashes, operations, steps, slack: SLACK, deadline, looks: 0 };
        let root = Path { step: None, length: 0 };
        let cost = diff.value(first.root(), last.root(), root, MAX_PATCH)?;
        if cost > MAX_PATCH { Err(PatchError::TooLong) } else { Ok(diff) }
    }

    /// Whether the texts mean the same.
    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The patch (RFC 6902).
    pub(super) fn json(&self) -> String {
        let mut out = String::from("[");
        for operation in &self.operations {
            if out.len() > 1 {
                out.push(',');
            }
            out.push_str(operation.verb.opening());
            self.write_path(operation.step, &mut out);
            out.push('"');
            if let Some(value) = operation.value {
                out.push_str(",\"value\":");
                out.push_str(self.last.raw(value));
            }
            out.push('}');
        }
        out.push(']');
        out
    }

    fn write_path(&self, step: Option<usize>, out: &mut String) {
        // Texts are not nested deeply, so paths are short and this recursion is, too.
        let Some(Step { before, name }) = step.map(|step| &self.steps[step]) else { return };
        self.write_path(*before, out);
        out.push('/');
        match name {
            Name::Key(key) => out.push_str(&pointer(key)),
            Name::Index(index) => write!(out, "{index}").expect("a String takes any text"),
        }
    }

    /// Compares two values; gives the length of the operations that were found. If that is more than `most`, they are incomplete and of
    /// no use: the caller sends something else.
    fn value(&mut self, from: Position, to: Position, path: Path, most: usize) -> Result<usize, PatchError> {
        self.look()?;
        match (self.first.first_byte(from), self.last.first_byte(to)) {
            (b'{', b'{') => self.objects(from, to, path, most),
            (b'[', b'[') => self.lists(from, to, path, most),
            _ if self.is_same_scalar(from, to) => Ok(0),
            _ => Ok(self.push(Verb::Replace, path, Some(to))),
        }
    }

    fn objects(&mut self, from: Position, to: Position, path: Path, most: usize) -> Result<usize, PatchError> {
        let (mark, whole) = (self.mark(), self.whole_cost(to, path));
        let mut known = self.known(from)?;
        let (last, mut cost) = (self.last, 0);
        for (key, place) in last.members(to) {
            self.look()?;
            let key = last.key(key);
            cost += match self.take(&mut known, key) {
                Some(before) => self.below(before, place, path, Name::Key(key), self.limit(most, whole) - cost)?,
                None => self.push_below(Verb::Add, path, Name::Key(key), Some(place)),
            };
            if cost > self.limit(most, whole) {
                return Ok(if whole > most { cost } else { self.whole(mark, to, path) });
            }
        }
        known.retain(|entry| !entry.is_taken);
        known.sort_unstable_by_key(|entry| entry.key);
        for entry in known {
            self.look()?;
            cost += self.push_below(Verb::Remove, path, Name::Key(self.first.key(entry.key)), None);
            if cost > self.limit(most, whole) {
                return Ok(if whole > most { cost } else { self.whole(mark, to, path) });
            }
        }
        self.slack -= cost.saturating_sub(whole);
        Ok(cost)
    }

    fn lists(&mut self, from: Position, to: Position, path: Path, most: usize) -> Result<usize, PatchError> {
        let (mark, whole) = (self.mark(), self.whole_cost(to, path));
        let (first, last) = (self.first, self.last);
        let (mut before, mut after) = (first.items(from), last.items(to));
        let (mut cost, mut moved, mut removed) = (0, 0, 0);
        for index in 0.. {
            self.look()?;
            match (before.next(), after.next()) {
                (Some(before), Some(after)) => {
                    cost += self.below(before, after, path, Name::Index(index), self.limit(most, whole) - cost)?;
                }
                (None, Some(after)) => {
                    cost += self.push_below(Verb::Add, path, Name::Index(index), Some(after));
                    moved += 1;
                }
                (Some(_), None) => {
                    removed += 1;
                    moved += 1;
                }
                (None, None) => {
                    // From the end, so that the indices of the others stay what they were.
                    for index in (index - removed..index).rev() {
                        cost += self.push_below(Verb::Remove, path, Name::Index(index), None);
                    }
                    break;
                }
            }
            if cost > self.limit(most, whole) || moved > MAX_MOVED {
                break;
            }
        }
        let is_too_much = cost > self.limit(most, whole);
        if moved > MAX_MOVED || (is_too_much && whole <= most) {
            return Ok(self.whole(mark, to, path));
        }
        if !is_too_much {
            self.slack -= cost.saturating_sub(whole);
        }
        Ok(cost)
    }

    /// The most that the operations below a value may cost, in bytes.
    fn limit(&self, most: usize, whole: usize) -> usize {
        most.min(whole.saturating_add(self.slack))
    }

    /// Compares two values at one step below `path`. The step is kept only if an operation needs it.
    fn below(
        &mut self,
        from: Position,
        to: Position,
        path: Path,
        name: Name<'t>,
        most: usize,
    ) -> Result<usize, PatchError> {
        let mark = self.mark();
        let below = self.step(path, name);
        let cost = self.value(from, to, below, most)?;
        if self.operations.len() == mark.operations {
            self.steps.truncate(mark.steps);
        }
        Ok(cost)
    }

    fn push_below(&mut self, verb: Verb, path: Path, name: Name<'t>, value: Option<Position>) -> usize {
        let below = self.step(path, name);
        self.push(verb, below, value)
    }

    fn step(&mut self, path: Path, name: Name<'t>) -> Path {
        let length = path.length + 1 + name.length();
        self.steps.push(Step { before: path.step, name });
        Path { step: Some(self.steps.len() - 1), length }
    }

    fn push(&mut self, verb: Verb, path: Path, value: Option<Position>) -> usize {
        self.operations.push(Operation { verb, step: path.step, value });
        self.cost(verb, path, value)
    }

    /// The length of an operation in bytes, with the comma after it.
    fn cost(&self, verb: Verb, path: Path, value: Option<Position>) -> usize {
        let value = value.map_or(0, |value| ",\"value\":".len() + self.last.raw(value).len());
        verb.opening().len() + path.length + "\"},".len() + value
    }

    /// What it costs to send the whole of `to`, an object or a list, in bytes.
    fn whole_cost(&self, to: Position, path: Path) -> usize {
        let is_root_object = path.step.is_none() && self.last.first_byte(to) == b'{';
        // Not every implementation of JSON Patch can replace the root.
        if is_root_object { usize::MAX } else { self.cost(Verb::Replace, path, Some(to)) }
    }

    /// Replaces all operations that were found in `to` by one that sends the whole of it.
    fn whole(&mut self, mark: Mark, to: Position, path: Path) -> usize {
        self.operations.truncate(mark.operations);
        self.steps.truncate(mark.steps);
        self.push(Verb::Replace, path, Some(to))
    }

    fn mark(&self) -> Mark {
        Mark { operations: self.operations.len(), steps: self.steps.len() }
    }

    fn look(&mut self) -> Result<(), PatchError> {
        self.looks += 1;
        let is_late = self.looks.is_multiple_of(PACE) && Instant::now() >= self.deadline;
        if is_late { Err(PatchError::TooLate) } else { Ok(()) }
    }

    fn is_same_scalar(&self, from: Position, to: Position) -> bool {
        let (from, to) = (self.first.raw(from), self.last.raw(to));
        let number = |text: &str| serde_json::from_str::<Number>(text).ok();
        match (from.as_bytes()[0], to.as_bytes()[0]) {
            _ if from == to => true,
            (b'"', b'"') => (from.contains('\\') || to.contains('\\')) && unescaped(from) == unescaped(to),
            (b'-' | b'0'..=b'9', b'-' | b'0'..=b'9') => number(from) == number(to),
            _ => false,
        }
    }
}

/// A member of an object of the first text. There may be millions of them, so the key is not copied: its position and its hash are kept.
struct Known {
    hash: u64,
    key: u32,
    place: Position,
    is_taken: bool,
}

impl Diff<'_> {
    /// The members of an object by the hashes of their keys. Of members with the same key, the last one counts.
    fn known(&mut self, object: Position) -> Result<Vec<Known>, PatchError> {
        let first = self.first;
        let mut known = Vec::with_capacity(first.members(object).count());
        for (key, place) in first.members(object) {
            self.look()?;
            let hash = self.hashes.hash_one(&*unescaped(first.key(key)));
            known.push(Known { hash, key, place, is_taken: false });
        }
        known.sort_unstable_by_key(|entry| (entry.hash, std::cmp::Reverse(entry.key)));
        known.dedup_by(|earlier, later| {
            earlier.hash == later.hash && unescaped(first.key(earlier.key)) == unescaped(first.key(later.key))
        });
        Ok(known)
    }

    /// Takes the value of a key, which works once: if a key comes again in the last text, its later value overwrites the earlier one.
    fn take(&self, known: &mut [Known], key: &str) -> Option<Position> {
        let key = unescaped(key);
        let hash = self.hashes.hash_one(&*key);
        let at = known.partition_point(|entry| entry.hash < hash);
        let mut same = known[at..].iter_mut().take_while(|entry| entry.hash == hash);
        let entry = same.find(|entry| unescaped(self.first.key(entry.key)) == key)?;
        (!std::mem::replace(&mut entry.is_taken, true)).then_some(entry.place)
    }
}

impl Verb {
    fn opening(self) -> &'static str {
        match self {
            Self::Add => r#"{"op":"add","path":""#,
            Self::Remove => r#"{"op":"remove","path":""#,
            Self::Replace => r#"{"op":"replace","path":""#,
        }
    }
}

impl Name<'_> {
    fn length(&self) -> usize {
        match self {
            Self::Key(key) => pointer(key).len(),
            Self::Index(index) => usize::try_from(index.checked_ilog10().unwrap_or(0)).unwrap_or(0) + 1,
        }
    }
}

/// A key as part of a JSON Pointer (RFC 6901), escaped for JSON, without quotes.
fn pointer(key: &str) -> std::borrow::Cow<'_, str> {
    let inner = &key[1..key.len() - 1];
    if !inner.contains(['\\', '~', '/']) {
        return inner.into();
    }
    let part = unescaped(key).replace('~', "~0").replace('/', "~1");
    let json = serde_json::Value::String(part).to_string();
    json[1..json.len() - 1].to_owned().into()
}
