//! Unusual JSON, as a policy reads it and as a real API server decodes it: row H09.
//!
//! An API server encodes again what it has decoded, so such JSON does not reach a webhook. But if another client calls an evaluator, there
//! must not be a text that policies read differently from API servers.

use portcullis_e2e::Caller;
use serde_json::{Value, json};

use crate::installation;

/// Pieces of JSON, and of text that is almost JSON.
fn fragments() -> Vec<Vec<u8>> {
    let numbers = [
        "0",
        "-0",
        "0.0",
        "-0.0",
        "1E5",
        "1e+5",
        "1e-5",
        "0.1",
        "1.0",
        "1.50",
        "100e-2",
        "1e400",
        "-1e400",
        "1e-400",
        "9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "-9223372036854775809",
        "18446744073709551615",
        "18446744073709551616",
        "123456789012345678901234567890",
        "01",
        "-01",
        "+1",
        ".5",
        "5.",
        "1e",
        "-",
        "0x1f",
        "1_000",
        "NaN",
        "Infinity",
        "-Infinity",
    ];
    let texts = [
        r#""a\/b""#,
        r#""\u0041""#,
        r#""\u0000""#,
        r#""\ud83d\ude00""#,
        r#""\ud800""#,
        r#""\udc00\ud800""#,
        r#""\ud800\u0041""#,
        r#""\x41""#,
        r#""\u12""#,
        r#""\u12g4""#,
        r#""\u2028\ufeff""#,
        r#"'a'"#,
        r#""a"#,
        r#"a"#,
    ];
    let objects = [
        r#"{"a":1,"a":2}"#,
        r#"{"a":2,"a":1}"#,
        r#"{"a":{"b":1},"a":{"c":2}}"#,
        r#"{"a":[1],"a":false}"#,
        r#"{"a":1,"\u0061":2}"#,
        r#"{"a":1,"A":2}"#,
        r#"{"":1,"":2}"#,
        r#"{"a":1,"b":2,"a":3,"b":4}"#,
        r#"{"a":1,}"#,
        r#"{,"a":1}"#,
        r#"{a:1}"#,
        r#"{"a" 1}"#,
        r#"{"a":1 "b":2}"#,
        r#"{"a":}"#,
        r#"{1:2}"#,
        r#"{"a":1"#,
        r#"[1,]"#,
        r#"[,1]"#,
        r#"[1 2]"#,
        r#"[1"#,
        r#"[[[[[[1]]]]]]"#,
        "true",
        "True",
        "nul",
        "undefined",
        "",
        "1/* no */",
        "1// no",
        "{\"a\":\t1}",
        "\"a\tb\"",
        "\"a\nb\"",
        "\u{b}1",
        "\u{a0}1",
    ];
    let all = numbers.iter().chain(&texts).chain(&objects);
    let mut all: Vec<Vec<u8>> = all.map(|text| text.as_bytes().to_vec()).collect();
    // Invalid UTF-8: a lone byte, a slash in two bytes, half a surrogate pair, and a text that is cut off. And NUL bytes.
    for text in [&b"\"\xff\xfe\""[..], b"\"\xc0\xaf\"", b"\"\xed\xa0\x80\"", b"\"\xe2\x82\"", b"\"\0\"", b"\0"] {
        all.push(text.to_vec());
    }
    all.push("9".repeat(300).into_bytes());
    all.push([b"[".repeat(60), b"]".repeat(60)].concat());
    all
}

/// The fragments that only one of both accepts, or that an API server accepts and a guest in Rust cannot read, in the order of [`fragments`].
const OTHERS: [&[u8]; 9] = [
    // An API server refuses numbers that are too large. The evaluator passes them on, and a guest in Rust refuses them.
    b"1e400",
    b"-1e400",
    // Half a pair, escaped: an API server puts U+FFFD in its place. The evaluator passes it on, and a guest in Rust refuses it.
    br#""\ud800""#,
    br#""\udc00\ud800""#,
    br#""\ud800\u0041""#,
    // What is not UTF-8: an API server puts U+FFFD in its place, and the evaluator refuses it.
    b"\"\xff\xfe\"",
    b"\"\xc0\xaf\"",
    b"\"\xed\xa0\x80\"",
    b"\"\xe2\x82\"",
];

/// A document with these bytes in the place of `PLACE`.
fn filled(document: &Value, object: &[u8]) -> Vec<u8> {
    let text = document.to_string();
    let (before, after) = text.split_once("\"PLACE\"").unwrap();
    [before.as_bytes(), object, after.as_bytes()].concat()
}

