//! Modules and where they are kept: `pull`, `push`, `inspect`, `verify`, `save` and `load`.
//!
//! They ask registries as the loader does, with the same checks of sizes, digests and redirects. Which hosts to trust is up to the
//! user here, so no address is refused.

mod archive;
mod inspect;
mod metadata;
mod output;
mod policy;
mod transfer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use portcullis_contract::Digest;
use portcullis_process::SettingError;
use portcullis_process::files;
use portcullis_registry::oci::{Image, Manifest, Registry};
use portcullis_registry::signature;
use portcullis_registry::{Allowed, FetchError, Guard, SourcesFile, Web, WebSettings, Whole, host_of};
use serde_json::json;
use url::Url;

use self::inspect::Inspected;
pub(crate) use self::inspect::declared;
use self::output::Artifact;
pub(crate) use self::policy::policy_name;
pub(crate) use self::transfer::{load, save};
use crate::args::{AccessArgs, InspectArgs, PullArgs, PushArgs, ResultForm, VerifyArgs};

/// Largest module, in bytes.
const MAX_MODULE: u64 = 256 << 20;

/// A module, and the digests that name it.
struct Module {
    bytes: Vec<u8>,
    digest: Digest,
    /// The digest of its manifest; `None` for a file or a web address.
    manifest: Option<Digest>,
}

/// Fetches a module to a file, and returns a text that says which.
pub(crate) async fn pull(args: &PullArgs) -> anyhow::Result<String> {
    let module = fetch(&args.common.access, &args.module).await?;
    let path = match &args.output_file {
        Some(path) => path.clone(),
        None => PathBuf::from(file_name(&args.module)),
    };
    files::publish(&path, &module.bytes)?;
    let (bytes, digest) = (module.bytes.len(), module.digest);
    let json = json!({
        "file": path.display().to_string(), "bytes": bytes, "digest": digest, "manifestDigest": module.manifest,
    });
    output::either(args.common.output, format!("{}: {bytes} bytes, {digest}", path.display()), json)
}

/// Pushes a module with its metadata, and gives its name with its digest.
pub(crate) async fn push(args: &PushArgs) -> anyhow::Result<String> {
    let image = image_argument(&args.image)?;
    if image.digest.is_some() {
        let text = format!("{}: a digest follows from what is pushed: want a tag", args.image);
        return Err(SettingError::new("IMAGE", text).into());
    }
    let bytes = read_file(&args.file)?;
    let inspected = Inspected::of(&bytes).with_context(|| format!("{} is not a module", args.file.display()))?;
    let no_metadata = || {
        format!(
            "{} has no policy metadata, without which no server knows how to ask it; `kwctl annotate` adds some",
            args.file.display()
        )
    };
    let metadata = inspected.metadata.with_context(no_metadata)?;
    let (manifest, module) = (Manifest::of_module(&bytes, metadata.annotations), Digest::of(&bytes));
    let digest = registry(&args.common.access)?.push(&image, bytes, &manifest).await.map_err(explain)?;
    output::one(args.common.output, &Artifact::new(&image, digest), "", json!({"digest": module}))
}

/// Shows what a module is.
pub(crate) async fn inspect(args: &InspectArgs) -> anyhow::Result<String> {
    let module = fetch(&args.common.access, &args.module).await?;
    let inspected = Inspected::of(&module.bytes).with_context(|| format!("{} is not a module", args.module))?;
    if args.manifest {
        let metadata = inspected.metadata.context("the module has no policy metadata to make a policy of")?;
        return policy::manifest(&wherever(&args.module)?, &metadata);
    }
    match args.common.output {
        ResultForm::Text => Ok(inspected.text(&args.module, &module.digest, module.manifest.as_ref())),
        ResultForm::Json => {
            let json = inspected.json(&args.module, &module.digest, module.manifest.as_ref());
            Ok(format!("{}\n", serde_json::to_string_pretty(&json)?))
        }
    }
}

