//! The file of a test: a policy, and what it is expected to answer. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use portcullis_api::decode_value;
use serde::Deserialize;
use serde_json::Value;

use super::expectation::Expectation;

/// The API version of tests. They are for this command only: no cluster has the kind.
pub(super) const API_VERSION: &str = "test.portcullis.dev/v1alpha1";
/// Their kind.
pub(super) const KIND: &str = "PolicyTest";

/// A policy and the cases it is tried with.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PolicyTest<C = Case> {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default)]
    metadata: Metadata,
    /// The file with the policy's manifest. This path and those of requests start at the folder of the test's file.
    pub(super) policy: PathBuf,
    /// Which policy, when the file has several: its name or id.
    pub(super) policy_name: Option<String>,
    /// Settings in place of those of the manifest.
    pub(super) settings: Option<Value>,
    /// What is tried, in this order.
    pub(super) cases: Vec<C>,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

/// A request, and what the policy is expected to answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Case {
    pub(super) name: String,
    /// A file with an AdmissionReview, its request alone, or an object that is created.
    request: Option<PathBuf>,
    /// The same, written here.
    object: Option<Value>,
    /// Labels of the request's namespace, for the policy's namespace selector.
    #[serde(default)]
    pub(super) namespace_labels: BTreeMap<String, String>,
    pub(super) expect: Expectation,
}

/// Where the request of a case is.
#[derive(Debug, PartialEq)]
pub(super) enum Input<'a> {
    File(PathBuf),
    Written(&'a Value),
}

impl PolicyTest {
    /// Whether a document is a test, of any version.
    pub(super) fn is(document: &Value) -> bool {
        let group = |version: &str| version.split_once('/').map_or("", |(group, _)| group).to_owned();
        document["apiVersion"].as_str().map(group) == Some(group(API_VERSION))
    }

    /// Reads a document.
    ///
    /// # Errors
    /// When it is not of the known form, or a case expects what cannot be.
    pub(super) fn read(document: Value) -> anyhow::Result<Self> {
        let text = |field: &str| document[field].as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text("apiVersion"), text("kind"));
        ensure!(version == API_VERSION, "apiVersion: it is {version:?}; want {API_VERSION}");
        ensure!(kind == KIND, "kind: it is {kind:?}; want {KIND}");
        // One after the other, so that an error can name the case.
        let PolicyTest { _api_version, _kind, metadata, policy, policy_name, settings, cases } =
            decode_value::<PolicyTest<Value>>(document)?;
        ensure!(!cases.is_empty(), "cases: want at least one");
        let named = |(number, case): (usize, Value)| {
            let name = case["name"].as_str().map(|name| format!(" ({name})")).unwrap_or_default();
            Case::read(case).with_context(|| format!("cases[{number}]{name}"))
        };
        let cases = cases.into_iter().enumerate().map(named).collect::<Result<_, _>>()?;
        Ok(Self { _api_version, _kind, metadata, policy, policy_name, settings, cases })
    }

    /// Its name; the policy's file if it has none.
    pub(super) fn name(&self) -> String {
        if self.metadata.name.is_empty() { self.policy.display().to_string() } else { self.metadata.name.clone() }
    }
}

impl Case {
    fn read(case: Value) -> anyhow::Result<Self> {
        let case: Self = decode_value(case)?;
        ensure!(case.request.is_some() != case.object.is_some(), "want either request, a file, or object");
        case.expect.check()?;
        Ok(case)
    }

    /// Its request; paths start at this folder.
    pub(super) fn input(&self, folder: &Path) -> Input<'_> {
        match (&self.request, &self.object) {
            (_, Some(object)) => Input::Written(object),
            (path, None) => Input::File(folder.join(path.as_deref().unwrap_or(Path::new("")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(change: impl FnOnce(&mut Value)) -> Result<PolicyTest, String> {
        let mut document = json!({
            "apiVersion": API_VERSION, "kind": KIND, "policy": "../policy.yaml",
            "cases": [{"name": "a pod", "request": "pod.json", "expect": {"allowed": true}}],
        });
        change(&mut document);
        assert!(PolicyTest::is(&document));
        PolicyTest::read(document).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_test_names_its_policy_and_its_requests_from_its_own_folder() {
        let test = read(|_| {}).expect("a test");
        assert_eq!(test.name(), "../policy.yaml");
        assert_eq!(test.cases[0].input(Path::new("/tests")), Input::File("/tests/pod.json".into()));
        let test = read(|it| {
            it["metadata"] = json!({"name": "pods"});
            it["cases"][0] = json!({"name": "a", "object": {"kind": "Pod"}, "expect": {"matched": false}});
        });
        let test = test.expect("a test");
        assert_eq!(test.name(), "pods");
        assert_eq!(test.cases[0].input(Path::new("/tests")), Input::Written(&json!({"kind": "Pod"})));
        assert!(!PolicyTest::is(&json!({"apiVersion": "v1", "kind": KIND})));
    }

    #[test]
    fn slips_are_told_with_the_field_or_the_case() {
        let told = |change: fn(&mut Value)| read(change).expect_err("a slip");
        for (change, words) in [
            ((|it| it["apiVersion"] = json!("test.portcullis.dev/v7")) as fn(&mut Value), "apiVersion: it is "),
            (|it| it["kind"] = json!("Test"), "kind: it is \"Test\"; want PolicyTest"),
            (|it| it["cases"][0]["expect"]["allowed"] = json!(1), "cases[0] (a pod): expect.allowed: invalid type"),
            (|it| it["cases"] = json!([]), "cases: want at least one"),
            (|it| it["cases"][0]["expects"] = json!(1), "cases[0] (a pod): expects: unknown field `expects`"),
            (|it| it["cases"][0]["object"] = json!({}), "cases[0] (a pod): want either request, a file, or object"),
            (|it| it["cases"][0]["expect"] = json!({}), "cases[0] (a pod): expect: want allowed"),
        ] {
            let told = told(change);
            assert!(told.contains(words), "{words:?} in {told}");
        }
    }
}
