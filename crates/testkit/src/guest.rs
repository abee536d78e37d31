//! Modules for policies: the misbehaving ones of `guests/wat`, compiled and with metadata, any other WebAssembly text, and the built
//! modules of the examples.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use portcullis_util::lock;
use serde_json::{Value, json};
use wasm_encoder::{CustomSection, Section as _};

/// The guest of a file in `guests/wat`, by its name without `.wat`, as a module with metadata.
///
/// # Panics
/// When there is no such file, or it does not compile.
pub fn guest(name: &str) -> Vec<u8> {
    let mode = if name.starts_with("wasi_") { "wasi" } else { "kubewarden-wapc" };
    let wasm = translate(&text(name), name);
    // A component has no metadata of a policy; it is refused for being a component.
    if name == "component" { wasm } else { with_metadata(wasm, &metadata(mode, name.starts_with("mutates"))) }
}

/// A module from a template of `guests/wat` that answers with these bytes: `answer`, `settings_answer` or `deny_text`; or that asks with them:
/// `fails_without_image`.
///
/// # Panics
/// When there is no such file, or it does not compile.
pub fn guest_with(name: &str, answer: &[u8]) -> Vec<u8> {
    let text = text(name)
        .replace("{{ANSWER}}", &data(answer))
        .replace("{{MESSAGE}}", &String::from_utf8_lossy(answer))
        .replace("{{LEN}}", &answer.len().to_string());
    with_metadata(translate(&text, name), &metadata("kubewarden-wapc", true))
}

/// A Rego policy that calls this builtin of its host with two arguments again and again. A builtin that takes one does not mind the other.
///
/// # Panics
/// When the template does not compile.
pub fn rego_calling(builtin: &str, arguments: [&Value; 2]) -> Vec<u8> {
    let [first, second] = arguments.map(|argument| data(argument.to_string().as_bytes()));
    let text =
        text("opa_builtin").replace("{{BUILTIN}}", builtin).replace("{{FIRST}}", &first).replace("{{SECOND}}", &second);
    with_metadata(translate(&text, "opa_builtin"), &metadata("opa", false))
}

/// A module that denies with this text, and has `bytes` bytes of unused data, which are in the compiled module too.
///
/// # Panics
/// When it does not compile.
pub fn large_module(denial: &str, bytes: usize) -> Vec<u8> {
    static PARTS: Mutex<BTreeMap<(usize, usize), Vec<u8>>> = Mutex::new(BTreeMap::new());
    // Compiling megabytes of text takes a while, so modules whose denials have one length share the result.
    let stand_in = "\u{1}".repeat(denial.len());
    let mut parts = lock(&PARTS);
    let module = parts.entry((denial.len(), bytes)).or_insert_with(|| {
        let deny = text("deny_text").replace("{{MESSAGE}}", &"\\01".repeat(denial.len()));
        let deny = deny.replace("{{LEN}}", &denial.len().to_string());
        let end = deny.rfind(')').expect("a module ends so");
        wat(&format!("{} (data \"{}\"))", &deny[..end], "x".repeat(bytes)))
    });
    let place = module.windows(denial.len()).position(|window| window == stand_in.as_bytes());
    let place = place.expect("the text is in the module");
    let mut module = module.clone();
    module[place..place + denial.len()].copy_from_slice(denial.as_bytes());
    module
}

/// A built module of `examples/modules`, by its name without `.wasm`.
///
/// # Panics
/// When there is no such file.
pub fn example(name: &str) -> Vec<u8> {
    let path = repository().join("examples/modules").join(format!("{name}.wasm"));
    fs::read(&path).unwrap_or_else(|error| panic!("failed to read {}: {error}", path.display()))
}

/// A Rego policy of `guests/modules`, by its name without `.wasm`.
///
/// # Panics
/// When there is no such file.
pub fn rego(name: &str) -> Vec<u8> {
    let path = repository().join("guests/modules").join(format!("{name}.wasm"));
    fs::read(&path).unwrap_or_else(|error| panic!("failed to read {}: {error}", path.display()))
}

/// WebAssembly text as a waPC module with metadata.
///
/// # Panics
/// When it does not compile.
pub fn wat(text: &str) -> Vec<u8> {
    with_metadata(translate(text, "the text"), &metadata("kubewarden-wapc", false))
}

fn text(name: &str) -> String {
    let path = repository().join("guests/wat").join(format!("{name}.wat"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("failed to read {}: {error}", path.display()))
}

/// Bytes as the inside of a string of WebAssembly text.
fn data(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\{byte:02x}")).collect()
}

fn translate(text: &str, name: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap_or_else(|error| panic!("failed to translate {name}: {error}"))
}

fn metadata(mode: &str, mutating: bool) -> Value {
    json!({
        "protocolVersion": "v1", "executionMode": mode, "mutating": mutating,
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
    })
}

fn with_metadata(mut module: Vec<u8>, metadata: &Value) -> Vec<u8> {
    let data = metadata.to_string().into_bytes();
    CustomSection { name: "io.kubewarden.metadata".into(), data: data.into() }.append_to(&mut module);
    module
}

/// The root folder of the repository.
pub fn repository() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).expect("this crate is in a folder of the repository").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_modules() {
        for module in [guest("always_deny"), guest_with("deny_text", b"no"), example("no-privileged")] {
            assert_eq!(&module[..4], b"\0asm");
        }
    }

    #[test]
    fn every_guest_translates() {
        for entry in fs::read_dir(repository().join("guests/wat")).expect("the folder is there").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(name) = name.strip_suffix(".wat") else { continue };
            let module = match name {
                "answer" | "settings_answer" | "fails_without_image" => guest_with(name, b"\"\\\0\xff"),
                "deny_text" => guest_with(name, b"no"),
                "opa_builtin" => rego_calling("sprintf", [&json!("%d"), &json!([1])]),
                _ => guest(name),
            };
            assert_eq!(&module[..4], b"\0asm", "{name}");
        }
    }
}
