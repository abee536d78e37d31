//! `portcullis check`: whether policies would load. The real loader and evaluator decide that, before the policies are applied.
//!
//! ```text
//!  FILE|DIR… ─► collect: one policy a document ─► the session of eval: loader, evaluator ─► report: text, JSON, SARIF, JUnit
//! ```

mod collect;
mod report;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::args::CheckArgs;
use crate::eval::session::{More, Session, until_signal};
use crate::eval::state::Settled;
use collect::{Collected, collect};
use report::{Finding, Level, Report};

/// Checks and prints. Exit status: 0 all would load, 1 one would not, 2 could not check, 64 for a bad argument.
pub(crate) fn check(args: &CheckArgs) -> ExitCode {
    let printed = checked(args).and_then(|report| {
        let report = if args.strict { report.strict() } else { report };
        crate::print(report.in_form(args.output).as_bytes())?;
        Ok(report.status())
    });
    match printed {
        Ok(status) => ExitCode::from(status),
        Err(error) => crate::refuse(&error),
    }
}

fn checked(args: &CheckArgs) -> anyhow::Result<Report> {
    args.modules.loader.access.check()?;
    let mut collected = collect(&args.paths)?;
    if collected.ready.is_empty() {
        return Ok(collected.report);
    }
    until_signal(load(args, &mut collected))?;
    Ok(collected.report)
}

/// Loads the policies that were collected, and adds the results to the report.
async fn load(args: &CheckArgs, collected: &mut Collected) -> anyhow::Result<()> {
    let Collected { ready, report, folders } = collected;
    let roots: Vec<PathBuf> = folders.iter().chain(&args.modules.module_roots).cloned().collect();
    let loader = args.modules.for_loader();
    let manifests: Vec<_> = ready.iter().map(|(_, chosen)| chosen.manifest.as_str()).collect();
    let ids: Vec<_> = ready.iter().map(|(_, chosen)| &chosen.id).collect();
    let session = Session::start(&manifests, &roots, More::of_loader(loader), args.modules.limits.compile_time).await?;
    let (mut done, shows) = (vec![false; ids.len()], std::io::stderr().is_terminal());
    let settled = session.settle(&ids, |number, settled| {
        let (place, chosen) = &ready[number];
        let findings = match settled {
            Settled::Serves { mismatches, .. } => mismatches
                .into_iter()
                .map(|one| Finding::new(Level::Warning, one.reason.as_str(), one.message))
                .collect(),
            Settled::Failed(failure) => vec![Finding::of_failure(&failure)],
            Settled::Refused(why) => vec![Finding::invalid(why)],
        };
        report.add(*place, findings);
        done[number] = true;
        if shows {
            crate::note(&format!("{} of {}: {}", done.iter().filter(|done| **done).count(), ids.len(), chosen.id));
        }
    });
    let settled = settled.await;
    session.stop(None).await;
    if let Err(error) = settled {
        // The results that are known still count.
        let pending = ready.iter().zip(&done).filter(|(_, done)| !**done);
        pending.for_each(|((place, _), _)| report.add(*place, vec![Finding::not_known(format!("{error:#}"))]));
    }
    Ok(())
}
