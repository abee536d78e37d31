//! Conditions on an object from a file. What is not there may be there in an API server, which fills it in.

use cel::IdedExpr;
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, ListExpr, LiteralValue, MapEntryExpr, MapExpr,
    SelectExpr, operators,
};

use super::requester;
use crate::filled::{FromFile, Key};

/// An expression that is true or false where the expression itself is so whatever an API server adds. Where it asks whether something is
/// there that may be added, it fails instead of being false, and where it takes a value as a whole that may grow. The operators `&&` and `||`
/// absorb a failure that does not matter.
pub(super) fn cautious(expression: &IdedExpr, made: &FromFile<'_>) -> IdedExpr {
    if Path::of(expression).is_some_and(|path| path.may_grow(made)) {
        return fails();
    }
    part(expression, made)
}

/// The same for an expression of which only a field is read.
fn part(expression: &IdedExpr, made: &FromFile<'_>) -> IdedExpr {
    let whole = |part: &IdedExpr| cautious(part, made);
    let changed = match &expression.expr {
        Expr::Select(select) => {
            let operand = Box::new(part(&select.operand, made));
            let read = ided(Expr::Select(SelectExpr { operand, field: select.field.clone(), test: select.test }));
            let question = Question { container: &select.operand, key: Some(&select.field), made };
            return if select.test { question.with(read) } else { read };
        }
        Expr::Call(call) => match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::INDEX, [container, key]) => {
                return self::call(operators::INDEX, vec![part(container, made), whole(key)]);
            }
            (operators::IN, [key, container]) => {
                let found = self::call(operators::IN, vec![whole(key), part(container, made)]);
                return Question { container, key: literal(key), made }.with(found);
            }
            // What grows is not null, and null does not grow.
            (operators::EQUALS | operators::NOT_EQUALS, args) if args.iter().any(is_null) => {
                return self::call(&call.func_name, args.iter().map(|one| part(one, made)).collect());
            }
            (name, args) => Expr::Call(CallExpr {
                func_name: name.to_owned(),
                target: call.target.as_ref().map(|target| Box::new(whole(target))),
                args: args.iter().map(whole).collect(),
            }),
        },
        Expr::List(list) => Expr::List(ListExpr {
            elements: list.elements.iter().map(whole).collect(),
            optional_indices: list.optional_indices.clone(),
        }),
        Expr::Map(map) => {
            let entry = |entry: &IdedEntryExpr| {
                let expr = match &entry.expr {
                    EntryExpr::MapEntry(one) => EntryExpr::MapEntry(MapEntryExpr {
                        key: whole(&one.key),
                        value: whole(&one.value),
                        optional: one.optional,
                    }),
                    EntryExpr::StructField(_) => entry.expr.clone(),
                };
                IdedEntryExpr { id: entry.id, expr }
            };
            Expr::Map(MapExpr { entries: map.entries.iter().map(entry).collect() })
        }
        Expr::Comprehension(loops) => return looped(loops, made),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => expression.expr.clone(),
    };
    ided(changed)
}

/// The same for a loop. More entries make an `all` that is false no other one, nor an `exists` that is true.
fn looped(loops: &ComprehensionExpr, made: &FromFile<'_>) -> IdedExpr {
    let whole = |part: &IdedExpr| cautious(part, made);
    let found = ided(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: part(&loops.iter_range, made),
        accu_init: whole(&loops.accu_init),
        loop_cond: whole(&loops.loop_cond),
        loop_step: whole(&loops.loop_step),
        result: whole(&loops.result),
        ..loops.clone()
    })));
    if !Path::of(&loops.iter_range).is_some_and(|path| path.may_grow(made)) {
        return found;
    }
    match &loops.accu_init.expr {
        Expr::Literal(LiteralValue::Boolean(is_all)) if *is_all.inner() => either(found, fails(), truth(false)),
        Expr::Literal(LiteralValue::Boolean(_)) => either(found, truth(true), fails()),
        _ => fails(),
    }
}

/// A question whether something is there: `has(container.key)`, or `key in container`.
struct Question<'a> {
    container: &'a IdedExpr,
    key: Key<'a>,
    made: &'a FromFile<'a>,
}

impl Question<'_> {
    /// The question `found`, so that it fails where the answer is no and may be yes in an API server.
    fn with(&self, found: IdedExpr) -> IdedExpr {
        if matches!(self.container.expr, Expr::List(_) | Expr::Map(_)) {
            return found;
        }
        // Only what is short is repeated, so that the expression does not grow by its depth.
        let Some(path) = Path::of(self.container).filter(|_| is_plain(self.container)) else {
            return either(found, truth(true), fails());
        };
        match path.clone().then(self.key).may_be_there(self.made) {
            true if path.may_grow(self.made) => either(found, truth(true), fails()),
            true => either(found, truth(true), either(self.is_list(), truth(false), fails())),
            // With other annotations, for instance, an API server finds that this one is not there.
            false if path.root == "object" && path.may_be_there(self.made) => match self.is_there() {
                Some(is_there) => either(is_there, found, truth(false)),
                None => found,
            },
            false => found,
        }
    }

    /// Whether the container is a list, which counts as it is written. `has` fails on it.
    fn is_list(&self) -> IdedExpr {
        let operand = Box::new(part(self.container, self.made));
        let asked = Expr::Select(SelectExpr { operand, field: String::new(), test: true });
        // True where its argument fails.
        call(operators::NOT_STRICTLY_FALSE, vec![ided(asked)])
    }

    /// Whether the container is there.
    fn is_there(&self) -> Option<IdedExpr> {
        let (parent, field) = step(self.container)?;
        let operand = Box::new(part(parent, self.made));
        Some(ided(Expr::Select(SelectExpr { operand, field: field?.to_owned(), test: true })))
    }
}

