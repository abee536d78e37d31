//! Starting and stopping.

use anyhow::Context as _;
use portcullis_kubernetes::{LeaseSettings, hold_lease};
use portcullis_process::{ProbeServer, ProbeSources, Shutdown};

use crate::args::Args;
use crate::certificates::{CertificateMetrics, Keeper, KeeperParts};

/// Runs until the shutdown begins.
///
/// # Errors
/// When a setting cannot be used, a port cannot be opened, or there is no client of an API server. Never because the API server is away.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    args.check()?;
    let sources = ProbeSources::default();
    let certificate_metrics = CertificateMetrics::new(&sources.metrics).context("failed to register metrics")?;
    let clients = args.access.clients("portcullis-controller").await?;
    let mut probes = ProbeServer::new();
    let address = probes.probes(args.probe_address, sources, axum::Router::new())?;
    probes.start().context("failed to start the probes")?;
    tracing::info!(port = "probes", %address, "listening");

    let lease = LeaseSettings::new(&args.namespace, args.lease_name(), args.pod_name());
    let end = shutdown.clone();
    let (mut leadership, lease) = hold_lease(clients.calls.clone(), lease, async move { end.begun().await });
    let lease = tokio::spawn(lease);
    let (keeper, _bundle) = Keeper::new(KeeperParts {
        client: clients.calls.clone(),
        namespace: args.namespace.clone(),
        policy_server: args.policy_server.clone(),
        instance: args.pod_name(),
        form: args.certificates.certificates,
        ca_secret: args.certificates.ca_secret(&args.policy_server),
        tls_secret: args.certificates.tls_secret(&args.policy_server),
        rules: args.certificates.rules(&args.policy_server, &args.namespace, &args.service)?,
        metrics: certificate_metrics,
    });
    tokio::select! {
        () = shutdown.begun() => {}
        () = async { leadership.held().await; keeper.run().await } => {}
    }
    lease.await.context("the task of the Lease ended early")?;
    Ok(())
}
