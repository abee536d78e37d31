//! Which generation a rollback goes to, or why it is refused. Pure.

use portcullis_contract::PolicyId;

use crate::item::{HistoryView, Item};

/// What to do with `spec.rollbackTo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Serve this generation again.
    To(i64),
    /// Serve the spec again, instead of this generation.
    Undo(i64),
}

/// Why a rollback is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RollbackError {
    /// No earlier generation served.
    #[error("no generation of {id} before {before} has served; `portcullis history {id}` lists them, --to names one")]
    NothingServed {
        /// The policy.
        id: PolicyId,
        /// The generation that counts now.
        before: i64,
    },
    /// The generation is not in the history.
    #[error("generation {to} of {id} is not in its history, which has {known}; `portcullis history {id}` tells more")]
    NotInHistory {
        /// The policy.
        id: PolicyId,
        /// What was asked for.
        to: i64,
        /// The candidates, as a text.
        known: String,
    },
    /// The generation is the current one.
    #[error("{id} is at generation {to} already; name an earlier one with --to")]
    Current {
        /// The policy.
        id: PolicyId,
        /// What was asked for.
        to: i64,
    },
    /// A rollback to this generation is asked for already.
    #[error(
        "{id} serves the content of generation {to} already (spec.rollbackTo); name another one with --to, or end it with --undo"
    )]
    Already {
        /// The policy.
        id: PolicyId,
        /// What was asked for.
        to: i64,
    },
    /// The generation's revision has been removed.
    #[error(
        "generation {to} of {id} is gone: its revision has been removed from the namespace {namespace:?} \
         (spec.revisionHistoryLimit); name another one with --to, or put its content into the spec"
    )]
    Gone {
        /// The policy.
        id: PolicyId,
        /// What was asked for.
        to: i64,
        /// Where revisions are.
        namespace: String,
    },
    /// There is no rollback to end.
    #[error("{id} has no spec.rollbackTo: its spec counts already")]
    NotRolledBack {
        /// The policy.
        id: PolicyId,
    },
    /// The policy was changed meanwhile.
    #[error(
        "{id} has been changed meanwhile and is at generation {generation} now; look at it with `portcullis history {id}` and try again"
    )]
    Changed {
        /// The policy.
        id: PolicyId,
        /// Its generation now.
        generation: i64,
    },
    /// There is no cluster.
    #[error(
        "{dir} is a folder, and a folder keeps no earlier generations: compare and put back its manifests, for instance with git; \
         until it loads, the last generation that worked goes on answering. For a cluster, name --context or --kubeconfig"
    )]
    Folder {
        /// The folder.
        dir: String,
    },
}

/// What to change, for the arguments `--to` and `--undo`.
pub(super) fn choose(item: &Item, to: Option<i64>, undo: bool) -> Result<Change, RollbackError> {
    let id = || item.id.clone();
    let asked = item.rollback_to();
    if undo {
        return asked.map(Change::Undo).ok_or_else(|| RollbackError::NotRolledBack { id: id() });
    }
    let history = item.history();
    let Some(to) = to else {
        // While a rollback is in force, the next one goes further back, not to the generation that the user rolled back from.
        let before = asked.unwrap_or_else(|| item.generation());
        let earlier = history.iter().find(|entry| entry.served && entry.generation < before);
        return earlier
            .map(|entry| Change::To(entry.generation))
            .ok_or_else(|| RollbackError::NothingServed { id: id(), before });
    };
    if asked == Some(to) {
        return Err(RollbackError::Already { id: id(), to });
    }
    if to == item.generation() {
        return Err(RollbackError::Current { id: id(), to });
    }
    // A status without history was written by an older release. Then the controller decides.
    if !history.is_empty() && !history.iter().any(|entry| entry.generation == to) {
        return Err(RollbackError::NotInHistory { id: id(), to, known: known(&history) });
    }
    Ok(Change::To(to))
}

/// A warning from the history about a generation that is to serve again; `None` if there is nothing to warn about.
pub(super) fn warning(item: &Item, change: &Change) -> Option<String> {
    let Change::To(to) = change else { return None };
    let entry = item.history().into_iter().find(|entry| entry.generation == *to)?;
    let why = entry.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    (!entry.served).then(|| format!("warning: generation {to} has never served{why}"))
}

fn known(history: &[HistoryView]) -> String {
    let numbers: Vec<String> = history.iter().map(|entry| entry.generation.to_string()).collect();
    numbers.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::tests::failing;

    fn refused(item: &Item, to: Option<i64>, undo: bool) -> String {
        choose(item, to, undo).expect_err("refused").to_string()
    }

    fn rolled_back(to: i64) -> Item {
        let mut item = failing();
        item.object["spec"]["rollbackTo"] = to.into();
        item
    }

    #[test]
    fn by_itself_to_the_last_that_served_before() {
        assert_eq!(choose(&failing(), None, false), Ok(Change::To(3)));
        assert_eq!(choose(&rolled_back(3), None, false), Ok(Change::To(1)));
        assert!(
            refused(&rolled_back(1), None, false).starts_with("no generation of cluster/labels before 1 has served")
        );
    }

    #[test]
    fn to_a_generation_of_the_history() {
        assert_eq!(choose(&failing(), Some(1), false), Ok(Change::To(1)));
        assert_eq!(warning(&failing(), &Change::To(1)), None);
        assert_eq!(choose(&failing(), Some(2), false), Ok(Change::To(2)));
        assert_eq!(
            warning(&failing(), &Change::To(2)).as_deref(),
            Some("warning: generation 2 has never served (SettingsInvalid)")
        );
    }

    #[test]
    fn what_cannot_be_is_told_with_the_reason() {
        assert!(refused(&failing(), Some(9), false).contains("is not in its history, which has 4, 3, 2, 1;"));
        assert!(refused(&failing(), Some(4), false).starts_with("cluster/labels is at generation 4 already"));
        assert!(
            refused(&rolled_back(3), Some(3), false).starts_with("cluster/labels serves the content of generation 3")
        );
    }

    #[test]
    fn without_history_the_controller_judges() {
        let mut item = failing();
        item.object["status"]["history"] = serde_json::Value::Null;
        assert_eq!(choose(&item, Some(1), false), Ok(Change::To(1)));
        assert!(choose(&item, None, false).is_err());
    }

    #[test]
    fn a_rollback_can_be_ended() {
        assert_eq!(choose(&rolled_back(3), None, true), Ok(Change::Undo(3)));
        assert_eq!(refused(&failing(), None, true), "cluster/labels has no spec.rollbackTo: its spec counts already");
    }
}
