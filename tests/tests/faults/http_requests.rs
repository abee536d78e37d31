//! Section 9: requests that are not admission reviews, that are incomplete, or that are several in one.

use portcullis_tests::{LIMIT, Review, Secret, gzip_bomb, request, zstd_bomb};
use serde_json::{Value, json};

use crate::http::{DENIES, Server, assert_refused};

const PATH: &str = "/validate/cluster/denies";
const NO_PRIVILEGED: &str = "/validate/cluster/no-privileged";

fn post(path: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    request("POST", path, &[], body)
}

#[test]
fn fault_h04_compressed_body() {
    let server = Server::start();
    let (bomb, zstd) = (gzip_bomb(256 << 10), zstd_bomb(1 << 10));
    let before = server.pod.evaluator().usage();
    for (encoding, body) in [
        ("gzip", &bomb[..]),
        ("GZIP", &bomb),
        ("x-gzip", &bomb),
        ("deflate", &bomb[10..]),
        ("br", b"anything"),
        ("zstd", &zstd),
        ("identity, gzip", &bomb),
        ("gzip, identity", &bomb),
    ] {
        assert_refused(&server.send(request("POST", PATH, &[("Content-Encoding", encoding)], body)), 415);
    }
    let after = server.pod.evaluator().usage();
    assert!(after.peak < before.peak + (64 << 20), "{before} became {after}");
    assert_eq!(server.asked(), 0);
    let plain = request("POST", PATH, &[("Content-Encoding", "identity")], Review::pod().bytes());
    assert_eq!(server.send(plain).status, 200);
    server.finish();
}

#[test]
fn fault_h05_body_is_no_json() {
    let server = Server::start();
    let secret = Secret::planted_in("body");
    let review = Review::pod().label("password", secret.text()).bytes();
    let text = String::from_utf8(review.clone()).expect("JSON is text");
    let group = server.pod.volume().manifest().groups[0].id.to_string();
    for (what, body) in [
        ("empty", String::new()),
        ("white space", " \r\n\t".to_owned()),
        ("text", secret.text().to_owned()),
        ("a page", format!("<html>{}</html>", secret.text())),
        ("cut", text[..text.len() - 10].to_owned()),
        ("cut in a text", text[..text.find("password").expect("it is there") + 4].to_owned()),
        ("followed by more", format!("{text}{text}")),
        ("a list", format!("[{text}]")),
        ("null", "null".to_owned()),
        ("a text", format!("{:?}", secret.text())),
        ("a number", "7".to_owned()),
        ("a form", format!("request={}", secret.text())),
    ] {
        for path in [PATH.to_owned(), format!("/admit/{group}")] {
            let response = server.send(post(&path, &body));
            assert_refused(&response, 400);
            secret.assert_not_in(what, &response.body);
        }
    }

    // A body that is shorter than its length: the request is incomplete, and may not get an answer once the sender is gone.
    let mut connection = server.connect();
    connection.send(&post(PATH, &review)[..400]).expect("sends");
    connection.end_sending().expect("ends");
    if let Ok(response) = connection.response() {
        assert_eq!(response.status, 400, "{response:?}");
    }
    assert!(connection.closed_within(LIMIT).is_some());

    assert_eq!(server.asked(), 0);
    secret.assert_nowhere(&server.pod);
    server.finish();
}

#[test]
fn fault_h06_content_type() {
    let server = Server::start();
    let body = Review::pod().bytes();
    for other in
        ["", "text/plain", "application/yaml", "application/jsonx", "application/json-patch+json", "*/*", "\u{fc}"]
    {
        assert_refused(&server.send(request("POST", PATH, &[("Content-Type", other)], &body)), 415);
    }
    assert_eq!(server.asked(), 0);
    for json in ["application/json", "application/json; charset=utf-8", "Application/JSON"] {
        assert_eq!(server.send(request("POST", PATH, &[("Content-Type", json)], &body)).status, 200, "{json}");
    }
    server.finish();
}

