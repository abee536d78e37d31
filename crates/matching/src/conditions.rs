//! Match conditions of a policy: CEL on a request, as far as it can be evaluated without an API server.
//!
//! Only the part of CEL that means the same here is evaluated. Everything outside of it, for instance `authorizer` and the libraries of
//! Kubernetes, and everything that takes too long, is reported as [`Decision::Unknown`] and never guessed. So is everything that depends on the
//! user who makes a request, if that user is not known.

mod cautious;
mod cost;
mod failing;
mod metadata;
mod requester;
mod types;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use cel::objects::{Key, Map};
use cel::parser::PrattParser;
use cel::{Context, Env, ExecutionError, IdedExpr};
use portcullis_contract::MatchCondition;
use serde_json::Value;

use crate::filled::FromFile;
use crate::request::Asked;
use cautious::cautious;
use cost::{Cost, MAX_BRIEF_STEPS, MAX_DEPTH, MAX_STEPS, Size};
pub use failing::Failing;
use failing::{is_certain, named};
use metadata::{reads_metadata_by_field, reads_metadata_only};
use requester::needs_requester;
use types::is_condition;

/// Longest expression that is evaluated, in bytes.
const MAX_LENGTH: usize = 4096;

/// What match conditions say about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// All are true.
    Matches,
    /// At least one is false, so that an API server does not ask the policy.
    Excluded,
    /// None is false, and the named one cannot be evaluated here.
    Unknown(String),
}

/// The match conditions of a policy.
#[derive(Debug, Default)]
pub struct Conditions(Vec<Condition>);

#[derive(Debug)]
struct Condition {
    name: String,
    /// The parsed expression; absent if it is outside the part of CEL that is evaluated here.
    expression: Option<(IdedExpr, Cost)>,
    /// Whether it would mean something else when the fields of the request that depend on its user are missing.
    needs_requester: bool,
    /// The fields that its text names, of those that API servers send or fill in.
    named: Vec<&'static str>,
}

/// The variables of one request, on which conditions are evaluated.
pub(crate) struct Subject {
    context: Context<'static, 'static>,
    size: Size,
}

/// Lets other work go on between conditions: those of many policies together can take long, and a condition does not stop before its end.
pub trait Pace {
    /// Waits, if it is time, before something that takes at most this many steps of about a hundred nanoseconds.
    fn before(&mut self, steps: u64) -> impl Future<Output = ()> + Send;
}

/// Never waits.
#[derive(Debug, Clone, Copy)]
pub struct NoPause;

impl Pace for NoPause {
    async fn before(&mut self, _: u64) {}
}

impl Subject {
    /// The variables `request`, `object` and `oldObject`, as an API server gives them to the match conditions of a webhook.
    pub(crate) fn new(request: &Value, object: &Value, old: &Value) -> Self {
        let mut context = library();
        context.add_variable_from_value("request", value(request));
        context.add_variable_from_value("object", value(object));
        context.add_variable_from_value("oldObject", value(old));
        let size = [request, object, old].map(Size::of).into_iter().fold(Size::default(), Size::and);
        Self { context, size }
    }
}

impl Conditions {
    /// Parses conditions that are evaluated for each request. `None` if one of them might mean something else in an API server, takes more
    /// than a moment, or looks at more of an object than its metadata.
    pub(crate) fn for_requests(conditions: &[MatchCondition]) -> Option<Self> {
        /// Variables that only API servers have, and fields that are missing in the variables here.
        const ELSEWHERE: [&str; 4] = ["authorizer", "namespaceObject", "options", metadata::UNKNOWN];
        let is_judged = |condition: &MatchCondition| {
            let text = &condition.expression;
            !ELSEWHERE.iter().any(|word| text.contains(word)) && portcullis_expression::match_condition(text).is_ok()
        };
        let all = Self::of(conditions);
        let is_brief = |one: &Condition| {
            one.expression.as_ref().is_some_and(|(tree, cost)| cost.is_brief() && reads_metadata_only(tree))
        };
        (conditions.iter().all(is_judged) && all.0.iter().all(is_brief)).then_some(all)
    }

