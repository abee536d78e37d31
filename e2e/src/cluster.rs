//! A cluster that this process started.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use crate::api::Api;
use crate::client::Client;
use crate::component::Component;
use crate::kubeconfig::Credentials;
use crate::kubectl::Kubectl;
use crate::layout::Layout;
use crate::network::{self, Kind};
use crate::slots::Slots;
use crate::start::{self, Started};
use crate::state_file::{Member, StateFile};
use crate::{Cache, Error, Kubernetes, Name, Output, audit_log, files, lock, node, node_ready};

/// How many API servers one cluster can have.
pub const MAX_API_SERVERS: u8 = 8;

/// The last part of the first address that is free for pods: the ones before it are for API servers and other parts of
/// the cluster.
const FIRST_POD: u8 = 32;

/// The last part of the first address of a source.
const FIRST_SOURCE: u8 = 1;

/// How long kubectl may take. It repeats calls that were answered with a Retry-After, and waits until deleted objects
/// are gone.
const KUBECTL_LIMIT: Duration = Duration::from_secs(900);

/// What kind of cluster to start.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its name; if absent, a new one that no other cluster has.
    pub name: Option<Name>,
    /// The number of API servers, on one etcd. More than one needs root.
    pub api_servers: u8,
    /// Whether it has a node, on which pods run: with kubelet, containerd, kube-proxy, a scheduler, and DNS. Takes root, and the
    /// Debian packages containerd, runc, containernetworking-plugins and nftables or the like.
    pub node: bool,
    /// The cache folder; if absent, the one that the environment names.
    pub cache: Option<Cache>,
    /// The size that etcd's database may have, in bytes; if absent, etcd's default, 2 GiB. A control plane alone takes a few MiB.
    pub etcd_quota: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { name: None, api_servers: 1, node: false, cache: None, etcd_quota: None }
    }
}

/// A control plane with etcd, API servers and the controllers of Kubernetes, and with a node if one is asked for.
///
/// It ends when this is dropped, so drop its clients before. It also ends when this process ends in any other way, for instance when
/// it is killed, or with the cluster in a `static`, which is never dropped. Files and routes that are left then are removed by the
/// next cluster that starts, or by `cargo xtask cluster down --all`.
pub struct Cluster {
    cache: Cache,
    kubernetes: Kubernetes,
    pub(crate) layout: Layout,
    state: Mutex<StateFile>,
    pub(crate) started: Mutex<Vec<Started>>,
    client: Arc<Client>,
    pods: AtomicU8,
    sources: AtomicU8,
    proxies: AtomicU8,
    /// Set once the custom resource definitions are served.
    pub(crate) definitions: OnceLock<()>,
}

impl Cluster {
    /// Starts a cluster, and returns when it is ready: after about five seconds on an idle machine, and after some minutes the
    /// first time ever, when Kubernetes is built. From then on, panics of this process are reported at once, because tests
    /// with clusters take minutes.
    ///
    /// # Errors
    /// When Kubernetes cannot be built, there is no room for one more cluster, or a component does not become ready.
    pub fn start(options: &Options) -> Result<Self, Error> {
        portcullis_testkit::report_panics();
        if !(1..=MAX_API_SERVERS).contains(&options.api_servers) {
            return Err(Error::ApiServers { asked: options.api_servers, max: MAX_API_SERVERS });
        }
        let kind = Kind::possible();
        if options.api_servers > 1 && kind == Kind::Loopback {
            return Err(Error::NeedsRoutes(options.api_servers));
        }
        if options.node {
            node::check_needs()?;
        }
        let cache = options.cache.clone().map_or_else(Cache::from_env, Ok)?;
        let kubernetes = Kubernetes::build(&cache, &|line| eprintln!("{line}"))?;
        let name = options.name.clone().unwrap_or_else(Name::unused);
        let mut cluster = Self::claim(cache, kubernetes, &name, options, kind)?;
        // From here on an error removes what was made, by dropping the cluster.
        cluster.bring_up()?;
        Ok(cluster)
    }

    fn claim(cache: Cache, kubernetes: Kubernetes, name: &Name, options: &Options, kind: Kind) -> Result<Self, Error> {
        let slots = Slots::take(&cache)?;
        slots.clean()?;
        let (state, folder) = slots.claim(name.as_str(), options.api_servers, options.node, kind)?;
        drop(slots);
        let layout = Layout { etcd_quota: options.etcd_quota, ..state.layout(&folder) };
        let client = match start::write_files(&layout).and_then(|()| Client::new(&layout)) {
            Ok(client) => Arc::new(client),
            Err(error) => {
                Slots::take(&cache)?.give_back(&state, &folder)?;
                return Err(error);
            }
        };
        let (state, started) = (Mutex::new(state), Mutex::default());
        Ok(Self {
            cache,
            kubernetes,
            layout,
            state,
            started,
            client,
            pods: AtomicU8::new(FIRST_POD),
            sources: AtomicU8::new(FIRST_SOURCE),
            proxies: AtomicU8::new(0),
            definitions: OnceLock::new(),
        })
    }

