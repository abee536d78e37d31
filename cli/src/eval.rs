//! `portcullis eval`: one request, one policy, the real loader and evaluator, and no pod.
//!
//! ```text
//!  POLICY.yaml ─► manifest: one policy, absolute module ─┐
//!                                                        ├─► session: loader, evaluator ─► verdict: text, exit status
//!  REQUEST.json ─► request: an AdmissionReview ──────────┘
//! ```

mod cache;
mod manifest;
mod request;
mod session;
mod state;
mod verdict;

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use portcullis_process::Shutdown;

use crate::args::{EvalArgs, EvalForm};
use manifest::Chosen;
use request::Review;
use session::{Judged, Session};
use verdict::{Outcome, Verdict};

/// Largest manifest or request that is read, in bytes. The evaluator takes requests of 7 MiB.
const LARGEST: u64 = 16 << 20;

/// Judges and prints. Exit status: 0 admitted, 1 rejected, 2 could not judge.
pub(crate) fn eval(args: &EvalArgs) -> ExitCode {
    match judge(args) {
        Ok(verdict) => {
            let printed = crate::print(
                match args.output {
                    EvalForm::Text => verdict.text(),
                    EvalForm::Json => verdict.json(),
                }
                .as_bytes(),
            );
            match (printed, verdict.outcome) {
                (Err(error), _) => refuse(&error),
                (_, Outcome::Admitted) => ExitCode::SUCCESS,
                (_, Outcome::Rejected) => ExitCode::from(1),
                (_, Outcome::Unjudged) => ExitCode::from(2),
            }
        }
        Err(error) => refuse(&error),
    }
}

fn refuse(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(2)
}

fn judge(args: &EvalArgs) -> anyhow::Result<Verdict> {
    args.access.check()?;
    let text = read(&args.manifest)?;
    let folder = std::path::absolute(&args.manifest)?;
    let folder = folder.parent().unwrap_or(Path::new("/")).to_owned();
    let named = || format!("failed to take a policy from {}", args.manifest.display());
    let chosen = Chosen::from(&text, &folder, args.policy.as_deref()).with_context(named)?;
    let named = || format!("failed to take a request from {}", args.request.display());
    let review = Review::from(&read(&args.request)?).with_context(named)?;

    let mut roots = vec![folder];
    roots.extend(args.module_roots.iter().cloned());
    // One thread, as children that end with their parent end with the thread that started them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let judged = runtime.block_on(async {
        let shutdown = Shutdown::on_signals().context("failed to catch signals")?;
        let judging = async {
            let session = Session::start(&chosen, &roots, args.access.for_loader(&args.allow_private)).await?;
            let judged = session.judge(&chosen, &review).await;
            session.stop(judged.as_ref().ok()).await;
            judged
        };
        tokio::select! {
            judged = judging => judged,
            // Programs and folder go with the session.
            () = shutdown.begun() => Err(anyhow::anyhow!("interrupted by a signal")),
        }
    })?;
    let mut notes = review.notes.clone();
    notes.extend(chosen.notes(&review));
    Ok(match judged {
        Judged::Unserved(failure) => Verdict::unserved(&chosen.id, &failure, notes),
        Judged::Answered { body, alone, .. } => Verdict::of(&chosen.id, &body, alone.as_deref(), notes)?,
    })
}

/// A file of limited size, or standard input for `-`.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path.as_os_str() != "-" {
        // A user may well name a link or a pipe (`<(kubectl …)`) here.
        let file = std::fs::File::open(path).with_context(|| format!("failed to open {}", path.display()))?;
        return limited(file).with_context(|| format!("failed to read {}", path.display()));
    }
    limited(std::io::stdin().lock()).context("failed to read standard input")
}

fn limited(reader: impl Read) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(LARGEST + 1).read_to_end(&mut bytes)?;
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    anyhow::ensure!(length <= LARGEST, "it is longer than {LARGEST} bytes");
    Ok(bytes)
}
