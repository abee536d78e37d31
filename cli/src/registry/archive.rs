//! An OCI image layout as one tar archive: manifests and blobs by digest, and an index with their names.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use anyhow::{Context as _, ensure};
use portcullis_contract::Digest;
use portcullis_process::format_bytes;
use portcullis_registry::oci::{INDEX_TYPE, MANIFEST_TYPE, Manifest};
use serde_json::{Value, json};

/// The annotation with the name of an entry of the index.
const NAME: &str = "org.opencontainers.image.ref.name";
/// Largest file of an archive, in bytes.
const MAX_FILE: u64 = 256 << 20;
/// Most bytes of all files of an archive together, which are kept in memory.
const MAX_FILES: u64 = 2 << 30;
/// Most bytes of headers and padding in an archive.
const MAX_HEADERS: u64 = 64 << 20;

/// Artifacts with their names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Archive {
    /// Name (`host/repository:tag`) to manifest.
    pub(super) artifacts: Vec<(String, Manifest)>,
    /// Configurations and layers.
    pub(super) blobs: BTreeMap<Digest, Vec<u8>>,
}

impl Archive {
    /// Writes the archive. The same content gives the same bytes.
    ///
    /// # Errors
    /// When it cannot be written, or [`Archive::read`] would refuse it for its size; then nothing is written.
    pub(super) fn write(&self, out: impl Write) -> anyhow::Result<()> {
        self.write_within(out, MAX_FILES)
    }

    fn write_within(&self, out: impl Write, most: u64) -> anyhow::Result<()> {
        let entry = |(name, manifest): &(String, Manifest)| {
            json!({
                "mediaType": MANIFEST_TYPE,
                "digest": manifest.digest,
                "size": manifest.bytes.len(),
                "annotations": {NAME: name},
            })
        };
        let manifests: Vec<Value> = self.artifacts.iter().map(entry).collect();
        let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests});
        let index = index.to_string();
        let manifests = self.artifacts.iter().map(|(_, manifest)| (manifest.digest, &manifest.bytes));
        let files: BTreeMap<Digest, &Vec<u8>> =
            manifests.chain(self.blobs.iter().map(|(digest, bytes)| (*digest, bytes))).collect();
        let total = index.len() + files.values().map(|bytes| bytes.len()).sum::<usize>();
        ensure!(
            total as u64 <= most,
            "the artifacts have {}, and an archive may have {}: save them in parts",
            format_bytes(total as u64),
            format_bytes(most)
        );
        let mut tar = tar::Builder::new(out);
        add(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        add(&mut tar, "index.json", index.as_bytes())?;
        for (digest, bytes) in files {
            add(&mut tar, &format!("blobs/sha256/{}", digest.hex()), bytes)?;
        }
        tar.finish()?;
        Ok(())
    }

    /// Reads an archive. Every blob is checked against its digest.
    ///
    /// # Errors
    /// When it is damaged, is no such archive, or is too large.
    pub(super) fn read(input: impl Read) -> anyhow::Result<Self> {
        Self::read_within(input, MAX_FILES, MAX_HEADERS)
    }

    fn read_within(input: impl Read, most: u64, headers: u64) -> anyhow::Result<Self> {
        let mut input = input.take(most + headers);
        let read = Self::read_files(&mut input, most);
        // What is cut off looks damaged.
        ensure!(read.is_ok() || input.limit() > 0, "it is larger than {}", format_bytes(most));
        read
    }

    fn read_files(input: impl Read, most: u64) -> anyhow::Result<Self> {
        let mut archive = tar::Archive::new(input);
        let (mut index, mut blobs) = (None, BTreeMap::new());
        // A sparse file takes few bytes in the archive and many here.
        let mut left = most;
        for entry in archive.entries()? {
            let entry = entry.context("it is not a tar archive, or it is damaged")?;
            let path = entry.path()?.to_string_lossy().into_owned();
            ensure!(entry.size() <= MAX_FILE, "{path} is above the limit of {}", format_bytes(MAX_FILE));
            let mut bytes = Vec::new();
            let name = path.trim_start_matches("./").to_owned();
            let blob =
                name.strip_prefix("blobs/sha256/").and_then(|hex| format!("sha256:{hex}").parse::<Digest>().ok());
            if name != "index.json" && blob.is_none() {
                continue;
            }
            ensure!(entry.size() <= left, "its files are larger than {}", format_bytes(most));
            entry.take(MAX_FILE.min(left)).read_to_end(&mut bytes)?;
            left -= bytes.len() as u64;
            match blob {
                None => index = Some(bytes),
                Some(digest) => {
                    let found = Digest::of(&bytes);
                    ensure!(found == digest, "{path} has the digest {found}");
                    blobs.insert(digest, bytes);
                }
            }
        }
        let index: Value = serde_json::from_slice(&index.context("it has no index.json: is it an OCI image layout?")?)?;
        let mut artifacts = Vec::new();
        for entry in index["manifests"].as_array().into_iter().flatten() {
            let name = entry["annotations"][NAME].as_str().context("an entry of index.json has no name")?;
            let digest: Digest = entry["digest"].as_str().unwrap_or_default().parse()?;
            let bytes = blobs.get(&digest).with_context(|| format!("the manifest of {name} is not in the archive"))?;
            let manifest =
                Manifest::parse(bytes.clone()).map_err(|error| anyhow::anyhow!("{name}: {}", error.message))?;
            artifacts.push((name.to_owned(), manifest));
        }
        for (_, manifest) in &artifacts {
            blobs.remove(&manifest.digest);
        }
        Ok(Self { artifacts, blobs })
    }
}

fn add(tar: &mut tar::Builder<impl Write>, path: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    tar.append_data(&mut header, path, bytes)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> Archive {
        let module = b"module".to_vec();
        let manifest = Manifest::of_module(&module, BTreeMap::new());
        let blobs = [module, b"{}".to_vec()].into_iter().map(|bytes| (Digest::of(&bytes), bytes)).collect();
        Archive { artifacts: vec![("example.com/a:v1".to_owned(), manifest)], blobs }
    }

    fn written(archive: &Archive) -> Vec<u8> {
        let mut bytes = Vec::new();
        archive.write(&mut bytes).expect("writes");
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = written(&archive());
        assert_eq!(Archive::read(&bytes[..]).expect("reads"), archive());
        assert_eq!(bytes, written(&archive()), "the same bytes each time");
    }

    #[test]
    fn what_is_too_large_to_be_read_is_not_written() {
        let bytes = written(&archive());
        let mut out = Vec::new();
        let error = archive().write_within(&mut out, 100).expect_err("too large").to_string();
        assert!(error.contains("save them in parts") && out.is_empty(), "{error}");
        let refused =
            |most, headers| Archive::read_within(&bytes[..], most, headers).expect_err("too large").to_string();
        assert_eq!(refused(100, MAX_HEADERS), "its files are larger than 100B");
        assert_eq!(refused(1024, 0), "it is larger than 1KiB");
        Archive::read_within(&bytes[..], 4096, MAX_HEADERS).expect("it has room");
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let bytes = written(&archive());
        let module = bytes.windows(6).position(|window| window == b"module").expect("the module is there");
        let mut flipped = bytes.clone();
        flipped[module] ^= 1;
        for bytes in [&b""[..], b"no archive", &bytes[..600], &flipped] {
            Archive::read(bytes).expect_err("damaged");
        }
    }
}
