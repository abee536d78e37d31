//! Builtins of Rego that OPA leaves to its host. Each is a pure function of its arguments; random ones also depend on a seed, and one on the
//! time, both of which are the same throughout one call.
//!
//! If a builtin fails, the evaluation ends with an error, and the request is rejected. Outside of strict mode OPA returns `undefined`
//! instead, which could silently disable a rule that denies.
//!
//! The size of its arguments limits what a builtin does. Where its work or its result may grow faster than they do, [`Work`] and [`Effort`] are
//! the limit.

mod arguments;
mod crypto;
mod encoding;
mod error;
mod jwt;
mod network;
mod object;
mod regex;
mod rego_text;
mod semver;
mod sprintf;
mod strings;
mod time;
mod units;
mod work;

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use serde_json::Value;

pub(super) use self::arguments::Arguments;
pub(super) use self::error::BuiltinError;
pub(super) use self::work::{Effort, Work};
use super::CallError;
use crate::review::json::decoded;

/// What a builtin gives: a value, or what is wrong with its arguments.
type Outcome = Result<Value, BuiltinError>;
/// The function of a builtin.
type Run = fn(&Arguments) -> Outcome;
/// The line for the policy's log, made from the JSON texts of the arguments and of the result; none where the builtin logs nothing.
type LogLine = fn(&[Vec<u8>], &[u8]) -> Option<String>;

/// A builtin.
#[derive(Clone, Copy)]
pub(super) struct Builtin {
    pub(super) name: &'static str,
    pub(super) run: Run,
    pub(super) log_line: LogLine,
}

/// What is the same for all builtins of one call, and different for the next.
#[derive(Clone, Copy)]
pub(super) struct Once {
    /// The seed of builtins that are random.
    seed: u64,
    /// The time that it is.
    now: Timestamp,
}

/// Made when the first builtin runs.
#[derive(Default)]
pub(super) struct Drawn(Option<Once>);

impl Drawn {
    pub(super) fn get(&mut self) -> Once {
        *self.0.get_or_insert_with(|| {
            use std::hash::{BuildHasher as _, Hasher as _, RandomState};
            Once { seed: RandomState::new().build_hasher().finish(), now: Timestamp::now() }
        })
    }
}

/// Most items of a list that a builtin makes. A text of a megabyte could be a million of them.
const MAX_ITEMS: usize = 100_000;
/// Longest text of the arguments of one builtin all together, and of its result, in bytes.
pub(super) const MAX_TEXT: usize = 2 << 20;

/// The items of a result.
fn list(work: &Work, items: impl Iterator<Item = Value>) -> Outcome {
    let mut items = items;
    let list: Vec<Value> = items.by_ref().take(work.effort.items()).collect();
    match items.next() {
        Some(_) => Err(work.beyond(BuiltinError::TooMany { what: "the result", parts: "items" })),
        None => Ok(list.into()),
    }
}

/// Host memory that a builtin takes at most, in bytes, for arguments of these JSON texts: for the values, of which builtins make copies, and
/// for lists that are made of strings.
pub(super) fn memory_for(arguments: &[Vec<u8>]) -> u64 {
    const PER_BYTE: u64 = 32;
    let memory = |text: &Vec<u8>| decoded(text) + PER_BYTE * u64::try_from(text.len()).unwrap_or(u64::MAX);
    arguments.iter().map(memory).sum()
}

/// The builtins that a module names, by the module's numbers for them. The error names those that this host does not have.
pub(super) fn find(names: BTreeMap<String, i32>) -> Result<HashMap<i32, Builtin>, CallError> {
    let (mut found, mut missing) = (HashMap::new(), Vec::new());
    for (name, id) in names {
        match ALL.iter().find(|(known, _)| *known == name) {
            Some((name, run)) => {
                let log_line: LogLine = match *name {
                    "internal.print" => strings::printed,
                    "trace" => strings::traced,
                    _ => |_, _| None,
                };
                found.insert(id, Builtin { name, run: *run, log_line });
            }
            None => missing.push(portcullis_contract::clean(&name, 64)),
        }
    }
    if missing.is_empty() {
        return Ok(found);
    }
    let no_network = ["http.send", "net.lookup_ip_addr"];
    let why = if missing.iter().any(|name| no_network.contains(&&**name)) { "; policies have no network" } else { "" };
    missing.truncate(16);
    Err(CallError::Unsupported(format!("Missing Rego builtins: {}{why}", missing.join(", "))))
}

