//! Mutants of policies in Go and in Rego: one that is valid before it is prepared is valid afterwards.

use wasm_encoder::{CodeSection, Module, RawSection, SectionId};
use wasmparser::{Parser, Payload};

use super::*;

/// How many mutants of each policy are made.
const MUTANTS: u64 = 12_000;

/// A policy with a function as Go writes it, with typed blocks around some of its branches, which grows its memory.
const GO: &str = r#"(memory (export "memory") 1 90) (global $sp (mut i32) (i32.const 0))
    (table 2 funcref) (elem (i32.const 0) $wait $run) (data (i32.const 16) "text of a policy")
    (func $wait (param i32) (result i32) (memory.grow (local.get 0)))
    (func $run (export "run") (param $pc i32) (result i32) (local $stack i32) (local $left i64)
        (local.set $stack (global.get $sp))
        (block $exit
            (loop $go
                (block $3 (block $2 (block $1 (block $0
                    (br_table $0 $1 $1 $2 $3 (local.get $pc)))
                (local.set $left (i64.const 7))
                (drop (memory.grow (i32.const 1)))
                (local.set $pc (i32.const 3))
                (br $go))
                (br_if $exit (call $wait (i32.const 0)))
                (i32.const 5)
                (if (param i32) (result i32) (memory.size)
                    (then
                        (br_if $exit (call $wait (i32.const 0)))
                        (block (result i32)
                            (br_if 0 (i32.const 9) (local.get $stack))
                            (br_if $exit)
                            (i32.const 2))
                        i32.add)
                    (else
                        drop
                        (local.set $pc (i32.const 3))
                        (br $go)))
                (local.set $stack)
                (local.set $left (i64.sub (local.get $left) (i64.const 1))))
                (block (result i64)
                    (if (result f64) (i64.eqz (local.get $left))
                        (then (f64.const 1))
                        (else
                            (local.set $pc (i32.const 1))
                            (br $go)))
                    (drop)
                    (local.get $left))
                (drop)
                (local.set $pc (i32.const 0))
                (br_if $exit (call_indirect (param i32) (result i32) (i32.const 0) (local.get $pc)))
                (local.set $pc (i32.const 4))
                (br $go))
                (return (i32.load (local.get $stack))))
            unreachable)
        (i32.const 1))"#;

/// A policy as OPA compiles it, as far as its memory is concerned.
const REGO: &str = r#"(import "env" "opa_abort" (func $abort (param i32))) (import "env" "memory" (memory 2))
    (global $heap (mut i32) (i32.const 131072)) (table 2 funcref) (elem (i32.const 0) $abort $allocate)
    (data (i32.const 1024) "text of a policy")
    (func $allocate (export "opa_malloc") (param $size i32) (result i32) (local $at i32)
        (local.set $at (global.get $heap))
        (global.set $heap (i32.add (local.get $at) (local.get $size)))
        (block $there
            (br_if $there (i32.le_u (global.get $heap) (i32.shl (memory.size) (i32.const 16))))
            (br_if $there (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))
            (call $abort (i32.const 1024)))
        (local.get $at))
    (func (export "opa_eval_ctx_new") (result i32) (local $at i32)
        (local.tee $at (call $allocate (i32.const 24)))
        (i32.store offset=8 (local.get $at) (i32.load (i32.const 1024)))
        (loop (param i32) (result i32)
            (i32.add (i32.const 1))
            (br_if 0 (local.tee $at) (i32.lt_u (local.get $at) (i32.const 4096)))))"#;

/// A generator of numbers that is the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

/// A module taken apart.
#[derive(Clone)]
struct Parts {
    /// All sections but the code: number and content.
    sections: Vec<(u8, Vec<u8>)>,
    functions: Vec<Body>,
}

/// The declarations of locals, and each instruction.
#[derive(Clone)]
struct Body {
    locals: Vec<u8>,
    instructions: Vec<Vec<u8>>,
}

