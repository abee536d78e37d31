//! The benchmarks: what Portcullis costs, as ratios taken in one run.
//!
//! Machines are noisy and differ, so each benchmark interleaves what it compares and prints the medians of its rounds. It measures the
//! real programs, built for release, over the loopback.
#![forbid(unsafe_code)]

mod admission;
mod api;
mod applies;
mod audit;
mod canary;
mod crowd;
mod echo;
mod evaluate;
mod floor;
mod isolation;
mod load;
mod memory;
mod metrics;
mod overload;
mod pace;
mod page;
mod peer;
mod plot;
mod plots;
mod pod;
mod propagate;
mod report;
mod review;
mod rounds;
mod scale;
mod served;
mod slope;
mod soak;
mod start;
mod strangers;
mod swap;
mod table;
mod timeout;
mod train;
mod usage;
mod variant;
mod workload;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::report::Output;

/// Measures Portcullis on this machine.
///
/// The figures depend on the machine; the ratios between lines of one run depend on it much less. The goals are in the documentation of
/// each benchmark.
#[derive(Parser)]
#[command(name = "cargo xtask bench", version)]
struct Args {
    #[command(flatten)]
    output: Output,

    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// All of them with their defaults, one after the other, which takes some hours.
    #[command(after_help = "Example:\n  cargo xtask bench all --record")]
    All,
    /// Draws the pictures of docs/figures again, from the tables that stand in the pages, and measures nothing.
    Plots,
    /// One evaluation in bare wasmtime, in this process: the lower limit for every server.
    Floor(floor::Args),
    /// Answers over TLS for a suspended policy, with 1, 8 and 64 callers: what a request costs before any guest is asked.
    ///
    /// The real evaluator reads each review and finds the policy like any other, and admits the request without asking its guest. So the
    /// difference to `evaluate --workloads rust` is the cost of asking a guest.
    #[command(after_help = "Example:\n  cargo xtask bench echo --callers 1,8 --rounds 3")]
    Echo(echo::Args),
    /// Answers over TLS by the real evaluator, with 1, 8 and 64 callers.
    Evaluate(evaluate::Args),
    /// Answers over TLS by the real evaluator and by Kubewarden's policy server with the same policies, in turns.
    ///
    /// Build Kubewarden's policy-server for release first, or take its program from a release. `all` measures it if it is on the PATH.
    #[command(
        after_help = "Example:\n  cargo xtask bench peer --program ../kubewarden/target/release/policy-server --callers 1,8"
    )]
    Peer(peer::Args),
    /// From the rename of a manifest to the first answer of the new generation, under load.
    Swap(swap::Args),
    /// From the start of an evaluator to ready, on a filled volume.
    Start(start::Args),
    /// The memory of an evaluator with 1 to 1000 idle policies, over one module and over 100.
    ///
    /// Each policy has settings of its own, and nothing is asked before memory is read. What a policy needs is the difference to the line with
    /// fewer policies, divided by the number of those that came in between: what every evaluator needs is in both.
    #[command(after_help = "Example:\n  cargo xtask bench memory --policies 1,500 --modules 50")]
    Memory(memory::Args),
    /// The latency of other policies while some callers run an endless loop.
    Isolation(isolation::Args),
    /// How long after its timeout an evaluation that never ends is answered.
    Timeout(timeout::Args),
    /// How long calls take while strangers hold thousands of connections open.
    Strangers(strangers::Args),
    /// Asks policies of each kind for a while and measures nothing: `cargo xtask pgo` makes a profile of the evaluator meanwhile.
    #[command(hide = true)]
    Train(train::Args),
    /// Many more requests than can be judged: how many are judged, how soon the others are refused, and what it does to memory.
    ///
    /// Some callers show how many requests can be judged each second. Then requests come at five times that rate, whatever becomes of them,
    /// and at the end the callers ask again. The policy computes for some milliseconds, so that sending requests, which happens on
    /// the same machine, costs little beside judging them.
    #[command(after_help = "Example:\n  cargo xtask bench overload --factor 10 --time 10s --work 20")]
    Overload(overload::Args),
    /// Load for ten minutes, or hours, with edits meanwhile, a line for each minute: what grows is a leak or a slowdown.
    #[command(after_help = "Example:\n  cargo xtask bench soak --time 8h --line 30m")]
    Soak(soak::Args),
    /// Creating pods through a real API server, with policies in one webhook or in one each.
    Admission(admission::Args),
    /// Policies that one user applies many times a second, with `policyChecks.mode: deny`, and what admission feels of it.
    Applies(applies::Args),
    /// A scan of many objects with many policies by the real reporter and evaluator: its time, requests and memory, and what admission
    /// feels of it.
    Audit(audit::Args),
    /// From `kubectl apply` to enforced on all replicas and to Ready=True.
    Propagate(propagate::Args),
    /// A thousand policies applied at once, until all are Ready.
    Crowd(crowd::Args),
    /// Reports of many replicas on many policies, against a real API server and the real leader.
    Scale(scale::Args),
    /// What a create costs with 1 to 1000 policies, beside ValidatingAdmissionPolicy with the same rules and beside a webhook each.
    ///
    /// Each combination of --parts and --matching is one curve, in a cluster of its own. The variants take turns in the same API server, and
    /// only one is in place at a time: nothing, Portcullis with the webhooks that its controller made, a webhook for each policy, and the
    /// same rules in CEL. Before a turn is measured, each variant must be asked by as many policies as match and decide like the others.
    /// Pods are created as dry runs, whose admission is that of any create.
    ///
    /// A turn ends after --longest, so each step of a curve measures for at most 4 × --rounds × --longest; making policies, and waiting
    /// until a variant is in place or gone, come on top. Everything that was made goes with the clusters.
    #[command(after_help = "Examples:\n  cargo xtask bench slope\n  \
                      cargo xtask bench slope --policies 1,10,64,100,1000 --output json > slope.json\n  \
                      cargo xtask bench slope --policies 64 --parts same --matching all --variants portcullis,admission-policy")]
    Slope(slope::Args),
}

