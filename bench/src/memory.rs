//! The memory of an evaluator with idle policies: with more and more of them, over one module and over many.
//!
//! Goal P9: at most 100 KiB of anonymous memory for each policy; the same module with many settings counts once.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use serde::Serialize;
use serde_json::json;

use crate::plot::{Axis, Panel, Plot, Scale};
use crate::pod::{Evaluator, FILL_MANY, Folder, examples};
use crate::report::{Output, median, print_with_plot};
use crate::review;
use crate::usage::mib;
use crate::variant::variant;

/// How long after the evaluator is ready its memory is read.
const SETTLE: Duration = Duration::from_secs(2);

/// Memory by the number of policies.
pub(crate) const PLOT: Plot = Plot {
    benchmark: "memory",
    description: "Anonymous memory of an evaluator, and memory of files, by the number of idle policies, for each number of modules",
    x: Axis { field: "policies", title: "policies", scale: Scale::Logarithmic },
    panels: &[
        Panel { title: "anonymous memory, MiB", scale: Scale::Linear, fields: &["anonymous_mib"] },
        Panel { title: "memory of files, MiB", scale: Scale::Linear, fields: &["file_mib"] },
    ],
    panel_for_each: &[],
    line_for_each: &["modules"],
};

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of policies, each with settings of its own; 1 is always among them.
    #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000", value_parser = clap::value_parser!(u32).range(1..=5000))]
    policies: Vec<u32>,

    /// Numbers of different modules. Where there are fewer policies, each has a module of its own.
    #[arg(long, value_delimiter = ',', default_value = "1,100", value_parser = clap::value_parser!(u32).range(1..=1000))]
    modules: Vec<u32>,

    /// The number of starts for each line; the medians of their figures are printed.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

#[derive(Debug, Serialize)]
struct Row {
    policies: u32,
    modules: u32,
    anonymous_mib: f64,
    file_mib: f64,
    /// What each further policy adds to the line with fewer policies; `None` for the first line.
    anonymous_per_policy_kib: Option<f64>,
    file_per_policy_kib: Option<f64>,
}

/// A number of policies over a number of modules.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    policies: u32,
    modules: u32,
    /// The index of the step with fewer policies with which it is compared: what any evaluator needs, and the memory that it keeps for
    /// instances, is in both. `None` for the first step.
    before: Option<usize>,
}

/// What was measured at a step, in MiB.
struct Measured {
    anonymous: f64,
    file: f64,
}

impl Args {
    pub(crate) async fn run(&self, output: &Output) -> anyhow::Result<()> {
        let module = std::fs::read(examples().join("modules/required-labels.wasm"))?;
        let (steps, mut measured) = (steps(&self.policies, &self.modules), Vec::new());
        for step in &steps {
            eprintln!("policies: {}, modules: {}", step.policies, step.modules);
            measured.push(self.measure(step, &module).await?);
        }
        print_with_plot(output, &PLOT, &rows(&steps, &measured))
    }

    async fn measure(&self, step: &Step, module: &[u8]) -> anyhow::Result<Measured> {
        let folder = Folder::new()?;
        put(&folder, step, module)?;
        let volume = folder.path("volume");
        folder.fill(&volume, step.policies as usize, FILL_MANY)?;
        let (mut anonymous, mut file) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            folder.clear("private")?;
            let evaluator = folder.evaluator(&volume, &folder.path("private"))?;
            tokio::time::sleep(SETTLE).await;
            let memory = evaluator.memory()?;
            anonymous.push(mib(memory.anonymous));
            file.push(mib(memory.file));
            ensure_loaded(&evaluator, step.policies).await?;
        }
        Ok(Measured { anonymous: median(anonymous), file: median(file) })
    }
}

/// Writes the policies of a step. They admit the pod of the reviews, and no two have the same settings.
fn put(folder: &Folder, step: &Step, module: &[u8]) -> anyhow::Result<()> {
    let mut files = Vec::new();
    for number in 0..step.modules {
        files.push(folder.module(&format!("module-{number}"), &variant(module, number)?)?);
    }
    for (number, file) in (0..step.policies).zip(files.iter().cycle()) {
        let label = format!("number-{number}");
        let settings = json!({"labels": ["team"], "patterns": {label: "any"}});
        folder.manifest(&name(number), json!({"module": file, "settings": settings}))?;
    }
    Ok(())
}

fn name(number: u32) -> String {
    format!("idle-{number}")
}

/// Asks each policy, and fails if one was not loaded.
async fn ensure_loaded(evaluator: &Evaluator, policies: u32) -> anyhow::Result<()> {
    let body = Bytes::from(review::pod(false));
    for number in 0..policies {
        let target = evaluator.target(&format!("cluster/{}", name(number)));
        let answer = target.connect().await?.ask(body.clone()).await?;
        ensure!(answer["allowed"] == true, "the policy {} is not loaded: {answer}", name(number));
    }
    Ok(())
}

/// The steps, for each number of modules from few policies to many. No step comes twice.
fn steps(policies: &[u32], modules: &[u32]) -> Vec<Step> {
    let policies: BTreeSet<u32> = policies.iter().copied().chain([1]).collect();
    let modules: BTreeSet<u32> = modules.iter().copied().collect();
    let mut steps: Vec<Step> = Vec::new();
    for most in modules {
        let mut before = None;
        for &policies in &policies {
            let modules = most.min(policies);
            let known = steps.iter().position(|step| (step.policies, step.modules) == (policies, modules));
            if known.is_none() {
                steps.push(Step { policies, modules, before });
            }
            before = known.or(Some(steps.len() - 1));
        }
    }
    steps
}

fn rows(steps: &[Step], measured: &[Measured]) -> Vec<Row> {
    let row = |(step, here): (&Step, &Measured)| {
        let each = |figure: fn(&Measured) -> f64| {
            let before = step.before?;
            let policies = step.policies - steps[before].policies;
            Some((figure(here) - figure(&measured[before])) * 1024.0 / f64::from(policies))
        };
        Row {
            policies: step.policies,
            modules: step.modules,
            anonymous_mib: here.anonymous,
            file_mib: here.file,
            anonymous_per_policy_kib: each(|one| one.anonymous),
            file_per_policy_kib: each(|one| one.file),
        }
    };
    steps.iter().zip(measured).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(policies: u32, modules: u32, before: Option<usize>) -> Step {
        Step { policies, modules, before }
    }

    #[test]
    fn each_step_is_compared_with_the_one_with_fewer_policies_over_the_same_modules() {
        let one = [step(1, 1, None), step(10, 1, Some(0)), step(1000, 1, Some(1))];
        assert_eq!(steps(&[1000, 10], &[1]), one);
        let many = [step(10, 10, Some(0)), step(1000, 100, Some(3))];
        let both: Vec<Step> = one.into_iter().chain(many).collect();
        assert_eq!(steps(&[1, 10, 1000], &[100, 1, 1]), both);
    }

    #[test]
    fn memory_for_a_policy_is_what_further_ones_add() {
        let steps = [step(1, 1, None), step(11, 1, Some(0))];
        let measured = [Measured { anonymous: 20.0, file: 8.0 }, Measured { anonymous: 20.5, file: 7.0 }];
        let rows = rows(&steps, &measured);
        assert_eq!((rows[0].anonymous_per_policy_kib, rows[0].file_per_policy_kib), (None, None));
        assert_eq!((rows[1].anonymous_per_policy_kib, rows[1].file_per_policy_kib), (Some(51.2), Some(-102.4)));
    }
}
