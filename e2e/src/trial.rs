//! The command `run`: a cluster with Portcullis in it, for users who want to see `kubectl apply` enforce something.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use portcullis_e2e::{
    Cache, Cluster, Installation, InstallationOptions, Name, Options, POD_IMAGE, Release, Site, Source, VERSION,
};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The folder of examples in a checkout.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

/// Starts everything, prints how to use it, and runs until a signal.
pub(crate) fn run(cache: &Cache, name: &Name, replicas: usize) -> Result<()> {
    // From here on, a signal waits until everything has started, so that nothing is left behind.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("failed to wait for signals")?;
    let start = Instant::now();
    eprintln!("starting Kubernetes {VERSION}");
    let options = Options { name: Some(name.clone()), cache: Some(cache.clone()), ..Options::default() };
    let cluster = Cluster::start(&options)?;
    eprintln!("installing Portcullis: a controller, and {replicas} replicas of the policy server");
    let installation = Installation::start(&cluster, InstallationOptions::default()).with(replicas);
    let examples = copy_examples(installation.source(), &cluster.folder().join("examples"))?;
    let nodes = "There are no nodes: pods are judged and stored, and nothing runs them.";
    println!("{}", hello(&cluster, name, &examples, replicas, start, nodes));
    signals.forever().next();
    eprintln!("\nending everything");
    drop(installation);
    Ok(())
}

/// The same with a node, on which pods run, and with the chart as users install it.
pub(crate) fn run_on_node(name: &Name, replicas: usize) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("failed to wait for signals")?;
    let start = Instant::now();
    eprintln!("starting Kubernetes {VERSION} with a node");
    let site = Site::named(name.clone());
    let cluster = site.own_cluster().context("the cluster is not our own")?;
    eprintln!("installing the chart, with {replicas} replicas of the policy server");
    let release = Release::new(&site, "portcullis");
    // The examples do not name a policy server, so they use the default one.
    let installed = release.install(&json!({ "policyServer": "default", "server": { "replicas": replicas } }));
    ensure!(installed.is_ok(), "failed to install the chart: {}", installed.stderr);
    let examples = copy_examples(release.source(), &cluster.folder().join("examples"))?;
    let nodes =
        format!("The node runs pods of the image {POD_IMAGE},\nand of what `cargo xtask cluster import` puts there.");
    println!("{}", hello(cluster, name, &examples, replicas, start, &nodes));
    signals.forever().next();
    eprintln!("\nending everything");
    Ok(())
}

/// Copies the examples, and adapts the addresses of their modules.
fn copy_examples(source: &Source, folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
    for entry in fs::read_dir(EXAMPLES).context("failed to list the examples")? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let mut text = fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        for module in fs::read_dir(Path::new(EXAMPLES).join("modules"))? {
            let module = module?;
            let file = module.file_name().to_string_lossy().into_owned();
            source.put(&format!("/{file}"), fs::read(module.path())?);
            text = text.replace(&format!("modules/{file}"), &source.url(&format!("/{file}")));
        }
        let copy = folder.join(entry_name(&path));
        fs::write(&copy, text).with_context(|| format!("failed to write {}", copy.display()))?;
    }
    Ok(folder.to_owned())
}

fn entry_name(path: &Path) -> &Path {
    path.file_name().map_or(path, Path::new)
}

fn hello(cluster: &Cluster, name: &Name, examples: &Path, replicas: usize, start: Instant, nodes: &str) -> String {
    let (kubeconfig, examples, seconds) = (cluster.kubeconfig(), examples.display(), start.elapsed().as_secs_f64());
    format!(
        "Kubernetes {VERSION} and Portcullis with {replicas} replicas are up after {seconds:.1} s. {nodes}\n\
         In another terminal:\n\n  \
         export KUBECONFIG={}\n  \
         kubectl apply -f {examples}/no-privileged.yaml\n  \
         kubectl wait --for=condition=Ready clusterpolicy/no-privileged\n  \
         kubectl run web --image=example.com/web --privileged     # is denied\n  \
         kubectl describe clusterpolicy no-privileged\n\n\
         Without a kubectl of your own: cargo xtask cluster kubectl --name {name} -- get clusterpolicies\n\
         Ctrl-C ends everything.",
        kubeconfig.display(),
    )
}
