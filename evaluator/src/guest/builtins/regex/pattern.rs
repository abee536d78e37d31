//! A compiled regular expression, and what it may take to compile it and to search with it.
//!
//! As in OPA, whose expressions are those of RE2, `\d`, `\s`, `\w` and `\b` know ASCII only; all else is Unicode. The rest of RE2's syntax
//! is translated before.

use std::borrow::Cow;
use std::convert::Infallible;
use std::time::Duration;

use regex_automata::Match;
use regex_automata::meta::{self, Regex};
use regex_automata::nfa::thompson::{self, Compiler, WhichCaptures};
use regex_automata::util::captures::Captures;
use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::{
    self, AssertionKind, Ast, ClassPerl, ClassPerlKind, ClassSetBinaryOp, ClassSetItem, Flag, Span, Visitor,
};
use regex_syntax::hir::translate::Translator;

use super::super::work::used;
use super::super::{BuiltinError, Effort, Work};
use super::re2;

/// Longest expression, in bytes. Its parsed form takes some hundreds of times as much memory.
const MAX_PATTERN: usize = 4096;
/// Deepest nesting of groups and classes.
const MAX_NESTING: u32 = 100;
/// Most characters of a range that is not wide.
const NARROW: u32 = 4096;
/// Most memory of the places of groups, in words: a search may remember each group for each state.
const MAX_PLACES: usize = 1 << 19;

/// What one call may take.
#[derive(Clone, Copy)]
struct Limits {
    /// The most memory of a compiled expression, in bytes.
    size: usize,
    /// Most classes such as `\w` or `\pL`. Each becomes hundreds of ranges before the size of the whole is known.
    classes: usize,
    /// Most classes that may have every character in them and are to be matched in either case: each character is looked up.
    folded: usize,
    /// The largest product of an expression's states and a text's bytes: what a single search costs at worst.
    work: usize,
    /// Processor time for all searches together, looked at whenever they may have cost as much as `work`.
    time: Duration,
}

impl Limits {
    fn of(effort: Effort) -> Self {
        match effort {
            // About a tick at worst.
            Effort::Little => {
                let (time, work) = (Duration::from_millis(2), 1_000_000);
                Self { size: 64 << 10, classes: 16, folded: 0, work, time }
            }
            // A fraction of a second at worst.
            Effort::Full => {
                let (time, work) = (Duration::from_millis(200), 50_000_000);
                Self { size: 1 << 20, classes: 256, folded: 16, work, time }
            }
        }
    }
}

/// A compiled expression, for texts up to a certain length.
pub(super) struct Pattern<'w> {
    pub(super) regex: Regex,
    /// What a byte of a text costs at worst.
    cost: usize,
    limits: Limits,
    work: &'w Work,
}

impl<'w> Pattern<'w> {
    /// Compiles an expression for a text of `length` bytes.
    pub(super) fn new(
        pattern: &str,
        length: usize,
        work: &'w Work,
        groups: WhichCaptures,
    ) -> Result<Self, BuiltinError> {
        let limits = Limits::of(work.effort);
        let odd = || BuiltinError::Form("it is not a regular expression");
        let large = || BuiltinError::TooMuchWork("the regular expression is too large");
        if pattern.len() > MAX_PATTERN {
            return Err(BuiltinError::LongPattern(MAX_PATTERN));
        }
        let parse = |pattern: &str, nesting| {
            let ast = ParserBuilder::new().nest_limit(nesting).build().parse(pattern);
            ast.map_err(|error| match error.kind() {
                ast::ErrorKind::NestLimitExceeded(_) => large(),
                _ => odd(),
            })
        };
        let mut pattern = Cow::from(re2::translated(pattern).ok_or_else(odd)?);
        let mut ast = parse(&pattern, MAX_NESTING)?;
        let Ok(classes) = ast::visit(&ast, Classes::default());
        if classes.all > limits.classes || (classes.fold && classes.wide > limits.folded) {
            return Err(BuiltinError::TooMuchWork("the regular expression has too many classes of characters"));
        }
        if !classes.unicode.is_empty() {
            pattern = classes.in_ascii(&pattern).into();
            ast = parse(&pattern, MAX_NESTING + 1)?;
        }
        let hir = Translator::new().translate(&pattern, &ast).map_err(|_| odd())?;
        let config = thompson::Config::new().nfa_size_limit(Some(limits.size)).which_captures(groups);
        let nfa = Compiler::new().configure(config).build_from_hir(&hir).map_err(|_| large())?;
        let (states, places) = (nfa.states().len(), nfa.group_info().slot_len());
        if states.saturating_mul(places) > MAX_PLACES {
            return Err(BuiltinError::TooMuchWork("the regular expression has too many groups"));
        }
        // Each step copies the places of the groups.
        let cost = states.saturating_mul(1 + places / 16);
        if cost.saturating_mul(length) > limits.work {
            return Err(BuiltinError::TooMuchWork("the regular expression is too large for a text of this length"));
        }
        let config = meta::Config::new().nfa_size_limit(Some(limits.size)).hybrid_cache_capacity(limits.size);
        let config = config.onepass_size_limit(Some(limits.size)).which_captures(groups);
        let regex = Regex::builder().configure(config).build_from_hir(&hir).map_err(|_| large())?;
        work.in_time()?;
        Ok(Self { regex, cost, limits, work })
    }

