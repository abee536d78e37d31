use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, Function, FunctionSection, GlobalSection, GlobalType, MemorySection, MemoryType,
    Module, TypeSection, ValType,
};
use wasmparser::Validator;

use super::*;

mod mutants;

#[test]
fn the_same_configuration_has_the_same_key() {
    let key = Compiler::new().unwrap().key();
    assert_eq!(key, Compiler::new().unwrap().key());
    assert_eq!(key.len(), 16);
    assert!(key.bytes().all(|digit| digit.is_ascii_hexdigit()), "{key}");
}

#[test]
fn the_key_tells_configurations_apart() {
    let key = |config| fnv1a(&Engine::new(&config).unwrap().precompile_module(EMPTY_MODULE).unwrap());
    let mut other = crate::shared_config();
    other.epoch_interruption(false);
    assert_ne!(key(crate::shared_config()), key(other));
}

fn is_valid(module: &[u8]) -> bool {
    Validator::new_with_features(crate::features()).validate_all(module).is_ok()
}

/// The largest function that the compiler takes, in bytes.
const MOST_BYTES: usize = 7_654_321;

/// A function that begins with `start`, returns a number and has so many bytes. What fills it up never runs.
fn large(start: &Function, bytes: usize) -> Function {
    let mut body = start.clone();
    body.instructions().i32_const(1).return_();
    let filling = bytes - body.byte_len() - 1;
    // Large instructions are read sooner than many small ones.
    for _ in 0..filling / 19 {
        body.instructions().v128_const(0).drop();
    }
    body.raw(std::iter::repeat_n(1, bytes - 1 - body.byte_len()));
    body.instructions().end();
    assert_eq!(body.byte_len(), bytes);
    body
}

const MEMORY: MemoryType =
    MemoryType { minimum: 1, maximum: None, memory64: false, shared: false, page_size_log2: None };

/// A module with one function, as Go writes it, of so many bytes.
fn of_go(bytes: usize) -> Vec<u8> {
    let mut start = Function::new([]);
    start.instructions().loop_(BlockType::Empty).block(BlockType::Empty);
    start.instructions().local_get(0).br_table([], 0).end().i32_const(0).local_set(0).br(0).end();
    let (mut types, mut functions, mut code) = (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([ValType::I32], [ValType::I32]);
    functions.function(0);
    code.function(&large(&start, bytes));
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&code);
    module.finish()
}

/// A module with one function of so many bytes, which grows the memory and reads its size, and with enough globals for the size to take more bytes as
/// a global.
fn that_grows(bytes: usize) -> Vec<u8> {
    let mut start = Function::new([]);
    start.instructions().i32_const(1).memory_grow(0).drop().memory_size(0).drop();
    let (mut types, mut functions, mut code) = (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([], [ValType::I32]);
    functions.function(0);
    code.function(&large(&start, bytes));
    let (mut memories, mut globals) = (MemorySection::new(), GlobalSection::new());
    memories.memory(MEMORY);
    for _ in 0..200 {
        let kind = GlobalType { val_type: ValType::I32, mutable: false, shared: false };
        globals.global(kind, &ConstExpr::i32_const(0));
    }
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&memories).section(&globals).section(&code);
    module.finish()
}

#[test]
fn a_module_at_a_limit_of_the_compiler_is_compiled_as_it_is() {
    let compiler = Compiler::new().unwrap();
    for (what, at_limit, beyond) in [
        ("direct jumps", of_go(MOST_BYTES), of_go(MOST_BYTES + 1)),
        ("memory from the start", that_grows(MOST_BYTES), that_grows(MOST_BYTES + 1)),
    ] {
        assert!(is_valid(&at_limit) && !is_valid(&beyond), "{what}");
        let prepared = prepare(&at_limit);
        assert!(matches!(prepared, Cow::Owned(_)) && !is_valid(&prepared), "{what}");
        assert_eq!(compiler.compile(&at_limit).unwrap(), compiler.precompile(&at_limit).unwrap(), "{what}");
    }
}

#[test]
fn an_error_is_about_the_bytes_of_the_module_as_it_came() {
    let text = r#"(module (memory 1) (global (mut i32) (i32.const 0))
        (func (drop (memory.grow (i32.const 1)))) (func (result i32) i64.const 1))"#;
    let module = wat::parse_str(text).unwrap();
    let compiler = Compiler::new().unwrap();
    let prepared = prepare(&module);
    assert!(matches!(prepared, Cow::Owned(_)));
    let error = |result: Result<Vec<u8>, CompileError>| result.unwrap_err().to_string();
    assert_ne!(error(compiler.precompile(&prepared)), error(compiler.precompile(&module)));
    assert_eq!(error(compiler.compile(&module)), error(compiler.precompile(&module)));
}
