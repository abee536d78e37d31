//! Where a chart is tested: a cluster with a node that this process starts, or an existing one.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::api::Api;
use crate::client::Client;
use crate::helm::Helm;
use crate::kubectl::Kubectl;
use crate::source::{self, Source};
use crate::{Cache, Cluster, Kubernetes, Name, Options, Output, files, guard};

/// The variable with the kubeconfig of an existing cluster; without it, a cluster is started.
const KUBECONFIG: &str = "PORTCULLIS_E2E_KUBECONFIG";
/// The variable with the folder of images for a cluster of our own, as `cargo xtask images` makes them.
const IMAGES: &str = "PORTCULLIS_IMAGES_DIR";
/// The variable with the prefix of image references from which an existing cluster gets the images.
const IMAGE_REGISTRY: &str = "PORTCULLIS_E2E_IMAGE_REGISTRY";
/// The variable with the tag of these image references.
const IMAGE_TAG: &str = "PORTCULLIS_E2E_IMAGE_TAG";
/// The variable with the address at which pods of an existing cluster reach this machine, with a free port.
const MODULES_ADDRESS: &str = "PORTCULLIS_E2E_MODULES_ADDRESS";

/// The images that the chart names.
const NAMES: [&str; 5] = ["loader", "evaluator", "reporter", "controller", "portcullis"];

/// How long kubectl may take.
const KUBECTL_LIMIT: Duration = Duration::from_secs(900);

/// A cluster to install into.
pub struct Site {
    kind: ClusterKind,
    kubeconfig: PathBuf,
    kubernetes: Kubernetes,
    helm: Helm,
    api: Api,
    folder: PathBuf,
}

enum ClusterKind {
    Own(Box<Cluster>),
    Other { proxy: Child, modules: SocketAddr },
}

impl Site {
    /// The cluster that the environment names, or a new one with a node, with the images on it.
    ///
    /// # Panics
    /// When there is no such cluster; says what is missing.
    pub fn from_env() -> Self {
        portcullis_testkit::report_panics();
        let cache = Cache::from_env().unwrap_or_else(|error| panic!("{error}"));
        let tell = |line: &str| eprintln!("{line}");
        let helm = Helm::build(&cache, &tell).unwrap_or_else(|error| panic!("{error}"));
        let kubernetes = Kubernetes::build(&cache, &tell).unwrap_or_else(|error| panic!("{error}"));
        match set(KUBECONFIG) {
            Some(kubeconfig) => Self::other(&cache, kubeconfig.into(), kubernetes, helm),
            None => Self::own(&Options::default(), kubernetes, helm),
        }
    }

    /// A new cluster of this name with a node, with the images on it.
    ///
    /// # Panics
    /// When it cannot be started; says what is missing.
    pub fn named(name: Name) -> Self {
        Self::new(&Options { name: Some(name), ..Options::default() })
    }

    /// A new cluster with a node and `count` API servers, with the images on it.
    ///
    /// # Panics
    /// When it cannot be started; says what is missing.
    pub fn with_api_servers(count: u8) -> Self {
        Self::new(&Options { api_servers: count, ..Options::default() })
    }

    fn new(options: &Options) -> Self {
        let cache = Cache::from_env().unwrap_or_else(|error| panic!("{error}"));
        let tell = |line: &str| eprintln!("{line}");
        let helm = Helm::build(&cache, &tell).unwrap_or_else(|error| panic!("{error}"));
        let kubernetes = Kubernetes::build(&cache, &tell).unwrap_or_else(|error| panic!("{error}"));
        Self::own(options, kubernetes, helm)
    }

    fn own(options: &Options, kubernetes: Kubernetes, helm: Helm) -> Self {
        let options = Options { node: true, ..options.clone() };
        let cluster = Cluster::start(&options).unwrap_or_else(|error| panic!("{error}"));
        let folder = set(IMAGES).map_or_else(|| crate::repository().join("target/images"), PathBuf::from);
        for name in NAMES {
            let archive = folder.join(format!("{name}.tar"));
            assert!(archive.is_file(), "{} is not there: run `cargo xtask e2e`, which makes it", archive.display());
            cluster.import_image(&archive);
        }
        Self {
            kubeconfig: cluster.kubeconfig(),
            api: cluster.api(),
            folder: cluster.folder().to_owned(),
            kind: ClusterKind::Own(Box::new(cluster)),
            kubernetes,
            helm,
        }
    }