#[test]
fn fault_h07_other_version_or_missing_field() {
    let server = Server::start();
    let review = Review::pod().json().clone();
    let with = |pointer: &str, value: Value| {
        let mut review = review.clone();
        *review.pointer_mut(pointer).expect("the field is there") = value;
        review
    };
    let without = |parent: &str, field: &str| {
        let mut review = review.clone();
        let parent = review.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object");
        parent.remove(field).expect("the field is there");
        review
    };
    let mut cases = vec![
        ("apiVersion".to_owned(), with("/apiVersion", json!("admission.k8s.io/v1beta1"))),
        ("apiVersion".to_owned(), with("/apiVersion", json!(1))),
        ("kind".to_owned(), with("/kind", json!("Pod"))),
        ("request".to_owned(), without("", "request")),
        ("request".to_owned(), with("/request", Value::Null)),
        ("request".to_owned(), with("/request", json!("text"))),
        ("request.uid".to_owned(), with("/request/uid", json!(7))),
        ("request.object".to_owned(), with("/request/object", json!([]))),
        ("request.userInfo".to_owned(), with("/request/userInfo", json!("alice"))),
        ("request.dryRun".to_owned(), with("/request/dryRun", json!("no"))),
    ];
    for field in ["uid", "kind", "resource", "operation", "userInfo"] {
        cases.push((format!("request.{field}"), without("/request", field)));
        cases.push((format!("request.{field}"), with(&format!("/request/{field}"), Value::Null)));
    }
    for (field, review) in cases {
        let message = assert_refused(&server.send(post(PATH, review.to_string())), 400);
        assert!(message.contains(&format!("`{field}`")), "{message} does not name {field}");
    }
    assert_eq!(server.asked(), 0);
    server.finish();
}

#[test]
fn fault_h08_nested_deep() {
    const DEPTH: usize = 100_000;
    let server = Server::with(|setup| setup.evaluator("--audit", "on").evaluator("--validate-raw", "on"));
    let lists = format!("{}{}", "[".repeat(DEPTH), "]".repeat(DEPTH));
    let objects = format!("{}1{}", "{\"a\":".repeat(DEPTH), "}".repeat(DEPTH));
    let review = |object: &str| Review::pod().with("/object", "PLACE").json().to_string().replace("\"PLACE\"", object);
    let group = server.pod.volume().manifest().groups[0].id.to_string();
    let paths =
        [PATH.to_owned(), format!("/audit/{DENIES}"), format!("/validate_raw/{DENIES}"), format!("/admit/{group}")];
    for path in &paths {
        for body in [&lists, &objects, &"[".repeat(DEPTH), &format!("{{\"request\":{lists}}}")] {
            assert_refused(&server.send(post(path, body)), 400);
        }
        for object in [&format!("{{\"a\":{lists}}}"), &objects] {
            assert_refused(&server.send(post(path, review(object))), 400);
        }
    }
    assert_eq!(server.asked(), 0);
    // A deep body within the limit reaches the policy. If the guest cannot handle it, only this evaluation fails.
    let object = format!("{{\"a\":{}{}}}", "[".repeat(900), "]".repeat(900));
    for path in [PATH, NO_PRIVILEGED] {
        assert_eq!(server.send(post(path, review(&object))).status, 200, "{path}");
    }
    server.finish();
}

