//! The types that an API server finds for the parts of a match condition.
//!
//! It finds them when a webhook is registered, and refuses a condition where they do not fit: `request` is an object with known fields, so
//! that `request.kind`, which is an object itself, cannot be compared with a text. Here the request is a mapping, and the same comparison
//! would be false for every request. No API server ever reads the conditions of a shared webhook, so a policy shares one only if the types
//! of its conditions fit. What is accepted here is accepted by API servers. They also accept some conditions that are hardly ever written
//! and not accepted here: such a policy has a webhook of its own.

use cel::IdedExpr;
use cel::common::ast::{Expr, LiteralValue, operators};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Type {
    /// An object or a part of one, whose type is known only when a request comes. It fits wherever any type does.
    Any,
    Null,
    Bool,
    Int,
    Double,
    Text,
    List(Box<Type>),
    /// `request.userInfo.extra`: lists of texts by their names.
    Extra,
    Request,
    /// The group, version and kind of an object.
    Kind,
    /// The group, version and resource of a request.
    Resource,
    User,
}

/// Whether the types of an expression fit, and the result is true or false. A result of any type is not enough for an API server.
pub(super) fn is_condition(expression: &IdedExpr) -> bool {
    type_of(expression) == Some(Type::Bool)
}

/// The type of an expression; `None` if an API server would refuse it, or might.
fn type_of(expression: &IdedExpr) -> Option<Type> {
    match &expression.expr {
        Expr::Literal(literal) => type_of_literal(literal),
        Expr::Ident(name) => match name.as_str() {
            "object" | "oldObject" => Some(Type::Any),
            "request" => Some(Type::Request),
            _ => None,
        },
        Expr::Select(select) => {
            let field = type_of_field(&type_of(&select.operand)?, &select.field)?;
            Some(if select.test { Type::Bool } else { field })
        }
        Expr::List(list) => {
            let mut entries = list.elements.iter().map(type_of);
            let first = entries.next()??;
            entries.all(|entry| entry.as_ref() == Some(&first)).then(|| Type::List(Box::new(first)))
        }
        Expr::Call(call) => {
            let operands = call.target.iter().map(|target| &**target).chain(&call.args);
            let operands: Option<Vec<Type>> = operands.map(type_of).collect();
            match call.target {
                Some(_) => type_of_method(&call.func_name, &operands?),
                None => type_of_operation(&call.func_name, &operands?),
            }
        }
        Expr::Map(_) | Expr::Comprehension(_) | Expr::Struct(_) | Expr::Unspecified => None,
    }
}

fn type_of_literal(literal: &LiteralValue) -> Option<Type> {
    match literal {
        LiteralValue::Boolean(_) => Some(Type::Bool),
        LiteralValue::Double(_) => Some(Type::Double),
        LiteralValue::Int(_) => Some(Type::Int),
        LiteralValue::Null => Some(Type::Null),
        LiteralValue::String(_) => Some(Type::Text),
        LiteralValue::Bytes(_) | LiteralValue::UInt(_) => None,
    }
}

/// The fields that `BuildRequestType` of `k8s.io/apiserver` declares, except for `options`, which are not known here.
fn type_of_field(owner: &Type, name: &str) -> Option<Type> {
    match (owner, name) {
        (Type::Any, _) => Some(Type::Any),
        (Type::Request, "kind" | "requestKind") => Some(Type::Kind),
        (Type::Request, "resource" | "requestResource") => Some(Type::Resource),
        (Type::Request, "userInfo") => Some(Type::User),
        (Type::Request, "dryRun") => Some(Type::Bool),
        (Type::Request, "subResource" | "requestSubResource" | "name" | "namespace" | "operation")
        | (Type::Kind, "group" | "version" | "kind")
        | (Type::Resource, "group" | "version" | "resource")
        | (Type::User, "username" | "uid") => Some(Type::Text),
        (Type::User, "groups") | (Type::Extra, _) => Some(texts()),
        (Type::User, "extra") => Some(Type::Extra),
        _ => None,
    }
}

fn texts() -> Type {
    Type::List(Box::new(Type::Text))
}

