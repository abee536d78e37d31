//! Match conditions: CEL that an API server evaluates before it calls a webhook.
//!
//! The API server compiles them when the webhook is registered, long after the policy was applied. So a condition that it would certainly
//! refuse is refused here. Everything doubtful passes: functions, the types of most values, and syntax that this parser does not know.

use cel::common::ast::{CallExpr, EntryExpr, Expr, LiteralValue, SelectExpr, operators};
use portcullis_contract::clean;

use crate::{ExpressionError, MAX_DEPTH, MAX_LENGTH, parse};

/// Longest expression that is judged, in bytes.
const LONGEST: usize = 4 * MAX_LENGTH;
/// Deepest nesting that is judged.
const DEEPEST: u16 = 2 * MAX_DEPTH;
/// Most operators, points and commas of an expression that is judged: they limit the depth of its tree and the time to parse it.
const MOST_OPERATORS: usize = 512;
/// How much of a name is quoted, in bytes.
const MAX_QUOTE: usize = 100;

/// The variables of match conditions. An API server declares `namespaceObject` for them too, without a value.
const VARIABLES: [&str; 5] = ["object", "oldObject", "request", "authorizer", "namespaceObject"];
/// The names of types, and the first parts of such names.
const TYPES: [&str; 17] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "dyn",
    "google",
    "int",
    "kubernetes",
    "list",
    "map",
    "net",
    "null_type",
    "optional_type",
    "string",
    "timestamp",
    "type",
    "uint",
];
/// Variables of the expressions of a ValidatingAdmissionPolicy that match conditions of a webhook do not have.
const VARIABLES_OF_POLICIES: [&str; 2] = ["params", "variables"];
/// Fields of an AdmissionReview's request that are variables of their own in CEL, or do not exist there.
const NO_FIELDS_OF_REQUEST: [&str; 3] = ["object", "oldObject", "uid"];

/// Why an API server would refuse a match condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// It is not CEL.
    #[error(transparent)]
    Syntax(#[from] ExpressionError),
    /// It names a variable that is not defined.
    #[error(
        "it uses `{0}`, which is not defined; a match condition has `object`, `oldObject`, `request` and `authorizer`"
    )]
    UnknownVariable(String),
    /// It names a variable that only a ValidatingAdmissionPolicy has.
    #[error("it uses `{0}`, which a ValidatingAdmissionPolicy has and a match condition of a webhook does not")]
    OfOtherPolicies(String),
    /// It reads a field of the request that does not exist in CEL.
    #[error("it uses `request.{0}`, which CEL does not have; the objects are `object` and `oldObject`")]
    NoFieldOfRequest(String),
    /// It is neither true nor false.
    #[error("it gives {0}, and a match condition must be true or false")]
    NotBoolean(&'static str),
    /// It is a value of the object, whose type an API server does not know.
    #[error(
        "it gives a value of any type, and a match condition must be true or false: compare it, as in `object.a.b == true`"
    )]
    AnyType,
}

/// Checks whether an API server may accept a text as a match condition of a webhook.
///
/// # Errors
/// When it would certainly refuse the text.
pub fn match_condition(text: &str) -> Result<(), ConditionError> {
    if !is_judged(text) {
        return Ok(());
    }
    let tree = parse::tree(text, DEEPEST)?;
    check_names(&tree)?;
    check_type(&tree)
}

/// Whether an expression is short and flat enough to be judged, and has no optional fields (`a.?b`, `a[?b]`), which this parser does
/// not know.
fn is_judged(text: &str) -> bool {
    let count = |of: &[u8]| text.bytes().filter(|byte| of.contains(byte)).count();
    text.len() <= LONGEST
        && count(b"([{?") < usize::from(DEEPEST)
        && count(b"([{?.,+-*/%<>=!&|") <= MOST_OPERATORS
        && ![".?", "[?", "{?"].iter().any(|optional| text.contains(optional))
}

/// Names that a part of an expression defines.
struct Scope<'e> {
    names: Vec<&'e str>,
    outer: Option<usize>,
}

