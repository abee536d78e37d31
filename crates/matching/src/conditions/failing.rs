//! Match conditions that fail because they read what a request does not have. API servers do not take them for false.

use cel::IdedExpr;
use cel::common::ast::{Expr, operators};
use serde_json::Value;

use super::cautious::{literal, step};
use super::{Condition, reads_metadata_only, requester};
use crate::filled::{FromFile, Key, METADATA, is_of_kubernetes};

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

/// Whether a key that a condition misses here is certainly missing in an API server, too.
pub(super) fn is_certain(condition: &Condition, request: &Value, made: Option<&FromFile<'_>>, missing: &str) -> bool {
    // CEL names only one of several missing keys: for `||` that of its right side. If the left side lacks a field that an API server sends, it
    // may be true there, and then nothing is missing. So every such field that the condition names counts as read.
    let is_read = |field: &str| field == missing || condition.named.contains(&field);
    let lacks = |part: &Value, fields: &[&str]| fields.iter().any(|field| part.get(field).is_none() && is_read(field));
    if REFUSED.contains(&missing) || lacks(request, &SENT) || lacks(&request["userInfo"], &SENT_OF_USER) {
        return false;
    }
    let Some(made) = made else { return true };
    // An API server fills in what is left out in the file by default, and knows the user.
    let Some((tree, _)) = &condition.expression else { return false };
    let reads_metadata = reads_metadata_only(tree);
    let reads_requester = requester::FIELDS.iter().any(|field| condition.named.contains(field));
    let is_as_written =
        |field: &str| field == "annotations" && made.has_annotations() && !may_see_more_annotations(tree);
    let reads_filled = METADATA.iter().any(|field| made.may_add_to(field) && is_read(field) && !is_as_written(field));
    reads_metadata && !reads_requester && !reads_filled && !made.may_get_label(None)
}

/// Whether an expression may read an annotation that Kubernetes adds, or takes annotations as a whole.
fn may_see_more_annotations(expression: &IdedExpr) -> bool {
    const ANNOTATIONS: Key<'_> = Some("annotations");
    let reads = |container: &IdedExpr, key: Key<'_>| match step(container) {
        Some((parent, ANNOTATIONS)) => key.is_none_or(is_of_kubernetes) || may_see_more_annotations(parent),
        _ => may_see_more_annotations(container),
    };
    if step(expression).is_some_and(|(_, key)| key == ANNOTATIONS) {
        return true;
    }
    match &expression.expr {
        Expr::Select(select) => reads(&select.operand, Some(&select.field)),
        Expr::Call(call) => match (call.func_name.as_str(), call.args.as_slice()) {
            // Any field may have a name that is computed.
            (operators::INDEX, [container, key]) => {
                !matches!(key.expr, Expr::Literal(_)) || reads(container, literal(key))
            }
            (operators::IN, [key, container]) => reads(container, literal(key)) || may_see_more_annotations(key),
            (_, args) => call.target.as_deref().into_iter().chain(args).any(may_see_more_annotations),
        },
        Expr::List(list) => list.elements.iter().any(may_see_more_annotations),
        Expr::Ident(_) | Expr::Literal(_) => false,
        Expr::Map(_) | Expr::Comprehension(_) | Expr::Struct(_) | Expr::Unspecified => true,
    }
}

/// The fields that an expression names, of those that API servers send or fill in. They may be fields of something else of the same name, and
/// texts: then a little more is uncertain.
pub(super) fn named(text: &str) -> Vec<&'static str> {
    let is_named = |field: &&str| {
        text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').any(|word| word == *field)
    };
    SENT.into_iter().chain(SENT_OF_USER).chain(METADATA).filter(is_named).collect()
}

#[cfg(test)]
mod tests {
    use portcullis_contract::MatchCondition;
    use serde_json::json;

