//! What a create costs by the number of policies: Portcullis compared with ValidatingAdmissionPolicy with the same rules in CEL, in the
//! same API server, and with one webhook for each policy.
//!
//! All policies forbid privileged containers. Each curve has a cluster of its own, in which the number of policies grows step by step.
//! At each step the variants take turns, and only one is in place at a time. Before a variant is measured, as many policies as match
//! must be asked, and it must admit and deny the same pods as the others.
//!
//! Goal P16: nearly flat where policies do not match, and below ValidatingAdmissionPolicy from 64 policies upwards.

mod enforced;
mod point;
mod samples;
mod scenario;
mod site;
mod twin;
mod variant;

use std::time::{Duration, Instant};

use anyhow::ensure;
use portcullis_e2e::{Cluster, Options};
use portcullis_process::parse_duration;
use serde::Serialize;
use tokio::task::block_in_place;

use crate::api;
use crate::plot::{Axis, Panel, Plot, Scale};
use crate::report::{Output, print, print_with_plot};
use point::{Batch, Figures, Point};
use scenario::{Matching, Parts, Scenario};
use site::{Answer, Site};
use variant::Variant;

/// Creates that are not measured at the start of a turn: they warm caches and connections.
const WARM_UP: u32 = 5;
/// The number of policies from which Portcullis should cost less than ValidatingAdmissionPolicy.
const BELOW_FROM: u32 = 64;

/// The number of policies from which a run has a place of its own on the page if it measures no smaller number: it takes much longer, and
/// is repeated less often.
const LARGE: u32 = 1000;
/// The name of that place.
pub(crate) const LARGE_PLACE: &str = "slope-large";

/// The median of a create, by the number of policies.
pub(crate) const PLOT: Plot = Plot {
    benchmark: "slope",
    description: "Median time of a create by the number of policies, for each combination of match parts and matching policies: without \
                  policies, with Portcullis, with a webhook for each policy, and with ValidatingAdmissionPolicy; both axes are logarithmic",
    x: Axis { field: "policies", title: "policies", scale: Scale::Logarithmic },
    panels: &[Panel { title: "p50 of a create, ms", scale: Scale::Logarithmic, fields: &["p50_ms"] }],
    panel_for_each: &["parts", "matching"],
    line_for_each: &["variant"],
};

/// The arguments.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of policies. 1000 takes much longer than all the others together, so it has to be asked for: 1,10,64,100,1000. If it is
    /// measured alone, --record keeps the figures of the others.
    #[arg(long, value_delimiter = ',', default_value = "1,10,64,100", value_parser = clap::value_parser!(u32).range(1..=2000))]
    policies: Vec<u32>,

    /// How alike the match parts of the policies are. Portcullis has one webhook for each match part, or one in all if they are shared.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "same,different,shared")]
    parts: Vec<Parts>,

    /// How many of the policies match the pod that is created.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all,one-in-ten")]
    matching: Vec<Matching>,

    /// What is measured, beside an API server without rules.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "portcullis,webhook-each,admission-policy")]
    variants: Vec<Variant>,

    /// How many pods are created, without being stored, in each turn of a variant.
    #[arg(long, default_value = "200", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests: u32,

    /// How many turns each variant has at each step; medians of their figures are printed.
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// The longest turn: after this time no further pod is created, so slow variants have fewer creates.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    longest: Duration,
}

/// One variant with one number of policies.
#[derive(Debug, Serialize)]
struct Row {
    parts: Parts,
    matching: Matching,
    policies: u32,
    /// How many of them match.
    matched: u32,
    variant: Variant,
    webhooks: usize,
    #[serde(flatten)]
    figures: Figures,
    p50_above_none_ms: Option<f64>,
    api_server_cpu_above_none_ms: Option<f64>,
}

/// A variant at one step.
struct Turns {
    variant: Variant,
    point: Point,
    /// Whether it has no more turns, because it could not be put in place.
    is_left_out: bool,
}

