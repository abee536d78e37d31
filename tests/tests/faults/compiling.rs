//! Sections 5 and 7: compilations that take too much or die, and a volume that is slow.

use std::time::Duration;

use portcullis_contract::Reason;
use portcullis_tests::{Canary, Folder, Pod, Policy, Review, Stalls, never};
use wasm_encoder::{CodeSection, Function, FunctionSection, Instruction, Module, TypeSection, ValType};

const REMOTE: &str = "cluster/remote";

/// One function with 50 000 locals, and branch tables that lead everywhere.
fn monster() -> Vec<u8> {
    const LOCALS: u32 = 49_000;
    const DEPTH: u32 = 400;
    let mut types = TypeSection::new();
    types.ty().function([ValType::I32], []);
    let mut functions = FunctionSection::new();
    functions.function(0);
    let mut body = Function::new([(LOCALS, ValType::I64)]);
    for _ in 0..DEPTH {
        body.instruction(&Instruction::Block(wasm_encoder::BlockType::Empty));
    }
    let targets: Vec<u32> = (0..DEPTH).collect();
    for round in 0..1_500_u32 {
        body.instruction(&Instruction::LocalGet(1 + round * 31 % LOCALS));
        body.instruction(&Instruction::LocalSet(1 + round * 17 % LOCALS));
    }
    for depth in 0..DEPTH {
        body.instruction(&Instruction::LocalGet(0));
        body.instruction(&Instruction::BrTable(targets[..(DEPTH - depth) as usize].to_vec().into(), 0));
        body.instruction(&Instruction::End);
        for local in 0..200 {
            body.instruction(&Instruction::LocalGet(1 + (local * 241 + depth) % LOCALS));
            body.instruction(&Instruction::I64Const(1));
            body.instruction(&Instruction::I64Add);
            body.instruction(&Instruction::LocalSet(1 + (local * 97 + depth) % LOCALS));
        }
    }
    body.instruction(&Instruction::End);
    let mut code = CodeSection::new();
    code.function(&body);
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&code);
    // What makes it a policy.
    let metadata = br#"{"protocolVersion":"v1","rules":[],"mutating":false}"#;
    module.section(&wasm_encoder::CustomSection { name: "io.kubewarden.metadata".into(), data: metadata.into() });
    module.finish()
}

#[test]
fn fault_m06_compilation_without_end() {
    let folder = Folder::with_canary();
    let pod = Pod::on(&folder).loader("--compile-time", "2s").loader("--compile-jobs", "2").start();
    let canary = Canary::on(&pod);
    folder.put(&Policy::cluster("remote").bytes(monster()));
    folder.put(&Policy::cluster("other").denying("as always"));
    // Other policies keep working meanwhile.
    pod.assert_recovered("cluster/other", 1);
    pod.assert_unserved(REMOTE, Reason::CompileLimit);
    never(Duration::from_secs(3), "a second try of what is final", || {
        let state = pod.loader_state()?;
        state.policies.into_iter().find(|policy| policy.id.as_str() == REMOTE && policy.failure.is_none())
    });
    canary.finish(&pod);
}

#[test]
fn fault_m07_compiler_dies() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").denying("generation one"));
    let pod = Pod::on(&folder).start();
    let canary = Canary::on(&pod);
    pod.wait_current(REMOTE, 1);
    pod.loader().restart_with(Some("compile.start=exit"));
    folder.put(&Policy::cluster("remote").denying("generation two"));
    pod.assert_kept(REMOTE, Reason::CompileFailed, 1, |verdict| verdict.message == "generation one");
    folder.put(&Policy::cluster("new").denying("never seen"));
    pod.assert_unserved("cluster/new", Reason::CompileFailed);
    assert!(pod.loader().is_alive());
    canary.finish(&pod);
}

#[test]
fn fault_v17_slow_volume() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").denying("generation one"));
    let pod = Pod::on(&folder).start();
    let canary = Canary::on(&pod);
    pod.wait_current(REMOTE, 1);
    pod.loader().restart_with(Some("loader.before_manifest_rename=delay(5s);loader.after_artifact_write=delay(5s)"));
    folder.put(&Policy::cluster("remote").denying("generation two"));
    for _ in 0..20 {
        let what = "an evaluator that does not wait for the volume";
        Stalls::watch().within(Duration::from_secs(4), what, || pod.ask(REMOTE, &Review::pod()));
    }
    pod.assert_recovered(REMOTE, 2);
    canary.finish(&pod);
}
