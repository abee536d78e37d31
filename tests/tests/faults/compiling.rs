//! Sections 5 and 7: compilations that take too much or die, and a volume that is slow.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::{Digest, Phase, Reason};
use portcullis_tests::{
    Folder, LIMIT, Pod, Policy, Reply, Review, SlowWrites, Source, eventually, large_module, never,
};
use wasm_encoder::{CodeSection, Function, FunctionSection, Instruction, Module, TypeSection, ValType};

use crate::hostile::{WASM, manifest, name, serve};

const REMOTE: &str = "cluster/remote";

/// A module with one function that has 49,000 locals, and branch tables to every enclosing block.
pub(crate) fn monster() -> Vec<u8> {
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
    // Makes the module a policy.
    let metadata = br#"{"protocolVersion":"v1","rules":[],"mutating":false}"#;
    module.section(&wasm_encoder::CustomSection { name: "io.kubewarden.metadata".into(), data: metadata.into() });
    module.finish()
}

#[test]
fn fault_m06_compilation_without_end() {
    let folder = Folder::with_canary();
    // This limit is far longer than the other modules take even on a busy machine, and shorter than this one takes on any machine.
    let pod = Pod::on(&folder).loader("--compile-time", "20s").loader("--compile-jobs", "2").start();
    let phases = || {
        let state = pod.loader_state()?;
        let of = |id: &str| state.policies.iter().find(|policy| policy.id.as_str() == id).map(|policy| policy.phase);
        Some((of(REMOTE), of("cluster/other")))
    };
    folder.put(&Policy::cluster("remote").bytes(monster()));
    eventually("the compilation to begin", || (phases()?.0 == Some(Phase::Compiling)).then_some(()));
    // Other policies work in the meantime.
    folder.put(&Policy::cluster("other").denying("as always"));
    let (remote, _) = eventually("the other module", || phases().filter(|(_, other)| *other == Some(Phase::Published)));
    assert_eq!(remote, Some(Phase::Compiling), "the other module was compiled beside this one");
    pod.assert_recovered("cluster/other", 1);
    pod.assert_unserved(REMOTE, Reason::CompileLimit);
    never(Duration::from_secs(3), "a second try of what is final", || {
        // The failure itself stays while another try runs.
        let remote = pod.loader_state()?.policies.into_iter().find(|policy| policy.id.as_str() == REMOTE)?;
        let tries = remote.failure.as_ref().map_or(0, |failure| failure.attempts);
        (remote.phase != Phase::Failed || tries != 1).then_some(remote)
    });
}

/// The processes that a program has started and that have not ended.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the program runs");
    let of_task = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let texts: Vec<_> = tasks.flatten().map(of_task).collect();
    texts.iter().flat_map(|text| text.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}

/// The deletion alone ends the compilation, which would go on for minutes, and the next one has its turn.
#[test]
fn fault_k09_deleted_while_its_module_is_compiled() {
    let folder = Folder::with_canary();
    let setup = Pod::on(&folder).loader("--compile-time", "10m").loader("--compile-cpu-time", "10m");
    let pod = setup.loader("--compile-jobs", "1").start();
    let loading = |id: &str| pod.loader_state()?.policies.into_iter().find(|policy| policy.id.as_str() == id);
    let compilers = || children(pod.loader().pid());
    let artifacts = pod.volume().artifacts();
    let remote = Policy::cluster("remote").bytes(monster());
    folder.put(&remote);
    let compiler = eventually("the compilation to begin", || {
        let is_compiled = loading(REMOTE)?.phase == Phase::Compiling;
        compilers().into_iter().next().filter(|_| is_compiled)
    });
    folder.put(&Policy::cluster("other").denying("as always"));
    eventually("the other module to wait for its turn to be compiled", || {
        let other = loading("cluster/other")?;
        (other.phase == Phase::Queued && other.digest.is_some()).then_some(())
    });
    assert_eq!(compilers(), [compiler], "one compilation at a time");
    assert!(!pod.volume().temporary_files().is_empty(), "it has no file to write to");

    pod.within(Duration::from_secs(5), "the end of a compilation that nobody wants", || {
        folder.remove(&remote);
        eventually("the end of its process", || (!compilers().contains(&compiler)).then_some(()));
    });
    pod.assert_recovered("cluster/other", 1);
    assert_eq!(pod.ask("cluster/other", &Review::pod()).verdict().message, "as always");
    assert!(loading(REMOTE).is_none(), "{:?}", loading(REMOTE));
    eventually("no temporary file", || pod.volume().temporary_files().is_empty().then_some(()));
    assert_eq!(pod.volume().artifacts().len(), artifacts.len() + 1, "only the other module was compiled");
    assert_eq!(compilers(), [0; 0]);
}

#[test]
fn fault_m07_compiler_dies() {
    assert_fails_alone("exit");
}

#[test]
fn fault_m07_compiler_panics() {
    assert_fails_alone("panic");
}

