//! The calls to the API server that a Lease needs, and what is told of those without success.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};

/// How to read and write one Lease. Programs that count their calls, or renew their credentials in a way of their own, have
/// their own; [`ClientLeases`] is the plain one.
pub trait LeaseCalls: Send {
    /// Why a call had no success.
    type Error: Send;

    /// The Lease of this name, where there is one.
    fn get(&self, name: &str) -> impl Future<Output = Result<Option<Lease>, Self::Error>> + Send;

    /// Makes it. False where somebody was faster.
    fn create(&self, lease: &Lease) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Writes the version that was read. False where somebody was faster.
    fn replace(&self, lease: &Lease) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Is told of each turn without success; nothing where no answer came in time.
    fn failed(&mut self, error: Option<Self::Error>);

    /// Is told of each turn with success.
    fn works(&mut self);
}

/// The calls with a client, and a log line when trouble begins and when it ends.
#[derive(Clone)]
pub struct ClientLeases {
    leases: Api<Lease>,
    is_troubled: bool,
}

impl ClientLeases {
    /// Of a namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { leases: Api::namespaced(client, namespace), is_troubled: false }
    }
}

impl LeaseCalls for ClientLeases {
    type Error = kube::Error;

    async fn get(&self, name: &str) -> Result<Option<Lease>, kube::Error> {
        self.leases.get_opt(name).await
    }

    async fn create(&self, lease: &Lease) -> Result<bool, kube::Error> {
        is_written(self.leases.create(&PostParams::default(), lease).await)
    }

    async fn replace(&self, lease: &Lease) -> Result<bool, kube::Error> {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        is_written(self.leases.replace(name, &PostParams::default(), lease).await)
    }

    fn failed(&mut self, error: Option<kube::Error>) {
        if !std::mem::replace(&mut self.is_troubled, true) {
            let error = error.map_or_else(|| "the API server does not answer".to_owned(), |error| error.to_string());
            tracing::warn!(error, "failed to renew or read the Lease; it is tried again");
        }
    }

    fn works(&mut self) {
        if std::mem::take(&mut self.is_troubled) {
            tracing::info!("the Lease can be read and renewed again");
        }
    }
}

fn is_written(answer: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(false),
        Err(error) => Err(error),
    }
}