impl Args {
    /// Runs the benchmark.
    pub(crate) async fn run(self, output: &Output) -> anyhow::Result<()> {
        Cluster::require_own_network();
        let mut rows = Vec::new();
        for scenario in Scenario::all(&self.parts, &self.matching) {
            rows.extend(self.curve(scenario).await?);
        }
        if self.policies.iter().all(|count| *count >= LARGE) {
            print(output, LARGE_PLACE, &rows)?;
        } else {
            print_with_plot(output, &PLOT, &rows)?;
        }
        for missed in missed(&rows) {
            eprintln!("P16 is missed: {missed}");
        }
        Ok(())
    }

    /// Measures with more and more policies, in a cluster of its own.
    async fn curve(&self, scenario: Scenario) -> anyhow::Result<Vec<Row>> {
        eprintln!("{scenario}: starting a cluster");
        let cluster = block_in_place(|| Cluster::start(&Options::default()))?;
        let client = api::client(&cluster).await?;
        let mut site = block_in_place(|| Site::start(&cluster, client, scenario))?;
        let mut steps = self.policies.clone();
        steps.sort_unstable();
        steps.dedup();
        let mut rows = Vec::new();
        for policies in steps {
            site.grow(policies).await?;
            enforced::wait_gone(&site).await?;
            rows.extend(self.step(&site).await?);
        }
        block_in_place(|| drop(site));
        Ok(rows)
    }

    /// Lets all variants take turns.
    async fn step(&self, site: &Site<'_>) -> anyhow::Result<Vec<Row>> {
        let variants = Variant::measured(&self.variants);
        let turns = |variant| Turns { variant, point: Point::default(), is_left_out: false };
        let mut all: Vec<Turns> = variants.into_iter().map(turns).collect();
        for round in 1..=self.rounds {
            for turns in all.iter_mut().filter(|turns| !turns.is_left_out) {
                self.turn(site, turns).await?;
            }
            // Another variant is first in the next round.
            all.rotate_left(1);
            eprintln!("{}, {} policies: round {round} of {}", site.scenario, site.policies(), self.rounds);
        }
        all.sort_by_key(|turns| turns.variant);
        for turns in &all {
            eprintln!("  {}", summary(turns));
        }
        Ok(rows(site, &all))
    }

    /// Puts a variant in place, measures it, and takes it away.
    async fn turn(&self, site: &Site<'_>, turns: &mut Turns) -> anyhow::Result<()> {
        let variant = turns.variant;
        site.put(variant).await?;
        match enforced::wait(site, variant).await? {
            None => turns.point.add(self.measure(site, variant).await?),
            Some(problem) => {
                ensure!(
                    variant != Variant::None && variant != Variant::Portcullis,
                    "{variant} does not work: {problem}"
                );
                eprintln!("warning: {variant} is left out at {} policies: {problem}", site.policies());
                turns.is_left_out = true;
            }
        }
        site.take(variant).await?;
        enforced::wait_gone(site).await
    }

    /// Creates pods one after the other.
    async fn measure(&self, site: &Site<'_>, variant: Variant) -> anyhow::Result<Batch> {
        let pod = samples::measured();
        for _ in 0..WARM_UP {
            site.create(&pod).await;
        }
        let mut batch = Batch::default();
        let (before, start) = (site.cpu()?, Instant::now());
        for number in 0..self.requests {
            if number > 0 && start.elapsed() >= self.longest {
                break;
            }
            let begin = Instant::now();
            match site.create(&pod).await {
                Answer::Admitted => batch.times.push(begin.elapsed()),
                Answer::Denied => batch.failed += 1,
                Answer::Failed(problem) => {
                    if batch.failed == 0 {
                        eprintln!("warning: {variant}: a create failed: {problem}");
                    }
                    batch.failed += 1;
                }
            }
        }
        let after = site.cpu()?;
        batch.api_server = after.0.saturating_sub(before.0);
        batch.evaluator = after.1.saturating_sub(before.1);
        batch.memory = block_in_place(|| site.api_server_memory())?;
        Ok(batch)
    }
}

