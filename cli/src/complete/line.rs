//! What could stand where the last word of an unfinished command line is. Pure.

use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command, ValueHint};

use super::Candidate;

/// An unfinished command line.
#[derive(Debug)]
pub(super) struct Line<'a> {
    /// The subcommand, or the program itself if the line has no subcommand yet.
    command: &'a Command,
    /// The arguments before the last word, each with its value.
    given: Vec<(&'a Arg, &'a str)>,
    /// The part of the last word that candidates begin with.
    pub(super) prefix: &'a str,
    place: Place<'a>,
}

/// What the last word is.
#[derive(Debug)]
enum Place<'a> {
    Subcommand,
    Option,
    Value(&'a Arg),
    /// The command takes no word here.
    Nowhere,
}

/// What could stand there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// One of these.
    Words(Vec<Candidate>),
    /// The name of a policy of a folder or a cluster; of a cluster only if `of_cluster`.
    Policy { of_cluster: bool },
    /// The name of a policy in a file that the line names.
    PolicyOf(String),
    /// A context of the kubeconfig.
    Context,
    /// A file or a folder.
    File,
}

impl<'a> Line<'a> {
    /// Reads the words behind the name of the program; `root` has been built.
    pub(super) fn read(root: &'a Command, words: &'a [String]) -> Self {
        let (last, before) = words.split_last().map_or(("", [].as_slice()), |(last, before)| (last.as_str(), before));
        let mut line = Self { command: root, given: Vec::new(), prefix: last, place: Place::Nowhere };
        let mut waiting: Option<&Arg> = None;
        let mut options_end = false;
        for word in before {
            if let Some(arg) = waiting.take() {
                line.given.push((arg, word));
            } else if !options_end && word == "--" {
                options_end = true;
            } else if !options_end && word.len() > 1 && word.starts_with('-') {
                match line.option(word) {
                    Some((arg, None)) if arg.get_action().takes_values() => waiting = Some(arg),
                    Some((arg, value)) => line.given.push((arg, value.unwrap_or_default())),
                    None => {}
                }
            } else if line.command.has_subcommands() {
                let Some(subcommand) = line.command.find_subcommand(word) else { return line };
                line.command = subcommand;
            } else if let Some(arg) = line.positional() {
                line.given.push((arg, word));
            }
        }
        line.place = match waiting {
            Some(arg) => Place::Value(arg),
            None if !options_end && last.starts_with('-') => match last.split_once('=').zip(line.option(last)) {
                Some(((_, value), (arg, Some(_)))) => {
                    line.prefix = value;
                    Place::Value(arg)
                }
                _ => Place::Option,
            },
            None if line.command.has_subcommands() => Place::Subcommand,
            None => line.positional().map_or(Place::Nowhere, Place::Value),
        };
        line
    }

    /// What could stand where the last word is.
    pub(super) fn wanted(&self) -> Wanted {
        match self.place {
            Place::Subcommand => Wanted::Words(subcommands(self.command)),
            Place::Option => Wanted::Words(self.options()),
            Place::Value(arg) => self.value_of(arg),
            Place::Nowhere => Wanted::Words(Vec::new()),
        }
    }

    /// The value of an argument that was given.
    pub(super) fn value(&self, id: &str) -> Option<&'a str> {
        self.given.iter().find(|(arg, _)| arg.get_id() == id).map(|(_, value)| *value)
    }

    /// The option that a word names, and the value if it is in the same word.
    fn option(&self, word: &'a str) -> Option<(&'a Arg, Option<&'a str>)> {
        let mut args = self.command.get_arguments();
        if let Some(long) = word.strip_prefix("--") {
            let (long, value) = long.split_once('=').map_or((long, None), |(long, value)| (long, Some(value)));
            return args.find(|arg| arg.get_long() == Some(long)).map(|arg| (arg, value));
        }
        // Several short options may share a word. One that takes a value takes the rest of the word.
        let mut shorts = word[1..].char_indices();
        loop {
            let (place, short) = shorts.next()?;
            let arg = self.command.get_arguments().find(|arg| arg.get_short() == Some(short))?;
            let rest = &word[1 + place + short.len_utf8()..];
            if rest.is_empty() {
                return Some((arg, None));
            }
            if arg.get_action().takes_values() {
                return Some((arg, Some(rest.strip_prefix('=').unwrap_or(rest))));
            }
        }
    }

    /// The positional argument that comes next.
    fn positional(&self) -> Option<&'a Arg> {
        let taken = self.given.iter().filter(|(arg, _)| arg.is_positional()).count();
        let is_many = |arg: &&Arg| matches!(arg.get_action(), ArgAction::Append);
        self.command.get_positionals().nth(taken).or_else(|| self.command.get_positionals().last().filter(is_many))
    }

    /// The options that may still be given.
    fn options(&self) -> Vec<Candidate> {
        let is_given = |arg: &Arg| self.given.iter().any(|(given, _)| given.get_id() == arg.get_id());
        let is_many = |arg: &Arg| matches!(arg.get_action(), ArgAction::Append);
        let may_come = |arg: &&Arg| !arg.is_hide_set() && (is_many(arg) || !is_given(arg));
        let candidate = |arg: &Arg| Some(Candidate::described(format!("--{}", arg.get_long()?), arg.get_help()));
        self.command.get_arguments().filter(may_come).filter_map(candidate).collect()
    }

    fn value_of(&self, arg: &Arg) -> Wanted {
        let values = arg.get_possible_values();
        if !values.is_empty() {
            let candidate = |value: &PossibleValue| Candidate::described(value.get_name().to_owned(), value.get_help());
            return Wanted::Words(values.iter().filter(|value| !value.is_hide_set()).map(candidate).collect());
        }
        match arg.get_id().as_str() {
            "policy" if arg.is_positional() => {
                let has_dir = |arg: &Arg| arg.get_id() == "dir" && !arg.is_hide_set();
                Wanted::Policy { of_cluster: !self.command.get_arguments().any(has_dir) }
            }
            "policy" => match self.value("policy_file") {
                Some(file) => Wanted::PolicyOf(file.to_owned()),
                None => Wanted::Words(Vec::new()),
            },
            "context" => Wanted::Context,
            _ if matches!(arg.get_value_hint(), ValueHint::AnyPath) => Wanted::File,
            _ => Wanted::Words(Vec::new()),
        }
    }
}

