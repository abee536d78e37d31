//! Starts and stops the controller.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use portcullis_kubernetes::{ApiServer, Failures, Leadership, LeaseSettings, OfTerm, hold_lease};
use portcullis_process::telemetry::Collectors;
use portcullis_process::{
    PolicyChecks, ProbeServer, ProbeSources, SettingError, Shutdown, supervised, write_log_in_background,
};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use crate::args::Args;
use crate::certificates::{CertificateMetrics, Keeper, KeeperParts};
use crate::check::Check;
use crate::control::{Control, Inputs};
use crate::decide::Rules;
use crate::event::Events;
use crate::execute::Executor;
use crate::failures::FailingActions;
use crate::identity::IdentityQuery;
use crate::keep::{Keep, keep};
use crate::marker::Prover;
use crate::memory::{ConditionValue, Memory};
use crate::metrics::Metrics;
use crate::path_keys::{PathKeeper, PathKeeperParts, PathKeyMetrics, PathRules};
use crate::rewrites::Rewrites;
use crate::slots::Slots;
use crate::uninstall::Uninstall;
use crate::watch::watch;
use crate::world::{Collection, World};

/// The name of this program in requests and metrics.
const PROGRAM: &str = "portcullis-controller";
/// The liveness probe fails if the loop has made no round for this long.
const LIVE_LIMIT: Duration = Duration::from_secs(30);
/// How many changes may wait for the loop, which takes all of them each time. Each can take some megabytes.
const QUEUE: usize = 16;

/// Runs until the shutdown begins.
///
/// # Errors
/// When a setting cannot be used, a port cannot be opened, or no client of the API server can be made. Not when the API server is down.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    args.check()?;
    if args.uninstall.is_some() || args.check.is_some() {
        return tokio::select! {
            done = once(&args) => done,
            () = shutdown.begun() => bail!("was stopped before everything was done"),
        };
    }
    let sources = ProbeSources::default();
    write_log_in_background(&sources.metrics)?;
    let metrics = Metrics::new(&sources.metrics).context("failed to register metrics")?;
    Collectors::from_env().export_metrics(PROGRAM, &sources.metrics).context("failed to register metrics")?;
    let certificate_metrics = CertificateMetrics::new(&sources.metrics).context("failed to register metrics")?;
    let path_metrics = PathKeyMetrics::new(&sources.metrics).context("failed to register metrics")?;
    let beat = sources.liveness.beat("control", LIVE_LIMIT);
    let started = sources.readiness.latch("started");
    let readiness = sources.readiness.clone();
    let server = args.access.connect(PROGRAM).await?;
    let mut probes = ProbeServer::new();
    let address = probes.probes(args.probe_address, sources, axum::Router::new())?;
    probes.start().context("failed to start the probes")?;
    tracing::info!(port = "probes", %address, "listening");

    let lease = LeaseSettings { namespace: args.namespace.clone(), name: args.lease_name(), identity: args.pod_name() };
    let (sender, leadership) = Leadership::new();
    let (client, token) = (server.client.clone(), shutdown.clone());
    let lease = supervised("the Lease", &shutdown, move || {
        let (failures, end) = (Failures::new("hold the Lease", |_| ()), token.clone());
        hold_lease(client.clone(), lease.clone(), sender.clone(), failures, async move { end.begun().await })
    });

    let mut helpers = Vec::new();
    let (sender, changes) = mpsc::channel(QUEUE);
    for collection in Collection::ALL {
        let (client, failures) = (server.client.clone(), metrics.watch_failures.clone());
        let (namespace, policy_server) = (args.namespace.clone(), args.policy_server.clone());
        let sender = sender.clone();
        helpers.push(supervised("a watch", &shutdown, move || {
            let (namespace, policy_server) = (namespace.clone(), policy_server.clone());
            watch(client.clone(), collection, namespace, policy_server, failures.clone(), sender.clone())
        }));
    }
    let (sender, bundle) = watch::channel(None);
    let (webhooks, siblings) = keepers(&args, &server, &certificate_metrics)?;
    let leading = leadership.clone();
    helpers.push(supervised("the certificates", &shutdown, move || {
        let parts = webhooks.clone();
        keep_while_leading(move || Keeper::new(parts.clone()), leading.clone(), sender.clone())
    }));
    if let Some(siblings) = siblings {
        let leading = leadership.clone();
        helpers.push(supervised("the certificates of loaders", &shutdown, move || {
            // Loaders take the authorities from the Secret that they mount.
            let parts = siblings.clone();
            keep_while_leading(move || Keeper::new(parts.clone()), leading.clone(), watch::channel(None).0)
        }));
    }
    let (sender, path_key) = watch::channel(None);
    let (paths, leading) = (path_keeper(&args, &server, path_metrics), leadership.clone());
    helpers.push(supervised("the keys of webhook paths", &shutdown, move || {
        let parts = paths.clone();
        keep_while_leading(move || PathKeeper::new(parts.clone()), leading.clone(), sender.clone())
    }));
    let (sender, identity) =
        watch::channel(Err(ConditionValue::not_configured("Unknown", "the API server has not been asked yet")));
    let identity_again = Arc::new(Notify::new());
    let question = IdentityQuery {
        client: server.client.clone(),
        username: args.username.clone(),
        owner: args.owner_cluster_role.clone(),
        again: Arc::clone(&identity_again),
    };
    helpers.push(supervised("the identity", &shutdown, move || question.clone().ask(sender.clone())));

    started.release();
    let inputs = Inputs { changes, bundle, path_key, identity, leadership: leadership.clone() };
    control(&args, &server, metrics, leadership, identity_again).run(inputs, beat, shutdown).await;
    readiness.drain();
    for helper in &helpers {
        helper.abort();
    }
    lease.await.context("the task of the Lease ended early")
}

