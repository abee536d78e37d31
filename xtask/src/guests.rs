//! Builds the guests: from `guests/` to WebAssembly modules with their metadata.
//!
//! The built Rust guests are committed under `examples/modules/`, so that the examples need no
//! WebAssembly toolchain. The Go guests are too large for that and go to `target/guests/`,
//! as do variants for benchmarks.
//!
//! For Rust there are two ways: the target `wasm32-unknown-unknown` of the Rust toolchain in
//! use, or the packages of Debian, whose Rust 1.96 builds the standard library from source.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use wasm_encoder::{CustomSection, Section};

use crate::remap;

const METADATA_SECTION: &str = "io.kubewarden.metadata";
const WASM_TARGET: &str = "wasm32-unknown-unknown";

/// The folder of the compiler of Rego guests, in Go.
const REGO_COMPILER: &str = "guests/rego-compiler";

const GUESTS: [Guest; 12] = [
    Guest { name: "default-resources", language: Language::Rust },
    Guest { name: "host-capabilities", language: Language::Rust },
    Guest { name: "no-privileged", language: Language::Rust },
    Guest { name: "required-labels", language: Language::Rust },
    Guest { name: "allowed-registries", language: Language::Go },
    Guest { name: "host-capabilities-go", language: Language::Go },
    Guest { name: "host-paths", language: Language::Rego("kubewarden/host_paths/main") },
    Guest { name: "required-probes", language: Language::Rego("required_probes/violation") },
    Guest { name: "limits-required", language: Language::Rego("kubewarden/limits_required/main") },
    Guest { name: "unique-names", language: Language::Rego("unique_names/violation") },
    Guest { name: "rego-builtins", language: Language::Rego("builtins/main") },
    Guest { name: "rego-missing", language: Language::Rego("missing/main") },
];

/// Builds the guests of these names, or all: the Rust ones into `examples/modules/`, the Go
/// ones into `target/guests/`.
pub(crate) fn build(only: &[String]) -> Result<()> {
    let mut folders: BTreeMap<PathBuf, Vec<&Guest>> = BTreeMap::new();
    for guest in select(only)? {
        folders.entry(guest.language.kept_dir().unwrap_or_else(output_dir)).or_default().push(guest);
    }
    folders.iter().try_for_each(|(folder, guests)| build_guests(guests, folder, None))
}

/// Builds the guests of these names, or all, into another folder. With an optimisation level
/// (Rust only, like `3`), the files are named after it: `no-privileged-o3.wasm`.
pub(crate) fn build_into(out: &Path, only: &[String], opt_level: Option<&str>) -> Result<()> {
    build_guests(&select(only)?, out, opt_level)
}

/// The folder of modules that are not committed: `target/guests/`, or below `CARGO_TARGET_DIR`.
pub(crate) fn output_dir() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(target) => root().join(target).join("guests"),
        None => root().join("target/guests"),
    }
}

/// Compares the committed modules with their sources as far as possible without a build: each one must exist and have
/// the metadata that is in `guests/` now.
pub(crate) fn check() -> Result<()> {
    let kept = GUESTS.iter().filter_map(|guest| Some((guest, guest.language.kept_dir()?)));
    for (guest, dir) in kept {
        let path = dir.join(format!("{}.wasm", guest.name));
        let module = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
        ensure!(
            module.ends_with(&metadata_section(guest)?),
            "{} does not carry the metadata of guests/{}/metadata.yml: run `cargo xtask guests {2}`",
            path.display(),
            guest.name,
            guest.name,
        );
    }
    Ok(())
}

/// Finds the toolchain for the Rust guests.
///
/// # Errors
/// When there is none; says what to install.
pub(crate) fn find_toolchain() -> Result<()> {
    Toolchain::find().map(drop)
}

/// Names of the guests that need no other tool than Rust.
pub(crate) fn rust_names() -> impl Iterator<Item = &'static str> {
    names(Language::Rust)
}

/// Names of the guests in Go, which are also those of their folders in `guests/`.
pub(crate) fn go_names() -> impl Iterator<Item = &'static str> {
    names(Language::Go)
}