    /// Whether the types in all of them fit, as an API server demands of the conditions of a webhook; false if it might not accept them.
    pub(crate) fn have_fitting_types(&self) -> bool {
        self.0.iter().all(|one| one.expression.as_ref().is_some_and(|(tree, _)| is_condition(tree)))
    }

    /// Whether all of them read the metadata of objects by single fields, as some fields are missing here.
    pub(crate) fn read_metadata_by_field(&self) -> bool {
        self.0.iter().all(|one| one.expression.as_ref().is_some_and(|(tree, _)| reads_metadata_by_field(tree)))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What conditions of [`Conditions::for_requests`] say about a request.
    pub(crate) async fn decide_on(&self, subject: &Subject, pace: &mut impl Pace) -> Decision {
        let mut failed = None;
        for condition in &self.0 {
            let steps = condition.expression.as_ref().map_or(0, |(_, cost)| cost.brief_steps(subject.size));
            pace.before(steps).await;
            // An API server gives up a condition that takes too much, too.
            let value = if steps <= MAX_BRIEF_STEPS { condition.value(&subject.context) } else { None };
            match value {
                Some(true) => {}
                Some(false) => return Decision::Excluded,
                None => failed = failed.or(Some(&condition.name)),
            }
        }
        failed.map_or(Decision::Matches, |name| Decision::Unknown(name.clone()))
    }

    /// Parses the conditions of a policy.
    pub fn of(conditions: &[MatchCondition]) -> Self {
        let read = |condition: &MatchCondition| {
            let expression = compiled(&condition.expression);
            let needs_requester = expression.as_ref().is_some_and(|(tree, _)| needs_requester(tree));
            let named = named(&condition.expression);
            Condition { name: condition.name.clone(), expression, needs_requester, named }
        };
        Self(conditions.iter().map(read).collect())
    }

    /// What the conditions say about a request of `user` for an object of a kind.
    pub fn decide(&self, user: &str, asked: &Asked, kind: &str, name: &str, object: &Value) -> Decision {
        self.decide_by(Some(user), asked, kind, name, object)
    }

    /// What the conditions say about a request. Without a user, the fields that depend on the user, and the options of
    /// the request, are unknown.
    pub(crate) fn decide_by(
        &self,
        user: Option<&str>,
        asked: &Asked,
        kind: &str,
        name: &str,
        object: &Value,
    ) -> Decision {
        if self.0.is_empty() {
            return Decision::Matches;
        }
        let size = Size::of(object);
        let context = (!size.is_too_large()).then(|| context(user, asked, kind, name, object));
        let mut steps = MAX_STEPS;
        self.decide_each(|condition| {
            let is_known = user.is_some() || !condition.needs_requester;
            condition.holds(size, &mut steps, context.as_ref().filter(|_| is_known)?)
        })
    }

    /// What the conditions say about the request of an AdmissionReview. All of it is known, unless it was made from a file: then a condition is
    /// unknown that an API server may decide otherwise, which knows the user and fills in the object.
    ///
    /// # Errors
    /// When a condition reads what is not there, and none is false or unknown: an API server fails to evaluate it, too.
    pub fn decide_request(&self, request: &Value) -> Result<Decision, Failing> {
        if self.0.is_empty() {
            return Ok(Decision::Matches);
        }
        let made = FromFile::of(request);
        let mut shown = for_conditions(request);
        if made.is_some() {
            requester::remove(&mut shown);
        }
        let (object, old) = (made.as_ref().map_or(&request["object"], |made| &made.object), &request["oldObject"]);
        let size = [request, object, old].map(Size::of).into_iter().fold(Size::default(), Size::and);
        let subject = (!size.is_too_large()).then(|| Subject::new(&shown, object, old));
        let (mut steps, mut steps_again, mut failing) = (MAX_STEPS, MAX_STEPS, None);
        let decision = self.decide_each(|condition| {
            let context = &subject.as_ref()?.context;
            match condition.outcome(size, &mut steps, context) {
                // It counts only if all others are true, as one that is false excludes the request.
                Err(Some(missing)) if is_certain(condition, request, made.as_ref(), &missing) => {
                    failing.get_or_insert_with(|| Failing { condition: condition.name.clone(), missing });
                    Some(true)
                }
                outcome => {
                    let value = outcome.ok()?;
                    let Some(made) = &made else { return Some(value) };
                    let again = condition.cautious(made).outcome(size, &mut steps_again, context);
                    (again == Ok(value)).then_some(value)
                }
            }
        });
        match (decision, failing) {
            (Decision::Matches, Some(failing)) => Err(failing),
            (decision, _) => Ok(decision),
        }
    }

    /// What they say together, each by whether it holds.
    fn decide_each(&self, mut holds: impl FnMut(&Condition) -> Option<bool>) -> Decision {
        let mut unknown = None;
        for condition in &self.0 {
            match holds(condition) {
                Some(true) => {}
                Some(false) => return Decision::Excluded,
                None => unknown = unknown.or(Some(&condition.name)),
            }
        }
        unknown.map_or(Decision::Matches, |name| Decision::Unknown(name.clone()))
    }
}

/// The variable `request` of match conditions. The objects are variables of their own. Where an API server converted the object to the version
/// of a rule, its kind is the converted one as in the AdmissionReview, and its resource is the one that was requested.
pub(crate) fn for_conditions(request: &Value) -> Value {
    let Value::Object(fields) = request else { return Value::Null };
    let is_kept = |name: &str| !["object", "oldObject"].contains(&name);
    let kept =
        fields.iter().filter(|(name, _)| is_kept(name.as_str())).map(|(name, field)| (name.clone(), field.clone()));
    let mut request = Value::Object(kept.collect());
    if let Some(requested) = fields.get("requestResource").filter(|requested| requested.is_object()) {
        request["resource"] = requested.clone();
    }
    request
}

impl Condition {
    /// Whether the condition is true; `None` if that cannot be found out here, or not with the steps that are left.
    fn holds(&self, size: Size, steps: &mut u64, context: &Context<'_, '_>) -> Option<bool> {
        self.outcome(size, steps, context).ok()
    }