/// Asserts that a module fails alone if this happens whenever it is compiled.
fn assert_fails_alone(action: &str) {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").denying("generation one"));
    let pod = Pod::on(&folder).start();
    pod.wait_current(REMOTE, 1);
    let deadly = Policy::cluster("remote").denying("generation two");
    let (_, module) = deadly.module_file().expect("it has a module");
    pod.loader().restart_with(Some(&format!("compile.module/{}={action}", Digest::of(module))));
    folder.put(&deadly);
    let failure = pod.assert_kept(REMOTE, Reason::CompileFailed, 1, |verdict| verdict.message == "generation one");
    assert!(failure.message.contains("died 2 times"), "{failure:?}");
    assert_eq!(failure.next_retry_time, None, "{failure:?}");
    folder.put(&deadly.renamed("new"));
    pod.assert_unserved("cluster/new", Reason::CompileFailed);
    // Only this module fails, and an edit mends the policy.
    folder.put(&Policy::cluster("other").denying("as always"));
    pod.assert_recovered("cluster/other", 1);
    folder.put(&Policy::cluster("remote").denying("generation three"));
    pod.assert_recovered(REMOTE, 3);
    assert_eq!(pod.ask(REMOTE, &Review::pod()).verdict().message, "generation three");
    assert!(pod.loader().is_alive());
}

#[test]
fn fault_v17_slow_volume() {
    const DELAY: Duration = Duration::from_secs(5);
    /// In pieces of 64 KiB, the artifact takes longer to be written than a module may take to compile.
    const PIECES: u32 = 7;
    const COMPILE_TIME: &str = "30s";
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").denying("generation one"));
    let writes = SlowWrites::to_volume_of(&folder);
    let pod = writes.of(Pod::on(&folder)).loader("--compile-time", COMPILE_TIME).start();
    pod.wait_current(REMOTE, 1);
    writes.take(DELAY);
    let mut large = br#"{"accepted":false,"message":"generation two"}"#.to_vec();
    large.resize(PIECES as usize * (64 << 10), b' ');
    folder.put(&Policy::cluster("remote").answering("answer", large));
    let (start, mut asked) = (Instant::now(), 0);
    // Asks for as long as the writes take, until the second generation serves.
    loop {
        let what = "an evaluator that does not wait for the volume";
        let answer = pod.within(Duration::from_secs(4), what, || pod.ask(REMOTE, &Review::pod()));
        match answer.verdict().message.as_str() {
            "generation one" => asked += 1,
            "generation two" => break,
            other => panic!("neither generation says {other:?}"),
        }
        assert!(start.elapsed() < LIMIT, "{asked} answers of the first generation, and none of the second");
        thread::sleep(Duration::from_millis(20));
    }
    let (took, delayed) = (start.elapsed(), writes.delayed());
    // One after the other: the module, the pieces of the artifact and its record, the number of the manifest and the manifest itself.
    // Artifact, record and manifest are synced too.
    assert!(delayed.writes >= u64::from(4 + PIECES) && delayed.syncs >= 3, "{delayed:?}");
    assert!(
        took >= (7 + PIECES) * DELAY && asked > 0,
        "each write and each sync was waited for, and {took:?} is too short"
    );
    pod.assert_recovered(REMOTE, 2);
    writes.take(Duration::ZERO);
}

/// The limit of a download is below the time of one write. Each piece of a module but the first waits until the one before it is written.
#[test]
fn fault_v17_downloads_to_a_slow_volume() {
    const DELAY: Duration = Duration::from_secs(5);
    const FETCH_TIMEOUT: &str = "4s";
    const SIZE: usize = 64 << 10;
    /// At least: the first pieces that the client reads are smaller than a quarter of the module.
    const PIECES: u32 = 3;
    let source = Source::https();
    let folder = Folder::with_canary();
    let writes = SlowWrites::to_volume_of(&folder);
    let setup = writes.of(Pod::on(&folder)).loader("--source-ca", source.ca_file(&folder));
    let pod = setup.loader("--fetch-timeout", FETCH_TIMEOUT).start();
    let texts = ["from an address", "from a registry"];
    let modules = texts.map(|text| large_module(text, SIZE));
    let [module, layer] = &modules;
    source.answer("/m.wasm", [Reply::ok(module.clone())]);
    serve(&source, "a", manifest(layer, &[WASM]).to_string().as_bytes(), layer, Reply::ok(layer.clone()));
    let policies = [
        Policy::cluster("address").module(&source.url("/m.wasm")),
        Policy::cluster("registry").module(&name(&source, "a")),
    ];
    let paths = ["/m.wasm".to_owned(), format!("/v2/a/blobs/{}", Digest::of(layer))];

    writes.take(DELAY);
    let start = Instant::now();
    policies.iter().for_each(|policy| folder.put(policy));
    let files = modules
        .each_ref()
        .map(|module| folder.volume().join("modules").join(format!("{}.wasm", Digest::of(module).hex())));
    eventually("both modules on the volume", || {
        for policy in pod.loader_state()?.policies {
            assert!(policy.failure.is_none(), "{policy:?}");
        }
        files.iter().all(|file| file.exists()).then_some(())
    });
    let (took, delayed) = (start.elapsed(), writes.delayed());
    writes.take(Duration::ZERO);
    assert!(delayed.writes >= u64::from(2 * PIECES), "{delayed:?}");
    assert!(took >= PIECES * DELAY, "each write was waited for, and {took:?} is too short");
    for (policy, text) in policies.iter().zip(texts) {
        pod.assert_recovered(&policy.id(), 1);
        assert_eq!(pod.ask(&policy.id(), &Review::pod()).verdict().message, text);
    }
    for path in paths {
        assert_eq!(source.requests(&path).len(), 1, "{path}");
    }
    let lines = pod.loader().lines();
    assert!(!lines.iter().any(|line| line.contains("RegistryTimeout")), "{lines:#?}");
}
