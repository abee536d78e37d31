//! Possible completions of the last word of a command line, in the form that kubectl reads.

use std::time::Duration;

use clap::{Command, CommandFactory as _};

use crate::args::{Args, ClusterArgs, SourceArgs};
use crate::policy_source::PolicySource;

/// Longest time for the names of policies: a user waits at a prompt.
const PATIENCE: Duration = Duration::from_secs(2);
/// Tells the shell not to complete file names.
const NO_FILES: &str = ":4";
/// Tells the shell to complete file names.
const FILES: &str = ":0";

/// Possible completions.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Candidates {
    /// One of these words.
    Words(Vec<String>),
    /// The name of a policy.
    Policies,
    /// A file or a folder.
    Files,
}

/// The answer for kubectl: one candidate on each line, then a line that says whether file names fit too.
pub(crate) async fn complete(words: &[String]) -> String {
    let last = words.last().map_or("", String::as_str);
    let candidates = match candidates(&Args::command(), words) {
        Candidates::Files => return format!("{FILES}\n"),
        Candidates::Words(words) => words,
        Candidates::Policies => tokio::time::timeout(PATIENCE, policies(words)).await.unwrap_or_default(),
    };
    let fitting = candidates.into_iter().filter(|word| word.starts_with(last));
    fitting.chain([NO_FILES.to_owned()]).map(|line| line + "\n").collect()
}

/// Possible completions of the last of these words.
fn candidates(command: &Command, words: &[String]) -> Candidates {
    let (last, before) = words.split_last().map_or(("", [].as_slice()), |(last, before)| (last.as_str(), before));
    let named = before.iter().find(|word| !word.starts_with('-'));
    let Some(subcommand) = named.and_then(|name| command.find_subcommand(name)) else {
        let names = command.get_subcommands().filter(|command| !command.is_hide_set());
        return Candidates::Words(names.map(|command| command.get_name().to_owned()).collect());
    };
    let option = |word: &str| {
        subcommand.get_arguments().find(|arg| {
            let long = arg.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long));
            long || arg.get_short().is_some_and(|short| word.strip_prefix('-') == Some(short.to_string().as_str()))
        })
    };
    if let Some(arg) = before.last().and_then(|word| option(word)).filter(|arg| arg.get_action().takes_values()) {
        let values: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let names_file = matches!(arg.get_id().as_str(), "dir" | "kubeconfig");
        return if values.is_empty() && names_file { Candidates::Files } else { Candidates::Words(values) };
    }
    if last.starts_with('-') {
        let options = subcommand.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(|arg| arg.get_long());
        return Candidates::Words(options.map(|option| format!("--{option}")).collect());
    }
    let takes_policy = subcommand.get_positionals().next().is_some_and(|first| first.get_id() == "policy");
    if takes_policy { Candidates::Policies } else { Candidates::Files }
}

/// The ids of all policies that the words of a command line can mean; empty if they cannot be read.
async fn policies(words: &[String]) -> Vec<String> {
    let value = |long: &str, short: &str| {
        let place = words.iter().position(|word| word == long || word == short)?;
        words.get(place + 1).cloned()
    };
    let source = SourceArgs {
        dir: value("--dir", "").map(Into::into),
        namespace: value("--namespace", "-n"),
        cluster: ClusterArgs { context: value("--context", ""), kubeconfig: value("--kubeconfig", "").map(Into::into) },
    };
    match PolicySource::open(&source).await {
        Ok(source) => source.ids().await.unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(line: &str) -> Candidates {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        candidates(&Args::command(), &words)
    }

    #[test]
    fn commands_options_values_and_policies() {
        let Candidates::Words(commands) = at("") else { panic!("commands") };
        assert!(commands.iter().any(|word| word == "rollback") && !commands.iter().any(|word| word == "__complete"));
        let Candidates::Words(options) = at("get -") else { panic!("options") };
        assert!(
            ["--all-namespaces", "--dir"].iter().all(|word| options.iter().any(|option| option == word)),
            "{options:?}"
        );
        let Candidates::Words(options) = at("rollback -") else { panic!("options") };
        assert!(!options.iter().any(|word| word == "--dir"), "{options:?}");
        assert_eq!(
            at("get -o "),
            Candidates::Words(["table", "wide", "json", "yaml", "name"].map(str::to_owned).to_vec())
        );
        assert_eq!(at("describe "), Candidates::Policies);
        assert_eq!(at("rollback -n team-a la"), Candidates::Policies);
        assert_eq!(at("get --kubeconfig "), Candidates::Files);
        assert_eq!(at("run "), Candidates::Files);
    }
}
