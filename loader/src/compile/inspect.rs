//! Judges a module before any of it is compiled: a pure decision over hostile bytes.

use portcullis_contract::{ExecutionMode, Reason};
use portcullis_engine::INSTANCE_BYTES;
use wasmparser::{ElementItems, ElementKind, Parser, Payload, TypeRef, Validator, WasmFeatures};

use super::{CompileFailure, metadata};
use crate::declared::Declared;

/// A module that may be compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    /// The guest ABI.
    pub execution_mode: ExecutionMode,
    /// What its metadata declares.
    pub declared: Declared,
}

/// Judges a module.
///
/// # Errors
/// `ModuleInvalid` when the bytes are not a module, `ModuleUnsupported` when the module is for another host, `MemoryLimit` when its
/// instances would be too large. The text names the cause.
pub fn inspect(module: &[u8]) -> Result<Inspected, CompileFailure> {
    let invalid = |text: String| CompileFailure::new(Reason::ModuleInvalid, text);
    let unsupported = |text: String| CompileFailure::new(Reason::ModuleUnsupported, text);
    if !module.starts_with(b"\0asm") {
        return Err(invalid(format!("the source gives {} instead of a WebAssembly module", what(module))));
    }
    if Parser::is_component(module) {
        return Err(unsupported(
            "the module is a component; build the policy as a core module (for instance for wasm32-wasip1)".to_owned(),
        ));
    }
    let features = portcullis_engine::features();
    if let Err(error) = validate(module, features) {
        return Err(match proposals(module, features) {
            Some(names) => unsupported(format!("the module needs what this host leaves off: {names}")),
            None => invalid(format!("the module is not valid: {error}")),
        });
    }
    if let Some(text) = InstanceParts::of(module).excess() {
        return Err(CompileFailure::new(Reason::MemoryLimit, text));
    }
    let section = metadata_section(module);
    let execution_mode = metadata::execution_mode(section)?;
    Ok(Inspected { execution_mode, declared: metadata::declared(section) })
}

fn validate(module: &[u8], features: WasmFeatures) -> Result<(), wasmparser::BinaryReaderError> {
    Validator::new_with_features(features).validate_all(module).map(drop)
}

/// What an instance has beside its memory and its tables.
#[derive(Debug, Default)]
struct InstanceParts {
    globals: usize,
    /// Those of the module.
    functions: usize,
    imported: usize,
    /// The places that refer to functions, as each may make a reference to another one: exports, globals, elements of all segments.
    references: usize,
    passive_segments: usize,
    passive_elements: usize,
}

impl InstanceParts {
    /// Those of a module that is valid.
    fn of(module: &[u8]) -> Self {
        let mut parts = Self::default();
        for payload in Parser::new(0).parse_all(module).map_while(Result::ok) {
            match payload {
                Payload::ImportSection(section) => {
                    let imports = section.into_imports().map_while(Result::ok);
                    parts.imported += imports.filter(|import| matches!(import.ty, TypeRef::Func(_))).count();
                }
                Payload::FunctionSection(section) => parts.functions += count(section.count()),
                Payload::GlobalSection(section) => parts.globals += count(section.count()),
                Payload::ExportSection(section) => parts.references += count(section.count()),
                Payload::ElementSection(section) => {
                    for segment in section.into_iter().map_while(Result::ok) {
                        let elements = match segment.items {
                            ElementItems::Functions(items) => count(items.count()),
                            ElementItems::Expressions(_, items) => count(items.count()),
                        };
                        parts.references += elements;
                        if let ElementKind::Passive = segment.kind {
                            parts.passive_segments += 1;
                            parts.passive_elements += elements;
                        }
                    }
                }
                _ => {}
            }
        }
        parts.references += parts.globals;
        parts
    }

    /// What wasmtime 48 allocates for them, in bytes. A function that nothing refers to has no description.
    fn bytes(&self) -> usize {
        const GLOBAL: usize = 16;
        const FUNCTION: usize = 32;
        /// A list, its entry in the list of them, and what an allocation takes.
        const SEGMENT: usize = 64;
        const ELEMENT: usize = 16;
        let described = self.references.min(self.functions + self.imported);
        GLOBAL * self.globals
            + FUNCTION * (self.imported + described)
            + SEGMENT * self.passive_segments
            + ELEMENT * self.passive_elements
    }

    /// The error where they are more than an instance may have.
    fn excess(&self) -> Option<String> {
        let Self { globals, functions, imported, passive_segments, passive_elements, .. } = self;
        (self.bytes() > INSTANCE_BYTES).then(|| {
            format!(
                "the module has {globals} globals, {functions} functions, {imported} imported ones and {passive_elements} elements \
                 in {passive_segments} passive segments, more than one may have: they take {} bytes of each instance, the limit is \
                 {INSTANCE_BYTES}",
                self.bytes()
            )
        })
    }
}

