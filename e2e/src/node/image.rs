//! An image of one static program, made without a container engine: an archive as `docker save` writes it.

use std::fs;
use std::path::Path;

use portcullis_contract::Digest;
use serde_json::json;

use crate::Error;

/// The image with the program as its only file and entry point, which gets these arguments unless a pod says otherwise.
pub(super) fn of_program(reference: &str, program: &Path, args: &[&str]) -> Result<Vec<u8>, Error> {
    let content = fs::read(program).map_err(Error::file("read", program))?;
    let name = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let layer = archive(&[(&name, &content, 0o755)]);
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": { "Entrypoint": [format!("/{name}")], "Cmd": args, "User": "65534:65534" },
        "rootfs": { "type": "layers", "diff_ids": [Digest::of(&layer)] },
    });
    let manifest = json!([{ "Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"] }]);
    let (config, manifest) = (config.to_string(), manifest.to_string());
    let files = [("config.json", config.as_bytes()), ("layer.tar", &layer[..]), ("manifest.json", manifest.as_bytes())];
    Ok(archive(&files.map(|(name, content)| (name, content, 0o644))))
}

/// A tar archive of these files, given by name, content and mode.
fn archive(files: &[(&str, &[u8], u32)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content, mode) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        header.set_mtime(0);
        builder.append_data(&mut header, name, *content).expect("writing to memory does not fail");
    }
    builder.into_inner().expect("writing to memory does not fail")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn an_image_has_a_manifest_a_configuration_and_a_layer() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("pod");
        fs::write(&program, "program").unwrap();
        let image = of_program("localhost/a:1", &program, &["pause"]).unwrap();
        let mut found = std::collections::BTreeMap::new();
        for entry in tar::Archive::new(&image[..]).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            found.insert(entry.path().unwrap().display().to_string(), content);
        }
        let config: serde_json::Value = serde_json::from_slice(&found["config.json"]).unwrap();
        let digest: String = Sha256::digest(&found["layer.tar"]).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{digest}"));
        assert_eq!(config["config"]["Entrypoint"][0], "/pod");
        let manifest: serde_json::Value = serde_json::from_slice(&found["manifest.json"]).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], "localhost/a:1");
    }
}
