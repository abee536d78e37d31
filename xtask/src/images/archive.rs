//! An image as one file that every container engine reads: an OCI image layout with docker's `manifest.json` beside its
//! index, both about the same blobs.
//!
//! Formats: <https://github.com/opencontainers/image-spec> v1.1, and
//! <https://github.com/moby/docker-image-spec> v1.2 for `manifest.json`.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{authorities, layer, time};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The metadata of an image.
pub(super) struct Config<'a> {
    /// Its full reference, `registry/name:tag`.
    pub(super) reference: &'a str,
    /// The architecture as Go names it: `amd64`.
    pub(super) architecture: &'a str,
    /// The program at its root, which is its entry point.
    pub(super) program: &'a str,
    pub(super) user: u32,
    pub(super) group: u32,
    /// Its labels, among them `org.opencontainers.image.*`.
    pub(super) labels: &'a [(String, String)],
    /// Whether its layer has certificate authorities.
    pub(super) has_authorities: bool,
    /// The time of its files, in seconds since 1970.
    pub(super) epoch: u64,
}

/// The archive of an image with this layer. The same input gives the same bytes.
pub(super) fn make(config: &Config<'_>, layer: Vec<u8>) -> Result<Vec<u8>> {
    let layer = Blob::new(LAYER, layer);
    let image = Blob::of_json(CONFIG, &image_config(config, &layer));
    let manifest = Blob::of_json(MANIFEST, &manifest(config, &image, &layer));
    let index = index(config, &manifest).to_string();
    let docker = docker_manifest(config, &image, &layer).to_string();
    let layout = json!({ "imageLayoutVersion": "1.0.0" }).to_string();

    let blobs = [layer, image, manifest].map(|blob| (blob.path(), blob));
    let texts = [("index.json", &index), ("manifest.json", &docker), ("oci-layout", &layout)];
    let mut files: BTreeMap<&str, (u32, &[u8])> = BTreeMap::new();
    files.extend(texts.map(|(path, text)| (path, (0o444, text.as_bytes()))));
    files.extend(blobs.iter().map(|(path, blob)| (path.as_str(), (0o444, &blob.bytes[..]))));
    layer::tar(&files, config.epoch)
}

/// A file that is named by its content.
struct Blob {
    media_type: &'static str,
    /// SHA-256 in hexadecimal digits.
    digest: String,
    bytes: Vec<u8>,
}

impl Blob {
    fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        let digest = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { media_type, digest, bytes }
    }

    fn of_json(media_type: &'static str, value: &Value) -> Self {
        Self::new(media_type, value.to_string().into_bytes())
    }

    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.digest)
    }

    fn name(&self) -> String {
        format!("sha256:{}", self.digest)
    }

    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.name(), "size": self.bytes.len() })
    }
}

fn image_config(config: &Config<'_>, layer: &Blob) -> Value {
    let created = time::rfc3339(config.epoch);
    let mut run = json!({
        "User": format!("{}:{}", config.user, config.group),
        "Entrypoint": [format!("/{}", config.program)],
        "WorkingDir": "/",
        "Labels": map(config.labels),
    });
    if config.has_authorities {
        run["Env"] = json!([format!("SSL_CERT_FILE=/{}", authorities::PATH)]);
    }
    json!({
        "created": created,
        "architecture": config.architecture,
        "os": "linux",
        "config": run,
        // The layer is not compressed, so that its digest is also that of its content.
        "rootfs": { "type": "layers", "diff_ids": [layer.name()] },
        "history": [{ "created": created, "created_by": "cargo xtask images" }],
    })
}

fn manifest(config: &Config<'_>, image: &Blob, layer: &Blob) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": image.descriptor(),
        "layers": [layer.descriptor()],
        "annotations": map(config.labels),
    })
}

fn index(config: &Config<'_>, manifest: &Blob) -> Value {
    let tag = config.reference.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    let mut descriptor = manifest.descriptor();
    descriptor["platform"] = json!({ "architecture": config.architecture, "os": "linux" });
    descriptor["annotations"] = json!({
        // containerd takes the full reference from the first annotation; others use the second.
        "io.containerd.image.name": config.reference,
        "org.opencontainers.image.ref.name": tag,
    });
    json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor] })
}

