//! Which expressions are evaluated at all, and how much an evaluation costs at most.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, EntryExpr, Expr, operators};
use serde_json::Value;

/// Deepest nesting of an expression.
pub(super) const MAX_DEPTH: u16 = 48;
/// Largest object on which expressions are evaluated, in bytes.
const MAX_OBJECT: u64 = 256 << 10;
/// Most steps for all conditions of a policy together; each step handles a piece of the object. Conditions on an object of a file are evaluated
/// twice, and have as many each time.
pub(super) const MAX_STEPS: u64 = 2_000_000;
/// Most steps for one condition of a request: enough for a hundred comparisons of metadata of 256 KiB, the most that annotations may have.
pub(super) const MAX_BRIEF_STEPS: u64 = 500_000;
/// How much of an object is handled in one step, in bytes.
const PIECE: u64 = 64;
/// Most bytes that an evaluation copies.
const MAX_COPIED: u64 = 4 << 20;

/// Operators that mean the same here as in an API server.
const OPERATORS: [&str; 19] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
    operators::IN,
    operators::NOT_STRICTLY_FALSE,
];
/// Those of them that do not look at the whole of a value.
const LOGICAL: [&str; 6] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::INDEX,
    operators::NOT_STRICTLY_FALSE,
];
/// Methods that mean the same here as in an API server.
const METHODS: [&str; 4] = ["contains", "endsWith", "size", "startsWith"];
/// The function that means the same here as in an API server.
const FUNCTION: &str = "size";

/// How large an object is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    bytes: u64,
    /// The number of entries of the longest list or mapping.
    longest: u64,
}

impl Size {
    pub(super) fn of(object: &Value) -> Self {
        let mut size = Self { bytes: 0, longest: 1 };
        let mut waiting = vec![object];
        while let Some(value) = waiting.pop() {
            let (bytes, entries) = match value {
                Value::String(text) => (text.len(), 0),
                Value::Array(entries) => {
                    waiting.extend(entries);
                    (0, entries.len())
                }
                Value::Object(fields) => {
                    waiting.extend(fields.values());
                    (fields.keys().map(String::len).sum(), fields.len())
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => (0, 0),
            };
            size.bytes = size.bytes.saturating_add(number(bytes)).saturating_add(8);
            size.longest = size.longest.max(number(entries));
        }
        size
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), longest: self.longest.max(other.longest) }
    }

    pub(super) fn is_too_large(self) -> bool {
        self.bytes > MAX_OBJECT
    }
}

/// What decides how long an expression takes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    /// The number of its parts.
    parts: u64,
    /// How deep its loops are nested.
    loops: u32,
    /// How many of its parts look at whole values, as comparisons do. The others look at one field.
    comparisons: u64,
    /// How many of its parts make lists or mappings from values that may be large.
    copies: u64,
    /// The number of entries of the longest list or mapping that is written in the expression.
    longest: u64,
}

impl Cost {
    /// The cost of an expression; `None` if it has parts that are not evaluated here.
    pub(super) fn of(expression: &IdedExpr) -> Option<Self> {
        let mut cost = Self::default();
        cost.add(expression, 0, 0)?;
        Some(cost)
    }

    /// Whether an evaluation takes linear time and copies nothing: it has no loops, and makes no lists or texts.
    pub(super) fn is_brief(&self) -> bool {
        self.loops == 0 && self.copies == 0
    }

    /// The most steps that an evaluation of a brief expression takes.
    pub(super) fn brief_steps(&self, size: Size) -> u64 {
        self.parts.saturating_add(self.comparisons.saturating_mul(size.bytes / PIECE + 1))
    }

    /// The most steps that an evaluation takes; `None` if it might take too much memory.
    pub(super) fn steps(&self, size: Size) -> Option<u64> {
        // A value that the expression itself makes has at most this many entries for each copy.
        let longest = size.longest.max(self.longest).saturating_mul(self.copies + 1);
        let rounds = longest.saturating_pow(self.loops);
        let steps = rounds.saturating_mul(self.parts).saturating_mul(size.bytes / PIECE + 1);
        let copied = rounds.saturating_mul(self.copies).saturating_mul(size.bytes);
        (copied <= MAX_COPIED).then_some(steps)
    }

    fn add(&mut self, expression: &IdedExpr, depth: u16, loops: u32) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        let depth = depth + 1;
        self.parts += 1;
        self.loops = self.loops.max(loops);
        match &expression.expr {
            Expr::Ident(_) | Expr::Literal(_) => Some(()),
            Expr::Select(select) => self.add(&select.operand, depth, loops),
            Expr::List(list) => {
                let is_plain = list.elements.iter().all(|element| matches!(element.expr, Expr::Literal(_)));
                self.copies += u64::from(!is_plain);
                self.longest = self.longest.max(number(list.elements.len()));
                if !list.optional_indices.is_empty() {
                    return None;
                }
                list.elements.iter().try_for_each(|element| self.add(element, depth, loops))
            }
            Expr::Map(map) => {
                self.copies += 1;
                self.longest = self.longest.max(number(map.entries.len()));
                map.entries.iter().try_for_each(|entry| match &entry.expr {
                    EntryExpr::MapEntry(entry) if !entry.optional => {
                        self.add(&entry.key, depth, loops)?;
                        self.add(&entry.value, depth, loops)
                    }
                    EntryExpr::MapEntry(_) | EntryExpr::StructField(_) => None,
                })
            }
            Expr::Call(call) => {
                is_known(call).then_some(())?;
                self.copies += u64::from(call.func_name == operators::ADD);
                self.comparisons += u64::from(!LOGICAL.contains(&call.func_name.as_str()));
                if let Some(target) = &call.target {
                    self.add(target, depth, loops)?;
                }
                call.args.iter().try_for_each(|argument| self.add(argument, depth, loops))
            }
            Expr::Comprehension(comprehension) => {
                if comprehension.iter_var2.is_some() {
                    return None;
                }
                self.add(&comprehension.iter_range, depth, loops)?;
                self.add(&comprehension.accu_init, depth, loops)?;
                let inner = [&comprehension.loop_cond, &comprehension.loop_step, &comprehension.result];
                inner.into_iter().try_for_each(|part| self.add(part, depth, loops + 1))
            }
            Expr::Struct(_) | Expr::Unspecified => None,
        }
    }
}

fn is_known(call: &CallExpr) -> bool {
    let name = call.func_name.as_str();
    match call.target {
        Some(_) => METHODS.contains(&name),
        None => name == FUNCTION || OPERATORS.contains(&name),
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