/// Runs `--check` or `--uninstall`.
async fn once(args: &Args) -> anyhow::Result<()> {
    let client = args.access.connect(PROGRAM).await?.client;
    let (namespace, policy_server) = (args.namespace.clone(), args.policy_server.clone());
    if let Some(deployment) = args.uninstall.clone() {
        return Uninstall { client, namespace, policy_server, deployment }.run().await;
    }
    let Some(authority) = args.check.clone() else { return Ok(()) };
    let leases = [args.lease_name(), format!("portcullis-{policy_server}-reporter")];
    let (service, port) = (args.service.clone(), args.service_port);
    Check { client, namespace, leases, service, port, authority }.run().await
}

/// A timeout of webhooks, which are in whole seconds.
fn whole_seconds(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_millis().div_ceil(1000)).unwrap_or(u32::MAX).max(1)
}

fn control(
    args: &Args,
    server: &ApiServer,
    metrics: Metrics,
    leadership: Leadership,
    identity_again: Arc<Notify>,
) -> Control {
    let executor = Executor {
        client: server.client.clone(),
        namespace: args.namespace.clone(),
        leadership,
        prover: Prover::new(args.access.clone(), PROGRAM, server, &args.namespace),
        events: Events::new(server.client.clone(), &args.pod_name()),
    };
    Control {
        world: World::new(&args.policy_server),
        rules: Rules {
            policy_server: args.policy_server.clone(),
            namespace: args.namespace.clone(),
            installation: Err(ConditionValue::not_configured("Unknown", "the API server has not been asked yet")),
            webhook_labels: Arc::new(args.webhook_labels.iter().cloned().collect()),
            policies_per_namespace: args.policies_per_namespace,
            webhooks_per_namespace: args.webhooks_per_namespace,
            shares_webhooks: args.shared_webhooks,
            // Whether a policy is refused or admitted with a warning is up to the loaders.
            check_timeout: (args.policy_checks != PolicyChecks::Off).then(|| whole_seconds(args.policy_checks_timeout)),
            policy_timeout: whole_seconds(args.policy_timeout),
            webhook_pause: args.webhook_pause,
            revision_pause: args.revision_pause,
            waiting_event: args.waiting_event,
        },
        service: (args.service.clone(), args.service_port),
        executor: Arc::new(executor),
        identity_again,
        metrics,
        slots: Slots::new(args.parallel_writes),
        memory: Memory::new(Instant::now()),
        failures: FailingActions::default(),
        rewrites: Rewrites::default(),
        tasks: JoinSet::new(),
        term: None,
    }
}

/// The keepers of the certificates that API servers see, and of those of the loaders if they get certificates.
fn keepers(
    args: &Args,
    api: &ApiServer,
    metrics: &CertificateMetrics,
) -> Result<(KeeperParts, Option<KeeperParts>), SettingError> {
    let (certificates, server) = (&args.certificates, args.policy_server.as_str());
    let parts = |rules, external_secret, ca_secret, tls_secret| KeeperParts {
        client: api.client.clone(),
        namespace: args.namespace.clone(),
        policy_server: args.policy_server.clone(),
        instance: args.pod_name(),
        external_secret,
        ca_secret,
        tls_secret,
        rules,
        metrics: metrics.clone(),
    };
    let rules = certificates.rules(server, &args.namespace, &args.service)?;
    let external = certificates.external_secret(server);
    let webhooks = parts(rules, external, certificates.ca_secret(server), certificates.tls_secret(server));
    let siblings = certificates
        .siblings_rules(server, &args.namespace)?
        .map(|rules| parts(rules, None, certificates.siblings_ca_secret(server), certificates.siblings_secret(server)));
    Ok((webhooks, siblings))
}

/// Keeps what `make` returns a keeper of, while this program leads, and sends on what the keeper publishes, with the term. What it published
/// in an earlier term counts no longer: another controller may have changed the Secrets since then.
async fn keep_while_leading<K: Keep, T: Clone>(
    make: impl Fn() -> (K, watch::Receiver<Option<T>>),
    mut leadership: Leadership,
    sender: watch::Sender<Option<OfTerm<T>>>,
) {
    loop {
        let term = leadership.held().await;
        let (keeper, mut published) = make();
        let forward = async {
            while published.changed().await.is_ok() {
                let value = published.borrow_and_update().clone();
                sender.send_replace(value.map(|value| OfTerm { term, value }));
            }
            std::future::pending().await
        };
        tokio::select! {
            () = keep(keeper) => {}
            () = forward => {}
            () = leadership.over(term) => {}
        }
    }
}

/// The keeper of the keys of webhook paths.
fn path_keeper(args: &Args, server: &ApiServer, metrics: PathKeyMetrics) -> PathKeeperParts {
    PathKeeperParts {
        client: server.client.clone(),
        namespace: args.namespace.clone(),
        policy_server: args.policy_server.clone(),
        instance: args.pod_name(),
        service: args.service.clone(),
        secret: args.paths_secret(),
        rules: PathRules { is_plain: args.plain_paths, age: args.path_key_age, pause: args.certificates.tls_pause },
        metrics,
    }
}
