//! Match conditions that fail because they read what a request does not have. API servers do not take them for false.

use serde_json::Value;

use super::{Condition, reads_metadata_only, requester};
use crate::request::UID;

/// A match condition that an API server fails to evaluate, too. None of the others is false, so the API server does not ask the policy, and
/// denies the request unless the policy's `failurePolicy` is `Ignore`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// The name of the condition.
    pub condition: String,
    /// The key that it reads and that is not there.
    pub missing: String,
}

/// Fields that API servers always send in a request, and in its `userInfo`. A request that lacks one was written by somebody.
const SENT: [&str; 8] =
    ["dryRun", "kind", "operation", "options", "requestKind", "requestResource", "resource", "userInfo"];
const SENT_OF_USER: [&str; 2] = ["groups", "username"];
/// Fields of a request that conditions do not have: an API server refuses a webhook with a condition that reads one.
const REFUSED: [&str; 3] = ["object", "oldObject", "uid"];
/// Fields of metadata that an object has in a request though its file has none. API servers fill them in, `kubectl apply` adds an annotation,
/// and admission plugins add finalizers to volumes and claims.
const FILLED: [&str; 8] =
    ["annotations", "creationTimestamp", "finalizers", "generation", "managedFields", "name", "resourceVersion", "uid"];
/// Kinds to which API servers add labels, after their API groups.
const LABELED: [(&str, &str); 3] = [("", "Namespace"), ("", "ReplicationController"), ("batch", "Job")];

/// Whether a key that a condition misses here is certainly missing in an API server, too.
pub(super) fn is_certain(condition: &Condition, request: &Value, missing: &str) -> bool {
    // CEL names only one of several missing keys: for `||` that of its right side. If the left side lacks a field that an API server sends, it
    // may be true there, and then nothing is missing. So every such field that the condition names counts as read.
    let lacks = |part: &Value, fields: &[&str]| {
        let is_read = |field: &str| field == missing || condition.named.contains(&field);
        fields.iter().any(|field| part.get(field).is_none() && is_read(field))
    };
    if REFUSED.contains(&missing) || lacks(request, &SENT) || lacks(&request["userInfo"], &SENT_OF_USER) {
        return false;
    }
    if request["uid"] != UID {
        return true;
    }
    // The request was made from an object as it is in a file. An API server fills in what is left out there by default, and knows the user.
    let reads_metadata = condition.expression.as_ref().is_some_and(|(tree, _)| reads_metadata_only(tree));
    let reads_requester = requester::FIELDS.iter().any(|field| condition.named.contains(field));
    let kind = &request["kind"];
    let is_labeled = LABELED.iter().any(|(group, name)| kind["group"] == *group && kind["kind"] == *name);
    reads_metadata && !reads_requester && !is_labeled && !lacks(&request["object"]["metadata"], &FILLED)
}

/// The fields that an expression names, of those that API servers send or fill in. They may be fields of something else of the same name, and
/// texts: then a little more is uncertain.
pub(super) fn named(text: &str) -> Vec<&'static str> {
    let is_named = |field: &&str| {
        text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').any(|word| word == *field)
    };
    SENT.into_iter().chain(SENT_OF_USER).chain(FILLED).filter(is_named).collect()
}

#[cfg(test)]
mod tests {
    use portcullis_contract::MatchCondition;
    use serde_json::json;

    use super::*;
    use crate::conditions::{Conditions, Decision};
    use crate::request::tests::asked;

    fn decide(expressions: &[&str], request: &Value) -> Result<Decision, Failing> {
        let numbered = expressions.iter().enumerate();
        let conditions =
            numbered.map(|(n, &text)| MatchCondition { name: format!("c{n}"), expression: text.to_owned() });
        Conditions::of(&conditions.collect::<Vec<_>>()).decide_request(request)
    }

    fn failing(condition: &str, missing: &str) -> Result<Decision, Failing> {
        Err(Failing { condition: condition.to_owned(), missing: missing.to_owned() })
    }

