//! Gives modules that import their memory from the host a memory of their own.
//!
//! Policies in Rego import `env.memory`. A memory that the host makes for an instance never comes from wasmtime's pool: each evaluation would
//! map, protect and unmap one. A memory that the module itself declares comes warm from the pool. Nothing else of the module changes, and no
//! index moves, because the import is memory 0 and so is the memory that replaces it.

use wasm_encoder::{
    EntityType, ExportKind, ExportSection, ImportSection, MemorySection, MemoryType, Module, RawSection, SectionId,
};
use wasmparser::{ExportSectionReader, ExternalKind, ImportSectionReader, Parser, Payload, TypeRef};

/// Module and name of the import. The export that replaces it has the same name.
const MODULE: &str = "env";
const MEMORY: &str = "memory";
/// An export that every policy compiled by OPA has, and no other module.
const REGO: &str = "opa_eval_ctx_new";
/// The least number of pages that the memory has from the start, unless the module allows fewer: enough for a small request. Growing a
/// memory during a call costs two changes of page protection, while pages that are not written cost nothing.
const LEAST_PAGES: u64 = 32;
/// Sections that come after the memories, in the order of the specification.
const AFTER_MEMORIES: [u8; 8] = [
    SectionId::Tag as u8,
    SectionId::Global as u8,
    SectionId::Export as u8,
    SectionId::Start as u8,
    SectionId::Element as u8,
    SectionId::DataCount as u8,
    SectionId::Code as u8,
    SectionId::Data as u8,
];

/// A policy in Rego with a memory of its own, exported as `memory`, instead of the import `env.memory`. `None` for all other modules, and for
/// modules that are not as OPA makes them: with a second memory or one of another kind, with imports other than functions, or with an export
/// `memory` that is something else.
///
/// The module must be valid.
pub(crate) fn with_own_memory(module: &[u8]) -> Option<Vec<u8>> {
    let mut memory = None;
    let mut rewritten = Module::new();
    let (mut is_placed, mut is_rego) = (false, false);
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.ok()?;
        let Some((id, range)) = payload.as_section() else { continue };
        if !is_placed && AFTER_MEMORIES.contains(&id) {
            rewritten.section(MemorySection::new().memory(memory?));
            is_placed = true;
        }
        match payload {
            Payload::ImportSection(reader) => {
                let (imports, found) = without_memory(reader)?;
                memory = Some(found);
                rewritten.section(&imports);
            }
            Payload::MemorySection(_) => return None,
            Payload::ExportSection(reader) => {
                rewritten.section(&with_memory(reader)?);
                is_rego = true;
            }
            _ => {
                rewritten.section(&RawSection { id, data: module.get(range)? });
            }
        }
    }
    (is_placed && is_rego).then(|| rewritten.finish())
}

/// The imports without the memory, and the type of that memory.
fn without_memory(reader: ImportSectionReader<'_>) -> Option<(ImportSection, MemoryType)> {
    let (mut imports, mut memory) = (ImportSection::new(), None);
    for import in reader.into_imports() {
        let import = import.ok()?;
        match import.ty {
            TypeRef::Func(index) => {
                imports.import(import.module, import.name, EntityType::Function(index));
            }
            TypeRef::Memory(found) if memory.is_none() && (import.module, import.name) == (MODULE, MEMORY) => {
                if !is_common(&found) {
                    return None;
                }
                let least = LEAST_PAGES.min(found.maximum.unwrap_or(u64::MAX)).max(found.initial);
                memory = Some(MemoryType {
                    minimum: least,
                    maximum: found.maximum,
                    memory64: false,
                    shared: false,
                    page_size_log2: None,
                });
            }
            _ => return None,
        }
    }
    Some((imports, memory?))
}

/// Whether a memory is of the kind that compilers declare: with 32-bit addresses and pages of 64 KiB, and not shared.
pub(crate) fn is_common(memory: &wasmparser::MemoryType) -> bool {
    !memory.memory64 && !memory.shared && memory.page_size_log2.is_none()
}

