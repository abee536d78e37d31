//! `portcullis eval`: a verdict without a pod, and an exit status for scripts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_tests::{Folder, Policy, Review, SmallVolume, StopOnDrop, guest_with, heavy, rego_calling};
use serde_json::{Value, json};

use crate::tool::{command, examples, run, written};

/// Evaluates a request by a policy, and returns the exit status and what was printed.
pub(crate) fn eval(policy: &str, request: &str, more: &[&str]) -> (Option<i32>, String) {
    let output = run([&["eval", policy, request], more].concat());
    (output.status.code(), written(&output))
}

fn example(policy: &str, request: &str, more: &[&str]) -> (Option<i32>, String) {
    let path = |name: &str| examples().join(name).display().to_string();
    eval(&path(&format!("{policy}.yaml")), &path(&format!("requests/{request}.json")), more)
}

#[test]
fn promise_eval_tells_admitted_from_rejected() {
    for (policy, request, status, words) in [
        ("no-privileged", "pod-ok", 0, "admitted"),
        ("no-privileged", "pod-privileged", 1, "privileged containers are not allowed: container metrics"),
        ("no-privileged", "deployment-privileged", 1, "privileged containers are not allowed"),
        ("required-labels", "pod-without-labels", 1, "missing labels: app.kubernetes.io/name, team"),
        ("required-labels", "pod-ok", 0, "admitted"),
        ("default-resources", "pod-without-resources", 0, "patch"),
    ] {
        let (code, text) = example(policy, request, &[]);
        assert_eq!(code, Some(status), "{policy} on {request}: {text}");
        assert!(text.contains(words), "{policy} on {request}: no {words:?} in {text}");
    }
}

