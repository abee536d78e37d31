//! What the audit found about a policy, as its status says it.

use jiff::Timestamp;
use serde_json::Value;

use super::{text, time};
use crate::moment::moment_or_dash;

/// What the audit found about a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditView {
    /// When the scan ended.
    pub scanned_at: Option<Timestamp>,
    /// The generation that was asked; 0 if none was.
    pub generation: i64,
    /// How many objects it has evaluated.
    pub checked: i64,
    /// How many of them it rejects.
    pub violations: i64,
    /// How many of them it could not evaluate.
    pub errors: i64,
    /// Some of those that it rejects.
    pub examples: Vec<String>,
    /// Resources that could not be listed.
    pub unreadable: Vec<String>,
    /// Why objects or reports are missing; empty if none are.
    pub message: String,
    /// The request that the scan handled; empty if there was none.
    pub handled_request: String,
}

impl AuditView {
    /// Reads `status.audit`; `None` if it is not an object.
    pub(super) fn of_status(audit: &Value) -> Option<Self> {
        if !audit.is_object() {
            return None;
        }
        let number = |field: &str| audit[field].as_i64().unwrap_or(0);
        let texts = |field: &str| {
            let texts = audit[field].as_array().map_or(&[][..], Vec::as_slice);
            texts.iter().filter_map(text).collect()
        };
        Some(Self {
            scanned_at: time(&audit["scannedAt"]),
            generation: number("generation"),
            checked: number("checked"),
            violations: number("violations"),
            errors: number("errors"),
            examples: texts("examples"),
            unreadable: texts("unreadable"),
            message: text(&audit["message"]).unwrap_or_default(),
            handled_request: text(&audit["handledRequest"]).unwrap_or_default(),
        })
    }

    /// The figures as a sentence.
    pub fn in_words(&self, now: Timestamp) -> String {
        let Self { checked, violations, errors, .. } = self;
        let objects = if *checked == 1 { "object" } else { "objects" };
        let verb = if *violations == 1 || *checked == 1 { "is" } else { "are" };
        let errors = if *errors > 0 { format!(", {errors} could not be evaluated") } else { String::new() };
        let scanned = moment_or_dash(self.scanned_at, now);
        format!("{violations} of {checked} {objects} {verb} rejected{errors}; scanned {scanned}")
    }

    /// What the scan could not look at, or write, a sentence each.
    pub fn gaps(&self) -> Vec<String> {
        let unreadable = (!self.unreadable.is_empty())
            .then(|| format!("could not be listed: {} (chart: rbac.auditReads)", self.unreadable.join(", ")));
        let message = Some(self.message.clone()).filter(|message| !message.is_empty());
        unreadable.into_iter().chain(message).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_are_a_sentence() {
        let now = "2026-01-01T00:05:00Z".parse().expect("a time");
        let words = |audit: Value| AuditView::of_status(&audit).expect("an audit").in_words(now);
        let audit = json!({"scannedAt": "2026-01-01T00:00:00Z", "checked": 1, "violations": 0, "errors": 1});
        assert_eq!(
            words(audit),
            "0 of 1 object is rejected, 1 could not be evaluated; scanned 2026-01-01T00:00:00Z (5m ago)"
        );
        assert_eq!(words(json!({"checked": 3, "violations": 1})), "1 of 3 objects is rejected; scanned -");
        assert_eq!(AuditView::of_status(&Value::Null), None);
    }

    #[test]
    fn what_could_not_be_looked_at_is_named() {
        let audit = json!({"unreadable": ["services", "deployments.apps"], "message": "no kind of report"});
        let gaps = AuditView::of_status(&audit).expect("an audit").gaps();
        assert_eq!(
            gaps,
            ["could not be listed: services, deployments.apps (chart: rbac.auditReads)", "no kind of report"]
        );
    }
}