/// The exports of a policy in Rego, with the memory added. `None` for exports of another module.
fn with_memory(reader: ExportSectionReader<'_>) -> Option<ExportSection> {
    let (mut exports, mut is_exported, mut is_rego) = (ExportSection::new(), false, false);
    for export in reader {
        let export = export.ok()?;
        let kind = match export.kind {
            ExternalKind::Func => ExportKind::Func,
            ExternalKind::Table => ExportKind::Table,
            ExternalKind::Memory => ExportKind::Memory,
            ExternalKind::Global => ExportKind::Global,
            _ => return None,
        };
        if export.name == MEMORY {
            if kind != ExportKind::Memory {
                return None;
            }
            is_exported = true;
        }
        is_rego |= export.name == REGO;
        exports.export(export.name, kind, export.index);
    }
    if !is_exported {
        exports.export(MEMORY, ExportKind::Memory, 0);
    }
    is_rego.then_some(exports)
}

#[cfg(test)]
mod tests {
    use wasmparser::Validator;

    use super::*;

    const REST: &str = r#"(func (export "opa_eval_ctx_new") (result i32) (i32.load (i32.const 1024)))"#;

    fn rewritten(text: &str) -> Option<Vec<u8>> {
        let module = wat::parse_str(format!("(module {text})")).expect("a module");
        let features = crate::features();
        Validator::new_with_features(features).validate_all(&module).expect("valid");
        let rewritten = with_own_memory(&module)?;
        Validator::new_with_features(features).validate_all(&rewritten).expect("valid still");
        Some(rewritten)
    }

    /// The number of pages of a memory: at the start, and at most.
    type Pages = (u64, Option<u64>);

    /// The imports, memories and exports of a module.
    fn shape(module: &[u8]) -> (Vec<String>, Vec<Pages>, Vec<String>) {
        let (mut imports, mut memories, mut exports) = (Vec::new(), Vec::new(), Vec::new());
        for payload in Parser::new(0).parse_all(module) {
            match payload.expect("valid") {
                Payload::ImportSection(reader) => {
                    imports.extend(reader.into_imports().map(|import| import.expect("valid").name.to_owned()));
                }
                Payload::MemorySection(reader) => {
                    let memory = reader.into_iter().map(|memory| memory.expect("valid"));
                    memories.extend(memory.map(|memory| (memory.initial, memory.maximum)));
                }
                Payload::ExportSection(reader) => {
                    exports.extend(reader.into_iter().map(|export| export.expect("valid").name.to_owned()));
                }
                _ => {}
            }
        }
        (imports, memories, exports)
    }

    #[test]
    fn a_policy_in_rego_has_its_own_memory_and_all_else_as_it_was() {
        let text = format!(
            r#"(import "env" "opa_abort" (func $abort (param i32))) (import "env" "memory" (memory 2))
            (table 1 funcref) (global (mut i32) (i32.const 7)) (data (i32.const 1024) "abc") (elem (i32.const 0) $abort) {REST}"#
        );
        let rewritten = rewritten(&text).expect("rewritten");
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(
            shape(&rewritten),
            (names(&["opa_abort"]), vec![(LEAST_PAGES, None)], names(&["opa_eval_ctx_new", "memory"]))
        );
    }

    #[test]
    fn the_memory_keeps_its_limits_and_its_name() {
        for (limits, expected) in [("2 9", (9, Some(9))), ("40", (40, None)), ("0 100", (LEAST_PAGES, Some(100)))] {
            let text = format!(r#"(import "env" "memory" (memory {limits})) (export "memory" (memory 0)) {REST}"#);
            let (_, memories, exports) = shape(&rewritten(&text).expect("rewritten"));
            assert_eq!((memories, exports.len()), (vec![expected], 2), "{limits}");
        }
    }

    #[test]
    fn all_other_modules_stay_as_they_are() {
        for text in [
            "",
            r#"(import "env" "memory" (memory 2))"#,
            r#"(import "env" "memory" (memory 2)) (func (drop (i32.load (i32.const 0))))"#,
            r#"(import "env" "memory" (memory 2)) (func (export "eval"))"#,
            &format!("(memory 1) {REST}"),
            &format!(r#"(import "env" "other" (memory 1)) {REST}"#),
            &format!(r#"(import "env" "memory" (memory 1)) (memory 1) {REST}"#),
            &format!(r#"(import "env" "memory" (memory 1)) (import "env" "memory" (memory 1)) {REST}"#),
            &format!(r#"(import "env" "memory" (memory 1)) (import "env" "g" (global i32)) {REST}"#),
            &format!(r#"(import "env" "memory" (memory 1)) (func (export "memory")) {REST}"#),
        ] {
            assert_eq!(rewritten(text), None, "{text}");
        }
    }
}