/// Names of the guests in Rego, and the committed module of each. OPA makes the same bytes of the same sources everywhere.
pub(crate) fn rego_modules() -> impl Iterator<Item = (&'static str, PathBuf)> {
    GUESTS.iter().filter(|guest| matches!(guest.language, Language::Rego(_))).filter_map(|guest| {
        let folder = guest.language.kept_dir()?;
        Some((guest.name, folder.join(format!("{}.wasm", guest.name))))
    })
}

fn names(language: Language) -> impl Iterator<Item = &'static str> {
    GUESTS.iter().filter(move |guest| guest.language == language).map(|guest| guest.name)
}

struct Guest {
    name: &'static str,
    language: Language,
}

#[derive(Clone, Copy, PartialEq)]
enum Language {
    Rust,
    Go,
    /// Rego, with its entrypoint.
    Rego(&'static str),
}

impl Language {
    /// The folder of committed modules of this language; `None` if they are too large.
    fn kept_dir(self) -> Option<PathBuf> {
        match self {
            Self::Rust => Some(kept_dir()),
            Self::Rego(_) => Some(root().join("guests/modules")),
            Self::Go => None,
        }
    }
}

fn select(only: &[String]) -> Result<Vec<&'static Guest>> {
    if only.is_empty() {
        return Ok(GUESTS.iter().collect());
    }
    let find = |name: &String| {
        GUESTS.iter().find(|guest| guest.name == name).with_context(|| {
            let names: Vec<_> = GUESTS.iter().map(|guest| guest.name).collect();
            format!("there is no guest {name}; there are {}", names.join(", "))
        })
    };
    only.iter().map(find).collect()
}

fn build_guests(guests: &[&Guest], out: &Path, opt_level: Option<&str>) -> Result<()> {
    let rust: Vec<_> = guests.iter().copied().filter(|guest| guest.language == Language::Rust).collect();
    let target = output_dir().join("build");
    if !rust.is_empty() {
        build_rust(&rust, &target, opt_level)?;
    }
    if guests.iter().any(|guest| matches!(guest.language, Language::Rego(_))) {
        build_rego_compiler(&target)?;
    }
    for guest in guests {
        let built = match guest.language {
            Language::Rust => {
                let file = format!("{}.wasm", guest.name.replace('-', "_"));
                target.join(WASM_TARGET).join("release").join(file)
            }
            Language::Go => build_go(guest, &target)?,
            Language::Rego(entrypoint) => build_rego(guest, entrypoint, &target)?,
        };
        let suffix = match (guest.language, opt_level) {
            (Language::Rust, Some(level)) => format!("-o{level}"),
            _ => String::new(),
        };
        let path = out.join(format!("{}{suffix}.wasm", guest.name));
        let size = publish(guest, &built, &path)?;
        println!("{} ({} KB)", path.display(), size / 1000);
    }
    Ok(())
}

fn build_rust(guests: &[&Guest], target: &Path, opt_level: Option<&str>) -> Result<()> {
    let guests_dir = root().join("guests");
    let toolchain = Toolchain::find()?;
    let (mut cargo, mut flags) = toolchain.cargo()?;
    cargo.args(["build", "--release", "--locked", "--target", WASM_TARGET]);
    for guest in guests {
        cargo.args(["--package", guest.name]);
    }
    // Panic messages name source files. With these flags the names are the same wherever the module is built.
    flags.extend([remap::flag(&guests_dir, "guests"), remap::flag(&remap::cargo_home(), "cargo")]);
    cargo.current_dir(&guests_dir).env("CARGO_TARGET_DIR", target).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    if let Some(level) = opt_level {
        cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", level);
    }
    run(cargo)
}

/// A toolchain that compiles Rust to WebAssembly.
enum Toolchain {
    /// The toolchain in use has the target installed.
    WithTarget,
    /// Rust, its sources and the linker from the packages of Debian.
    Debian,
}

