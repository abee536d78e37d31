//! Air gap: the modules of policies as one archive, and from an archive to another registry.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use portcullis_contract::{Digest, Reason};
use portcullis_process::files;
use portcullis_registry::Whole;
use portcullis_registry::oci::{Image, Registry};
use serde::Deserialize as _;
use serde_json::Value;

use super::archive::Archive;
use super::args::{LoadArgs, SaveArgs};
use super::{MAX_MODULE, explain, image, registry};

/// Largest file of policies, in bytes.
const MAX_POLICIES: u64 = 16 << 20;

/// Writes the artifacts that are named, or that policies name, into one archive. Signatures beside them come along.
pub(crate) async fn save(args: &SaveArgs) -> anyhow::Result<String> {
    let mut images = BTreeSet::new();
    for item in &args.items {
        if Path::new(item).exists() {
            images.extend(named_below(Path::new(item))?);
        } else {
            images.insert(image(item)?);
        }
    }
    ensure!(!images.is_empty(), "no policy here names a module in a registry");
    let registry = registry(&args.access)?;
    let (mut archive, mut text) = (Archive::default(), String::new());
    for image in images {
        let digest = take(&registry, &image, &mut archive).await?;
        text.push_str(&format!("{}@{digest}\n", image.address_with_tag()));
        let signatures = Image { tag: Some(format!("sha256-{}.sig", digest.hex())), digest: None, ..image };
        match registry.manifest(&signatures).await {
            Ok(_) => drop(take(&registry, &signatures, &mut archive).await?),
            Err(error) if error.reason == Reason::NotFound => {}
            Err(error) => return Err(explain(error)),
        }
    }
    let temporary = files::temporary_beside(&args.output_file);
    let written = File::create(&temporary).map_err(anyhow::Error::from).and_then(|file| archive.write(file));
    written.and_then(|()| Ok(fs::rename(&temporary, &args.output_file)?)).inspect_err(|_| {
        // Half an archive is of no use.
        let _ = fs::remove_file(&temporary);
    })?;
    Ok(text)
}

/// Pushes the artifacts of an archive to a registry, each below the prefix under its own repository and tag.
pub(crate) async fn load(args: &LoadArgs) -> anyhow::Result<String> {
    let file = File::open(&args.file).with_context(|| format!("failed to open {}", args.file.display()))?;
    let archive = Archive::read(file).with_context(|| format!("failed to read {}", args.file.display()))?;
    let registry = registry(&args.access)?;
    let prefix = args.registry.trim_start_matches("registry://").trim_end_matches('/');
    let mut text = String::new();
    for (name, manifest) in &archive.artifacts {
        let from: Image = name.parse().with_context(|| format!("the archive has a name that is none: {name}"))?;
        let tag = from.tag.as_ref().map(|tag| format!(":{tag}")).unwrap_or_default();
        let to = image(&format!("{prefix}/{}{tag}", from.repository))?;
        for blob in manifest.content.layers.iter().chain([&manifest.content.config]) {
            let bytes =
                archive.blobs.get(&blob.digest).with_context(|| format!("a blob of {name} is not in the archive"))?;
            registry.push_blob(&to, Bytes::from(bytes.clone())).await.map_err(explain)?;
        }
        registry.push_manifest(&to, manifest).await.map_err(explain)?;
        text.push_str(&format!("{}@{}\n", to.address_with_tag(), manifest.digest));
    }
    Ok(text)
}

/// Takes an artifact into the archive, and gives its manifest's digest.
async fn take(registry: &Registry, image: &Image, archive: &mut Archive) -> anyhow::Result<Digest> {
    let manifest = registry.manifest(image).await.map_err(explain)?;
    for blob in manifest.content.layers.iter().chain([&manifest.content.config]) {
        if archive.blobs.contains_key(&blob.digest) {
            continue;
        }
        let mut body = Whole::new("a blob", MAX_MODULE);
        registry.blob(image, &blob.digest, &mut body).await.map_err(explain)?;
        let (bytes, digest) = body.finish();
        ensure!(digest == blob.digest, "{} gave bytes with the digest {digest} for {}", image.host, blob.digest);
        archive.blobs.insert(digest, bytes);
    }
    let digest = manifest.digest;
    archive.artifacts.push((Image { digest: None, ..image.clone() }.to_string(), manifest));
    Ok(digest)
}

/// The artifacts that the policies in a file, or in the files of a folder, name.
fn named_below(path: &Path) -> anyhow::Result<Vec<Image>> {
    let mut files: Vec<PathBuf> = vec![path.to_owned()];
    if path.is_dir() {
        let is_policy = |path: &PathBuf| {
            path.extension().is_some_and(|found| ["yaml", "yml", "json"].iter().any(|known| found == *known))
        };
        files = fs::read_dir(path)?.flatten().map(|item| item.path()).filter(is_policy).collect();
        files.sort();
    }
    let mut images = Vec::new();
    for file in files {
        let bytes = files::read_regular(&file.canonicalize()?, MAX_POLICIES)?;
        let text = String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", file.display()))?;
        images.extend(named_in(&text).with_context(|| format!("failed to read {}", file.display()))?);
    }
    Ok(images)
}

/// The artifacts that the policies of a text name: manifests, or a Kubewarden policies.yml.
fn named_in(text: &str) -> anyhow::Result<Vec<Image>> {
    let mut modules = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let document = Value::deserialize(document)?;
        let entries = document.as_object().into_iter().flat_map(|entries| entries.values());
        let of_entry = |entry: &Value| entry["module"].as_str().map(str::to_owned);
        modules.extend(entries.filter_map(of_entry));
        let members = document["spec"]["policies"].as_object().into_iter().flat_map(|members| members.values());
        modules.extend(members.filter_map(of_entry));
    }
    let is_elsewhere = |module: &String| {
        let is_path = module.starts_with(['.', '/']) || module.ends_with(".wasm");
        module.starts_with("http://") || module.starts_with("https://") || module.starts_with("file:") || is_path
    };
    modules.into_iter().filter(|module| !is_elsewhere(module)).map(|module| image(&module)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_name_modules() {
        let text = "kind: Policy\nspec: {module: 'registry://a.example/b:v1'}\n---\nkind: ConfigMap\n---\nspec: {module: modules/x.wasm}\n";
        let names: Vec<String> = named_in(text).expect("reads").iter().map(Image::to_string).collect();
        assert_eq!(names, ["a.example/b:v1"]);
        let text = "one: {module: 'registry://a.example/b:v1'}\ntwo: {module: 'https://a.example/b.wasm'}\n";
        assert_eq!(named_in(text).expect("reads").len(), 1);
        let text = "spec: {policies: {m: {module: 'a.example/c@sha256:1'}}}";
        named_in(text).expect_err("no digest");
    }
}
