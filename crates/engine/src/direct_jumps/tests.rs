use std::fmt::Write as _;

use wasmparser::Validator;

use super::*;

mod generated;

fn module(text: &str) -> Vec<u8> {
    let module = wat::parse_str(format!("(module {text})")).expect("a module");
    Validator::new_with_features(crate::features()).validate_all(&module).expect("valid");
    module
}

fn direct(text: &str) -> Option<Vec<u8>> {
    let direct = with_direct_jumps(&module(text))?;
    Validator::new_with_features(crate::features()).validate_all(&direct).expect("valid still");
    Some(direct)
}

/// A function as Go writes it: it counts down from its argument in a loop whose condition is behind its body, and gives way when a call says so.
const GO: &str = r"(global $sp (mut i32) (i32.const 0))
    (func $wait (param i32) (result i32) (i32.const 0))
    (func (param $pc i32) (result i32) (local $stack i32) (local $left i64)
        (local.set $stack (global.get $sp))
        (block $exit
            (loop $go
                (block $3 (block $2 (block $1 (block $0
                    (br_table $0 $1 $1 $2 $3 (local.get $pc)))
                (local.set $left (i64.const 7))
                (local.set $pc (i32.const 3))
                (br $go))
                (br_if $exit (call $wait (i32.const 0)))
                (local.set $left (i64.sub (local.get $left) (i64.const 1))))
                (if (i64.ne (local.get $left) (i64.const 0))
                    (then
                        (local.set $pc (i32.const 1))
                        (br $go)))
                (local.set $pc (i32.const 4))
                (br $go))
                (return (i32.const 0)))
            unreachable)
        (i32.const 1))";

/// The instructions of the last function, those of the dispatch left out.
fn branches(module: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for payload in Parser::new(0).parse_all(module) {
        if let wasmparser::Payload::CodeSectionEntry(function) = payload.expect("valid") {
            found.clear();
            for operator in function.get_operators_reader().expect("code") {
                let text = format!("{:?}", operator.expect("valid"));
                if text.starts_with("Br") || text.starts_with("Loop") {
                    found.push(text.replace(" { blockty: Empty }", ""));
                }
            }
        }
    }
    found
}

#[test]
fn jumps_lead_where_they_go() {
    let branches = branches(&direct(GO).expect("changed"));
    let plain: Vec<_> = branches.iter().filter(|text| !text.starts_with("BrTable")).map(String::as_str).collect();
    assert_eq!(
        plain,
        [
            // The first basic block, without a table.
            "BrIf { relative_depth: 0 }",
            // Into the loop, whose head sends on to its condition.
            "Br { relative_depth: 0 }",
            "Loop",
            "BrIf { relative_depth: 0 }",
            // The call that gives way.
            "BrIf { relative_depth: 3 }",
            // Back, and on to what follows the loop.
            "Br { relative_depth: 1 }",
            "Br { relative_depth: 1 }",
        ]
    );
    assert_eq!(branches.len() - plain.len(), 2, "a table of the function and one of its loop: {branches:?}");
}

#[test]
fn what_go_does_not_write_stays_as_it_is() {
    for (of_go, other) in [
        // The parameter is used for something else.
        ("(return (i32.const 0))", "(return (local.get $pc))"),
        ("unreachable)\n        (i32.const 1))", "unreachable)\n        (local.get $pc))"),
        ("(local.set $left (i64.const 7))", "(drop (local.tee $pc (i32.const 7)))"),
        // A jump to a basic block that is not known beforehand.
        ("(local.set $pc (i32.const 4))", "(local.set $pc (i32.wrap_i64 (local.get $left)))"),
        ("(local.set $pc (i32.const 4))", "(local.set $pc (i32.const 4)) nop"),
        // Another branch to the loop, to a basic block, or out of the function.
        ("(br_if $exit (call $wait (i32.const 0)))", "(br_if $go (call $wait (i32.const 0)))"),
        ("(br_if $exit (call $wait (i32.const 0)))", "(br_if $3 (call $wait (i32.const 0)))"),
        ("(br_if $exit (call $wait (i32.const 0)))", "(br_table $3 $exit (call $wait (i32.const 0)))"),
        ("(return (i32.const 0))", "(br 2 (i32.const 0))"),
        // Basic blocks in another order, or some that are none.
        ("(br_table $0 $1 $1 $2 $3", "(br_table $1 $0 $1 $2 $3"),
        ("(br_table $0 $1 $1 $2 $3", "(br_table $0 $1 $1 $3 $2"),
        ("(br_table $0 $1 $1 $2 $3", "(br_table $0 $1 $1 $2 $3 $exit"),
        ("(br_if $exit (call $wait (i32.const 0)))", "(drop (br_on_null $3 (ref.null func)))"),
        ("(block $1 (block $0", "(block $1 nop (block $0"),
        ("(block $1 (block $0", "(block $1 (drop (block (result i32) (i32.const 1))) (block $0"),
        ("(br_table $0 $1 $1 $2 $3 (local.get $pc))", "nop"),
    ] {
        assert_eq!(GO.matches(of_go).count(), 1, "{of_go}");
        let text = GO.replace(of_go, other);
        assert_eq!(direct(&text), None, "{other}");
    }
    assert_eq!(direct("(func (param i32) (result i32) (local.get 0))"), None);
}

#[test]
fn what_is_no_module_stays_as_it_is() {
    assert_eq!(with_direct_jumps(b"no module"), None);
    let whole = module(GO);
    for end in 0..whole.len() {
        // The compiler says what is wrong with it.
        let _ = with_direct_jumps(&whole[..end]);
    }
}

/// A function with a basic block for each list of jumps.
fn function(jumps: &[Vec<usize>]) -> String {
    let mut text = "(func (param i32) (result i32) loop ".to_owned();
    text.push_str(&"block ".repeat(jumps.len()));
    text.push_str("local.get 0 br_table ");
    for block in 0..jumps.len() {
        write!(text, "{block} ").unwrap();
    }
    text.push_str("end ");
    for (block, to) in jumps.iter().enumerate() {
        for to in to {
            let go = jumps.len() - block;
            write!(text, "i32.const 1 if i32.const {to} local.set 0 br {go} end ").unwrap();
        }
        text.push_str(if block + 1 < jumps.len() { "end " } else { "end i32.const 1)" });
    }
    text
}

#[test]
fn a_function_made_to_have_a_large_artifact_stays_as_it_is() {
    // Each basic block goes back to one that is as far before the middle: loops within loops.
    let nested = |loops: usize| {
        let mut jumps = vec![Vec::new(); 2 * loops];
        for back in 0..loops {
            jumps[2 * loops - 1 - back].push(back);
        }
        function(&jumps)
    };
    assert!(direct(&nested(8)).is_some());
    assert_eq!(direct(&nested(60)), None, "the tables of loops");
    assert_eq!(direct(&nested(5_000)), None, "loops within each other");
}

#[test]
fn large_functions_are_rewritten() {
    let blocks = 40_000;
    let jumps: Vec<Vec<usize>> = (0..blocks)
        .map(|block| if block % 4 == 3 { vec![block - 3, blocks - 1, (block + 9) % blocks] } else { vec![] })
        .collect();
    let forward: Vec<Vec<usize>> = (0..blocks).map(|block| vec![blocks - 1, (block + 100).min(blocks - 1)]).collect();
    for jumps in [jumps, forward] {
        assert!(direct(&function(&jumps)).is_some());
    }
}