/// A line about the measured figures.
fn summary(turns: &Turns) -> String {
    let figures = turns.point.figures();
    let ms = |figure: Option<f64>| figure.map_or("-".to_owned(), |figure| format!("{figure:.2} ms"));
    format!(
        "{:<26} p50 {:>12}, p99 {:>12}, API server {:>12} of CPU",
        turns.variant,
        ms(figures.p50_ms),
        ms(figures.p99_ms),
        ms(figures.api_server_cpu_ms),
    )
}

fn rows(site: &Site<'_>, all: &[Turns]) -> Vec<Row> {
    let none = all.iter().find(|turns| turns.variant == Variant::None);
    let none = none.map(|turns| turns.point.figures()).unwrap_or_default();
    let above = |figure: Option<f64>, none: Option<f64>| Some(figure? - none?);
    let row = |turns: &Turns| {
        let figures = turns.point.figures();
        Row {
            parts: site.scenario.parts,
            matching: site.scenario.matching,
            policies: site.policies(),
            matched: site.scenario.matched(site.policies()),
            variant: turns.variant,
            webhooks: site.webhooks(turns.variant),
            p50_above_none_ms: above(figures.p50_ms, none.p50_ms),
            api_server_cpu_above_none_ms: above(figures.api_server_cpu_ms, none.api_server_cpu_ms),
            figures,
        }
    };
    all.iter().map(row).collect()
}

/// The points at which Portcullis should cost less than ValidatingAdmissionPolicy but does not.
fn missed(rows: &[Row]) -> Vec<String> {
    let beside = |row: &Row| {
        let is_beside = |other: &&Row| {
            other.variant == Variant::AdmissionPolicy
                && (other.parts, other.matching, other.policies) == (row.parts, row.matching, row.policies)
        };
        rows.iter().find(is_beside)?.figures.p50_ms
    };
    let from = rows.iter().filter(|row| row.variant == Variant::Portcullis && row.policies >= BELOW_FROM);
    let missed = from.filter_map(|row| {
        let (own, other) = (row.figures.p50_ms?, beside(row)?);
        let scenario = Scenario { parts: row.parts, matching: row.matching };
        let (policies, admission_policy) = (row.policies, Variant::AdmissionPolicy);
        (own >= other)
            .then(|| format!("{scenario}, {policies} policies: {own:.2} ms, with {admission_policy} {other:.2} ms"))
    });
    missed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(policies: u32, variant: Variant, p50_ms: Option<f64>) -> Row {
        Row {
            parts: Parts::Same,
            matching: Matching::All,
            policies,
            matched: policies,
            variant,
            webhooks: 1,
            figures: Figures { p50_ms, ..Figures::default() },
            p50_above_none_ms: None,
            api_server_cpu_above_none_ms: None,
        }
    }

    #[test]
    fn the_goal_is_missed_where_portcullis_is_slower_from_64_policies_on() {
        let mut rows = Vec::new();
        for (policies, own, other) in [(10, 5.0, 2.0), (64, 5.0, 6.0), (100, 7.0, 6.0)] {
            rows.push(row(policies, Variant::Portcullis, Some(own)));
            rows.push(row(policies, Variant::AdmissionPolicy, Some(other)));
        }
        // Without a figure there is nothing to compare.
        rows.push(row(1000, Variant::Portcullis, Some(9.0)));
        rows.push(row(1000, Variant::AdmissionPolicy, None));
        let expected = "same match parts, all match, 100 policies: 7.00 ms, with ValidatingAdmissionPolicy 6.00 ms";
        assert_eq!(missed(&rows), [expected]);
    }

    #[test]
    fn a_row_has_its_figures_beside_what_they_are_of() {
        let row = serde_json::json!(row(10, Variant::WebhookEach, Some(1.5)));
        assert_eq!(row["variant"], "webhook each");
        assert_eq!(row["parts"], "same");
        assert_eq!(row["matching"], "all");
        assert_eq!(row["p50_ms"], 1.5);
        assert!(row["p99_ms"].is_null());
    }
}
