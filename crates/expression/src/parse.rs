//! Turns the text into a [`Node`]. The `cel` crate parses it; syntax that groups may not use is refused here, by name.

use cel::common::ast::{CallExpr, Expr, LiteralValue, operators};
use cel::parser::PrattParser;
use portcullis_contract::clean;

use crate::{ExpressionError, MAX_DEPTH, MAX_LENGTH, Node};

/// How much of a parser's message is quoted, in bytes.
const MAX_QUOTE: usize = 200;

pub(crate) fn parse(text: &str) -> Result<Node, ExpressionError> {
    if text.len() > MAX_LENGTH {
        return Err(ExpressionError::TooLong(text.len()));
    }
    node(tree(text, MAX_DEPTH)?)
}

/// The tree of any CEL expression that is not nested deeper than `depth`.
pub(crate) fn tree(text: &str, depth: u16) -> Result<Expr, ExpressionError> {
    let parsed = PrattParser::new().max_recursion_depth(depth).parse(text);
    let parsed = parsed.map_err(|errors| {
        let first = errors.errors.first();
        let told = first.map(|error| format!("line {}, column {}: {}", error.pos.0, error.pos.1, error.msg));
        ExpressionError::Syntax(clean(&told.unwrap_or_default(), MAX_QUOTE))
    })?;
    Ok(parsed.expr)
}

fn node(expr: Expr) -> Result<Node, ExpressionError> {
    let unsupported = |what: &str| Err(ExpressionError::Unsupported(what.to_owned()));
    match expr {
        Expr::Call(call) => called(call),
        Expr::Literal(LiteralValue::Boolean(value)) => Ok(Node::Literal(value.into_inner())),
        Expr::Literal(_) => unsupported("a value that is neither `true` nor `false`"),
        Expr::Ident(name) => Err(ExpressionError::NotCalled(clean(&name, MAX_QUOTE))),
        Expr::Select(select) => unsupported(&format!("the field `.{}`", clean(&select.field, MAX_QUOTE))),
        Expr::Comprehension(_) => unsupported("a macro over a list"),
        Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => unsupported("a list, a map or an object"),
        Expr::Unspecified => unsupported("an empty part"),
    }
}

fn called(call: CallExpr) -> Result<Node, ExpressionError> {
    let CallExpr { func_name, target, args } = call;
    if let Some(target) = target {
        // The part before the point may have a mistake of its own, and then that error is the better message.
        node(target.expr)?;
        return Err(ExpressionError::Unsupported(format!("the method `.{}()`", clean(&func_name, MAX_QUOTE))));
    }
    let mut operands = args.into_iter().map(|argument| argument.expr);
    let mut operand = || operands.next().map_or(Ok(Node::Literal(false)), node).map(Box::new);
    match func_name.as_str() {
        operators::LOGICAL_NOT => Ok(Node::Not(operand()?)),
        operators::LOGICAL_AND => Ok(Node::And(operand()?, operand()?)),
        operators::LOGICAL_OR => Ok(Node::Or(operand()?, operand()?)),
        operators::EQUALS => Ok(Node::Equal(operand()?, operand()?)),
        operators::NOT_EQUALS => Ok(Node::Not(Box::new(Node::Equal(operand()?, operand()?)))),
        operators::CONDITIONAL => Err(ExpressionError::Unsupported("`? :`".to_owned())),
        name => match operators::find_operator(name) {
            None if name.contains(['_', '@', '-']) && !is_name(name) => {
                Err(ExpressionError::Unsupported(format!("the operator `{}`", name.trim_matches(['_', '@']))))
            }
            _ if operands.next().is_some() => Err(ExpressionError::Arguments(clean(name, MAX_QUOTE))),
            _ => Ok(Node::Member(name.to_owned())),
        },
    }
}

fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use crate::{Expression, ExpressionError, MAX_LENGTH};

    const MEMBERS: [&str; 3] = ["a", "b", "c_1"];

    fn error(text: &str) -> String {
        Expression::parse(text, MEMBERS).expect_err(text).to_string()
    }

    #[test]
    fn members_are_called_and_combined() {
        for text in
            ["a()", "a() && (b() || !c_1())", "true", "a() == b() != c_1()", "!(a() || false)", " a ( ) ||\n b()"]
        {
            let parsed = Expression::parse(text, MEMBERS);
            assert!(parsed.is_ok(), "{text}: {parsed:?}");
        }
        let calls = Expression::parse("a() || a() && c_1()", MEMBERS).expect("parses");
        assert_eq!(calls.calls().into_iter().collect::<Vec<_>>(), ["a", "c_1"]);
    }

    #[test]
    fn whatever_cannot_be_true_or_false_is_refused_by_name() {
        for (text, words) in [
            ("", "not a CEL expression"),
            ("a() &&", "not a CEL expression"),
            ("a", "write `a()`"),
            ("a(1)", "members take none"),
            ("a(b())", "members take none"),
            ("d()", "the group has no such member; its members are `a`, `b`, `c_1`"),
            ("a() + b()", "operator `+`"),
            ("a() < b()", "operator `<`"),
            ("a() ? b() : c_1()", "`? :`"),
            ("-1", "neither `true` nor `false`"),
            ("'x' == 'x'", "neither `true` nor `false`"),
            ("a().b()", "the method `.b()`"),
            ("object.metadata.name == 'a'", "the field `.name`"),
            ("[a()]", "a list, a map or an object"),
            ("a() in [true]", "operator `in`"),
            ("[a()].all(x, x)", "a macro over a list"),
            ("a()[0]", "operator"),
        ] {
            assert!(error(text).contains(words), "{text}: {}", error(text));
        }
    }

    #[test]
    fn m32_long_and_deep_expressions_are_refused_unparsed() {
        let long = format!("a(){}", " || a()".repeat(MAX_LENGTH));
        assert!(matches!(Expression::parse(&long, MEMBERS), Err(ExpressionError::TooLong(_))));
        for deep in ["(", "!", "-", "[", "a() ? a() : ", "a() || (", "{1:", "a(", "a() == ("] {
            let text: String = deep.repeat(MAX_LENGTH / deep.len());
            assert!(Expression::parse(&text, MEMBERS).is_err(), "{deep}");
        }
        // Text that only looks deeply nested must not overflow this thread's stack.
        for (open, close) in [("(", ")"), ("!", ""), ("!(", ")")] {
            let n = (MAX_LENGTH - 3) / (open.len() + close.len());
            let _ = Expression::parse(&format!("{}a(){}", open.repeat(n), close.repeat(n)), MEMBERS);
        }
        // The widest expression: flat text that makes a deep tree.
        let wide = format!("a(){}", "||a()".repeat((MAX_LENGTH - 3) / 5));
        assert_eq!(Expression::parse(&wide, MEMBERS).expect("parses").calls().len(), 1);
    }
}