    use super::*;
    use crate::conditions::{Conditions, Decision};
    use crate::request::UID;
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
        made["object"]["spec"]["template"]["metadata"]["labels"]["app"] = json!("shop");
        for (group, kind) in [("", "Namespace"), ("", "ReplicationController"), ("batch", "Job")] {
            made["kind"] = json!({"group": group, "version": "v1", "kind": kind});
            unknown("object.metadata.labels.app == 'shop'", &made);
        }
        made["kind"]["kind"] = json!("CronJob");
        assert_eq!(decide(&["object.metadata.labels.app == 'shop'"], &made), failing("c0", "labels"));
    }

    /// A request that was made from an object as it is in a file.
    fn made(group: &str, kind: &str, object: Value) -> Value {
        let mut request = asked("any", "", "CREATE").request("portcullis-eval", kind, "web");
        request["kind"] = json!({"group": group, "version": "v1", "kind": kind});
        request["object"] = object;
        request["oldObject"] = Value::Null;
        request
    }

    #[test]
    fn no_guard_is_false_about_what_an_api_server_fills_in() {
        let spec = json!({"containers": [{"name": "a"}]});
        let generated = made("", "Pod", json!({"metadata": {"generateName": "web-"}, "spec": spec}));
        let labeled = json!({"metadata": {"name": "web", "labels": {"app": "shop"}, "annotations": {"a": "b"}}});
        let pod = made("", "Pod", labeled.clone());
        let template = json!({"metadata": {"labels": {"app": "shop"}}});
        let job = made("batch", "Job", json!({"metadata": {"name": "web"}, "spec": {"template": template}}));
        let namespace = made("", "Namespace", labeled);
        let secret = made("", "Secret", json!({"metadata": {"name": "web"}, "data": {}, "stringData": {"a": "b"}}));
        let lists = json!({
            "containers": [{"name": "a", "volumeMounts": [{"name": "data"}]}], "imagePullSecrets": [],
            "tolerations": [{"key": "a"}], "volumes": [{"name": "data", "configMap": {}}],
        });
        let lists = made("", "Pod", json!({"metadata": {"name": "web"}, "spec": lists}));
        let bound = made("", "PersistentVolumeClaim", json!({"metadata": {"name": "web", "finalizers": ["a/b"]}}));
        for (text, request) in [
            ("has(object.spec.restartPolicy) && object.spec.restartPolicy == 'Always'", &generated),
            ("!has(object.spec.restartPolicy)", &generated),
            ("'restartPolicy' in object.spec", &generated),
            ("object.spec.containers.exists(c, has(c.imagePullPolicy) && c.imagePullPolicy == 'Always')", &generated),
            ("'imagePullPolicy' in object.spec.containers[0]", &generated),
            ("has(object.spec) && has(object.spec.serviceAccountName)", &generated),
            ("has(object.status)", &generated),
            ("has(object.metadata.name) && object.metadata.name.startsWith('web-')", &generated),
            ("has(object.metadata.annotations) && 'a.kubernetes.io/b' in object.metadata.annotations", &generated),
            ("has(object.metadata.annotations)", &generated),
            ("'deprecated.daemonset.template.generation' in object.metadata.annotations", &pod),
            ("size(object.metadata.annotations) == 1", &pod),
            ("object.metadata.annotations == {'a': 'b'}", &pod),
            ("'kubernetes.io/pvc-protection' in object.metadata.finalizers", &bound),
            ("has(object.metadata.labels) && 'app' in object.metadata.labels", &job),
            ("!has(object.metadata.labels)", &job),
            ("'kubernetes.io/metadata.name' in object.metadata.labels", &namespace),
            ("has(request.options.fieldManager)", &pod),
            ("has(request.options)", &pod),
            ("'userInfo' in request", &pod),
            ("'ci' in request.userInfo.groups", &pod),
            ("request.userInfo.username == 'portcullis-eval'", &pod),
            ("object == object", &pod),
            ("object.spec.volumes.all(v, has(v.configMap))", &lists),
            ("object.spec.volumes.exists(v, v.name == 'token')", &lists),
            ("size(object.spec.volumes) == 1", &lists),
            ("object.spec['volumes'].filter(v, v.name == 'data').size() == 1", &lists),
            ("object.spec.tolerations.exists_one(t, t.key == 'a')", &lists),
            ("object.spec.imagePullSecrets.all(s, s.name == 'a')", &lists),
            ("object.spec.containers.all(c, c.volumeMounts.all(m, m.name == 'data'))", &lists),
            ("size(object.spec.containers[0].volumeMounts) == 1", &lists),
            ("'batch.kubernetes.io/job-name' in object.spec.template.metadata.labels", &job),
            ("'job-name' in object.spec.template.metadata.labels", &job),
            ("size(object.spec.template.metadata.labels) == 1", &job),
            ("'a' in object.data", &secret),
        ] {
            assert_eq!(decide(&[text], request), Ok(Decision::Unknown("c0".into())), "{text}");
            assert_eq!(decide(&[text, "false"], request), Ok(Decision::Excluded), "{text}");
        }
    }

    /// The same request as an API server sends it.
    fn filled(made: &Value) -> Value {
        let mut request = made.clone();
        request["uid"] = json!("1");
        request["userInfo"] = json!({"username": "ada", "groups": ["ci"]});
        let metadata = &mut request["object"]["metadata"];
        metadata["uid"] = json!("2");
        metadata["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = json!("{}");
        if metadata["labels"].is_null() {
            metadata.as_object_mut().expect("a mapping").remove("labels");
        }
        if made["kind"]["kind"] == "Namespace" {
            metadata["labels"][crate::NAME_LABEL] = json!("web");
        }
        request["object"]["spec"]["priority"] = json!(0);
        if let Some(container) = request.pointer_mut("/object/spec/containers/0") {
            container["imagePullPolicy"] = json!("Always");
        }
        if let Some(volumes) = request.pointer_mut("/object/spec/volumes").and_then(Value::as_array_mut) {
            volumes.push(json!({"name": "token", "projected": {}}));
        }
        request["object"]["status"] = json!({});
        request
    }

    #[test]
    fn what_the_file_decides_is_certain() {
        let spec = json!({"accessModes": ["a"], "selector": null, "containers": [{"name": "a", "args": ["b"]}]});
        let bare = made("", "Pod", json!({"metadata": {"name": "web", "labels": null}, "spec": spec}));
        let full = json!({"metadata": {"name": "web", "labels": {"app": "shop"}, "annotations": {"a": "b"}}, "spec": {"containers": [{}]}});
        let (pod, namespace) = (made("", "Pod", full.clone()), made("", "Namespace", full.clone()));
        let job = made("batch", "Job", full);
        let volumes = json!([{"name": "data", "configMap": {}}, {"name": "host", "hostPath": {}}]);
        let spec = json!({"volumes": volumes, "imagePullSecrets": [{"name": "a"}]});
        let lists = made("", "Pod", json!({"metadata": {"name": "web"}, "spec": spec}));
        let template = json!({"metadata": {"labels": {"app": "shop"}}});
        let deployment =
            made("apps", "Deployment", json!({"metadata": {"name": "web"}, "spec": {"template": template}}));
        let config = made("", "ConfigMap", json!({"metadata": {"name": "web"}, "data": {"a": "b"}}));
        for (text, request) in [
            ("!has(object.metadata.labels)", &bare),
            ("!has(object.metadata.annotations) || !('example.com/skip' in object.metadata.annotations)", &bare),
            ("has(object.spec.containers) && object.spec.containers.all(c, c.name == 'a')", &bare),
            ("has(object.spec.priority) || object.metadata.name == 'web'", &bare),
            ("object != null && oldObject == null && object.metadata != null", &bare),
            ("size(object.spec.containers) == 1 && 'a' in object.spec.accessModes", &bare),
            ("request.operation in ['CREATE'] && !has(request.subResource) && !request.dryRun", &bare),
            ("has(object.metadata.annotations.a) && object.metadata['labels']['app'] == 'shop'", &pod),
            ("object.metadata.labels == {'app': 'shop'} && size(object.metadata.labels) == 1", &pod),
            ("!has(object.metadata.ownerReferences)", &pod),
            ("object.spec.volumes.exists(v, has(v.hostPath))", &lists),
            ("object.spec.volumes[1].name == 'host' && size(object.spec.imagePullSecrets) == 1", &lists),
            ("!has(object.binaryData) && object.data == {'a': 'b'}", &config),
        ] {
            assert_eq!(decide(&[text], request), Ok(Decision::Matches), "{text}");
            assert_eq!(decide(&[text], &filled(request)), Ok(Decision::Matches), "{text}");
        }
        for (text, request) in [
            ("has(object.metadata.labels) && 'app' in object.metadata.labels", &bare),
            ("has(object.metadata.annotations) && 'example.com/ask' in object.metadata.annotations", &bare),
            ("has(request.userInfo) && object.metadata.name == 'db'", &bare),
            ("'b' in object.spec.accessModes", &bare),
            ("object.spec.containers.exists(c, 'c' in c.args)", &bare),
            ("'example.com/ask' in object.metadata.annotations", &pod),
            ("'tier' in object.metadata.labels", &pod),
            ("has(object.metadata.labels.tier)", &job),
            ("'tier' in object.metadata.labels", &namespace),
            ("object.spec.volumes.all(v, v.name == 'data')", &lists),
            ("'tier' in object.spec.template.metadata.labels", &deployment),
            (
                "has(object.spec.template.metadata.annotations) && 'example.com/ask' in object.spec.template.metadata.annotations",
                &deployment,
            ),
            ("'c' in object.data", &config),
        ] {
            assert_eq!(decide(&[text], request), Ok(Decision::Excluded), "{text}");
            assert_eq!(decide(&[text], &filled(request)), Ok(Decision::Excluded), "{text}");
        }
        // What fails here fails there, too.
        let key = "example.com/team";
        for text in [
            "object.metadata.annotations['example.com/team'] == 'x'",
            "'a' in object.metadata.annotations && object.metadata.annotations['example.com/team'] == 'x'",
        ] {
            assert_eq!(decide(&[text], &pod), failing("c0", key), "{text}");
            assert_eq!(decide(&[text], &filled(&pod)), failing("c0", key), "{text}");
        }
        for text in [
            "object.metadata.annotations['kubectl.kubernetes.io/x'] == 'x'",
            "object.metadata.annotations['deprecated.x'] == 'x'",
            "object.metadata.annotations[request.operation] == 'x'",
            "size(object.metadata.annotations) == 2 || object.metadata.annotations['example.com/team'] == 'x'",
            "'a.k8s.io/b' in object.metadata.annotations || object.metadata.annotations['example.com/team'] == 'x'",
            "object.metadata[request.operation] == 'x' || object.metadata.annotations['example.com/team'] == 'x'",
        ] {
            assert_eq!(decide(&[text], &pod), Ok(Decision::Unknown("c0".into())), "{text}");
        }
        // All is known of a request that somebody sent.
        let mut sent = bare;
        sent["uid"] = json!("1");
        assert_eq!(decide(&["has(object.spec.restartPolicy)"], &sent), Ok(Decision::Excluded));
        assert_eq!(decide(&["'ci' in request.userInfo.groups"], &sent), Ok(Decision::Excluded));
    }
}
