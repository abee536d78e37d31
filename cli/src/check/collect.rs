//! From files and folders to policies.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::ensure;
use portcullis_api::PolicySpec;
use portcullis_api::kubernetes::GROUP;
use portcullis_contract::{PolicyId, Reason};
use portcullis_expression::match_condition;
use portcullis_util::causes;
use serde_json::Value;

use super::report::{Finding, Level, Report};
use crate::document::{Document, documents, documents_with_gaps, read_otherwise};
use crate::eval::manifest::{Chosen, Given};
use crate::files::{Found, Unread, each, folder_of, names};
use crate::kind::{KUBEWARDEN, Kind, NoPolicy, objects};
use crate::module_source::Source;

/// Largest file that is read, in bytes.
const LARGEST: u64 = 16 << 20;

/// The policies that were found, and the reports on them.
pub(super) struct Collected {
    /// Policies that can be given to the programs, with their places in the report.
    pub(super) ready: Vec<(usize, Chosen)>,
    /// All policies, with what is wrong with them so far.
    pub(super) report: Report,
    /// The folders of the files.
    pub(super) folders: BTreeSet<PathBuf>,
}

/// Reads the policies of these files and folders, and of the folders in them.
///
/// # Errors
/// When a file or folder cannot be read, and when there is no policy at all.
pub(super) fn collect(paths: &[PathBuf]) -> anyhow::Result<Collected> {
    let mut collected = Collected { ready: Vec::new(), report: Report::default(), folders: BTreeSet::new() };
    let (mut owners, mut kubewarden) = (HashMap::new(), Vec::new());
    let unread = each(paths, LARGEST, |Found { path: file, is_named }, text| {
        // A folder may hold other files than manifests of policies.
        if is_named || names(&text, GROUP) {
            collected.file(&file, &text, &mut owners)?;
        }
        if names(&text, KUBEWARDEN) && is_of_kubewarden(&file, &text) {
            kubewarden.push(file);
        }
        Ok(())
    })?;
    for Unread { path, why, .. } in unread {
        // Whether it has a policy is not known.
        let finding = Finding::new(Level::Unknown, "NotRead", why);
        collected.report.policy(&path.display().to_string(), 1, None, vec![finding]);
    }
    ensure!(!collected.report.is_empty(), NoPolicy::of(paths, &kubewarden));
    Ok(collected)
}

impl Collected {
    fn file(&mut self, file: &Path, text: &[u8], owners: &mut HashMap<PolicyId, String>) -> anyhow::Result<()> {
        let name = file.display().to_string();
        let documents = match documents_with_gaps(file, text) {
            Ok(documents) => documents,
            Err(error) => {
                self.report.policy(&name, 1, None, vec![Finding::invalid(error.to_string())]);
                return Ok(());
            }
        };
        let folder = folder_of(file)?;
        for Document { line, value, otherwise, too_deep } in documents {
            let before = self.report.len();
            for object in objects(value) {
                match Kind::of(&object) {
                    Kind::Policy => self.document(&name, line, object, &folder, owners),
                    Kind::Unknown(why) => {
                        let subject = object["metadata"]["name"].as_str().map(str::to_owned);
                        self.report.policy(&name, line, subject, vec![Finding::invalid(why)]);
                    }
                    Kind::Kubewarden | Kind::Other => {}
                }
            }
            // The lines of a list are those of its first policy.
            if self.report.len() > before {
                let warning = |one| Finding::new(Level::Warning, "ReadOtherwise", read_otherwise(one));
                self.report.add(before, otherwise.iter().map(warning).collect());
            }
            if let Some(path) = too_deep {
                let text = format!("it is nested too deep below {}", path.join("."));
                self.report.policy(&name, line, None, vec![Finding::invalid(text)]);
            }
        }
        self.folders.insert(folder);
        Ok(())
    }

    fn document(
        &mut self,
        file: &str,
        line: usize,
        document: Value,
        folder: &Path,
        owners: &mut HashMap<PolicyId, String>,
    ) {
        let name = document["metadata"]["name"].as_str().map(str::to_owned);
        let conditions = match_conditions(&document);
        let chosen = match Chosen::of(document, folder, Given::default()) {
            Ok(chosen) => chosen,
            Err(error) => {
                self.report.policy(file, line, name, vec![Finding::invalid(causes(error.as_ref()))]);
                return;
            }
        };
        let mut findings = conditions;
        findings.extend(files_of(&chosen.spec));
        findings.extend(chosen.rollback().map(|note| Finding::new(Level::Warning, "RolledBack", note)));
        let place = format!("{file}:{line}");
        let is_double = match owners.get(&chosen.id) {
            Some(other) => {
                findings.push(Finding::invalid(format!("{other} has a policy of the same name")));
                true
            }
            None => owners.insert(chosen.id.clone(), place).is_some(),
        };
        let place = self.report.policy(file, line, Some(chosen.id.to_string()), findings);
        if !is_double {
            self.ready.push((place, chosen));
        }
    }
}

