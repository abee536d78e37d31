//! Makes the object, the folder and the processes of a pod.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Mutex;

use super::Installation;
use super::intervals::Intervals;
use super::mount::Mount;
use super::pod::{self, Container, EVALUATOR_STATE, LOADER_STATE, Pod, TOKEN};
use super::setup::PodSetup;
use crate::chart_names::{CONTROLLER_ACCOUNT, LOADER_MEMORY, POLICY_SERVER_ACCOUNT, SERVICE};
use crate::files;
use crate::program::{Launch, Process, Program};
use crate::stand_in::{self, NODE, StandIn};

impl PodSetup {
    /// A pod with loader, evaluator and reporter.
    pub(super) fn replica(self, installation: &Installation<'_>) -> Pod {
        let programs = [Program::Loader, Program::Evaluator, Program::Reporter];
        self.pod(installation, POLICY_SERVER_ACCOUNT, "portcullis-policy-server", &programs)
    }

    /// A pod with the controller.
    pub(super) fn controller(self, installation: &Installation<'_>) -> Pod {
        self.pod(installation, CONTROLLER_ACCOUNT, "portcullis-controller", &[Program::Controller])
    }

    fn pod(&self, installation: &Installation<'_>, account: &str, app: &str, programs: &[Program]) -> Pod {
        let (cluster, namespace) = (installation.cluster(), installation.namespace());
        let name = self.name.clone().expect("it was given one");
        let labels =
            [("app.kubernetes.io/name", app), ("policies.portcullis.dev/policy-server", installation.policy_server())];
        let api = installation.api();
        let address = cluster.pod_address();
        let object = StandIn { namespace, name: &name, service_account: account, labels: &labels, address: None };
        let uid = stand_in::create(&api, &object);
        let folder = cluster.folder().join("pods").join(&uid);
        for part in ["volume", "private"] {
            files::make_folder(&folder.join(part)).unwrap_or_else(|error| panic!("{error}"));
        }
        let mut token = Mount::new(folder.join("account")).expect("the folder can be written");
        let first = stand_in::token(&api, namespace, account, &name, &uid);
        token.put(pod::token_file(&first)).expect("the folder can be written");
        fs::write(folder.join("source-ca.pem"), installation.source().authority()).expect("the folder can be written");
        let mount = |name: &str, secret: String| {
            let mount = Mount::new(folder.join(name)).expect("the folder can be written");
            (secret, Mutex::new(mount))
        };
        let mut mounts = Vec::new();
        if programs.contains(&Program::Evaluator) {
            mounts.push(mount("tls", installation.tls_secret()));
            mounts.push(mount("paths", installation.paths_secret()));
        }
        if self.siblings.is_some() {
            mounts.push(mount("siblings", format!("portcullis-{}-siblings", installation.policy_server())));
        }
        let is_left_out = |program: &&Program| !self.without.contains(program);
        let containers = programs.iter().filter(is_left_out).map(|&program| {
            let probes = SocketAddr::from((address, probe_port(program)));
            let kubeconfig = self.kubeconfig(installation, &folder, program);
            let siblings = self.siblings.as_deref();
            let own = Own { installation, name: &name, uid: &uid, address, folder: &folder, siblings };
            let process = Process::start(Launch {
                name: format!("{namespace}/{name} {program}"),
                program,
                args: self.args(program, own.flags(program)),
                env: self.environment(program, kubeconfig),
            });
            Container::new(program, process, probes)
        });
        Pod {
            api: api.clone(),
            namespace: namespace.to_owned(),
            containers: containers.collect(),
            name: name.clone(),
            uid: uid.clone(),
            address,
            folder: folder.clone(),
            token: Mutex::new(token),
            mounts,
            intervals: if self.is_probed_rarely { Intervals::LONG } else { Intervals::SHORT },
            is_ready: false.into(),
            is_alone: false.into(),
            has_ended: false.into(),
            thread: Mutex::default(),
        }
    }

    /// The kubeconfig of a program. The evaluator has none, as no token is mounted into it.
    fn kubeconfig(&self, installation: &Installation<'_>, folder: &Path, program: Program) -> Option<String> {
        if program == Program::Evaluator {
            return None;
        }
        let through = self.servers.iter().rev().find(|(whose, _)| *whose == program).map(|(_, address)| *address);
        let path = folder.join(format!("{program}.kubeconfig"));
        let cluster = installation.cluster();
        let text = cluster.kubeconfig_text(&folder.join(TOKEN), 1, through);
        files::write(&path, &text).unwrap_or_else(|error| panic!("{error}"));
        Some(path.display().to_string())
    }

    fn args(&self, program: Program, mut flags: Vec<(String, String)>) -> Vec<String> {
        for (_, flag, value) in self.args.iter().filter(|(whose, ..)| *whose == program) {
            flags.retain(|(name, _)| name != flag);
            flags.push((flag.clone(), value.clone()));
        }
        flags.into_iter().flat_map(|(flag, value)| [flag, value]).collect()
    }

