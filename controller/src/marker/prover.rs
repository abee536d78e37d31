//! Asks every API server for a proof.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Config};
use portcullis_contract::GroupId;
use portcullis_kubernetes::{Access, ApiServer};
use portcullis_util::{causes, lock};
use serde_json::json;

use super::MARKER_ANNOTATION;
use super::address::api_servers;
use super::proof::{ProofProblem, Unproven, judge, pause_after};

/// How long one answer may take. The webhook itself has less time.
const LIMIT: Duration = Duration::from_secs(10);
/// The name in every API server's certificate, whatever its address.
const SERVER_NAME: &str = "kubernetes.default.svc";
/// How long a configuration is used at least before it is read again.
const RENEWAL_PAUSE: Duration = Duration::from_secs(5);

/// Proves that API servers call webhooks.
pub struct Prover {
    access: Access,
    program: String,
    client: Client,
    namespace: String,
    current: Mutex<Current>,
}

/// The configuration, as it was read last.
struct Current {
    config: Config,
    read: Instant,
    /// A client per API server, so that connections are reused.
    clients: BTreeMap<SocketAddr, Client>,
}

/// One API server.
struct Server {
    name: String,
    /// Its address; `None` for the configured one.
    address: Option<SocketAddr>,
    client: Client,
}

impl Prover {
    /// Asks the API servers of the cluster of `server`, to which `access` leads, as `program`. `namespace` is that of the revisions.
    pub fn new(access: Access, program: &str, server: &ApiServer, namespace: &str) -> Self {
        let current = Current { config: server.config.clone(), read: Instant::now(), clients: BTreeMap::new() };
        Self {
            access,
            program: program.to_owned(),
            client: server.client.clone(),
            namespace: namespace.to_owned(),
            current: Mutex::new(current),
        }
    }

    /// Asks each API server until it has proven that it calls the group's webhook, or `patience` is over. The revision with this name
    /// carries the marker with this value, in a dry run only.
    ///
    /// # Errors
    /// The most serious problem at the end, and the API server that has it.
    pub async fn prove(
        &self,
        group: &GroupId,
        revision: &str,
        value: &str,
        patience: Duration,
    ) -> Result<(), Unproven> {
        let start = Instant::now();
        let mut tries = 0;
        let mut left = self.servers().await.map_err(|problem| self.unproven(problem))?;
        let servers = left.len();
        loop {
            let answers = join_all(left.iter().map(|server| self.ask(server, group, revision, value))).await;
            let failed: Vec<_> =
                left.into_iter().zip(answers).filter_map(|(one, said)| Some((one, said.err()?))).collect();
            let problems = failed.iter().map(|(server, problem)| (server.name.as_str(), problem));
            let Some(unproven) = Unproven::of(problems, servers) else { return Ok(()) };
            let wait = pause_after(tries);
            tries += 1;
            if start.elapsed() + wait > patience || matches!(unproven.problem, ProofProblem::Gone) {
                return Err(unproven);
            }
            tokio::time::sleep(wait).await;
            let is_renewed = failed.iter().any(|(_, problem)| problem.may_be_outdated()) && self.renew().await;
            left = failed.into_iter().map(|(server, _)| server).collect();
            if is_renewed {
                left = left.into_iter().map(|server| self.again(server)).collect();
            }
        }
    }

    /// Reads the configuration again, as the cluster's authority or the credentials may have changed. Not more often than every few seconds;
    /// returns whether it was read.
    async fn renew(&self) -> bool {
        {
            let mut current = lock(&self.current);
            if current.read.elapsed() < RENEWAL_PAUSE {
                return false;
            }
            current.read = Instant::now();
        }
        match self.access.connect(&self.program).await {
            Ok(server) => {
                let mut current = lock(&self.current);
                current.config = server.config;
                current.clients.clear();
                true
            }
            Err(error) => {
                tracing::debug!(%error, "failed to read the credentials again");
                false
            }
        }
    }

    /// The same API server with a client of the present configuration.
    fn again(&self, server: Server) -> Server {
        let client = server.address.and_then(|address| self.client_of(address).ok());
        Server { client: client.unwrap_or(server.client), ..server }
    }

