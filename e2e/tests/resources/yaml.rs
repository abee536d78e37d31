//! kubectl, which reads YAML 1.1, reads the same values from YAML that Portcullis has written.

use serde_json::{Map, Value, json};

use crate::cluster;

/// Keys of a ConfigMap that YAML 1.1 would misread without quotes.
const KEYS: &[&str] = &[
    "yes",
    "no",
    "on",
    "OFF",
    "y",
    "N",
    "true",
    "null",
    "0x10",
    "0o7",
    "017",
    "1e3",
    "1_000",
    ".5",
    ".inf",
    "2020-01-01",
];
/// Values that YAML could misread without quotes.
const VALUES: &[&str] = &[
    "~",
    "",
    "12:30:45",
    "190:20:30",
    "+1",
    "=",
    "<<",
    "- a",
    "a: b",
    "# c",
    "a # c",
    " lead",
    "trail ",
    "%x",
    "@x",
    "`x",
    "&x",
    "*x",
    "!x",
    "[x",
    "{x}",
    "|",
    "---",
    "...",
    "one\ntwo",
    "one\n\n\n",
    " one\n two",
    "one\r\ntwo",
    "\tone",
    "\u{7}",
    "\u{85}",
    "\u{2028}",
    "\u{feff}x",
    "it's \"quoted\" \\ here",
];

#[test]
#[ignore = "starts a cluster"]
fn what_portcullis_writes_is_read_as_it_was_by_kubectl() {
    let keys = KEYS.iter().map(|key| ((*key).to_owned(), Value::from(*key)));
    let values = VALUES.iter().enumerate().map(|(place, value)| (format!("v{place}"), Value::from(*value)));
    let data: Map<String, Value> = keys.chain(values).collect();
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "nasty", "labels": {"y": "no", "on": "1e3"}},
        "data": data,
    });
    let text = portcullis_yaml::write(&object).unwrap();
    cluster().kubectl_as(&cluster().kubeconfig(), ["create", "--filename", "-"], &text).expect("a ConfigMap");
    let got = cluster().kubectl(["get", "configmap", "nasty", "--output=json"]).json("the ConfigMap");
    assert_eq!(got["data"], object["data"], "{text}");
    assert_eq!(got["metadata"]["labels"], object["metadata"]["labels"], "{text}");
}