    fn bring_up(&mut self) -> Result<(), Error> {
        self.layout.network.up()?;
        for component in Component::in_order(&self.layout) {
            self.spawn(component)?;
            self.wait_for(component)?;
        }
        self.wait_until_ready()
    }

    pub(crate) fn wait_until_ready(&self) -> Result<(), Error> {
        start::wait_for_controllers(&self.layout, &self.client, &mut lock(&self.started))?;
        if self.layout.node.is_some() { self.wait_for_node() } else { Ok(()) }
    }

    pub(crate) fn wait_for_node(&self) -> Result<(), Error> {
        node_ready::wait_for_node(&self.layout, &self.client, &mut lock(&self.started))
    }

    pub(crate) fn wait_for(&self, component: Component) -> Result<(), Error> {
        match component {
            Component::ApiServer(number) => {
                start::wait_for_api_server(&self.layout, &self.client, &mut lock(&self.started), number)?;
                let needs_right = number == 1 && self.layout.node.is_some();
                if !needs_right {
                    return Ok(());
                }
                node_ready::allow_kubelet_api(&self.layout, &self.client, &mut lock(&self.started))
            }
            _ => node_ready::wait_for_part(&self.cache, &self.layout, &mut lock(&self.started), component),
        }
    }

    pub(crate) fn spawn(&self, component: Component) -> Result<(), Error> {
        if let (Component::Node, Some(node)) = (component, &self.layout.node) {
            node.prepare(&self.layout)?;
        }
        let node = lock(&self.started).iter().find(|one| one.component == Component::Node).map(|one| one.process.pid);
        let started = start::spawn(&self.kubernetes, &self.layout, component, node)?;
        let process = started.process.clone();
        lock(&self.started).push(started);
        let (mut state, name) = (lock(&self.state), component.to_string());
        state.members.retain(|member| member.name != name);
        state.members.push(Member { name, process });
        state.write(self.layout.folder())
    }

    /// Whether nothing of this process can leave the machine: it runs in a network namespace of its own, with the loopback as its only
    /// interface. Tests and benchmarks that load a cluster, or break its network, run only in one; `cargo xtask test` starts them so.
    pub fn own_network() -> bool {
        network::is_cut_off()
    }

    /// Checks [`Cluster::own_network`], for tests and benchmarks that must not run elsewhere.
    ///
    /// # Panics
    /// When it is false; the message says how to run them.
    pub fn require_own_network() {
        let how = "`cargo xtask test --filter cluster` starts it in a network namespace of its own";
        assert!(Self::own_network(), "this loads a network and may not run in that of the machine: {how}");
    }

    /// Detaches it from this process: it runs until `cargo xtask cluster down`.
    ///
    /// # Errors
    /// When its state file cannot be written.
    pub fn detach(self) -> Result<(), Error> {
        let mut state = lock(&self.state);
        state.detached = true;
        state.write(self.layout.folder())?;
        drop(state);
        for started in &mut *lock(&self.started) {
            if let Some(pipe) = &mut started.child.stdin {
                // If a component has ended, the others still run on: the status shows it.
                let _ = pipe.write_all(b".");
            }
        }
        Ok(())
    }

    /// The kubeconfig of an administrator, with a context for each API server: `api-server-1`, which is current, and so on.
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    /// The addresses of the API servers.
    pub fn api_servers(&self) -> Vec<SocketAddr> {
        self.layout.api_server_numbers().map(|number| self.layout.api_server(number)).collect()
    }

    /// Its folder. It is removed with the cluster, so a test may put files of its own there.
    pub fn folder(&self) -> &Path {
        self.layout.folder()
    }

    /// Runs the real kubectl as an administrator.
    ///
    /// # Panics
    /// When kubectl cannot be started.
    pub fn kubectl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Output {
        self.kubectl_as(&self.kubeconfig(), args, "")
    }