fn type_of_operation(name: &str, operands: &[Type]) -> Option<Type> {
    let (is_right, result) = match (name, operands) {
        (operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT, all) => {
            (all.iter().all(|one| fit(one, &Type::Bool)), Type::Bool)
        }
        // An API server also accepts a branch of any type beside another one. Then the result is of any type, too.
        (operators::CONDITIONAL, [test, yes, no]) => (fit(test, &Type::Bool) && yes == no, yes.clone()),
        (operators::EQUALS | operators::NOT_EQUALS, [one, other]) => (fit(one, other), Type::Bool),
        (operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS, [one, other]) => {
            (fit(one, other) && is_ordered(one) && is_ordered(other), Type::Bool)
        }
        (operators::IN, [one, Type::List(entry)]) => (fit(one, entry), Type::Bool),
        (operators::IN, [one, Type::Extra]) => (fit(one, &Type::Text), Type::Bool),
        (operators::IN, [_, Type::Any]) => (true, Type::Bool),
        (operators::INDEX, [Type::List(entry), place]) => (fit(place, &Type::Int), (**entry).clone()),
        (operators::INDEX, [Type::Extra, key]) => (fit(key, &Type::Text), texts()),
        (operators::INDEX, [Type::Any, key]) => (matches!(key, Type::Any | Type::Int | Type::Text), Type::Any),
        (operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE, [one, other]) => {
            (fit(one, other) && is_number(one) && is_number(other), type_of_number(one, other))
        }
        (operators::MODULO, [one, other]) => {
            (fit(one, &Type::Int) && fit(other, &Type::Int), type_of_number(one, other))
        }
        (operators::NEGATE, [one]) => (is_number(one), one.clone()),
        ("size", [one]) => return type_of_size(one),
        _ => return None,
    };
    is_right.then_some(result)
}

/// The type of what a method gives. The first operand is the value that has the method.
fn type_of_method(name: &str, operands: &[Type]) -> Option<Type> {
    match (name, operands) {
        ("contains" | "endsWith" | "startsWith", [text, part]) => {
            (fit(text, &Type::Text) && fit(part, &Type::Text)).then_some(Type::Bool)
        }
        ("size", [one]) => type_of_size(one),
        _ => None,
    }
}

fn type_of_size(measured: &Type) -> Option<Type> {
    matches!(measured, Type::Any | Type::Text | Type::List(_) | Type::Extra).then_some(Type::Int)
}

/// Whether a value of one of the types may be where the other is wanted.
fn fit(one: &Type, other: &Type) -> bool {
    one == other || [one, other].contains(&&Type::Any)
}

fn is_number(one: &Type) -> bool {
    matches!(one, Type::Any | Type::Int | Type::Double)
}

fn is_ordered(one: &Type) -> bool {
    is_number(one) || *one == Type::Text
}

/// The type of a calculation: that of the operand whose type is known.
fn type_of_number(one: &Type, other: &Type) -> Type {
    if *one == Type::Any { other.clone() } else { one.clone() }
}

#[cfg(test)]
mod tests {
    use cel::parser::PrattParser;

    use super::*;

    fn fits(text: &str) -> bool {
        is_condition(&PrattParser::new().parse(text).unwrap_or_else(|error| panic!("{text}: {error}")))
    }

