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
use portcullis_util::{causes, lock};
use serde_json::json;

use super::MARKER_ANNOTATION;
use super::address::api_servers;
use super::proof::{ProofProblem, Unproven, judge, retry_after};

/// How long one answer may take. The webhook itself has less time.
const LIMIT: Duration = Duration::from_secs(10);
/// The name in every API server's certificate, whatever its address.
const SERVER_NAME: &str = "kubernetes.default.svc";

/// Proves that API servers call webhooks.
pub struct Prover {
    config: Config,
    client: Client,
    namespace: String,
    /// A client per API server, so that connections are reused.
    clients: Mutex<BTreeMap<SocketAddr, Client>>,
}

/// One API server.
struct ApiServer {
    name: String,
    client: Client,
}

impl Prover {
    /// Uses the credentials of `config`, from which `client` is made too. `namespace` is that of the revisions.
    pub fn new(config: Config, client: Client, namespace: &str) -> Self {
        Self { config, client, namespace: namespace.to_owned(), clients: Mutex::default() }
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
            let Some((server, problem)) = failed.iter().max_by_key(|(_, problem)| problem.weight()) else {
                return Ok(());
            };
            let wait = retry_after(tries);
            tries += 1;
            if start.elapsed() + wait > patience || matches!(problem, ProofProblem::Gone) {
                let proven = servers - failed.len();
                return Err(Unproven { problem: problem.clone(), server: server.name.clone(), proven, servers });
            }
            tokio::time::sleep(wait).await;
            left = failed.into_iter().map(|(server, _)| server).collect();
        }
    }

    async fn ask(&self, server: &ApiServer, group: &GroupId, revision: &str, value: &str) -> Result<(), ProofProblem> {
        let revisions = Api::<ControllerRevision>::namespaced(server.client.clone(), &self.namespace);
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { MARKER_ANNOTATION: value } } }));
        match tokio::time::timeout(LIMIT, revisions.patch_metadata(revision, &params, &patch)).await {
            Ok(answer) => judge(answer, group),
            Err(_) => Err(ProofProblem::Unreachable(format!("no answer within {LIMIT:?}"))),
        }
    }

    /// All API servers, or the configured one if the cluster does not publish their addresses.
    async fn servers(&self) -> Result<Vec<ApiServer>, ProofProblem> {
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
            return Ok(vec![ApiServer { name: self.configured(), client: self.client.clone() }]);
        }
        self.clients_of(&addresses)
    }

    fn clients_of(&self, addresses: &BTreeSet<SocketAddr>) -> Result<Vec<ApiServer>, ProofProblem> {
        let mut clients = lock(&self.clients);
        clients.retain(|address, _| addresses.contains(address));
        let mut servers = Vec::new();
        for &address in addresses {
            let client = match clients.get(&address) {
                Some(client) => client.clone(),
                None => {
                    let client = self.client_at(address)?;
                    clients.insert(address, client.clone());
                    client
                }
            };
            servers.push(ApiServer { name: address.to_string(), client });
        }
        Ok(servers)
    }

    fn client_at(&self, address: SocketAddr) -> Result<Client, ProofProblem> {
        let unreachable = |error: &dyn std::error::Error| ProofProblem::Unreachable(causes(error));
        let mut config = self.config.clone();
        config.cluster_url =
            format!("https://{address}").parse().map_err(|error: http::uri::InvalidUri| unreachable(&error))?;
        config.tls_server_name = Some(SERVER_NAME.to_owned());
        // Retries are done here.
        config.default_retry = false;
        Client::try_from(config).map_err(|error| unreachable(&error))
    }

    fn configured(&self) -> String {
        self.config.cluster_url.authority().map(ToString::to_string).unwrap_or_default()
    }

    /// The failure to find the API servers.
    fn unproven(&self, problem: ProofProblem) -> Unproven {
        Unproven { problem, server: self.configured(), proven: 0, servers: 1 }
    }
}
