//! From files and folders to tests, with their policies and requests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use portcullis_matching::Asked;
use portcullis_util::causes;
use serde_json::Value;

use super::expectation::Expectation;
use super::report::Tried;
use super::suite::{API_VERSION, Case, Input, KIND, PolicyTest};
use crate::document::{Document, documents};
use crate::eval::manifest::{Chosen, Given, notes_on};
use crate::eval::policy_of;
use crate::eval::request::Review;
use crate::files::{Found, Unread, each, folder_of, names};
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

/// Reads the tests of these files and folders, and of the folders in them. `wanted` leaves out cases without this text in `TEST: CASE`. What cannot
/// be read, and a test that is wrong, are cases of their own that are not evaluated: they do not hide the results of the others.
///
/// # Errors
/// When a file that is named cannot be read, and when there is no case at all.
pub(super) fn collect(paths: &[PathBuf], wanted: Option<&str>) -> anyhow::Result<(Vec<Prepared>, Vec<Tried>)> {
    let group = API_VERSION.split_once('/').map_or(API_VERSION, |(group, _)| group);
    let (mut tests, mut wrong, mut are_there) = (Vec::new(), Vec::new(), false);
    let unread = each(paths, LARGEST, |Found { path, is_named }, text| {
        // A folder may hold other files than tests, such as templates.
        if !is_named && !names(&text, group) {
            return Ok(());
        }
        let file = path.display().to_string();
        let documents = match documents(&path, &text) {
            Ok(documents) => documents,
            Err(error) => {
                wrong.push(Tried::not_evaluated(file, "the file", error.to_string()));
                return Ok(());
            }
        };
        for Document { line, value, otherwise, .. } in documents {
            for object in objects(value).into_iter().filter(PolicyTest::is) {
                are_there = true;
                let names =
                    [&object["metadata"]["name"], &object["policy"]].map(|name| name.as_str().unwrap_or_default());
                let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default().to_owned();
                let not_evaluated = |what: &str, error: &anyhow::Error| {
                    let why = causes(error.as_ref());
                    Tried { line, test: name.clone(), ..Tried::not_evaluated(file.clone(), what, why) }
                };
                let test = PolicyTest::read(object).and_then(|test| prepared(test, &path, line, wanted));
                let (mut test, wrong_cases) = match test {
                    Ok(test) => test,
                    Err(error) => {
                        wrong.push(not_evaluated("the test", &error));
                        continue;
                    }
                };
                wrong.extend(wrong_cases.iter().map(|(case, error)| not_evaluated(case, error)));
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
    let unread = unread.into_iter().map(|Unread { path, is_folder, why }| {
        let what = if is_folder { "the folder" } else { "the file" };
        Tried::not_evaluated(path.display().to_string(), what, why)
    });
    wrong.extend(unread);
    let is_all = wrong.is_empty();
    ensure!(are_there || !is_all, "no {KIND} of {API_VERSION} in {named}; `portcullis test --help` shows one");
    ensure!(!tests.is_empty() || !is_all, "no case in {named} has {:?} in its name", wanted.unwrap_or_default());
    Ok((tests, wrong))
}

/// A case without a usable request: its name, and what is wrong.
type WrongCase = (String, anyhow::Error);

/// A test with its policy and its requests, and the cases that have none; no test if no case of it is wanted and usable. Of a test
/// whose policy cannot be read, only that is shown.
fn prepared(
    test: PolicyTest,
    file: &Path,
    line: usize,
    wanted: Option<&str>,
) -> anyhow::Result<(Option<Prepared>, Vec<WrongCase>)> {
    let folder = folder_of(file)?;
    let name = test.name();
    let is_wanted = |case: &Case| wanted.is_none_or(|text| format!("{name}: {}", case.name).contains(text));
    let (mut trials, mut wrong) = (Vec::new(), Vec::new());
    for case in test.cases.into_iter().filter(is_wanted) {
        let case_name = case.name.clone();
        match trial(case, &folder) {
            Ok(trial) => trials.push(trial),
            Err(error) => wrong.push((case_name, error)),
        }
    }
    if trials.is_empty() {
        return Ok((None, wrong));
    }
    // A policy is tested with the verdict of its own, whatever its mode makes of it.
    let given = Given { settings: test.settings, protect: true, ..Given::default() };
    let (policy, folder) =
        policy_of(&folder.join(&test.policy), test.policy_name.as_deref(), given).context("policy")?;
    trials[0].notes.splice(0..0, policy.read_otherwise.iter().cloned());
    Ok((Some(Prepared { file: file.display().to_string(), line, name, policy, folder, trials }), wrong))
}

fn trial(case: Case, folder: &Path) -> anyhow::Result<Trial> {
    let (review, notes) = match case.input(folder) {
        Input::File(path) => {
            let text = crate::read(&path, LARGEST)?;
            let review = Review::from(&text).with_context(|| format!("request: {}", path.display()))?;
            let notes = notes_on(&path, &review.otherwise);
            (review, notes)
        }
        Input::Written(object) => (Review::from(object.to_string().as_bytes()).context("object")?, Vec::new()),
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
        notes,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::files::tests::{NOT_READ, add_what_is_not_read};
    use crate::test::report::Outcome;

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
        let files: Vec<_> = unread.iter().filter_map(|one| Path::new(&one.file).file_name()).collect();
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
        let wrong = || {
            let (tests, wrong) = collect(&[file("test.yaml")], None).expect("it is not evaluated");
            assert_eq!((tests.len(), wrong.len()), (0, 1));
            let [one] = <[_; 1]>::try_from(wrong).expect("one");
            (one.case, one.messages.concat())
        };
        let why = "line 1: it is nested deeper than 128 levels";
        assert_eq!(wrong(), ("the file".to_owned(), why.to_owned()));
        put("test.yaml", &test("{apiVersion: v1, kind: Pod}"));
        put("policy.yaml", &format!("{policy}  settings: {{a: {}{}}}\n", "[".repeat(200), "]".repeat(200)));
        let (case, message) = wrong();
        assert!(case == "the test" && message.ends_with(why), "{case}: {message}");
    }

    #[test]
    fn one_wrong_test_does_not_hide_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("writes");
        let rules = "[{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]";
        put(
            "policy.yaml",
            &format!(
                "apiVersion: policies.portcullis.dev/v1alpha1\nkind: ClusterPolicy\nmetadata: {{name: a}}\n\
                 spec: {{module: a.wasm, rules: {rules}}}\n"
            ),
        );
        let test = |name: &str, policy: &str, object: &str| {
            format!(
                "apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata: {{name: {name}}}\npolicy: {policy}\n\
                 cases: [{{name: one, {object}, expect: {{allowed: true}}}}]\n---\n"
            )
        };
        let pod = "object: {apiVersion: v1, kind: Pod}";
        let all = [
            test("no-policy", "absent.yaml", pod),
            test("no-request", "policy.yaml", "request: absent.json"),
            test("no-form", "policy.yaml", "objects: {}"),
            test("good", "policy.yaml", pod),
        ];
        put("a.yaml", &all.concat());
        put("b.yaml", &format!("# {API_VERSION}\na: ["));
        put("c.yaml", &test("good-too", "policy.yaml", pod));
        let (tests, wrong) = collect(&[folder.path().to_owned()], None).expect("tests");
        assert_eq!(tests.iter().map(|test| test.name.as_str()).collect::<Vec<_>>(), ["good", "good-too"]);
        let found: Vec<_> = wrong.iter().map(|one| (one.line, one.test.as_str(), one.case.as_str())).collect();
        assert_eq!(
            found,
            [(1, "no-policy", "the test"), (6, "no-request", "one"), (12, "no-form", "the test"), (1, "", "the file")]
        );
        let why = ["absent.yaml", "failed to open ", "cases[0] (one): objects: unknown field", "line "];
        for (one, why) in wrong.iter().zip(why) {
            assert!(one.messages[0].contains(why) && one.outcome == Outcome::NotEvaluated, "{why}: {:?}", one.messages);
        }
        let (_, wrong) = collect(&[folder.path().join("b.yaml")], None).expect("it is not evaluated");
        assert_eq!(wrong.len(), 1, "a file that is named is no exception");

        let two = test("two", "policy.yaml", "request: absent.json");
        let other = format!(", {{name: other, {pod}, expect: {{allowed: true}}}}]\n---");
        put("d.yaml", &two.replace("]\n---", &other));
        let (tests, wrong) = collect(&[folder.path().join("d.yaml")], None).expect("a case");
        assert_eq!((tests[0].trials.len(), tests[0].trials[0].name.as_str()), (1, "other"), "nor do cases of one test");
        assert_eq!((wrong.len(), wrong[0].case.as_str()), (1, "one"));
    }

    #[test]
    fn what_a_cluster_would_read_otherwise_in_a_request_is_noted() {
        let folder = tempfile::tempdir().expect("a folder");
        let request = folder.path().join("pod.yaml");
        fs::write(&request, "apiVersion: v1\nkind: Pod\nspec: {hostNetwork: yes}\n").expect("writes");
        let case = |name: &str| json!({"name": name, "request": "pod.yaml", "expect": {"allowed": true}});
        let policy = json!({
            "apiVersion": portcullis_api::API_VERSION, "kind": "ClusterPolicy", "metadata": {"name": "a"},
            "spec": {"module": "a.wasm", "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
            ]},
        });
        let test =
            json!({"apiVersion": API_VERSION, "kind": KIND, "policy": "policy.json", "cases": [case("a"), case("b")]});
        for (name, object) in [("policy.json", policy), ("test.json", test)] {
            fs::write(folder.path().join(name), object.to_string()).expect("writes");
        }
        let (tests, _) = collect(&[folder.path().join("test.json")], None).expect("a test");
        let request = request.canonicalize().expect("a path").display().to_string();
        let note = format!("{request}: line 3: kubectl reads `yes` as true: quote it if it is a text");
        for trial in &tests[0].trials {
            assert_eq!(trial.notes, std::slice::from_ref(&note));
        }
    }

    /// What begins at the manifest's folder begins where the link leads, as the manifest itself does.
    #[test]
    fn a_policy_behind_a_link_to_a_folder_has_the_module_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let real = folder.path().canonicalize().expect("a path");
        fs::create_dir_all(real.join("there/tests")).expect("makes");
        fs::create_dir(real.join("here")).expect("makes");
        std::os::unix::fs::symlink("../there/tests", real.join("here/link")).expect("links");
        let policy = json!({
            "apiVersion": portcullis_api::API_VERSION, "kind": "ClusterPolicy", "metadata": {"name": "a"},
            "spec": {"module": "./a.wasm", "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
            ]},
        });
        let case = json!({"name": "one", "object": {"apiVersion": "v1", "kind": "Pod"}, "expect": {"allowed": true}});
        let test = json!({"apiVersion": API_VERSION, "kind": KIND, "policy": "../policy.json", "cases": [case]});
        fs::write(real.join("there/policy.json"), policy.to_string()).expect("writes");
        fs::write(real.join("there/tests/test.json"), test.to_string()).expect("writes");
        let (tests, _) = collect(&[real.join("here/link/test.json")], None).expect("a test");
        assert_eq!(tests[0].folder, real.join("there"));
        let manifest: Value = serde_json::from_str(&tests[0].policy.manifest).expect("JSON");
        let module = manifest["spec"]["module"].as_str().map(Path::new);
        assert_eq!(module, Some(real.join("there/a.wasm").as_path()));
    }
}