    #[test]
    fn what_an_api_server_accepts_has_types_that_fit() {
        for good in [
            "true",
            "false || !request.dryRun",
            "has(request.dryRun) && request.dryRun == true",
            "request.kind.kind == 'Pod' && request.kind.group != '' && request.requestKind.version == 'v1'",
            "request.resource.resource in ['pods', 'services'] || request.requestResource.group == ''",
            "request.requestKind == request.kind && request.resource != request.requestResource",
            "request.subResource == 'status' || request.requestSubResource == 'scale'",
            "request.name.startsWith('a') && request.namespace.endsWith('b') && request.operation.contains('E')",
            "request.userInfo.username == 'me' && request.userInfo.uid != ''",
            "'system:masters' in request.userInfo.groups && request.userInfo.groups[0] == 'a'",
            "size(request.userInfo.groups) > 1 && request.userInfo.groups.size() - 1 < 7 % 4",
            "has(request.userInfo.extra) && 'a' in request.userInfo.extra",
            "request.userInfo.extra['a'][0] == 'b' && 'b' in request.userInfo.extra.c",
            "has(request.userInfo.extra.a) && has(request.userInfo.username) && has(request.namespace)",
            "request.userInfo.username == object.metadata.labels['owner']",
            "request.operation in object.metadata.annotations || object.metadata.name in request.userInfo.groups",
            "object != null && oldObject == null && object.metadata.deletionTimestamp != null",
            "object.metadata.generation > 1 && object.metadata.generation - 1 == -2 && -object.metadata.generation < 0.5",
            "object.metadata.generation in [1, 2] && object.metadata.name >= 'a' && 'a' < 'b'",
            "object.metadata.labels[request.name].startsWith(oldObject.metadata.name)",
            "object.metadata.finalizers[0] == 'a' && 'a' in object.metadata.finalizers",
            "object.metadata.a && object.metadata.b ? request.dryRun : request.name == 'a'",
            "(request.dryRun ? request.name : 'a') == 'a'",
        ] {
            assert!(fits(good), "{good}");
        }
    }

    #[test]
    fn what_an_api_server_refuses_or_may_refuse_does_not() {
        for bad in [
            // Objects, lists and numbers that are compared with something else.
            "request.kind == 'Pod'",
            "request.resource == 'pods'",
            "'pods' == request.resource",
            "request.resource in ['pods']",
            "request.kind == request.resource",
            "request.user == 'x'",
            "request.userInfo == 'x'",
            "request.userInfo.groups == 'x'",
            "request.dryRun == 'true'",
            "request.name == 1",
            "request.name != null",
            "size(request.name) == '1'",
            "request.operation == true",
            "1 == 1.0",
            "request.name in [1]",
            "object.metadata.name in ['a', 1]",
            "1 in request.userInfo.groups",
            "'a' in request.userInfo",
            "'a' in request.name",
            "1 in request.userInfo.extra",
            "'a' in []",
            // Fields that do not exist.
            "has(request.userinfo)",
            "request.userinfo.username == 'x'",
            "has(request.userInfo.name) && request.userInfo.name == 'x'",
            "request.subresource == 'status'",
            "request.uid == 'x'",
            "request.object == null",
            "request.options == null",
            "request.kind.resource == 'pods'",
            "request.resource.kind == 'Pod'",
            "request.name.a == 'x'",
            "has(request.name.a)",
            "request.userInfo.groups.a == 'x'",
            "request['name'] == 'x'",
            "request.userInfo['username'] == 'x'",
            "request.userInfo.groups['a'] == 'x'",
            "request.userInfo.extra[0] == 'x'",
            "request.userInfo.extra['a'] == 'x'",
            "object[null] == 'x'",
            // Operands that an operator or a function does not have.
            "request.kind < 'x'",
            "request.name > 1",
            "object.metadata.generation > null",
            "request.dryRun > false",
            "request.name - 'x' == ''",
            "request.name * 2 == 2",
            "object.metadata.a - 1 == 'x'",
            "object.metadata.a % 1.5 == 1.5",
            "-request.name == 'x'",
            "request.kind.startsWith('P')",
            "request.userInfo.groups.contains('x')",
            "request.name.startsWith(1)",
            "request.name.contains()",
            "request.name.contains('a', 'b')",
            "sets.contains(['a'], ['a'])",
            "size(request.userInfo) == 1",
            "size(1) == 1",
            "size('a', 'b') == 1",
            // What must be true or false and is something else, or of any type.
            "request.kind && true",
            "!request.name",
            "request.name ? true : false",
            "true ? request.dryRun : object.metadata.a",
            "true ? 'a' : 1",
            "object.metadata.a",
            "request.name",
            "null",
            "1",
            // Names and values that are not used for requests.
            "authorizer == null",
            "namespaceObject == null",
            "name == 'x'",
            ".object == null",
            "int == int",
            "b'a' == b'a'",
            "1u == 1u",
            "{'a': 1} == object.metadata",
            "request.userInfo.groups.exists(g, g == 'x')",
        ] {
            assert!(!fits(bad), "{bad}");
        }
    }
}
