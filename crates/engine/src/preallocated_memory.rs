//! Gives modules that grow their memory a first part of that growth from the start.
//!
//! Allocators of most guests take each block of pages by `memory.grow`. In wasmtime's pool that makes pages accessible, and the end of the
//! instance makes them inaccessible again: two changes of page protection a call, which interrupt every core that runs the evaluator. A
//! rewritten module declares [`PAGES`] pages from the start. It keeps the size that it would have in a global of its own, by which it answers
//! `memory.size` and `memory.grow`, and grows for real once it needs more than is there.
//!
//! A guest that stays within its memory cannot see a difference: sizes, limits, results of `memory.grow` and what new pages hold are as
//! before. A guest that goes beyond its size but not beyond [`PAGES`] reads and writes its own memory where it would have trapped. That
//! concerns nobody else, since the pages are of its instance alone and are cleared with it.

use std::convert::Infallible;

use wasm_encoder::reencode::{self, Reencode, utils};
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, Function, FunctionSection, GlobalSection, GlobalType, Instruction, MemoryType,
    Module, TypeSection, ValType,
};
use wasmparser::{
    CodeSectionReader, DataKind, DataSectionReader, FunctionSectionReader, GlobalSectionReader, Operator, Parser,
    Payload, TypeRef, TypeSectionReader,
};

use crate::own_memory::is_common;

/// The number of pages that the memory has from the start: 1.75 MiB, which is enough for a guest with a stack of 1 MiB and a review of some
/// kilobytes. With the memory that the chart gives the evaluator, an instance may use 22 pages without asking, and takes a step of the shared
/// memory for the others.
const PAGES: u32 = 28;

/// The number of pages that a command in Go adds to its data before it reads a review of some kilobytes: its heap, and what describes it.
const GO_HEAP: u32 = 16;

/// Go takes its heap in parts of so many pages, each at a multiple of them (since Go 1.26, `heapArenaBytes` in its `runtime/malloc.go`).
const GO_PART: u32 = 8;

/// The custom section by which a module is known as Go's. A module that only has the section gets a memory that it could have declared.
const GO_SECTION: &str = "go:buildid";

/// A module whose memory has [`PAGES`] pages from the start, or with a heap for Go if Go compiled it, or as many as it may have at most. `None`
/// for a module that does not grow its memory or has that many pages already, and for unusual ones: those without a memory of their own, with
/// several memories or none of the common kind, without globals, or whose data would not fit into the memory as declared.
///
/// The module must be valid.
pub(crate) fn with_preallocated_memory(module: &[u8]) -> Option<Vec<u8>> {
    let mut rewriting = Rewriting::of(module)?;
    let mut rewritten = Module::new();
    rewriting.parse_core_module(&mut rewritten, Parser::new(0), module).ok()?;
    Some(rewritten.finish())
}

/// How a module is rewritten: what is added has the index behind the last one of its kind, so that no other index moves.
struct Rewriting {
    /// Pages of the memory, as declared and from now on.
    declared: u32,
    preallocated: u32,
    /// The type of `memory.grow`, the function that takes its place, and the global with the size in pages.
    grow_type: u32,
    grow: u32,
    size: u32,
}