/// Where an expression reads: a variable, and the fields from there on.
#[derive(Clone)]
struct Path<'a> {
    root: &'a str,
    keys: Vec<Key<'a>>,
}

impl<'a> Path<'a> {
    fn of(expression: &'a IdedExpr) -> Option<Self> {
        if let Expr::Ident(name) = &expression.expr {
            return Some(Self { root: name.trim_start_matches('.'), keys: Vec::new() });
        }
        let (parent, key) = step(expression)?;
        Some(Self::of(parent)?.then(key))
    }

    fn then(mut self, key: Key<'a>) -> Self {
        self.keys.push(key);
        self
    }

    fn may_be_there(&self, made: &FromFile<'_>) -> bool {
        match self.root {
            "object" => made.may_have(&self.keys),
            "oldObject" => false,
            "request" => self.is_of_requester(),
            // An entry of a list.
            _ => true,
        }
    }

    fn may_grow(&self, made: &FromFile<'_>) -> bool {
        match self.root {
            "object" => made.may_grow(&self.keys),
            "request" => self.is_of_requester(),
            "oldObject" => false,
            // A field of an entry of a list.
            _ => self.keys.last().copied().flatten().is_some_and(|field| made.may_append_to(field)),
        }
    }

    /// Whether it is the whole request, or a field of it that depends on the user who makes it.
    fn is_of_requester(&self) -> bool {
        self.keys.first().copied().flatten().is_none_or(|field| requester::FIELDS.contains(&field))
    }
}

/// What an expression reads a field of, and which.
pub(super) fn step(expression: &IdedExpr) -> Option<(&IdedExpr, Key<'_>)> {
    match &expression.expr {
        Expr::Select(select) if !select.test => Some((&select.operand, Some(&select.field))),
        Expr::Call(call) if call.func_name == operators::INDEX => match call.args.as_slice() {
            [container, key] => Some((container, literal(key))),
            _ => None,
        },
        _ => None,
    }
}

/// Whether an expression only reads fields and entries whose names and numbers are written in it.
fn is_plain(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Ident(_) => true,
        Expr::Select(select) => !select.test && is_plain(&select.operand),
        Expr::Call(call) => match call.args.as_slice() {
            [container, key] => {
                call.func_name == operators::INDEX && matches!(key.expr, Expr::Literal(_)) && is_plain(container)
            }
            _ => false,
        },
        _ => false,
    }
}

pub(super) fn literal(expression: &IdedExpr) -> Key<'_> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

fn is_null(expression: &IdedExpr) -> bool {
    matches!(expression.expr, Expr::Literal(LiteralValue::Null))
}

/// Reads what is not there.
fn fails() -> IdedExpr {
    let nothing = Box::new(ided(Expr::Map(MapExpr { entries: Vec::new() })));
    ided(Expr::Select(SelectExpr { operand: nothing, field: String::new(), test: false }))
}

fn either(condition: IdedExpr, then: IdedExpr, otherwise: IdedExpr) -> IdedExpr {
    call(operators::CONDITIONAL, vec![condition, then, otherwise])
}

fn truth(value: bool) -> IdedExpr {
    ided(Expr::Literal(LiteralValue::Boolean(value.into())))
}

fn call(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    ided(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
}

/// Positions are for messages, which are not shown.
fn ided(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

#[cfg(test)]
mod tests {
    use cel::parser::PrattParser;
    use serde_json::json;

    use super::*;
    use crate::request::UID;

    #[test]
    fn an_expression_does_not_grow_by_its_depth() {
        let request = json!({"uid": UID, "object": {"spec": {}}});
        let made = FromFile::of(&request).expect("it was made from a file");
        for form in ["('k' in object.spec[X])", "(X in object.spec)", "has(object.spec[X].k)", "('k' in X)"] {
            let deep = (0..10).fold("object.spec.a".to_owned(), |inner, _| form.replace('X', &inner));
            let parsed = PrattParser::new().parse(&deep).expect("an expression");
            let length = |tree: &IdedExpr| format!("{tree:?}").len();
            let (before, after) = (length(&parsed), length(&cautious(&parsed, &made)));
            assert!(after < before * 10, "{form}: {before} to {after}");
        }
    }
}