impl Toolchain {
    fn find() -> Result<Self> {
        // rustc prints the folder even if the target is not installed, but then it does not exist.
        let target_libs = Command::new("rustc")
            .args(["--print", "target-libdir", "--target", WASM_TARGET])
            .current_dir(root())
            .output();
        if let Ok(output) = target_libs
            && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
        {
            return Ok(Self::WithTarget);
        }
        let debian = ["/usr/bin/cargo", "/usr/bin/rustc", "/usr/bin/wasm-ld", "/usr/lib/rustlib/src/rust/library"];
        if debian.iter().all(|path| Path::new(path).exists()) {
            return Ok(Self::Debian);
        }
        bail!(
            "no Rust toolchain for {WASM_TARGET} was found: run `rustup target add {WASM_TARGET}`, or on Debian \
             `apt-get install --no-install-recommends rustc-web cargo-web rust-web-src lld`"
        )
    }

    /// The command and the compiler flags to start from.
    fn cargo(&self) -> Result<(Command, Vec<String>)> {
        match self {
            Self::WithTarget => Ok((Command::new("cargo"), Vec::new())),
            Self::Debian => {
                let mut cargo = Command::new("/usr/bin/cargo");
                // Building the standard library is an unstable feature, which Debian's stable compiler allows only with
                // this variable.
                cargo.arg("-Zbuild-std=std,panic_abort").env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1");
                Ok((cargo, vec!["-Clinker=wasm-ld".to_owned()]))
            }
        }
    }
}

fn build_go(guest: &Guest, target: &Path) -> Result<PathBuf> {
    let built = target.join(format!("{}.wasm", guest.name));
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-ldflags=-s -w", "-o"])
        .arg(&built)
        .arg(".")
        .current_dir(root().join("guests").join(guest.name))
        .env("GOOS", "wasip1")
        .env("GOARCH", "wasm");
    run(go)?;
    Ok(built)
}

/// Builds the compiler of Rego guests, which is OPA's. Go fetches it the first time.
fn build_rego_compiler(target: &Path) -> Result<()> {
    fs::create_dir_all(target).with_context(|| format!("failed to create {}", target.display()))?;
    let mut go = Command::new("go");
    // What is built only to run once needs no debug information.
    go.args(["build", "-gcflags=all=-dwarf=false", "-ldflags=-s -w", "-o"])
        .arg(rego_compiler(target))
        .arg(".")
        .current_dir(root().join(REGO_COMPILER));
    run(go)
}

fn rego_compiler(target: &Path) -> PathBuf {
    target.join("rego-compiler")
}

/// Compiles a Rego guest.
fn build_rego(guest: &Guest, entrypoint: &str, target: &Path) -> Result<PathBuf> {
    let built = target.join(format!("{}.wasm", guest.name));
    let mut compile = Command::new(rego_compiler(target));
    // The name of the file is in the module, so it has no folder.
    compile.args([entrypoint, "policy.rego"]).arg(&built).current_dir(root().join("guests").join(guest.name));
    run(compile)?;
    Ok(built)
}

/// Adds the metadata and puts the module in place with a rename: `portcullis run` may be
/// watching the folder. Returns the size.
fn publish(guest: &Guest, built: &Path, path: &Path) -> Result<usize> {
    let mut module = fs::read(built).with_context(|| format!("failed to read {}", built.display()))?;
    module.extend(metadata_section(guest)?);

    let dir = path.parent().context("a module is written into a folder")?;
    fs::create_dir_all(dir).with_context(|| format!("failed to create {}", dir.display()))?;
    let unfinished = path.with_extension("wasm.tmp");
    fs::write(&unfinished, &module).with_context(|| format!("failed to write {}", unfinished.display()))?;
    fs::rename(&unfinished, path).with_context(|| format!("failed to rename to {}", path.display()))?;
    Ok(module.len())
}

/// The metadata of a guest as the custom section that ends its module.
fn metadata_section(guest: &Guest) -> Result<Vec<u8>> {
    let path = root().join("guests").join(guest.name).join("metadata.yml");
    let text = fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let metadata: serde_json::Value =
        serde_saphyr::from_str(&text).with_context(|| format!("failed to parse {}", path.display()))?;
    let mut section = Vec::new();
    CustomSection { name: METADATA_SECTION.into(), data: serde_json::to_vec(&metadata)?.into() }
        .append_to(&mut section);
    Ok(section)
}

fn run(mut command: Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("failed to start {program}; is it installed?"))?;
    ensure!(status.success(), "{program} failed with {status}");
    Ok(())
}

fn kept_dir() -> PathBuf {
    root().join("examples/modules")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the repository").to_owned()
}