impl Rewriting {
    fn of(module: &[u8]) -> Option<Self> {
        let (mut types, mut functions, mut globals) = (0, 0, 0);
        let (mut has_globals, mut grows, mut is_go, mut memory) = (false, false, false, None);
        for payload in Parser::new(0).parse_all(module) {
            match payload.ok()? {
                Payload::TypeSection(reader) => {
                    for group in reader {
                        types += u32::try_from(group.ok()?.types().len()).ok()?;
                    }
                }
                Payload::ImportSection(reader) => {
                    for import in reader.into_imports() {
                        match import.ok()?.ty {
                            TypeRef::Func(_) => functions += 1,
                            TypeRef::Global(_) => globals += 1,
                            _ => return None,
                        }
                    }
                }
                Payload::FunctionSection(reader) => functions += reader.count(),
                Payload::GlobalSection(reader) => {
                    has_globals = true;
                    globals += reader.count();
                }
                Payload::MemorySection(reader) => {
                    let mut memories = reader.into_iter();
                    let (Some(Ok(found)), None) = (memories.next(), memories.next()) else { return None };
                    if !is_common(&found) {
                        return None;
                    }
                    memory = Some(found);
                }
                Payload::CodeSectionEntry(body) => {
                    let mut operators = body.get_operators_reader().ok()?;
                    while !grows && !operators.eof() {
                        grows = matches!(operators.read().ok()?, Operator::MemoryGrow { .. });
                    }
                }
                Payload::CustomSection(section) => is_go |= section.name() == GO_SECTION,
                Payload::DataSection(reader) if !fits(&reader, memory?.initial)? => return None,
                _ => {}
            }
        }
        let memory = memory.filter(|_| grows && has_globals)?;
        let declared = u32::try_from(memory.initial).ok()?;
        let wanted = if is_go { with_go_heap(declared)? } else { PAGES };
        let preallocated = memory.maximum.map_or(wanted, |most| wanted.min(most.try_into().unwrap_or(wanted)));
        (declared < preallocated).then_some(Self {
            declared,
            preallocated,
            grow_type: types,
            grow: functions,
            size: globals,
        })
    }

    /// The function that takes the place of `memory.grow`: it takes a number of pages, and returns the size before, or -1.
    fn grow(&self) -> Function {
        let [delta, old, room] = [0, 1, 2];
        let preallocated = self.preallocated.cast_signed();
        let mut body = Function::new([(2, ValType::I32)]);
        let mut code = body.instructions();
        // The pages that are there and not counted yet.
        code.global_get(self.size).local_set(old);
        code.i32_const(preallocated).local_get(old).i32_sub();
        code.i32_const(0);
        code.local_get(old).i32_const(preallocated).i32_lt_u();
        code.select().local_set(room);
        // Those beyond are asked for.
        code.local_get(delta).local_get(room).i32_gt_u().if_(BlockType::Empty);
        code.local_get(delta).local_get(room).i32_sub().memory_grow(0);
        code.i32_const(-1).i32_eq().if_(BlockType::Empty);
        code.i32_const(-1).return_();
        code.end();
        code.end();
        code.local_get(old).local_get(delta).i32_add().global_set(self.size);
        code.local_get(old).end();
        body
    }
}

/// The number of pages that a command in Go has once it reads its input, where it declares so many. `None` if no memory has that many.
fn with_go_heap(declared: u32) -> Option<u32> {
    declared.checked_add(GO_HEAP)?.checked_next_multiple_of(GO_PART).filter(|pages| *pages <= 1 << 16)
}

/// Whether all data is placed within a memory of this many pages, at offsets that are known. Otherwise the instance may not start, and must
/// not start with more pages either.
fn fits(data: &DataSectionReader<'_>, pages: u64) -> Option<bool> {
    for segment in data.clone() {
        let segment = segment.ok()?;
        let DataKind::Active { offset_expr, .. } = segment.kind else { continue };
        let mut offset = offset_expr.get_operators_reader();
        // A constant may be the first of several instructions.
        let (Operator::I32Const { value }, Operator::End) = (offset.read().ok()?, offset.read().ok()?) else {
            return Some(false);
        };
        let end = u64::from(value.cast_unsigned()) + u64::try_from(segment.data.len()).ok()?;
        if end > pages << 16 {
            return Some(false);
        }
    }
    Some(true)
}

type Result<T> = std::result::Result<T, reencode::Error<Infallible>>;

impl Reencode for Rewriting {
    type Error = Infallible;

    fn parse_type_section(&mut self, types: &mut TypeSection, section: TypeSectionReader<'_>) -> Result<()> {
        utils::parse_type_section(self, types, section)?;
        types.ty().function([ValType::I32], [ValType::I32]);
        Ok(())
    }

    fn parse_function_section(
        &mut self,
        functions: &mut FunctionSection,
        section: FunctionSectionReader<'_>,
    ) -> Result<()> {
        utils::parse_function_section(self, functions, section)?;
        functions.function(self.grow_type);
        Ok(())
    }

    fn memory_type(&mut self, memory: wasmparser::MemoryType) -> Result<MemoryType> {
        Ok(MemoryType { minimum: self.preallocated.into(), ..utils::memory_type(self, memory) })
    }

