//! Tests of the chart's promises, in a new cluster with a node or in an existing one.

use std::env;
use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::workspace::Workspace;
use crate::{cluster, images, network, test_images, tools};

/// The binary of these tests.
pub(crate) const TESTS: &str = "chart_promises";

/// The environment variable with the folder for evidence of failed tests.
const LOGS: &str = "PORTCULLIS_E2E_LOGS";

/// The tests run one after the other, because they share an installation.
const ARGS: [&str; 3] = ["--include-ignored", "--test-threads", "1"];

/// What to test, and where.
#[derive(clap::Args)]
pub(crate) struct Wanted {
    /// Test optimised images, as users get them.
    #[arg(long)]
    release: bool,
    /// With KUBECONFIG: the registry and prefix from which that cluster gets the images. [default: that of the chart]
    #[arg(long, value_name = "PREFIX", requires = "modules_address")]
    image_registry: Option<String>,
    /// With KUBECONFIG: the tag of the images. [default: that of the chart]
    #[arg(long, value_name = "TAG", requires = "modules_address")]
    image_tag: Option<String>,
    /// With KUBECONFIG: IP:PORT at which pods of that cluster reach this machine, for modules of policies. The port must be free.
    #[arg(long, value_name = "IP:PORT")]
    modules_address: Option<std::net::SocketAddr>,
    /// How long the test of random faults takes, like `1h`; each fault is shown as it happens. [default: a minute]
    #[arg(long, value_name = "TIME")]
    faults_for: Option<String>,
    /// The seed of the random faults, to repeat those of an earlier run. [default: another one each time]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Arguments for the tests, for instance a part of a test's name.
    #[arg(last = true)]
    args: Vec<OsString>,
}

/// Runs the tests against the cluster that KUBECONFIG names, or otherwise against one that they start.
pub(crate) fn run(workspace: &Workspace, wanted: &Wanted) -> Result<ExitCode> {
    let mut test = workspace.cargo("test");
    match env::var_os("KUBECONFIG").filter(|path| !path.is_empty()) {
        Some(kubeconfig) => against_others(&mut test, &kubeconfig, wanted)?,
        None => {
            ensure!(wanted.modules_address.is_none(), "--modules-address is for a cluster that KUBECONFIG names");
            tools::node()?;
            cluster::build(workspace)?;
            let folder = test_images::folder(workspace, wanted.release);
            images::run(workspace, &images::Wanted::all(!wanted.release, &folder))?;
            network::own(&mut test)?;
            test.env(test_images::VARIABLE, folder);
        }
    }
    complete(&mut test, workspace, &wanted.args);
    choose_faults(&mut test, wanted);
    let status = test.status().context("failed to start cargo")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

fn against_others(test: &mut Command, kubeconfig: &OsString, wanted: &Wanted) -> Result<()> {
    let modules = wanted.modules_address.with_context(|| {
        format!(
            "KUBECONFIG names a cluster, {}: say with --modules-address at which IP:PORT its pods reach this machine, or unset \
             KUBECONFIG for a cluster of the tests' own",
            kubeconfig.display()
        )
    })?;
    println!("testing the cluster of {}", kubeconfig.display());
    test.env("PORTCULLIS_E2E_KUBECONFIG", kubeconfig).env("PORTCULLIS_E2E_MODULES_ADDRESS", modules.to_string());
    for (name, value) in [("REGISTRY", &wanted.image_registry), ("TAG", &wanted.image_tag)] {
        if let Some(value) = value {
            test.env(format!("PORTCULLIS_E2E_IMAGE_{name}"), value);
        }
    }
    Ok(())
}

/// Adds the settings of random faults to the command of a test.
fn choose_faults(test: &mut Command, wanted: &Wanted) {
    if wanted.faults_for.is_some() || wanted.seed.is_some() {
        // Their progress is shown, because they take minutes.
        test.arg("--nocapture");
    }
    for (name, value) in [("FAULTS_FOR", wanted.faults_for.clone()), ("SEED", wanted.seed.map(|seed| seed.to_string()))]
    {
        if let Some(value) = value {
            test.env(format!("PORTCULLIS_E2E_{name}"), value);
        }
    }
}

/// Adds the arguments that choose the tests to a `cargo test` that will find images in [`test_images::folder`].
fn complete(test: &mut Command, workspace: &Workspace, args: &[OsString]) {
    test.args(["--quiet", "--no-fail-fast", "--package", cluster::PACKAGE, "--test", TESTS]).args(args);
    if !args.iter().any(|arg| arg == "--") {
        test.arg("--");
    }
    test.args(ARGS).env(LOGS, workspace.target.join("e2e"));
}

/// The environment of the tests in `cargo xtask test`: a cluster of their own, with images for tests.
pub(crate) fn set_up(test: &mut Command, workspace: &Workspace) {
    test.args(ARGS).env(LOGS, workspace.target.join("e2e"));
    test.env(test_images::VARIABLE, test_images::folder(workspace, false)).env_remove("PORTCULLIS_E2E_KUBECONFIG");
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Words {
        #[command(flatten)]
        wanted: Wanted,
    }

    #[test]
    fn random_faults_are_chosen_by_flags_and_shown() {
        let chosen = |words: &[&str]| {
            let mut test = Command::new("test");
            choose_faults(&mut test, &Words::parse_from([&["e2e"], words].concat()).wanted);
            let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
            let set = test.get_envs().filter_map(|(name, value)| Some(format!("{}={}", text(name), text(value?))));
            test.get_args().map(text).chain(set).collect::<Vec<_>>()
        };
        let both = ["--nocapture", "PORTCULLIS_E2E_FAULTS_FOR=1h", "PORTCULLIS_E2E_SEED=17"];
        assert_eq!(chosen(&["--faults-for", "1h", "--seed", "17", "--", "fault_k12"]), both);
        assert_eq!(chosen(&["--", "fault_k12"]), Vec::<String>::new());
    }
}