    async fn ask(&self, server: &Server, group: &GroupId, revision: &str, value: &str) -> Result<(), ProofProblem> {
        let revisions = Api::<ControllerRevision>::namespaced(server.client.clone(), &self.namespace);
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { MARKER_ANNOTATION: value } } }));
        match tokio::time::timeout(LIMIT, revisions.patch_metadata(revision, &params, &patch)).await {
            Ok(answer) => judge(answer, group),
            Err(_) => Err(ProofProblem::Unreachable(format!("no answer within {LIMIT:?}"))),
        }
    }

    /// All API servers, or the configured one if the cluster does not publish their addresses.
    async fn servers(&self) -> Result<Vec<Server>, ProofProblem> {
        let slices = Api::<EndpointSlice>::namespaced(self.client.clone(), "default");
        let params = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
        let slices = match tokio::time::timeout(LIMIT, slices.list(&params)).await {
            Ok(Ok(list)) => list.items,
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                return Err(ProofProblem::Forbidden(status.message.clone()));
            }
            Ok(Err(error)) => return Err(ProofProblem::Unreachable(causes(&error))),
            Err(_) => return Err(ProofProblem::Unreachable(format!("no answer within {LIMIT:?}"))),
        };
        let addresses = api_servers(&slices);
        if addresses.is_empty() {
            return Ok(vec![Server { name: self.configured(), address: None, client: self.client.clone() }]);
        }
        self.clients_of(&addresses)
    }

    fn clients_of(&self, addresses: &BTreeSet<SocketAddr>) -> Result<Vec<Server>, ProofProblem> {
        lock(&self.current).clients.retain(|address, _| addresses.contains(address));
        let server = |&address: &SocketAddr| {
            Ok(Server { name: address.to_string(), address: Some(address), client: self.client_of(address)? })
        };
        addresses.iter().map(server).collect()
    }

    fn client_of(&self, address: SocketAddr) -> Result<Client, ProofProblem> {
        let mut current = lock(&self.current);
        if let Some(client) = current.clients.get(&address) {
            return Ok(client.clone());
        }
        let unreachable = |error: &dyn std::error::Error| ProofProblem::Unreachable(causes(error));
        let mut config = current.config.clone();
        config.cluster_url =
            format!("https://{address}").parse().map_err(|error: http::uri::InvalidUri| unreachable(&error))?;
        config.tls_server_name = Some(SERVER_NAME.to_owned());
        // Retries are done here.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|error| unreachable(&error))?;
        current.clients.insert(address, client.clone());
        Ok(client)
    }

    fn configured(&self) -> String {
        lock(&self.current).config.cluster_url.authority().map(ToString::to_string).unwrap_or_default()
    }

    /// The failure to find the API servers.
    fn unproven(&self, problem: ProofProblem) -> Unproven {
        let keeps_earlier_proof = problem.keeps_earlier_proof();
        Unproven { problem, server: self.configured(), keeps_earlier_proof, proven: 0, servers: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(port: u16) -> String {
        format!(
            r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{{"name": "c", "cluster": {{"server": "http://127.0.0.1:{port}"}}}}],
                "users": [{{"name": "u", "user": {{}}}}],
                "contexts": [{{"name": "c", "context": {{"cluster": "c", "user": "u"}}}}]}}"#
        )
    }

    #[tokio::test]
    async fn clients_of_an_old_configuration_are_given_up_every_few_seconds_at_most() {
        let file = std::env::temp_dir().join(format!("portcullis-prover-{}", std::process::id()));
        std::fs::write(&file, kubeconfig(1)).expect("a file");
        let access = Access { kubeconfig: Some(file.clone()) };
        let server = access.connect("test").await.expect("a client");
        let prover = Prover::new(access, "test", &server, "gate");
        let address: SocketAddr = "127.0.0.1:6443".parse().expect("an address");
        prover.clients_of(&[address].into()).expect("a client");
        std::fs::write(&file, kubeconfig(2)).expect("a file");

        assert!(!prover.renew().await, "it was read just now");
        assert_eq!((prover.configured().as_str(), lock(&prover.current).clients.len()), ("127.0.0.1:1", 1));
        let before = Instant::now().checked_sub(RENEWAL_PAUSE).expect("a time");
        lock(&prover.current).read = before;
        assert!(prover.renew().await);
        assert_eq!((prover.configured().as_str(), lock(&prover.current).clients.len()), ("127.0.0.1:2", 0));

        std::fs::write(&file, "noise").expect("a file");
        lock(&prover.current).read = before;
        assert!(!prover.renew().await, "the old one stays");
        assert_eq!(prover.configured(), "127.0.0.1:2");
        std::fs::remove_file(file).expect("it is there");
    }
}