impl Parts {
    fn of(module: &[u8]) -> Self {
        let (mut sections, mut functions) = (Vec::new(), Vec::new());
        for payload in Parser::new(0).parse_all(module) {
            let payload = payload.unwrap();
            if let Payload::CodeSectionEntry(function) = &payload {
                let mut code = function.get_operators_reader().unwrap();
                let locals = module[function.range().start..code.original_position()].to_vec();
                let mut instructions = Vec::new();
                while !code.eof() {
                    let start = code.original_position();
                    code.read().unwrap();
                    instructions.push(module[start..code.original_position()].to_vec());
                }
                functions.push(Body { locals, instructions });
            } else if let Some((id, range)) = payload.as_section() {
                sections.push((id, module[range].to_vec()));
            }
        }
        Self { sections, functions }
    }

    fn module(&self) -> Vec<u8> {
        let mut module = Module::new();
        for (id, data) in &self.sections {
            if *id == SectionId::Code as u8 {
                let mut code = CodeSection::new();
                for function in &self.functions {
                    code.raw(&[&function.locals[..], &function.instructions.concat()].concat());
                }
                module.section(&code);
            } else {
                module.section(&RawSection { id: *id, data });
            }
        }
        module.finish()
    }

    /// Any instruction.
    fn instruction(&self, random: &mut Random) -> Vec<u8> {
        let instructions = &self.functions[random.below(self.functions.len())].instructions;
        instructions[random.below(instructions.len())].clone()
    }

    /// One change: mostly to an instruction, sometimes to what is not code.
    fn change(&mut self, random: &mut Random) {
        let other = self.instruction(random);
        let number = random.below(self.functions.len());
        let code = &mut self.functions[number].instructions;
        let at = random.below(code.len());
        match random.below(6) {
            0 => code[at] = other,
            1 => code.insert(at, other),
            2 if code.len() > 1 => drop(code.remove(at)),
            3 => {
                let with = random.below(code.len());
                code.swap(at, with);
            }
            4 => flip(&mut code[at], random),
            _ => {
                let number = random.below(self.sections.len());
                flip(&mut self.sections[number].1, random);
            }
        }
    }
}

fn flip(bytes: &mut [u8], random: &mut Random) {
    let at = random.below(bytes.len());
    bytes[at] ^= 1 << random.below(8);
}

/// What is made of the valid mutants of a policy: how many there are, and how many of them get a memory of their own, get a part of their memory
/// from the start, and jump directly.
fn prepared_mutants(policy: &str) -> [u64; 4] {
    let policy = wat::parse_str(format!("(module {policy})")).unwrap();
    assert!(is_valid(&policy));
    let parts = Parts::of(&policy);
    assert!(is_valid(&parts.module()));
    let mut counts = [0; 4];
    for seed in 0..MUTANTS {
        let mut random = Random(seed);
        let mut mutant = parts.clone();
        for _ in 0..=random.below(3) {
            mutant.change(&mut random);
        }
        let mutant = mutant.module();
        if !is_valid(&mutant) {
            continue;
        }
        let prepared = prepare(&mutant);
        assert!(is_valid(&prepared), "seed {seed}: {mutant:02x?} became {prepared:02x?}");
        let is_as = [
            true,
            with_own_memory(&mutant).is_some(),
            with_preallocated_memory(&mutant).is_some(),
            with_direct_jumps(&mutant).is_some(),
        ];
        for (count, is_one) in counts.iter_mut().zip(is_as) {
            *count += u64::from(is_one);
        }
    }
    counts
}

#[test]
fn mutants_of_a_policy_in_go_stay_valid() {
    let [valid, own, preallocated, direct] = prepared_mutants(GO);
    assert!(preallocated > MUTANTS / 20 && direct > MUTANTS / 20, "{valid} valid: {preallocated}, {direct}");
    assert_eq!(own, 0);
}

#[test]
fn mutants_of_a_policy_in_rego_stay_valid() {
    let [valid, own, preallocated, direct] = prepared_mutants(REGO);
    assert!(own > MUTANTS / 20, "{valid} valid: {own}");
    assert_eq!((preallocated, direct), (0, 0));
}