#[test]
fn promise_eval_speaks_json() {
    let output = run([
        "eval".to_owned(),
        examples().join("no-privileged.yaml").display().to_string(),
        examples().join("requests/pod-privileged.json").display().to_string(),
        "-o".to_owned(),
        "json".to_owned(),
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", written(&output));
    let verdict: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", written(&output)));
    assert!(verdict.to_string().contains("privileged containers are not allowed"), "{verdict}");
}

#[test]
fn promise_eval_takes_a_module_in_the_place_of_a_manifest() {
    let folder = Folder::empty();
    folder.write("settings.yaml", "labels: [yes, team]\n");
    // This module is new, because the artifacts of other tests' modules are kept and those are not compiled again.
    fs::write(folder.path("fresh.wasm"), guest_with("deny_text", b"too large when compiled")).expect("writes");
    let fresh = folder.path("fresh.wasm").display().to_string();
    let (module, settings) =
        (examples().join("modules/required-labels.wasm").canonicalize(), folder.path("settings.yaml"));
    let module = module.expect("is there").display().to_string();
    let module = module.as_str();
    let request = examples().join("requests/pod-ok.json").display().to_string();
    let address = format!("file://{module}");
    let settings = settings.to_str().expect("UTF-8");
    for (module, more, status, words) in [
        (module, ["--settings-json", r#"{"labels": ["team"]}"#], 0, "cluster/required-labels: admitted"),
        (module, ["--settings-json", r#"{"labels": ["owner"]}"#], 1, "missing labels: owner"),
        (&address, ["--settings-path", settings], 1, "missing labels: yes"),
        (module, ["--settings-json", r#"{"labels": []}"#], 2, "SettingsInvalid"),
        (module, ["--settings-json", "labels"], 64, "--settings-json: it is not JSON"),
        (module, ["--max-module-size", "1KiB"], 2, "(--max-module-size)"),
        (&fresh, ["--max-artifact-size", "1KiB"], 2, "(--max-artifact-size)"),
        ("absent.wasm", ["--settings-json", "{}"], 2, "absent.wasm"),
        (module, ["--policy", "a"], 64, "--policy: "),
    ] {
        let (code, text) = eval(module, &request, &more);
        assert_eq!(code, Some(status), "{module} {more:?}: {text}");
        assert!(text.contains(words), "{module} {more:?}: no {words:?} in {text}");
    }
    let manifest = examples().join("required-labels.yaml").display().to_string();
    let (code, text) = eval(&manifest, &request, &["--settings-json", r#"{"labels": ["owner"]}"#]);
    assert!(code == Some(1) && text.contains("missing labels: owner"), "{text}");
    let (code, text) = eval(&manifest, &request, &["--allow-context-aware"]);
    assert!(code == Some(64) && text.contains("--allow-context-aware: it is for a module alone"), "{text}");
}

#[test]
fn promise_eval_shows_what_the_policy_logs() {
    let folder = Folder::empty();
    fs::write(folder.path("logs.wasm"), guest_with("log_one", b"logs")).expect("writes");
    let module = folder.path("logs.wasm").display().to_string();
    let output = run([
        "eval".to_owned(),
        module,
        examples().join("requests/pod-ok.json").display().to_string(),
        "-o".to_owned(),
        "json".to_owned(),
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", written(&output));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("INFO: a line for the console\nINFO: hello from the guest {\"answer\":42}\n"), "{said}");
    // Standard output is for programs.
    serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", written(&output)));

    // Rules in Rego say what they trace, here until their time is over.
    let traces = rego_calling("trace", [&json!("hello from the rules"), &Value::Null]);
    folder.put(&Policy::cluster("traces").bytes(traces).timeout(1));
    let (manifest, pod) = (folder.path("policies/cluster-traces.yaml"), examples().join("requests/pod-ok.json"));
    let output = run(["eval".as_ref(), manifest.as_os_str(), pod.as_os_str()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("INFO: hello from the rules\n"), "{said}");
}

#[test]
fn promise_eval_says_how_many_lines_of_the_policy_are_missing() {
    let folder = Folder::empty();
    folder.put(&Policy::cluster("floods").guest("log_200"));
    let (manifest, pod) = (folder.path("policies/cluster-floods.yaml"), examples().join("requests/pod-ok.json"));
    let output = run(["eval".as_ref(), manifest.as_os_str(), pod.as_os_str()]);
    assert_eq!(output.status.code(), Some(0), "{}", written(&output));
    let said = String::from_utf8_lossy(&output.stderr);
    let (_, last) = said.trim_end().rsplit_once('\n').expect("lines");
    let missing = last.strip_suffix(" lines that the policy logged are missing: more than its share");
    let missing: usize = missing.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{last}"));
    assert_eq!(said.matches("INFO: ").count() + missing, 200, "{missing}");
}

#[test]
fn promise_eval_judges_raw_requests() {
    let folder = Folder::empty();
    fs::write(folder.path("raw.wasm"), guest_with("deny_text", b"not today")).expect("writes");
    folder.write("answer.json", r#"{"user": "tonio", "action": "eats"}"#);
    folder.write("number.json", "17");
    folder.write("broken.json", "{");
    let file = |name: &str| folder.path(name).display().to_string();
    for (request, status, words) in [
        ("answer.json", 1, "message: not today"),
        ("number.json", 1, "message: not today"),
        ("broken.json", 2, "broken.json"),
    ] {
        let (code, text) = eval(&file("raw.wasm"), &file(request), &["--raw"]);
        assert_eq!(code, Some(status), "{request}: {text}");
        assert!(text.contains(words), "{request}: {text}");
    }
    let (code, text) = eval(&file("raw.wasm"), &file("answer.json"), &[]);
    assert!(code == Some(2) && text.contains("want an AdmissionReview"), "{text}");
}

#[test]
fn promise_a_module_without_metadata_is_wapc_and_eval_says_so() {
    let folder = Folder::empty();
    let mut module = guest_with("deny_text", b"no name, no metadata");
    let section = module.windows(22).rposition(|window| window == b"io.kubewarden.metadata").expect("it has metadata");
    module[section] = b'x';
    fs::write(folder.path("bare.wasm"), module).expect("writes");
    let pod = examples().join("requests/pod-ok.json").display().to_string();
    let (code, text) = eval(&folder.path("bare.wasm").display().to_string(), &pod, &[]);
    assert!(code == Some(1) && text.contains("message: no name, no metadata"), "{text}");
    assert!(text.contains("note:    the module has no metadata section: it is taken for a waPC guest"), "{text}");
}

#[test]
fn promise_eval_says_where_module_and_manifest_differ() {
    let folder = Folder::empty();
    let asks = Policy::cluster("asks").example("host-capabilities").settings(json!({"calls": []}));
    folder.put(&asks.clone().spec("hostCapabilities", json!(["oci/*"])).mutating());
    let pod = examples().join("requests/pod-ok.json").display().to_string();
    let manifest = folder.path("policies/cluster-asks.yaml").display().to_string();
    let (_, text) = eval(&manifest, &pod, &[]);
    assert!(text.contains("note:    the module declares net/*, crypto/*, kubernetes/*, and the policy"), "{text}");
    assert!(text.contains("note:    spec.mutating is true"), "{text}");
    // A module alone has no manifest that could differ.
    let module = folder.path("policies/modules/host-capabilities.wasm").display().to_string();
    let (_, text) = eval(&module, &pod, &["--host-capability", "*", "--settings-json", r#"{"calls": []}"#]);
    assert!(!text.contains("spec.mutating") && !text.contains("declares"), "{text}");
}

#[test]
fn promise_eval_says_when_it_could_not_judge() {
    let folder = Folder::empty();
    folder.put(&Policy::cluster("traps").guest("trap_unreachable"));
    folder.put(&Policy::cluster("refuses").example("required-labels").settings(json!({"labels": []})));
    folder.put(&Policy::cluster("absent").module("modules/absent.wasm"));
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    folder.write("request.json", portcullis_tests::Review::pod().bytes());
    folder.write("broken.json", "{");
    folder.write("broken.yaml", "kind: [");
    let policy = |name: &str| folder.policies().join(format!("cluster-{name}.yaml")).display().to_string();
    let file = |name: &str| folder.path(name).display().to_string();
    for (policy, request, words) in [
        (policy("traps"), file("request.json"), "EvaluationTrapped"),
        (policy("refuses"), file("request.json"), "SettingsInvalid"),
        (policy("absent"), file("request.json"), "NotFound"),
        (policy("unknown"), file("request.json"), "cluster-unknown.yaml"),
        (file("broken.yaml"), file("request.json"), "broken.yaml"),
        (policy("denies"), file("broken.json"), "broken.json"),
        (policy("denies"), file("unknown.json"), "unknown.json"),
    ] {
        let (code, text) = eval(&policy, &request, &[]);
        assert_eq!(code, Some(2), "{policy} on {request}: {text}");
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    assert_eq!(eval(&policy("denies"), &file("request.json"), &[]).0, Some(1));
}

/// A call of `portcullis eval` and the right answer: its exit status, and words in its output.
#[derive(Clone)]
struct Question {
    manifest: PathBuf,
    request: PathBuf,
    /// The module file to write before the call, if any, and its content.
    module: Option<(PathBuf, Vec<u8>)>,
    status: i32,
    words: &'static str,
}

impl Question {
    fn ask(&self, cache: &Path) -> Result<(), String> {
        if let Some((path, bytes)) = &self.module {
            // Like a compiler, it replaces the old file by a rename.
            let fresh = path.with_extension("new");
            fs::write(&fresh, bytes).and_then(|()| fs::rename(&fresh, path)).expect("it can be written");
        }
        let output = self.output(cache, "");
        let text = written(&output);
        let is_right = output.status.code() == Some(self.status) && text.contains(self.words);
        if is_right { Ok(()) } else { Err(format!("want {} {:?}: {text}", self.status, self.words)) }
    }

    fn output(&self, cache: &Path, fail_points: &str) -> Output {
        let mut command = command(["eval".as_ref(), self.manifest.as_os_str(), self.request.as_os_str()]);
        command.env("XDG_CACHE_HOME", cache).env("PORTCULLIS_FAILPOINTS", fail_points);
        command.output().expect("it starts")
    }
}

/// Policies with the same name and module but different settings: two deny, each for another label, and one's settings are refused.
fn edited(folder: &Folder) -> Vec<Question> {
    folder.write("request.json", Review::pod().bytes());
    let of = |name: &str, labels: Value, status, words| {
        let policy = Policy::cluster("asked").example("required-labels").settings(json!({"labels": labels}));
        folder.put(&policy);
        let manifest = folder.policies().join(format!("{name}.yaml"));
        fs::rename(folder.policies().join("cluster-asked.yaml"), &manifest).expect("renames");
        Question { manifest, request: folder.path("request.json"), module: None, status, words }
    };
    vec![
        of("a", json!(["owner"]), 1, "missing labels: owner"),
        of("b", json!(["cost-center"]), 1, "missing labels: cost-center"),
        of("c", json!([]), 2, "SettingsInvalid"),
    ]
}

/// One manifest whose module is built again and again: one module denies, one denies with another message, one admits, and one file is
/// not a module.
fn rebuilt(folder: &Folder) -> Vec<Question> {
    folder.write("request.json", Review::pod().bytes());
    folder.put(&Policy::cluster("built").denying("first"));
    let of = |module: Vec<u8>, status, words| Question {
        manifest: folder.policies().join("cluster-built.yaml"),
        request: folder.path("request.json"),
        module: Some((folder.path("policies/modules/built.wasm"), module)),
        status,
        words,
    };
    vec![
        of(guest_with("deny_text", b"first"), 1, "message: first"),
        of(guest_with("deny_text", b"second"), 1, "message: second"),
        of(portcullis_tests::guest("always_accept"), 0, "admitted"),
        of(b"no module".to_vec(), 2, "ModuleInvalid"),
    ]
}

/// Starts threads that take the processor from everything else for a quarter of the time, together, until the flag is set: a question
/// meets a machine that is far too busy, one that is idle, and each change between them.
fn make_busy_at_times<'scope>(scope: &'scope thread::Scope<'scope, '_>, threads: usize, stop: &'scope AtomicBool) {
    const PERIOD: Duration = Duration::from_millis(400);
    const BUSY: Duration = Duration::from_millis(100);
    let start = Instant::now();
    for _ in 0..threads {
        scope.spawn(move || {
            let mut number = 1_u64;
            while !stop.load(Ordering::Relaxed) {
                if start.elapsed().as_millis() % PERIOD.as_millis() >= BUSY.as_millis() {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
                for _ in 0..10_000 {
                    number = std::hint::black_box(number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
                }
            }
        });
    }
}

/// The answer does not depend on other calls before or beside it, or on how busy the machine is.
#[test]
fn promise_eval_answers_with_what_is_asked_for_500_times() {
    const BUSY: usize = 6;
    const TURNS: usize = 125;
    let _alone = heavy();
    let folders = [(); 4].map(|()| Folder::empty());
    let [a, b, c, d] = &folders;
    let asked = [edited(a), edited(b), rebuilt(c), rebuilt(d)];
    // All callers share one cache.
    let cache = a.path("cache");
    let ask = |questions: &[Question]| -> Vec<String> {
        // Each question comes after each of the others at some time.
        let turn = |turn: usize| &questions[(turn + turn / questions.len()) % questions.len()];
        (0..TURNS).filter_map(|number| turn(number).ask(&cache).err()).collect()
    };
    let (ask, stop) = (&ask, AtomicBool::new(false));
    let wrong: Vec<String> = thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        make_busy_at_times(scope, BUSY, &stop);
        let asking: Vec<_> = asked.iter().map(|questions| scope.spawn(move || ask(questions))).collect();
        asking.into_iter().flat_map(|asking| asking.join().expect("it asks to the end")).collect()
    });
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{}", wrong.len(), asked.len() * TURNS, wrong.join("\n"));
}

/// The files in the cache.
fn cached(cache: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(cache.join("portcullis/artifacts")).into_iter().flatten().flatten();
    let mut files: Vec<_> = files.map(|file| file.path()).collect();
    files.sort();
    files
}

#[test]
fn promise_eval_compiles_a_module_once() {
    const NO_COMPILER: &str = "compile.start=panic";
    let folder = Folder::empty();
    let cache = folder.path("cache");
    let [a, b, refused] = <[Question; 3]>::try_from(edited(&folder)).ok().expect("three");
    let code = |question: &Question, fail_points: &str| question.output(&cache, fail_points).status.code();
    assert_eq!(code(&a, NO_COMPILER), Some(2), "nothing is compiled yet, and nothing compiles");
    a.ask(&cache).expect("is right");
    for question in [&a, &b, &refused] {
        assert_eq!(code(question, NO_COMPILER), Some(question.status));
    }
    let files = cached(&cache);
    let extensions: Vec<_> = files.iter().filter_map(|file| file.extension()?.to_str()).collect();
    assert_eq!(extensions, ["cwasm", "json"], "machine code, its record, and nothing of policies: {files:?}");

    // A cached file that is spoilt or missing is written again.
    for spoil in [|file: &Path| fs::write(file, "spoilt"), |file: &Path| fs::remove_file(file)] {
        for file in &files {
            spoil(file).expect("it is ours");
            assert_eq!(code(&b, NO_COMPILER), Some(2), "{}", file.display());
            b.ask(&cache).expect("is right");
            assert_eq!(code(&b, NO_COMPILER), Some(1), "{}", file.display());
        }
    }
}

/// The command is killed at different times, and each time the next one answers.
#[test]
fn promise_an_eval_that_was_killed_leaves_nothing_to_the_next() {
    let folder = Folder::empty();
    let cache = folder.path("cache");
    for (number, question) in rebuilt(&folder).iter().cycle().take(12).enumerate() {
        let mut command = command(["eval".as_ref(), question.manifest.as_os_str(), question.request.as_os_str()]);
        command.env("XDG_CACHE_HOME", &cache).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut child = command.spawn().expect("it starts");
        thread::sleep(Duration::from_millis(60 * u64::try_from(number).unwrap_or(0)));
        child.kill().and_then(|()| child.wait()).expect("it is ours");
        question.ask(&cache).expect("is right");
    }
}

/// Without a cache folder, `eval` still answers.
#[test]
fn promise_eval_needs_no_cache() {
    let folder = Folder::empty();
    let [question, ..] = <[Question; 3]>::try_from(edited(&folder)).ok().expect("three");
    folder.write("file", "");
    question.ask(&folder.path("file")).expect("is right");

    // A folder that other users can write to is not trusted.
    let cache = folder.path("cache");
    let artifacts = cache.join("portcullis/artifacts");
    question.ask(&cache).expect("is right");
    fs::set_permissions(&artifacts, fs::Permissions::from_mode(0o777)).expect("it is ours");
    assert_eq!(question.output(&cache, "compile.start=panic").status.code(), Some(2));
    question.ask(&cache).expect("is right");

    let Some(small) = SmallVolume::mounted("1m") else { return };
    small.fill(0);
    question.ask(small.path()).expect("is right");
    assert!(cached(small.path()).is_empty(), "{:?}", cached(small.path()));
}

/// What is in the environment of a shell or a pipeline does not keep `eval` from answering.
#[test]
fn promise_eval_answers_whatever_is_logged_and_wherever_temporary_files_are() {
    let folder = Folder::empty();
    let [question, ..] = <[Question; 3]>::try_from(edited(&folder)).ok().expect("three");
    let cache = folder.path("cache");
    let ask = |name: &str, value: &str| {
        let mut command = command(["eval".as_ref(), question.manifest.as_os_str(), question.request.as_os_str()]);
        let output = command.env("XDG_CACHE_HOME", &cache).env(name, value).output().expect("it starts");
        let text = written(&output);
        assert_eq!(output.status.code(), Some(question.status), "{name}={value}: {text}");
        assert!(text.contains(question.words), "{name}={value}: {text}");
    };
    for level in ["warn", "error", "off", "portcullis_loader=error"] {
        ask("PORTCULLIS_LOG_LEVEL", level);
    }
    // Too long for the path of a socket in it.
    let temporary = folder.path(&"x".repeat(100));
    fs::create_dir(&temporary).expect("makes");
    ask("TMPDIR", temporary.to_str().expect("UTF-8"));
    assert_eq!(fs::read_dir(&temporary).expect("is there").count(), 0, "nothing is left behind");
}
