//! `portcullis impact`: what a policy would do to the objects that are in a cluster already.
//!
//! ```text
//!  POLICY.yaml ─► the session of eval: loader, evaluator ◄─ a request for each object ◄─ pages of lists ◄─ API server
//!                                 └─► counts, and the first objects that it would deny or change
//! ```
//!
//! Objects are read with the user's own rights, a page at a time, and nothing is written.

mod list;
mod report;

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use portcullis_contract::Mode;
use portcullis_matching::{Conditions, Existing, Parts, Resource, Scope, ScopeError, about};
use serde_json::Value;
use tokio::task::yield_now;

use crate::args::{EvalForm, ImpactArgs, SourceArgs};
use crate::cluster::{Cluster, ClusterError, Discovered, Selection};
use crate::eval::manifest::{Chosen, Given};
use crate::eval::policy_of;
use crate::eval::session::{More, Session, until_signal};
use crate::eval::state::Settled;
use crate::eval::verdict::{Outcome, Verdict};
use list::List;
use report::{Effect, Impact};

/// How many objects are asked about at once.
const AT_ONCE: usize = 8;
/// The user name in the requests that the policy is asked about.
const USER: &str = "portcullis-impact";

/// Asks and prints. Exit status: 0 nothing would be denied, 1 something would be, 2 could not find out, 64 for a bad argument.
pub(crate) fn impact(args: &ImpactArgs) -> ExitCode {
    let printed = found(args).and_then(|impact| {
        let text = match args.output {
            EvalForm::Text => impact.text(),
            EvalForm::Json => impact.json(),
        };
        crate::print(text.as_bytes())?;
        Ok(impact.status())
    });
    match printed {
        Ok(status) => ExitCode::from(status),
        Err(error) => crate::refuse(&error),
    }
}

fn found(args: &ImpactArgs) -> anyhow::Result<Impact> {
    args.modules.loader.access.check()?;
    let named = || format!("failed to take a policy from {}", args.policy_file.display());
    let given = Given { capabilities: args.host_capabilities.clone(), protect: true, ..Given::default() };
    let (chosen, folder) = policy_of(&args.policy_file, args.policy.as_deref(), given)?;
    let scope = scope(args, &chosen).with_context(named)?;
    ensure!(
        args.cluster.context.is_none() || !chosen.asks_cluster(),
        "--context: the policy may ask the cluster itself (contextAwareResources, or kubernetes/can_i), by the current context of the \
         kubeconfig; make it the current one with `kubectl config use-context`"
    );
    let roots = Vec::from_iter(std::iter::once(folder).chain(args.modules.module_roots.iter().cloned()));
    until_signal(ask(args, &chosen, &scope, &roots))
}

/// Which objects the policy is asked about.
fn scope(args: &ImpactArgs, chosen: &Chosen) -> anyhow::Result<Scope> {
    let parts = Parts {
        id: &chosen.id,
        rules: &chosen.spec.rules,
        object_selector: chosen.spec.object_selector.as_ref(),
        namespace_selector: chosen.spec.namespace_selector.as_ref(),
        installation: &args.installation_namespace,
        namespace: args.namespace.as_deref(),
    };
    Scope::of(&parts).map_err(|error| {
        let is_of_argument = matches!(error, ScopeError::OtherNamespace { .. });
        let error = anyhow::Error::new(error);
        if is_of_argument { error.context("--namespace") } else { error }
    })
}

/// Loads the policy, and asks it about each object.
async fn ask(args: &ImpactArgs, chosen: &Chosen, scope: &Scope, roots: &[PathBuf]) -> anyhow::Result<Impact> {
    let source = SourceArgs { dir: None, namespace: args.namespace.clone(), cluster: args.cluster.clone() };
    let cluster = Cluster::connect(&source).await?;
    // Before anything is compiled, so that a cluster that does not answer is noticed at once.
    let discovered = cluster.resources(|group, version| scope.is_of(group, version)).await?;
    let mut loader = args.modules.for_loader();
    if let Some(kubeconfig) = &args.cluster.kubeconfig {
        loader.extend(["--kubeconfig".into(), kubeconfig.clone().into()]);
    }
    let session =
        Session::start(&[&chosen.manifest], roots, More::of_loader(loader), args.modules.limits.compile_time).await?;
    let mut settled = None;
    session.settle(&[&chosen.id], |_, one| settled = Some(one)).await?;
    let (module, mismatches) = match settled.context("the policy has no state")? {
        Settled::Serves { module, mismatches } => (module, mismatches),
        Settled::Failed(failure) => bail!("the policy {} does not load: {failure}", chosen.id),
        Settled::Refused(why) => bail!(why),
    };
    let mut impact = Impact::new(&chosen.id, args.show);
    notes(chosen, scope, &mut impact);
    chosen.differences(mismatches).for_each(|text| impact.note(text));
    let conditions = Conditions::of(&chosen.spec.match_conditions);
    let asking = Asking { cluster: &cluster, session: &session, chosen, scope, conditions };
    let asked = asking.all(discovered, &mut impact).await;
    session.stop(Some(&module)).await;
    asked?;
    Ok(impact)
}

