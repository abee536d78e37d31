//! What a module is: its metadata, its imports and its exports.

use std::fmt::Write as _;

use portcullis_contract::{Digest, clean};
use serde_json::{Value, json};
use wasmparser::{Parser, Payload};

use super::metadata::{Metadata, SECTION};

/// Most imports and exports that are kept. No policy has as many.
const MOST: usize = 10_000;
/// Longest text of a module that is shown, in bytes.
const LONGEST: usize = 500;

/// What the metadata of a module declares: the host capabilities that it needs, and the kinds of objects that it reads.
///
/// # Errors
/// When it is not a module.
pub(crate) fn declared(module: &[u8]) -> anyhow::Result<(Vec<String>, Vec<serde_json::Value>)> {
    let metadata = Inspected::of(module)?.metadata.unwrap_or_default();
    Ok((metadata.capabilities(), metadata.context_aware_resources))
}

/// A module that was looked at.
#[derive(Debug)]
pub(super) struct Inspected {
    bytes: usize,
    pub(super) metadata: Option<Metadata>,
    /// The module and the name of each import.
    imports: Vec<(String, String)>,
    exports: Vec<String>,
}

impl Inspected {
    /// Reads the bytes of a module; it is not run.
    pub(super) fn of(bytes: &[u8]) -> anyhow::Result<Self> {
        anyhow::ensure!(bytes.starts_with(b"\0asm"), "the bytes are not those of a WebAssembly module");
        let mut inspected = Self { bytes: bytes.len(), metadata: None, imports: Vec::new(), exports: Vec::new() };
        for payload in Parser::new(0).parse_all(bytes) {
            match payload? {
                Payload::Version { encoding, .. } => {
                    anyhow::ensure!(
                        encoding == wasmparser::Encoding::Module,
                        "it is a WebAssembly component, and a policy is a core module"
                    );
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports().take(MOST) {
                        let import = import?;
                        inspected.imports.push((clean(import.module, LONGEST), clean(import.name, LONGEST)));
                    }
                }
                Payload::ExportSection(section) => {
                    for export in section.into_iter().take(MOST) {
                        inspected.exports.push(clean(export?.name, LONGEST));
                    }
                }
                Payload::CustomSection(section) if section.name() == SECTION && inspected.metadata.is_none() => {
                    let metadata = serde_json::from_slice(section.data());
                    inspected.metadata =
                        Some(metadata.map_err(|error| anyhow::anyhow!("the metadata cannot be read: {error}"))?);
                }
                _ => {}
            }
        }
        Ok(inspected)
    }

    /// For people.
    pub(super) fn text(&self, module: &str, digest: &Digest, manifest: Option<&Digest>) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            writeln!(text, "{:<18}{}", format!("{name}:"), clean(value, LONGEST))
                .expect("writing to a String never fails");
        };
        line("Module", module);
        line("Digest", &digest.to_string());
        if let Some(manifest) = manifest {
            line("Manifest", &manifest.to_string());
        }
        line("Size", &format!("{} bytes", self.bytes));
        match &self.metadata {
            None => line("Metadata", "none"),
            Some(metadata) => {
                for (name, annotation) in [
                    ("Title", "title"),
                    ("Version", "version"),
                    ("Description", "description"),
                    ("Author", "author"),
                    ("Licence", "license"),
                    ("Source", "source"),
                    ("Severity", "severity"),
                    ("Category", "category"),
                ] {
                    if let Some(value) = metadata.annotation(annotation) {
                        line(name, value);
                    }
                }
                line("Execution mode", metadata.execution_mode.as_deref().unwrap_or("kubewarden-wapc"));
                line("Protocol version", metadata.protocol_version.as_deref().unwrap_or("none"));
                line("Mutating", if metadata.mutating { "yes" } else { "no" });
                line("Minimum host", metadata.minimum_kubewarden_version.as_deref().unwrap_or("none"));
                line("Reads", &joined(metadata.context_aware_resources.iter().map(kind)));
                line(
                    "Host calls",
                    &match &metadata.host_capabilities {
                        Some(capabilities) => joined(capabilities.iter().cloned()),
                        None => "not declared (older metadata)".to_owned(),
                    },
                );
                for rule in &metadata.rules {
                    line("Rule", &rule_text(rule));
                }
            }
        }
        line("Imports", &joined(self.imports.iter().map(|(module, name)| format!("{module}.{name}"))));
        line("Exports", &joined(self.exports.iter().cloned()));
        text
    }

    /// For programs.
    pub(super) fn json(&self, module: &str, digest: &Digest, manifest: Option<&Digest>) -> Value {
        let imports = self.imports.iter().map(|(module, name)| json!({"module": module, "name": name}));
        json!({
            "module": module,
            "digest": digest,
            "manifestDigest": manifest,
            "bytes": self.bytes,
            "metadata": self.metadata,
            "imports": imports.collect::<Vec<_>>(),
            "exports": self.exports,
        })
    }
}

fn joined(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

fn kind(resource: &Value) -> String {
    let field = |name: &str| resource[name].as_str().unwrap_or("?").to_owned();
    format!("{}/{}", field("apiVersion"), field("kind"))
}

fn rule_text(rule: &Value) -> String {
    let list = |name: &str| {
        let items = rule[name].as_array().into_iter().flatten().filter_map(Value::as_str);
        items.map(|item| if item.is_empty() { "core" } else { item }).collect::<Vec<_>>().join(",")
    };
    format!("{} of {}/{} {}", list("operations"), list("apiGroups"), list("apiVersions"), list("resources"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty module with this custom section.
    fn module(metadata: &str) -> Vec<u8> {
        let name = SECTION.as_bytes();
        let length = 1 + name.len() + metadata.len();
        assert!(length < 128, "one byte tells the length");
        let mut bytes = b"\0asm\x01\0\0\0\0".to_vec();
        bytes.push(u8::try_from(length).expect("it is short"));
        bytes.push(u8::try_from(name.len()).expect("it is short"));
        bytes.extend(name);
        bytes.extend(metadata.as_bytes());
        bytes
    }

    #[test]
    fn a_module_tells_what_it_is() {
        let metadata = r#"{"rules":[],"mutating":true,"protocolVersion":"v1"}"#;
        let inspected = Inspected::of(&module(metadata)).expect("a module");
        let text = inspected.text("a.wasm", &Digest::of(b""), None);
        assert!(text.contains("Mutating:         yes\n") && text.contains("Protocol version: v1\n"), "{text}");
        let json = inspected.json("a.wasm", &Digest::of(b""), None);
        assert_eq!(json["metadata"]["mutating"], true);
        assert!(text.contains("Host calls:       not declared (older metadata)\n"), "{text}");
        let told = Inspected::of(&module(r#"{"rules":[],"hostCapabilities":[]}"#)).expect("a module");
        assert!(told.text("a.wasm", &Digest::of(b""), None).contains("Host calls:       none\n"));
    }

    #[test]
    fn what_is_no_module_is_said() {
        for bytes in [&b"<html>"[..], b"\0asm", &module("{"), b"\0asm\x0d\0\x01\0"] {
            Inspected::of(bytes).expect_err("no module");
        }
    }

    #[test]
    fn rules_read_like_sentences() {
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE", "UPDATE"]});
        assert_eq!(rule_text(&rule), "CREATE,UPDATE of core/v1 pods");
    }
}