fn main() -> ExitCode {
    let args = Args::parse();
    portcullis_process::run(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(async { args.benchmark.run(&args.output).await })
    })
}

impl Benchmark {
    async fn run(self, output: &Output) -> anyhow::Result<()> {
        match self {
            Self::All => Box::pin(all(output)).await,
            Self::Plots => plots::run(),
            Self::Floor(floor) => floor.run(output),
            Self::Echo(echo) => echo.run(output).await,
            Self::Evaluate(evaluate) => evaluate.run(output).await,
            Self::Peer(peer) => peer.run(output).await,
            Self::Swap(swap) => swap.run(output).await,
            Self::Start(start) => start.run(output).await,
            Self::Memory(memory) => memory.run(output).await,
            Self::Isolation(isolation) => isolation.run(output).await,
            Self::Timeout(timeout) => timeout.run(output).await,
            Self::Strangers(strangers) => strangers.run(output).await,
            Self::Train(train) => train.run().await,
            Self::Overload(overload) => overload.run(output).await,
            Self::Soak(soak) => soak.run(output).await,
            Self::Admission(admission) => admission.run(output).await,
            Self::Applies(applies) => applies.run(output).await,
            Self::Audit(audit) => audit.run(output).await,
            Self::Propagate(propagate) => tokio::task::block_in_place(|| propagate.run(output)),
            Self::Crowd(crowd) => tokio::task::block_in_place(|| crowd.run(output)),
            Self::Scale(scale) => scale.run(output).await,
            Self::Slope(slope) => slope.run(output).await,
        }
    }
}

/// Runs all benchmarks, even if one of them fails.
async fn all(output: &Output) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for name in names() {
        eprintln!("{name}");
        let one = Args::try_parse_from(["bench", &name])?.benchmark;
        if let Benchmark::Peer(peer) = &one
            && let Err(missing) = peer.version()
        {
            eprintln!("{name} is left out: {missing:#}");
            continue;
        }
        if let Err(error) = one.run(output).await {
            eprintln!("{name}: {error:#}");
            failed.push(name);
        }
    }
    anyhow::ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// The names of all benchmarks.
fn names() -> Vec<String> {
    let command = Args::command();
    let names = command.get_subcommands().map(|command| command.get_name().to_owned());
    names.filter(|name| !["all", "help", "plots", "train"].contains(&name.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_benchmark_runs_without_arguments_and_has_a_place_for_its_figures() {
        Args::command().debug_assert();
        assert!(page::has_place(slope::LARGE_PLACE));
        for name in names() {
            assert!(Args::try_parse_from(["bench", &name]).is_ok(), "{name}");
            assert!(page::has_place(&name), "{name}");
        }
    }
}
