//! The scripts by which shells ask this program.

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use crate::args::{Args, CompletionFor};

/// The script that kubectl runs for completions, if there is no link. kubectl has found the plugin on PATH, so the script does too.
const KUBECTL: &str = "\
#!/bin/sh
# kubectl asks this script, as kubectl_complete-portcullis on PATH, what could stand where the last word is.
exec kubectl-portcullis __complete -- \"$@\"
";

/// The script for a shell or for kubectl.
pub(crate) fn script(of: CompletionFor) -> Vec<u8> {
    match of {
        CompletionFor::Bash => include_bytes!("portcullis.bash").to_vec(),
        CompletionFor::Fish => include_bytes!("portcullis.fish").to_vec(),
        CompletionFor::Zsh => include_bytes!("portcullis.zsh").to_vec(),
        CompletionFor::Kubectl => KUBECTL.as_bytes().to_vec(),
        CompletionFor::Elvish => fixed(Shell::Elvish),
        CompletionFor::Powershell => fixed(Shell::PowerShell),
    }
}

/// A script that knows commands and options, and does not ask this program for the rest.
fn fixed(shell: Shell) -> Vec<u8> {
    // The generator would offer hidden commands too.
    let whole = Args::command();
    let shown = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut shown = Command::new("portcullis").version(env!("CARGO_PKG_VERSION")).subcommands(shown);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown, "portcullis", &mut script);
    script
}