/// `e2e/tests/promises/decoding.rs` compares with how a real API server decodes such objects. It encodes again what it has decoded, so it
/// never sends such bodies itself.
#[test]
fn fault_h09_json_at_its_edges() {
    let server = Server::start();
    let plain = Review::pod().with("/object", json!({"data": "PLACE"})).json().to_string();
    let object = |text: &[u8]| {
        let (before, after) = plain.split_once("\"PLACE\"").expect("it is there");
        [before.as_bytes(), text, after.as_bytes()].concat()
    };
    let field = |text: &str| plain.replacen("\"request\":{", &format!("\"request\":{{{text},"), 1).into_bytes();
    let corpus: Vec<(&str, Vec<u8>, u16)> = vec![
        ("the field uid twice", field("\"uid\":\"other\""), 400),
        ("the field request twice", plain.replacen('{', "{\"request\":{},", 1).into_bytes(), 400),
        ("a key of the object twice", object(b"{\"a\":1,\"a\":2}"), 200),
        ("a number beyond all bounds", object(b"1e400"), 200),
        ("a number of a thousand digits", object("9".repeat(1000).as_bytes()), 200),
        ("minus zero", object(b"-0"), 200),
        ("a number where a word is due", field("\"operation\":1e400"), 400),
        ("not a number", object(b"NaN"), 400),
        ("infinite", object(b"Infinity"), 400),
        ("a leading zero", object(b"01"), 400),
        ("hexadecimal", object(b"0x1f"), 400),
        ("no UTF-8", object(b"\"\xff\xfe\""), 400),
        ("a slash in two bytes", object(b"\"\xc0\xaf\""), 400),
        ("half a pair in UTF-8", object(b"\"\xed\xa0\x80\""), 400),
        ("half a pair, escaped", object(b"\"\\ud800\""), 200),
        ("NUL", object(b"\"\0\""), 400),
        ("NUL, escaped", object(b"\"\\u0000\""), 200),
        ("NUL behind the end", [plain.as_bytes(), b"\0"].concat(), 400),
        ("a line end in a text", object(b"\"\n\""), 400),
        ("byte order mark", [b"\xef\xbb\xbf", plain.as_bytes()].concat(), 400),
        ("UTF-16", plain.encode_utf16().flat_map(u16::to_le_bytes).collect(), 400),
        ("a comment", object(b"1/* no */"), 400),
        ("a comma too many", object(b"[1,]"), 400),
        ("single quotes", object(b"'a'"), 400),
        ("an unknown field", field("\"unknown\":{\"a\":[1]}"), 200),
    ];
    for (what, body, status) in &corpus {
        for _ in 0..2 {
            let response = server.send(post(PATH, body));
            assert_eq!(response.status, *status, "{what}: {response:?}");
        }
    }
    // If a key comes twice, a policy may use the last value, as the API server does, or neither, but never the first.
    let container = |privileged: &str| {
        let object = json!({"spec": {"containers": [{"name": "web", "securityContext": "PLACE"}]}});
        let review = Review::pod().with("/object", object).json().to_string();
        review.replace("\"PLACE\"", &format!("{{\"privileged\":{privileged}}}")).into_bytes()
    };
    for _ in 0..2 {
        let response = server.send(post(NO_PRIVILEGED, container("false,\"privileged\":true")));
        assert!(response.body.contains("\"allowed\":false"), "{response:?}");
    }
    server.finish();
}

