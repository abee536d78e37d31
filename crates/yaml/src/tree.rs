//! A JSON tree that is built from the events of a parser, within limits and without recursion.
//!
//! The order of keys and 64-bit integers stay as they were written. A value that is nested too deep is left out and
//! named, so that it does not hide the rest of its file.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Deepest nesting of a document.
pub const MAX_DEPTH: usize = 128;
/// Most values of a document, including those that an alias repeats.
const MAX_NODES: usize = 500_000;
/// Most bytes of text of a document, including those that an alias repeats.
const MAX_TEXT: usize = 16 << 20;
/// What a copy of one value takes at most, in bytes, beside its texts: an object with one field, which has room for three.
const COPY: usize = 448;

/// One document of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The line it begins on, from 1.
    pub line: usize,
    /// Its content.
    pub value: Value,
    /// The first three keys above the first value that is nested deeper than [`MAX_DEPTH`]; the value itself is null.
    pub too_deep: Option<Vec<String>>,
}

/// The rule that a document breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The map has this key already.
    #[error("the key {0:?} is there twice")]
    DoubledKey(String),
    /// The key is a list or a map.
    #[error("a key must be a plain text")]
    ComplexKey,
    /// The alias has no anchor.
    #[error("an alias names an anchor that is not complete")]
    UnknownAlias,
    /// The document is over the limits, most likely because of aliases of aliases.
    #[error(
        "the document is larger than {MAX_NODES} values or {MAX_TEXT} bytes of text, repeated ones counted each time"
    )]
    TooLarge,
    /// Copies for anchors and aliases would take more memory than the reader has for them.
    #[error("its aliases repeat more than there is memory for")]
    TooManyCopies,
}

/// Takes events and builds a [`Document`].
pub(crate) struct Builder {
    open: Vec<Open>,
    /// The number of open lists and maps inside a value that is left out.
    skipped: usize,
    root: Option<Value>,
    anchors: HashMap<usize, Anchored>,
    nodes: usize,
    text: usize,
    /// Memory that is left for copies, in bytes.
    copies: usize,
    too_deep: Option<Vec<String>>,
}

struct Open {
    content: Content,
    anchor: usize,
    /// The number of levels below this one, so far.
    depth: usize,
    nodes: usize,
    text: usize,
}

enum Content {
    List(Vec<Value>),
    Map(Map<String, Value>, Option<String>),
}

struct Anchored {
    value: Value,
    depth: usize,
    nodes: usize,
    text: usize,
}

impl Builder {
    /// A document that may take so many bytes for the copies that its anchors and aliases need.
    pub(crate) fn new(copies: usize) -> Self {
        Self {
            open: Vec::new(),
            skipped: 0,
            root: None,
            anchors: HashMap::new(),
            nodes: 0,
            text: 0,
            copies,
            too_deep: None,
        }
    }

    /// What is left for copies.
    pub(crate) fn copies(&self) -> usize {
        self.copies
    }

    /// A list begins. `anchor` is 0 for a list without one.
    pub(crate) fn list(&mut self, anchor: usize) -> Result<(), TreeError> {
        self.open(Content::List(Vec::new()), anchor)
    }

    /// A map begins.
    pub(crate) fn map(&mut self, anchor: usize) -> Result<(), TreeError> {
        self.open(Content::Map(Map::new(), None), anchor)
    }

    /// The innermost list or map ends.
    pub(crate) fn end(&mut self) -> Result<(), TreeError> {
        if self.skipped > 0 {
            self.skipped -= 1;
            return if self.skipped == 0 { self.place(Value::Null, 0, 1, 0) } else { Ok(()) };
        }
        let Some(Open { content, anchor, depth, nodes, text }) = self.open.pop() else { return Ok(()) };
        let value = match content {
            Content::List(list) => Value::Array(list),
            Content::Map(map, _) => Value::Object(map),
        };
        self.keep(anchor, &value, depth + 1, nodes, text)?;
        self.place(value, depth + 1, nodes, text)
    }

    /// Whether the next value is a key.
    pub(crate) fn wants_key(&self) -> bool {
        self.skipped == 0 && matches!(self.open.last(), Some(Open { content: Content::Map(_, None), .. }))
    }

