//! For clusters without network: writes the modules of policies into one archive, and pushes an archive to another registry.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use portcullis_contract::{Digest, Reason};
use portcullis_process::{SettingError, files};
use portcullis_registry::Whole;
use portcullis_registry::oci::{Image, Registry};
use portcullis_registry::signature;
use serde_json::Value;

use super::archive::Archive;
use super::output::{self, Artifact};
use super::{MAX_MODULE, ensure_no_absent_file, explain, image, registry};
use crate::args::{LoadArgs, SaveArgs};

/// Largest file of policies, in bytes.
const MAX_POLICIES: u64 = 16 << 20;

/// Writes the artifacts that are named, or that policies name, into one archive. Signatures beside them come along.
pub(crate) async fn save(args: &SaveArgs) -> anyhow::Result<String> {
    let mut images = BTreeSet::new();
    for item in &args.items {
        if Path::new(item).exists() {
            images.extend(named_below(Path::new(item))?);
        } else {
            ensure_no_absent_file(item)?;
            images.insert(image(item)?);
        }
    }
    ensure!(!images.is_empty(), "no policy in {} names a module in a registry", args.items.join(", "));
    let registry = registry(&args.common.access)?;
    let (mut archive, mut saved) = (Archive::default(), Vec::new());
    for image in images {
        let digest = take(&registry, &image, &mut archive).await?;
        saved.push(Artifact::new(&image, digest));
        for bundle in signature::bundles(&registry, &image, &digest).await.map_err(explain)? {
            let bundle = Image { tag: None, digest: Some(bundle), ..image.clone() };
            take(&registry, &bundle, &mut archive).await?;
        }
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
        // Half an archive is useless.
        let _ = fs::remove_file(&temporary);
    })?;
    output::list(args.common.output, &saved)
}

/// Pushes the artifacts of an archive to a registry, each below the prefix under its own repository and tag.
pub(crate) async fn load(args: &LoadArgs) -> anyhow::Result<String> {
    let file = File::open(&args.file).with_context(|| format!("failed to open {}", args.file.display()))?;
    // Names and bytes of the archive may be in the text of the error.
    let shown = |error: anyhow::Error| anyhow::Error::msg(portcullis_contract::clean(&format!("{error:#}"), 300));
    let archive = Archive::read(file).map_err(shown);
    let archive = archive.with_context(|| format!("failed to read {}", args.file.display()))?;
    let registry = registry(&args.common.access)?;
    let targets = targets(&archive, &args.registry)?;
    let mut loaded = Vec::new();
    for (to, (name, manifest)) in targets.iter().zip(&archive.artifacts) {
        for blob in manifest.content.layers.iter().chain([&manifest.content.config]) {
            let bytes =
                archive.blobs.get(&blob.digest).with_context(|| format!("a blob of {name} is not in the archive"))?;
            registry.push_blob(to, Bytes::from(bytes.clone())).await.map_err(explain)?;
        }
        registry.push_manifest(to, manifest).await.map_err(explain)?;
        registry.list_referrer(to, manifest).await.map_err(explain)?;
        loaded.push(Artifact::new(to, manifest.digest).from(name));
    }
    output::list(args.common.output, &loaded)
}

/// Where each artifact of an archive goes: below the prefix, under its own repository and tag.
fn targets(archive: &Archive, registry: &str) -> anyhow::Result<Vec<Image>> {
    let prefix = registry.trim_start_matches("registry://").trim_start_matches("oci://").trim_end_matches('/');
    let mut places: BTreeMap<Image, (&str, Digest)> = BTreeMap::new();
    let mut targets = Vec::new();
    for (name, manifest) in &archive.artifacts {
        let from: Image = name.parse().with_context(|| format!("the archive has a name that is not valid: {name}"))?;
        let tag = from.tag.as_ref().map(|tag| format!(":{tag}")).unwrap_or_default();
        let digest = from.digest.map(|digest| format!("@{digest}")).unwrap_or_default();
        let text = format!("{prefix}/{}{tag}{digest}", from.repository);
        let to: Image = text.parse().map_err(|error| {
            SettingError::new(
                "REGISTRY",
                format!("{registry}: {error}: want for instance registry.example:5000/mirror"),
            )
        })?;
        if let Some((other, _)) =
            places.insert(to.clone(), (name, manifest.digest)).filter(|(_, d)| *d != manifest.digest)
        {
            bail!(
                "{other} and {name} would both become {to}: save them apart, and load each below a prefix of its own"
            );
        }
        targets.push(to);
    }
    Ok(targets)
}

/// Adds an artifact to the archive, and returns the digest of its manifest.
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
    // Without a tag the digest is all that names it.
    let name = Image { digest: image.digest.filter(|_| image.tag.is_none()), ..image.clone() }.to_string();
    match archive.artifacts.iter().find(|(other, _)| *other == name) {
        None => archive.artifacts.push((name, manifest)),
        Some((_, other)) if other.digest == digest => {}
        Some((_, other)) => {
            bail!(
                "{name} is wanted as {} and as {digest}: pin all policies to one of them, or save them apart",
                other.digest
            )
        }
    }
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
        let real = file.canonicalize().with_context(|| format!("failed to find {}", file.display()))?;
        let bytes = files::read_regular(&real, MAX_POLICIES)?;
        let text = String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", file.display()))?;
        images.extend(named_in(&text).with_context(|| format!("failed to read {}", file.display()))?);
    }
    Ok(images)
}

/// The artifacts that the policies of a text name: manifests, or a Kubewarden policies.yml.
fn named_in(text: &str) -> anyhow::Result<Vec<Image>> {
    let mut modules = Vec::new();
    for document in portcullis_yaml::read_documents(text)? {
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
    use portcullis_registry::oci::Manifest;

    use super::*;

    fn archive(names: &[(&str, &[u8])]) -> Archive {
        let artifact =
            |(name, module): &(&str, &[u8])| ((*name).to_owned(), Manifest::of_module(module, BTreeMap::new()));
        Archive { artifacts: names.iter().map(artifact).collect(), ..Archive::default() }
    }

    #[test]
    fn artifacts_keep_their_names_below_the_prefix() {
        let digest = Digest::of(b"x");
        let pinned = format!("a.example/c@{digest}");
        let archive = archive(&[("a.example/b:v1", b"one"), (&pinned, b"two")]);
        let names = |registry| {
            let targets = targets(&archive, registry).expect("names");
            targets.iter().map(Image::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            names("r.example:5000/mirror/"),
            ["r.example:5000/mirror/b:v1".to_owned(), format!("r.example:5000/mirror/c@{digest}"),]
        );
        assert_eq!(names("registry://r.example")[0], "r.example/b:v1");
        targets(&archive, "r.example:x").expect_err("no registry");
    }

    #[test]
    fn nothing_overwrites_another() {
        let two = archive(&[("a.example/b:v1", b"one"), ("c.example/b:v1", b"two")]);
        let error = targets(&two, "r.example").expect_err("one place").to_string();
        assert!(error.contains("a.example/b:v1 and c.example/b:v1"), "{error}");
        targets(&archive(&[("a.example/b:v1", b"one"), ("c.example/b:v1", b"one")]), "r.example").expect("the same");
    }

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
