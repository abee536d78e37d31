//! `portcullis audit`: what the background audit has found about objects that exist.
//!
//! ```text
//!  without POLICY: status.audit of each policy ─► a table
//!  with POLICY:    [--now: annotation ─► --wait: status.audit of a later scan ─►] reports of its policy server ─► the objects
//! ```
//!
//! The figures are those of the policies' status, and the right to read policies is enough for them. The objects stand in reports
//! (OpenReports, or PolicyReports of the policy working group), for which a user needs the right to list them.

mod report;

use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use portcullis_matching::Resource;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::args::{AuditArgs, ResultForm};
use crate::cluster::{Cluster, ClusterError, Selection};
use crate::eval::session::until_signal;
use crate::item::Item;
use crate::moment::moment;
use crate::name::Wanted;
use crate::policy_source::Choice;
use report::{Findings, Known};

/// How often the status is read while waiting for a scan.
const ASK: Duration = Duration::from_secs(1);

/// A kind of report: its resource, its name, and whether it is namespaced.
type ReportKind = (&'static str, &'static str, bool);

/// The kinds of reports by group and version, each cluster-scoped and namespaced. Those that the audit writes by default come first.
const KINDS: [(&str, &str, [ReportKind; 2]); 2] = [
    ("openreports.io", "v1alpha1", [("clusterreports", "ClusterReport", false), ("reports", "Report", true)]),
    (
        "wgpolicyk8s.io",
        "v1alpha2",
        [("clusterpolicyreports", "ClusterPolicyReport", false), ("policyreports", "PolicyReport", true)],
    ),
];

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
enum AuditError {
    /// A folder has no objects.
    #[error(
        "{0} is a folder of policies, which has no objects to audit; name a cluster with --context or --kubeconfig"
    )]
    Folder(String),
    /// No scan has reported on it.
    #[error(
        "there is no audit of {0}: it is switched off (`audit.enabled` of the chart), or its first scan has not ended; \
         the log of the reporter that holds the Lease tells, and docs/audit.md says what an audit needs"
    )]
    NotAudited(String),
    /// The scan that was asked for has not ended.
    #[error(
        "{id} has not been scanned after {patience}{before}; the audit may be switched off (`audit.enabled` of the chart), still rest \
         after the last scan (`audit.interval` at most), or have much to look at: `portcullis audit {id}` shows when it is done"
    )]
    NotInTime {
        /// The policy.
        id: String,
        /// How long this program has waited.
        patience: String,
        /// When the last scan was, as a part of the sentence; empty if there was none.
        before: String,
    },
}

/// Reads and prints. Exit status: 0 nothing is rejected, or a scan has been asked for that nobody waits for; 1 something is rejected, 2 could not
/// find out, 64 for a bad argument.
pub(crate) fn audit(args: &AuditArgs) -> ExitCode {
    let printed = until_signal(found(args)).and_then(|(text, status)| {
        crate::print(text.as_bytes())?;
        Ok(status)
    });
    match printed {
        Ok(status) => ExitCode::from(status),
        Err(error) => crate::refuse(&error),
    }
}

/// The text and the exit status.
async fn found(args: &AuditArgs) -> anyhow::Result<(String, u8)> {
    let source = &args.scope.source;
    // Only a cluster has objects, so `-A` is about a cluster, also in a folder with policies.
    let may_be_folder = source.dir.is_some() || !args.scope.all_namespaces;
    if let Choice::Folder(dir) = Choice::of(source)
        && may_be_folder
    {
        return Err(AuditError::Folder(dir.display().to_string()).into());
    }
    let cluster = Cluster::connect(source).await?;
    match &args.scope.policy {
        Some(policy) => of_one(&cluster, policy, args).await,
        None => of_all(&cluster, args).await,
    }
}

async fn of_all(cluster: &Cluster, args: &AuditArgs) -> anyhow::Result<(String, u8)> {
    let all_namespaces = args.scope.all_namespaces;
    let read = cluster.policies(all_namespaces, args.scope.source.namespace.is_none()).await?;
    for error in &read.hidden {
        crate::note(&format!("Not all policies are shown: {error}"));
    }
    if read.items.is_empty() {
        crate::note("No policies; -A looks at all namespaces.");
    } else if read.items.iter().all(|item| item.audit().is_none()) {
        return Err(AuditError::NotAudited("these policies".to_owned()).into());
    }
    let text = match args.output {
        ResultForm::Text => report::table(&read.items, Timestamp::now()),
        ResultForm::Json => format!("{:#}\n", report::list(&read.items)),
    };
    let known = if read.hidden.is_empty() { Known::All } else { Known::Part };
    Ok((text, report::status(read.items.iter(), known)))
}