/// All builtins by name. Upstream knows two without their prefix, so these have both names. `net.cidr_contains`, `net.cidr_intersects`,
/// `net.cidr_overlap`, `regex.is_valid` and `regex.match` are for modules of OPA before 0.25 only: since then it compiles them into the module.
/// `object.subset` is absent on purpose: arguments come as JSON, where a set is a list like any other, and whether one is a subset depends on
/// which of them it is.
const ALL: &[(&str, Run)] = &[
    ("base64url.encode_no_pad", encoding::base64url_no_pad),
    ("crypto.hmac.equal", crypto::hmac_equal),
    ("crypto.hmac.sha1", crypto::hmac_sha1),
    ("crypto.hmac.sha256", crypto::hmac_sha256),
    ("crypto.hmac.sha512", crypto::hmac_sha512),
    ("crypto.sha1", crypto::sha1),
    ("crypto.sha256", crypto::sha256),
    ("date", time::date),
    ("glob.quote_meta", strings::quote_glob),
    ("hex.decode", encoding::hex_decode),
    ("hex.encode", encoding::hex_encode),
    ("indexof_n", strings::indexof_n),
    ("internal.print", strings::print),
    ("io.jwt.decode", jwt::decode),
    ("json.is_valid", encoding::json_is_valid),
    ("json.patch", object::patch),
    ("net.cidr_contains", network::cidr_contains),
    ("net.cidr_intersects", network::cidr_intersects),
    ("net.cidr_is_valid", network::cidr_is_valid),
    ("net.cidr_overlap", network::cidr_contains),
    ("numbers.range_step", units::range_step),
    ("object.union_n", object::union_n),
    ("opa.runtime", object::runtime),
    ("parse_rfc3339_ns", time::parse_rfc3339),
    ("rand.intn", units::rand_intn),
    ("regex.find_n", regex::find_n),
    ("regex.is_valid", regex::is_valid),
    ("regex.match", regex::is_match),
    ("regex.replace", regex::replace),
    ("regex.split", regex::split),
    ("regex.template_match", regex::template_match),
    ("semver.compare", semver::compare),
    ("semver.is_valid", semver::is_valid),
    ("sprintf", sprintf::sprintf),
    ("strings.any_prefix_match", strings::any_prefix),
    ("strings.any_suffix_match", strings::any_suffix),
    ("strings.count", strings::count),
    ("strings.reverse", strings::reverse),
    ("time.add_date", time::add_date),
    ("time.clock", time::clock),
    ("time.date", time::date),
    ("time.diff", time::diff),
    ("time.format", time::format),
    ("time.now_ns", time::now),
    ("time.parse_duration_ns", time::parse_duration),
    ("time.parse_ns", time::parse),
    ("time.parse_rfc3339_ns", time::parse_rfc3339),
    ("time.weekday", time::weekday),
    ("trace", strings::trace),
    ("units.parse", units::parse),
    ("units.parse_bytes", units::parse_bytes),
    ("urlquery.decode", encoding::urlquery_decode),
    ("urlquery.decode_object", encoding::urlquery_decode_object),
    ("urlquery.encode", encoding::urlquery_encode),
    ("urlquery.encode_object", encoding::urlquery_encode_object),
    ("uuid.rfc4122", units::uuid),
    ("yaml.is_valid", encoding::yaml_is_valid),
    ("yaml.marshal", encoding::yaml_marshal),
    ("yaml.unmarshal", encoding::yaml_unmarshal),
];