    /// The same with a reason if there is one: the key that it reads and that is not there.
    fn outcome(&self, size: Size, steps: &mut u64, context: &Context<'_, '_>) -> Result<bool, Option<String>> {
        let left = self.expression.as_ref().and_then(|(_, cost)| steps.checked_sub(cost.steps(size)?));
        *steps = left.ok_or(None::<String>)?;
        self.resolved(context)
    }

    /// Whether the condition is true; `None` if it is neither true nor false.
    fn value(&self, context: &Context<'_, '_>) -> Option<bool> {
        self.resolved(context).ok()
    }

    /// The same condition, which fails where an API server may decide otherwise about the object of a file.
    fn cautious(&self, made: &FromFile<'_>) -> Self {
        let expression = self.expression.as_ref().map(|(tree, cost)| (cautious(tree, made), *cost));
        Self { name: self.name.clone(), expression, needs_requester: self.needs_requester, named: self.named.clone() }
    }

    fn resolved(&self, context: &Context<'_, '_>) -> Result<bool, Option<String>> {
        let (expression, _) = self.expression.as_ref().ok_or(None::<String>)?;
        // A defect of the CEL interpreter must not end a scan.
        match catch_unwind(AssertUnwindSafe(|| context.resolve(expression))) {
            Ok(Ok(cel::Value::Bool(value))) => Ok(value),
            Ok(Err(ExecutionError::NoSuchKey(key))) => Err(Some((*key).clone())),
            Ok(_) | Err(_) => Err(None),
        }
    }
}

fn compiled(text: &str) -> Option<(IdedExpr, Cost)> {
    if text.len() > MAX_LENGTH {
        return None;
    }
    let expression = PrattParser::new().max_recursion_depth(MAX_DEPTH).parse(text).ok()?;
    let cost = Cost::of(&expression)?;
    Some((expression, cost))
}

fn library() -> Context<'static, 'static> {
    static LIBRARY: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));
    Context::with_env(Arc::clone(&LIBRARY))
}