/// The name of a module that is right wherever a manifest is: an address, or the absolute path of a file, as a relative one starts at the
/// manifest's folder.
fn wherever(module: &str) -> anyhow::Result<String> {
    let path = Path::new(module);
    if !path.is_file() {
        return Ok(module.to_owned());
    }
    let path = path.canonicalize().with_context(|| format!("failed to find {module}"))?;
    Ok(path.to_str().context("the path of a module must be UTF-8")?.to_owned())
}

/// Checks who signed an artifact, and gives its name with the digest that was signed.
pub(crate) async fn verify(args: &VerifyArgs) -> anyhow::Result<String> {
    let image = image_argument(&args.image)?;
    let requirement = args.signer.requirement()?;
    let registry = registry(&args.common.access)?;
    let manifest = registry.manifest(&image).await.map_err(explain);
    let manifest = manifest.with_context(|| format!("failed to fetch {}", args.image))?;
    manifest.module().map_err(explain)?;
    let trust_root = args.signer.trust_root.as_deref();
    let proofs =
        signature::verify(&registry, &image, &manifest.digest, &requirement, trust_root).await.map_err(explain)?;
    let artifact = Artifact::new(&image, manifest.digest);
    let (words, fields) = output::proved(&proofs);
    output::one(args.common.output, &artifact, &words, fields)
}

async fn fetch(access: &AccessArgs, module: &str) -> anyhow::Result<Module> {
    ensure!(!Path::new(module).is_dir(), "{module} is a folder; name the module's file");
    ensure_no_absent_file(module)?;
    let result = bring(access, module).await;
    // The error about a bad setting already names what it is about.
    result.map_err(|error| match error.is::<SettingError>() {
        true => error,
        false => error.context(format!("failed to fetch {}", portcullis_contract::clean(module, 300))),
    })
}

/// Brings a module from a file, a web address or a registry.
async fn bring(access: &AccessArgs, module: &str) -> anyhow::Result<Module> {
    let of = |bytes: Vec<u8>| Module { digest: Digest::of(&bytes), bytes, manifest: None };
    if Path::new(module).is_file() {
        return Ok(of(read_file(Path::new(module))?));
    }
    let registry = registry(access)?;
    let mut body = Whole::new("the module", MAX_MODULE);
    if module.starts_with("https://") || module.starts_with("http://") {
        let url = Url::parse(module).context("the address cannot be read")?;
        let web = registry.web();
        web.in_time(&host_of(&url), web.get(&url, &mut body)).await.map_err(explain)?;
        return Ok(of(body.finish().0));
    }
    let image = image(module)?;
    let manifest = registry.manifest(&image).await.map_err(explain)?;
    let layer = manifest.module().map_err(explain)?;
    registry.blob(&image, &layer.digest, &mut body).await.map_err(explain)?;
    let (bytes, digest) = body.finish();
    ensure!(digest == layer.digest, "{} gave bytes with the digest {digest} for {}", image.host, layer.digest);
    Ok(Module { bytes, digest, manifest: Some(manifest.digest) })
}

/// Refuses what names a file that is not there, before Docker Hub is asked for it.
fn ensure_no_absent_file(name: &str) -> anyhow::Result<()> {
    let shown = portcullis_contract::clean(name, 300);
    ensure!(
        !looks_like_file(name) || Path::new(name).is_file(),
        "there is no file {shown}; name a file that is there, or an artifact in a registry: registry://host/repository:tag"
    );
    Ok(())
}

/// Whether a name is rather that of a file than of an artifact. A name with a scheme is an address.
fn looks_like_file(name: &str) -> bool {
    let path = Path::new(name);
    let is_module = path.extension().is_some_and(|found| found == "wasm");
    !name.contains("://") && (name.starts_with(['.', '/']) || is_module || crate::is_manifest(path))
}

/// A module's file; links are followed.
fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let real = path.canonicalize().with_context(|| format!("failed to find {}", path.display()))?;
    Ok(files::read_regular(&real, MAX_MODULE)?)
}