async fn of_one(cluster: &Cluster, policy: &str, args: &AuditArgs) -> anyhow::Result<(String, u8)> {
    let mut item = cluster.find(&Wanted::parse(policy, args.scope.source.namespace.as_deref())?).await?;
    if args.now {
        let asked = cluster.request_audit(&item.id).await?;
        if !args.wait {
            let id = &item.id;
            let text = match args.output {
                ResultForm::Text => {
                    format!(
                        "{id} will be scanned in a few seconds, or when the rest after the last scan is over, if the audit is on; \
                         `portcullis audit {id}` shows what is found, --wait waits for it\n"
                    )
                }
                ResultForm::Json => format!("{:#}\n", json!({"policy": id, "requestedAt": asked})),
            };
            return Ok((text, 0));
        }
        item = wait(cluster, &item, args.timeout).await?;
    }
    let Some(audit) = item.audit() else { return Err(AuditError::NotAudited(item.id.to_string()).into()) };
    let mut findings = Findings::new(&item.id, args.show);
    // The figures are known even without reports; only names and messages are missing then.
    if audit.violations + audit.errors > 0
        && let Err(error) = collect(cluster, &item, &mut findings).await
    {
        findings.note(format!("not all objects are shown: {error}"));
    }
    let text = match args.output {
        ResultForm::Text => findings.text(&item, &audit, Timestamp::now()),
        ResultForm::Json => format!("{:#}\n", findings.json(&item)),
    };
    Ok((text, report::status(std::iter::once(&item), Known::All)))
}

/// Reads the policy until a scan has ended that has handled the request, or a later one in its place.
async fn wait(cluster: &Cluster, before: &Item, patience: Duration) -> anyhow::Result<Item> {
    let deadline = Instant::now() + patience;
    crate::note(&format!("{}: waiting for the scan", before.id));
    loop {
        match cluster.policy(&before.id).await {
            Ok(item) => {
                if item.is_audit_handled() {
                    return Ok(item);
                }
            }
            // Tried again, as a scan takes longer than a restart of the API server.
            Err(error) if error.is_passing() => {}
            Err(error) => return Err(error.into()),
        }
        if Instant::now() >= deadline {
            let last = |time| format!("; the last scan was at {}", moment(time, Timestamp::now()));
            let error = AuditError::NotInTime {
                id: before.id.to_string(),
                patience: portcullis_api::column::short_duration(patience),
                before: before.audit().and_then(|audit| audit.scanned_at).map(last).unwrap_or_default(),
            };
            return Err(error.into());
        }
        sleep(ASK).await;
    }
}

/// Reads what reports say about a policy. The audit writes one kind of report, but after a change of `audit.format` the older ones are still
/// there, and nobody renews them: where both kinds mention the policy, the newer results count.
async fn collect(cluster: &Cluster, item: &Item, findings: &mut Findings) -> Result<(), ClusterError> {
    let (mut missing, mut forbidden) = (Vec::new(), None);
    for (group, version, kinds) in KINDS {
        let (mut found, mut hidden) = (findings.of_other_reports(), None);
        for (name, kind, namespaced) in kinds {
            // Reports are in the namespaces of their objects, so a Policy is in namespaced reports only.
            if !namespaced && item.id.namespace().is_some() {
                continue;
            }
            let resource = Resource {
                group: group.to_owned(),
                version: version.to_owned(),
                name: name.to_owned(),
                kind: kind.to_owned(),
                namespaced,
            };
            match read(cluster, item, &resource, &mut found).await {
                Ok(()) => {}
                Err(ClusterError::NotInstalled { .. }) => missing.push(resource.title()),
                // The chart's roles for users cover the kind that the audit writes, and the cluster may have both.
                Err(error) if error.is_forbidden() => hidden = hidden.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        match hidden {
            Some(error) if !found.is_empty() => found.note(format!("not all objects are shown: {error}")),
            hidden => forbidden = forbidden.or(hidden),
        }
        findings.take_newer(found);
    }
    if !findings.is_empty() {
        return Ok(());
    }
    if let Some(error) = forbidden {
        return Err(error);
    }
    let told = if missing.is_empty() {
        "no report tells which objects they are".to_owned()
    } else {
        format!(
            "no report tells which objects they are: the cluster has no {}; docs/audit.md says how to install them",
            missing.join(", ")
        )
    };
    findings.note(told);
    Ok(())
}

async fn read(
    cluster: &Cluster,
    item: &Item,
    resource: &Resource,
    findings: &mut Findings,
) -> Result<(), ClusterError> {
    let server = item.text("/spec/policyServer").unwrap_or_else(|| "default".to_owned());
    let labels = format!("app.kubernetes.io/managed-by=portcullis,policies.portcullis.dev/policy-server={server}");
    let selection = Selection { namespace: item.id.namespace().map(str::to_owned), labels };
    let mut next = String::new();
    loop {
        let page = cluster.objects(resource, &selection, &next).await?;
        page.objects.iter().for_each(|report| findings.add(report));
        if page.next.is_empty() {
            return Ok(());
        }
        next = page.next;
    }
}
