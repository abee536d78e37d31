//! The commands.

use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use portcullis_e2e::{
    Cache, Cluster, EarlierRelease, Error, HELM_VERSION, Health, Helm, Kubernetes, Name, Options, PodProgram, Running,
    VERSION, Which, fetch_report_definitions,
};
use serde::Serialize;

use crate::args::{Command, Form};
use crate::{table, trial};

pub(crate) fn run(command: Command) -> Result<ExitCode> {
    let cache = Cache::from_env()?;
    match command {
        Command::Up { named, api_servers, node, output } => {
            let (name, cache_folder) = (Some(named.name.clone()), Some(cache.clone()));
            let options = Options { name, api_servers, node, cache: cache_folder, ..Options::default() };
            up(&cache, &named.name, &options, output.output)?;
        }
        Command::Down { named, all, abandoned, output } => {
            let which = match (all, abandoned) {
                (true, _) => Which::All,
                (_, true) => Which::Abandoned,
                _ => Which::One(named.name),
            };
            down(&cache, &which, output.output)?;
        }
        Command::Status { output } => {
            let all = Running::list(&cache)?;
            print(&all, output.output, || table::clusters(&all))?;
        }
        Command::Run { named, replicas, node: false } => trial::run(&cache, &named.name, usize::from(replicas))?,
        Command::Run { named, replicas, node: true } => trial::run_on_node(&named.name, usize::from(replicas))?,
        Command::Kubectl { named, args } => {
            let kubernetes = Kubernetes::build(&cache, &|line| eprintln!("{line}"))?;
            let cluster = find(&cache, &named.name)?;
            let failed = cluster.kubectl(&kubernetes).args(args).exec();
            return Err(failed).context("failed to start kubectl");
        }
        Command::Helm { named, args } => {
            let helm = Helm::build(&cache, &|line| eprintln!("{line}"))?;
            let kubeconfig = find(&cache, &named.name)?.kubeconfig;
            let failed = helm.command(Some(&kubeconfig)).args(args).exec();
            return Err(failed).context("failed to start helm");
        }
        Command::Import { named, archives } => {
            let cluster = find(&cache, &named.name)?;
            for archive in archives {
                cluster.import_image(&archive)?;
            }
        }
        Command::EarlierRelease => {
            let release = EarlierRelease::build(&cache, &|line| eprintln!("{line}"))?;
            println!("{}", release.folder().display());
        }
        Command::Build { check } => {
            let tell = |line: &str| eprintln!("{line}");
            let (kubernetes, helm) = if check {
                let absent = |what: &str| format!("{what} is not in the cache");
                let kubernetes = Kubernetes::built(&cache).with_context(|| absent(&format!("Kubernetes {VERSION}")))?;
                (kubernetes, Helm::built(&cache).with_context(|| absent(&format!("helm {HELM_VERSION}")))?)
            } else {
                PodProgram::build(&cache, &tell)?;
                fetch_report_definitions(&cache);
                (Kubernetes::build(&cache, &tell)?, Helm::build(&cache, &tell)?)
            };
            println!("{}\n{}", kubernetes.program("kubernetes").display(), helm.program().display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn find(cache: &Cache, name: &Name) -> Result<Running> {
    Ok(Running::find(cache, name)?.ok_or_else(|| Error::NotUp(name.to_string()))?)
}

/// Finds the cluster, or starts it.
fn up(cache: &Cache, name: &Name, options: &Options, form: Form) -> Result<()> {
    let start = Instant::now();
    let found = Running::find(cache, name)?;
    let is_new = found.is_none();
    let cluster = match found {
        Some(cluster) => cluster,
        None => {
            Cluster::start(options)?.detach()?;
            Running::find(cache, name)?.with_context(|| format!("the cluster {name} ended at once"))?
        }
    };
    if let Some(owner) = cluster.owner {
        bail!("the cluster {name} belongs to process {owner} and ends with it: choose another --name");
    }
    let has = cluster.api_servers.len();
    ensure!(
        has == usize::from(options.api_servers),
        "the cluster {name} is up and has {has} API servers, not {}: `cargo xtask cluster down` it first",
        options.api_servers,
    );
    ensure!(
        cluster.node == options.node,
        "the cluster {name} is up and has {} node: `cargo xtask cluster down` it first",
        if cluster.node { "a" } else { "no" },
    );
    ensure!(
        cluster.state == Health::Up,
        "some processes of the cluster {name} have ended, see `cargo xtask cluster status`: `cargo xtask cluster down` it first",
    );
    print(&cluster, form, || table::up(&cluster, is_new.then(|| start.elapsed())))
}

fn down(cache: &Cache, which: &Which, form: Form) -> Result<()> {
    let names = Running::take_down(cache, which)?;
    print(&names, form, || {
        if names.is_empty() {
            match which {
                Which::Abandoned => "nothing was left\n".to_owned(),
                _ => "there was no such cluster\n".to_owned(),
            }
        } else {
            format!("down: {}\n", names.join(", "))
        }
    })
}

fn print(value: &impl Serialize, form: Form, text: impl FnOnce() -> String) -> Result<()> {
    match form {
        Form::Json => println!("{}", serde_json::to_string_pretty(value)?),
        Form::Text => print!("{}", text()),
    }
    Ok(())
}
