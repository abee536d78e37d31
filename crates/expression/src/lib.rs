//! The expression of a policy group (docs/design/policy-abi.md, section 10): CEL whose only functions are the group's members, with `==`,
//! `!=`, `||`, `&&` and `!`.
//!
//! [`Expression::parse`] checks it when the group is loaded. [`Expression::evaluate`] is pure: it returns the value of the expression as
//! far as members have answered, or the members that must be asked next. [`match_condition`] judges CEL that API servers evaluate: match
//! conditions.
#![forbid(unsafe_code)]

mod condition;
mod evaluate;
mod parse;

use std::collections::BTreeSet;

pub use condition::{ConditionError, match_condition};
pub use evaluate::{Answers, MemberAnswer, State};

/// Longest expression, in bytes.
pub const MAX_LENGTH: usize = 2048;
/// Deepest nesting of an expression.
pub const MAX_DEPTH: u16 = 64;

/// A checked expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression(Node);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    /// `true` or `false`.
    Literal(bool),
    /// `name()`.
    Member(String),
    Not(Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Equal(Box<Node>, Box<Node>),
}

/// Why an expression cannot be used. The texts quote the expression, which is not secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// It is longer than [`MAX_LENGTH`].
    #[error("it has {0} bytes, and {MAX_LENGTH} are allowed")]
    TooLong(usize),
    /// It is not CEL, or nested too deep.
    #[error("it is not a CEL expression: {0}")]
    Syntax(String),
    /// It has an operator, a value or a macro that groups may not use.
    #[error(
        "it uses {0}; a group's expression has only calls of members such as `a()`, `&&`, `||`, `!`, `==`, `!=`, `true` and `false`"
    )]
    Unsupported(String),
    /// It names a member without calling it.
    #[error("it names `{0}` without calling it: write `{0}()`")]
    NotCalled(String),
    /// It calls a member with arguments.
    #[error("it calls `{0}` with arguments, and members take none: write `{0}()`")]
    Arguments(String),
    /// It calls something that is not a member.
    #[error("it calls `{called}()`, and the group has no such member; its members are {}", list(.members))]
    UnknownMember {
        /// The name that is called.
        called: String,
        /// The names of the members.
        members: Vec<String>,
    },
}

impl Expression {
    /// Parses and checks the expression of a group with these members.
    ///
    /// # Errors
    /// When it is too long, is not CEL, calls anything but members, or cannot be true or false.
    pub fn parse<'m>(text: &str, members: impl IntoIterator<Item = &'m str>) -> Result<Self, ExpressionError> {
        let expression = Self(parse::parse(text)?);
        let members: BTreeSet<&str> = members.into_iter().collect();
        if let Some(called) = expression.calls().into_iter().find(|called| !members.contains(called)) {
            let members = members.into_iter().map(str::to_owned).collect();
            return Err(ExpressionError::UnknownMember { called: called.to_owned(), members });
        }
        Ok(expression)
    }

    /// The members that it calls.
    pub fn calls(&self) -> BTreeSet<&str> {
        let mut called = BTreeSet::new();
        let mut nodes = vec![&self.0];
        while let Some(node) = nodes.pop() {
            match node {
                Node::Literal(_) => {}
                Node::Member(name) => {
                    called.insert(name.as_str());
                }
                Node::Not(inner) => nodes.push(inner),
                Node::And(left, right) | Node::Or(left, right) | Node::Equal(left, right) => {
                    nodes.extend([&**left, &**right]);
                }
            }
        }
        called
    }
}

fn list(names: &[String]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}
