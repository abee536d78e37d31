//! How much of the objects of a request a condition looks at. Only their metadata are known here, without the managed fields.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, operators};

/// The field of the metadata that is not known here.
pub(super) const UNKNOWN: &str = "managedFields";

/// Whether an expression looks at nothing of `object` and `oldObject` but their metadata and whether they are null.
pub(super) fn reads_metadata_only(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Ident(_) => !is_object(expression),
        Expr::Select(select) if is_object(&select.operand) => select.field == "metadata",
        Expr::Select(select) => reads_metadata_only(&select.operand),
        Expr::Call(call) if compares_with_null(call) => {
            call.args.iter().all(|part| is_object(part) || reads_metadata_only(part))
        }
        Expr::Call(call) => {
            call.target.iter().all(|target| reads_metadata_only(target)) && call.args.iter().all(reads_metadata_only)
        }
        Expr::List(list) => list.elements.iter().all(reads_metadata_only),
        Expr::Literal(_) => true,
        // These need loops or copies, which are not evaluated for requests.
        Expr::Map(_) | Expr::Comprehension(_) | Expr::Struct(_) | Expr::Unspecified => false,
    }
}

/// Whether such an expression reads only single fields of the metadata, never the metadata as a whole: here they lack the managed fields,
/// which in an API server change with every request.
pub(super) fn reads_metadata_by_field(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Ident(_) | Expr::Literal(_) => true,
        Expr::Select(_) if is_metadata(expression) => false,
        Expr::Select(select) => is_metadata(&select.operand) || reads_metadata_by_field(&select.operand),
        Expr::Call(call) if compares_with_null(call) => {
            call.args.iter().all(|part| is_metadata(part) || reads_metadata_by_field(part))
        }
        Expr::Call(call) if is_field_of_metadata(call) => true,
        Expr::Call(call) => {
            call.target.iter().all(|target| reads_metadata_by_field(target))
                && call.args.iter().all(reads_metadata_by_field)
        }
        Expr::List(list) => list.elements.iter().all(reads_metadata_by_field),
        Expr::Map(_) | Expr::Comprehension(_) | Expr::Struct(_) | Expr::Unspecified => false,
    }
}

fn is_object(part: &IdedExpr) -> bool {
    matches!(&part.expr, Expr::Ident(name) if name == "object" || name == "oldObject")
}

/// Whether this is `object.metadata`, and not `has(object.metadata)`.
fn is_metadata(part: &IdedExpr) -> bool {
    matches!(&part.expr, Expr::Select(select) if !select.test && select.field == "metadata" && is_object(&select.operand))
}

/// Whether this is `object.metadata['…']`, with the name of a known field.
fn is_field_of_metadata(call: &CallExpr) -> bool {
    let [owner, key] = call.args.as_slice() else { return false };
    let is_known = matches!(&key.expr, Expr::Literal(LiteralValue::String(name)) if name.inner() != UNKNOWN);
    call.func_name == operators::INDEX && is_metadata(owner) && is_known
}

fn compares_with_null(call: &CallExpr) -> bool {
    let is_null = |part: &IdedExpr| matches!(part.expr, Expr::Literal(LiteralValue::Null));
    [operators::EQUALS, operators::NOT_EQUALS].contains(&call.func_name.as_str()) && call.args.iter().any(is_null)
}
