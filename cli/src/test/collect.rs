//! From files and folders to tests, with their policies and requests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use portcullis_matching::Asked;
use serde_json::Value;

use super::expectation::Expectation;
use super::suite::{API_VERSION, Case, Input, KIND, PolicyTest};
use crate::document::{Document, documents};
use crate::eval::manifest::{Chosen, Given, notes_on};
use crate::eval::policy_of;
use crate::eval::request::Review;
use crate::files::{Found, Unread, each, names};
use crate::kind::{objects, shown};

/// Largest file that is read, in bytes. The evaluator takes requests of 7 MiB.
const LARGEST: u64 = 16 << 20;

/// A test that can be run.
pub(super) struct Prepared {
    pub(super) file: String,
    /// The line that its document begins on, from 1.
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) policy: Chosen,
    /// The folder of the policy's manifest, where its modules may be.
    pub(super) folder: PathBuf,
    pub(super) trials: Vec<Trial>,
}

/// A case with its request.
pub(super) struct Trial {
    pub(super) name: String,
    /// The AdmissionReview, as JSON.
    pub(super) review: Vec<u8>,
    /// Its request.
    pub(super) request: Value,
    pub(super) asked: Asked,
    pub(super) namespace_labels: BTreeMap<String, String>,
    pub(super) expect: Expectation,
    /// What a reader should know of the test and its policy.
    pub(super) notes: Vec<String>,
}

/// Reads the tests of these files and folders, and of the folders in them. `wanted` leaves out cases without this text in `TEST: CASE`.
///
/// # Errors
/// When a file that is named cannot be read, when something is no test, and when there is no case at all.
pub(super) fn collect(paths: &[PathBuf], wanted: Option<&str>) -> anyhow::Result<(Vec<Prepared>, Vec<Unread>)> {
    let group = API_VERSION.split_once('/').map_or(API_VERSION, |(group, _)| group);
    let (mut tests, mut are_there) = (Vec::new(), false);
    let unread = each(paths, LARGEST, |Found { path, is_named }, text| {
        // A folder may hold other files than tests, such as templates.
        if !is_named && !names(&text, group) {
            return Ok(());
        }
        let documents = documents(&path, &text).with_context(|| path.display().to_string())?;
        for Document { line, value, otherwise, .. } in documents {
            let place = || format!("{}:{line}", path.display());
            for object in objects(value).into_iter().filter(PolicyTest::is) {
                are_there = true;
                let test = PolicyTest::read(object).with_context(place)?;
                let mut test = prepared(test, &path, line, wanted).with_context(place)?;
                // Once is enough, however many cases there are.
                if let Some(first) = test.as_mut().and_then(|test| test.trials.first_mut()) {
                    first.notes.extend(notes_on(&path, &otherwise));
                }
                tests.extend(test);
            }
        }
        Ok(())
    })?;
    let named = paths.iter().map(|path| shown(path)).collect::<Vec<_>>().join(", ");
    let is_all = unread.is_empty();
    ensure!(are_there || !is_all, "no {KIND} of {API_VERSION} in {named}; `portcullis test --help` shows one");
    ensure!(!tests.is_empty() || !is_all, "no case in {named} has {:?} in its name", wanted.unwrap_or_default());
    Ok((tests, unread))
}

/// A test with its policy and its requests; `None` if no case of it is wanted.
fn prepared(test: PolicyTest, file: &Path, line: usize, wanted: Option<&str>) -> anyhow::Result<Option<Prepared>> {
    let folder = std::path::absolute(file)?.parent().map(Path::to_owned).unwrap_or_default();
    let name = test.name();
    let is_wanted = |case: &Case| wanted.is_none_or(|text| format!("{name}: {}", case.name).contains(text));
    let mut trials = Vec::new();
    for case in test.cases.into_iter().filter(is_wanted) {
        let named = format!("case {:?}", case.name);
        trials.push(trial(case, &folder).context(named)?);
    }
    if trials.is_empty() {
        return Ok(None);
    }
    // A policy is tested with the verdict of its own, whatever its mode makes of it.
    let given = Given { settings: test.settings, protect: true, ..Given::default() };
    let (policy, folder) =
        policy_of(&folder.join(&test.policy), test.policy_name.as_deref(), given).context("policy")?;
    trials[0].notes.clone_from(&policy.read_otherwise);
    Ok(Some(Prepared { file: file.display().to_string(), line, name, policy, folder, trials }))
}