#[test]
fn fault_h19_paths_that_lead_elsewhere() {
    let server = Server::start();
    let body = Review::pod().bytes();
    let long = format!("/validate/{}", "a".repeat(4000));
    for path in [
        "/",
        "/validate",
        "/validate/",
        "/validate/cluster",
        "/validate/cluster/unknown",
        "/validate/denies",
        "/validate/Cluster/denies",
        "/VALIDATE/cluster/denies",
        "/validate//cluster/denies",
        "//validate/cluster/denies",
        "/validate/cluster/denies/",
        "/validate/cluster/denies/..",
        "/validate/cluster/../cluster/denies",
        "/validate/../validate/cluster/denies",
        "/validate/./cluster/denies",
        "/validate/%2e/cluster/denies",
        "/validate/cluster/%2e%2e/cluster/denies",
        "/validate/cluster%2fdenies",
        "/validate/cluster%2Fdenies",
        "/validate/cluster%252fdenies",
        "/validate/cluster%5cdenies",
        "/validate/cluster/denies%00",
        "/validate/cluster/denies%",
        "/validate/cluster/%ff",
        "/validate/%c0%ae%c0%ae/cluster/denies",
        "/audit/cluster/denies",
        "/validate_raw/cluster/denies",
        "/admit/cluster/denies",
        "/admit/../validate/cluster/denies",
        "/readyz",
        "/metrics",
        "/v1/state",
        "/etc/passwd",
        &long,
    ] {
        let message = assert_refused(&server.send(post(path, &body)), 404);
        assert!(message.len() < 300, "{path}: {message}");
    }
    // This path is longer than a head may be, so it is refused while the head is read.
    let mut connection = server.connect();
    let sent = connection.send(post(&format!("/validate/{}", "a".repeat(1 << 20)), &body));
    if let (Ok(()), Ok(response)) = (sent, connection.response()) {
        assert!([400, 404, 414, 431].contains(&response.status), "{response:?}");
    }
    assert_eq!(server.asked(), 0);
    server.finish();
}

#[test]
fn fault_h20_two_requests_in_one() {
    let server = Server::start();
    let inner = post(PATH, Review::pod().bytes());
    let chunk = [format!("{:x}\r\n", inner.len()).as_bytes(), &inner, b"\r\n0\r\n\r\n"].concat();
    let length = inner.len().to_string();
    let chunked = [b"0\r\n\r\n", &inner[..]].concat();
    for (what, headers, body) in [
        ("chunks and length", vec![("Transfer-Encoding", "chunked"), ("Content-Length", "4")], &chunked),
        ("length and chunks", vec![("Content-Length", "4"), ("Transfer-Encoding", "chunked")], &chunked),
        ("length of all and chunks", vec![("Content-Length", &length), ("Transfer-Encoding", "chunked")], &chunked),
        ("chunks alone", vec![("Content-Length", ""), ("Transfer-Encoding", "chunked")], &chunk),
        ("other chunks", vec![("Content-Length", "4"), ("Transfer-Encoding", "xchunked")], &chunked),
        ("chunks twice", vec![("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "identity")], &chunked),
        ("a space before the colon", vec![("Content-Length", "4"), ("Transfer-Encoding ", "chunked")], &chunked),
        ("two lengths", vec![("Content-Length", "0"), ("Content-Length", &length)], &inner),
        ("a list of lengths", vec![("Content-Length", "0, 10")], &inner),
        ("a length with a sign", vec![("Content-Length", "+10")], &inner),
        ("a length below zero", vec![("Content-Length", "-1")], &inner),
        ("a length in hexadecimal", vec![("Content-Length", "0x10")], &inner),
    ] {
        let mut connection = server.connect();
        connection.send(request("POST", PATH, &headers, body)).expect("sends");
        let response = connection.response().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(response.status, 400, "{what}: {response:?}");
        assert!(connection.closed_within(LIMIT).is_some(), "{what}: the connection stays open");
    }
    // A request inside the body of another is just a body that is not JSON.
    assert_refused(&server.send(post(PATH, &inner)), 400);
    assert_refused(&server.send(post(PATH, [&Review::pod().bytes(), &inner[..]].concat())), 400);
    assert_eq!(server.asked(), 0, "the second request was answered");
    server.finish();
}

#[test]
fn fault_h21_other_methods() {
    let server = Server::start();
    for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW", "post"] {
        let response = server.send(request(method, PATH, &[], Review::pod().bytes()));
        assert_refused(&response, 405);
        assert!(response.head.contains("allow: post"), "{response:?}");
    }
    let mut connection = server.connect();
    connection.send(request("HEAD", PATH, &[("Content-Length", "")], "")).expect("sends");
    assert_eq!(connection.response_to_head().expect("answers").status, 405);
    assert_eq!(server.asked(), 0);
    server.finish();
}