    fn whole() -> Value {
        let mut request = asked("pods", "", "CREATE").request("ada", "Pod", "web");
        request["uid"] = json!("1");
        request["object"] = json!({"metadata": {"name": "web"}, "spec": {"priority": 7}});
        request["oldObject"] = Value::Null;
        request
    }

    #[test]
    fn a_condition_that_reads_what_is_not_there_fails() {
        let request = whole();
        for (text, missing) in [
            ("object.metadata.labels.app == 'shop'", "labels"),
            ("'app' in object.metadata.labels", "labels"),
            ("object.spec.hostNetwork", "hostNetwork"),
            ("request.subResource == 'status'", "subResource"),
            ("request.userInfo.extra['a'] == 'b'", "extra"),
        ] {
            assert_eq!(decide(&["true", text], &request), failing("c1", missing), "{text}");
            assert_eq!(decide(&[text, "false"], &request), Ok(Decision::Excluded), "{text}");
        }
        let guarded = "has(object.metadata.labels) && object.metadata.labels.app == 'shop'";
        assert_eq!(decide(&[guarded], &request), Ok(Decision::Excluded));
        assert_eq!(decide(&["object.spec.hostNetwork || object.spec.priority == 7"], &request), Ok(Decision::Matches));
        // What may be false counts more.
        let unknown = ["object.spec.hostNetwork", "authorizer.group('').resource('pods').check('get').allowed()"];
        assert_eq!(decide(&unknown, &request), Ok(Decision::Unknown("c1".into())));
    }

    #[test]
    fn what_an_api_server_may_have_is_not_missing() {
        let unknown = |text: &str, request: &Value| {
            assert_eq!(decide(&[text], request), Ok(Decision::Unknown("c0".into())), "{text} {request}");
        };
        unknown("request.object.metadata.name == 'web'", &whole());
        unknown("oldObject.metadata.name == 'web'", &whole());
        let mut partial = whole();
        partial.as_object_mut().expect("a mapping").retain(|name, _| !["kind", "userInfo"].contains(&name.as_str()));
        unknown("request.kind.kind == 'Pod'", &partial);
        unknown("request.userInfo.username == 'ada'", &partial);
        partial["userInfo"] = json!({"username": "ada"});
        unknown("'a' in request.userInfo.groups", &partial);
        // CEL names the key of the right side only.
        unknown("'a' in request.userInfo.groups || object.metadata.labels.app == 'x'", &partial);
        partial.as_object_mut().expect("a mapping").remove("userInfo");
        unknown("request.userInfo.username == 'ada' || object.metadata.labels.app == 'x'", &partial);
        unknown("!(request.kind.kind != 'Pod' && object.metadata.labels.app == 'x')", &partial);
        assert_eq!(decide(&["object.metadata.labels.app == 'x'"], &partial), failing("c0", "labels"));

        // An object of a file lacks what is filled in by default.
        let mut made = whole();
        made["uid"] = json!(UID);
        made["object"] = json!({"metadata": {"generateName": "web-"}, "spec": {}});
        for text in [
            "object.spec.restartPolicy == 'Always'",
            "object.metadata.name == 'web'",
            "object.metadata.uid == ''",
            "object.metadata.annotations['a'] == 'b'",
            "'kubernetes.io/pvc-protection' in object.metadata.finalizers",
            "object.metadata.name.startsWith('web-') || 'app' in object.metadata.labels",
            "object.metadata['annotations'].a == 'b' || object.metadata.labels.app == 'x'",
            "request.options.fieldManager == 'kubectl'",
        ] {
            unknown(text, &made);
        }
        assert_eq!(decide(&["object.metadata.labels.app == 'shop'"], &made), failing("c0", "labels"));
        for (group, kind) in [("", "Namespace"), ("", "ReplicationController"), ("batch", "Job")] {
            made["kind"] = json!({"group": group, "version": "v1", "kind": kind});
            unknown("object.metadata.labels.app == 'shop'", &made);
        }
        made["kind"]["kind"] = json!("CronJob");
        assert_eq!(decide(&["object.metadata.labels.app == 'shop'"], &made), failing("c0", "labels"));
    }
}