/// Whether a file has a manifest of Kubewarden. One that cannot be read has none: it may be a template.
fn is_of_kubewarden(file: &Path, text: &[u8]) -> bool {
    let documents = documents(file, text).unwrap_or_default();
    let mut objects = documents.into_iter().flat_map(|document| objects(document.value));
    objects.any(|object| Kind::of(&object) == Kind::Kubewarden)
}

/// Notes on modules that no cluster takes. They are right in a folder for `portcullis run` and the other commands that read it.
fn files_of(spec: &PolicySpec) -> Vec<Finding> {
    let members = spec.policies.iter().flatten();
    let members = members.map(|(name, member)| (format!("spec.policies.{name}.module"), member["module"].as_str()));
    let modules = members.chain([("spec.module".to_owned(), spec.module.as_deref())]);
    let files = modules.filter(|(_, module)| module.is_some_and(|module| Source::of(module).is_file()));
    let note = files.map(|(field, _)| {
        let text = format!(
            "{field} is a file: no cluster takes it, only the commands that read this folder; a cluster wants registry:// or \
             https://"
        );
        Finding::new(Level::Note, Reason::SourceNotAllowed.as_str(), text)
    });
    note.collect()
}

/// Findings about match conditions that an API server would certainly refuse. Doubtful ones pass.
fn match_conditions(document: &Value) -> Vec<Finding> {
    let conditions = document["spec"]["matchConditions"].as_array().into_iter().flatten().enumerate();
    let problem = |(number, condition): (usize, &Value)| {
        let error = match_condition(condition["expression"].as_str()?).err()?;
        Some(Finding::invalid(format!("spec.matchConditions[{number}].expression: {error}")))
    };
    conditions.filter_map(problem).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use portcullis_api::API_VERSION;
    use serde_json::json;

    use super::*;
    use crate::files::tests::add_what_is_not_read;

    fn policy(name: &str) -> Value {
        json!({
            "apiVersion": API_VERSION, "kind": "ClusterPolicy", "metadata": {"name": name},
            "spec": {"module": "a.wasm", "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
            ]},
        })
    }

    fn checked(files: &[(&str, &str)]) -> (Vec<String>, usize) {
        checked_with(files, |_| ())
    }

    /// The report on these files and on those that `add` puts beside them, and how many policies can be given to the programs.
    fn checked_with(files: &[(&str, &str)], add: impl FnOnce(&Path)) -> (Vec<String>, usize) {
        let folder = tempfile::tempdir().expect("a folder");
        add(folder.path());
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
            fs::write(path, text).expect("writes");
        }
        let collected = collect(&[folder.path().to_owned()]).expect("policies");
        let text = collected.report.in_form(crate::args::CheckForm::Text);
        let shorter = text.replace(&format!("{}/", folder.path().display()), "");
        (shorter.lines().map(str::to_owned).collect(), collected.ready.len())
    }

    #[test]
    fn policies_are_found_in_folders_and_lists_and_nothing_else_is_read() {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [policy("b"), {"kind": "Pod"}]}).to_string();
        let (_, ready) = checked(&[
            ("report.yaml", &json!({"apiVersion": API_VERSION, "kind": "ReplicaReport"}).to_string()),
            ("a.yaml", &policy("a").to_string()),
            ("deeper/still/list.json", &list),
            ("template.yaml", "{{ if .Values.x }}: ]"),
            (".hidden/c.yaml", &policy("c").to_string()),
            ("notes.txt", &policy("d").to_string()),
        ]);
        assert_eq!(ready, 2);
    }

    #[test]
    fn a_file_that_is_too_large_or_cannot_be_read_does_not_end_the_check_of_its_folder() {
        let (lines, ready) = checked_with(&[("a.yaml", &policy("a").to_string())], add_what_is_not_read);
        assert_eq!(ready, 1, "{lines:?}");
        for start in ["gone.yaml:1: unknown NotRead: failed to open ", "odd.yaml:1: unknown NotRead: failed to read "] {
            assert!(lines.iter().any(|line| line.starts_with(start)), "{lines:?}");
        }
        assert_eq!(lines.last().map(String::as_str), Some("1 passed, 0 failed, 2 not known"));
        let folder = tempfile::tempdir().expect("a folder");
        add_what_is_not_read(folder.path());
        for name in ["gone.yaml", "large.yaml", "odd.yaml"] {
            collect(&[folder.path().join(name)]).err().expect("it is named");
        }
    }

    #[test]
    fn a_module_that_only_a_folder_may_have_is_noted() {
        let mut group = policy("group");
        group["spec"]["policies"] = json!({"a": {"module": "./a.wasm"}, "b": {"module": "registry://a.example/b:v1"}});
        group["spec"]["expression"] = json!("a() && b()");
        group["spec"]["message"] = json!("no");
        group["spec"].as_object_mut().expect("a mapping").shift_remove("module");
        let of = |name: &str, module: &str| {
            let mut policy = policy(name);
            policy["spec"]["module"] = json!(module);
            policy.to_string()
        };
        let (lines, _) = checked(&[
            ("a.yaml", &of("path", "modules/a.wasm")),
            ("b.yaml", &of("url", "file:///a.wasm")),
            ("c.yaml", &of("web", "https://a.example/b.wasm")),
            ("d.yaml", &of("image", "registry://a.example/b:v1")),
            ("e.yaml", &group.to_string()),
        ]);
        let why = "is a file: no cluster takes it, only the commands that read this folder; a cluster wants registry:// or \
                   https://";
        let expected = [
            "a.yaml:1: cluster/path: ok".to_owned(),
            format!("a.yaml:1: cluster/path: note SourceNotAllowed: spec.module {why}"),
            "b.yaml:1: cluster/url: ok".to_owned(),
            format!("b.yaml:1: cluster/url: note SourceNotAllowed: spec.module {why}"),
            "c.yaml:1: cluster/web: ok".to_owned(),
            "d.yaml:1: cluster/image: ok".to_owned(),
            "e.yaml:1: cluster/group: ok".to_owned(),
            format!("e.yaml:1: cluster/group: note SourceNotAllowed: spec.policies.a.module {why}"),
        ];
        assert_eq!(lines[..8], expected);
    }

    #[test]
    fn mistakes_are_told_with_their_file_and_line() {
        let mut odd = policy("odd");
        odd["spec"]["matchConditions"] = json!([
            {"name": "x", "expression": "object.metadata.name =="},
            {"name": "y", "expression": "object.metadata.name == 'a'"},
            {"name": "z", "expression": "request.object.metadata.name == 'a'"},
        ]);
        let mut kept = policy("kept");
        kept["spec"]["rollbackTo"] = json!(3);
        kept["spec"]["settings"] = json!(null);
        let mut typed = policy("typed");
        typed["spec"]["mutating"] = json!("true");
        typed["spec"]["settings"] = json!({"password": "hunter2"});
        let twice = format!("# two\n{}\n---\n{}", policy("a"), policy("a"));
        let mut wrong = policy("wrong");
        wrong["spec"]["modul"] = json!("x");
        let (lines, ready) = checked(&[
            ("a.yaml", &twice),
            ("odd.yaml", &odd.to_string()),
            ("wrong.yaml", &wrong.to_string()),
            ("typed.yaml", &typed.to_string()),
            ("kept.yaml", &kept.to_string()),
            ("broken.yaml", &format!("apiVersion: {API_VERSION}\nkind: [")),
            ("version.yaml", &policy("later").to_string().replace(API_VERSION, &format!("{GROUP}/v7"))),
            ("kind.yaml", &policy("typo").to_string().replace("ClusterPolicy", "ClusterPolciy")),
        ]);
        let text = lines.join("\n");
        assert_eq!(ready, 3, "{text}");
        assert!(!text.contains("hunter2"), "{text}");
        for words in [
            "typed.yaml:1: typed: error SpecInvalid: spec.mutating: invalid type: ",
            "kept.yaml:1: cluster/kept: warning RolledBack: spec.rollbackTo: a cluster serves the content of generation 3",
            "a.yaml:3: cluster/a: error SpecInvalid: a.yaml:2 has a policy of the same name",
            "broken.yaml:1: error SpecInvalid: ",
            "odd.yaml:1: cluster/odd: error SpecInvalid: spec.matchConditions[0].expression: it is not a CEL expression",
            "spec.matchConditions[2].expression: it uses `request.object`",
            "wrong.yaml:1: wrong: error SpecInvalid: ",
            "version.yaml:1: later: error SpecInvalid: apiVersion: ",
            "kind.yaml:1: typo: error SpecInvalid: kind: ",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
    }

    #[test]
    fn what_kubectl_reads_otherwise_is_told_with_its_line() {
        let text = |name: &str, setting: &str| {
            format!(
                "apiVersion: {API_VERSION}\nkind: ClusterPolicy\nmetadata: {{name: {name}}}\nspec:\n  module: registry://a.example/b:v1\n  rules:\n  \
                 - {{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}}\n  settings:\n    a: {setting}\n"
            )
        };
        let other = "kind: ConfigMap\ndata: {a: yes}\n";
        let (lines, _) = checked(&[
            ("a.yaml", &[text("a", "on").as_str(), other, &text("b", "'on'")].join("---\n")),
            ("c.yaml", &text("c", "0644")),
        ]);
        assert_eq!(
            lines[..3],
            [
                "a.yaml:1: cluster/a: warning ReadOtherwise: line 9: kubectl reads `on` as true: quote it if it is a text",
                "a.yaml:13: cluster/b: ok",
                "c.yaml:1: cluster/c: warning ReadOtherwise: line 9: kubectl reads a plain scalar as a number: quote it if it is a text",
            ]
        );
    }

    #[test]
    fn a_manifest_writes_no_codes_and_no_lines_to_a_terminal() {
        let hostile = "x\u{1b}[2J\na.yaml:1: cluster/a: ok";
        let mut field = policy("field");
        field["spec"][hostile] = json!(1);
        let mut unknown = policy(hostile);
        unknown["kind"] = json!("ClusterPolciy");
        let (lines, _) = checked(&[
            ("field.yaml", &field.to_string()),
            ("name.yaml", &policy(hostile).to_string()),
            ("unknown.yaml", &unknown.to_string()),
        ]);
        let text = lines.join("\n");
        assert!(!text.contains('\u{1b}') && !text.contains("\na.yaml:1: "), "{text:?}");
        for words in [
            "field.yaml:1: field: error SpecInvalid: ",
            "name.yaml:1: x [2J a.yaml:1: cluster/a: ok: error SpecInvalid: ",
            "unknown.yaml:1: x [2J a.yaml:1: cluster/a: ok: error SpecInvalid: kind: ",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
    }

    #[test]
    fn a_name_over_the_limit_is_reported_once_and_with_the_limit() {
        for name in ["a".repeat(64), "No_Name".to_owned()] {
            let (lines, ready) = checked(&[("a.yaml", &policy(&name).to_string())]);
            let start =
                format!("a.yaml:1: {name}: error SpecInvalid: metadata.name: \"cluster/{name}\" is not a policy id: ");
            assert!(lines[0].starts_with(&start) && lines[0].contains("at most 63 characters"), "{lines:?}");
            assert_eq!((ready, lines[0].matches("policy id").count()), (0, 1), "{lines:?}");
        }
    }

    #[test]
    fn nothing_to_check_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("pod.yaml"), "kind: Pod").expect("writes");
        let error = |path: PathBuf| collect(&[path]).err().map(|error| format!("{error:#}")).unwrap_or_default();
        let nothing = format!("no Policy or ClusterPolicy of {API_VERSION} in {}", folder.path().display());
        assert_eq!(error(folder.path().to_owned()), nothing);
        assert!(error(folder.path().join("absent.yaml")).contains("absent.yaml"));
        let theirs = json!({"apiVersion": format!("{KUBEWARDEN}/v1"), "kind": "ClusterAdmissionPolicy"});
        fs::write(folder.path().join("kw.yaml"), theirs.to_string()).expect("writes");
        fs::write(folder.path().join("template.yaml"), format!("# {KUBEWARDEN}\n{{{{ if .x }}}}: ]")).expect("writes");
        let file = folder.path().join("kw.yaml");
        for path in [folder.path().to_owned(), file.clone()] {
            let hint = format!(
                " in {}; it has manifests of Kubewarden: `portcullis migrate kubewarden {}` translates them",
                path.display(),
                file.display()
            );
            assert!(error(path.clone()).ends_with(&hint), "{}", error(path));
        }
    }

    #[test]
    fn a_file_that_is_named_twice_is_one_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.yaml");
        fs::write(&file, policy("a").to_string()).expect("writes");
        std::os::unix::fs::symlink(&file, folder.path().join("b.yaml")).expect("links");
        let collected = collect(&[folder.path().to_owned(), file]).expect("a policy");
        assert_eq!((collected.ready.len(), collected.report.status()), (1, 0));
        fs::write(folder.path().join("c.yaml"), [GROUP.as_bytes(), b"\xff"].concat()).expect("writes");
        let report = collect(&[folder.path().to_owned()]).expect("a policy").report;
        assert!(report.in_form(crate::args::CheckForm::Text).contains("c.yaml:1: error SpecInvalid: it is not UTF-8"));
    }
}