fn subcommands(command: &Command) -> Vec<Candidate> {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    let candidate = |command: &Command| Candidate::described(command.get_name().to_owned(), command.get_about());
    shown.map(candidate).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Args;

    /// The words with which candidates at the end of this line begin, and what could stand there.
    fn at(line: &str) -> (String, Wanted) {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let mut command = Args::command();
        command.build();
        let line = Line::read(&command, &words);
        (line.prefix.to_owned(), line.wanted())
    }

    fn words(line: &str) -> Vec<String> {
        match at(line).1 {
            Wanted::Words(words) => words.into_iter().map(|candidate| candidate.word).collect(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn commands_and_options() {
        let has = |line: &str, word: &str| words(line).iter().any(|found| found == word);
        assert!(has("", "rollback") && has("", "help") && !has("", "__complete"));
        assert!(has("help ", "rollback") && !has("help ", "__complete"));
        assert!(has("get -", "--all-namespaces") && has("get -", "--dir") && has("get -", "--help"));
        assert!(!has("rollback -", "--dir"), "it is hidden");
        assert!(!has("get --dir x --", "--dir") && has("run d --module-root x --", "--module-root"));
        for nowhere in ["nosuch ", "nosuch get ", "diff a 1 2 ", "get a b", "get -n ", "eval p r --settings-json "] {
            assert_eq!(words(nowhere), [""; 0], "{nowhere}");
        }
    }

    #[test]
    fn values_of_options_in_every_form() {
        for line in ["get -o ", "get --output ", "get --output=", "get -Ao ", "get x -A --output=y"] {
            assert_eq!(words(line), ["table", "wide", "json", "yaml", "name"], "{line}");
        }
        assert_eq!(at("get --output=y").0, "y");
        assert_eq!(at("get --kubeconfig ").1, Wanted::File);
        assert_eq!(at("get --dir=pol"), ("pol".to_owned(), Wanted::File));
        assert_eq!(at("get --context st").1, Wanted::Context);
        assert_eq!(words("migrate "), ["kubewarden"]);
    }

    #[test]
    fn policies_where_a_command_takes_one() {
        for line in ["get ", "describe no-", "history -n team-a la", "get -nteam-a ", "get -A -ojson ", "get -- -"] {
            assert_eq!(at(line).1, Wanted::Policy { of_cluster: false }, "{line}");
        }
        for line in ["rollback ", "diff -n team-a la", "audit --now "] {
            assert_eq!(at(line).1, Wanted::Policy { of_cluster: true }, "{line}");
        }
        assert_eq!(at("impact a.yaml --policy ").1, Wanted::PolicyOf("a.yaml".to_owned()));
        assert_eq!(at("eval a.yaml pod.yaml --policy=no").1, Wanted::PolicyOf("a.yaml".to_owned()));
        assert_eq!(words("impact --policy "), [""; 0], "no file is named yet");
    }

    #[test]
    fn files_where_a_command_takes_them() {
        for line in ["run ", "check a b ", "eval p ", "inspect ", "pull x -f ", "save a b ", "verify x --key "] {
            assert_eq!(at(line).1, Wanted::File, "{line}");
        }
        assert_eq!(words("verify "), [""; 0], "an image is not a file");
        assert_eq!(words("load modules.tar "), [""; 0], "a registry is not a file");
    }

    #[test]
    fn a_value_that_was_given_is_found_in_every_form() {
        let mut command = Args::command();
        command.build();
        for text in ["get -n team-a --dir=d ", "get -nteam-a --dir d ", "get -n=team-a x --dir d "] {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            let line = Line::read(&command, &words);
            assert_eq!((line.value("namespace"), line.value("dir")), (Some("team-a"), Some("d")), "{text}");
            assert_eq!(line.value("context"), None);
        }
    }
}
