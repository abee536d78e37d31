//! Completion of command lines: shells and kubectl ask this program what could stand where the last word is.
//!
//! The question is the hidden command `__complete` with the words of the line, the answer one candidate on each line and then a
//! directive, in the form that kubectl reads. The scripts of bash, zsh and fish ask in the same way.

mod line;
mod names;
mod script;

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::CommandFactory as _;
use clap::builder::StyledStr;
use portcullis_contract::PolicyId;

use self::line::{Line, Wanted};
pub(crate) use self::script::script;
use crate::args::{Args, ClusterArgs, SourceArgs};
use crate::cluster;
use crate::eval;
use crate::policy_source::{Choice, PolicySource};

/// Longest time for names of policies: a user waits at a prompt.
const PATIENCE: Duration = Duration::from_secs(1);
/// The variable that sets another time.
const TIMEOUT: &str = "PORTCULLIS_COMPLETION_TIMEOUT";
/// Largest manifest that is read for names of policies, in bytes.
const LARGEST_MANIFEST: u64 = 1 << 20;
/// Longest description, in characters.
const LONGEST_DESCRIPTION: usize = 80;
/// Tells the shell not to complete file names.
const NO_FILES: &str = ":4";
/// Tells the shell to complete file names.
const FILES: &str = ":0";

/// What could stand at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    word: String,
    /// What it is, in a few words; may be empty.
    description: String,
}

impl Candidate {
    /// A candidate that is described by the first sentence of a text.
    fn new(word: String, text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let sentence = line.split_once(". ").map_or(line, |(first, _)| first);
        let sentence = sentence.strip_suffix('.').unwrap_or(sentence);
        let mut description: String = sentence.chars().take(LONGEST_DESCRIPTION).collect();
        if description.len() < sentence.len() {
            description.push('…');
        }
        Self { word, description }
    }

    /// A candidate with the help that clap has for it.
    fn described(word: String, help: Option<&StyledStr>) -> Self {
        Self::new(word, &help.map(ToString::to_string).unwrap_or_default())
    }

    fn shown(&self) -> String {
        let tab = if self.description.is_empty() { "" } else { "\t" };
        format!("{}{tab}{}\n", self.word, self.description)
    }
}

/// The answer for a shell: one candidate on each line, then a line that says whether file names fit too.
pub(crate) fn complete(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| unquoted(word)).collect();
    let mut command = Args::command();
    command.build();
    let line = Line::read(&command, &words);
    let namespace = line.value("namespace");
    let patience = patience(std::env::var(TIMEOUT).ok().as_deref());
    let candidates = match line.wanted() {
        Wanted::File => return format!("{FILES}\n"),
        Wanted::Words(words) => words,
        Wanted::Policy { of_cluster } => {
            let source = source(&line);
            names::names(&in_time(patience, move || policies(&source, of_cluster)), namespace, line.prefix)
        }
        Wanted::PolicyOf(file) => plain(in_time(patience, move || policies_of(&path(&file)))),
        Wanted::Context => {
            let kubeconfig = line.value("kubeconfig").map(path);
            plain(in_time(patience, move || cluster::contexts(kubeconfig.as_deref())))
        }
    };
    // Names from files may have spaces and line ends, which the shells' scripts do not expect.
    let is_one_word = |word: &str| !word.contains(|char: char| char.is_whitespace() || char.is_control());
    let fits = |candidate: &&Candidate| candidate.word.starts_with(line.prefix) && is_one_word(&candidate.word);
    let fitting = candidates.iter().filter(fits);
    fitting.map(Candidate::shown).chain([format!("{NO_FILES}\n")]).collect()
}

fn plain(words: Vec<String>) -> Vec<Candidate> {
    words.into_iter().map(|word| Candidate::new(word, "")).collect()
}

/// How long names are looked for. Nobody reads an error here, so a time that cannot be read counts as none.
fn patience(given: Option<&str>) -> Duration {
    given.and_then(|text| portcullis_process::parse_duration(text).ok()).unwrap_or(PATIENCE)
}

/// What a thread finds out in time, otherwise nothing. A thread that is late ends with the process: some of what is read here, such as a
/// kubeconfig that runs a program for its credentials, blocks and cannot be interrupted.
fn in_time<T: Default + Send + 'static>(patience: Duration, find: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(find()));
    receiver.recv_timeout(patience).unwrap_or_default()
}

/// Where a command line looks for policies.
fn source(line: &Line<'_>) -> SourceArgs {
    let text = |id: &str| line.value(id).map(str::to_owned);
    let cluster = ClusterArgs { context: text("context"), kubeconfig: line.value("kubeconfig").map(path) };
    SourceArgs { dir: line.value("dir").map(path), namespace: text("namespace"), cluster }
}

/// The policies of a folder or a cluster; none if they cannot be read.
fn policies(source: &SourceArgs, of_cluster: bool) -> Vec<PolicyId> {
    if of_cluster && Choice::of(source) != Choice::Cluster {
        return Vec::new();
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let ids = async { PolicySource::open(source).await?.ids().await };
    runtime.block_on(ids).unwrap_or_default()
}

/// The names of the policies of a manifest; none if they cannot be read. What comes on standard input is left to the command.
fn policies_of(file: &Path) -> Vec<String> {
    if file.as_os_str() == "-" {
        return Vec::new();
    }
    crate::read(file, LARGEST_MANIFEST).map(|text| eval::manifest::names(file, &text)).unwrap_or_default()
}

/// The path that a word means: shells replace `~` only when they run a command.
fn path(word: &str) -> PathBuf {
    match (word.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(word),
    }
}

/// A word without the quotes that shells leave in words that are not complete.
fn unquoted(word: &str) -> String {
    let mut plain = String::with_capacity(word.len());
    let mut quote = None;
    let mut chars = word.chars();
    while let Some(char) = chars.next() {
        match (quote, char) {
            (None, '\'' | '"') => quote = Some(char),
            (Some(open), char) if open == char => quote = None,
            (None | Some('"'), '\\') => plain.extend(chars.next()),
            _ => plain.push(char),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lose_their_quotes() {
        for (word, plain) in [
            ("no-privileged", "no-privileged"),
            ("'my folder'", "my folder"),
            ("\"my fol", "my fol"),
            ("my\\ folder", "my folder"),
            ("--dir='a b'", "--dir=a b"),
            (r#"'a\b'"#, r"a\b"),
            ("a\\", "a"),
        ] {
            assert_eq!(unquoted(word), plain, "{word}");
        }
    }

    #[test]
    fn a_description_is_one_short_sentence() {
        let shown = |text: &str| Candidate::new("a".to_owned(), text).shown();
        assert_eq!(shown("The form. It is one of several."), "a\tThe form\n");
        assert_eq!(shown("Two\nlines."), "a\tTwo\n");
        assert_eq!(shown(""), "a\n");
        assert_eq!(shown(&"ä".repeat(100)), format!("a\t{}…\n", "ä".repeat(80)));
    }

    #[test]
    fn what_takes_too_long_is_nothing() {
        const ENOUGH: Duration = Duration::from_secs(600);
        let found: Vec<u8> = in_time(Duration::ZERO, || {
            thread::park();
            vec![1]
        });
        assert_eq!(found, [0; 0]);
        assert_eq!(in_time(ENOUGH, || 1), 1);
        assert_eq!(in_time::<u8>(ENOUGH, || panic!("a bug")), 0);
    }

    #[test]
    fn a_variable_sets_the_time() {
        assert_eq!(patience(Some("1m")), Duration::from_secs(60));
        assert_eq!((patience(None), patience(Some("soon"))), (PATIENCE, PATIENCE));
    }
}
