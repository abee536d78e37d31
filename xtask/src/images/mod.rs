//! Makes container images without a container engine: each is an archive with a static program, and comes with a bill of materials.
//!
//! ```text
//! cargo build ──► program ──► layer (tar) ──► archive: OCI layout and docker's manifest.json
//! cargo tree, cargo metadata, Cargo.lock ──► bill of materials (CycloneDX)
//! ```

mod archive;
mod authorities;
mod bill;
mod build;
mod layer;
mod packages;
mod time;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};

use crate::git;
use crate::programs::Profile;
use crate::workspace::Workspace;
use archive::Config;
use build::Target;
use packages::Packages;

/// The default registry in the references of images. Nothing pulls from `localhost`, so an image that is missing on a node is not
/// fetched from elsewhere.
const REGISTRY: &str = "localhost/portcullis";

/// The group of all programs of a pod, which owns the pod's volume.
const GROUP: u32 = 65530;

/// One image of the product.
struct Image {
    /// Its name, the last part of its reference.
    name: &'static str,
    /// The package of the program, which has the same name.
    package: &'static str,
    /// The user id that it runs as; each program of a pod has its own.
    user: u32,
    /// Whether it connects to servers with public certificates, so that it needs certificate authorities: sources of modules, or a collector
    /// of telemetry. The evaluator opens no connection.
    has_authorities: bool,
}

const IMAGES: [Image; 5] = [
    Image { name: "loader", package: "portcullis-loader", user: 65531, has_authorities: true },
    Image { name: "evaluator", package: "portcullis-evaluator", user: 65532, has_authorities: false },
    Image { name: "reporter", package: "portcullis-reporter", user: 65533, has_authorities: true },
    Image { name: "controller", package: "portcullis-controller", user: 65534, has_authorities: true },
    Image { name: "portcullis", package: "portcullis", user: 65530, has_authorities: true },
];

/// Which images to make, and how.
#[derive(clap::Args)]
pub(crate) struct Wanted {
    /// Names of images: loader, evaluator, reporter, controller, portcullis. [default: all]
    names: Vec<String>,
    /// Build for tests: quick to build, not optimised, with fail points.
    #[arg(long)]
    debug: bool,
    /// Write the archives to this folder. [default: target/images]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The registry in the references, the chart's `image.registry`.
    #[arg(long, value_name = "PREFIX", default_value = REGISTRY)]
    registry: String,
    /// The tag of the references. [default: the version of the workspace]
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// The Rust target: `x86_64-unknown-linux-gnu` or `aarch64-unknown-linux-gnu`. [default: that of this machine]
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
}

impl Wanted {
    /// All images for this machine, with their usual names.
    pub(crate) fn all(debug: bool, out: &Path) -> Self {
        let registry = REGISTRY.to_owned();
        Self { names: Vec::new(), debug, out: Some(out.to_owned()), registry, tag: None, target: None }
    }
}

/// Builds the programs and writes an archive and a bill of materials for each.
pub(crate) fn run(workspace: &Workspace, wanted: &Wanted) -> Result<ExitCode> {
    let images = select(&wanted.names)?;
    let target = wanted.target.clone().map_or_else(Target::of_this_machine, |triple| Target::new(&triple))?;
    let epoch = epoch(env::var("SOURCE_DATE_EPOCH").ok().as_deref())?;
    let out = wanted.out.clone().unwrap_or_else(|| workspace.target.join("images"));
    fs::create_dir_all(&out).with_context(|| format!("failed to create {}", out.display()))?;
    let profile = Profile::of(!wanted.debug);
    let packages = Packages::load(workspace, &target)?;
    let revision = revision(&workspace.root);
    for (index, image) in images.iter().enumerate() {
        let label = format!("building {} ({}/{})", image.package, index + 1, images.len());
        let program = build::program(workspace, image.package, profile, &target, &label)?;
        let about = packages.member(image.package)?;
        let tag = wanted.tag.as_deref().unwrap_or(&about.version);
        let reference = format!("{}/{}:{tag}", wanted.registry, image.name);
        let config = Config {
            reference: &reference,
            architecture: target.architecture(),
            program: image.package,
            user: image.user,
            group: GROUP,
            labels: &about.labels(revision.as_deref()),
            has_authorities: image.has_authorities,
            epoch,
        };
        let authorities = image.has_authorities.then(authorities::bundle);
        let layer = layer::make(image.package, &program, authorities.as_deref(), epoch)?;
        let archive = archive::make(&config, layer)?;
        write(&out.join(format!("{}.tar", image.name)), &archive)?;
        let mut linked = packages.linked(workspace, image.package, &target)?;
        if image.has_authorities {
            linked.packages.push(packages.published(authorities::PACKAGE)?.clone());
        }
        let bill = bill::make(&linked, epoch);
        write(&out.join(format!("{}.cdx.json", image.name)), bill.as_bytes())?;
        println!("{reference}: {} ({:.1} MB)", out.join(format!("{}.tar", image.name)).display(), megabytes(&archive));
    }
    Ok(ExitCode::SUCCESS)
}

