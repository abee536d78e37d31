//! `portcullis eval`: one request, one policy, the real loader and evaluator, and no pod.
//!
//! ```text
//!  POLICY ─► manifest: one policy, absolute module ──────┐
//!                                                        ├─► session: loader, evaluator ─► verdict: text, exit status
//!  REQUEST.json ─► request: an AdmissionReview ──────────┘
//! ```

mod cache;
pub(crate) mod manifest;
pub(crate) mod request;
pub(crate) mod session;
pub(crate) mod state;
pub(crate) mod verdict;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use portcullis_process::SettingError;
use serde_json::Value;

use crate::args::{EvalArgs, EvalForm};
use crate::child::Echo;
use crate::files::folder_of;
use crate::kind::shown;
use manifest::{Chosen, Given, notes_on};
use request::Review;
use session::{Evaluated, More, Session, until_signal};
use verdict::{Outcome, Verdict};

/// Largest manifest or request that is read, in bytes. The evaluator takes requests of 7 MiB.
const LARGEST: u64 = 16 << 20;

/// Evaluates and prints. Exit status: 0 admitted, 1 rejected, 2 could not be evaluated, 64 for a bad argument.
pub(crate) fn eval(args: &EvalArgs) -> ExitCode {
    match evaluate(args) {
        Ok(verdict) => {
            let printed = crate::print(
                match args.output {
                    EvalForm::Text => verdict.text(),
                    EvalForm::Json => verdict.json(),
                }
                .as_bytes(),
            );
            match (printed, verdict.outcome) {
                (Err(error), _) => crate::refuse(&error),
                (_, Outcome::Admitted) => ExitCode::SUCCESS,
                (_, Outcome::Rejected) => ExitCode::from(1),
                (_, Outcome::NotEvaluated) => ExitCode::from(2),
            }
        }
        Err(error) => crate::refuse(&error),
    }
}

fn evaluate(args: &EvalArgs) -> anyhow::Result<Verdict> {
    args.modules.loader.access.check()?;
    let mut given =
        Given { settings: settings(args)?, capabilities: args.host.host_capabilities.clone(), ..Given::default() };
    let (chosen, folder) = match module(&args.policy_file)? {
        Some((module, folder)) => {
            if args.policy.is_some() {
                let problem = format!("{module} is a module; only a manifest has policies to choose from");
                return Err(SettingError::new("--policy", problem).into());
            }
            if args.host.allow_context_aware {
                given.add_declared(&module)?;
            }
            let named = || format!("failed to take a policy from {}", args.policy_file.display());
            (Chosen::alone(&module, given).with_context(named)?, folder)
        }
        None => {
            if args.host.allow_context_aware {
                let problem = "it is for a module alone; a manifest grants what its policies may read by contextAwareResources and \
                               hostCapabilities";
                return Err(SettingError::new("--allow-context-aware", problem).into());
            }
            ensure_no_artifact(&args.policy_file)?;
            let (chosen, folder) = policy_of(&args.policy_file, args.policy.as_deref(), given)?;
            (chosen, Some(folder))
        }
    };
    let named = || format!("failed to take a request from {}", shown(&args.request));
    let request = crate::read(&args.request, LARGEST)?;
    let review = if args.raw { Review::raw(&request) } else { Review::from(&request) }.with_context(named)?;

    let mut roots = Vec::from_iter(folder);
    roots.extend(args.modules.module_roots.iter().cloned());
    let evaluated = until_signal(async {
        let mut loader = args.modules.for_loader();
        loader.extend(args.host.recording.for_loader());
        let more = More { evaluator: args.host.recording.for_evaluator(), loader, echo: Echo::Policies };
        let session = Session::start(&[&chosen.manifest], &roots, more, args.modules.limits.compile_time).await?;
        let evaluated = session.evaluate(&chosen, &review).await;
        let dropped = session.dropped_lines().await;
        session.stop(evaluated.as_ref().ok().and_then(Evaluated::module)).await;
        // Below the lines that are there.
        if dropped > 0 {
            crate::note(&format!("{dropped} lines that the policy logged are missing: more than its share"));
        }
        evaluated
    })?;
    let mut notes = review.notes.clone();
    notes.extend(notes_on(&args.request, &review.otherwise));
    notes.extend(chosen.notes(&review));
    Ok(match evaluated {
        Evaluated::Unserved(failure) => Verdict::unserved(&chosen.id, &failure, notes),
        Evaluated::Answered { body, alone, mismatches, .. } => {
            notes.extend(chosen.differences(mismatches));
            Verdict::of(&chosen.id, &body, alone.as_deref(), notes)?
        }
    })
}