    fn parse_global_section(&mut self, globals: &mut GlobalSection, section: GlobalSectionReader<'_>) -> Result<()> {
        utils::parse_global_section(self, globals, section)?;
        let size = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
        globals.global(size, &ConstExpr::i32_const(self.declared.cast_signed()));
        Ok(())
    }

    fn parse_code_section(&mut self, code: &mut CodeSection, section: CodeSectionReader<'_>) -> Result<()> {
        utils::parse_code_section(self, code, section)?;
        code.function(&self.grow());
        Ok(())
    }

    fn instruction<'a>(&mut self, operator: Operator<'a>) -> Result<Instruction<'a>> {
        match operator {
            Operator::MemorySize { mem: 0 } => Ok(Instruction::GlobalGet(self.size)),
            Operator::MemoryGrow { mem: 0 } => Ok(Instruction::Call(self.grow)),
            other => utils::instruction(self, other),
        }
    }
}

#[cfg(test)]
mod tests {
    use wasmparser::Validator;

    use super::*;

    const GROWS: &str = r#"(global $first (mut i32) (i32.const 7))
        (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
        (func (export "size") (result i32) (memory.size))
        (func (export "first") (result i32) (global.get $first))
        (func (export "read") (param i32) (result i32) (i32.load8_u (local.get 0)))
        (func (export "write") (param i32 i32) (i32.store8 (local.get 0) (local.get 1)))"#;

    fn module(text: &str) -> Vec<u8> {
        let module = wat::parse_str(format!("(module {text})")).expect("a module");
        Validator::new_with_features(crate::features()).validate_all(&module).expect("valid");
        module
    }

    fn rewritten(text: &str) -> Option<Vec<u8>> {
        let rewritten = with_preallocated_memory(&module(text))?;
        Validator::new_with_features(crate::features()).validate_all(&rewritten).expect("valid still");
        Some(rewritten)
    }

    #[test]
    fn modules_that_do_not_grow_have_enough_or_are_unusual_stay_as_they_are() {
        let large = format!("(memory {PAGES}) {GROWS}");
        for text in [
            "",
            "(memory 1) (global i32 (i32.const 0)) (func (export \"size\") (result i32) (memory.size))",
            "(memory 1) (func (export \"grow\") (param i32) (result i32) (memory.grow (local.get 0)))",
            &large,
            &format!("(memory 1 1) {GROWS}"),
            &format!("(memory 1) (memory 1) {GROWS}"),
            &format!(r#"(import "env" "memory" (memory 1)) {GROWS}"#),
            &format!(r#"(import "env" "table" (table 1 funcref)) (memory 1) {GROWS}"#),
            &format!(r#"(memory 1) (data (i32.const 65534) "abc") {GROWS}"#),
            &format!(r#"(memory 1) (data (offset (i32.add (i32.const 0) (i32.const 65534))) "abc") {GROWS}"#),
            &format!(r#"(import "env" "base" (global $base i32)) (memory 1) (data (global.get $base) "abc") {GROWS}"#),
        ] {
            assert_eq!(rewritten(text), None, "{text}");
        }
    }

    #[test]
    fn a_module_of_go_has_its_heap_from_the_start() {
        let pages = |declared: &str, is_go: bool| {
            let section = if is_go { r#"(@custom "go:buildid" "of a build")"# } else { "" };
            let rewriting = Rewriting::of(&module(&format!("{section} (memory {declared}) {GROWS}")))?;
            Some((rewriting.declared, rewriting.preallocated))
        };
        assert_eq!(pages("43", true), Some((43, 64)));
        assert_eq!(pages("48", true), Some((48, 64)));
        assert_eq!(pages("49", true), Some((49, 72)));
        assert_eq!(pages("43 50", true), Some((43, 50)), "no more than it may have");
        assert_eq!(pages("65521", true), None, "no more than there can be");
        assert_eq!(pages("43", false), None);
    }

    #[test]
    fn what_is_no_module_stays_as_it_is() {
        assert_eq!(with_preallocated_memory(b"no module"), None);
        let whole = module(&format!("(memory 1) {GROWS}"));
        for end in 0..whole.len() {
            // The compiler says what is wrong with it.
            let _ = with_preallocated_memory(&whole[..end]);
        }
    }

    #[cfg(feature = "run")]
    mod at_run_time {
        use wasmtime::{Engine, Instance, Module, Store, StoreLimits, StoreLimitsBuilder};

        use super::*;

        /// A guest, and the most pages that its host lets it have.
        struct Guest {
            store: Store<StoreLimits>,
            instance: Instance,
        }

        impl Guest {
            fn new(module: &[u8], most: usize) -> Self {
                let engine = Engine::new(&crate::shared_config()).expect("an engine");
                let module = Module::new(&engine, module).expect("a module");
                let mut store = Store::new(&engine, StoreLimitsBuilder::new().memory_size(most << 16).build());
                store.limiter(|limits| limits);
                store.set_epoch_deadline(1);
                let instance = Instance::new(&mut store, &module, &[]).expect("an instance");
                Self { store, instance }
            }

            fn call(&mut self, name: &str, args: &[i32]) -> Option<i32> {
                let function = self.instance.get_func(&mut self.store, name).expect("a function");
                let args: Vec<_> = args.iter().map(|arg| wasmtime::Val::I32(*arg)).collect();
                let mut results = vec![wasmtime::Val::I32(0); function.ty(&self.store).results().len()];
                function.call(&mut self.store, &args, &mut results).ok()?;
                Some(results.first().map_or(0, wasmtime::Val::unwrap_i32))
            }

            /// Pages that are accessible.
            fn pages(&mut self) -> u64 {
                self.instance.get_memory(&mut self.store, "memory").expect("a memory").size(&self.store)
            }
        }

        /// Both must give the same results for the same calls, whatever limits the memory: nothing, the module or the host.
        #[test]
        fn a_guest_sees_the_memory_that_it_asked_for() {
            for (limits, most) in [("2", 100), ("2 40", 100), ("2 20", 100), ("0", 100), ("27", 35), ("2", 30)] {
                let text = format!(r#"(memory (export "memory") {limits}) (data (i32.const 0) "") {GROWS}"#);
                let rewritten = rewritten(&text).expect("rewritten");
                for seed in 0..50_u64 {
                    let mut random = seed;
                    let mut next = move |below: u64| {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        i32::try_from((random >> 33) % below).unwrap()
                    };
                    let (mut before, mut after) = (Guest::new(&module(&text), most), Guest::new(&rewritten, most));
                    for step in 0..30 {
                        let delta = [0, 1, next(4), next(20), -1, i32::MIN, 65_536][usize::try_from(next(7)).unwrap()];
                        let mut both = |name: &str, args: &[i32]| {
                            let results = (before.call(name, args), after.call(name, args));
                            assert_eq!(results.0, results.1, "{limits}, {most}, {seed}, {step}: {name} {args:?}");
                            results.0.unwrap()
                        };
                        both("grow", &[delta]);
                        assert_eq!(both("first", &[]), 7);
                        let bytes = u64::from(both("size", &[]).cast_unsigned()) << 16;
                        if bytes > 0 {
                            let (address, value) = (next(bytes), next(256));
                            both("read", &[address]);
                            both("write", &[address, value]);
                            both("read", &[i32::try_from(bytes - 1).unwrap()]);
                        }
                    }
                }
            }
        }

        #[test]
        fn growth_within_the_first_pages_changes_nothing_of_the_memory() {
            let rewritten = rewritten(&format!(r#"(memory (export "memory") 2) {GROWS}"#)).expect("rewritten");
            let mut guest = Guest::new(&rewritten, 100);
            assert_eq!((guest.call("size", &[]), guest.pages()), (Some(2), PAGES.into()));
            assert_eq!((guest.call("grow", &[26]), guest.pages()), (Some(2), PAGES.into()));
            assert_eq!((guest.call("grow", &[1]), guest.pages()), (Some(28), u64::from(PAGES) + 1));
            assert_eq!(guest.call("size", &[]), Some(29));
        }

        #[test]
        fn beyond_all_that_is_there_is_a_trap_as_before() {
            let rewritten = rewritten(&format!(r#"(memory (export "memory") 2) {GROWS}"#)).expect("rewritten");
            let mut guest = Guest::new(&rewritten, 100);
            assert_eq!(guest.call("read", &[(PAGES << 16).cast_signed()]), None);
        }
    }
}
