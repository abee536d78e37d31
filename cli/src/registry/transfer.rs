//! For clusters without network: writes the modules of policies into one archive, and pushes an archive to another registry.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use portcullis_api::kubernetes::GROUP;
use portcullis_contract::{Digest, Reason};
use portcullis_process::{SettingError, files};
use portcullis_registry::Whole;
use portcullis_registry::oci::{Image, Registry};
use portcullis_registry::signature;
use serde_json::Value;

use super::archive::Archive;
use super::output::{self, Artifact};
use super::{MAX_MODULE, address, ensure_no_absent_file, explain, image, registry};
use crate::args::{LoadArgs, SaveArgs};
use crate::document::documents;
use crate::files::{Found, Unread, each, names};
use crate::kind::{KUBEWARDEN, Kind, objects};
use crate::module_source::Source;

/// Largest file of policies, in bytes.
const MAX_POLICIES: u64 = 16 << 20;

/// What was saved.
#[derive(Debug)]
pub(crate) struct Saved {
    /// The list of what is in the archive.
    pub(crate) text: String,
    /// The files and folders that could not be read or used.
    unread: Vec<String>,
}

impl Saved {
    /// # Errors
    /// When the archive may lack something.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let names = self.unread.join(", ");
        ensure!(
            self.unread.is_empty(),
            "the archive may lack modules, as these files or folders could not be read or used: {names}"
        );
        Ok(())
    }
}