/// The policy `wanted` of a manifest, or its only one, and the manifest's folder, in which its modules may be.
pub(crate) fn policy_of(file: &Path, wanted: Option<&str>, given: Given) -> anyhow::Result<(Chosen, PathBuf)> {
    ensure!(
        file.as_os_str() == "-" || !file.is_dir(),
        "{0} is a folder; name one manifest in it (`portcullis check {0}` reads a whole folder)",
        file.display()
    );
    let text = crate::read(file, LARGEST)?;
    let folder = folder_of(file)?;
    Ok((Chosen::from(&text, file, &folder, wanted, given)?, folder))
}

/// Refuses the name of an artifact without its scheme, which would be looked for as a manifest.
fn ensure_no_artifact(named: &Path) -> anyhow::Result<()> {
    let text = named.to_str().unwrap_or_default();
    let host = text.split_once('/').map_or("", |(host, _)| host);
    let is_host = !host.starts_with('.') && (host.contains(['.', ':']) || host == "localhost");
    ensure!(
        !is_host || crate::is_manifest(named) || named.exists(),
        "there is no file {0}; the module of that name in a registry is registry://{0}",
        portcullis_contract::clean(text, 300)
    );
    Ok(())
}

/// The module that is named instead of a manifest: an address, or the absolute path of a file with its folder. `None` for a manifest.
fn module(named: &Path) -> anyhow::Result<Option<(String, Option<PathBuf>)>> {
    let text = named.to_str().unwrap_or_default();
    if let Some(path) = text.strip_prefix("file://") {
        return Ok(Some((text.to_owned(), Path::new(path).parent().map(Path::to_owned))));
    }
    if text.contains("://") {
        return Ok(Some((text.to_owned(), None)));
    }
    if named.extension().is_none_or(|extension| extension != "wasm") {
        return Ok(None);
    }
    let path = std::path::absolute(named)?;
    let text = path.to_str().context("the path of a module must be UTF-8")?.to_owned();
    Ok(Some((text, path.parent().map(Path::to_owned))))
}

/// The settings that are given in addition to the policy.
fn settings(args: &EvalArgs) -> anyhow::Result<Option<Value>> {
    if let Some(text) = &args.settings_json {
        let failed = |error| SettingError::new("--settings-json", format!("it is not JSON: {error}"));
        return Ok(serde_json::from_str(text).map(Some).map_err(failed)?);
    }
    let Some(path) = &args.settings_path else { return Ok(None) };
    let failed = |problem: String| SettingError::new("--settings-path", problem);
    let text = crate::read(path, LARGEST).map_err(|error| failed(format!("{error:#}")))?;
    let settings = portcullis_yaml::read(text).map_err(|error| failed(format!("{}: {error}", path.display())))?;
    Ok(Some(settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_artifact_is_told_with_its_scheme() {
        for artifact in ["ghcr.io/a/b:v1", "localhost:5000/b", "localhost/b@sha256:11"] {
            let told = ensure_no_artifact(Path::new(artifact)).expect_err(artifact).to_string();
            assert_eq!(
                told,
                format!("there is no file {artifact}; the module of that name in a registry is registry://{artifact}")
            );
        }
        for other in ["policies/a", "./a.b/c", "../a", "/a.b/c", "v1.2/policy.yaml", "a.yaml", "-"] {
            assert!(ensure_no_artifact(Path::new(other)).is_ok(), "{other}");
        }
    }

    #[test]
    fn a_folder_is_no_manifest() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = policy_of(folder.path(), None, Given::default()).expect_err("a folder");
        let path = folder.path().display();
        assert_eq!(
            error.to_string(),
            format!("{path} is a folder; name one manifest in it (`portcullis check {path}` reads a whole folder)")
        );
    }
}
