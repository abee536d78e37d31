//! From the start of an evaluator to ready, on a filled volume.
//!
//! Goal P4, with 100 modules of 3.3 MB: at most 500 ms after a restart (private copies are there), at most 1.2 s fresh;
//! anonymous memory at most 64 MiB, all at most 192 MiB.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Value, json};

use crate::pod::{FILL_MANY, Folder, examples};
use crate::report::{Output, median, print};
use crate::usage::mib;
use crate::variant::variant;
use crate::workload;

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The module. [default: the example against privileged containers, and then a guest in Go of 3.3 MB where it can be built]
    #[arg(long)]
    module: Option<PathBuf>,

    /// Settings of the module, as JSON.
    #[arg(long, default_value = "{}", requires = "module")]
    settings: String,

    /// The number of policies, each with its own module.
    #[arg(long, default_value_t = 100)]
    modules: usize,

    /// The number of starts of each kind; the medians are printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,

    /// Keep the filled volume here and use it again: filling it with large modules takes minutes.
    #[arg(long, requires = "module")]
    volume: Option<PathBuf>,
}

#[derive(Serialize)]
struct Row {
    start: &'static str,
    modules: usize,
    module_kib: usize,
    ready_ms: f64,
    anonymous_mib: f64,
    file_mib: f64,
}

impl Args {
    pub(crate) async fn run(&self, output: &Output) -> anyhow::Result<()> {
        tokio::task::block_in_place(|| self.measure(output))
    }

    fn measure(&self, output: &Output) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        for (module, settings) in self.chosen()? {
            rows.extend(self.starts(&module, &settings)?);
        }
        print(output, "start", &rows)
    }

    /// The modules that are measured, with their settings.
    fn chosen(&self) -> anyhow::Result<Vec<(Vec<u8>, Value)>> {
        let read = |path: &Path| std::fs::read(path).with_context(|| format!("failed to read {}", path.display()));
        if let Some(path) = &self.module {
            return Ok(vec![(read(path)?, serde_json::from_str(&self.settings)?)]);
        }
        let mut chosen = vec![(read(&examples().join("modules/no-privileged.wasm"))?, json!({}))];
        if workload::go_modules().is_some() {
            chosen.push((workload::go_module()?, workload::go_settings()));
        }
        Ok(chosen)
    }

    /// Starts an evaluator with variants of a module, some times of each kind.
    fn starts(&self, module: &[u8], settings: &Value) -> anyhow::Result<Vec<Row>> {
        let folder = Folder::new()?;
        for i in 0..self.modules {
            folder.policy(&format!("policy-{i}"), &variant(module, u32::try_from(i)?)?, settings, false)?;
        }
        let volume = self.volume.clone().unwrap_or_else(|| folder.path("volume"));
        std::fs::create_dir_all(&volume)?;
        eprintln!("filling the volume with {} modules of {} KiB", self.modules, module.len() / 1024);
        folder.fill(&volume, self.modules, FILL_MANY)?;

        let mut rows = Vec::new();
        let private = folder.path("private");
        for (start, fresh) in [("fresh", true), ("restart", false)] {
            let (mut ready, mut anonymous, mut file) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..self.rounds {
                if fresh {
                    folder.clear("private")?;
                }
                let evaluator = folder.evaluator(&volume, &private)?;
                ready.push(evaluator.until_ready.as_secs_f64() * 1e3);
                let memory = evaluator.memory()?;
                anonymous.push(mib(memory.anonymous));
                file.push(mib(memory.file));
            }
            rows.push(Row {
                start,
                modules: self.modules,
                module_kib: module.len() / 1024,
                ready_ms: median(ready),
                anonymous_mib: median(anonymous),
                file_mib: median(file),
            });
        }
        Ok(rows)
    }
}