/// Objects with each fragment in several places.
fn objects(fragments: &[impl AsRef<[u8]>]) -> Vec<Vec<u8>> {
    let places: [(&[u8], &[u8]); 3] =
        [(b"{\"data\":", b"}"), (b"{\"data\":[false,", b",\"behind\"]}"), (b"{ \"x\" :\r\n{\"y\":\t", b" } }")];
    let within = |fragment: &[u8]| places.map(|(before, after)| [before, fragment, after].concat());
    fragments.iter().flat_map(|fragment| within(fragment.as_ref())).collect()
}

/// As text for people.
fn shown(object: &[u8]) -> String {
    String::from_utf8_lossy(object).into_owned()
}

/// Documents that are invalid as a whole, by what is wrong with them.
fn odd_as_a_whole(document: &[u8]) -> [(&'static str, Vec<u8>); 6] {
    let behind = |more: &[u8]| [document, more].concat();
    let wide = String::from_utf8(document.to_vec()).unwrap();
    [
        ("a byte order mark", [&b"\xef\xbb\xbf"[..], document].concat()),
        ("NUL behind it", behind(b"\0")),
        ("a second document behind it", behind(b"{}")),
        ("a bracket behind it", behind(b"}")),
        ("UTF-16", wide.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("cut", document[..40].to_vec()),
    ]
}

/// Whether two values are the same, if numbers are floating point and their last digits do not matter.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            let (one, other) = (one.as_f64().unwrap(), other.as_f64().unwrap());
            (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| same(value, other)))
        }
        _ => one == other,
    }
}

/// The object in the payload that the guest has echoed, as a guest in Rust reads it; `None` if it cannot be read.
fn read_by_a_guest(answer: &Value) -> Option<Value> {
    let message = answer["response"]["status"]["message"].as_str()?;
    let (_, rest) = message.split_once("\"object\":")?;
    serde_json::Deserializer::from_str(rest).into_iter().next()?.ok()
}

#[test]
#[ignore = "starts a cluster"]
fn fault_h09_what_policies_read_is_what_an_api_server_reads() {
    let installation = installation("decoding", 1);
    let canary = installation.own_canary();
    let policy = installation.cluster_policy("decoding").guest("echo_settings");
    installation.apply_ready(std::slice::from_ref(&policy));
    let [webhook] = installation.webhooks().try_into().unwrap();
    let caller = Caller::new(&installation, &webhook, &installation.replicas()[0]);
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" }, "operation": "CREATE", "userInfo": {},
            "object": "PLACE",
        },
    });
    // The settings of a policy are free-form, so the API server decodes any JSON in them, and returns what it has read.
    let object = installation.cluster_policy("decoded").field("settings", "PLACE").manifest(installation.source());
    let path = "/apis/policies.portcullis.dev/v1alpha1/clusterpolicies?dryRun=All&fieldValidation=Ignore";
    let api = installation.api();
    let read_by_the_api_server = |document: &[u8]| {
        let reply = api.create_bytes(path, document).unwrap();
        assert!(reply.is_ok() || reply.code == 400, "{} {}", reply.code, reply.body);
        reply.is_ok().then(|| reply.body["spec"]["settings"].clone())
    };

    let (mut both, mut neither, mut others) = (0, 0, Vec::new());
    for odd in objects(&fragments()) {
        let shown = shown(&odd);
        let asked = filled(&review, &odd);
        let (code, answer) = caller.send(&asked).unwrap();
        assert_eq!(caller.send(&asked).unwrap(), (code, answer.clone()), "{shown}: the same each time");
        assert!([200, 400].contains(&code), "{shown}: {code} {answer}");
        let there = read_by_the_api_server(&filled(&object, &odd));
        let here = (code == 200).then(|| read_by_a_guest(&answer));
        match (there, here) {
            (Some(there), Some(Some(here))) => {
                assert!(same(&there, &here), "{shown}: the API server reads {there}, and a policy {here}");
                both += 1;
            }
            (None, None) => neither += 1,
            // If only one of them accepts the JSON, a guest in Rust cannot read it.
            (there, here) => {
                assert!(serde_json::from_slice::<Value>(&odd).is_err(), "{shown}: {there:?} and {here:?}");
                others.push(shown);
            }
        }
    }
    // Documents that are invalid around the object are refused by both.
    let whole = |document: &Value| odd_as_a_whole(&filled(document, br#"{"data":1}"#));
    for ((what, asked), (_, written)) in whole(&review).into_iter().zip(whole(&object)) {
        let (code, answer) = caller.send(&asked).unwrap();
        assert_eq!(code, 400, "{what}: {answer}");
        assert_eq!(read_by_the_api_server(&written), None, "{what}");
        neither += 1;
    }
    println!("{both} are read alike, {neither} by neither, {} otherwise: {others:#?}", others.len());
    assert_eq!(others, objects(&OTHERS).iter().map(|odd| shown(odd)).collect::<Vec<_>>());
    assert!(both + neither + others.len() >= 200 && both > 60 && neither > 60);
    canary.end();
}
