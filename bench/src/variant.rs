//! Modules that do the same but differ in their bytes, since equal modules are stored, copied and mapped only once.

use anyhow::Context as _;
use wasm_encoder::{Encode as _, Module, RawSection};
use wasmparser::{Parser, Payload};

/// The module with one more global, which is never read.
pub(crate) fn variant(module: &[u8], number: u32) -> anyhow::Result<Vec<u8>> {
    let mut varied = Module::new();
    let mut found = false;
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.context("the module cannot be read")?;
        if let Payload::GlobalSection(reader) = &payload {
            let globals = reader.count();
            let range = reader.range();
            // A count may be encoded longer than necessary; the bytes after it begin with the first global.
            let first = reader.clone().into_iter_with_offsets().next().transpose()?.map_or(range.end, |(at, _)| at);
            let mut content = Vec::new();
            (globals + 1).encode(&mut content);
            content.extend_from_slice(&module[first..range.end]);
            // i32, immutable, `i32.const number`, end.
            content.extend([0x7f, 0x00, 0x41]);
            i32::try_from(number)?.encode(&mut content);
            content.push(0x0b);
            varied.section(&RawSection { id: 6, data: &content });
            found = true;
        } else if let Some((id, range)) = payload.as_section() {
            varied.section(&RawSection { id, data: &module[range.start..range.end] });
        }
    }
    anyhow::ensure!(found, "the module has no globals, so no variant of it can be made");
    Ok(varied.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_a_module_with_one_more_global() {
        let module =
            wat::parse_str(r#"(module (global i32 (i32.const 1)) (func (export "f") (result i32) global.get 0))"#);
        let module = module.expect("a module");
        let varied = variant(&module, 300).expect("a variant");
        wasmparser::validate(&varied).expect("valid");
        assert_ne!(varied, variant(&module, 301).expect("another"));
        assert_eq!(varied.len(), module.len() + 6);
    }
}