/// Checks that all names are defined.
fn check_names(tree: &Expr) -> Result<(), ConditionError> {
    let mut scopes: Vec<Scope<'_>> = Vec::new();
    let mut parts = vec![(tree, None)];
    while let Some((part, scope)) = parts.pop() {
        match part {
            Expr::Ident(name) => check_name(name, &scopes, scope)?,
            Expr::Select(select) => {
                check_field(select)?;
                parts.push((&select.operand.expr, scope));
            }
            Expr::Call(call) => {
                let names = names_of_macro(call);
                let inner = if names.is_empty() {
                    scope
                } else {
                    scopes.push(Scope { names, outer: scope });
                    Some(scopes.len() - 1)
                };
                // The name before the point may be part of the function's own name, as in `sets.contains(a, b)`.
                let target = call.target.as_ref().map(|target| &target.expr);
                parts.extend(target.filter(|target| !matches!(target, Expr::Ident(_))).map(|target| (target, scope)));
                parts.extend(call.args.iter().map(|argument| (&argument.expr, inner)));
            }
            Expr::Comprehension(comprehension) => {
                let own = [comprehension.iter_var.as_str(), comprehension.accu_var.as_str()];
                let names = own.into_iter().chain(comprehension.iter_var2.as_deref()).collect();
                scopes.push(Scope { names, outer: scope });
                let inner = Some(scopes.len() - 1);
                parts.push((&comprehension.iter_range.expr, scope));
                let own = [
                    &comprehension.accu_init,
                    &comprehension.loop_cond,
                    &comprehension.loop_step,
                    &comprehension.result,
                ];
                parts.extend(own.map(|part| (&part.expr, inner)));
            }
            Expr::List(list) => parts.extend(list.elements.iter().map(|element| (&element.expr, scope))),
            Expr::Map(map) => {
                let entries = map.entries.iter().flat_map(|entry| values(&entry.expr));
                parts.extend(entries.map(|value| (value, scope)));
            }
            Expr::Struct(object) => {
                let entries = object.entries.iter().flat_map(|entry| values(&entry.expr));
                parts.extend(entries.map(|value| (value, scope)));
            }
            Expr::Literal(_) | Expr::Unspecified => {}
        }
    }
    Ok(())
}

fn values(entry: &EntryExpr) -> Vec<&Expr> {
    match entry {
        EntryExpr::MapEntry(entry) => vec![&entry.key.expr, &entry.value.expr],
        EntryExpr::StructField(field) => vec![&field.value.expr],
    }
}

/// The names that a call defines if it is a macro that this parser does not know, as in `list.all(i, v, i < v)` and
/// `optional.optMap(v, v > 1)`.
fn names_of_macro(call: &CallExpr) -> Vec<&str> {
    if call.target.is_none() || call.args.len() < 2 {
        return Vec::new();
    }
    let names = call.args.iter().take(call.args.len() - 1).map_while(|argument| match &argument.expr {
        Expr::Ident(name) => Some(name.as_str()),
        _ => None,
    });
    names.collect()
}

