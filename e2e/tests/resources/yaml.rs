//! kubectl, which reads YAML 1.1, reads the same values from YAML that Portcullis has written, and from other YAML but for the values that a note names.

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

/// Scalars of a file that somebody wrote.
const SCALARS: &[&str] = &[
    "yes",
    "Off",
    "y",
    "'yes'",
    "!!str yes",
    "!!bool yes",
    "!!bool \"no\"",
    "True",
    "text",
    "12:30",
    "2020-01-01",
    "1.2.3",
    "v1",
    "1",
    "-1",
    "+1",
    "0x10",
    "0XFF",
    "-0x10",
    "+0x10",
    "0x1_0",
    "0o17",
    "0O17",
    "-0o17",
    "+0o17",
    "0o1_7",
    "0644",
    "0_8",
    "-08",
    "0b11",
    "0B11",
    "-0b1",
    "0b+1",
    "1_000",
    "1__0",
    "_1",
    "1_0.5e1",
    "1_0e3",
    "1e_3",
    ".5",
    ".5_0",
    "._5",
    ".5_",
    "-._5",
    "+_1",
    "0x",
    "0b",
    "0x1p4",
    "1.0",
    "1e3",
    "5.",
    "-2.0",
    "1e18",
    "1.5",
    "1e-3",
    "!!int 0b11",
    "!!float 0644",
];

/// A scalar that is not noted is the same for a module in a cluster as in a folder.
#[test]
#[ignore = "starts a cluster"]
fn kubectl_sends_what_portcullis_reads_except_where_noted() {
    let head = "apiVersion: policies.portcullis.dev/v1alpha1\nkind: ClusterPolicy\nmetadata: {name: scalars}\nspec:\n  \
                module: registry://a.example/b:v1\n  \
                rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]\n  settings:\n    of:\n";
    let items: String = SCALARS.iter().map(|scalar| format!("    - {scalar}\n")).collect();
    let text = format!("{head}{items}");
    cluster().kubectl_as(&cluster().kubeconfig(), ["create", "--filename", "-"], &text).expect("a policy");
    let policy = "clusterpolicies.policies.portcullis.dev/scalars";
    let got = cluster().kubectl(["get", policy, "--output=json"]).json("the policy");
    let ours: Value = portcullis_yaml::read(&text).unwrap();
    let told: Vec<usize> = portcullis_yaml::read_otherwise(&text).iter().map(|one| one.line).collect();
    let first = head.lines().count() + 1;
    for (place, scalar) in SCALARS.iter().enumerate() {
        let [here, there] = [&ours, &got].map(|policy| &policy["spec"]["settings"]["of"][place]);
        assert_eq!(here != there, told.contains(&(first + place)), "{scalar}: {here} here, {there} in a cluster");
    }
}

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
