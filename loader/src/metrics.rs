//! The loader's metrics.

use std::time::Duration;

use portcullis_contract::Reason;
use portcullis_process::registered;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// All metrics of the loader.
#[derive(Clone)]
pub(crate) struct Metrics {
    /// What `/metrics` shows.
    pub registry: Registry,
    fetches: IntCounterVec,
    compilations: IntCounterVec,
    failures: IntCounterVec,
    compile_seconds: Histogram,
    /// Bytes of modules that were fetched.
    pub fetched_bytes: IntCounter,
    /// The number of the newest manifest.
    pub manifest_number: IntGauge,
    /// Manifests written.
    pub manifests: IntCounter,
    /// Policies whose newest generation is in the manifest.
    pub published: IntGauge,
    /// Policies whose newest generation failed here.
    pub failed: IntGauge,
    /// Files removed from the volume to make room.
    pub pruned: IntCounter,
    /// Failures of the watch of revisions.
    pub watch_errors: IntCounter,
}

impl Metrics {
    /// Makes and registers them.
    ///
    /// # Errors
    /// The registry's error; with the names given here there is none.
    pub(crate) fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let by = |name: &str, help: &str, label: &str| {
            registered(&registry, IntCounterVec::new(Opts::new(name, help), &[label])?)
        };
        let counter = |name: &str, help: &str| registered(&registry, IntCounter::new(name, help)?);
        let gauge = |name: &str, help: &str| registered(&registry, IntGauge::new(name, help)?);
        let buckets = vec![0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
        let options = HistogramOpts::new("portcullis_compile_seconds", "Wall time of compilations").buckets(buckets);
        Ok(Self {
            fetches: by(
                "portcullis_fetches_total",
                "Attempts to bring a module, by result (ok, or the reason)",
                "result",
            )?,
            compilations: by("portcullis_compilations_total", "Compilations, by result (ok, or the reason)", "result")?,
            failures: by("portcullis_load_failures_total", "Policies that began to fail, by reason", "reason")?,
            compile_seconds: registered(&registry, Histogram::with_opts(options)?)?,
            fetched_bytes: counter("portcullis_fetched_bytes_total", "Bytes of modules that were brought")?,
            manifest_number: gauge("portcullis_manifest_number", "Number of the newest manifest")?,
            manifests: counter("portcullis_manifests_total", "Manifests written")?,
            published: gauge("portcullis_policies_published", "Policies whose newest generation is in the manifest")?,
            failed: gauge("portcullis_policies_not_published", "Policies whose newest generation failed")?,
            pruned: counter("portcullis_pruned_files_total", "Files removed from the volume to make room")?,
            watch_errors: counter("portcullis_revision_watch_errors_total", "Failures of the watch of revisions")?,
            registry,
        })
    }

    /// Counts an attempt to fetch a module that has ended.
    pub(crate) fn fetch(&self, failure: Option<Reason>) {
        self.fetches.with_label_values(&[failure.map_or("ok", Reason::as_str)]).inc();
    }

    /// Counts a compilation that has ended.
    pub(crate) fn compilation(&self, took: Duration, failure: Option<Reason>) {
        self.compile_seconds.observe(took.as_secs_f64());
        self.compilations.with_label_values(&[failure.map_or("ok", Reason::as_str)]).inc();
    }

    /// Counts a policy that begins to fail.
    pub(crate) fn failure(&self, reason: Reason) {
        self.failures.with_label_values(&[reason.as_str()]).inc();
    }
}
