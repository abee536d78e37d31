//! Generated functions, before and after: both must do the same from every basic block on.
#![cfg(feature = "run")]

use std::fmt::Write as _;

use wasmtime::{Engine, Instance, Module, Store};

use super::{direct, module};

/// A generator of numbers that is the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

/// The steps that a function does before it gives way.
const STEPS: i32 = 60;

/// Globals that tell what ran: a hash of all numbers given to `$step`, in order, and the steps that are left. `$step` says that a function
/// gives way once none are left, and `$choice` draws from the hash.
const HOST: &str = r#"(global $sp (mut i32) (i32.const 0))
    (global $trace (export "trace") (mut i64) (i64.const 1))
    (global $left (export "left") (mut i32) (i32.const 60))
    (type $go (func (param i32) (result i32)))
    (table 1 funcref) (elem (i32.const 0) $step)
    (func $step (type $go)
        (global.set $trace (i64.add (i64.mul (global.get $trace) (i64.const 6364136223846793005))
            (i64.extend_i32_u (i32.add (local.get 0) (i32.const 12345)))))
        (global.set $left (i32.sub (global.get $left) (i32.const 1)))
        (i32.le_s (global.get $left) (i32.const 0)))
    (func $choice (result i32)
        (i32.and (i32.wrap_i64 (i64.shr_u (global.get $trace) (i64.const 40))) (i32.const 1)))"#;

/// A function as Go writes it, with jumps from anywhere to anywhere, and the number of values of its parameter.
fn function(random: &mut Random) -> (String, usize) {
    let blocks = 1 + random.below(12);
    // Several values mean the same basic block, and some blocks have none.
    let mut table = Vec::new();
    for block in 0..blocks {
        table.extend(vec![block; random.below(4)]);
    }
    let mut text = HOST.to_owned();
    text.push_str("(func (export \"run\") (param $pc i32) (result i32) (local $stack i32) (local $x i32)\n");
    // Functions that never give way have no wasm block for that.
    let [before, give_way, behind] = match random.below(3) {
        0 => ["", "if i32.const 1 return end", "i32.const 7 call $step drop i32.const 2)"],
        _ => ["block $exit", "br_if $exit", "i32.const 7 call $step drop end i32.const 1)"],
    };
    writeln!(text, "global.get $sp local.set $stack {before} loop $go").unwrap();
    text.push_str(&"block ".repeat(blocks));
    text.push_str("\nlocal.get $pc br_table ");
    for block in &table {
        write!(text, "{block} ").unwrap();
    }
    writeln!(text, "{} end", blocks - 1).unwrap();
    for block in 0..blocks {
        step(&mut text, block);
        for _ in 0..random.below(4) {
            code(&mut text, random, table.len(), 0);
        }
        match random.below(4) {
            0 => jump(&mut text, random, table.len()),
            1 => text.push_str("i32.const 0 return\n"),
            _ => {}
        }
        if block + 1 < blocks {
            text.push_str("end\n");
        }
    }
    text.push_str("end ");
    text.push_str(behind);
    (text.replace("GIVE_WAY", give_way), table.len())
}

fn step(text: &mut String, number: usize) {
    writeln!(text, "local.get $x i32.const {number} i32.add call $step GIVE_WAY").unwrap();
}

fn jump(text: &mut String, random: &mut Random, values: usize) {
    let value = match random.below(12) {
        0 => -1,
        1 => i32::MIN,
        2 => 70_000,
        _ => i32::try_from(random.below(values + 1)).unwrap(),
    };
    writeln!(text, "i32.const {value} local.set $pc br $go").unwrap();
}

/// One thing that a basic block does, within as many wasm blocks as `depth` says.
fn code(text: &mut String, random: &mut Random, values: usize, depth: usize) {
    match random.below(if depth < 3 { 8 } else { 5 }) {
        0 => {
            text.push_str("call $choice if\n");
            jump(text, random, values);
            text.push_str("end\n");
        }
        1 => writeln!(text, "local.get $x i32.const {} i32.add local.set $x", random.below(9)).unwrap(),
        // Go's way to call a function from its table, which it keeps in the parameter.
        2 => text.push_str("i32.const 0 local.set $pc i32.const 0 local.get $pc call_indirect (type $go) GIVE_WAY\n"),
        3 => step(text, 100 + random.below(100)),
        // Nobody reads it there.
        4 => writeln!(text, "i32.const {} local.set $pc", random.below(values + 1)).unwrap(),
        5 => {
            text.push_str("call $choice if\n");
            code(text, random, values, depth + 1);
            text.push_str("else\n");
            code(text, random, values, depth + 1);
            text.push_str("end\n");
        }
        6 => {
            text.push_str("block $done loop $again\n");
            code(text, random, values, depth + 2);
            step(text, 50);
            text.push_str("call $choice br_if $again call $choice br_table $done $done $done end end\n");
        }
        _ => {
            text.push_str("i32.const 3 call $choice if (param i32) (result i32)\n");
            code(text, random, values, depth + 1);
            text.push_str("i32.const 1 i32.add else i32.const 2 i32.add end drop\n");
        }
    }
}

/// What a function returned, unless it trapped, the hash of what it did until then, and the steps that it did not.
fn run(engine: &Engine, module: &Module, pc: i32) -> (Option<i32>, i64, i32) {
    let mut store = Store::new(engine, ());
    store.set_epoch_deadline(1);
    let instance = Instance::new(&mut store, module, &[]).expect("an instance");
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").expect("a function");
    let result = run.call(&mut store, pc).ok();
    let mut global = |name| instance.get_global(&mut store, name).expect("a global").get(&mut store);
    (result, global("trace").unwrap_i64(), global("left").unwrap_i32())
}

#[test]
fn a_function_does_the_same_from_every_basic_block_on() {
    let engine = Engine::new(&crate::shared_config()).expect("an engine");
    let (mut rewritten, mut steps) = (0, 0);
    for seed in 0..300 {
        let (text, values) = function(&mut Random(seed));
        let Some(direct) = direct(&text) else { continue };
        rewritten += 1;
        let [before, after] = [module(&text), direct].map(|it| Module::new(&engine, it).expect("a module"));
        let values = i32::try_from(values).unwrap();
        for pc in (0..values + 2).chain([-1, i32::MIN, i32::MAX]) {
            let (expected, found) = (run(&engine, &before, pc), run(&engine, &after, pc));
            assert_eq!(expected, found, "seed {seed}, from {pc} on, of {text}");
            steps += STEPS - expected.2;
        }
    }
    assert!(rewritten > 200, "{rewritten} functions were rewritten");
    assert!(steps > 20_000, "they did {steps} steps");
}