    /// Runs the real kubectl with a kubeconfig, with this text as its standard input.
    ///
    /// # Panics
    /// When kubectl cannot be started.
    pub fn kubectl_as<'a>(&self, kubeconfig: &Path, args: impl IntoIterator<Item = &'a str>, input: &str) -> Output {
        self.kubectl_within(KUBECTL_LIMIT, kubeconfig, args, input)
    }

    /// [`Cluster::kubectl_as`], killed when it has not ended after `limit`; its exit status is then absent.
    ///
    /// # Panics
    /// When kubectl cannot be started.
    pub fn kubectl_within<'a>(
        &self,
        limit: Duration,
        kubeconfig: &Path,
        args: impl IntoIterator<Item = &'a str>,
        input: &str,
    ) -> Output {
        Kubectl::new(&self.kubernetes, kubeconfig, self.layout.folder()).run(args, input, limit)
    }

    /// `kubectl apply` of these objects, as an administrator.
    ///
    /// # Panics
    /// When kubectl cannot be started.
    pub fn apply(&self, objects: &str) -> Output {
        self.kubectl_as(&self.kubeconfig(), ["apply", "--filename=-"], objects)
    }

    /// `kubectl apply --server-side` of these objects, as an administrator. Others may apply the same at the same time.
    ///
    /// # Panics
    /// When kubectl cannot be started.
    pub fn apply_server_side(&self, objects: &str) -> Output {
        let apply = ["apply", "--server-side", "--force-conflicts", "--filename=-"];
        self.kubectl_as(&self.kubeconfig(), apply, objects)
    }

    /// Writes a kubeconfig with this token. Its current context is the first API server.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn kubeconfig_for(&self, token: &str) -> PathBuf {
        self.kubeconfig_at(token, 1)
    }

    /// [`Cluster::kubeconfig_for`], with another API server as the current one; they are counted from 1.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn kubeconfig_at(&self, token: &str, api_server: u8) -> PathBuf {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = self.layout.file("kubeconfigs").join(number.to_string());
        let text = start::render(&self.layout, api_server, Credentials::Token(token));
        let written =
            files::make_folder(&self.layout.file("kubeconfigs")).and(text).and_then(|text| files::write(&path, &text));
        written.unwrap_or_else(|error| panic!("{error}"));
        path
    }

    /// A kubeconfig with the token of this file, for one of the API servers or for another address.
    pub(crate) fn kubeconfig_text(&self, token_file: &Path, api_server: u8, at: Option<SocketAddr>) -> String {
        let credentials = Credentials::TokenFile(token_file);
        let text = match at {
            Some(address) => start::render_at(&self.layout, address, credentials),
            None => start::render(&self.layout, api_server, credentials),
        };
        text.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Its API, as an administrator: for requests that are too frequent for kubectl.
    pub fn api(&self) -> Api {
        Api::new(Arc::clone(&self.client), self.api_servers())
    }

    /// An address for a process that stands in for a pod, a different one each time. API servers and processes of this
    /// machine reach it, and an EndpointSlice accepts it, unless the cluster is on loopback addresses because the test is
    /// not root.
    ///
    /// # Panics
    /// When all of them are in use.
    pub fn pod_address(&self) -> Ipv4Addr {
        let number = self.pods.fetch_add(1, Ordering::Relaxed);
        assert!((FIRST_POD..u8::MAX).contains(&number), "a cluster has addresses for {} pods", u8::MAX - FIRST_POD);
        self.layout.network.host(number)
    }

    /// An address for a source of modules, a different one each time.
    pub(crate) fn source_address(&self) -> Ipv4Addr {
        let number = self.sources.fetch_add(1, Ordering::Relaxed);
        let all = FIRST_SOURCE..u8::MAX;
        assert!(all.contains(&number), "a cluster has addresses for {} sources", all.len());
        self.layout.network.source(number)
    }

    /// The address of the DNS of a cluster with a node.
    pub fn dns_address(&self) -> Ipv4Addr {
        self.layout.network.dns()
    }

    /// An address for a proxy; the certificate of proxies includes it.
    pub(crate) fn proxy_address(&self) -> SocketAddr {
        let number = self.proxies.fetch_add(1, Ordering::Relaxed);
        let mut free = self.layout.proxies().skip(usize::from(number));
        free.next().expect("a cluster has addresses for 16 proxies, one after the other")
    }

    /// The audit events of all API servers so far that have this text, for instance the name of an object or an account: those of one server
    /// after those of the other, at level Metadata. What an administrator and the components of the control plane read is not in it.
    pub fn audit_events(&self, text: &str) -> Vec<serde_json::Value> {
        let logs = self.layout.api_server_numbers().map(|number| self.layout.log(&format!("audit-{number}")));
        logs.flat_map(|log| audit_log::events(&log, text)).collect()
    }

    fn remove(&self) -> Result<(), Error> {
        for started in &mut *lock(&self.started) {
            started.process.kill()?;
            // The process that started it on the node ends with it.
            let _ = started.child.wait();
        }
        Slots::take(&self.cache)?.give_back(&lock(&self.state), self.layout.folder())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let state = lock(&self.state).clone();
        if state.detached {
            return;
        }
        if thread::panicking() {
            for component in Component::in_order(&self.layout) {
                let log = files::tail(&self.layout.log(&component.to_string()), 15);
                eprintln!("=== {component} of cluster {} wrote at last:\n{log}", state.name);
            }
        }
        if let Err(error) = self.remove() {
            eprintln!("warning: cluster {}: {error}; the next one that starts removes it", state.name);
        }
    }
}