#[cfg(test)]
fn run_with(name: &str, arguments: Value, work: Work) -> Outcome {
    let (_, run) = ALL.iter().find(|(known, _)| *known == name).expect("a builtin");
    let Value::Array(values) = arguments else { panic!("a list of arguments") };
    run(&Arguments::new(values, once(7), work))
}

#[cfg(test)]
fn once(seed: u64) -> Once {
    Once { seed, now: Timestamp::UNIX_EPOCH }
}

/// With all the effort that there is, and no deadline.
#[cfg(test)]
pub(super) fn run(name: &str, arguments: Value) -> Result<Value, String> {
    let far = std::time::Instant::now() + std::time::Duration::from_secs(3600);
    run_with(name, arguments, Work::new(Effort::Full, far)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_the_same_throughout_a_call() {
        let mut drawn = Drawn::default();
        let first = drawn.get();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert_eq!(drawn.get().now, first.now);
        assert_ne!(Drawn::default().get().now, first.now);
        assert_eq!(run("time.now_ns", serde_json::json!([])), Ok(0.into()), "the time that it was given");
    }

    #[test]
    fn what_this_host_does_not_have_is_named() {
        let names = |names: &[&str]| names.iter().zip(1..).map(|(name, id)| ((*name).to_owned(), id)).collect();
        assert_eq!(find(names(&["sprintf", "trace"])).expect("both").len(), 2);
        let error = |list: &[&str]| find(names(list)).err().expect("one is missing").to_string();
        assert_eq!(error(&["sprintf", "graphql.parse", "x.y"]), "Missing Rego builtins: graphql.parse, x.y");
        assert_eq!(error(&["object.subset"]), "Missing Rego builtins: object.subset");
        assert_eq!(error(&["http.send"]), "Missing Rego builtins: http.send; policies have no network");
        let many: Vec<String> = (0..500).map(|number| format!("{number:0>200}")).collect();
        assert!(error(&many.iter().map(String::as_str).collect::<Vec<_>>()).len() < 2048);
    }

    #[test]
    fn what_yaml_becomes_is_counted_by_its_text() {
        let mut texts = vec!["- ".repeat(100) + "0", "0,".repeat(10_000), "[0,".repeat(100) + &"]".repeat(100)];
        texts
            .extend(["- 0\n", "- [0]\n", "- - - - 0\n", "-\n  -\n    - 0\n", "- a: 0\n"].map(|line| line.repeat(1000)));
        texts.extend(["[0]", "{a: 0}", "[[[[0]]]]", "\\x5b"].map(|item| format!("[{}]", vec![item; 1000].join(","))));
        for text in texts {
            let value = run("yaml.unmarshal", Value::Array(vec![text.clone().into()])).expect("YAML");
            let counted = memory_for(&[serde_json::to_vec(&text).expect("encodes")]);
            let taken = crate::review::json::taken(&value) as u64;
            assert!(taken <= counted, "{taken} > {counted}: {}", &text[..text.len().min(80)]);
        }
    }

    #[test]
    fn each_is_listed_once() {
        assert!(ALL.iter().zip(&ALL[1..]).all(|(one, next)| one.0 < next.0));
    }

    #[test]
    fn no_argument_makes_one_panic() {
        use serde_json::json;
        let odd = [
            json!(null),
            json!(true),
            json!(-1),
            json!(1e300),
            json!(9_223_372_036_854_775_807_i64),
            json!(""),
            json!("%"),
            json!("%*d%99999999999d%.9999999f%[3]v"),
            json!("\u{0}é\u{10FFFF}"),
            json!([]),
            json!([[], [null]]),
            json!({"a": {"b": []}}),
            json!("["),
            json!("2006-01-02T15:04:05Z07:00"),
            json!([i64::MAX, "Mars/Phobos"]),
            json!("a.b.c"),
            json!("1.0.0-"),
        ];
        for (name, _) in ALL {
            for count in 0..=4 {
                for first in &odd {
                    for second in &odd {
                        let mut values = vec![first.clone(), second.clone(), first.clone(), second.clone()];
                        values.truncate(count);
                        let _ = run(name, values.into());
                    }
                }
            }
        }
    }
}