    fn environment(&self, program: Program, kubeconfig: Option<String>) -> Vec<(String, String)> {
        let own = self.env.iter().filter(|(whose, ..)| *whose == program);
        let own = own.map(|(_, name, value)| (name.clone(), value.clone()));
        let kubeconfig = kubeconfig.map(|path| ("KUBECONFIG".to_owned(), path));
        let (name, value) = LOADER_MEMORY;
        let memory = (program == Program::Loader).then(|| (name.to_owned(), value.to_owned()));
        kubeconfig.into_iter().chain(memory).chain(own).collect()
    }
}

fn probe_port(program: Program) -> u16 {
    match program {
        Program::Evaluator => 8081,
        Program::Loader => 8082,
        Program::Reporter => 8083,
        Program::Controller | Program::Cli => 8084,
    }
}

/// The properties of a pod from which the flags of its programs follow.
struct Own<'a> {
    installation: &'a Installation<'a>,
    name: &'a str,
    uid: &'a str,
    address: Ipv4Addr,
    folder: &'a Path,
    siblings: Option<&'a [Ipv4Addr]>,
}

impl Own<'_> {
    fn flags(&self, program: Program) -> Vec<(String, String)> {
        let folder = |name: &str| self.folder.join(name).display().to_string();
        let state = |port: u16| pod::loopback(self.address, port).to_string();
        let server = self.installation.policy_server();
        let identity =
            [("--namespace", self.installation.namespace().to_owned()), ("--policy-server", server.to_owned())];
        let own: Vec<(&str, String)> = match program {
            Program::Loader => vec![
                ("--volume", folder("volume")),
                ("--state-address", state(LOADER_STATE)),
                ("--evaluator-state", state(EVALUATOR_STATE)),
                ("--broker-socket", folder("broker.sock")),
                ("--source-ca", folder("source-ca.pem")),
                ("--allow-private", "127.0.0.0/8".into()),
                ("--retry-initial", "200ms".into()),
                ("--retry-cap", "2s".into()),
                ("--retry-outside", "2s".into()),
            ],
            Program::Evaluator => vec![
                ("--volume", folder("volume")),
                ("--private-dir", folder("private")),
                ("--broker-socket", folder("broker.sock")),
                ("--tls-dir", folder("tls")),
                ("--address", SocketAddr::from((self.address, 8443)).to_string()),
                ("--state-address", state(EVALUATOR_STATE)),
                ("--start-gate", "5s".into()),
            ],
            Program::Reporter => vec![
                ("--loader-state", state(LOADER_STATE)),
                ("--evaluator-state", state(EVALUATOR_STATE)),
                ("--service", SERVICE.into()),
                ("--pod-name", self.name.into()),
                ("--pod-uid", self.uid.into()),
                ("--node-name", NODE.into()),
            ],
            Program::Controller | Program::Cli => vec![
                ("--service", SERVICE.into()),
                ("--pod-name", self.name.into()),
                ("--owner-cluster-role", format!("portcullis-{server}-controller")),
            ],
        };
        let siblings = if program == Program::Loader { self.siblings() } else { Vec::new() };
        let probes = SocketAddr::from((self.address, probe_port(program))).to_string();
        let common = [("--probe-address", probes), ("--log-format", "json".into())];
        // Without a controller, there are no keys.
        let has_keys = program == Program::Evaluator && self.installation.has_controller();
        let keys = has_keys.then(|| ("--path-keys", folder("paths")));
        let is_checking = matches!(program, Program::Controller | Program::Loader);
        let checks = self.installation.policy_checks().filter(|_| is_checking);
        let checks = checks.map(|mode| ("--policy-checks", mode.to_owned()));
        let timeout = self.installation.policy_checks_timeout().filter(|_| program == Program::Controller);
        let timeout = timeout.map(|timeout| ("--policy-checks-timeout", format!("{}s", timeout.as_secs())));
        let audit = self.installation.audit().filter(|_| program == Program::Reporter);
        let audit = audit.map(|format| {
            [("--audit", "on".to_owned()), ("--audit-interval", "1h".to_owned()), ("--audit-format", format.to_owned())]
        });
        // The evaluator knows nothing about Kubernetes.
        let identity = identity.into_iter().filter(|_| program != Program::Evaluator);
        own.into_iter()
            .chain(siblings)
            .chain(keys)
            .chain(checks)
            .chain(timeout)
            .chain(audit.into_iter().flatten())
            .chain(common)
            .chain(identity)
            .map(|(flag, value)| (flag.to_owned(), value))
            .collect()
    }

    /// The loader's flags about other loaders.
    fn siblings(&self) -> Vec<(&'static str, String)> {
        let Some(others) = self.siblings else { return Vec::new() };
        let at = |address: Ipv4Addr| SocketAddr::from((address, 8444)).to_string();
        let mut flags = vec![
            ("--siblings-tls-dir", self.folder.join("siblings").display().to_string()),
            ("--siblings-address", at(self.address)),
            ("--siblings-own-address", self.address.to_string()),
        ];
        // Like the addresses of a Service, this includes the pod itself.
        let others: Vec<String> = others.iter().copied().chain([self.address]).map(at).collect();
        flags.push(("--siblings", others.join(",")));
        flags
    }
}
