//! `kubectl portcullis`: the same program under another name.
//!
//! kubectl runs `kubectl-portcullis` from PATH with the words after `portcullis`, and asks `kubectl_complete-portcullis` for completions of
//! the last word. Links with these names to this program are enough.

use std::env;
use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory as _, FromArgMatches as _};

use crate::args::Args;

/// The name under which kubectl looks for the plugin on PATH.
const PLUGIN: &str = "kubectl-portcullis";
/// The name of the program that kubectl asks for completions.
const COMPLETION: &str = "kubectl_complete-portcullis";

/// Whether kubectl runs this program.
pub fn is_plugin() -> bool {
    env::args_os().next().is_some_and(|name| is_named(&name, PLUGIN) || is_named(&name, COMPLETION))
}

/// Reads the command line. If clap refuses it, the process ends with status 64, as for any bad setting.
pub fn parse_args() -> Args {
    let words: Vec<OsString> = env::args_os().collect();
    let is = |wanted: &str| words.first().is_some_and(|name| is_named(name, wanted));
    let mut command = Args::command();
    if is(PLUGIN) {
        command = command.bin_name("kubectl portcullis");
    }
    let words = if is(COMPLETION) { completion_words(words) } else { words };
    let parsed = command.try_get_matches_from_mut(words).and_then(|matches| Args::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| {
        // Help and version are not errors, and output that cannot be printed has no reader.
        let _ = error.print();
        std::process::exit(if error.use_stderr() { 64 } else { 0 })
    })
}

/// The words as the script would pass them.
fn completion_words(words: Vec<OsString>) -> Vec<OsString> {
    let begin = ["portcullis", "__complete", "--"].map(OsString::from);
    begin.into_iter().chain(words.into_iter().skip(1)).collect()
}

fn is_named(path: &OsString, name: &str) -> bool {
    Path::new(path).file_name().is_some_and(|file| file == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_asks_like_the_script() {
        let words = ["/bin/kubectl_complete-portcullis", "get", ""].map(OsString::from).to_vec();
        assert!(is_named(&words[0], COMPLETION) && !is_named(&words[0], PLUGIN));
        assert_eq!(completion_words(words), ["portcullis", "__complete", "--", "get", ""]);
    }
}