fn docker_manifest(config: &Config<'_>, image: &Blob, layer: &Blob) -> Value {
    json!([{ "Config": image.path(), "RepoTags": [config.reference], "Layers": [layer.path()] }])
}

fn map(pairs: &[(String, String)]) -> Map<String, Value> {
    pairs.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn labels() -> Vec<(String, String)> {
        vec![("org.opencontainers.image.title".to_owned(), "portcullis-loader".to_owned())]
    }

    fn archive(epoch: u64) -> Vec<u8> {
        let config = Config {
            reference: "localhost/portcullis/loader:0.1.0",
            architecture: "amd64",
            program: "portcullis-loader",
            user: 65531,
            group: 65530,
            labels: &labels(),
            has_authorities: true,
            epoch,
        };
        make(&config, b"a layer".to_vec()).unwrap()
    }

    /// The files of an archive by their paths.
    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(archive);
        let file = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (entry.path().unwrap().display().to_string(), bytes)
        };
        archive.entries().unwrap().map(file).collect()
    }

    fn json_of(files: &BTreeMap<String, Vec<u8>>, path: &str) -> Value {
        serde_json::from_slice(&files[path]).unwrap()
    }

    fn blob(files: &BTreeMap<String, Vec<u8>>, descriptor: &Value) -> Value {
        let digest = descriptor["digest"].as_str().unwrap();
        let bytes = &files[&format!("blobs/{}", digest.replace(':', "/"))];
        assert_eq!(descriptor["size"], bytes.len());
        serde_json::from_slice(bytes).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(bytes).into_owned()))
    }

    #[test]
    fn every_blob_is_named_by_its_content() {
        let files = files(&archive(0));
        let blobs: Vec<_> =
            files.iter().filter_map(|(path, bytes)| Some((path.strip_prefix("blobs/sha256/")?, bytes))).collect();
        assert_eq!(blobs.iter().filter(|(name, _)| !name.is_empty()).count(), 3);
        for (name, bytes) in blobs.into_iter().filter(|(name, _)| !name.is_empty()) {
            assert_eq!(name, Blob::new(LAYER, bytes.clone()).digest);
        }
    }

    #[test]
    fn the_index_leads_to_manifest_config_and_layer() {
        let files = files(&archive(0));
        assert_eq!(json_of(&files, "oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }));
        let index = json_of(&files, "index.json");
        let entry = &index["manifests"][0];
        assert_eq!(entry["annotations"]["io.containerd.image.name"], "localhost/portcullis/loader:0.1.0");
        assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], "0.1.0");
        let manifest = blob(&files, entry);
        assert_eq!(manifest["layers"].as_array().unwrap().len(), 1);
        assert_eq!(blob(&files, &manifest["layers"][0]), "a layer");
        let config = blob(&files, &manifest["config"]);
        assert_eq!(
            config,
            json!({
                "created": "1970-01-01T00:00:00Z",
                "architecture": "amd64",
                "os": "linux",
                "config": {
                    "User": "65531:65530",
                    "Entrypoint": ["/portcullis-loader"],
                    "WorkingDir": "/",
                    "Labels": { "org.opencontainers.image.title": "portcullis-loader" },
                    "Env": ["SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"],
                },
                "rootfs": { "type": "layers", "diff_ids": [manifest["layers"][0]["digest"]] },
                "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "cargo xtask images" }],
            }),
        );
    }

    #[test]
    fn docker_finds_the_same_config_and_layer() {
        let files = files(&archive(0));
        let manifest = blob(&files, &json_of(&files, "index.json")["manifests"][0]);
        let path = |descriptor: &Value| format!("blobs/{}", descriptor["digest"].as_str().unwrap().replace(':', "/"));
        assert_eq!(
            json_of(&files, "manifest.json"),
            json!([{
                "Config": path(&manifest["config"]),
                "RepoTags": ["localhost/portcullis/loader:0.1.0"],
                "Layers": [path(&manifest["layers"][0])],
            }]),
        );
    }

    #[test]
    fn an_archive_is_the_same_each_time_and_has_one_time() {
        assert_eq!(archive(5), archive(5));
        let bytes = archive(5);
        let mut archive = tar::Archive::new(&bytes[..]);
        assert!(archive.entries().unwrap().all(|entry| entry.unwrap().header().mtime().unwrap() == 5));
    }
}
