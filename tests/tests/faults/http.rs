//! Section 9: assertions that the tests of the admission port share.

use std::time::{Duration, Instant};

use portcullis_tests::{LIMIT, Pod, Raw, RawResponse, request};

pub(crate) use portcullis_tests::{DENIES, Server};

/// Asserts TRANSPORT of section 1: an error of HTTP in the usual form, not an AdmissionReview. Returns the message.
pub(crate) fn assert_refused(response: &RawResponse, status: u16) -> String {
    assert_eq!(response.status, status, "{response:?}");
    let body: serde_json::Value = serde_json::from_str(&response.body).unwrap_or_default();
    assert_eq!(body["status"], status, "{response:?}");
    let message = body["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty(), "{response:?}");
    message.to_owned()
}

/// Sends each of these requests, a method and a path, with several announced lengths of a body that never comes. Asserts that each is
/// refused by its head alone, with the same answer as a path that does not exist.
pub(crate) fn assert_closed(pod: &Pod, requests: &[(&str, &str)]) {
    let mut fastest = Duration::MAX;
    // An allowed length, no body, and a length above the limit.
    for length in ["1048576", "0", "99999999999"] {
        let ask = |method: &str, path: &str| {
            let mut connection = Raw::tls(pod.admission()).expect("connects");
            let start = Instant::now();
            connection.send(request(method, path, &[("Content-Length", length)], "")).expect("sends");
            let response = connection.response().expect("answers");
            if length != "0" {
                assert!(response.closes(), "{method} {path}: {response:?}");
                assert!(connection.closed_within(LIMIT).is_some(), "{method} {path}");
            }
            (response, start.elapsed())
        };
        let (nowhere, _) = ask("POST", "/nowhere");
        for (method, path) in requests {
            let (response, took) = ask(method, path);
            assert_refused(&response, 404);
            assert_eq!(without_date(&response), without_date(&nowhere), "{method} {path}, length {length}");
            fastest = fastest.min(took);
        }
    }
    // If a refused body were read, it would be read for a second, because it never comes.
    assert!(fastest < Duration::from_millis(500), "the fastest answer took {fastest:?}");
}

/// Head and body of an answer, without the header `date`.
fn without_date(response: &RawResponse) -> (String, &str) {
    let lines = response.head.lines().filter(|line| !line.starts_with("date:"));
    (lines.collect::<Vec<_>>().join("\n"), &response.body)
}
