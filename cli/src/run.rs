//! `portcullis run`: the three programs of a pod on a folder.
//!
//! ```text
//!  settings, ports, lock, certificate ──► evaluator ──► loader ──► reporter ──► ready: address and a curl line
//!                                           each started again when it ends by itself
//!  Ctrl-C ──► evaluator drains and ends ──► loader ends ──► reporter shows the last picture and ends
//! ```

mod banner;
mod console;
mod plan;
mod settings;
mod supervise;

use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_contract::EvaluatorState;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::RunArgs;
use crate::certificate;
use crate::child::{Running, StartError};
use crate::http::Http;
use crate::layout::Layout;
use crate::program::{Program, find};
use console::Console;
use plan::{Addresses, Plan};
use settings::Settings;
use supervise::Supervised;

/// How often readiness is checked.
const ASK: Duration = Duration::from_millis(20);
/// After this long the terminal shows what readiness waits for.
const TELL_AFTER: Duration = Duration::from_secs(5);
/// Longest time for the evaluator to drain, and for the others to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the pod until a signal asks for the end.
///
/// # Errors
/// When a setting cannot be used, a program is missing, or one does not start.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let settings = Settings::check(args)?;
    let [evaluator, loader, reporter] = find([Program::Evaluator, Program::Loader, Program::Reporter])?;
    let layout = Layout::of(&args.dir);
    layout.make()?;
    let _lock = layout.lock()?;
    settings.check_ports()?;
    if !args.plain_http {
        certificate::ensure(&layout, args.address.ip(), Timestamp::now())?;
    }
    let plan = Plan { settings, layout, evaluator, loader, reporter };
    plan.begin_logs()?;
    // One thread is enough to watch three programs, and children that end with their parent end when the thread that started them does.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(&plan))
}

async fn serve(plan: &Plan) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut interrupts = Signals::new()?;
    let mut pod = tokio::select! {
        pod = Pod::start(plan) => pod?,
        () = interrupts.next() => return Ok(()),
    };
    tokio::select! {
        result = pod.greet(plan, started) => result?,
        () = interrupts.next() => return pod.stop(&mut interrupts).await,
    }
    interrupts.next().await;
    pod.stop(&mut interrupts).await
}

/// The signals that ask for the end.
struct Signals([tokio::signal::unix::Signal; 3]);

impl Signals {
    fn new() -> std::io::Result<Self> {
        let [a, b, c] = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([a?, b?, c?]))
    }

    async fn next(&mut self) {
        let [a, b, c] = &mut self.0;
        tokio::select! {
            _ = a.recv() => {}
            _ = b.recv() => {}
            _ = c.recv() => {}
        }
    }
}

struct Pod {
    addresses: Addresses,
    console: Console,
    evaluator: Supervised,
    loader: Supervised,
    reporter: Supervised,
}

impl Pod {
    /// Starts the programs, each when the addresses that it needs are known.
    async fn start(plan: &Plan) -> anyhow::Result<Self> {
        let mut addresses = Addresses::asked(&plan.settings);
        let console = Console::default();

        let spec = plan.evaluator(&addresses);
        let evaluator = Running::start(&spec).await.map_err(StartError::into_setting)?;
        addresses.learn_evaluator(&evaluator.addresses);
        // Its ports are known now, so that a restart uses the same ones.
        let evaluator = Supervised::new(plan.evaluator(&addresses), evaluator, console.clone());

        let loader = Running::start(&plan.loader(&addresses)).await.map_err(StartError::into_setting)?;
        addresses.learn_loader(&loader.addresses);
        let loader = Supervised::new(plan.loader(&addresses), loader, console.clone());

        let mut reporter = Running::start(&plan.reporter(&addresses)).await.map_err(StartError::into_setting)?;
        addresses.learn_reporter(&reporter.addresses);
        console.through(reporter.input.take()).await;
        let reporter = Supervised::new(plan.reporter(&addresses), reporter, console.clone());
        Ok(Self { addresses, console, evaluator, loader, reporter })
    }

    /// Waits until the pod is ready, then says how to use it.
    async fn greet(&mut self, plan: &Plan, started: Instant) -> anyhow::Result<()> {
        let http = Http::new(Duration::from_secs(2))?;
        let mut told = false;
        loop {
            // No answer counts as not ready: the evaluator may be restarting.
            let answer = http.get(self.addresses.probes[0], "/readyz?verbose").await.ok();
            match answer {
                Some((200, _)) => break,
                Some((_, body)) if !told && started.elapsed() > TELL_AFTER => {
                    told = true;
                    let body = String::from_utf8_lossy(&body);
                    let failed: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("[-]")).collect();
                    self.console.print(&format!("Not ready yet: {}", failed.join(", "))).await;
                }
                _ => {}
            }
            tokio::time::sleep(ASK).await;
        }
        let state: EvaluatorState = http.state(self.addresses.evaluator_state).await.unwrap_or_default();
        let served = banner::serving(state);
        for line in banner::lines(&plan.settings, &plan.layout, self.addresses.admission, &served, started.elapsed()) {
            self.console.print(&line).await;
        }
        Ok(())
    }

    /// Ends the programs in order; a second signal ends them at once.
    async fn stop(self, interrupts: &mut Signals) -> anyhow::Result<()> {
        self.console.print("Stopping; Ctrl-C once more to stop at once.").await;
        let in_order = async {
            self.evaluator.stop(PATIENCE).await;
            self.loader.stop(PATIENCE).await;
            self.console.through(None).await;
            self.reporter.stop(PATIENCE).await;
        };
        tokio::select! {
            () = in_order => Ok(()),
            // Dropping a child kills it.
            () = interrupts.next() => anyhow::bail!("stopped at once, without waiting for running requests"),
        }
    }
}