/// What a user should know about the figures.
fn notes(chosen: &Chosen, scope: &Scope, impact: &mut Impact) {
    match chosen.spec.mode {
        Mode::Protect => {}
        mode @ (Mode::Warn | Mode::Monitor) => {
            impact.note(format!("the policy's mode is {}; the figures are those of protect", mode.as_str()));
        }
    }
    if chosen.spec.suspend {
        impact.note("the policy is suspended; the figures ignore that".to_owned());
    }
    chosen.read_otherwise.iter().for_each(|note| impact.note(note.clone()));
    if scope.has_other_operations() {
        impact.note(
            "rules for DELETE and CONNECT are left out: existing objects do not show who will send them".to_owned(),
        );
    }
}

/// All that is needed to ask about objects.
struct Asking<'a> {
    cluster: &'a Cluster,
    session: &'a Session,
    chosen: &'a Chosen,
    scope: &'a Scope,
    conditions: Conditions,
}

/// The result for an object.
enum Found {
    /// The policy was asked about it.
    Effect(Effect),
    /// Match conditions leave it out.
    LeftOut,
    /// The named match condition cannot be decided.
    Undecided(String),
}

impl Asking<'_> {
    async fn all(&self, discovered: Discovered, impact: &mut Impact) -> anyhow::Result<()> {
        for error in discovered.hidden {
            impact.hide(error.to_string());
        }
        let selected = match self.scope.namespaces() {
            Some(labels) => Some(self.cluster.namespaces(&labels.query()).await?),
            None => None,
        };
        let resources = self.scope.resources(&discovered.resources);
        if resources.is_empty() {
            impact.note("the cluster has no resource that the policy's rules name for CREATE or UPDATE".to_owned());
        }
        for (resource, operation) in resources {
            impact.begin(&resource, operation);
            let read = self.resource(&resource, selected.as_ref(), impact).await;
            show("");
            if let Err(error) = read? {
                impact.hide(error.to_string());
            }
        }
        Ok(())
    }

    /// Asks about each object of a resource. The inner error says why its objects, or the rest of them, cannot be read.
    async fn resource(
        &self,
        resource: &Resource,
        selected: Option<&BTreeSet<String>>,
        impact: &mut Impact,
    ) -> anyhow::Result<Result<(), ClusterError>> {
        let selection =
            Selection { namespace: self.scope.namespace().map(str::to_owned), labels: self.scope.objects().query() };
        let operations = self.scope.operations(resource);
        let mut list = List::default();
        while let Some(next) = list.next() {
            let page = match self.cluster.objects(resource, &selection, next).await {
                Ok(page) => page,
                Err(error) if list.begin_again(&error) => continue,
                Err(error) => return Ok(Err(error)),
            };
            let objects = list.take(page).into_iter();
            let covered = objects.filter(|object| self.scope.covers(resource, object, selected));
            let found = stream::iter(covered.map(|object| self.object(resource, &operations, object)));
            let found: Vec<Found> = found.buffered(AT_ONCE).try_collect().await?;
            for one in found {
                match one {
                    Found::Effect(effect) => impact.add(effect),
                    Found::LeftOut => impact.leave_out(),
                    Found::Undecided(condition) => impact.leave_undecided(condition),
                }
            }
            show(&impact.progress(list.progress()));
        }
        Ok(Ok(()))
    }

    async fn object(&self, resource: &Resource, operations: &[&str], object: Value) -> anyhow::Result<Found> {
        // Match conditions may take milliseconds each, so a signal is handled here.
        yield_now().await;
        let asked = match self.conditions.existing(resource, operations, &object) {
            Existing::Asked(asked) => asked,
            Existing::LeftOut => return Ok(Found::LeftOut),
            Existing::Undecided(condition) => return Ok(Found::Undecided(condition)),
        };
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let review = about(USER, &asked, &resource.kind, &name, &object.to_string());
        let (outcome, message, changes) = match self.session.post("validate", &self.chosen.id, review).await? {
            Ok(body) => {
                let verdict = Verdict::of(&self.chosen.id, &body, None, Vec::new())?;
                (verdict.outcome, verdict.message, verdict.patch.is_some())
            }
            Err(refusal) => (Outcome::NotEvaluated, Some(refusal.to_string()), false),
        };
        let (kind, namespace) = (resource.kind.clone(), asked.namespace);
        Ok(Found::Effect(Effect { kind, namespace, name, outcome, changes, message }))
    }
}

/// Shows progress in the last line of a terminal; an empty text clears the line.
fn show(text: &str) {
    if std::io::stderr().is_terminal() {
        // It is not a failure if the reader has gone away.
        let _ = write!(std::io::stderr().lock(), "\r\u{1b}[K{text}");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_kubectl_reads_otherwise_in_the_policy_is_noted() {
        let text = "apiVersion: policies.portcullis.dev/v1alpha1\nkind: ClusterPolicy\nmetadata: {name: a}\nspec:\n  module: a.wasm\n  \
                    rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]\n  settings: {a: on}\n";
        let chosen = Chosen::from(text.as_bytes(), Path::new("a.yaml"), Path::new("/"), None, Given::default());
        let chosen = chosen.expect("a policy");
        let scope = Scope::of(&Parts {
            id: &chosen.id,
            rules: &chosen.spec.rules,
            object_selector: None,
            namespace_selector: None,
            installation: "portcullis",
            namespace: None,
        });
        let mut impact = Impact::new(&chosen.id, 10);
        notes(&chosen, &scope.expect("a scope"), &mut impact);
        let told: Value = serde_json::from_str(&impact.json()).expect("JSON");
        let note = "a.yaml: line 7: kubectl reads `on` as true: quote it if it is a text";
        assert_eq!(told["notes"], serde_json::json!([note]));
    }
}
