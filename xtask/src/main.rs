//! Building, running and testing the workspace: `cargo xtask --help` lists the commands.
//!
//! This program starts cargo for one package at a time and looks at files. It is not a part of the product, and does not
//! depend on any of the product's crates, so that it is built in seconds and works while they do not compile.
#![forbid(unsafe_code)]

mod bench;
mod boundaries;
mod chart;
mod cluster;
mod deny;
mod e2e;
mod evidence;
mod executables;
mod files;
mod generate;
mod git;
mod guests;
mod images;
mod limit;
mod lint;
mod log;
mod network;
mod pgo;
mod picture;
mod profiles;
mod programs;
mod progress;
mod remap;
mod rustc;
mod step;
mod test;
mod test_images;
mod tools;
mod totals;
mod workspace;
mod wrapped;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::evidence::outcomes::{self, Outcomes};
use crate::programs::Profile;
use crate::workspace::Workspace;

/// Builds, runs and tests Portcullis.
///
/// A newcomer needs two commands: `cargo xtask run` and `cargo xtask test`. All work from any folder of the workspace and
/// respect CARGO_TARGET_DIR.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the programs and run them on a folder of policies, with no cluster.
    ///
    /// Starts loader, evaluator and reporter under `portcullis run DIR`. Ctrl-C stops them.
    #[command(after_help = "Examples:\n  cargo xtask run\n  cargo xtask run ~/policies -- --plain-http")]
    Run {
        /// The folder of Policy manifests. [default: the examples of the repository]
        dir: Option<PathBuf>,
        /// Build with optimisations: slower to build, faster to answer.
        #[arg(long)]
        release: bool,
        /// Arguments for `portcullis run`, see `portcullis run --help`.
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Build the programs, each by itself.
    ///
    /// Built together, they would share the features of their dependencies, and the evaluator would contain the compiler.
    Build {
        /// Build with optimisations.
        #[arg(long)]
        release: bool,
    },
    /// Set up what the tests need and run all of them.
    ///
    /// Boundaries, the tests of each crate, the guests and their tests, black-box tests of the real programs,
    /// and tests on real Kubernetes control planes. On Debian, as root, missing packages are installed. A test that fails is named at once,
    /// and again at the end with its message. A run of all tests also counts the rows of the fault catalogue and of the documentation whose
    /// tests passed, and fails if one of these tests did not run. The last line is `N passed, N failed, N skipped`, and says so when
    /// cluster tests were left out.
    ///
    /// Cluster tests need Linux, root or unprivileged user namespaces, and Go 1.26: the first run builds Kubernetes into the cache
    /// folder, which takes minutes. They run in their own network namespace. Those with a node also need root, containerd, runc, CNI
    /// plugins and nftables.
    #[command(after_help = "Examples:\n  cargo xtask test\n  cargo xtask test --no-cluster\n  \
                      cargo xtask test --filter portcullis-loader\n  cargo xtask test --filter black-box -- fault_l09\n  \
                      cargo xtask test --filter cluster -- first_apply")]
    Test {
        /// Leave out the tests that start clusters.
        #[arg(long)]
        no_cluster: bool,
        /// Run only the steps that have this text in their name.
        #[arg(long, value_name = "TEXT")]
        filter: Option<String>,
        /// Print the names of the steps and run nothing.
        #[arg(long)]
        list: bool,
        /// Arguments for the Rust tests, for instance a part of a test's name.
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Check the formatting and the lints, of everything at once and of each library by itself.
    Lint,
    /// Check the promises of the architecture.
    ///
    /// The evaluator has no compiler and no Kubernetes client, unsafe code is one block, each crate builds alone, files are
    /// tidy, and each row of the fault catalogue has a test or a reason. See ARCHITECTURE.md.
    Boundaries,
    /// Write the generated files: the CustomResourceDefinitions in `helm/definitions`, the chart's version, schema of values and README,
    /// `docs/faults.md` and `docs/compatibility.md`.
    Generate {
        /// Write nothing, and fail if a file is not up to date.
        #[arg(long)]
        check: bool,
        /// The outcomes of a whole run, which `docs/faults.md` shows from now on. `cargo xtask test` writes them to
        /// `target/xtask/fault-rows.json`.
        #[arg(long, value_name = "FILE", conflicts_with = "check")]
        fault_rows: Option<PathBuf>,
        /// The program that writes the definitions, if it is built already.
        #[arg(long, hide = true)]
        definitions: Option<PathBuf>,
    },
    /// Build the policies under `guests/` to WebAssembly.
    ///
    /// The Rust guests are written to `examples/modules/`, the Go guests to `target/guests/`.
    #[command(after_help = "Examples:\n  cargo xtask guests\n  cargo xtask guests --opt-level 3 no-privileged")]
    Guests {
        /// Names of guests. [default: all]
        names: Vec<String>,
        /// Optimise the Rust guests at this level, and write them to `target/guests/NAME-oLEVEL.wasm`.
        #[arg(long, value_name = "LEVEL", value_parser = ["0", "1", "2", "3", "s", "z"])]
        opt_level: Option<String>,
        /// Write everything to this folder instead.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Make the container images, without a container engine.
    ///
    /// Each image has one static program and runs as its own user; programs that connect to public servers also get the public
    /// certificate authorities. The command writes NAME.tar, which every engine can load, and NAME.cdx.json, the list of what is linked
    /// into the program (CycloneDX). The same sources, compiler and SOURCE_DATE_EPOCH give the same bytes.
    #[command(after_help = "Examples:\n  cargo xtask images\n  cargo xtask images --debug loader evaluator\n  \
                      cargo xtask images --registry registry.example.com/portcullis\n\n\
                      Then, where the cluster is:\n  kind load image-archive target/images/loader.tar\n  \
                      k3d image import target/images/loader.tar\n  ctr --namespace k8s.io images import target/images/loader.tar\n  \
                      docker load --input target/images/loader.tar\n  \
                      skopeo copy oci-archive:target/images/loader.tar docker://registry.example.com/portcullis/loader:0.1.0")]
    Images(images::Wanted),
    /// Make the profile by which release builds of the evaluator are optimised (profile-guided optimisation).
    ///
    /// Builds an evaluator with counters, asks it about policies of each kind for some seconds, and writes what was counted to
    /// `evaluator/profiles`, for this compiler and this machine's target. Takes two release builds and the component `llvm-tools`
    /// (`rustup component add llvm-tools`). A profile is worth making again with a new compiler, and after larger changes to the evaluator.
    Pgo {
        /// Arguments for the load, like `--time 10s`.
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Measure the programs, built for release: `cargo xtask bench --help` lists the benchmarks.
    #[command(disable_help_flag = true)]
    Bench {
        /// Arguments for the benchmarks.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Start and stop real Kubernetes on this machine, with or without a node: `cargo xtask cluster --help` lists the commands.
    #[command(disable_help_flag = true)]
    Cluster {
        /// Arguments for the clusters, like `up`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Build chart and images of an earlier release from the history of the repository, once, for the tests of upgrades.
    ///
    /// They are kept in the cache folder, as Kubernetes is. `cargo xtask test` and `cargo xtask e2e` skip the tests that need them
    /// where they were not built. Takes a clone with its history, and as long as the first build of the programs.
    EarlierRelease,
    /// Make the images, install the chart with Helm, and test its promises.
    ///
    /// The tests start a cluster with a node on this machine, which needs Linux and root; or, with KUBECONFIG set, they use the cluster
    /// that it names, which must have the images. Tests that look into the node are skipped there. What helps to explain a failed test
    /// is kept in `target/e2e/`.
    #[command(after_help = "Examples:\n  cargo xtask e2e\n  cargo xtask e2e -- first_denial\n  \
                      KUBECONFIG=~/.kube/config cargo xtask e2e --modules-address 172.18.0.1:8446 \\\n      \
                      --image-registry registry.example.com/portcullis")]
    E2e(e2e::Wanted),
    /// Draw docs/break-and-mend.svg, the picture of the README, from a real run.
    ///
    /// Serves a copy of the examples on port 8443 of the loopback, breaks a policy and mends it. Takes curl.
    Picture,
    /// Run a program in its own network namespace; cargo starts the cluster tests with it.
    #[command(hide = true)]
    InOwnNetwork {
        /// The program and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        program: Vec<OsString>,
    },
    /// Check licences, sources and banned crates with cargo-deny, by the rules of `deny.toml`.
    Deny,
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    match command {
        Command::Run { dir, release, args } => programs::run(&workspace, dir, Profile::of(release), &args),
        Command::Build { release } => programs::build_all(&workspace, Profile::of(release)),
        Command::Test { no_cluster, filter, list, args } => {
            test::run(&workspace, &test::Wanted { filter: filter.unwrap_or_default(), list, no_cluster, args })
        }
        Command::Lint => lint::run(&workspace),
        Command::Boundaries => boundaries::run(&workspace),
        Command::Generate { check, fault_rows, definitions } => {
            if let Some(path) = fault_rows {
                Outcomes::read(&path)?.write(&workspace.root.join(outcomes::KEPT))?;
            }
            generate::run(&workspace, check, definitions.as_deref())
        }
        Command::Guests { names, opt_level, out } => build_guests(&names, opt_level.as_deref(), out),
        Command::Images(wanted) => images::run(&workspace, &wanted),
        Command::Pgo { args } => pgo::run(&workspace, &args),
        Command::Bench { args } => bench::run(&workspace, &args),
        Command::Cluster { args } => cluster::run(&workspace, &args),
        Command::EarlierRelease => cluster::run(&workspace, &["earlier-release".into()]),
        Command::E2e(wanted) => e2e::run(&workspace, &wanted),
        Command::Picture => picture::run(&workspace),
        Command::InOwnNetwork { program } => network::become_in_own(&program),
        Command::Deny => deny::run(&workspace),
    }
}

fn build_guests(names: &[String], opt_level: Option<&str>, out: Option<PathBuf>) -> Result<ExitCode> {
    match (out, opt_level) {
        (None, None) => guests::build(names)?,
        (out, opt_level) => guests::build_into(&out.unwrap_or_else(guests::output_dir), names, opt_level)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn bench_passes_everything_on_its_help_included() {
        let args = Args::try_parse_from(["xtask", "bench", "evaluate", "--help", "-o", "json"]).unwrap();
        let Command::Bench { args } = args.command else { panic!("another command") };
        assert_eq!(args, ["evaluate", "--help", "-o", "json"]);
    }

    #[test]
    fn cluster_passes_on_what_is_for_kubectl() {
        let args = Args::try_parse_from(["xtask", "cluster", "kubectl", "--", "get", "ns", "-o", "json"]).unwrap();
        let Command::Cluster { args } = args.command else { panic!("another command") };
        assert_eq!(args, ["kubectl", "--", "get", "ns", "-o", "json"]);
    }

    #[test]
    fn run_keeps_arguments_of_portcullis_apart() {
        let args = Args::try_parse_from(["xtask", "run", "policies", "--", "--plain-http"]).unwrap();
        let Command::Run { dir, release, args } = args.command else { panic!("another command") };
        assert_eq!((dir, release, args), (Some("policies".into()), false, vec!["--plain-http".into()]));
    }
}