fn check_name(name: &str, scopes: &[Scope<'_>], mut scope: Option<usize>) -> Result<(), ConditionError> {
    while let Some(number) = scope {
        if scopes[number].names.contains(&name) {
            return Ok(());
        }
        scope = scopes[number].outer;
    }
    let name = name.strip_prefix('.').unwrap_or(name);
    if VARIABLES.contains(&name) || TYPES.contains(&name) {
        return Ok(());
    }
    let is_other = VARIABLES_OF_POLICIES.contains(&name);
    let name = clean(name, MAX_QUOTE);
    Err(if is_other { ConditionError::OfOtherPolicies(name) } else { ConditionError::UnknownVariable(name) })
}

fn check_field(select: &SelectExpr) -> Result<(), ConditionError> {
    let is_missing =
        is_variable(&select.operand.expr, "request") && NO_FIELDS_OF_REQUEST.contains(&select.field.as_str());
    if is_missing { Err(ConditionError::NoFieldOfRequest(clean(&select.field, MAX_QUOTE))) } else { Ok(()) }
}

fn is_variable(part: &Expr, name: &str) -> bool {
    matches!(part, Expr::Ident(found) if found == name)
}

/// Checks that the parts that must be true or false are not something else.
fn check_type(tree: &Expr) -> Result<(), ConditionError> {
    // With each part: whether a value of any type is refused. The whole expression must be known to be true or false;
    // an operand of `&&` need not be.
    let mut parts = vec![(tree, true)];
    while let Some((part, is_whole)) = parts.pop() {
        match part {
            Expr::Literal(LiteralValue::Boolean(_)) | Expr::Unspecified | Expr::Struct(_) => {}
            Expr::Literal(LiteralValue::String(_)) => return Err(ConditionError::NotBoolean("a text")),
            Expr::Literal(LiteralValue::Null) => return Err(ConditionError::NotBoolean("`null`")),
            Expr::Literal(LiteralValue::Bytes(_)) => return Err(ConditionError::NotBoolean("bytes")),
            Expr::Literal(_) => return Err(ConditionError::NotBoolean("a number")),
            Expr::List(_) => return Err(ConditionError::NotBoolean("a list")),
            Expr::Map(_) => return Err(ConditionError::NotBoolean("a map")),
            // The macros `map` and `filter`.
            Expr::Comprehension(comprehension) if matches!(comprehension.accu_init.expr, Expr::List(_)) => {
                return Err(ConditionError::NotBoolean("a list"));
            }
            Expr::Comprehension(_) => {}
            Expr::Ident(_) | Expr::Select(_) => check_value(part, is_whole)?,
            Expr::Call(call) => match (call.func_name.as_str(), call.args.as_slice()) {
                (
                    operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT | operators::CONDITIONAL,
                    all,
                ) => {
                    parts.extend(all.iter().map(|operand| (&operand.expr, false)));
                }
                (operators::INDEX, _) => check_value(part, is_whole)?,
                _ => check_call(call, is_whole)?,
            },
        }
    }
    Ok(())
}

/// Judges a variable, or a value that is read from one.
fn check_value(part: &Expr, is_whole: bool) -> Result<(), ConditionError> {
    if let Expr::Select(select) = part {
        if select.test {
            return Ok(());
        }
        if is_variable(&select.operand.expr, "request") {
            return match select.field.as_str() {
                "name" | "namespace" | "operation" | "subResource" | "requestSubResource" => {
                    Err(ConditionError::NotBoolean("a text"))
                }
                "kind" | "resource" | "requestKind" | "requestResource" | "userInfo" => {
                    Err(ConditionError::NotBoolean("an object"))
                }
                _ => Ok(()),
            };
        }
    }
    let mut root = part;
    loop {
        root = match root {
            Expr::Select(select) if !select.test => &select.operand.expr,
            Expr::Call(call) if call.func_name == operators::INDEX => match call.args.first() {
                Some(operand) => &operand.expr,
                None => return Ok(()),
            },
            _ => break,
        };
    }
    let is_any = ["object", "oldObject"].iter().any(|name| is_variable(root, name));
    if is_whole && is_any { Err(ConditionError::AnyType) } else { Ok(()) }
}

/// Judges the result of a function or an operator.
fn check_call(call: &CallExpr, is_whole: bool) -> Result<(), ConditionError> {
    let CallExpr { func_name, target, args } = call;
    let found = match (func_name.as_str(), target.is_some(), args.len()) {
        // A calculation with values of any type gives a value of any type.
        (
            operators::ADD
            | operators::SUBSTRACT
            | operators::MULTIPLY
            | operators::DIVIDE
            | operators::MODULO
            | operators::NEGATE,
            ..,
        ) => is_whole.then_some("the result of a calculation"),
        ("size", false, 1) | ("size", true, 0) | ("int" | "uint" | "double", false, 1) => Some("a number"),
        ("string", false, 1) => Some("a text"),
        ("bytes", false, 1) => Some("bytes"),
        ("duration" | "timestamp", false, 1) => Some("a time"),
        ("type", false, 1) => Some("a type"),
        // An authorizer's decision.
        ("check", true, 1) => Some("a decision without `.allowed()`"),
        _ => None,
    };
    found.map_or(Ok(()), |found| Err(ConditionError::NotBoolean(found)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        match_condition(text).expect_err(text).to_string()
    }

    #[test]
    fn what_an_api_server_accepts_passes() {
        for good in [
            "true",
            "!(request.kind.kind in ['Pod', 'Job'])",
            "request.userInfo.groups.exists(g, g == 'system:nodes') || oldObject == null",
            "object.spec.containers.all(c, !has(c.securityContext) || c.securityContext.privileged == false)",
            "authorizer.group('').resource('pods').check('get').allowed()",
            "object.metadata.?labels['a'].orValue('') == ''",
            r#"object.metadata.name.matches(r'^\d+$') ? size(object.spec) > 1 + 2 * 3 : {'a': [1.5, -1]}['a'][0] < 2.0"#,
            "has(request.dryRun) && request.dryRun",
            "request.dryRun",
            "!object.spec.suspend",
            "object.spec.suspend && request.namespace != 'a'",
            "object.metadata.labels.exists_one(key, key.startsWith('a'))",
            "object.spec.ports.map(p, p.port).filter(p, p > 1024).size() > 0",
            "object.spec.ports.map(p, p.port > 1, p.port).exists(p, p == 1)",
            "object.spec.ports.all(i, p, p.port > i)",
            "sets.contains(object.spec.names, ['a']) || quantity('1Gi').isLessThan(quantity('2Gi'))",
            "optional.of(1).optMap(v, v > 1).orValue(false)",
            "type(object.spec.port) == int && type(object.spec.ip) == net.IP",
            "object.spec.ip.isIP() && namespaceObject.metadata.name == 'a'",
            "duration('1h') < timestamp(object.metadata.creationTimestamp) - timestamp('2026-01-01T00:00:00Z')",
            "request.options.fieldManager == 'kubectl' ? true : object.spec.open",
            ".object.metadata.name == 'a' // a comment",
        ] {
            assert_eq!(match_condition(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn what_is_not_cel_is_refused_with_its_place() {
        for bad in ["", "object.name ==", "a b", "f(1", "a || || b", "'open", "has(object)", "if == 1"] {
            assert!(error(bad).starts_with("it is not a CEL expression: "), "{bad}: {}", error(bad));
        }
    }

    #[test]
    fn names_that_are_not_defined_are_refused() {
        for (text, words) in [
            ("objekt.metadata.name == 'a'", "it uses `objekt`, which is not defined; a match condition has `object`"),
            ("object.spec.containers.all(c, d.name == c.name)", "it uses `d`"),
            ("object.spec.containers.all(c, c.name == 'a') && c.name == 'b'", "it uses `c`"),
            ("[1, {'a': nothing}] == object", "it uses `nothing`"),
            ("variables.a == 1", "a ValidatingAdmissionPolicy has"),
            ("params.spec.max > 1", "a ValidatingAdmissionPolicy has"),
            ("request.object.metadata.name == 'a'", "it uses `request.object`, which CEL does not have"),
            ("has(request.oldObject)", "it uses `request.oldObject`"),
        ] {
            assert!(error(text).contains(words), "{text}: {}", error(text));
        }
    }

    #[test]
    fn what_is_neither_true_nor_false_is_refused() {
        for (text, words) in [
            ("'yes'", "it gives a text, and a match condition must be true or false"),
            ("1", "a number"),
            ("null", "`null`"),
            ("[true]", "a list"),
            ("{'a': true}", "a map"),
            ("1 + 2", "a calculation"),
            ("-object.spec.replicas", "a calculation"),
            ("request.name", "a text"),
            ("!request.operation", "a text"),
            ("request.userInfo || true", "an object"),
            ("size(object.spec.containers)", "a number"),
            ("object.spec.containers.size()", "a number"),
            ("object.spec.containers.filter(c, c.name == 'a')", "a list"),
            ("request.operation == 'CREATE' && 'a'", "a text"),
            ("object.spec.open ? 'a' : 'b'", "a text"),
            ("authorizer.group('').resource('pods').check('get')", "`.allowed()`"),
            ("object.spec.suspend", "compare it, as in"),
            ("oldObject", "compare it, as in"),
            ("object.metadata.labels['a']", "compare it, as in"),
        ] {
            assert!(error(text).contains(words), "{text}: {}", error(text));
        }
    }

    #[test]
    fn long_and_deep_expressions_pass_unread() {
        for part in ["(", "[", "{1:", "f(", "!", "-", "a.", "a+", "a?b:"] {
            assert_eq!(match_condition(&part.repeat(LONGEST)), Ok(()), "{part}");
            // As deep as the deepest expressions that are parsed.
            let _ = match_condition(&part.repeat(120));
        }
        let calls = format!("object{}", ".f()".repeat(MOST_OPERATORS / 2));
        assert_eq!(match_condition(&calls), Ok(()));
        let chain = format!("1{}", "+1".repeat(MOST_OPERATORS));
        assert!(error(&chain).contains("a calculation"));
    }
}