    fn other(cache: &Cache, kubeconfig: PathBuf, kubernetes: Kubernetes, helm: Helm) -> Self {
        let words = "say with --modules-address at which IP:PORT pods of that cluster reach this machine";
        let modules = set(MODULES_ADDRESS).and_then(|address| address.parse().ok()).expect(words);
        // kubectl's cache distinguishes clusters by their addresses, so the folder can be shared.
        let folder = cache.root().join("kubectl");
        files::make_folder(&folder).unwrap_or_else(|error| panic!("{error}"));
        let (proxy, address) = start_proxy(&kubernetes, &kubeconfig, &folder);
        let api = Api::new(Arc::new(Client::through_proxy()), vec![address]);
        Self { kind: ClusterKind::Other { proxy, modules }, kubeconfig, kubernetes, helm, api, folder }
    }

    /// The cluster, if this process started it: then the processes of its node are processes of this machine.
    pub fn own_cluster(&self) -> Option<&Cluster> {
        match &self.kind {
            ClusterKind::Own(cluster) => Some(cluster),
            ClusterKind::Other { .. } => None,
        }
    }

    /// Its API, as an administrator.
    pub fn api(&self) -> Api {
        self.api.clone()
    }

    /// Runs the real kubectl as an administrator.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn kubectl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Output {
        self.kubectl_with(args, "")
    }

    /// [`Site::kubectl`], with this text as its standard input.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn kubectl_with<'a>(&self, args: impl IntoIterator<Item = &'a str>, input: &str) -> Output {
        Kubectl::new(&self.kubernetes, &self.kubeconfig, &self.folder).run(args, input, KUBECTL_LIMIT)
    }

    /// Runs the real helm, with this text as its standard input.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn helm<'a>(&self, args: impl IntoIterator<Item = &'a str>, input: &str) -> Output {
        self.helm.run(Some(&self.kubeconfig), args, input)
    }

    /// A source of modules for pods of this cluster.
    pub(crate) fn start_source(&self) -> Source {
        match &self.kind {
            ClusterKind::Own(cluster) => {
                let address = SocketAddr::from((cluster.pod_address(), source::PORT));
                Source::listen(address, address)
            }
            ClusterKind::Other { modules, .. } => Source::listen(([0, 0, 0, 0], modules.port()).into(), *modules),
        }
    }

    /// The chart's values for the prefix and the tag of images; if absent, the chart's defaults apply.
    pub(crate) fn images(&self) -> (Option<String>, Option<String>) {
        match &self.kind {
            ClusterKind::Own(_) => (None, None),
            ClusterKind::Other { .. } => (set(IMAGE_REGISTRY), set(IMAGE_TAG)),
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let ClusterKind::Other { proxy, .. } = &mut self.kind {
            guard::forget(proxy.id());
            // It may have ended already.
            let _ = proxy.kill();
            let _ = proxy.wait();
        }
    }
}

/// `kubectl proxy` at a free port of the loopback. It supports every way of logging in to a cluster.
fn start_proxy(kubernetes: &Kubernetes, kubeconfig: &Path, folder: &Path) -> (Child, SocketAddr) {
    let mut command = Kubectl::new(kubernetes, kubeconfig, folder).into_command();
    command.args(["proxy", "--port=0"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.process_group(0);
    let mut proxy = command.spawn().unwrap_or_else(|error| panic!("failed to start kubectl proxy: {error}"));
    guard::watch(proxy.id());
    let mut line = String::new();
    let output = proxy.stdout.as_mut().expect("standard output is a pipe");
    let _ = BufReader::new(output).read_line(&mut line);
    let address = line.trim().rsplit(' ').next().and_then(|address| address.parse().ok());
    (proxy, address.unwrap_or_else(|| panic!("kubectl proxy names no address: {line:?}")))
}

fn set(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
