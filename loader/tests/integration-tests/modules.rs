//! A hostile module costs one child process, and nothing else.

use std::fmt::Write as _;
use std::fs;

use portcullis_contract::{Failure, Reason};

use crate::folder::{Folder, Loader, eventually, module, numbered, policy};

fn fails(folder: &Folder, loader: &Loader, name: &str, bytes: &[u8]) -> (Reason, String) {
    folder.write(&format!("{name}.wasm"), bytes);
    folder.write(&format!("{name}.yaml"), policy(name, &format!("{name}.wasm"), "{}"));
    let id = format!("cluster/{name}");
    // A machine that gives the compiler no processor time says nothing about a module, which is tried again.
    let is_judged = |failure: &Failure| failure.reason != Reason::CompilerUnavailable;
    let failure = eventually(&format!("{id} to be judged"), || loader.fails(&id).failure.filter(is_judged));
    (failure.reason, failure.message)
}

#[test]
fn fault_m01_m02_m05_each_has_its_reason() {
    let folder = Folder::new();
    let loader = folder.start(&[]);
    let whole = numbered(1);
    for (name, bytes, reason, word) in [
        ("page", b"<html>".to_vec(), Reason::ModuleInvalid, "web page"),
        ("cut", whole[..whole.len() / 2].to_vec(), Reason::ModuleInvalid, "not valid"),
        ("threads", module("(module (memory 1 1 shared))"), Reason::ModuleUnsupported, "threads"),
        ("component", wat::parse_str("(component)").expect("a component"), Reason::ModuleUnsupported, "component"),
        ("unversioned", unversioned(), Reason::ModuleUnsupported, "protocol version"),
    ] {
        let (found, message) = fails(&folder, &loader, name, &bytes);
        assert!(found == reason && message.contains(word), "{name}: {found} {message}");
    }
    folder.write("good.wasm", &whole);
    folder.write("good.yaml", policy("good", "good.wasm", "{}"));
    loader.serves("cluster/good", 1);
    assert!(loader.files("tmp").is_empty());
    assert!(!loader.log().contains("panicked"), "{}", loader.log());
}

/// A module whose metadata names no version of its protocol.
fn unversioned() -> Vec<u8> {
    let text = r#"(module (@custom "io.kubewarden.metadata" "{\"executionMode\":\"kubewarden-wapc\",\"rules\":[]}"))"#;
    wat::parse_str(text).expect("a module")
}

/// A module whose only function takes long to compile.
fn heavy() -> Vec<u8> {
    let mut body = String::from("(module (func (export \"f\") (param i64) (result i64) (local i64)\n");
    for _ in 0..60_000 {
        body.push_str("(if (i64.eqz (local.get 0)) (then (local.set 1 (i64.add (local.get 1) (local.get 0)))))\n");
        writeln!(body, "(local.set 0 (i64.mul (local.get 0) (i64.xor (local.get 1) (local.get 0))))").expect("writes");
    }
    body.push_str("(local.get 0)))");
    module(&body)
}

#[test]
fn fault_m06_time_and_memory_of_a_compilation_are_limited() {
    let folder = Folder::new();
    let heavy = heavy();
    let loader = folder.start(&["--compile-time", "300ms"]);
    let (reason, message) = fails(&folder, &loader, "time", &heavy);
    assert!(reason == Reason::CompileLimit && message.contains("--compile-time"), "{reason} {message}");
    drop(loader);
    let loader = folder.start(&["--compile-memory", "64MiB", "--compile-time", "10m"]);
    let (reason, message) = fails(&folder, &loader, "memory", &heavy);
    assert!(reason == Reason::CompileLimit && message.contains("--compile-memory"), "{reason} {message}");
    drop(loader);
    let loader = folder.start(&["--compile-cpu-time", "1s", "--compile-time", "10m"]);
    let (reason, message) = fails(&folder, &loader, "cpu", &heavy);
    assert!(reason == Reason::CompileLimit && message.contains("--compile-cpu-time"), "{reason} {message}");
    folder.write("good.wasm", numbered(1));
    folder.write("good.yaml", policy("good", "good.wasm", "{}"));
    loader.serves("cluster/good", 1);
}

#[test]
fn fault_m07_a_compiler_that_dies_fails_its_module_only() {
    let folder = Folder::new();
    let loader = folder.start_with(&[], "compile.start=panic");
    let (reason, message) = fails(&folder, &loader, "a", &numbered(1));
    assert_eq!(reason, Reason::CompileFailed);
    assert!(message.contains("panicked at ") && message.ends_with(": fail point compile.start"), "{message}");
    let log = loader.log();
    assert_eq!(log.matches("the compiler died on a module").count(), 1, "{log}");
    assert!(loader.files("artifacts").is_empty());
    // The manifest that reports the failure may still be a temporary file.
    eventually("no temporary file to be left", || loader.files("tmp").is_empty().then_some(()));
}

/// The processes that a loader has started.
fn children(loader: &Loader) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", loader.pid())).expect("lists").flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

fn compiling() -> (Folder, Loader, String) {
    let folder = Folder::new();
    folder.write("a.wasm", numbered(1));
    folder.write("a.yaml", policy("a", "a.wasm", "{}"));
    let loader = folder.start_with(&[], "compile.start=hang");
    let child = eventually("a child", || children(&loader).pop());
    (folder, loader, child)
}

#[test]
fn the_compiler_has_shut_itself_in() {
    let (_folder, _loader, child) = compiling();
    eventually("the child to be shut in", || {
        let status = fs::read_to_string(format!("/proc/{child}/status")).ok()?;
        (status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2")).then_some(())
    });
    let limits = fs::read_to_string(format!("/proc/{child}/limits")).expect("reads");
    let limit = |name: &str| limits.lines().find(|line| line.starts_with(name)).map(str::to_owned).unwrap_or_default();
    assert!(limit("Max data size").contains("536870912"), "{limits}");
    assert!(limit("Max cpu time").contains("60"), "{limits}");
}

#[test]
fn k09_a_policy_that_goes_ends_its_compilation() {
    let (folder, loader, _) = compiling();
    fs::remove_file(folder.path().join("a.yaml")).expect("removes");
    eventually("no child", || children(&loader).is_empty().then_some(()));
    eventually("no temporary file", || loader.files("tmp").is_empty().then_some(()));
}

/// As when the node is out of memory.
#[test]
fn m07_a_compiler_that_is_killed_is_started_again() {
    let (_folder, loader, child) = compiling();
    let kill = std::process::Command::new("kill").args(["-KILL", &child]).status().expect("kills");
    assert!(kill.success());
    // The failure stays while another try runs.
    let failure = eventually("the failure", || loader.policy("cluster/a")?.failure);
    assert_eq!(failure.reason, Reason::CompilerUnavailable, "{failure:?}");
    eventually("another child", || children(&loader).pop().filter(|other| *other != child));
}

#[test]
fn a_stop_ends_compilations() {
    let (_folder, mut loader, child) = compiling();
    assert_eq!(loader.stop().code(), Some(0));
    eventually("the child to end", || (!std::path::Path::new(&format!("/proc/{child}")).exists()).then_some(()));
    assert!(loader.files("tmp").is_empty());
}
