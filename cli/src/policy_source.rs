//! Where policies are read from: a folder or a cluster.

use std::env;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use portcullis_contract::PolicyId;
use portcullis_process::SettingError;

use crate::args::{DescribeArgs, GetArgs, HistoryArgs, ScopeArgs, SourceArgs, TargetArgs};
use crate::cluster::{Cluster, ClusterError};
use crate::describe;
use crate::events::{EventView, Events};
use crate::folder_status::{FolderStatus, FolderStatusError};
use crate::get;
use crate::history;
use crate::item::Item;
use crate::layout::Layout;
use crate::name::Wanted;
use crate::plugin;

/// A source of policies, opened.
pub enum PolicySource {
    /// A folder that `portcullis run` serves or has served.
    Folder(FolderStatus),
    /// A cluster.
    Cluster(Cluster),
}

/// Which source to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// This folder.
    Folder(PathBuf),
    /// The cluster of the kubeconfig.
    Cluster,
}

/// The policies that were asked for, and notes for standard error.
struct Answer {
    items: Vec<Item>,
    notes: Vec<String>,
}

/// Chooses the source. `is_plugin` is true if kubectl runs this program, and `is_served` if `portcullis run` serves the current folder or
/// has served it.
pub fn choose(args: &SourceArgs, is_plugin: bool, is_served: bool) -> Choice {
    match &args.dir {
        Some(dir) => Choice::Folder(dir.clone()),
        None if is_plugin || args.cluster.context.is_some() || args.cluster.kubeconfig.is_some() => Choice::Cluster,
        None if args.namespace.is_some() || !is_served => Choice::Cluster,
        None => Choice::Folder(PathBuf::from(".")),
    }
}

impl Choice {
    /// What the arguments and the current folder choose.
    pub fn of(args: &SourceArgs) -> Self {
        choose(args, plugin::is_plugin(), Layout::of(Path::new(".")).status.is_dir())
    }
}

impl PolicySource {
    /// Opens what the arguments choose.
    ///
    /// # Errors
    /// When the folder is not there or has no status, or the kubeconfig cannot be used.
    pub async fn open(args: &SourceArgs) -> anyhow::Result<Self> {
        match Choice::of(args) {
            Choice::Folder(dir) if !dir.is_dir() => {
                Err(SettingError::new("--dir", format!("there is no folder {}", dir.display())).into())
            }
            Choice::Folder(dir) => Ok(Self::Folder(FolderStatus::open(&dir)?)),
            Choice::Cluster => match Cluster::connect(args).await {
                Ok(cluster) => Ok(Self::Cluster(cluster)),
                Err(error) => Err(explain(error, args)),
            },
        }
    }

    /// The ids of all policies of a folder, or of the ClusterPolicies of a cluster and the Policies of the namespace.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn ids(&self) -> anyhow::Result<Vec<PolicyId>> {
        let items = match self {
            Self::Folder(folder) => folder.items()?,
            Self::Cluster(cluster) => cluster.policies(false, true).await?.items,
        };
        Ok(items.into_iter().map(|item| item.id).collect())
    }

    async fn read(&self, scope: &ScopeArgs) -> anyhow::Result<Answer> {
        let namespace = scope.source.namespace.as_deref();
        let wanted = scope.policy.as_ref().map(|policy| Wanted::parse(policy, namespace)).transpose()?;
        let mut notes = Vec::new();
        let items = match (self, wanted) {
            (Self::Folder(folder), Some(wanted)) => vec![folder.find(&wanted)?],
            (Self::Folder(folder), None) => {
                let in_namespace = |item: &Item| namespace.is_none_or(|of| item.id.namespace() == Some(of));
                folder.items()?.into_iter().filter(in_namespace).collect()
            }
            (Self::Cluster(cluster), Some(wanted)) => vec![cluster.find(&wanted).await?],
            (Self::Cluster(cluster), None) => {
                let found = cluster.policies(scope.all_namespaces, namespace.is_none()).await?;
                notes.extend(found.hidden.iter().map(|error| format!("Not all policies are shown: {error}")));
                found.items
            }
        };
        match self {
            Self::Folder(folder) => notes.extend(folder.notes()),
            Self::Cluster(cluster) if items.is_empty() => notes.push(if scope.all_namespaces {
                "No policies in the cluster.".to_owned()
            } else {
                let kinds = if namespace.is_none() { "No ClusterPolicies, and no" } else { "No" };
                format!("{kinds} Policies in the namespace {:?}; -A looks at all.", cluster.namespace())
            }),
            Self::Cluster(_) => {}
        }
        Ok(Answer { items, notes })
    }

    async fn events(&self, item: &Item) -> Events {
        match self {
            Self::Folder(folder) => Events::Known(folder.events(&item.id).map(EventView::of_folder).collect()),
            Self::Cluster(cluster) => cluster.events(item).await,
        }
    }
}