fn count(items: u32) -> usize {
    usize::try_from(items).unwrap_or(usize::MAX)
}

/// The proposals that the module needs to be valid; `None` if it is invalid even with all of them.
fn proposals(module: &[u8], features: WasmFeatures) -> Option<String> {
    let mut needed = WasmFeatures::all();
    validate(module, needed).ok()?;
    for (_, feature) in (WasmFeatures::all() - features).iter_names() {
        if validate(module, needed - feature).is_ok() {
            needed.remove(feature);
        }
    }
    let names: Vec<String> = (needed - features).iter_names().map(|(name, _)| title(name)).collect();
    Some(names.join(", "))
}

/// A proposal's usual name.
fn title(name: &str) -> String {
    match name {
        "MEMORY64" => "64-bit memory".to_owned(),
        "GC" | "GC_TYPES" => "garbage collection".to_owned(),
        "SHARED_EVERYTHING_THREADS" => "shared-everything threads".to_owned(),
        other => other.to_ascii_lowercase().replace('_', " "),
    }
}

/// The content of the first custom section with the metadata's name.
fn metadata_section(module: &[u8]) -> Option<&[u8]> {
    Parser::new(0).parse_all(module).find_map(|payload| match payload {
        Ok(Payload::CustomSection(section)) if section.name() == metadata::SECTION => Some(section.data()),
        _ => None,
    })
}