fn trial(case: Case, folder: &Path) -> anyhow::Result<Trial> {
    let review = match case.input(folder) {
        Input::File(path) => {
            Review::from(&crate::read(&path, LARGEST)?).with_context(|| format!("request: {}", path.display()))?
        }
        Input::Written(object) => Review::from(object.to_string().as_bytes()).context("object")?,
    };
    let mut whole: Value = serde_json::from_slice(&review.bytes).context("request")?;
    let asked = review.asked.context("request: want one with resource and operation")?;
    Ok(Trial {
        name: case.name,
        review: review.bytes,
        request: whole["request"].take(),
        asked,
        namespace_labels: case.namespace_labels,
        expect: case.expect,
        notes: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::files::tests::{NOT_READ, add_what_is_not_read};

    #[test]
    fn other_files_of_a_folder_do_not_end_its_tests() {
        let folder = tempfile::tempdir().expect("a folder");
        let put = |name: &str, object: Value| fs::write(folder.path().join(name), object.to_string()).expect("writes");
        put(
            "policy.json",
            json!({
                "apiVersion": portcullis_api::API_VERSION, "kind": "ClusterPolicy", "metadata": {"name": "a"},
                "spec": {"module": "a.wasm", "rules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
                ]},
            }),
        );
        put(
            "test.json",
            json!({
                "apiVersion": API_VERSION, "kind": KIND, "policy": "policy.json",
                "cases": [{
                    "name": "one", "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}, "expect": {"allowed": true},
                }],
            }),
        );
        add_what_is_not_read(folder.path());
        let (tests, unread) = collect(&[folder.path().to_owned()], None).expect("a test");
        let files: Vec<_> = unread.iter().filter_map(|one| one.path.file_name()).collect();
        assert_eq!((tests.len(), files), (1, NOT_READ.map(std::ffi::OsStr::new).to_vec()));
        for name in ["gone.yaml", "large.yaml", "odd.yaml"] {
            collect(&[folder.path().join(name)], None).err().expect("it is named");
        }

        // What is not known is no error in place of the answers, and no success either.
        let nothing = |folder: &Path| collect(&[folder.to_owned()], Some("no such case"));
        let (tests, unread) = nothing(folder.path()).expect("a file that cannot be read");
        assert_eq!((tests.len(), unread.len()), (0, NOT_READ.len()));
        NOT_READ.iter().for_each(|name| fs::remove_file(folder.path().join(name)).expect("removes"));
        nothing(folder.path()).err().expect("no such case");
    }

    #[test]
    fn what_a_cluster_would_read_otherwise_is_noted_once_and_what_is_nested_too_deep_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("writes");
        let policy = "apiVersion: policies.portcullis.dev/v1alpha1\nkind: ClusterPolicy\nmetadata: {name: a}\nspec:\n  module: a.wasm\n  \
                      rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]\n";
        put("policy.yaml", &format!("{policy}  settings: {{a: on}}\n"));
        let test = |object: &str| {
            let case = |name: &str| format!("- {{name: {name}, object: {object}, expect: {{allowed: true}}}}\n");
            let (one, two) = (case("one"), case("two"));
            format!("apiVersion: {API_VERSION}\nkind: {KIND}\npolicy: policy.yaml\ncases:\n{one}{two}")
        };
        put("test.yaml", &test("{apiVersion: v1, kind: Pod, spec: {hostNetwork: yes}}"));
        let file = |name: &str| folder.path().join(name);
        let notes = |wanted: Option<&str>| {
            let (tests, _) = collect(&[file("test.yaml")], wanted).expect("a test");
            tests[0].trials.iter().map(|trial| trial.notes.clone()).collect::<Vec<_>>()
        };
        let told = |name: &str, line: usize, word: &str| {
            let place = file(name).display().to_string();
            format!("{place}: line {line}: kubectl reads `{word}` as true: quote it if it is a text")
        };
        let all = vec![told("policy.yaml", 7, "on"), told("test.yaml", 5, "yes"), told("test.yaml", 6, "yes")];
        assert_eq!(notes(None), [all.clone(), Vec::new()]);
        assert_eq!(notes(Some("two")), [all]);

        let deep = format!("{{apiVersion: v1, kind: Pod, spec: {}{}}}", "[".repeat(200), "]".repeat(200));
        put("test.yaml", &test(&deep));
        let error = collect(&[file("test.yaml")], None).err().expect("too deep");
        assert!(format!("{error:#}").ends_with("test.yaml: line 1: it is nested deeper than 128 levels"), "{error:#}");
        put("test.yaml", &test("{apiVersion: v1, kind: Pod}"));
        put("policy.yaml", &format!("{policy}  settings: {{a: {}{}}}\n", "[".repeat(200), "]".repeat(200)));
        let error = collect(&[file("test.yaml")], None).err().expect("too deep");
        assert!(format!("{error:#}").ends_with("line 1: it is nested deeper than 128 levels"), "{error:#}");
    }
}