/// `portcullis get`.
///
/// # Errors
/// When the policies cannot be read.
pub async fn get(args: &GetArgs) -> anyhow::Result<()> {
    let source = PolicySource::open(&args.scope.source).await?;
    let answer = source.read(&args.scope).await?;
    let text = get::get(&answer.items, args.scope.policy.is_some(), args.output, Timestamp::now())?;
    print_with_notes(&text, &answer.notes)
}

/// `portcullis describe`.
///
/// # Errors
/// When the policies cannot be read.
pub async fn describe(args: &DescribeArgs) -> anyhow::Result<()> {
    let source = PolicySource::open(&args.scope.source).await?;
    let answer = source.read(&args.scope).await?;
    let mut texts = Vec::new();
    for item in &answer.items {
        let events = source.events(item).await;
        texts.push(describe::describe(item, &events, Timestamp::now()));
    }
    print_with_notes(&texts.join("\n\n"), &answer.notes)
}

/// `portcullis history`.
///
/// # Errors
/// When the policy cannot be read.
pub async fn history(args: &HistoryArgs) -> anyhow::Result<()> {
    let TargetArgs { policy, source } = args.target.clone();
    let scope = ScopeArgs { policy: Some(policy), source, all_namespaces: false };
    let source = PolicySource::open(&scope.source).await?;
    let mut answer = source.read(&scope).await?;
    let Some(item) = answer.items.first() else { return Ok(()) };
    if item.history().is_empty() {
        answer.notes.push(format!("{} has no history yet.", item.id));
    }
    print_with_notes(&history::history(item, args.output, Timestamp::now())?, &answer.notes)
}

/// Prints the text, and notes to standard error, so that they are not in piped output.
fn print_with_notes(text: &str, notes: &[String]) -> anyhow::Result<()> {
    crate::print(text.as_bytes())?;
    for note in notes {
        crate::note(note);
    }
    Ok(())
}

/// If there is neither a cluster nor a folder with a status, the error mentions both.
fn explain(error: anyhow::Error, args: &SourceArgs) -> anyhow::Error {
    let nothing_named = args.cluster.context.is_none() && args.namespace.is_none() && !plugin::is_plugin();
    match error.downcast_ref::<ClusterError>() {
        Some(ClusterError::NoKubeconfig) if nothing_named && env::current_dir().is_ok() => {
            FolderStatusError::nowhere(Path::new(".")).into()
        }
        Some(ClusterError::NoKubeconfig) => ClusterError::NoKubeconfigOrFolder.into(),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::ClusterArgs;

    #[test]
    fn what_is_named_counts_then_the_folder_then_the_cluster() {
        let none = SourceArgs::default();
        let here = Choice::Folder(PathBuf::from("."));
        assert_eq!(choose(&none, false, true), here);
        assert_eq!(choose(&none, false, false), Choice::Cluster);
        assert_eq!(choose(&none, true, true), Choice::Cluster);
        let namespace = SourceArgs { namespace: Some("n".to_owned()), ..SourceArgs::default() };
        assert_eq!(choose(&namespace, false, true), Choice::Cluster);
        let cluster = ClusterArgs { context: Some("c".to_owned()), ..ClusterArgs::default() };
        let context = SourceArgs { cluster, ..SourceArgs::default() };
        assert_eq!(choose(&context, false, true), Choice::Cluster);
        let dir = SourceArgs { dir: Some("d".into()), namespace: Some("n".to_owned()), ..SourceArgs::default() };
        assert_eq!(choose(&dir, true, false), Choice::Folder("d".into()));
    }
}