    /// All matches in a text, one after the other, until they take too long.
    pub(super) fn matches(&self, text: &str) -> impl Iterator<Item = Result<Match, BuiltinError>> {
        let mut meter = Meter::new(self, text.len());
        self.regex.find_iter(text).map(move |found| meter.found(found.end(), 0).map(|()| found))
    }

    /// All matches with their groups. The caller does `more` work with each of them.
    pub(super) fn captures(&self, text: &str, more: usize) -> impl Iterator<Item = Result<Captures, BuiltinError>> {
        let mut meter = Meter::new(self, text.len());
        self.regex.captures_iter(text).map(move |found| {
            let end = found.get_match().map_or(text.len(), |whole| whole.end());
            meter.found(end, more).map(|()| found)
        })
    }
}

/// What the searches in a text have cost. Each may look at all that is left of the text, even if it finds a match at once, so the sum may
/// grow with the square of the length; as a rule it does not, so the clock decides.
struct Meter<'w> {
    limits: Limits,
    work: &'w Work,
    cost: usize,
    left: usize,
    length: usize,
    spent: usize,
    begin: Duration,
}

impl<'w> Meter<'w> {
    fn new(pattern: &Pattern<'w>, length: usize) -> Self {
        Self {
            limits: pattern.limits,
            work: pattern.work,
            cost: pattern.cost,
            left: length,
            length,
            spent: 0,
            begin: used(),
        }
    }

    /// Counts a search with a match that ends at `end`, and `more` work.
    fn found(&mut self, end: usize, more: usize) -> Result<(), BuiltinError> {
        self.spent += self.cost * (self.left + 1) + more;
        self.left = self.length - end;
        if self.spent > self.limits.work {
            self.spent = 0;
            self.work.in_time()?;
            if used() - self.begin > self.limits.time {
                return Err(BuiltinError::TooMuchWork("the regular expression takes too long with this text"));
            }
        }
        Ok(())
    }
}

/// Counts the classes of an expression.
#[derive(Default)]
struct Classes {
    all: usize,
    /// Those that may have every character in them; a class of classes counts as three, as it is gone over as often.
    wide: usize,
    /// Whether some part is matched in either case.
    fold: bool,
    /// The places of what would be Unicode and is ASCII in OPA, in order, and what says the same in ASCII.
    unicode: Vec<(Span, &'static str)>,
}

impl Classes {
    fn count(&mut self, wide: usize) {
        self.all += 1;
        self.wide += wide;
    }

    /// Notes a class such as `\d`. The same in brackets may be a part of another class.
    fn perl(&mut self, class: &ClassPerl) {
        let ascii = match (&class.kind, class.negated) {
            (ClassPerlKind::Digit, false) => "[0-9]",
            (ClassPerlKind::Digit, true) => "[^0-9]",
            (ClassPerlKind::Space, false) => r"[\t\n\f\r\x20]",
            (ClassPerlKind::Space, true) => r"[^\t\n\f\r\x20]",
            (ClassPerlKind::Word, false) => "[0-9A-Za-z_]",
            (ClassPerlKind::Word, true) => "[^0-9A-Za-z_]",
        };
        self.unicode.push((class.span, ascii));
    }

    /// The expression with the classes of ASCII in their places.
    fn in_ascii(&self, pattern: &str) -> String {
        let (mut text, mut done) = (String::new(), 0);
        for (span, ascii) in &self.unicode {
            text.push_str(&pattern[done..span.start.offset]);
            text.push_str(ascii);
            done = span.end.offset;
        }
        text + &pattern[done..]
    }
}

impl Visitor for Classes {
    type Output = Self;
    type Err = Infallible;

    fn finish(mut self) -> Result<Self, Infallible> {
        self.unicode.sort_by_key(|(place, _)| place.start.offset);
        Ok(self)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Infallible> {
        let flags = match ast {
            Ast::ClassUnicode(_) => {
                self.count(1);
                None
            }
            Ast::ClassPerl(class) => {
                self.count(0);
                self.perl(class);
                None
            }
            Ast::Assertion(assertion) => {
                let ascii = match assertion.kind {
                    AssertionKind::WordBoundary => Some(r"(?-u:\b)"),
                    AssertionKind::NotWordBoundary => Some(r"(?-u:\B)"),
                    _ => None,
                };
                self.unicode.extend(ascii.map(|ascii| (assertion.span, ascii)));
                None
            }
            Ast::Flags(set) => Some(&set.flags),
            Ast::Group(group) => group.flags(),
            _ => None,
        };
        self.fold |= flags.is_some_and(|flags| flags.flag_state(Flag::CaseInsensitive) == Some(true));
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), Infallible> {
        match item {
            ClassSetItem::Unicode(_) => self.count(1),
            ClassSetItem::Perl(class) => {
                self.count(usize::from(class.negated));
                self.perl(class);
            }
            ClassSetItem::Ascii(class) => self.wide += usize::from(class.negated),
            ClassSetItem::Range(range) => {
                self.wide += usize::from(u32::from(range.end.c).abs_diff(range.start.c.into()) > NARROW);
            }
            ClassSetItem::Bracketed(_) => self.wide += 3,
            ClassSetItem::Empty(_) | ClassSetItem::Literal(_) | ClassSetItem::Union(_) => {}
        }
        Ok(())
    }

    fn visit_class_set_binary_op_pre(&mut self, _: &ClassSetBinaryOp) -> Result<(), Infallible> {
        self.wide += 3;
        Ok(())
    }
}
