//! The parts of a request that depend on its user, and the expressions that would get a wrong value without them.

use cel::IdedExpr;
use cel::common::ast::{EntryExpr, Expr};
use serde_json::Value;

/// The fields of a request that depend on the user who makes it.
pub(super) const FIELDS: [&str; 2] = ["options", "userInfo"];

/// Leaves these fields out of a request. An expression that reads one of them fails, and so is unknown.
pub(super) fn remove(request: &mut Value) {
    if let Some(fields) = request.as_object_mut() {
        fields.retain(|name, _| !FIELDS.contains(&name.as_str()));
    }
}

/// Whether an expression could be true or false because these fields are missing: it asks whether one of them is there, or takes the request as a
/// whole. All other expressions fail when they read one.
pub(super) fn needs_requester(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Ident(_) => is_request(expression),
        Expr::Select(select) if is_request(&select.operand) => select.test && FIELDS.contains(&select.field.as_str()),
        Expr::Select(select) => needs_requester(&select.operand),
        Expr::Call(call) => {
            call.target.iter().any(|target| needs_requester(target)) || call.args.iter().any(needs_requester)
        }
        Expr::List(list) => list.elements.iter().any(needs_requester),
        Expr::Map(map) => map.entries.iter().any(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => needs_requester(&entry.key) || needs_requester(&entry.value),
            EntryExpr::StructField(field) => needs_requester(&field.value),
        }),
        Expr::Comprehension(loops) => {
            let parts = [&loops.iter_range, &loops.accu_init, &loops.loop_cond, &loops.loop_step, &loops.result];
            parts.into_iter().any(needs_requester)
        }
        Expr::Literal(_) => false,
        Expr::Struct(_) | Expr::Unspecified => true,
    }
}

fn is_request(part: &IdedExpr) -> bool {
    matches!(&part.expr, Expr::Ident(name) if name.trim_start_matches('.') == "request")
}