fn select(names: &[String]) -> Result<Vec<&'static Image>> {
    for name in names {
        let is_one = IMAGES.iter().any(|image| image.name == name);
        ensure!(is_one, "there is no image {name}: they are loader, evaluator, reporter, controller and portcullis");
    }
    Ok(IMAGES.iter().filter(|image| names.is_empty() || names.iter().any(|name| name == image.name)).collect())
}

/// The time of all files of an image, in seconds since 1970, as <https://reproducible-builds.org> asks for.
fn epoch(set: Option<&str>) -> Result<u64> {
    match set.map(str::parse) {
        None => Ok(0),
        // The largest time in a tar, in the year 2242.
        Some(Ok(seconds)) if seconds <= 0o77_777_777_777 => Ok(seconds),
        Some(_) => {
            bail!("SOURCE_DATE_EPOCH is not a number of seconds since 1970; unset it, or use `git log -1 --format=%ct`")
        }
    }
}

/// The commit that is checked out, with a mark if files differ from it; `None` if git does not know.
fn revision(root: &Path) -> Option<String> {
    let commit = git::output(root, &["rev-parse", "HEAD"])?;
    let is_clean = git::output(root, &["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if is_clean { commit } else { format!("{commit}-dirty") })
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("failed to write {}", path.display()))
}

fn megabytes(bytes: &[u8]) -> f64 {
    bytes.len() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_images_share_a_user() {
        for (index, image) in IMAGES.iter().enumerate() {
            assert!(IMAGES[..index].iter().all(|other| other.user != image.user && other.name != image.name));
            assert!(image.user > 0);
        }
    }

    #[test]
    fn images_are_selected_by_name_in_their_own_order() {
        let names = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            select(&names).map(|images| images.iter().map(|image| image.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["controller", "loader"]).unwrap(), ["loader", "controller"]);
        assert_eq!(names(&[]).unwrap().len(), IMAGES.len());
        assert!(names(&["evaluater"]).unwrap_err().to_string().starts_with("there is no image evaluater: "));
    }

    #[test]
    fn the_dockerfile_makes_the_same_images() {
        let text = include_str!("../../../Dockerfile");
        assert!(text.contains(&format!("\nARG VERSION={}\n", env!("CARGO_PKG_VERSION"))), "another version");
        for image in &IMAGES {
            let stage = text.split("\nFROM ").find(|stage| stage.starts_with(&format!("scratch AS {}\n", image.name)));
            let stage = stage.unwrap_or_else(|| panic!("no stage {}", image.name));
            let Image { package, user, .. } = image;
            for line in [
                format!("LABEL org.opencontainers.image.title=\"{package}\" "),
                format!("USER {user}:{GROUP}\n"),
                format!("COPY --from=build-{} /out/{package} /{package}\n", image.name),
                format!("ENTRYPOINT [\"/{package}\"]"),
            ] {
                assert!(stage.contains(&line), "{}: {line}", image.name);
            }
            assert_eq!(stage.contains(&format!("ENV SSL_CERT_FILE=/{}\n", authorities::PATH)), image.has_authorities);
        }
    }

    #[test]
    fn programs_that_connect_to_a_collector_can_check_its_certificate() {
        let with: Vec<_> = IMAGES.iter().filter(|image| image.has_authorities).map(|image| image.name).collect();
        assert_eq!(with, ["loader", "reporter", "controller", "portcullis"]);
    }

    #[test]
    fn the_time_of_files_comes_from_the_environment_or_is_none() {
        assert_eq!(epoch(None).unwrap(), 0);
        assert_eq!(epoch(Some("1763740800")).unwrap(), 1_763_740_800);
        for wrong in ["", "today", "-1", "99999999999999"] {
            assert!(epoch(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