/// What bytes that are not a module look like.
fn what(bytes: &[u8]) -> &'static str {
    let start = &bytes[..bytes.len().min(512)];
    let text = std::str::from_utf8(start).or_else(|error| std::str::from_utf8(&start[..error.valid_up_to()]));
    let text = text.unwrap_or_default().trim_start();
    if bytes.is_empty() {
        "nothing"
    } else if text.starts_with('<') {
        "a web page"
    } else if text.starts_with(['{', '[']) {
        "a JSON document"
    } else if text.starts_with("(module") || text.starts_with("(component") {
        "WebAssembly text (translate it with wat2wasm or wasm-tools first)"
    } else if start.starts_with(&[0x1f, 0x8b]) {
        "a gzip archive"
    } else {
        "other bytes"
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use wasm_encoder::{CustomSection, Encode as _, Section as _};

    use super::*;

    fn module(wat: &str, metadata: Option<&str>) -> Vec<u8> {
        let mut module = wat::parse_str(wat).expect("a module");
        if let Some(metadata) = metadata {
            let section = CustomSection { name: metadata::SECTION.into(), data: Cow::Borrowed(metadata.as_bytes()) };
            module.push(section.id());
            section.encode(&mut module);
        }
        module
    }

    const V1: Option<&str> = Some(r#"{"protocolVersion":"v1"}"#);

    fn refused(module: &[u8]) -> (Reason, String) {
        let failure = inspect(module).expect_err("refused");
        (failure.reason, failure.message)
    }

    #[test]
    fn a_module_with_metadata_passes() {
        let inspected = inspect(&module("(module)", V1)).expect("passes");
        assert_eq!(inspected.execution_mode, ExecutionMode::KubewardenWapc);
        let wasi = module("(module)", Some(r#"{"executionMode":"wasi"}"#));
        assert_eq!(inspect(&wasi).expect("passes").execution_mode, ExecutionMode::Wasi);
    }

    #[test]
    fn fault_m01_a_web_page_is_named() {
        for (bytes, word) in [
            (&b"<!DOCTYPE html><html>"[..], "web page"),
            (b"{\"error\":1}", "JSON"),
            (b"", "nothing"),
            (b"(module)", "text"),
            (b"\x7fELF\x02\x01", "other bytes"),
            (b"\0as", "other bytes"),
        ] {
            let (reason, text) = refused(bytes);
            assert!(reason == Reason::ModuleInvalid && text.contains(word), "{text}");
        }
    }

    #[test]
    fn fault_m02_a_cut_module_is_invalid_unless_it_ends_with_a_section() {
        let whole = module(r#"(module (func (export "f") (result i32) i32.const 7) (memory 1))"#, V1);
        let header = 8;
        let ends = Parser::new(0).parse_all(&whole).filter_map(|payload| Some(payload.ok()?.as_section()?.1.end));
        let ends: Vec<usize> = ends.chain([header]).collect();
        for end in 0..whole.len() {
            // No panic. A module that is cut at the end of a section is valid, but has no metadata.
            assert!(inspect(&whole[..end]).is_err() || ends.contains(&end), "cut at {end}");
        }
        assert!(ends.len() < 8, "few cuts are let through");
    }

    /// The black-box test of this row has hundreds of them go through compile children. Here nothing is started for each, so that all ten
    /// thousand are tried each time.
    #[test]
    fn fault_m02_ten_thousand_mutants_are_refused_or_compiled() {
        const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
        let whole = module(
            r#"(module (memory (export "memory") 1) (table 2 funcref) (global $g (mut i32) (i32.const 1))
                 (data (i32.const 8) "some text of a policy") (elem (i32.const 0) $f $g)
                 (func $f (param i32) (result i32) (local i64)
                   (block (loop (br_if 1 (i32.eqz (local.get 0))) (br 0))) (i32.load (local.get 0)))
                 (func $g (export "g") (param i32) (result i32)
                   (global.set $g (i32.const 7)) (call_indirect (param i32) (result i32) (local.get 0) (i32.const 1))))"#,
            V1,
        );
        let compiler = portcullis_engine::Compiler::new().expect("a compiler");
        let mut state = SEED;
        let mut below = |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % limit as u64).expect("it is below the limit")
        };
        let mut refused = 0;
        for _ in 0..10_000 {
            let mut mutant = whole.clone();
            if below(3) == 0 {
                mutant.truncate(below(whole.len()));
            } else {
                for _ in 0..=below(8) {
                    mutant[below(whole.len())] ^= 1 << below(8);
                }
            }
            match inspect(&mutant) {
                // No panic. A valid module may still be more than this compiler supports.
                Ok(_) => drop(compiler.compile(&mutant)),
                Err(failure) => {
                    assert!(!failure.reason.class().is_retryable(), "{failure:?}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 5_000, "most mutants are refused: {refused}, seed {SEED:#x}");
    }

    #[test]
    fn fault_m05_proposals_that_are_off_are_named() {
        for (wat, name) in [
            ("(module (memory i64 1))", "64-bit memory"),
            ("(module (memory 1 1 shared))", "threads"),
            ("(module (type (struct (field i32))))", "garbage collection"),
        ] {
            let (reason, text) = refused(&module(wat, V1));
            assert!(reason == Reason::ModuleUnsupported && text.contains(name), "{text}");
        }
        let (reason, text) = refused(&wat::parse_str("(component)").expect("a component"));
        assert!(reason == Reason::ModuleUnsupported && text.contains("component"), "{text}");
    }

    #[test]
    fn what_makes_each_instance_large_is_counted() {
        let with = |parts: &str| module(&format!("(module {parts} (func))"), V1);
        let (global, segment) = ("(global (mut i64) (i64.const 1))", "(elem func 0)");
        let (import, function) = (r#"(import "a" "b" (func))"#, "(func)");
        let list = |count| format!("(elem funcref {})", "(ref.null func)".repeat(count));
        let numbers = |count| (0..count).map(|number| format!("{number} ")).collect::<String>();
        // A table of all functions, as Go makes one.
        let table = |count| {
            let (functions, numbers) = (function.repeat(count), numbers(count));
            format!("(table {count} funcref) {functions} (elem (i32.const 0) func {numbers})")
        };
        for parts in [
            global.repeat(10_000),
            segment.repeat(10_000),
            list(50_000),
            import.repeat(10_000),
            function.repeat(90_000),
            table(40_000),
            // The same function again and again.
            format!("(table 90000 funcref) (elem (i32.const 0) func {})", "0 ".repeat(90_000)),
        ] {
            inspect(&with(&parts)).expect("it passes");
        }
        for (parts, words) in [
            (global.repeat(250_000), "250000 globals"),
            (segment.repeat(99_000), "99000 elements in 99000 passive segments"),
            (list(100_000), "100000 elements in 1 passive segments"),
            (import.repeat(60_000), "60000 imported"),
            (table(60_000), "60001 functions"),
        ] {
            let (reason, text) = refused(&with(&parts));
            assert!(reason == Reason::MemoryLimit && text.contains(words), "no {words:?} in {text}");
        }
    }

    #[test]
    fn what_no_proposal_mends_is_invalid() {
        let mut broken = module("(module (func (result i32) i32.const 1))", V1);
        let at = broken.windows(2).position(|pair| pair == [0x41, 0x01]).expect("the constant");
        broken[at] = 0x42;
        assert_eq!(refused(&broken).0, Reason::ModuleInvalid);
    }

    #[test]
    fn the_first_metadata_section_counts() {
        let mut two = module("(module)", Some(r#"{"executionMode":"wasi"}"#));
        let section = CustomSection { name: metadata::SECTION.into(), data: Cow::Borrowed(b"garbage") };
        two.push(section.id());
        section.encode(&mut two);
        assert_eq!(inspect(&two).expect("passes").execution_mode, ExecutionMode::Wasi);
    }
}