/// The artifact that an argument names. Files are refused before Docker Hub is asked for them.
fn image_argument(text: &str) -> anyhow::Result<Image> {
    let shown = portcullis_contract::clean(text, 300);
    let problem = match (Path::new(text).exists() && !text.contains("://"), looks_like_file(text)) {
        (true, _) => format!("{shown} is a file or a folder"),
        (false, true) => format!("there is no file {shown}"),
        (false, false) => return image(text),
    };
    let problem = format!("{problem}; name an artifact in a registry: registry://host/repository:tag");
    Err(SettingError::new("IMAGE", problem).into())
}

/// The artifact that an argument names, without a look at files.
fn image(text: &str) -> anyhow::Result<Image> {
    address(text).map_err(|problem| SettingError::new(text, problem).into())
}

/// The artifact that a text names, or what is wrong with it.
fn address(text: &str) -> Result<Image, String> {
    if let Some((scheme, _)) = text.split_once("://").filter(|(scheme, _)| !["registry", "oci"].contains(scheme)) {
        let scheme = format!("{scheme}://");
        return Err(format!("modules do not come by {scheme:?}; want registry://host/repository:tag"));
    }
    text.parse().map_err(|error| format!("{error}: want registry://host/repository:tag"))
}

/// The name of a file for a module.
fn file_name(module: &str) -> String {
    let last = module.rsplit('/').next().unwrap_or(module);
    let last = last.split(['@', ':', '?', '#']).next().unwrap_or(last);
    let last = last.strip_suffix(".wasm").unwrap_or(last);
    format!("{}.wasm", if last.is_empty() { "module" } else { last })
}

fn registry(access: &AccessArgs) -> anyhow::Result<Registry> {
    access.check()?;
    let sources = access.sources.as_deref().map(SourcesFile::read).transpose()?;
    let everywhere = ["0.0.0.0/0", "::/0"].into_iter().map(|net| net.parse::<Allowed>().expect("is a network"));
    let web = WebSettings {
        header: Duration::from_secs(30),
        total: Duration::from_secs(600),
        lowest_rate: 1024,
        authorities: access.source_ca.clone(),
        plain_hosts: access.allow_http_host.iter().cloned().collect(),
        allowed: Vec::new(),
        guard: Guard::new(everywhere.collect()),
        sources,
        name_server: None,
        user_agent: concat!("portcullis/", env!("CARGO_PKG_VERSION")),
    };
    Ok(Registry::new(Web::new(web), access.docker()))
}

/// An error with the message first, for people, and then the reason, for programs.
fn explain(error: FetchError) -> anyhow::Error {
    anyhow::anyhow!("{} ({})", error.message, error.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_not_looked_for_in_a_registry() {
        for name in ["nofile.yaml", "policies/nofile.yml", "nofile.json", "nofile.wasm", "./nofile", "/nofile"] {
            let error = ensure_no_absent_file(name).expect_err(name).to_string();
            assert!(error.starts_with(&format!("there is no file {name}; name a file that is there, or ")), "{error}");
            let error = image_argument(name).expect_err(name).to_string();
            assert!(error.starts_with(&format!("IMAGE: there is no file {name}; ")), "{error}");
        }
        for name in ["ghcr.io/a/b:v1", "registry://ghcr.io/a/b.wasm", "https://example.com/b.wasm", "nofile"] {
            ensure_no_absent_file(name).expect(name);
        }
    }

    #[test]
    fn files_are_named_after_the_module() {
        for (module, name) in [
            ("registry://ghcr.io/a/safe-labels:v1.0.0", "safe-labels.wasm"),
            ("registry://localhost:5000/a@sha256:00", "a.wasm"),
            ("https://example.com/x/policy.wasm?token=1", "policy.wasm"),
            ("https://example.com/", "module.wasm"),
        ] {
            assert_eq!(file_name(module), name, "{module}");
        }
    }

    #[test]
    fn a_file_is_named_by_its_absolute_path() {
        let own = std::env::current_dir().expect("a folder").canonicalize().expect("it is there").join("Cargo.toml");
        assert_eq!(wherever("./src/../Cargo.toml").expect("a path"), own.to_str().expect("UTF-8"));
        for address in ["registry://ghcr.io/a/b:v1", "https://example.com/b.wasm"] {
            assert_eq!(wherever(address).expect("an address"), address);
        }
    }
}
