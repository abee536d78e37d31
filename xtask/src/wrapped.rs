//! Commands that are started by another command.

use std::process::Command;

use crate::tools;

/// A command that starts `inner`: `outer`, with the program of `inner` and its arguments after its own, in its folder and environment.
pub(crate) fn started_by(mut outer: Command, inner: &Command) -> Command {
    outer.arg(inner.get_program()).args(inner.get_args());
    if let Some(folder) = inner.get_current_dir() {
        outer.current_dir(folder);
    }
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// The script that starts its arguments with the lowest priority. Linux shares a processor among sessions before it looks at the priorities
/// within one, so the session gets the lowest as well: see autogroups in <https://man7.org/linux/man-pages/man7/sched.7.html>.
const LOWEST: &str = r#"echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 "$@""#;

/// The same command with the lowest priority: it gets the processor when nothing else wants it. It ends with the thread that started it.
pub(crate) fn at_lowest_priority(command: &Command) -> Command {
    let mut outer = if tools::on_path("setpriv") && tools::on_path("setsid") {
        let mut own_session = Command::new("setpriv");
        own_session.args(["--pdeathsig", "TERM", "setsid", "sh"]);
        own_session
    } else {
        Command::new("sh")
    };
    outer.args(["-c", LOWEST, "sh"]);
    started_by(outer, command)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_command_at_the_lowest_priority_is_otherwise_the_same() {
        let folder = std::env::temp_dir();
        let mut command = Command::new("sh");
        command.args(["-c", "pwd; nice; echo \"$1 $SET ${HOME-unset}\"", "sh", "an argument"]);
        command.current_dir(&folder).env("SET", "set").env_remove("HOME");
        let output = at_lowest_priority(&command).output().unwrap();
        let folder = folder.canonicalize().unwrap();
        let expected = format!("{}\n19\nan argument set unset\n", folder.display());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }

    #[test]
    fn the_session_of_a_command_at_the_lowest_priority_has_the_lowest_too() {
        if !Path::new("/proc/self/autogroup").exists() {
            eprintln!("this kernel has no autogroups");
            return;
        }
        let of_session = |command: &mut Command| String::from_utf8(command.output().unwrap().stdout).unwrap();
        let mut shows = Command::new("cat");
        shows.arg("/proc/self/autogroup");
        assert!(of_session(&mut at_lowest_priority(&shows)).ends_with(" nice 19\n"));
        assert!(!of_session(&mut shows).ends_with(" nice 19\n"), "that of others stays");
    }
}