/// Writes the artifacts that are named, or that policies name, into one archive. Signatures beside them come along.
pub(crate) async fn save(args: &SaveArgs) -> anyhow::Result<Saved> {
    let mut named = Named::default();
    for item in &args.items {
        if Path::new(item).exists() {
            named.add_below(Path::new(item))?;
        } else {
            ensure_no_absent_file(item)?;
            named.images.insert(image(item)?);
        }
    }
    let elsewhere = named.elsewhere();
    ensure!(!named.images.is_empty(), "no policy in {} names a module in a registry{elsewhere}", args.items.join(", "));
    named.summary().iter().for_each(|line| crate::note(line));
    let temporary = files::temporary_beside(&args.output_file);
    let failed = || format!("failed to write {}", args.output_file.display());
    // Found out before anything is downloaded.
    ensure!(!args.output_file.is_dir(), "{} is a folder; name the archive's file", args.output_file.display());
    File::create(&temporary).and_then(|_| fs::remove_file(&temporary)).with_context(failed)?;
    let registry = registry(&args.common.access)?;
    let (mut archive, mut saved) = (Archive::default(), Vec::new());
    for image in named.images {
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
    let written = File::create(&temporary).map_err(anyhow::Error::from).and_then(|file| archive.write(file));
    let written = written.and_then(|()| Ok(fs::rename(&temporary, &args.output_file)?)).inspect_err(|_| {
        // Half an archive is useless.
        let _ = fs::remove_file(&temporary);
    });
    written.with_context(failed)?;
    Ok(Saved { text: output::list(args.common.output, &saved)?, unread: named.unread })
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

/// The modules that policies name.
#[derive(Debug, Default)]
struct Named {
    /// How many policies there are; members of a group count as one.
    policies: usize,
    /// The artifacts in registries.
    images: BTreeSet<Image>,
    /// Modules that are files or web addresses, and cannot be in an archive of artifacts.
    elsewhere: BTreeSet<String>,
    /// The files and folders in folders that could not be read or used.
    unread: Vec<String>,
}

impl Named {
    /// Adds what the policies of a file name, or those of the files in a folder and in the folders in it.
    fn add_below(&mut self, path: &Path) -> anyhow::Result<()> {
        let unread = each(&[path.to_owned()], MAX_POLICIES, |Found { path, is_named }, bytes| {
            let is_policies_yml = is_named || is_called_policies_yml(&path);
            // A folder may hold other files than policies, such as templates.
            if !is_policies_yml && !names(&bytes, GROUP) && !names(&bytes, KUBEWARDEN) {
                return Ok(());
            }
            let added = match documents(&path, &bytes) {
                Ok(documents) => self.add(documents.into_iter().map(|one| one.value), is_policies_yml),
                Err(error) if is_named => Err(error.into()),
                Err(error) => Err(anyhow::anyhow!("{error}; a template must be rendered first")),
            };
            match added.with_context(|| format!("failed to read {}", path.display())) {
                Err(error) if !is_named => self.leave_out(&path, &format!("{error:#}")),
                added => added?,
            }
            Ok(())
        })?;
        unread.iter().for_each(|Unread { path, why, .. }| self.leave_out(path, why));
        Ok(())
    }

    /// Leaves out a file or a folder in a folder. The others are worth an archive, and the end says that it is not all.
    fn leave_out(&mut self, path: &Path, why: &str) {
        crate::note(&portcullis_contract::clean(why, 1000));
        self.unread.push(portcullis_contract::clean(&path.display().to_string(), 300));
    }

    /// Adds what policies name: manifests, lists of them, or a Kubewarden policies.yml where the documents may be one.
    fn add(&mut self, documents: impl IntoIterator<Item = Value>, is_policies_yml: bool) -> anyhow::Result<()> {
        for object in documents.into_iter().flat_map(objects) {
            match Kind::of(&object) {
                Kind::Policy | Kind::Unknown(_) | Kind::Kubewarden => self.add_policy(&object["spec"])?,
                // The entries of a policies.yml have names of their own.
                Kind::Other if is_policies_yml && object.get("apiVersion").is_none() => {
                    for entry in object.as_object().into_iter().flat_map(|entries| entries.values()) {
                        self.add_policy(entry)?;
                    }
                }
                Kind::Other => {}
            }
        }
        Ok(())
    }

    /// Adds the module of a policy, or those of the members of a group.
    fn add_policy(&mut self, spec: &Value) -> anyhow::Result<()> {
        let members = spec["policies"].as_object().into_iter().flat_map(|members| members.values());
        let modules: Vec<&str> = [spec].into_iter().chain(members).filter_map(|part| part["module"].as_str()).collect();
        self.policies += usize::from(!modules.is_empty());
        for module in modules {
            if Source::of(module) == Source::Registry {
                // The arguments are right; the file is not.
                let shown = portcullis_contract::clean(module, 300);
                self.images.insert(address(module.trim()).map_err(|problem| anyhow::anyhow!("{shown}: {problem}"))?);
            } else {
                self.elsewhere.insert(module.to_owned());
            }
        }
        Ok(())
    }

    /// What will be in the archive, and what will not, as lines for people. Nothing where only artifacts were named.
    fn summary(&self) -> Vec<String> {
        let count = |count: usize, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
        let policies = (self.policies > 0).then(|| {
            let modules = count(self.images.len(), "module", "modules");
            format!("{} read; {modules} in registries to save", count(self.policies, "policy", "policies"))
        });
        let elsewhere = self.elsewhere.iter().map(|module| {
            let shown = portcullis_contract::clean(module, 300);
            format!("not saved: {shown}, which is a file or a web address; push it to a registry, and name that in the policy")
        });
        policies.into_iter().chain(elsewhere).collect()
    }

    /// The modules that are not in registries, as the end of a sentence.
    fn elsewhere(&self) -> String {
        let names: Vec<&str> = self.elsewhere.iter().map(String::as_str).collect();
        let names = portcullis_contract::clean(&names.join(", "), 1000);
        if names.is_empty() {
            names
        } else {
            format!("; these are files or web addresses, which are not saved: {names}")
        }
    }
}

/// Whether a file of a folder is called as Kubewarden's file of policies is, which has no API group to know it by.
fn is_called_policies_yml(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "policies.yml" || name == "policies.yaml")
}

#[cfg(test)]
mod tests {
    use portcullis_registry::oci::Manifest;

    use super::*;
    use crate::files::tests::{NOT_READ, add_what_is_not_read};

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

    fn named(text: &str) -> anyhow::Result<Vec<String>> {
        let mut named = Named::default();
        named.add(portcullis_yaml::read_documents(text)?, true)?;
        Ok(named.images.iter().map(Image::to_string).collect())
    }

    #[test]
    fn policies_name_modules() {
        let text = "kind: Policy\nspec: {module: 'registry://a.example/b:v1'}\n---\nkind: ConfigMap\n---\nspec: {module: modules/x.wasm}\n";
        assert_eq!(named(text).expect("reads"), ["a.example/b:v1"]);
        let text = "one: {module: 'registry://a.example/b:v1'}\ntwo: {module: 'https://a.example/b.wasm'}\n";
        assert_eq!(named(text).expect("reads").len(), 1);
        let text = "spec: {policies: {m: {module: 'a.example/c@sha256:1'}}}";
        named(text).expect_err("no digest");
        let text = "{apiVersion: v1, kind: ConfigMap, data: {module: a.example/b}}";
        assert_eq!(named(text).expect("reads"), Vec::<String>::new());
    }

    #[test]
    fn an_artifact_whose_name_ends_as_that_of_a_file_is_saved() {
        let of = |module: &str| named(&format!("spec: {{module: '{module}'}}"));
        for module in ["registry://a.example/b.wasm", "oci://a.example/b.wasm"] {
            assert_eq!(of(module).expect("reads"), ["a.example/b.wasm:latest"], "{module}");
        }
        for module in ["a.example/b.wasm", "file:b", "file:///b.wasm", "HTTPS://a.example/b"] {
            assert_eq!(of(module).expect("reads"), Vec::<String>::new(), "{module}");
        }
        let error = of("ftp://a.example/b.wasm").expect_err("no file").to_string();
        assert!(error.contains("modules do not come by"), "{error}");
    }

    #[test]
    fn policies_in_lists_and_in_folders_of_a_folder_are_saved_too_and_what_is_not_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
            fs::write(path, text).expect("writes");
        };
        let policy = |module: &str| {
            format!(
                "{{apiVersion: {}, kind: ClusterPolicy, spec: {{module: '{module}'}}}}",
                portcullis_api::API_VERSION
            )
        };
        put("list.yaml", &format!("kind: List\nitems: [{}, {}]", policy("a.example/a:v1"), policy("b.wasm")));
        put("deeper/still/one.yaml", &policy("a.example/c:v1"));
        put("deeper/web.yml", &policy("https://a.example/d.wasm"));
        // Kubewarden's file of policies has no API group.
        put("theirs/policies.yml", "one: {module: 'a.example/e:v1'}");
        // Files that hold no policies are not read, and nothing of them is looked for in a registry.
        put("template.yaml", "{{ if .Values.module }}: ]");
        put("other.yaml", "web: {module: 'UPPER/x y'}");
        put("compose.yml", &format!("# beside policies of {GROUP}\nweb: {{module: busybox}}"));
        add_what_is_not_read(folder.path());
        let mut named = Named::default();
        named.add_below(folder.path()).expect("reads");
        assert_eq!(
            named.images.iter().map(Image::to_string).collect::<Vec<_>>(),
            ["a.example/a:v1", "a.example/c:v1", "a.example/e:v1"]
        );
        let elsewhere = "which is a file or a web address; push it to a registry, and name that in the policy";
        assert_eq!(
            named.summary(),
            [
                "5 policies read; 3 modules in registries to save".to_owned(),
                format!("not saved: b.wasm, {elsewhere}"),
                format!("not saved: https://a.example/d.wasm, {elsewhere}"),
            ]
        );
        let saved = Saved { text: String::new(), unread: named.unread };
        let error = saved.check().expect_err("it may lack modules").to_string();
        assert!(
            error.contains("the archive may lack modules, as these files or folders could not be read or used: "),
            "{error}"
        );
        assert!(NOT_READ.iter().all(|name| error.contains(name)), "{error}");
        Saved { text: String::new(), unread: Vec::new() }.check().expect("all was read");
        assert_eq!(Named::default().summary(), Vec::<String>::new(), "only artifacts were named");

        // A file that may hold a policy is named, and the others are saved.
        put("deeper/broken.yaml", &format!("{{{{ if .x }}}}: ]\n# {KUBEWARDEN}"));
        put("deeper/wrong.yaml", &policy("UPPER/x y"));
        let mut named = Named::default();
        named.add_below(folder.path()).expect("reads the others");
        assert_eq!(named.images.len(), 3);
        for name in ["broken.yaml", "wrong.yaml"] {
            assert!(named.unread.iter().any(|path| path.ends_with(name)), "{name}: {:?}", named.unread);
            let error = Named::default().add_below(&folder.path().join("deeper").join(name)).expect_err(name);
            assert!(!error.is::<SettingError>(), "no argument is wrong: {error:#}");
        }
    }
}