    /// A key of the innermost map.
    pub(crate) fn key(&mut self, key: String) -> Result<(), TreeError> {
        self.count(1, key.len())?;
        let Some(Open { content: Content::Map(map, pending), text, .. }) = self.open.last_mut() else { return Ok(()) };
        if map.contains_key(&key) {
            return Err(TreeError::DoubledKey(portcullis_contract::clean(&key, 100)));
        }
        *text += key.len();
        *pending = Some(key);
        Ok(())
    }

    /// A text, number, boolean or null.
    pub(crate) fn scalar(&mut self, value: Value, anchor: usize) -> Result<(), TreeError> {
        if self.skipped > 0 {
            return Ok(());
        }
        let text = value.as_str().map_or(0, str::len);
        self.count(1, text)?;
        self.keep(anchor, &value, 0, 1, text)?;
        self.place(value, 0, 1, text)
    }

    /// The value of an anchor, once more.
    pub(crate) fn alias(&mut self, anchor: usize) -> Result<(), TreeError> {
        if self.skipped > 0 {
            return Ok(());
        }
        let Some(Anchored { value, depth, nodes, text }) = self.anchors.get(&anchor) else {
            return Err(TreeError::UnknownAlias);
        };
        let (depth, nodes, text) = (*depth, *nodes, *text);
        if self.open.len() + depth > MAX_DEPTH {
            self.note_depth();
            return self.place(Value::Null, 0, 1, 0);
        }
        if self.wants_key() {
            if !value.is_string() {
                return Err(TreeError::ComplexKey);
            }
            self.copy(1, text)?;
            let key = self.anchors[&anchor].value.as_str().unwrap_or_default().to_owned();
            return self.key(key);
        }
        self.count(nodes, text)?;
        self.copy(nodes, text)?;
        let value = self.anchors[&anchor].value.clone();
        self.place(value, depth, nodes, text)
    }

    /// The document ends. Its value is null if it had no content.
    pub(crate) fn finish(self, line: usize) -> Document {
        Document { line, value: self.root.unwrap_or(Value::Null), too_deep: self.too_deep }
    }

    fn open(&mut self, content: Content, anchor: usize) -> Result<(), TreeError> {
        if self.skipped > 0 || self.open.len() >= MAX_DEPTH {
            self.note_depth();
            self.skipped += 1;
            return Ok(());
        }
        if self.wants_key() {
            return Err(TreeError::ComplexKey);
        }
        self.count(1, 0)?;
        self.open.push(Open { content, anchor, depth: 0, nodes: 1, text: 0 });
        Ok(())
    }

    fn count(&mut self, nodes: usize, text: usize) -> Result<(), TreeError> {
        self.nodes += nodes;
        self.text += text;
        if self.nodes > MAX_NODES || self.text > MAX_TEXT { Err(TreeError::TooLarge) } else { Ok(()) }
    }

    /// Takes the memory of a copy, before it is made.
    fn copy(&mut self, nodes: usize, text: usize) -> Result<(), TreeError> {
        let left = self.copies.checked_sub(nodes * COPY + text);
        self.copies = left.ok_or(TreeError::TooManyCopies)?;
        Ok(())
    }

    fn note_depth(&mut self) {
        let keys = || {
            let pending = self.open.iter().filter_map(|open| match &open.content {
                Content::Map(_, key) => key.clone(),
                Content::List(_) => None,
            });
            pending.take(3).collect()
        };
        if self.too_deep.is_none() {
            self.too_deep = Some(keys());
        }
    }

    fn keep(&mut self, anchor: usize, value: &Value, depth: usize, nodes: usize, text: usize) -> Result<(), TreeError> {
        if anchor > 0 {
            // The copy counts like a use, so that an anchor at every level cannot cost the square of the size.
            self.count(nodes, text)?;
            self.copy(nodes, text)?;
            self.anchors.insert(anchor, Anchored { value: value.clone(), depth, nodes, text });
        }
        Ok(())
    }

    fn place(&mut self, value: Value, depth: usize, nodes: usize, text: usize) -> Result<(), TreeError> {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(value);
            return Ok(());
        };
        open.depth = open.depth.max(depth);
        open.nodes += nodes;
        open.text += text;
        match &mut open.content {
            Content::List(list) => list.push(value),
            Content::Map(map, key) => match key.take() {
                Some(key) => drop(map.insert(key, value)),
                None => return Err(TreeError::ComplexKey),
            },
        }
        Ok(())
    }
}
