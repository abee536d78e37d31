//! The counters and the usage of programs.

use std::time::Duration;

use portcullis_e2e::Program;

use super::site::Site;
use crate::metrics::Metrics;

/// The collections that the reporter lists page by page for a scan, in all namespaces; other programs list them at most once,
/// when they start.
const LISTED: [&str; 3] = ["configmaps", "reports", "clusterreports"];

/// The counters and the usage of programs so far.
#[derive(Debug)]
pub(super) struct Counters {
    /// Scans that were completed.
    pub(super) scans: u64,
    /// Questions that the evaluator has answered.
    pub(super) questions: u64,
    /// Lists of objects and of reports, a request for each page.
    pub(super) lists: u64,
    /// Reports that were written or deleted.
    pub(super) report_writes: u64,
    /// Rejections that the last scan has found.
    pub(super) violations: u64,
    pub(super) reporter_cpu: Duration,
    pub(super) evaluator_cpu: Duration,
    pub(super) api_server_cpu: Duration,
}

impl Counters {
    /// Reads all of them. If the reporter is stopped, its counters are 0.
    pub(super) fn of(site: &Site<'_>) -> anyhow::Result<Self> {
        let reporter = site.metrics(Program::Reporter)?;
        let evaluator = site.metrics(Program::Evaluator)?;
        let api_server = site.api_server_metrics()?;
        let lists = |resource: &str| {
            let resource = format!("resource=\"{resource}\"");
            api_server.count("apiserver_request_total", &["verb=\"LIST\"", "scope=\"cluster\"", &resource])
        };
        let writes = |result: &str| reporter.count("portcullis_audit_report_writes_total", &[result]);
        Ok(Self {
            scans: scans(&reporter),
            questions: questions(&evaluator),
            lists: LISTED.into_iter().map(lists).sum(),
            report_writes: writes("result=\"written\"") + writes("result=\"deleted\""),
            violations: reporter.count("portcullis_audit_violations", &[]),
            reporter_cpu: site.cpu(Program::Reporter)?,
            evaluator_cpu: site.cpu(Program::Evaluator)?,
            api_server_cpu: site.api_server_cpu()?,
        })
    }
}

/// The scans that a reporter has completed.
pub(super) fn scans(reporter: &Metrics) -> u64 {
    reporter.count("portcullis_audit_scans_total", &[])
}

/// The questions that an evaluator has answered.
pub(super) fn questions(evaluator: &Metrics) -> u64 {
    let outcomes = ["allowed", "denied", "changes", "failed"];
    let count = |outcome| evaluator.count("portcullis_audits_total", &[&format!("outcome=\"{outcome}\"")]);
    outcomes.into_iter().map(count).sum()
}