fn context(user: Option<&str>, asked: &Asked, kind: &str, name: &str, object: &Value) -> Context<'static, 'static> {
    let mut context = library();
    let mut request = asked.request(user.unwrap_or_default(), kind, name);
    if user.is_none() {
        requester::remove(&mut request);
    }
    let (object, mut request) = (value(object), value(&request));
    let old = if asked.is_update() { object.clone() } else { cel::Value::Null };
    if let cel::Value::Map(Map { map }) = &mut request
        && let Some(fields) = Arc::get_mut(map)
    {
        fields.insert(Key::from("object"), object.clone());
        fields.insert(Key::from("oldObject"), old.clone());
    }
    context.add_variable_from_value("object", object);
    context.add_variable_from_value("oldObject", old);
    context.add_variable_from_value("request", request);
    context
}

/// A value as an API server gives it to CEL: numbers are integers where they fit.
fn value(json: &Value) -> cel::Value {
    match json {
        Value::Null => cel::Value::Null,
        Value::Bool(value) => cel::Value::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(number) => cel::Value::Int(number),
            None => cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => cel::Value::String(Arc::new(text.clone())),
        Value::Array(entries) => cel::Value::List(Arc::new(entries.iter().map(value).collect())),
        Value::Object(fields) => {
            let fields: HashMap<Key, cel::Value> =
                fields.iter().map(|(name, field)| (Key::from(name.as_str()), value(field))).collect();
            cel::Value::Map(Map { map: Arc::new(fields) })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(operation: &str) -> Asked {
        Asked {
            group: String::new(),
            version: "v1".into(),
            resource: "pods".into(),
            subresource: String::new(),
            operation: operation.into(),
            namespace: "team".into(),
        }
    }

    fn pod() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"app": "shop"}},
            "spec": {"hostNetwork": true, "priority": 7, "share": 0.5, "containers": [
                {"name": "a", "image": "registry.example.com/a:1"},
                {"name": "b", "image": "registry.example.com/b:1", "securityContext": {"privileged": true}},
            ]},
        })
    }

    fn decide(operation: &str, expressions: &[&str], object: &Value) -> Decision {
        let conditions: Vec<MatchCondition> = expressions
            .iter()
            .enumerate()
            .map(|(number, &text)| MatchCondition { name: format!("c{number}"), expression: text.into() })
            .collect();
        Conditions::of(&conditions).decide("portcullis-audit", &asked(operation), "Pod", "web", object)
    }

    #[test]
    fn conditions_see_the_object_and_the_request() {
        for good in [
            "true",
            "object.metadata.name == 'web' && object.kind == 'Pod'",
            "has(object.metadata.labels.app) && !has(object.metadata.annotations)",
            "'app' in object.metadata.labels && object.metadata.labels['app'] == 'shop'",
            "object.spec.containers.all(c, c.image.startsWith('registry.example.com/'))",
            "object.spec.containers.exists(c, has(c.securityContext) && c.securityContext.privileged)",
            "object.spec.containers.filter(c, c.name == 'a').size() == 1",
            "object.spec.priority > 6 && object.spec.priority + 1 == 8 && object.spec.share < 1.0",
            "oldObject == null && request.operation == 'CREATE' && request.resource.resource == 'pods'",
            "!(request.userInfo.username in ['system:admin']) && request.kind.kind == 'Pod'",
            "request.object.metadata.name == 'web' && request.oldObject == null && request.dryRun == false",
        ] {
            assert_eq!(decide("CREATE", &[good], &pod()), Decision::Matches, "{good}");
        }
        assert_eq!(decide("UPDATE", &["oldObject.metadata.name == 'web'"], &pod()), Decision::Matches);
        for bad in ["false", "object.metadata.name != 'web'", "object.spec.containers.exists(c, c.name == 'z')"] {
            assert_eq!(decide("CREATE", &[bad], &pod()), Decision::Excluded, "{bad}");
        }
    }

    #[test]
    fn a_whole_request_has_its_user_and_its_options() {
        let request = json!({
            "operation": "UPDATE", "userInfo": {"username": "ada"}, "options": {"fieldManager": "kubectl"},
            "resource": {"resource": "pods"}, "object": pod(), "oldObject": {"metadata": {"name": "old"}},
        });
        let decide = |text: &str| {
            Conditions::of(&[MatchCondition { name: "c".into(), expression: text.into() }]).decide_request(&request)
        };
        for good in [
            "request.userInfo.username == 'ada' && request.options.fieldManager == 'kubectl'",
            "object.spec.hostNetwork && oldObject.metadata.name == 'old'",
        ] {
            assert_eq!(decide(good), Ok(Decision::Matches), "{good}");
        }
        assert_eq!(decide("request.userInfo.username == 'bob'"), Ok(Decision::Excluded));
        assert_eq!(decide("request.object.metadata.name == 'web'"), Ok(Decision::Unknown("c".to_owned())));
    }

    #[test]
    fn what_an_api_server_alone_can_evaluate_is_never_guessed() {
        let long = format!("true || '{}' == ''", "x".repeat(MAX_LENGTH));
        let deep = format!("size({}{}) == 1", "[".repeat(500), "]".repeat(500));
        for unknown in [
            "authorizer.group('').resource('pods').check('get').allowed()",
            "object.metadata.name.matches('^w')",
            "quantity(object.spec.memory).isGreaterThan(quantity('1Gi'))",
            "object.metadata.?labels['a'].orValue('') == ''",
            "object.metadata.annotations['a'] == 'b'",
            "object.metadata.name",
            "object.metadata.name ==",
            "int('7') == 7",
            &long,
            &deep,
        ] {
            assert_eq!(decide("CREATE", &["true", unknown], &pod()), Decision::Unknown("c1".into()), "{unknown}");
        }
    }

    #[test]
    fn one_that_is_false_decides_whatever_the_others_need() {
        let unknown = "authorizer.group('').resource('pods').check('get').allowed()";
        assert_eq!(decide("CREATE", &[unknown, "false"], &pod()), Decision::Excluded);
        assert_eq!(decide("CREATE", &[], &pod()), Decision::Matches);
    }

    #[test]
    fn what_takes_too_long_is_not_evaluated() {
        let list: Vec<u32> = (0..500).collect();
        let object = json!({"list": list});
        let nested = "object.list.all(a, object.list.all(b, object.list.all(c, a + b + c >= 0)))";
        assert_eq!(decide("CREATE", &[nested], &object), Decision::Unknown("c0".into()));
        assert_eq!(decide("CREATE", &["object.list.all(a, a >= 0)"], &object), Decision::Matches);
        let copies = "object.list.map(a, object.list).size() > 0";
        assert_eq!(decide("CREATE", &[copies], &object), Decision::Unknown("c0".into()));
        let long = "object.list.all(a, a >= 0)";
        assert_eq!(decide("CREATE", &[long; 20], &object), Decision::Unknown("c5".into()), "all of them together");
        let huge = json!({"data": "x".repeat(1 << 20)});
        assert_eq!(decide("CREATE", &["true"], &huge), Decision::Unknown("c0".into()));
    }

    #[test]
    fn an_object_of_a_file_has_time_for_two_evaluations() {
        let mut request = asked("CREATE").request("ada", "Pod", "web");
        request["object"] = json!({"list": (0..700).collect::<Vec<u32>>()});
        let condition = MatchCondition { name: "c".into(), expression: "object.list.all(a, a >= 0)".into() };
        let decide = |count: usize| {
            Conditions::of(&vec![condition.clone(); count]).decide_request(&request).expect("a decision")
        };
        assert_eq!(decide(1), Decision::Matches);
        assert_eq!(decide(2), Decision::Unknown("c".to_owned()), "one alone takes more than half of the time");
    }
}
